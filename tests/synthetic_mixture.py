"""Simulated training steps of a Llama whose MLPs are mixtures of experts, on top of ``tests.synthetic``.

The router chooses, rows go to their experts (with several ranks in an all-to-all), grouped or batched GEMMs
multiply them, and they come back. ``Mixture.layer`` says what every expert gets; a trace of grouped GEMMs
holds the sum of it only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from tests.synthetic import ModelSpec, Options, Synthetic, gpu
from tests.synthetic.autograd import apply
from tests.synthetic.model import Model
from tests.synthetic.recorder import COMPUTE_STREAM, NCCL_STREAM
from tests.synthetic.train import _Job
from tests.synthetic.values import F32, I64, Literal, Value, tensor
from tests.synthetic.views import Grads, only, view

TILE = 128  # rows of an expert
_ROWS = "cute::tuple<long, cute::C<1>, cute::C<0> >*"  # strides of a matrix whose rows are contiguous
_SIZES = "cute::tuple<cute::C<128>, cute::C<256>, cute::C<64> >"
_GROUPED = (
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::"
    "GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective"
    "::CollectiveMma<cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecialized<3, cute::tuple<cute::C<2>,"
    " cute::C<1>, cute::C<1> >, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>,"
    f" {_SIZES}, cutlass::bfloat16_t, {_ROWS}, cutlass::bfloat16_t, {_ROWS}>, cutlass::epilogue::collective::"
    "CollectiveEpilogue<cutlass::epilogue::Sm90PtrArrayTmaWarpSpecialized<4, 2, 16, true, false, 2>,"
    f" {_SIZES}, void, {_ROWS}, cutlass::bfloat16_t, {_ROWS}>, void, void> > >(T1::Params)"
)  # as torch's kernel is named on Hopper, cut after the strides of its output
_SENT_GBPS = 300.0
_SENT = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True, slots=True)
class Load:
    """What one layer's experts of this rank get, and this rank's all-to-all, in rows."""

    rows: Sequence[int]  # of each local expert
    held: int = 0  # of them together, that hold a token; 0: all
    sent: Sequence[int] = ()  # to each rank; empty: no all-to-all
    fullest: float = 1.0  # the fullest rank's rows over this one's, for which it waits


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of experts, and what each layer gets (asked once for every forward of a layer)."""

    experts: int
    top_k: int
    layer: Callable[[], Load]
    batched: bool = False  # as many rows for each expert, in one bmm


@dataclass(frozen=True, slots=True)
class Lost:
    """A kernel's correlation -> a share of its time."""

    empty: dict[int, float] = field(default_factory=dict)  # of each of the experts' GEMMs, for no token
    waits: dict[int, float] = field(default_factory=dict)  # of each all-to-all, until the fullest rank comes


def build_mixture(model: ModelSpec, mixture: Mixture, options: Options) -> tuple[Synthetic, Lost]:
    """Simulate training steps; ``model.ffn`` is the width of one expert."""
    job = _Job(model, options)
    job.model = mixed = _Mixed(job.rec, model, mixture, attention=options.attention)
    return job.run(), mixed.lost


