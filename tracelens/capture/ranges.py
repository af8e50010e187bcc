"""Named ranges around every module's forward, and around every autograd node that differentiates it.

Forward: hooks on the modules, a user range (``record_function``) with the dotted name. Backward: each
autograd node belongs to the module in whose forward it was made. That is read from its sequence number: a
thread numbers its nodes in order, so the numbers at which a module begins and ends enclose its nodes. The
nodes are looked up once, when a backward pass begins, and get a hook before and one after; no gradient is
touched and no node is added (full backward hooks would add one, and break in-place operations).

A backward range is an operator range, not a user range: inside autograd a user range that names a module
is a forward run again (activation checkpointing), and a reader can tell the two apart.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracelens.capture.modules import Spot

_enter_user = torch._C._autograd._record_function_with_args_enter
_exit_user = torch._C._autograd._record_function_with_args_exit
_sequence = torch._C._autograd._get_sequence_nr
_OperatorRange = torch._C._profiler._RecordFunctionFast

#: Views: they launch nothing, or now and then a copy; every range costs the host some microseconds.
_SILENT = frozenset(
    f"{name}Backward{version}"
    for name in (
        "T",
        "Transpose",
        "Permute",
        "Alias",
        "Squeeze",
        "Unsqueeze",
        "View",
        "UnsafeView",
        "ReshapeAlias",
    )
    for version in (0, 1, 2)
)
_NO_SEQUENCE = 1 << 62  # AccumulateGrad has the largest number there is


class _Thread:
    """What one thread has open, and which module its autograd numbers belong to."""

    __slots__ = ("backward", "forward_alone", "labels", "numbers", "open")

    def __init__(self) -> None:
        self.open: list[tuple[str, Any]] = []
        self.backward: list[Any] = []
        self.numbers: list[int] = []  # from this sequence number on ...
        self.labels: list[str | None] = []  # ... nodes belong to this module
        self.forward_alone = False  # it ran a forward of its own, not one within a backward

    def begin(self, name: str) -> None:
        self.open.append((name, _enter_user(name)))
        if not self.backward:
            self.forward_alone = True
        self.label(name)

    def end(self, name: str) -> None:
        if not any(opened == name for opened, _ in self.open):
            return
        while self.open:
            last, handle = self.open.pop()
            _exit_user(handle)  # above it only ranges that an exception left open
            if last == name:
                break
        self.label(self.open[-1][0] if self.open else None)

    def label(self, name: str | None) -> None:
        number = _sequence()
        if self.numbers and self.numbers[-1] == number:
            self.labels[-1] = name
        else:
            self.numbers.append(number)
            self.labels.append(name)

    def owner(self, number: int) -> str | None:
        at = bisect_right(self.numbers, number) - 1
        return self.labels[at] if at >= 0 else None

    def close(self) -> None:
        while self.open:
            _exit_user(self.open.pop()[1])
        while self.backward:
            self.backward.pop().__exit__(None, None, None)


class Ranges:
    """Installed for the window, gone after it."""

    def __init__(self, spots: Iterable[Spot]):
        self._spots = list(spots)
        self._active = False
        self._undo: list[Callable[[], None]] = []
        self._local = threading.local()
        self._threads: list[_Thread] = []
        self._pairs: dict[str, tuple[Any, Any]] = {}
        self.recomputed: set[str] = set()
        self.nodes = 0  # autograd nodes that got a range

    def install(self) -> None:
        self._active = True
        for spot in self._spots:
            if spot.how == "call":
                self._wrap_call(spot.module, spot.name)
                continue
            before, after = self._forward_hooks(spot.name)
            first = spot.module.register_forward_pre_hook(before, prepend=True)
            # always: checkpointing ends a recomputation with an exception, and users catch out-of-memory
            last = spot.module.register_forward_hook(after, always_call=True)
            self._undo += [first.remove, last.remove]

    def remove(self) -> None:
        """Idempotent. Hooks on graphs that are still alive do nothing from now on."""
        self._active = False
        while self._undo:
            self._undo.pop()()
        for thread in self._threads:
            if thread is getattr(self._local, "state", None):
                thread.close()
        self._threads.clear()
        self._spots.clear()

    def _thread(self) -> _Thread:
        try:
            return self._local.state  # type: ignore[no-any-return]
        except AttributeError:
            state = self._local.state = _Thread()
            self._threads.append(state)
            return state

    def _forward_hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(module: Any, args: Any) -> None:
            # Dynamo may compile this module for the first time now: then nothing of ours is in the graph
            if torch.compiler.is_compiling() or not self._active:
                return
            thread = self._thread()
            if thread.backward:
                self.recomputed.add(name)
            thread.begin(name)

        def after(module: Any, args: Any, result: Any) -> None:
            if torch.compiler.is_compiling() or not self._active:
                return
            self._thread().end(name)

        return before, after

    def _wrap_call(self, module: Any, name: str) -> None:
        """``module.compile()``: hooks would be compiled too, so the range goes around the compiled call."""
        original = module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._active:
                return original(*args, **kwargs)
            thread = self._thread()
            thread.begin(name)
            try:
                return original(*args, **kwargs)
            finally:
                thread.end(name)

        module._compiled_call_impl = call

        def restore() -> None:
            if module.__dict__.get("_compiled_call_impl") is call:
                module._compiled_call_impl = original

        self._undo.append(restore)

    def begin_backward(self, outputs: Any) -> None:
        """Give the nodes behind ``outputs`` their ranges."""
        mine = self._thread()
        if not self._active or not mine.numbers or _compiled_autograd():
            return
        # a graph made by several threads: numbers that two of them used belong to nobody
        others = (
            [] if mine.backward else [t for t in tuple(self._threads) if t is not mine and t.forward_alone]
        )
        first = mine.numbers[0]
        todo = [node for node in map(_node, outputs) if node is not None]
        seen = set(todo)
        pairs, silent = self._pairs, _SILENT
        while todo:
            node = todo.pop()
            for inner, _ in node.next_functions:
                if inner is not None and inner not in seen:
                    seen.add(inner)
                    todo.append(inner)
            number = node._sequence_nr()
            if not first <= number < _NO_SEQUENCE:
                continue
            name = mine.owner(number)
            if name is None or node.name() in silent:
                continue
            if others and any(other.owner(number) for other in others):
                continue
            metadata = node.metadata
            if metadata.get("tracelens") is self:  # a graph kept for a second pass has its hooks already
                continue
            metadata["tracelens"] = self
            if name not in pairs:
                pairs[name] = self._node_hooks(name)
            before, after = pairs[name]
            node.register_prehook(before)
            node.register_hook(after)
            self.nodes += 1

    def end_backward(self) -> None:
        """The outermost pass is over: ranges that an exception left open are closed."""
        thread = self._thread()
        while thread.backward:
            thread.backward.pop().__exit__(None, None, None)

    def _node_hooks(self, name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        local, make = self._local, _OperatorRange

        def before(gradients: Any) -> None:
            if self._active:
                opened = make(name)
                opened.__enter__()
                try:
                    local.state.backward.append(opened)
                except AttributeError:  # autograd's own thread, for the first time
                    self._thread().backward.append(opened)

        def after(inputs: Any, outputs: Any) -> None:
            thread = getattr(local, "state", None)  # the graph may outlive the window, in any thread
            if thread is not None and thread.backward:
                thread.backward.pop().__exit__(None, None, None)

        return before, after


def _node(output: Any) -> Any:
    """The node behind a tensor or a GradientEdge."""
    return getattr(output, "grad_fn", None) or getattr(output, "node", None)


def _compiled_autograd() -> bool:
    """It traces hooks of nodes into its graph; then the backward stays as it is."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))
