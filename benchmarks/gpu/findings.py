"""What the measured products say by themselves: where a small change of a dimension costs most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tracelens.hardware.measurements import GemmMeasurement

#: Neighbours differ by at most this in one dimension, and not at all in the others.
NEAR_FRAC = 0.02
#: Shorter products are floor and launch, not shape.
SHORTEST_US = 30.0
#: Timings less sure than this say nothing about neighbours.
MOST_SPREAD_FRAC = 0.05


@dataclass(frozen=True, slots=True)
class Cliff:
    """Two near shapes, and the share of the throughput that one of them lacks."""

    fast: GemmMeasurement
    slow: GemmMeasurement
    dimension: str  # m | n | k

    @property
    def lost_frac(self) -> float:
        return 1 - self.slow.tflops / self.fast.tflops


def power_of_two(value: int) -> int:
    """The largest power of two that divides ``value``.

    >>> power_of_two(50257), power_of_two(50304), power_of_two(4096)
    (1, 128, 4096)
    """
    return value & -value


def cliffs(gemms: Iterable[GemmMeasurement]) -> Iterator[Cliff]:
    """Every two neighbours along M, N or K, the faster one first."""
    usable = [
        one for one in gemms if one.time_us >= SHORTEST_US and (one.spread_frac or 0) <= MOST_SPREAD_FRAC
    ]
    for dimension in ("m", "n", "k"):
        lines: dict[tuple[object, ...], list[GemmMeasurement]] = defaultdict(list)
        for one in usable:
            rest = (getattr(one, other) for other in ("m", "n", "k") if other != dimension)
            lines[(*rest, one.batch, one.dtype, one.layout)].append(one)
        for line in lines.values():
            line.sort(key=lambda one: int(getattr(one, dimension)))
            for first, second in pairwise(line):
                low, high = getattr(first, dimension), getattr(second, dimension)
                if low < high <= low * (1 + NEAR_FRAC):
                    slow, fast = sorted((first, second), key=lambda one: one.tflops)
                    yield Cliff(fast, slow, dimension)
