"""Plays a program to the recorder of tests/synthetic: clocks, launches, streams, and the truth.

``write`` is what any source of programs needs: it takes trees of ``Op`` with their launches and gives
the events in file order and the truth about every kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tests.synthetic.layout import header, in_file_order
from tests.synthetic.recorder import AUTOGRAD, COMPUTE_STREAM, MAIN, NCCL_STREAM, Recorder
from tests.synthetic.spec import Event, ModelSpec, Options, Synthetic, Where
from tests.zoo.capture import State
from tests.zoo.program import EVALUATE, SHAPES, Launch, Op

_WARM_UP = 146  # sequence numbers taken before the recording
_CALL = "<built-in method run_backward of torch._C._EngineBase object at 0x7f3c5a1e2b70>"


@dataclass
class _Numbers:
    """Sequence numbers as two threads count them, in one step after the other.

    On the meta device one thread runs everything. On CUDA the backward has a thread of its own, and
    what a checkpoint computes again there takes that thread's numbers, from its own beginning on.
    """

    step: tuple[int, int]  # from the first number of a step to that of the next
    backward: Sequence[tuple[int, int]]

    def of(self, number: int, repeat: int, *, reader: str) -> tuple[int, int]:
        """(RecordFunction's number of the thread that counted, its sequence number there).

        ``reader`` is "node" for a node, which took the number, else the thread of an operator ("main",
        "autograd") that saw it as the next one, so that both ends of a range are numbers of both.
        """
        again = sum(last - first for first, last in self.backward)
        used = 0
        for first, last in self.backward:
            if number < first or (number == first and reader == "main"):
                break
            if number < last or (number == last and reader == "autograd"):
                return 2, used + number - first + repeat * again
            used += last - first
        first, last = self.step
        return 1, _WARM_UP + number - first - used + repeat * (last - first - again)


@dataclass
class Player:
    """Walks the trees and lets the recorder live through them."""

    rec: Recorder
    names: str  # frames | ranges | none
    numbers: _Numbers
    repeat: int = 0  # how often the step was played before
    forward: dict[tuple[int, int | None], Event] = field(default_factory=dict)  # latest, by thread and number

    def step(self, ops: list[Op], number: int) -> None:
        """Play one step."""
        rec = self.rec
        rec.step = number
        with rec.annotation(f"ProfilerStep#{number}"), rec.frame("train.py(48): step"):
            self.play(ops)
        rec.step = None
        rec.spend(60_000)
        self.repeat += 1

    def play(self, ops: list[Op]) -> None:
        for engine, group in groupby(ops, key=lambda op: op.name.startswith(EVALUATE)):
            if engine and self.rec.tid == MAIN:
                with self.rec.frame(_CALL), self.rec.on_autograd_thread():
                    self._play_all(list(group))
                free = self.rec.stream_free
                free[COMPUTE_STREAM] = max(free.get(COMPUTE_STREAM, 0), free.get(NCCL_STREAM, 0))
            else:
                self._play_all(list(group))

    def _play_all(self, ops: list[Op]) -> None:
        for op in ops:
            with self._open(op) as event:
                self._number(op, event)
                self.play(op.children)
                for launch in op.launches:
                    self._launch(launch)

    def _open(self, op: Op) -> AbstractContextManager[Any]:
        rec = self.rec
        if op.category == "bare":
            return nullcontext()
        if op.category == "frame":
            return rec.frame(op.name)
        if op.category == "module":
            assert op.note is not None
            name = op.note.state.module or ""
            if self.names == "frames":
                return rec.frame("", module=(op.name, name))
            return rec.annotation(name) if self.names == "ranges" and name else nullcontext()
        if op.category == "user_annotation":
            return rec.annotation(op.name)
        shapes = {key: op.shapes[key] for key in SHAPES if key in op.shapes} if rec.options.shapes else {}
        thread, number = self._numbered(op)
        return rec.op(op.name, None, sequence=number, forward_thread=thread, extra={**shapes, **op.extra})

    def _numbered(self, op: Op) -> tuple[int, int | None]:
        if op.sequence is None:
            return 0, None
        here = "autograd" if self.rec.tid == AUTOGRAD else "main"
        reader = "node" if op.forward_thread else here
        thread, number = self.numbers.of(op.sequence, self.repeat, reader=reader)
        return (thread if op.forward_thread else 0), number

    def _number(self, op: Op, event: Event | None) -> None:
        """Tie a node of the backward to the operator that made it, by an arrow as Kineto draws it."""
        if event is None or op.sequence is None or op.category != "cpu_op":
            return
        thread, number = self._numbered(op)
        if not op.forward_thread:
            here = 2 if self.rec.tid == AUTOGRAD else 1
            self.forward[here, number] = event
        elif not op.name.startswith(EVALUATE):
            made_by = self.forward.get((thread, number))
            if made_by is not None:
                arrow = (self.repeat << 32) + op.sequence
                made_by.flow, event.flow = ("s", arrow, "fwdbwd"), ("f", arrow, "fwdbwd")

    def _launch(self, launch: Launch) -> None:
        rec, state, product = self.rec, launch.state, launch.product
        rec.where = where(state)
        role = product.role if product is not None else state.role if launch.flops else None
        facts: dict[str, Any] = {"role": role, "flops": launch.flops, "strict": state.strict}
        if product is not None:
            facts |= {"shape": (product.m, product.n, product.k), "batch": product.batch}
        if launch.collective is None:
            rec.launch(launch.work, **facts)
            return
        rec.call("cudaEventRecord")
        rec.call("cudaStreamWaitEvent")
        after = rec.stream_free.get(COMPUTE_STREAM, 0) + 1500
        rec.launch(launch.work, **facts, stream=NCCL_STREAM, after=after, extra=launch.collective)
        rec.stream_free[COMPUTE_STREAM] = rec.stream_free[NCCL_STREAM]


def where(state: State) -> Where:
    return Where(state.component, state.phase, state.layer, state.module)


def write(
    ops: list[Op],
    *,
    steps: int = 1,
    first_step: int = 3,
    names: str = "frames",
    shapes: bool = True,
    ranks: int = 1,
    seed: int = 0,
    sequences: tuple[int, int] = (0, 0),
    backward: Sequence[tuple[int, int]] = (),
) -> Synthetic:
    """Simulate ``steps`` times the step that ``ops`` are.

    ``sequences`` is the range of autograd's numbers in the step, ``backward`` the part of it that each
    backward took.
    ``names`` says how modules show: "frames" as nn.Module frames of Python, "ranges" as
    record_function ranges with their qualified names, "none" not at all.
    """
    options = Options(
        module_frames=names == "frames", ranges=names == "ranges", shapes=shapes, all_reduce=ranks > 1,
        seed=seed,
    )  # fmt: skip
    rec = Recorder(options)
    with rec.frame("train.py(71): <module>"):
        player = Player(rec, names, _Numbers(sequences, backward))
        for i in range(steps):
            player.step(ops, first_step + i)
        rec.synchronize()
    rec.truth.sort(key=lambda row: (row.start_ns, row.correlation))
    return Synthetic(ModelSpec(), options, header(options), in_file_order(rec), rec.truth)
