"""Every family that is drawn, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.paper import alignment, fused, layers, sizes, transformer, waves
from benchmarks.paper.figure import Figure
from benchmarks.paper.source import Published, Source

FAMILIES: tuple[Callable[[Source, Published], Figure], ...] = (
    sizes.sizes,
    waves.waves,
    waves.own_waves,
    alignment.alignment,
    alignment.dense_alignment,
    sizes.batches,
    sizes.batched_sizes,
    transformer.scores_and_values,
    transformer.linears,
    transformer.vocabulary,
    fused.fused,
    layers.heads,
    layers.swiglu,
    layers.equal_parameters,
)


def figures(here: Source, paper: Published) -> list[Figure]:
    """One figure for each family, signed with whose it is; without a measurement it has nothing to draw."""
    if here.dry_run:  # toy shapes: nothing of the paper belongs beside them, and they say nothing
        paper = replace(paper, raw=None)
    found = [
        replace(build(here, paper), gpu=here.title, dtype=here.dtype, date=here.date, dry_run=here.dry_run)
        for build in FAMILIES
    ]
    return [replace(one, differs=(), says=(), table=()) for one in found] if here.dry_run else found
