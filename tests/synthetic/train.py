"""A training loop over the simulated model: batch, forward, backward, clipping, optimizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.synthetic import gpu
from tests.synthetic.autograd import Leaf, run_backward
from tests.synthetic.layout import header, in_file_order
from tests.synthetic.model import Model
from tests.synthetic.recorder import NCCL_STREAM, Recorder
from tests.synthetic.spec import ModelSpec, Options, Synthetic, Where
from tests.synthetic.values import BF16, F32, I64, Argument, Literal, Value, tensor

_NS = "at::native::(anonymous namespace)::"
_FUSED = f"{_NS}FusedAdamMathFunctor<{BF16}, 4, ({_NS}ADAM_MODE)1, false>"
_BUCKET = 12_500_000  # gradient elements per all-reduce: DDP's 25 MB


def build(model: ModelSpec | None = None, options: Options | None = None) -> Synthetic:
    """Simulate ``options.steps`` training steps of ``model`` and return the recording with its truth."""
    return _Job(model or ModelSpec(), options or Options()).run()


class _Job:
    def __init__(self, spec: ModelSpec, options: Options) -> None:
        self.spec, self.options = spec, options
        self.rec = Recorder(options)
        self.model = Model(self.rec, spec, attention=options.attention)
        self.comm_done = 0  # when the last all-reduce ends

    def run(self) -> Synthetic:
        rec, options = self.rec, self.options
        with rec.frame("train.py(71): <module>"):
            if options.prelaunched:
                tail = gpu.multi_tensor(_FUSED, 1 << 22, 20 * (1 << 22), 4)
                rec.prelaunched([tail] * options.prelaunched, Where("optimizer", "optimizer"))
            for i in range(options.steps):
                rec.step = options.first_step + i
                rec.pace = self.pace(rec.step)
                with rec.annotation(f"ProfilerStep#{rec.step}"), rec.frame("train.py(48): step"):
                    self.step()
                rec.spend(60_000)
            rec.synchronize()
        rec.truth.sort(key=lambda row: (row.start_ns, row.correlation))
        records = in_file_order(rec)
        return Synthetic(self.spec, options, header(options), records, rec.truth)

    def pace(self, step: int) -> float:
        """How fast the GPU runs in a step: the same for all its kernels, as if its clock drifted."""
        spread = self.options.pace
        return 1.0 + random.Random(f"{self.options.seed} {step}").uniform(-spread, spread)

    def step(self) -> None:
        rec, options = self.rec, self.options
        self.zero_grad()
        for micro in range(options.accumulate):
            index, target = self.batch()
            loss = self.model.forward(index, target)
            last = micro == options.accumulate - 1
            self.backward(loss, reduce=options.all_reduce and last)
        if options.clip:
            with (
                rec.at(phase="optimizer", component="grad_clip"),
                rec.frame("torch/nn/utils/clip_grad.py(198): clip_grad_norm_"),
            ):
                self.clip()
        with rec.at(phase="optimizer", component="optimizer"):
            self.optimizer_step()

    def batch(self) -> tuple[Value, Value]:
        """Copy indices and targets to the device."""
        rec = self.rec
        values = []
        for _ in range(2):
            value = tensor((self.spec.micro_batch, self.spec.sequence), I64)
            with (
                rec.at(component="memory", phase="other"),
                rec.op("aten::to", (value, 4, 0, Literal("cuda:0"), None, False, False, None)),
                rec.op("aten::_to_copy", (value, 4, 0, Literal("cuda:0"), None, False, None)),
            ):
                rec.leaf("aten::empty_strided", value.shape, value.strides, 4, 0, Literal("cuda:0"), None)
                with rec.op("aten::copy_", (value, value, False)):
                    rec.call("cudaStreamIsCapturing")
                    rec.launch(gpu.memcpy(8 * value.elements))
            values.append(value)
        return values[0], values[1]

    def backward(self, loss: Value, *, reduce: bool) -> None:
        rec = self.rec
        frames = (
            "torch/_tensor.py(592): backward",
            "torch/autograd/__init__.py(243): backward",
            "<built-in method run_backward of torch._C._EngineBase object at 0x7f3c5a1e2b70>",
        )
        with rec.frame(frames[0]), rec.frame(frames[1]):
            with (
                rec.at(phase="backward", component="loss"),
                rec.op("aten::ones_like", (loss, None, None, None, False, 1)),
            ):
                with rec.op("aten::empty_like", (loss, None, None, None, False, 1)):
                    rec.leaf("aten::empty_strided", (), (), 15, 0, None, False)
                with rec.op("aten::fill_", (loss, 1.0)):
                    rec.launch(gpu.pointwise("fill", 1), strict=False)
            self._bucket_hooks(reduce)
            with rec.frame(frames[2]), rec.on_autograd_thread(), rec.at(phase="backward"):
                run_backward(rec, loss)
        rec.stream_free[7] = max(rec.stream_free.get(7, 0), self.comm_done)

    def _bucket_hooks(self, reduce: bool) -> None:
        """All-reduce every bucket when the gradient of its last parameter is there, as DDP does."""
        for leaf in self.model.leaves:
            leaf.on_ready = None
        if not reduce:
            return
        bucket = 0
        order = list(reversed(self.model.leaves))  # about the order in which gradients come
        for i, leaf in enumerate(order):
            bucket += leaf.parameter.elements
            if bucket >= _BUCKET or i == len(order) - 1:
                leaf.on_ready = self._reducer(bucket)
                bucket = 0

    def _reducer(self, elements: int) -> Callable[[], None]:
        def reduce() -> None:
            rec, flat, ranks = self.rec, tensor((elements,)), 8
            group = {
                "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements,
                "Group size": ranks, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
                "Process Group Name": "0", "Process Group Description": "default_pg",
                "Process Group Ranks": str(list(range(ranks))),
            }  # fmt: skip
            with (
                rec.at(component="communication", layer=None, module=None),
                rec.op("c10d::allreduce_", ([flat], None, None, None, False, -1)),
                rec.op("record_param_comms", ([flat], None, 0, 0, Literal("allreduce")), extra=group),
            ):
                rec.call("cudaEventRecord")
                rec.call("cudaStreamWaitEvent")
                with rec.annotation("nccl:all_reduce"):
                    ready = rec.stream_free.get(7, 0) + 1500
                    rec.launch(gpu.all_reduce(elements, ranks), stream=NCCL_STREAM, after=ready, extra=group)
                self.comm_done = rec.stream_free[NCCL_STREAM]

        return reduce

    # -- gradients and weights ---------------------------------------------------------------------

    def _live(self) -> list[Leaf]:
        return [leaf for leaf in self.model.leaves if leaf.has_grad]

    def _gradients(self) -> list[Value]:
        return [leaf.parameter for leaf in self._live()]

    def _elements(self) -> int:
        return sum(leaf.parameter.elements for leaf in self._live())

    def zero_grad(self) -> None:
        rec, grads = self.rec, self._gradients()
        with (
            rec.at(phase="optimizer", component="optimizer"),
            rec.frame("torch/optim/optimizer.py(1023): zero_grad"),
            rec.annotation("Optimizer.zero_grad#AdamW.zero_grad"),
        ):
            if self.options.zero_to_none or not grads:
                for leaf in self.model.leaves:
                    leaf.has_grad = False
                rec.spend(30_000)
            else:
                with rec.op("aten::_foreach_zero_", (grads,)):
                    self._multi_tensor(f"{_NS}ZeroFunctor<{BF16}, 1, 1, 0>", 1, 2)

    def _multi_tensor(self, functor: str, depth: int, moved: int) -> None:
        """Launches of one foreach op: at most 32 Mi elements each, as chunk metadata is limited."""
        left = self._elements()
        while left > 0:
            part = min(left, 1 << 25)
            self.rec.launch(gpu.multi_tensor(functor, part, moved * part, depth))
            left -= part

    def clip(self) -> None:
        rec, grads = self.rec, self._gradients()
        norms = [tensor(()) for _ in grads]
        with rec.op("aten::_foreach_norm", (grads, 2.0, None)):
            with rec.op("aten::zeros", ((len(grads),), 15, 0, Literal("cuda:0"), None)):
                rec.leaf("aten::empty", (len(grads),), 15, 0, Literal("cuda:0"), None, None)
                with rec.op("aten::zero_", (tensor((len(grads),)),)):
                    rec.launch(gpu.memset(4 * len(grads)))
            self._multi_tensor(f"{_NS}LpNormFunctor<{BF16}, (at::native::NormType)1, {BF16}, 1, 1, 0>", 1, 2)
            rec.launch(gpu.named("norm_cleanup", 1000, blocks=len(grads), threads=512))
        with rec.op("aten::stack", (norms, 0)), rec.op("aten::cat", (norms, 0)):
            rec.launch(gpu.copy(len(grads)))
        total = tensor((len(grads),))
        with rec.op("aten::linalg_vector_norm", (total, 2.0, None, False, None)):
            rec.launch(gpu.reduction(len(grads), 1))
        scalar = tensor(())
        for name, kind, inputs in (
            ("aten::add", "add_scalar", (scalar, Literal("1e-06"), 1)),
            ("aten::reciprocal", "rsqrt", (scalar,)),
            ("aten::mul", "scale", (scalar, Literal("1."))),
            ("aten::clamp", "scale", (scalar, None, Literal("1."))),
        ):
            with rec.op(name, inputs):
                rec.launch(gpu.pointwise(kind, 1))
        with rec.op("aten::_foreach_mul_", (grads, scalar)):
            functor = (
                f"{_NS}BinaryOpScalarTensorFunctor<{BF16}, 1, 1, 0>, std::multiplies<float>, float*, float"
            )
            self._multi_tensor(functor, 1, 4)

    @contextmanager
    def _step_range(self) -> Iterator[None]:
        rec = self.rec
        with (
            rec.frame("torch/optim/optimizer.py(508): wrapper"),
            rec.annotation("Optimizer.step#AdamW.step"),
            rec.frame("torch/optim/adamw.py(214): step"),
        ):
            yield

    def optimizer_step(self) -> None:
        rec, grads = self.rec, self._gradients()
        steps = [tensor((), F32) for _ in grads]
        lists = (grads, grads, grads, grads)
        with self._step_range():
            if self.options.optimizer == "fused":
                with rec.op("aten::_foreach_add_", (steps, 1)):
                    functor = f"{_NS}BinaryOpScalarFunctor<float, 1, 1, 0>, std::plus<float>, float"
                    rec.launch(gpu.multi_tensor(functor, len(steps), 8 * len(steps), 1))
                with rec.op(
                    "aten::_fused_adamw_",
                    (*lists, [], steps, 0.001, 0.9, 0.999, 0.01, 1e-08, False, False, None, None),
                ):
                    self._multi_tensor(_FUSED, 4, 14)
                return
            for name, inputs, functor, depth, moved in _foreach_adamw(grads):
                with rec.op(name, inputs):
                    self._multi_tensor(functor, depth, moved)


def _foreach_adamw(grads: list[Value]) -> list[tuple[str, tuple[Argument, ...], str, int, int]]:
    """Ops of a foreach AdamW step: name, inputs, functor, tensor lists, bytes per element."""
    scalar = f"{_NS}BinaryOpScalarFunctor<{BF16}, 1, 1, 0>, std::multiplies<float>, float"
    lerp = f"{_NS}TernaryOpScalarFunctor<{BF16}, 2, 2, 0>, {_NS}LerpFunctor<float>, float"
    square = f"{_NS}PointwiseOpScalarFunctor<{BF16}, 3, 3, 0>, std::multiplies<float>, float"
    root = f"{_NS}UnaryOpFunctor<{BF16}, 2, 1, 1>, {_NS}Sqrt<float>"
    quotient = f"{_NS}PointwiseOpScalarListFunctor<{BF16}, 3, 3, 0>, std::divides<float>"
    return [
        ("aten::_foreach_mul_", (grads, 0.99999), scalar, 1, 4),
        ("aten::_foreach_lerp_", (grads, grads, 0.1), lerp, 2, 6),
        ("aten::_foreach_mul_", (grads, 0.999), scalar, 1, 4),
        ("aten::_foreach_addcmul_", (grads, grads, grads, 0.001), square, 3, 8),
        ("aten::_foreach_sqrt", (grads,), root, 2, 4),
        ("aten::_foreach_div_", (grads, 0.0316), scalar, 1, 4),
        ("aten::_foreach_add_", (grads, 1e-08), scalar, 1, 4),
        ("aten::_foreach_addcdiv_", (grads, grads, grads, -0.001), quotient, 3, 8),
    ]
