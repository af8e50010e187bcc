"""Named ranges around every module's forward, and the numbers that tell whose each autograd node is.

A module's call is wrapped where ``nn.Module.__call__`` looks for a compiled one (``_compiled_call_impl``):
one Python call per module, against three and a slower path in PyTorch with forward hooks. Copies and pickles
leave that attribute out, and Dynamo does not guard on it. Where a class has a ``__call__`` of its own, hooks
do the same. A forward's range is a user range (``record_function``) with the dotted name.

Backward: a thread numbers its autograd nodes in order, so the numbers at which a module begins and ends
enclose the nodes it makes. They are noted here, and ``backward`` makes ranges of them after the window:
nothing is added to the graph and nothing runs in the backward pass.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from tracelens.capture.modules import Batch, Spot

_enter_user = torch._C._autograd._record_function_with_args_enter
_exit_user = torch._C._autograd._record_function_with_args_exit
_sequence = torch._C._autograd._get_sequence_nr
_current_node = torch._C._current_autograd_node
_compiling = torch.compiler.is_compiling

#: Where a class does one of these its own way, or somebody has patched ``nn.Module``, hooks are safer.
_CALLED_AND_COPIED = ("__call__", "__copy__", "__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")


class ThreadNumbers:
    """Which module the autograd numbers of one thread belong to, and the ranges it has open."""

    __slots__ = ("labels", "native_id", "numbers", "open")

    def __init__(self) -> None:
        self.native_id = threading.get_native_id()
        self.open: list[tuple[str, Any]] = []
        self.numbers: list[int] = []  # from this sequence number on ...
        self.labels: list[str | None] = []  # ... nodes belong to this module

    def begin(self, name: str) -> None:
        self.open.append((name, _enter_user(name)))
        self.label(name)

    def end(self, name: str) -> None:
        opened = self.open
        if not opened or opened[-1][0] != name:
            if not any(other == name for other, _ in opened):
                return
            while opened[-1][0] != name:  # ranges that an exception left open
                _exit_user(opened.pop()[1])
        _exit_user(opened.pop()[1])
        self.label(opened[-1][0] if opened else None)

    def label(self, name: str | None) -> None:
        number = _sequence()
        if self.numbers and self.numbers[-1] == number:
            self.labels[-1] = name
        else:
            self.numbers.append(number)
            self.labels.append(name)

    def owner(self, number: int) -> str | None:
        """The module in whose forward this thread made the node of that number."""
        at = bisect_right(self.numbers, number) - 1
        return self.labels[at] if at >= 0 else None

    def close(self) -> None:
        while self.open:
            _exit_user(self.open.pop()[1])


class ModuleRanges:
    """Installed for the window, gone after it; what it noted stays."""

    def __init__(self, spots: Iterable[Spot], batch: Batch):
        self._spots = list(spots)
        self._batch = batch
        self._active = False
        self._undo: list[Callable[[], None]] = []
        self._local = threading.local()
        self.threads: list[ThreadNumbers] = []
        self.recomputed: set[str] = set()

    def install(self) -> None:
        self._active = True
        # replicas take over every attribute: they would call the module they replace
        replicated = any(isinstance(spot.module, nn.DataParallel) for spot in self._spots)
        for spot in self._spots:
            if spot.how == "call":
                self._wrap_call(spot.module, spot.name, spot.module._compiled_call_impl)
            elif not replicated and _looks_for_a_compiled_call(spot.module):
                self._wrap_call(spot.module, spot.name, None)
            else:
                self._hook(spot.module, spot.name)

    def remove(self) -> None:
        """Idempotent."""
        self._active = False
        while self._undo:
            self._undo.pop()()
        for thread in self.threads:
            if thread is getattr(self._local, "state", None):
                thread.close()
        self._spots.clear()

    def _thread(self) -> ThreadNumbers:
        try:
            return self._local.state  # type: ignore[no-any-return]
        except AttributeError:
            state = self._local.state = ThreadNumbers()
            self.threads.append(state)
            return state

    def _begin(self, name: str) -> ThreadNumbers:
        thread = self._thread()
        if _current_node() is not None:
            self.recomputed.add(name)
        thread.begin(name)
        return thread

    def _wrap_call(self, module: Any, name: str, compiled: Callable[..., Any] | None) -> None:
        """``compiled``: what ``module.compile()`` made; hooks would be compiled too."""
        original = module._call_impl if compiled is None else compiled
        batch = self._batch

        def call(*args: Any, **kwargs: Any) -> Any:
            if _compiling() or not self._active:
                return original(*args, **kwargs)
            if batch.waiting:
                batch.called(name, args, kwargs)
            thread = self._begin(name)
            try:
                return original(*args, **kwargs)
            finally:
                thread.end(name)

        own = module.__dict__
        own["_compiled_call_impl"] = call

        def restore() -> None:
            if own.get("_compiled_call_impl") is call:
                if compiled is None:
                    del own["_compiled_call_impl"]
                else:
                    own["_compiled_call_impl"] = compiled

        self._undo.append(restore)

    def _hook(self, module: Any, name: str) -> None:
        def before(module: Any, args: Any, kwargs: Any) -> None:
            # Dynamo may compile this module for the first time now: then nothing of ours is in the graph
            if not _compiling() and self._active:
                if self._batch.waiting:
                    self._batch.called(name, args, kwargs)
                self._begin(name)

        def after(module: Any, args: Any, result: Any) -> None:
            if not _compiling() and self._active:
                self._thread().end(name)

        first = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        # always: checkpointing ends a recomputation with an exception, and users catch out-of-memory
        last = module.register_forward_hook(after, always_call=True)
        self._undo += [first.remove, last.remove]


def _looks_for_a_compiled_call(module: Any) -> bool:
    """Does a call of the module, and of no copy of it, run its ``_compiled_call_impl``?"""
    kind: Any = type(module)
    return (
        "_compiled_call_impl" in _names(nn.Module.__call__)
        and "_compiled_call_impl" in _names(nn.Module.__getstate__)
        and all(getattr(kind, key, None) is getattr(nn.Module, key, None) for key in _CALLED_AND_COPIED)
        and module.__dict__.get("_compiled_call_impl") is None
    )


def _names(function: Any) -> tuple[Any, ...]:
    code = getattr(function, "__code__", None)
    return (*code.co_names, *code.co_consts) if code is not None else ()
