"""Runs training steps on the meta device under torch.profiler and notes what every event is for.

The model's parts, its modules and the training loop open profiler ranges with private names. An
autograd node belongs to the part that was open when autograd made it; hooks around the node open the
same range again when it runs. So the truth of the backward comes from the graph itself, and nothing
is read from what the profiler writes about it. Private ranges carry a number: the index of their
``Note``.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.profiler import ProfilerActivity, profile, record_function

from tests.zoo import parts

PRIVATE = "zoo#"


@dataclass(frozen=True, slots=True)
class State:
    """What the program is doing."""

    component: str = "other"
    layer: int | None = None
    phase: str = "other"
    module: str | None = None
    role: str | None = None
    strict: bool = True


@dataclass(frozen=True, slots=True)
class Note:
    """A private range. ``kind``: part, node (a part again, in the backward), module, call, collective, frame.

    ``text`` is the class of a module or the name of an operator or frame; ``tensors`` are those of a call,
    a collective among ``ranks`` or the lists of an optimizer.
    """

    kind: str
    state: State
    text: str = ""
    tensors: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()  # sizes and strides
    ranks: int = 1


@dataclass
class Capture:
    """Listens to a model and to autograd while steps run."""

    modules: dict[nn.Module, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)  # notes whose range ended by an exception
    backward_sequences: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._states = [State()]
        self._marks: list[tuple[int, State]] = [(0, State())]
        self._open: list[AbstractContextManager[Any]] = []
        self._backward = 0

    # -- ranges ------------------------------------------------------------------------------------

    def enter(self, note: Note) -> None:
        self.notes.append(note)
        span = record_function(f"{PRIVATE}{len(self.notes) - 1}")
        span.__enter__()
        self._open.append(span)
        self._push(note.state)

    def leave(self) -> None:
        self._open.pop().__exit__(None, None, None)
        self._states.pop()
        self._mark()

    def _push(self, state: State) -> None:
        self._states.append(state)
        self._mark()

    def _mark(self) -> None:
        """From the autograd node made next, nodes belong to the innermost state."""
        if torch.is_grad_enabled():
            self._marks.append((torch.autograd._get_sequence_nr(), self._states[-1]))  # type: ignore[attr-defined]

    @contextmanager
    def inside(self, note: Note) -> Iterator[None]:
        self.enter(note)
        number = len(self.notes) - 1
        try:
            yield
        except BaseException:  # a checkpoint stops its recomputation when it has all it needs
            self.stopped.add(number)
            raise
        finally:
            self.leave()

    @property
    def state(self) -> State:
        return self._states[-1]

    def _phase(self) -> str:
        """Grad mode is on in the backward only while a checkpoint computes its forward again."""
        top = self.state.phase
        if self._backward and (torch.is_grad_enabled() or top == "recompute"):
            return "recompute"
        return top

    # -- what models and the training loop say -----------------------------------------------------

    def part(
        self, component: str, layer: int | None, role: str | None, strict: bool
    ) -> AbstractContextManager[None]:
        layer = self.state.layer if layer is None else layer
        state = State(component, layer, self._phase(), self.state.module, role, strict)
        return self.inside(Note("part", state))

    def call(self, name: str, tensors: tuple[Tensor, ...]) -> AbstractContextManager[None]:
        shapes = tuple((tuple(t.shape), tuple(t.stride())) for t in tensors)
        return self.inside(Note("call", self.state, name, shapes))

    def collective(self, name: str, tensor: Tensor, ranks: int) -> AbstractContextManager[None]:
        shapes = ((tuple(tensor.shape), tuple(tensor.stride())),)
        return self.inside(Note("collective", self.state, name, shapes, ranks))

    def phase(
        self, phase: str, component: str = "other", *, lists: list[Tensor] | None = None
    ) -> AbstractContextManager[None]:
        """Part of the training loop. ``lists`` are the tensors its foreach operators work on: the
        profiler leaves out the sizes of a list of more than 30."""
        shapes = tuple((tuple(t.shape), tuple(t.stride())) for t in lists or ())
        return self.inside(Note("part", State(component, phase=phase), tensors=shapes))

    def frame(self, name: str) -> AbstractContextManager[None]:
        return self.inside(Note("frame", self.state, name))

    # -- modules -----------------------------------------------------------------------------------

    def _enter_module(self, module: nn.Module, _: object) -> None:
        name = self.modules.get(module)
        state = replace(self.state, module=name or None, phase=self._phase())
        self.enter(Note("module", state, type(module).__name__))

    def _leave_module(self, module: nn.Module, _: object, __: object) -> None:
        self.leave()

    # -- autograd ----------------------------------------------------------------------------------

    def _backward_call(self, original: Callable[..., None]) -> Callable[..., None]:
        """torch.autograd.backward that hooks every node it is about to run."""

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self._hook_nodes([t.grad_fn for t in roots if t.grad_fn is not None])
            first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            self._backward += 1
            try:
                original(tensors, *args, **kwargs)
            finally:
                self._backward -= 1
            if not self._backward:
                last = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
                self.backward_sequences.append((first, last))

        return backward

    def _hook_nodes(self, nodes: list[Any]) -> None:
        starts = [sequence for sequence, _ in self._marks]
        seen: set[Any] = set()
        users: dict[Any, list[State]] = {}  # of a parameter's gradient
        while nodes:
            node = nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            if "zoo" in node.metadata:
                continue
            state = self._marks[bisect_right(starts, node._sequence_nr()) - 1][1]
            self._hook(node, state)
            for following, _ in node.next_functions:
                if following is None:
                    continue
                if following.name() == "torch::autograd::AccumulateGrad":
                    users.setdefault(following, []).append(state)
                else:
                    nodes.append(following)
        for leaf, states in users.items():
            if "zoo" not in leaf.metadata:
                self._hook(leaf, replace(states[0], strict=states[0].strict and len(states) == 1))

    def _hook(self, node: Any, state: State) -> None:
        note = Note("node", replace(state, phase="backward", role=None))
        node.metadata["zoo"] = True
        node.register_prehook(lambda *_: self.enter(note))
        node.register_hook(lambda *_: self.leave())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Everything above, inside the block."""
        handles = [
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        try:
            with (
                parts.listening(part=self.part, call=self.call, collective=self.collective),
                mock.patch("torch.autograd.backward", self._backward_call(torch.autograd.backward)),
            ):
                yield
        finally:
            for handle in handles:
                handle.remove()


def profiled(run: Callable[[], None]) -> str:
    """The trace of ``run`` as Kineto writes it, shapes recorded."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return path.read_text()