class _Mixed(Model):
    def __init__(self, rec: object, spec: ModelSpec, mixture: Mixture, *, attention: str) -> None:
        super().__init__(rec, spec, attention=attention)  # type: ignore[arg-type]
        self.mixture = mixture
        self.load = Load(())
        self.computed_ns = 0  # by experts since the last all-to-all
        self.lost = Lost()
        self.moved = tensor((0,))

    def linear(self, name: str, component: str, x: Value, out: int, *, bias: bool, shared: str = "") -> Value:
        base, _, last = name.rpartition(".")
        if not base.endswith(".mlp"):
            return super().linear(name, component, x, out, bias=bias, shared=shared)
        if last == "gate_proj":
            self.load = self.mixture.layer()
            self._route(base, x)
            self.moved = self._to_experts(base, x)
        rows = x if last == "down_proj" else self.moved
        with self.module("GroupedExperts", f"{base}.experts", "moe.experts"):
            weight = self.parameter(f"{base}.experts.{last}", len(self.load.rows), rows.shape[-1], out)
            rows = self._product(rows, weight)
        return self._back(base, rows) if last == "down_proj" else rows

    def _route(self, base: str, x: Value) -> None:
        count, tokens = self.mixture.experts, self.spec.tokens
        with self.module("TopKRouter", f"{base}.router", "moe.router"):
            scores = super().linear(f"{base}.router.gate", "moe.router", x, count, bias=False)
            flat = view(self.rec, scores, (tokens, count))
            with self.rec.op("aten::topk", (flat, self.mixture.top_k, -1, True, True)):
                self.rec.launch(gpu.named("sort_histogram", 8 * flat.elements, blocks=tokens))

    def _to_experts(self, base: str, x: Value) -> Value:
        """[b, s, hidden] -> a row for each choice, at its expert's rank."""
        with self.module("TokenDispatcher", f"{base}.dispatcher", "moe.dispatch"):
            flat = view(self.rec, x, (self.spec.tokens, self.spec.hidden))
            many = self.spec.tokens * self.mixture.top_k
            rows = self._moves("aten::index", "IndexBackward0", flat, many)
            rows = self._send(rows, sum(self.load.rows), there=True)
        if not self.mixture.batched:
            return rows
        each = self.load.rows[0]
        return view(self.rec, rows, (len(self.load.rows), each, self.spec.hidden))

    def _back(self, base: str, rows: Value) -> Value:
        many, spec = self.spec.tokens * self.mixture.top_k, self.spec
        if self.mixture.batched:
            rows = view(self.rec, rows, (sum(self.load.rows), spec.hidden))
        with self.module("TokenDispatcher", f"{base}.dispatcher", "moe.dispatch"):
            rows = self._send(rows, many, there=False)
            out = self._moves("aten::index_add", "IndexAddBackward0", rows, spec.tokens)
            return view(self.rec, out, (spec.micro_batch, spec.sequence, spec.hidden))

    def _moves(self, name: str, node: str, x: Value, rows: int) -> Value:
        """Rows taken to other places, or summed up there."""
        rec, sequence, out = self.rec, self.rec.sequence, tensor((rows, x.shape[1]))
        work = gpu.named("gather", 2 * (x.elements + out.elements), blocks=rows)
        with rec.op(name, (x, tensor((rows,), I64)), sequence=sequence):
            rec.launch(work)

            def backward(grads: Grads) -> Grads:
                with rec.op("aten::index_put_", (x, tensor((rows,), I64), only(grads))):
                    rec.launch(work)
                return [tensor(x.shape)]

            return apply(rec, node, sequence, [x], [out], backward)[0]

    def _send(self, x: Value, rows: int, *, there: bool) -> Value:
        """The all-to-all there or back, as long as the fullest rank sends; the computation waits for it.

        The one behind a layer's experts also waits until the fullest rank has computed.
        """
        load = self.load
        if not load.sent:
            return x if x.shape[0] == rows else self._moves("aten::constant_pad_nd", "PadBackward0", x, rows)
        rec, sequence, out = self.rec, self.rec.sequence, tensor((rows, x.shape[1]))

        def exchange(of: Value, *, behind: bool) -> None:
            sent_ns = max(load.sent) * len(load.sent) * x.shape[1] * 2 / _SENT_GBPS
            wait_ns = behind and (load.fullest - 1) * self.computed_ns
            split = str([*load.sent])
            group = {
                "Collective name": "all_to_allv",
                "In msg nelems": of.elements, "Out msg nelems": out.elements,
                "Group size": len(load.sent), "dtype": "BFloat16", "In split size": split,
                "Out split size": split, "Process Group Name": "1",
                "Process Group Description": "expert_parallel",
                "Process Group Ranks": str([*range(len(load.sent))]),
            }  # fmt: skip
            work = gpu.Work(_SENT, round(sent_ns + wait_ns), grid=(32, 1, 1), block=(512, 1, 1))
            parts, nccl = tuple(load.sent), Literal("all_to_allv")
            after = rec.stream_free.get(COMPUTE_STREAM, 0) + 1500
            with (
                rec.op("c10d::alltoall_base_", (of, of, None, parts, parts)),
                rec.op("record_param_comms", ([of], None, 0, 0, nccl), extra=group),
            ):
                rec.launch(work, component="communication", stream=NCCL_STREAM, after=after, extra=group)
                self.lost.waits[rec.truth[-1].correlation] = wait_ns / work.duration_ns
            rec.stream_free[COMPUTE_STREAM] = rec.stream_free[NCCL_STREAM] + 1500
            self.computed_ns = 0

        with rec.op("_c10d_functional::all_to_all_single", (x,), sequence=sequence):
            exchange(x, behind=not there)

            def backward(grads: Grads) -> Grads:
                exchange(only(grads), behind=there)
                return [tensor(x.shape)]

            return apply(rec, "AllToAllSingleBackward0", sequence, [x], [out], backward)[0]

    def _product(self, x: Value, weight: Value) -> Value:
        """A GEMM for each expert, in one kernel."""
        rec, sequence, load = self.rec, self.rec.sequence, self.load
        groups, k, n = weight.shape
        rows, batched = sum(load.rows), self.mixture.batched
        name = "aten::bmm" if batched else "aten::_grouped_mm"
        offsets = () if batched else (tensor((groups,), F32), None, None)

        def launch(a: Value, b: Value, n: int, k: int, *, summed: bool = False) -> None:
            work, held = self._works(load, n, k, summed=summed)
            with rec.op(name, (a, b, *offsets), sequence=None if rec.where.phase == "backward" else sequence):
                rec.launch(work, shape=(k, n, rows) if summed else (rows, n, k), batch=1)
                self.lost.empty[rec.truth[-1].correlation] = 1 - held / work.duration_ns
                self.computed_ns += work.duration_ns
                if rec.where.phase != "backward":
                    made.extend(apply(rec, node, sequence, [x, weight], [out], backward))

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            launch(grad, tensor((groups, n, k)), k, n)
            turned = tensor((groups, k, load.rows[0]) if batched else (k, rows))
            launch(turned, grad, n, k, summed=True)
            return [tensor(x.shape), tensor(weight.shape)]

        made: list[Value] = []
        node = "BmmBackward0" if batched else "GroupedMmBackward0"
        out = tensor((*x.shape[:-1], n))
        launch(x, weight, n, k)
        return made[0]

    def _works(self, load: Load, n: int, k: int, *, summed: bool) -> tuple[gpu.Work, float]:
        """The kernel of all experts' products, and what of its time rows with a token need."""
        rows, groups = sum(load.rows), len(load.rows)
        if self.mixture.batched:
            work = gpu.gemm(load.rows[0], n, k, batch=groups, layout="NN")
            took, needed = (_least_ns(each, n, k, groups) for each in (rows, load.held or rows))
            return replace(work, duration_ns=round(took)), needed
        least = _least_ns(rows, n, k, groups)
        # Over each expert's rows no tile of the output has an empty one.
        computed = rows if summed else sum(ceil(one / TILE) for one in load.rows) * TILE
        took = max(2 * computed * n * k / gpu.CEILING * 1e9, least)
        grid, block = (2, 66, 1), (384, 1, 1)
        return gpu.Work(
            _GROUPED, round(took), "kernel", "cudaLaunchKernelExC", grid, block, 168, 217088
        ), least


def _least_ns(rows: int, n: int, k: int, groups: int) -> float:
    """What the rows of all experts together take: computing them, or moving them and the weights."""
    moved = 2 * (rows * (n + k) + groups * n * k) / gpu.BANDWIDTH
    return max(2 * rows * n * k / gpu.CEILING, moved) * 1e9
