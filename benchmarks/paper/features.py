"""Numbers that describe a curve: where it falls, the tile that its falls fit, where it reaches half."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.gpu.findings import power_of_two
from benchmarks.paper.figure import Point
from tracelens.gemm.efficiency import tiles

#: Smaller differences between neighbours are not called a fall.
FALL_FRAC = 0.05
#: Points further apart than this ratio differ by their size first.
NEAR = 1.3
#: Output tiles that NVIDIA's libraries use for large products. Square first: of tiles that a curve cannot
#: tell apart, because they need the same number of waves, the first is taken.
_TILES = ((128, 128), (256, 128), (128, 256), (256, 256), (192, 128), (128, 192), (256, 192), (192, 256),
          (64, 128), (128, 64), (64, 256), (256, 64), (192, 192), (64, 192), (192, 64), (64, 64))  # fmt: skip
#: Fewer points show no period.
_LEAST_POINTS = 12


@dataclass(frozen=True, slots=True)
class Fall:
    """Two neighbours of a curve, the second slower."""

    before: Point
    after: Point

    @property
    def lost_frac(self) -> float:
        return 1 - self.after.tflops / self.before.tflops


@dataclass(frozen=True, slots=True)
class WaveFit:
    """The tile whose waves follow a curve over N best."""

    tile: tuple[int, int]
    r: float  # Pearson, of wave times tile efficiency with the throughput
    explained: int  # of the curve's falls, those that the waves foresee
    falls: int
    period: float  # columns of one full wave


def falls(points: Sequence[Point], least_frac: float = FALL_FRAC) -> list[Fall]:
    """Where the next larger x is slower by more than ``least_frac``."""
    found = [Fall(before, after) for before, after in pairwise(points)]
    return [one for one in found if one.lost_frac > least_frac]


def deepest(points: Sequence[Point]) -> Fall | None:
    """The largest difference between near neighbours, whichever of them is the slower one."""
    near = (pair for pair in pairwise(points) if pair[1].x <= NEAR * pair[0].x)
    both = (sorted(pair, key=lambda point: -point.tflops) for pair in near)
    return max((Fall(fast, slow) for fast, slow in both), key=lambda one: one.lost_frac, default=None)


def period(found: Sequence[Fall]) -> float | None:
    """The median distance between falls; None for fewer than three of them."""
    gaps = [second.after.x - first.after.x for first, second in pairwise(found)]
    return statistics.median(gaps) if len(gaps) >= 2 else None


def utilization(m: int, n: int, *, tile: tuple[int, int], sms: int) -> float:
    """Share of the SM-rounds' area that is output: tile and wave quantization together.

    >>> utilization(2304, 1536, tile=(128, 128), sms=108), round(
    ...     utilization(2304, 1600, tile=(128, 128), sms=108), 3)
    (1.0, 0.694)
    """
    rounds = math.ceil(tiles(m, n, tile=tile) / sms)
    return m * n / (rounds * sms * tile[0] * tile[1])


def wave_fit(points: Sequence[Point], *, m: int, sms: int) -> WaveFit | None:
    """The best of the usual tiles for a curve over N at ``m`` rows; None for few points, or a flat one."""
    seen = [point.tflops for point in points]
    if len(points) < _LEAST_POINTS or max(seen) == min(seen):
        return None
    found = falls(points)
    best: WaveFit | None = None
    for tile in _TILES:
        foreseen = {point.x: utilization(m, round(point.x), tile=tile, sms=sms) for point in points}
        if len(set(foreseen.values())) < 2:
            continue
        r = statistics.correlation(list(foreseen.values()), seen)
        if best is None or r > best.r + 1e-9:
            explained = sum(foreseen[one.after.x] < (1 - FALL_FRAC) * foreseen[one.before.x] for one in found)
            best = WaveFit(tile, r, explained, len(found), sms / math.ceil(m / tile[0]) * tile[1])
    return best


def half_reached(points: Sequence[Point]) -> float | None:
    """The smallest x at half of the curve's best throughput."""
    best = max((point.tflops for point in points), default=0.0)
    return next((point.x for point in points if point.tflops >= best / 2), None)


def by_power(
    points: Iterable[Point], most: int, size: Callable[[Point], int] = lambda point: round(point.x)
) -> dict[int, tuple[Point, ...]]:
    """Points by the largest power of two in their size, ``most`` and above together."""
    classes: dict[int, list[Point]] = defaultdict(list)
    for point in points:
        classes[min(power_of_two(size(point)), most)].append(point)
    return {power: tuple(classes[power]) for power in sorted(classes)}


def mean(points: Sequence[Point]) -> float:
    return statistics.fmean(point.tflops for point in points)
