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

_EXACT = 60  # steps of both sides together
LEVEL = 0.05  # below it a difference counts as seen


@dataclass(frozen=True, slots=True)
class Shift:
    """Between ``low`` and ``high`` lies the difference, with probability ``level``."""

    low: float
    high: float
    level: float


def rank_test(before: Sequence[float], after: Sequence[float]) -> float:
    """Probability of ranks at least this uneven if both came from the same distribution.

    >>> round(rank_test([1, 2, 3, 4], [5, 6, 7, 8]), 4)  # 2 of the 70 ways to choose 4 of 8
    0.0286
    >>> rank_test([1, 2, 3], [1, 2, 3])
    1.0
    """
    ranks = _doubled_ranks([*before, *after])
    count, total = len(before), len(ranks)
    observed, expected = sum(ranks[:count]), count * (total + 1)  # both doubled
    if total > _EXACT:
        return _normal(ranks, count, abs(observed - expected))
    ways = _rank_sums(ranks, count)
    extreme = sum(many for value, many in ways.items() if abs(value - expected) >= abs(observed - expected))
    return extreme / math.comb(total, count)


def smallest_p(before: int, after: int) -> float:
    """The least that the test can say of so many steps, when all of one side are shorter.

    >>> smallest_p(3, 3), smallest_p(1, 1)
    (0.1, 1.0)
    """
    return min(1.0, 2 / math.comb(before + after, before))


def shift(before: Sequence[float], after: Sequence[float]) -> Shift:
    """The differences after minus before that the test does not exclude (Moses' interval).

    The k-th smallest and k-th largest of all pairwise differences; k as large as 95 % allow.

    >>> shift([10.0, 11.0, 12.0, 13.0], [9.0, 9.5, 10.5, 11.5])
    Shift(low=-4.0, high=1.5, level=0.9714285714285714)
    """
    pairs = sorted(b - a for a in before for b in after)
    k, level = _depth(len(before), len(after))
    return Shift(pairs[k - 1], pairs[-k], level)


def _depth(before: int, after: int) -> tuple[int, float]:
    """(k, level): how many pairwise differences may be left out at each end."""
    total = before + after
    if total > _EXACT:
        spread = math.sqrt(before * after * (total + 1) / 12)
        return max(1, math.floor(before * after / 2 - 1.96 * spread)), 1 - LEVEL
    ways = _rank_sums([2 * rank for rank in range(1, total + 1)], before)
    least, below, k = before * (before + 1), 0, 0  # doubled rank sum where U is 0
    everything = math.comb(total, before)
    while k == 0 or 2 * (below + ways.get(least + 2 * k, 0)) <= LEVEL * everything:
        below += ways.get(least + 2 * k, 0)
        k += 1
    return k, max(0.0, 1 - 2 * below / everything)


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


def _normal(ranks: Sequence[int], count: int, distance: int) -> float:
    """Two-sided tail with the correction for continuity; ``distance`` is of the doubled rank sum."""
    total = len(ranks)
    mean = total + 1
    variance = count * (total - count) / total / (total - 1) * sum((rank - mean) ** 2 for rank in ranks)
    if variance == 0:
        return 1.0
    return math.erfc(max(0.0, distance - 1) / math.sqrt(2 * variance))
