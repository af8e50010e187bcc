"""Training steps of models that nobody here wrote: architectures of `transformers`, on the meta device.

Each model is built from its library's own configuration, as wide as that says and a few layers deep, with
random weights that are never made. A mode of PyTorch sees every function the model calls and marks what it is
for by the table of ``truth.py``; the rest is the recorder of this zoo. Operators that the zoo
does not know by name launch one kernel that streams its inputs.
"""

# PyTorch's functions that take anything return anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from benchmarks.hub.models import first_loss, ways
from benchmarks.hub.truth import Place, truth_of
from benchmarks.hub.values import Values, held
from tests.kept import kept, of_package, sources
from tests.synthetic import gpu
from tests.synthetic.spec import Synthetic
from tests.zoo import parts
from tests.zoo.capture import Capture, Note, State, profiled
from tests.zoo.cuda import _REWRITTEN, Rewriter
from tests.zoo.kernels import LEAVES, works_of
from tests.zoo.program import Launch, Op, parse
from tests.zoo.writing import write

aten: Any = torch.ops.aten
#: Samples of a map are one kernel each way on a GPU (native_functions.yaml: CUDA of grid_sampler_2d and its
#: backward); the meta device would take PyTorch's decomposition into fifty.
_SAMPLES = torch.library.Library("aten", "IMPL", "Meta")
#: Numbers that only a device could tell.
_ANY_VALUE = {"__int__": 1, "__index__": 1, "__float__": 1.0, "equal": False, "__contains__": False}
_LOOKS = (
    "size", "dim", "numel", "stride", "is_contiguous", "__get__", "__len__", "data_ptr", "is_floating_point",
)  # fmt: skip


