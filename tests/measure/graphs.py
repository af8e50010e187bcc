"""CUDA graphs of a driver that is none: what is captured is written down operator by operator, and a replay
runs the same operators again on the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

#: Around a replay; the trace shows one launch and its kernels in its place.
REPLAY = "fake-graph#"
#: Around what a replay does beside the graph's operators, which are no kernels.
ASIDE = "fake-aside#"
#: They wait for the GPU, which a stream that is captured cannot.
_WAITING = ("_local_scalar_dense", "nonzero", "unique", "equal")


class Misuse(AssertionError):
    """What a driver would answer with an error, or worse, with a wrong number."""


class Recorder(TorchDispatchMode):
    """Runs operators and keeps them, with their operands' memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._opname.startswith(_WAITING):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        out = func(*args, **kwargs)
        if func.namespace == "aten":
            self.operators.append((func, args, kwargs, out))
        return out


class Graph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self) -> None:
        self.operators: list[tuple[Any, Any, Any, Any]] | None = None

    def replay(self) -> None:
        if self.operators is None:
            raise Misuse("a graph that was never captured is replayed")
        with torch.no_grad(), record_function(REPLAY):
            for func, args, kwargs, out in self.operators:
                again = func(*args, **kwargs)
                with record_function(ASIDE):
                    for there, new in zip(_tensors(out), _tensors(again), strict=True):
                        if new.data_ptr() != there.data_ptr():  # no view, and not in place
                            there.copy_(new)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
