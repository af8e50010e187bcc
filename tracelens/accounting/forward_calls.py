"""The forward calls of a model, and the values that they show with most of their time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tracelens.accounting.words import model as words
from tracelens.attribution import Attribution, Calls
from tracelens.gemm import AttentionShape, GemmShape, Shape
from tracelens.results import Known
from tracelens.words import COMPONENTS, PHASES

S = TypeVar("S")
UNSEEN = Known(None, words.NOT_ATTRIBUTED)
_CLEAR = 2 / 3  # of the time of the calls that show a value
_CORES = ("attention.core", "attention.scores", "attention.softmax", "attention.values")
#: What shows how large a model is: where most of one has no shapes, the rest can be another model.
_SEEN = {"attention.core": "attention", "attention.scores": "attention"} | {
    name: name for name in ("mlp.up", "mlp.down")
}
FORWARD = (PHASES.index("forward"), PHASES.index("other"))


@dataclass(frozen=True, slots=True)
class _Row:
    """A forward call with a shape; ``width`` is that of the residual stream it works for; ``takes`` how wide
    the heads are that it takes together, first behind their attention."""

    component: str
    shape: Shape
    ns: int
    width: int | None = None
    takes: int | None = None


class ForwardCalls:
    """The forward calls, by component, each with its time."""

    def __init__(self, attribution: Attribution, calls: Calls):
        self._rows: list[_Row] = []
        self._seen = {
            part: ([0, 0], [0, 0]) for part in _SEEN.values()
        }  # calls and ns, without and with a shape
        self.streams: dict[int, list[int]] = {}  # by width: calls that come back to it
        self.stream: int | None = None
        self._hidden: set[str] = set()  # components with calls whose shapes are not known
        self.takes_no_loss = _trains_without_loss(attribution)
        core: list[int] = []  # rows of the attention whose output projection is to come
        outputs: dict[int, tuple[list[int], int, GemmShape]] = {}  # by the first of those rows
        downs: list[tuple[int, int]] = []
        for at, shape in enumerate(calls.shape):
            if attribution.phase[calls.main[at]] not in FORWARD:
                continue
            component = COMPONENTS[attribution.component[calls.main[at]]]
            ns = int(calls.dur_ns[at])
            part = _SEEN.get(component)
            if part is not None:
                self._seen[part][0][shape is not None] += 1
                self._seen[part][1][shape is not None] += ns
            if part == "attention":
                core = []
            if shape is None:
                self._hidden.add(component)
                continue
            if calls.padded and isinstance(shape, GemmShape):
                shape = replace(shape, **calls.padded[at])  # type: ignore[arg-type]
            width = takes = None
            if component in _CORES:
                core.append(len(self._rows))
            elif component == "attention.output" and core and isinstance(shape, GemmShape):
                # adapters follow the projection, and are none; of two in a row the first can be in groups
                takes = shape.k * shape.batch if core[0] not in outputs else None
                if core[0] not in outputs or outputs[core[0]][2].batch > 1:
                    outputs[core[0]] = core, at, shape
                    width = shape.n
            elif component == "mlp.down" and isinstance(shape, GemmShape):
                width = shape.n
                downs.append((width, at))
            self._rows.append(_Row(component, shape, ns, width, takes))
        for core, at, shape in outputs.values():
            self.streams.setdefault(shape.n, []).append(at)
            for row in core:
                self._rows[row] = replace(self._rows[row], width=shape.n)
        for wide, at in downs:
            if wide in self.streams:
                self.streams[wide].append(at)

    def of_stream(self, width: int | None) -> ForwardCalls:
        """Those of the model whose residual stream is so wide; all where there is one width or none."""
        if width not in self.streams or len(self.streams) == 1:
            return self
        out = copy(self)
        out.stream = width
        out._rows = [row for row in self._rows if row.width in (None, width)]
        return out

    def _shapes(self, component: str) -> list[tuple[Shape, int]]:
        return [(row.shape, row.ns) for row in self._rows if row.component == component]

    def one_part(self) -> str | None:
        """Why the calls with shapes are no measure of the model: of a part most has none."""
        for part, seen in self._seen.items():
            for hidden, shown in seen:
                if hidden > shown > 0:
                    return words.one_part(part, shown / (shown + hidden))
        return None

    def attention(self) -> list[tuple[AttentionShape, int]]:
        return [
            (row.shape, row.ns)
            for row in self._rows
            if isinstance(row.shape, AttentionShape) and not row.shape.backward
        ]

    def fused(self, read: Callable[[AttentionShape], int | None]) -> Known:
        """The value of most of the time of fused attention."""
        return _from(self.attention(), read, "fused attention") or self._unseen("attention.core")

    def gemm(self, *readings: tuple[str, Callable[[GemmShape], int | None]]) -> Known:
        """The value that takes most time, of the first reading that has one."""
        first: Known | None = None
        for component, read in readings:
            shapes = ((s, ns) for s, ns in self._shapes(component) if isinstance(s, GemmShape))
            found = _from(shapes, read, component)
            if found is not None and found.value is not None:
                return found
            first = first or found
        return first or self._unseen(*(component for component, _ in readings))

    def _unseen(self, *components: str) -> Known:
        return Known(None, words.NO_SHAPES) if self._hidden.intersection(components) else UNSEEN

    def heads_width(self) -> Known:
        """What the first product behind attention takes, in most of its time."""
        rows = ((row.takes, row.ns) for row in self._rows if row.takes)
        return _from(rows, lambda takes: takes, "attention.output") or UNSEEN

    def products(self, component: str) -> list[GemmShape]:
        return [s for s, _ in self._shapes(component) if isinstance(s, GemmShape)]

    def attends_to_itself(self) -> bool:
        """Are most scores, which no fused kernel makes, of as many queries as keys?"""
        scores = self.products("attention.scores")
        return 2 * sum(s.m == s.n for s in scores) > len(scores)

    def widths(self, component: str) -> Counter[int]:
        """N of every product."""
        return Counter(s.n for s in self.products(component))


def _from(shapes: Iterable[tuple[S, int]], read: Callable[[S], int | None], what: str) -> Known | None:
    """The value of most of the time, unknown where none has it; None where nothing shows one."""
    time: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    for shape, ns in shapes:
        value = read(shape)
        if value is not None:
            time[value] += ns
            calls[value] += 1
    if not time:
        return None
    value, ns = time.most_common(1)[0]
    if ns < _CLEAR * time.total():
        return Known(None, words.no_clear_value(what, len(time)))
    source = words.forward_calls(what, showing=calls[value], calls=calls.total(), values=len(calls))
    return Known(value, source)


def _trains_without_loss(attribution: Attribution) -> bool:
    """Does it go back, and is no loss seen?"""
    phases, parts = (set(np.unique(codes).tolist()) for codes in (attribution.phase, attribution.component))
    return PHASES.index("backward") in phases and COMPONENTS.index("loss") not in parts
