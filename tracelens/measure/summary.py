"""What a run found that is worth telling: the best of each type, the worst step from one size to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from tracelens.hardware.measurements import GemmMeasurement
from tracelens.measure.cases import DTYPES

#: Shapes this near each other do the same work: one side differs by at most 64 and by at most 5 %.
_NEAR, _NEAR_FRAC = 64, 0.05
#: Of the median. More than this between the 10th and the 90th percentile is no clean measurement.
UNSTEADY_FRAC = 0.05


@dataclass(frozen=True, slots=True)
class Cliff:
    """A product that takes longer than a larger neighbour."""

    slow: GemmMeasurement
    fast: GemmMeasurement  # the same, but one side larger

    @property
    def factor(self) -> float:
        return self.slow.time_us / self.fast.time_us


def ceilings(rows: Iterable[GemmMeasurement]) -> list[GemmMeasurement]:
    """The product with the highest throughput of each dtype."""
    best: dict[str, GemmMeasurement] = {}
    for row in rows:
        if row.dtype not in best or row.tflops > best[row.dtype].tflops:
            best[row.dtype] = row
    return [best[dtype] for dtype in DTYPES if dtype in best]


def worst_cliff(rows: Sequence[GemmMeasurement]) -> Cliff | None:
    """The product that would gain most from one side being a little larger, if any would.

    Time against time: the larger neighbour does all the work of the smaller one and is done sooner.
    """
    worst: Cliff | None = None
    for side in ("m", "n", "k"):
        lines: dict[Hashable, list[GemmMeasurement]] = defaultdict(list)
        for row in rows:
            others = tuple(getattr(row, name) for name in ("m", "n", "k") if name != side)
            lines[(*others, row.batch, row.dtype, row.out_dtype, row.layout)].append(row)
        for line in lines.values():
            line.sort(key=lambda row: int(getattr(row, side)))
            for index, slow in enumerate(line):
                for fast in line[index + 1 :]:
                    size, larger = getattr(slow, side), getattr(fast, side)
                    if larger - size > min(_NEAR, _NEAR_FRAC * size):
                        break
                    cliff = Cliff(slow, fast)
                    if cliff.factor > (worst.factor if worst is not None else 1.0):
                        worst = cliff
    return worst


def unsteady(rows: Sequence[GemmMeasurement]) -> list[GemmMeasurement]:
    """Products whose repeats differ too much."""
    return [row for row in rows if row.spread_frac is not None and row.spread_frac > UNSTEADY_FRAC]
