"""A recorded program as a tree of operators, and what each of them launches."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from tests.synthetic.gpu import Work
from tests.zoo.capture import PRIVATE, Note, State
from tests.zoo.inputs import Inputs
from tests.zoo.products import Product

SHAPES = ("Concrete Inputs", "Input type", "Input Strides", "Input Dims")
EVALUATE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of an operator and the truth about it."""

    work: Work
    state: State
    product: Product | None = None
    flops: float = 0.0
    collective: dict[str, Any] | None = None  # arguments of a kernel on the communication stream


@dataclass(slots=True, eq=False)
class Op:
    """An operator (``cpu_op``), a range (``user_annotation``), a module, a Python frame, or a launch that
    no operator stands above (``bare``).

    ``sequence`` and ``forward_thread`` are autograd's, None where the profiler writes none. The
    launches follow what the children launch.
    """

    name: str
    category: str = "cpu_op"  # cpu_op | user_annotation | module | frame | bare
    shapes: dict[str, Any] = field(default_factory=dict)
    sequence: int | None = None
    forward_thread: int = 0
    children: list[Op] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    note: Note | None = None  # of a private range
    extra: dict[str, Any] = field(default_factory=dict)  # further arguments
    stopped: bool = False  # it was called and ended by an exception before it launched anything

    @property
    def inputs(self) -> Inputs:
        concrete, types, strides, sizes = (self.shapes.get(key, []) for key in SHAPES)
        return Inputs(sizes, strides, types, concrete)


def tensors(*described: tuple[Any, Any], kind: str = "c10::BFloat16") -> dict[str, Any]:
    """The shape arguments of an operator whose inputs are tensors of one type: (sizes, strides) each."""
    return {
        "Concrete Inputs": ["" for _ in described],
        "Input type": [kind for _ in described],
        "Input Strides": [list(strides) for _, strides in described],
        "Input Dims": [list(sizes) for sizes, _ in described],
    }


def dense(sizes: list[int]) -> tuple[list[int], list[int]]:
    """(sizes, strides) of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return sizes, strides[::-1]


def _nanoseconds(text: str) -> int:
    """Kineto writes microseconds with three decimals."""
    if text[-4] != ".":
        raise ValueError(f"{text} is no time of Kineto")
    return int(text.replace(".", ""))


def parse(text: str, notes: list[Note], stopped: Set[int] = frozenset()) -> list[Op]:
    """The trees of a trace of one thread, in the order of time.

    The range of a note in ``stopped`` ended by an exception: a checkpoint stops its recomputation while
    the last operator hands over what it saves, before that operator has done any work.
    """
    events = [
        event
        for event in json.loads(text, parse_float=_nanoseconds)["traceEvents"]
        if event.get("cat") in ("cpu_op", "user_annotation")
    ]
    events.sort(key=lambda event: (event["ts"], -event["dur"], event["args"]["Ev Idx"]))
    roots: list[Op] = []
    opened: list[tuple[int, Op]] = []
    for event in events:
        while opened and event["ts"] >= opened[-1][0]:
            opened.pop()
        op = _op(event, notes)
        (opened[-1][1].children if opened else roots).append(op)
        opened.append((event["ts"] + event["dur"], op))
    for root in roots:
        _mark_stopped(root, {id(notes[number]) for number in stopped})
    return roots


def _mark_stopped(op: Op, stopped: Set[int]) -> None:
    if op.note is not None and id(op.note) in stopped:
        last = op
        while any(child.name != "aten::detach" for child in last.children):
            last = last.children[-1]
        last.stopped = last.note is None
    for child in op.children:
        _mark_stopped(child, stopped)


def _op(event: dict[str, Any], notes: list[Note]) -> Op:
    name, args = event["name"], event["args"]
    note = notes[int(name.removeprefix(PRIVATE))] if name.startswith(PRIVATE) else None
    shapes = {key: args[key] for key in SHAPES if key in args}
    if "Concrete Inputs" in shapes:
        shapes["Concrete Inputs"] = ["cuda:0" if c == "meta" else c for c in shapes["Concrete Inputs"]]
    sequence, thread = args.get("Sequence number"), args.get("Fwd thread id", 0)
    return Op(name, event["cat"], shapes, sequence, thread, note=note)