def _sample(x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    return x.new_empty(*x.shape[:2], *grid.shape[1:-1])


def _sample_backward(
    out: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, corners: bool, mask: list[bool]
) -> tuple[Tensor | None, Tensor]:
    return torch.empty_like(x) if mask[0] else None, torch.empty_like(grid)


_SAMPLES.impl("grid_sampler_2d", _sample, allow_override=True)
_SAMPLES.impl("grid_sampler_2d_backward", _sample_backward, allow_override=True)


@dataclass
class Recorded:
    """A step as a program, and where its models end."""

    name: str
    ops: list[Op]
    sequences: tuple[int, int]
    backward: list[tuple[int, int]]

    def trace(self, names: str, *, shapes: bool = True) -> Synthetic:
        """Two steps; ``names``: "frames", "ranges" or "none"."""
        return write(
            self.ops, steps=2, names=names, shapes=shapes, sequences=self.sequences, backward=self.backward
        )


class Marks(TorchFunctionMode):
    """Says of every function that a model calls what it is for."""

    def __init__(self, capture: Capture, truth: Callable[..., str]) -> None:
        super().__init__()
        self.capture, self.truth = capture, truth
        self.any_of: dict[int, Tensor] = {}  # results of any(), by their id
        self.values = Values()
        self.stack: list[tuple[str, str, SimpleNamespace]] = []  # class, attribute, what was seen in it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _LOOKS:
            return func(*args, **kwargs)
        if args and held(args[0]) is not None and name != "nonzero":
            answer = self.values.asked(name, args)
            if answer is not None:
                return answer
        if name in _ANY_VALUE:
            return _ANY_VALUE[name]
        if name in ("item", "__bool__"):  # nothing special is anywhere, everything is as it should be
            return (id(args[0]) not in self.any_of) if args[0].dtype == torch.bool else 1
        if name == "nonzero" and held(args[0]) is None:
            empty = torch.zeros(0, args[0].dim(), dtype=torch.int64, device="meta")
            return empty.unbind(1) if kwargs.get("as_tuple") else empty
        if name in ("cpu", "numpy", "cuda"):  # every tensor is everywhere
            return args[0]
        if name == "tolist":
            return torch.ones(args[0].shape, dtype=torch.int64, device="cpu").tolist()
        truth = self._truth(name, args, kwargs)
        with self.capture.inside(
            Note("part", State(truth, phase=self.capture.state.phase, module=self.capture.state.module))
        ):
            if name == "dropout" and args and isinstance(args[0], Tensor):
                return self._dropout(func, args, kwargs)
            if name == "scaled_dot_product_attention":
                return _fused(*args, **kwargs)
            result = self.values.run(func, name, args, kwargs)
        if name == "any":
            self.any_of[id(result)] = result
        return result

    def _truth(self, name: str, args: Any, kwargs: Any) -> str:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        tensors += [t for a in args if isinstance(a, (tuple, list)) for t in a if isinstance(t, Tensor)]
        weighted = any(_is_weight(t) for t in tensors)
        equal = name in ("add", "__add__", "__iadd__", "__radd__", "add_") and len(tensors) >= 2
        equal = equal and tensors[0].shape == tensors[1].shape and tensors[0].dim() >= 3
        classes, names = tuple(s[0] for s in self.stack), tuple(s[1] for s in self.stack)
        block = next((s[2] for s in reversed(self.stack) if "Atten" in s[0] or "Attn" in s[0]), None)
        place = Place(classes, names, block.seen if block else "")
        truth = self.truth(place, name, weighted=weighted, equal=bool(equal))
        if block is not None and name in ("softmax", "scaled_dot_product_attention"):
            for _, _, other in self.stack:
                other.seen = "softmax"
        return truth

    def _dropout(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x = args[0]
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        if not kwargs.get("training", args[2] if len(args) > 2 else True) or not p:
            return x
        with parts.call("aten::dropout", x):
            return torch.native_dropout(x, p, True)[0]

    def enter(self, module: nn.Module, name: str) -> None:
        self.stack.append((type(module).__name__, name, SimpleNamespace(seen="")))

    def leave(self) -> None:
        self.stack.pop()


def _is_weight(tensor: Tensor) -> bool:
    while tensor._base is not None and not isinstance(tensor, nn.Parameter):
        tensor = tensor._base
    return isinstance(tensor, nn.Parameter)


def _fused(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """F.scaled_dot_product_attention as an H100 dispatches it: flash, or memory-efficient under a mask."""
    with parts.call("aten::scaled_dot_product_attention", q, k, v):
        if enable_gqa and attn_mask is not None:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        # no fused kernel takes it: ATen/native/transformers/sdp_utils_cpp.h, check_tensor_shapes
        if q.dim() != 4:
            return _written_out(q, k, v, attn_mask, scale)
        if attn_mask is None and q.shape[-1] == v.shape[-1] <= 256:
            return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]
        if v.shape[-1] > 256 or q.shape[-1] > 256:
            weights = torch.softmax(q @ k.transpose(-1, -2), -1)
            return weights @ v
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, is_causal)[0]


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """As _scaled_dot_product_attention_math of ATen/native/transformers/attention.cpp."""
    root = (scale if scale is not None else q.shape[-1] ** -0.5) ** 0.5
    scores = (q * root) @ (k * root).transpose(-1, -2)
    return torch.softmax(scores if mask is None else scores + mask, -1) @ v


@dataclass
class HubCapture(Capture):
    """A capture whose parts are what ``Marks`` says."""

    marks: Marks | None = None
    names: dict[nn.Module, str] = field(default_factory=dict)

    def _enter_module(self, module: nn.Module, inputs: object) -> None:
        assert self.marks is not None
        self.marks.enter(module, self.names.get(module, "").rpartition(".")[2])
        super()._enter_module(module, inputs)

    def _leave_module(self, module: nn.Module, a: object, b: object) -> None:
        assert self.marks is not None
        super()._leave_module(module, a, b)
        self.marks.leave()


class AnyRewriter(Rewriter):
    """A rewriter that takes operators which the zoo does not know."""

    def __init__(self) -> None:
        super().__init__([])

    def _product(self, op: Op, state: State) -> None:
        op.children = []
        op.launches = [Launch(work, state) for work in works_of(op.name, op.inputs)]

    def _operator(self, op: Op, state: State) -> None:
        fused = op.name.startswith("aten::_scaled_dot_product_") and not op.name.endswith("_math")
        if fused or op.name in LEAVES | _REWRITTEN.keys():
            before = op.children
            try:
                super()._operator(op, state)
                return
            except (IndexError, KeyError, ValueError, StopIteration, TypeError, ZeroDivisionError):
                op.children = before
        op.children = self.rewrite(op.children, state)
        ours = not op.name.startswith(("aten::", "prims::"))
        if ours or op.name in VIEWS or (_launches(op) and not _one(op)):
            return
        op.children = []
        op.launches = [Launch(_streams(op), state)]


def _one(op: Op) -> bool:
    """Has a kernel of its own on a GPU, where the meta device makes several operators of it?"""
    inside = {child.name for child in op.children if _launches(child)}
    try:
        return len(inside) > 1 and torch._C._dispatch_has_kernel_for_dispatch_key(op.name, "CPU")
    except RuntimeError:  # an operator with overloads only
        return False


def _launches(op: Op) -> bool:
    return bool(op.launches) or any(_launches(child) for child in op.children)


def _streams(op: Op) -> gpu.Work:
    """One kernel that reads what the operator was given; a grouped GEMM by its FLOPs."""
    inputs = op.inputs
    sizes = [s for s in inputs.sizes if isinstance(s, list) and s and all(isinstance(x, int) for x in s)]
    moved = 2 * sum(2 * prod(size) for size in sizes) or 4096
    name = op.name.rpartition("::")[2].rstrip("_")
    if "grouped_mm" in name and len(sizes) >= 2:
        rows, width, out = sizes[0][0], sizes[0][-1], sizes[1][-1]
        flops = 2.0 * rows * width * out
        text = "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel"
        text += "::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >"
        return gpu.Work(text, max(2000, round(flops / (0.5 * gpu.CEILING) * 1e9)), grid=(132, 1, 1))
    functor = f"at::native::{name}_kernel_cuda(at::TensorIteratorBase&)::{{lambda(c10::BFloat16)#1}}"
    text = f"void at::native::vectorized_elementwise_kernel<4, {functor}>(int, {functor})"
    return gpu.Work(text, gpu.streaming_ns(moved), grid=(max(1, moved // 4096), 1, 1))


#: ATen operators that launch nothing themselves.
VIEWS = frozenset(f"aten::{name}" for name in Path(__file__).with_name("views.txt").read_text().split())


def record_hub(name: str) -> Recorded:
    """A recording of the architecture ``name``, made once and kept. Raises what its library raises."""
    made = f"{of_package('torch')} {of_package('transformers')} "
    made += sources("tests/zoo", "tests/synthetic", "benchmarks/hub")
    return kept("hub", name, made, lambda: _recorded(name))


def _recorded(name: str) -> Recorded:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed: Exception | None = None
        try:
            for model, batch in ways(name):
                try:
                    return recorded(name, model, partial(loss_of, model, batch), truth_of)
                except Exception as error:  # what a model asks of its library, and of values it has not
                    failed = failed or error
        except Exception as error:  # what there is no way to make
            raise failed or error from None
    assert failed is not None
    raise failed


def loss_of(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """The loss of a batch."""
    return first_loss(model(**batch))


def recorded(
    name: str, model: nn.Module, loss: Callable[[], Tensor], truth: Callable[..., str],
    marks: Callable[[Capture, Callable[..., str]], Marks] = Marks,
) -> Recorded:  # fmt: skip
    """A training step of a model on the meta device, what each call is for said by ``truth``."""
    capture = HubCapture(names={module: path for path, module in model.named_modules()})
    capture.modules = capture.names
    capture.marks = marks(capture, truth)
    first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    with ExitStack() as stack:
        stack.enter_context(capture.listening())
        text = profiled(_step(loss, capture))
    last = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    ops = AnyRewriter().rewrite(parse(text, capture.notes, capture.stopped), State())
    gc.collect()
    return Recorded(name, ops, (first, last), capture.backward_sequences)


def _step(loss: Callable[[], Tensor], capture: HubCapture) -> Callable[[], None]:
    def run() -> None:
        assert capture.marks is not None
        with capture.phase("forward", ""), capture.marks, torch.device("meta"):
            lost = loss()
        with capture.phase("backward", ""), capture.frame("torch/_tensor.py(592): backward"):
            lost.backward()

    return run
