"""Do two sets of steps differ? A rank test, because a single long step must not decide.

The test is that of Mann and Whitney (Ann. Math. Statist. 18, 1947, 50-60), two-sided. Up to 60 steps its
distribution is counted exactly, ties included, by the shift algorithm of Streitberg and Röhmel (Statistical
Software Newsletter 12, 1986, 10-17); beyond, it is taken as normal with the correction for ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tracelens.sums import summed

_EXACT = 60  # steps of both sides together
LEVEL = 0.05  # below it a difference counts as seen


#: Times before and after of steps that do the same; each step is compared within its own kind.
Kind = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Shift:
    """Between ``low`` and ``high`` lies the difference, with probability ``level``."""

    low: float
    high: float
    level: float


def rank_test(*kinds: Kind) -> float:
    """Probability of ranks at least this uneven if both sides of each kind came from the same distribution.

    >>> round(rank_test(([1, 2, 3, 4], [5, 6, 7, 8])), 4)  # 2 of the 70 ways to choose 4 of 8
    0.0286
    >>> rank_test(([1, 2, 3], [1, 2, 3]))
    1.0
    >>> round(rank_test(([1, 2, 3], [4, 5, 6]), ([11, 12, 13], [14, 15, 16])), 4)  # 2 of 20 * 20
    0.005
    """
    ranks = [_doubled_ranks([*before, *after]) for before, after in kinds]
    counts = [len(before) for before, _ in kinds]
    observed = sum(sum(some[:count]) for some, count in zip(ranks, counts, strict=True))
    expected = sum(count * (len(some) + 1) for some, count in zip(ranks, counts, strict=True))  # doubled
    if sum(map(len, ranks)) > _EXACT:
        return _normal(ranks, counts, abs(observed - expected))
    ways = _together([_rank_sums(some, count) for some, count in zip(ranks, counts, strict=True)])
    extreme = sum(many for value, many in ways.items() if abs(value - expected) >= abs(observed - expected))
    return extreme / _choices([(count, len(some) - count) for some, count in zip(ranks, counts, strict=True)])


def smallest_p(*counts: tuple[int, int]) -> float:
    """The least that the test can say of so many steps of each kind, when all of one side are shorter.

    >>> smallest_p((3, 3)), smallest_p((1, 1)), round(smallest_p((2, 2), (2, 2)), 3)
    (0.1, 1.0, 0.056)
    """
    return min(1.0, 2 / _choices(counts))


def shift(*kinds: Kind) -> Shift:
    """The differences after minus before that the test does not exclude (Moses' interval).

    The k-th smallest and k-th largest of all pairwise differences within a kind; k as large as 95 % allow.

    >>> shift(([10.0, 11.0, 12.0, 13.0], [9.0, 9.5, 10.5, 11.5]))
    Shift(low=-4.0, high=1.5, level=0.9714285714285714)
    """
    pairs = sorted(b - a for before, after in kinds for b in after for a in before)
    k, level = _depth([(len(before), len(after)) for before, after in kinds])
    return Shift(pairs[k - 1], pairs[-k], level)


def _choices(counts: Sequence[tuple[int, int]]) -> int:
    """In how many ways the steps of each kind could be shared out."""
    return math.prod(math.comb(before + after, before) for before, after in counts)


def _depth(counts: Sequence[tuple[int, int]]) -> tuple[int, float]:
    """(k, level): how many pairwise differences may be left out at each end."""
    if sum(map(sum, counts)) > _EXACT:
        pairs = sum(before * after for before, after in counts)
        spread = math.sqrt(sum(a * b * (a + b + 1) for a, b in counts) / 12)
        return max(1, math.floor(pairs / 2 - 1.96 * spread)), 1 - LEVEL
    # without ties
    ways = _together([_rank_sums([2 * rank for rank in range(1, a + b + 1)], a) for a, b in counts])
    least = sum(before * (before + 1) for before, _ in counts)  # doubled rank sum where U is 0
    everything = _choices(counts)
    below, k = 0, 0
    while k == 0 or 2 * (below + ways.get(least + 2 * k, 0)) <= LEVEL * everything:
        below += ways.get(least + 2 * k, 0)
        k += 1
    return k, max(0.0, 1 - 2 * below / everything)


def _together(every: Sequence[dict[int, int]]) -> dict[int, int]:
    """How many ways lead to each sum over all kinds."""
    found = {0: 1}
    for ways in every:
        pairs = product(found.items(), ways.items())
        found = summed((one + other, many * more) for (one, many), (other, more) in pairs)
    return found


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, 1 for the smallest; equal values share their mean rank."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0] * len(values)
    start = 0
    while start < len(order):
        stop = start
        while stop < len(order) and values[order[stop]] == values[order[start]]:
            stop += 1
        for at in order[start:stop]:
            ranks[at] = start + stop + 1
        start = stop
    return ranks


def _rank_sums(ranks: Sequence[int], count: int) -> dict[int, int]:
    """How many choices of ``count`` ranks have each sum."""
    return _counted(tuple(sorted(ranks)), count)


@lru_cache(maxsize=64)  # without ties the ranks are always the same
def _counted(ranks: tuple[int, ...], count: int) -> dict[int, int]:
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(count))]
    for rank in ranks:
        for chosen in range(count, 0, -1):
            here = ways[chosen]
            for value, many in ways[chosen - 1].items():
                here[value + rank] = here.get(value + rank, 0) + many
    return ways[count]


def _normal(ranks: Sequence[Sequence[int]], counts: Sequence[int], distance: int) -> float:
    """Two-sided tail with the correction for continuity; ``distance`` is of the doubled rank sums."""
    variance = 0.0
    for some, count in zip(ranks, counts, strict=True):
        total = len(some)
        mean = total + 1
        variance += count * (total - count) / total / (total - 1) * sum((rank - mean) ** 2 for rank in some)
    if variance == 0:
        return 1.0
    return math.erfc(max(0.0, distance - 1) / math.sqrt(2 * variance))
