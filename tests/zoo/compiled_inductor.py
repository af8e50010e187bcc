"""What Inductor launches for a graph: its own generated program, run on tensors without data.

Lowering, fusion, scheduling, kernel names and the wrapper program are Inductor's for an H100; only the
device queries are answered here, since neither a GPU nor Triton is needed to generate code. The
wrapper is then executed with stand-ins: an allocation gives a shape, a kernel or operator call is noted.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._dynamo.device_interface import CudaInterface
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

with warnings.catch_warnings():  # PyTorch's own modules use what PyTorch deprecates
    warnings.simplefilter("ignore")
    from torch._inductor.compile_fx import _recursive_post_grad_passes

_H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block_optin=232448, L2_cache_size=52428800, total_memory=85028634624,
)  # fmt: skip
_SETTINGS = {
    "graph_partition": False, "size_asserts": False, "alignment_asserts": False, "nan_asserts": False,
    "benchmark_harness": False, "comment_origin": False,
}  # fmt: skip

DTYPES = {
    torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half", torch.float32: "float",
    torch.float64: "double", torch.int64: "long int", torch.int32: "int", torch.int8: "signed char",
    torch.uint8: "unsigned char", torch.bool: "bool", torch.uint64: "unsigned long",
}  # fmt: skip
_SIZES = {name: dtype.itemsize for dtype, name in DTYPES.items()}
_storages = itertools.count()


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the wrapper program: no data; views share ``storage``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    storage: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * _SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel or operator call of the wrapper program.

    ``sizes`` is the iteration space of a Triton kernel by name (xnumel, r0_numel). ``nodes`` are the fx
    nodes the call computes, ``main`` the one an operator call stands for.
    """

    name: str  # "triton_poi_fused_add_0", "aten::mm"
    arguments: tuple[Any, ...]  # Tensor, number, None or lists of them
    writes: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    main: Node | None
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def triton(self) -> bool:
        return self.name.startswith("triton_")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        found = pytree.tree_leaves(self.arguments, is_leaf=lambda x: isinstance(x, Tensor))
        return tuple(leaf for leaf in found if isinstance(leaf, Tensor))


def generate(module: GraphModule, mode: FakeTensorMode, *, backward: bool) -> list[Call]:
    """The calls of Inductor's program for ``module``, in order. ``module`` is changed by Inductor's passes."""
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    marks: list[tuple[tuple[Node, ...], Node | None]] = []
    with _as_if_on_a_gpu(marks), V.set_fake_mode(mode), tracing(TracingContext(mode)), DebugContext():
        _recursive_post_grad_passes(module, is_inference=False)
        graph = GraphLowering(module, example_inputs=inputs, is_backward=backward, is_inference=False)
        with V.set_graph_handler(graph):
            graph.run(*inputs)
            code, _ = graph.codegen()
    return _Program(cast(Any, code).value, marks).run(inputs)


@contextmanager
def _as_if_on_a_gpu(marks: list[tuple[tuple[Node, ...], Node | None]]) -> Iterator[None]:
    """Answer device queries for an H100; write a mark into the program before what a node generates."""
    original = inductor_scheduler.Scheduler.enter_context

    def mark(scheduler: Any, node: Any) -> None:
        original(scheduler, node)
        parts = [part.node for part in node.get_nodes() if part.node is not None]
        origins = dict.fromkeys(origin for part in parts for origin in part.get_origins())
        main = parts[0].get_origin_node() if len(parts) == 1 else None
        marks.append((tuple(origins), main))
        V.graph.wrapper_code.writeline(f"_mark({len(marks) - 1})")

    answers: dict[str, Callable[..., Any]] = {
        "get_device_properties": lambda *_: _H100,
        "current_device": lambda *_: 0,
        "get_compute_capability": lambda *_: 90,
        "is_available": lambda *_: True,
        "device_count": lambda *_: 1,
        "is_bf16_supported": lambda *_, **__: True,
    }
    DeviceProperties.create.cache_clear()  # type: ignore[attr-defined]
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        enter(inductor_config.patch(_SETTINGS))
        enter(mock.patch.object(inductor_scheduler, "has_triton", lambda *_: True))
        enter(mock.patch.object(inductor_scheduler.Scheduler, "enter_context", mark))
        enter(mock.patch("torch.utils._triton.triton_hash_with_backend", lambda *_: "0"))
        enter(mock.patch("torch.cuda.get_device_properties", lambda *_: _H100))
        enter(mock.patch("torch.cuda.get_device_capability", lambda *_: (9, 0)))
        for holder, (name, answer) in itertools.product((CudaInterface, CudaInterface.Worker), answers.items()):
            if hasattr(holder, name):
                enter(mock.patch.object(holder, name, staticmethod(answer)))
        yield
    DeviceProperties.create.cache_clear()  # type: ignore[attr-defined]


