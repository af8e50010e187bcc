"""Stretches of units that are one forward, one recomputed piece, or one backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tracelens.attribution.structure.units import Kind, Units
from tracelens.gemm import GemmShape
from tracelens.trace import CodeArray, look_up
from tracelens.words import Role


@dataclass(frozen=True, slots=True)
class Label:
    """What a unit was found to be; ``candidates`` where it is one of several and cannot be told which."""

    component: str
    layer: int | None = None
    components: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    role: Role | None = None  # of a product
    evidence: str = "structure"  # local: it rests on its neighbours alone


@dataclass(frozen=True, slots=True)
class Core:
    """One attention core: the fused operator, or the products and the softmax of an unfused one."""

    first: int  # positions in the run
    last: int
    parts: dict[int, str]  # position -> component
    tokens: int | None = None  # query rows: batch x sequence
    heads: int | None = None
    kv_heads: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    backward: bool = False

    @property
    def out_width(self) -> int | None:
        """Width of what it gives to the output projection, on this rank."""
        return self.heads * self.value_dim if self.heads and self.value_dim else None

    def at(self, places: Mapping[int, int]) -> Core:
        """The same in a run in which position ``p`` of this one is ``places[p]``, if it is there."""
        parts = {places[at]: component for at, component in self.parts.items() if at in places}
        return replace(self, first=places[self.first], last=places[self.last], parts=parts)


@dataclass(slots=True)
class Run:
    """Consecutive units of one phase; positions count within it."""

    phase: str
    units: list[int]  # rows of Units
    kinds: list[Kind]
    labels: dict[int, Label] = field(default_factory=dict)  # by position
    cores: list[Core] = field(default_factory=list)
    trained: bool = True  # False: a forward without gradients
    counts_layers: bool = True  # False: nothing tells a second pass of the model from more layers
    joints: set[int] = field(default_factory=set)  # layers behind products that no layer has
    stages: set[int] = field(default_factory=set)  # positions of second stages of sums, without shapes
    follows: Kind | None = None  # of a part of a model, what stands before it there

    def __len__(self) -> int:
        return len(self.units)

    def part(self, kept: Sequence[int]) -> Run:
        """A run of the units at these positions, with the cores that begin and end among them."""
        places = {at: number for number, at in enumerate(kept)}
        found = Run(self.phase, [self.units[at] for at in kept], [self.kinds[at] for at in kept])
        found.cores = [core.at(places) for core in self.cores if {core.first, core.last} <= places.keys()]
        found.counts_layers, found.trained = self.counts_layers, self.trained
        return found

    def products(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Positions of the GEMMs that are part of no attention core."""
        inside = {position for core in self.cores for position in core.parts}
        return [
            at
            for at in range(start, len(self.kinds) if stop is None else stop)
            if self.kinds[at].what in ("gemm", "bmm") and at not in inside
        ]

    def shape(self, at: int) -> GemmShape | None:
        return self.kinds[at].gemm


@dataclass
class Excerpt:
    """Units of ``whole`` that are read as a run of their own: ``kept`` says where each stands there."""

    whole: Run
    kept: Sequence[int]
    run: Run
    given: dict[int, Label] = field(default_factory=dict, kw_only=True)  # to the whole, by its positions
    first: int | None = field(default=None, kw_only=True)  # of its layers there, once it gave any

    def give_back(self) -> int:
        """What was found in it to the whole, where nothing is known yet but what it gave before; layers
        follow those that are known there. Returns the first of them."""
        if self.run is self.whole:
            return 0
        labels = self.whole.labels
        if self.first is None:
            known = [label.layer for label in labels.values() if label.layer is not None]
            self.first = max(known, default=-1) + 1
        for at, label in self.run.labels.items():
            layer, place = None if label.layer is None else label.layer + self.first, self.kept[at]
            if labels.get(place) == self.given.get(place):
                labels[place] = self.given[place] = replace(label, layer=layer)
        places = dict(enumerate(self.kept))
        self.whole.cores = self.whole.cores or [core.at(places) for core in self.run.cores]
        return self.first


def whole_of(run: Run) -> Excerpt:
    """All of a run, as an excerpt of it."""
    return Excerpt(run, range(len(run)), run)


_SKIPPED = frozenset({"communication", "optimizer", "grad_clip"})


def split_runs(units: Units, phase: list[str], step: CodeArray, graph: CodeArray) -> Iterator[Run]:
    """Cut the units where the phase, the step or the CUDA-graph launch changes.

    ``phase`` and ``step`` are per unit. ``graph`` is the graph launch a unit hangs from, -1 for none:
    the host knows no phase inside a graph, so those runs have the phase ``graph``. Units that began
    before the recording (no node, no launch) are in no run: nothing says where they stand.
    """
    skipped = np.array([kind.what in _SKIPPED for kind in units.kinds] or [False])
    names = np.array(["graph", "other", "optimizer", *dict.fromkeys(phase)])
    code = {name: at for at, name in reversed([*enumerate(names.tolist())])}
    of_unit = np.where(graph >= 0, 0, np.array([code[name] for name in phase], np.int64))
    begun = (units.node >= 0) | (units.launch >= 0)
    rows = np.flatnonzero(begun & ~look_up(skipped, units.kind) & (of_unit != 1) & (of_unit != 2))
    here = np.stack([of_unit, step, graph], axis=1)[rows]
    for part in np.split(rows, np.flatnonzero((here[1:] != here[:-1]).any(axis=1)) + 1):
        if len(part):
            kinds = [units.kinds[kind] for kind in units.kind[part]]
            yield Run(str(names[of_unit[part[0]]]), part.tolist(), kinds)
