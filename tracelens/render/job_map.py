"""A map of rank and step for a large job: which ranks take long, when, and in which node they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from tracelens.results.job import Job

_STEPS, _ROWS = 40, 256
_LEAST_SCALE = 0.05  # the darkest shade is that much above the median, or the largest there is
_LEVELS = 8
_WIDTH, _HEIGHT, _BAND = 720, 640, 10


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rank by step, and how to read it."""

    svg: Markup
    each: int  # ranks of a row
    most: float  # above the median, as a share of it, of the darkest shade
    ranks: list[str]  # the first and the last
    steps: list[int]
    nodes: int  # whose ranks the band at the left parts; 0: not known


def heat_map(job: Job) -> HeatMap:
    """Rank by step: the time of each step without waiting for others, as one path per shade.

    With hundreds of ranks a row is that of several neighbours, the longest of them.
    """
    steps = job.steps[:_STEPS]
    own = np.array([np.subtract(row.steps_ms, row.waits_ms)[: len(steps)] for row in job.ranks])
    middle = np.median(own, axis=0)
    over = np.maximum(0, own - middle) / np.maximum(middle, 1e-9)
    each = 1 << max(0, (len(over) - 1) // _ROWS).bit_length()
    worst = np.stack([over[at : at + each].max(axis=0) for at in range(0, len(over), each)])
    most = max(_LEAST_SCALE, float(worst.max()))
    level = np.minimum((worst / most * _LEVELS).astype(int), _LEVELS - 1)
    width, height = _WIDTH // len(steps), max(2, min(8, _HEIGHT // len(worst)))
    paths = []
    for shade in range(_LEVELS):
        rows, columns = np.nonzero(level == shade)
        cells = "".join(
            f"M{_BAND + column * width} {row * height}h{width - 1}v{height}h-{width - 1}z"
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        )
        if cells:
            paths.append(f'<path class="l{shade}" d="{cells}"/>')
    band, nodes = _band(job, height / each)
    high, wide = height * len(worst), _BAND + width * len(steps)
    label = (
        f"Time of each step without waiting, by rank (down) and step (across), {len(over)} by {len(steps)}"
    )
    svg = (
        f'<svg class="map" role="img" aria-label="{label}" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}">{band}{"".join(paths)}</svg>'
    )
    names = [job.ranks[0].name, job.ranks[-1].name]
    return HeatMap(Markup(svg), each, most, names, steps, nodes)


def _band(job: Job, height: float) -> tuple[str, int]:
    """Every second node as a mark beside its ranks, and the number of nodes."""
    nodes = [block.ranks for block in job.blocks if block.kind == "node"]
    row = {one.name: at for at, one in enumerate(job.ranks)}
    spans = sorted((row[ranks[0]], len(ranks)) for ranks in nodes)
    marks = "".join(f"M0 {first * height:g}h{_BAND - 3}v{many * height:g}H0z" for first, many in spans[1::2])
    return (f'<path class="node" d="{marks}"/>' if marks else ""), len(nodes)