class _Path:
    """``torch.ops`` and ``extern_kernels``: any attribute is an operator that notes its call."""

    def __init__(self, note: Callable[..., Any], *names: str) -> None:
        self._note, self._names = note, names

    def __getattr__(self, name: str) -> _Path:
        return _Path(self._note, *self._names, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._note(self._names, arguments, named)


class _Program:
    """Executes a wrapper program on stand-ins and notes its calls."""

    def __init__(self, source: str, marks: list[tuple[tuple[Node, ...], Node | None]]) -> None:
        self._marks, self._current = marks, 0
        self.calls: list[Call] = []
        kernels = dict(re.findall(r"^(triton_\w+) = async_compile\.triton\('\w+', '''(.*?)^'''", source, re.M | re.S))
        self._globals: dict[str, Any] = {name: _Path(self._kernel(name, text)) for name, text in kernels.items()}
        operators = _Path(self._operator)
        self._globals |= {
            "torch": _Torch(operators), "aten": operators.aten, "extern_kernels": operators.aten,
            "inductor_ops": operators.inductor, "empty_strided_cuda": _empty, "empty_strided_cpu": _empty,
            "reinterpret_tensor": _reinterpret, "get_raw_stream": lambda _: 0, "_mark": self._set_mark,
            "device": torch.device, "inf": math.inf, "nan": math.nan, "math": math,
            "assert_size_stride": lambda *_: None, "assert_alignment": lambda *_: None,
        }  # fmt: skip
    # Behind the texts of the kernels.
        self._text = source[source.index("\ndef call(args)") :]

    def run(self, inputs: list[Any]) -> list[Call]:
        exec(compile(self._text, "<wrapper>", "exec"), self._globals)
        self._globals["call"]([_tensor(value) for value in inputs])
        return self.calls

    def _set_mark(self, index: int) -> None:
        self._current = index

    def _kernel(self, name: str, text: str) -> Callable[..., None]:
        found = re.search(r"'signature': (\{.*?\})", text)
        assert found, name
        names = list(ast.literal_eval(found[1]))

        def note(_: tuple[str, ...], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            given = dict(zip(names, arguments, strict=False))
            writes = tuple(v for k, v in given.items() if k.startswith(("in_out_ptr", "out_ptr")))
            sizes = {key: value for key, value in given.items() if key.endswith("numel")}
            nodes, _ = self._marks[self._current]
            self.calls.append(Call(name, arguments, writes, nodes, None, sizes))

        return note

    def _operator(self, names: tuple[str, ...], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        nodes, main = self._marks[self._current]
        if main is None:  # a node with several results
            main = next((node for node in nodes if str(node.target).startswith(".".join(names[:2]))), None)
        out = named.pop("out", None)
        if out is not None:
            result, written = None, (out,)
            if names[1] in ("addmm", "baddbmm", "bias_addmm"):  # alpha and beta stand before out=
                arguments = (*arguments, named.pop("beta", 1), named.pop("alpha", 1))
            arguments = (*arguments, out)
        else:
            result = None if main is None else pytree.tree_map(_tensor, main.meta.get("val"))
            written = tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))
        name = f"{names[0]}::{names[1].removeprefix('bias_')}"
        self.calls.append(Call(name, (*arguments, *named.values()), written, nodes, main))
        return result


class _Torch:
    """The few names of torch a wrapper program uses."""

    def __init__(self, operators: _Path) -> None:
        self.ops = operators
        self.cuda = SimpleNamespace(_DeviceGuard=lambda _: nullcontext(), set_device=lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return Tensor(tuple(shape), tuple(strides), DTYPES[dtype], next(_storages))


def _reinterpret(source: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], _: int = 0) -> Tensor:
    return Tensor(tuple(shape), tuple(strides), source.dtype, source.storage)


def _tensor(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return Tensor(tuple(value.shape), tuple(value.stride()), DTYPES[value.dtype], next(_storages))
