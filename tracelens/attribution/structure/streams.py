"""Two models of a step whose kernels a compiler mixes: it runs what has its inputs, of either model.

What a unit works on tells them apart: the tokens of the one model or of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Kind

_MIXED = 3  # changes from the one to the other between neighbouring cores, at least
_CORES = 2  # of each


@dataclass(frozen=True, slots=True)
class Stream:
    """The units of one model among those of ``whole``: ``kept`` says where each stands there."""

    whole: Run
    kept: list[int]
    run: Run

    def give_back(self) -> None:
        """The labels to the whole; layers follow those of the models before."""
        if self.run is self.whole:
            return
        known = [label.layer for label in self.whole.labels.values() if label.layer is not None]
        base = max(known, default=-1) + 1
        if base:
            self.whole.joints.add(base)
        for at, label in self.run.labels.items():
            layer = None if label.layer is None else label.layer + base
            self.whole.labels[self.kept[at]] = replace(label, layer=layer)


def streams(run: Run) -> Iterator[Stream]:
    """The models of a forward whose attention cores take turns; the run itself where they do not."""
    tokens = [core.tokens for core in run.cores]
    counts = Counter(tokens)
    changes = sum(one != other for one, other in pairwise(tokens))
    compiled = any(kind.what == "fused" for kind in run.kinds)
    if None in counts or len(counts) < 2 or changes < _MIXED or min(counts.values()) < _CORES or not compiled:
        yield Stream(run, [], run)
        return
    known = {count for count in counts if count is not None}
    places: dict[int, list[int]] = {count: [] for count in known}
    current = tokens[0]
    of_core = {at: core.tokens for core in run.cores for at in core.parts}
    for at, kind in enumerate(run.kinds):
        found = {of_core[at]} if at in of_core else _rows(kind) & known
        current = found.pop() if len(found) == 1 else current
        places[current or 0].append(at)
    for count, kept in places.items():
        left = Run(run.phase, [run.units[at] for at in kept], [run.kinds[at] for at in kept])
        left.counts_layers, left.trained = run.counts_layers, run.trained
        index = {at: number for number, at in enumerate(kept)}
        own = [core for core in run.cores if core.tokens == count]
        left.cores = [
            replace(core, first=index[core.first], last=index[core.last],
                    parts={index[at]: part for at, part in core.parts.items() if at in index})
            for core in own if {core.first, core.last} <= index.keys()
        ]  # fmt: skip
        yield Stream(run, kept, left)


def _rows(kind: Kind) -> set[int]:
    """What its tensors can have as many rows of: batch times length, also of heads apart."""
    if kind.gemm is not None and kind.gemm.batch == 1:
        return {kind.gemm.m}
    leading = {prod(t[:size]) for t in kind.tensors for size in range(1, len(t) + 1)}
    return leading | {t[0] * t[2] for t in kind.tensors if len(t) == 4}
