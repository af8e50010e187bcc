"""Stretches of units that are one forward, one recomputed piece, or one backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import numpy.typing as npt

from tracelens.attribution.structure.units import Kind, Units
from tracelens.gemm import GemmShape
from tracelens.words import Role

NodeArray = npt.NDArray[np.int32]


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
    tokens: int | None  # query rows: batch x sequence
    heads: int | None
    kv_heads: int | None
    key_dim: int | None
    value_dim: int | None
    backward: bool = False

    @property
    def out_width(self) -> int | None:
        """Width of what it gives to the output projection, on this rank."""
        return self.heads * self.value_dim if self.heads and self.value_dim else None

    def moved(self, by: int) -> Core:
        """The same, so many positions further."""
        parts = {at + by: component for at, component in self.parts.items()}
        return replace(self, first=self.first + by, last=self.last + by, parts=parts)

    def at(self, places: list[int]) -> Core:
        """The same in a run in which position ``p`` of this one is ``places[p]``."""
        parts = {places[at]: component for at, component in self.parts.items()}
        return replace(self, first=places[self.first], last=places[self.last], parts=parts)


@dataclass(slots=True)
class Run:
    """Consecutive units of one phase; positions count within it."""

    phase: str
    units: list[int]  # rows of Units
    kinds: list[Kind]
    labels: dict[int, Label] = field(default_factory=dict)  # by position
    cores: list[Core] = field(default_factory=list)
    counts_layers: bool = True  # False: nothing tells a second pass of the model from more layers

    def __len__(self) -> int:
        return len(self.units)

    def part(self, start: int, stop: int) -> Run:
        """A run of the units between two positions, with the cores that lie there."""
        found = Run(self.phase, self.units[start:stop], self.kinds[start:stop])
        found.cores = [core.moved(-start) for core in self.cores if start <= core.first and core.last < stop]
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


_POSITIONS = 2  # linear layers within the scores of an attention
_SKIPPED = frozenset({"communication", "optimizer", "grad_clip"})


def split_runs(units: Units, phase: list[str], step: NodeArray, graph: NodeArray) -> Iterator[Run]:
    """Cut the units where the phase, the step or the CUDA-graph launch changes.

    ``phase`` and ``step`` are per unit. ``graph`` is the graph launch a unit hangs from, -1 for none:
    the host knows no phase inside a graph, so those runs have the phase ``graph``. Units that began
    before the recording (no node, no launch) are in no run: nothing says where they stand.
    """
    current: Run | None = None
    key: tuple[str, int, int] | None = None
    for row in range(len(units)):
        kind = units.kinds[units.kind[row]]
        if kind.what in _SKIPPED or (units.node[row] < 0 and units.launch[row] < 0):
            continue
        in_graph = int(graph[row])
        phase_here = "graph" if in_graph >= 0 else phase[row]
        if phase_here in ("other", "optimizer"):
            continue
        here = (phase_here, int(step[row]), in_graph)
        if current is None or here != key:
            if current is not None:
                yield current
            current, key = Run(phase_here, [], []), here
        current.units.append(row)
        current.kinds.append(kind)
    if current is not None:
        yield current


def find_cores(run: Run) -> list[Core]:
    """Attention cores of a forward run, in order: fused operators, and bmm -> softmax -> bmm."""
    cores: list[Core] = []
    ahead: list[int] = []  # products that can be scores, the last ones first to be asked
    softmax: int | None = None
    between = 0  # linear layers behind the first of them
    for at, kind in enumerate(run.kinds):
        if kind.what == "core":
            cores.append(_fused(at, kind))
            ahead, softmax, between = [], None, 0
        elif kind.what == "bmm":
            before = [] if softmax is None else [p for p in ahead if p < softmax]
            scores = next((p for p in reversed(before) if _values(run, p, at)), None)
            if scores is not None and softmax is not None:
                core = _unfused(run, scores, softmax, at)
                core.parts.update(dict.fromkeys((p for p in before if p < scores), "attention.scores"))
                cores.append(core)
                ahead, softmax, between = [], None, 0
            elif (shape := run.shape(at)) is None or shape.k > 1:  # a table or a mask is no product of two
                ahead, softmax = ([*ahead, at] if softmax is None else [at]), None
        elif kind.what == "softmax" or "softmax" in kind.tags:
            softmax = at if ahead and softmax is None else softmax
        elif kind.what == "gemm":
            between += 1
            # relative positions are projected between the two products that make the scores
            if softmax is not None or between > _POSITIONS or run.shape(at) is None:
                ahead, softmax, between = [], None, 0
    return cores


def find_backward_cores(run: Run, forward: list[Run]) -> list[Core]:
    """Attention cores of a backward run.

    An unfused one, S = Q K^T, O = softmax(S) V, is known by dP = dO V^T, which has the size of S and which
    nothing else in a backward has. dV, of the size of dQ, mostly comes right before it; where it is put off
    it cannot be told from dQ.
    """
    scores = {
        _size(shape)
        for other in forward
        for core in other.cores
        if core.first != core.last and (shape := other.shape(core.first)) is not None
    }
    turned = {(batch, k, n, m) for batch, m, n, k in scores}  # dK as Q^T dS, transposed
    cores: list[Core] = []
    for at, kind in enumerate(run.kinds):
        shape = run.shape(at)
        if kind.what == "core":
            cores.append(_fused(at, kind))
        elif kind.what == "bmm" and shape is not None and _size(shape) in scores:
            cores.append(_unfused_backward(run, at, turned))
    return cores


def _size(shape: GemmShape) -> tuple[int, int, int, int]:
    return (shape.batch, shape.m, shape.n, shape.k)


def _unfused_backward(run: Run, at: int, turned: set[tuple[int, int, int, int]]) -> Core:
    """The core around one dP: what stands close before and behind it."""
    parts = {at: "attention.values"}
    batch = run.kinds[at].gemm
    before = next(
        (p for p in range(at - 1, max(-1, at - 4), -1) if run.kinds[p].what in ("gemm", "bmm")), None
    )
    if before is not None and _is_of(run, before, batch):
        parts[before] = "attention.values"  # dV
    softmax = None
    for place in range(at + 1, min(len(run), at + 24)):
        kind, shape = run.kinds[place], run.shape(place)
        if kind.what == "softmax" or kind.tags & {"softmax_backward"} or kind.name.startswith("_softmax"):
            parts[place] = "attention.softmax"
            softmax = place
        elif kind.what == "bmm" and softmax is not None and shape is not None:
            if _size(shape) in turned or before in parts:
                parts[place] = "attention.scores"  # dQ, dK
            if sum(component == "attention.scores" for component in parts.values()) == 2:
                break
        elif kind.what == "bmm":
            break
    return Core(min(parts), max(parts), parts, None, None, None, None, None, True)


def _is_of(run: Run, at: int, other: GemmShape | None) -> bool:
    shape = run.shape(at)
    return (
        run.kinds[at].what == "bmm"
        and shape is not None
        and other is not None
        and shape.batch == other.batch
        and _size(shape) != _size(other)
    )


def _fused(at: int, kind: Kind) -> Core:
    shape = kind.core
    if shape is None:
        return Core(at, at, {at: "attention.core"}, None, None, None, None, None, kind.backward)
    tokens = shape.query_tokens or (
        shape.batch * shape.query_len if shape.batch and shape.query_len else None
    )
    return Core(
        at,
        at,
        {at: "attention.core"},
        tokens,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.value_dim,
        kind.backward,
    )


def _values(run: Run, scores: int, at: int) -> bool:
    """Does the product at ``at`` reduce over the keys that the scores ran over?

    In local attention, whose queries and keys lie in chunks that overlap, it gives back the heads' width.
    """
    first, second = run.shape(scores), run.shape(at)
    if first is None or second is None:
        return first is second  # without shapes the order alone: product, softmax, product
    if first.batch == second.batch and first.n == second.k and first.m == second.m:
        return True
    queries, chunked = second.batch * second.m, first.batch * first.m
    return first.k == second.n < second.k and first.n < second.k and queries <= chunked <= 4 * queries


def _unfused(run: Run, scores: int, softmax: int, values: int) -> Core:
    first, second = run.shape(scores), run.shape(values)
    weights = next((t for t in run.kinds[softmax].tensors if len(t) == 4), None)
    heads = weights[1] if weights and first and first.batch % weights[1] == 0 else None
    parts = {scores: "attention.scores", softmax: "attention.softmax", values: "attention.values"}
    for at in range(scores + 1, values):
        if at not in parts:
            inside = run.kinds[at]
            size = first.batch * first.m * first.n if first else None
            turns = not any(prod(t) == size for t in inside.tensors) and (
                inside.what == "copy" or inside.tags == {"layout"}
            )
            around = "attention.other" if turns else "attention.softmax"
            makes = "attention.scores" if inside.what == "bmm" and at < softmax else around
            parts[at] = "dropout" if inside.what == "dropout" else makes
            if inside.what == "gemm":
                del parts[at]
    tokens = first.batch // heads * first.m if heads and first else None
    return Core(
        scores, values, parts, tokens, heads, None, first.k if first else None, second.n if second else None
    )
