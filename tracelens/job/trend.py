"""Does a figure rise or fall from run to run? Kendall's rank test against the order, and the median slope.

The test is that of Mann (Econometrica 13, 1945, 245-259), two-sided, its distribution counted exactly; the
slope is the median of those of all pairs (Theil 1950, Sen 1968). One run that stands out turns neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median

#: Many figures are asked of each store, so less than the usual 5 % counts as seen.
_SURE = 0.01
#: Older runs count no more: the work grows with the square of them.
MOST_RUNS = 100


def slope(values: Sequence[float]) -> float | None:
    """The change from one value to the next, where the values rise or fall; None where no trend is seen.

    >>> slope([1.0, 1.25, 1.125, 1.375, 1.5, 1.625, 1.75])
    0.125
    >>> slope([1.0, 1.1, 1.2, 1.3]), slope([1.0, 1.0, 1.1, 1.0, 1.0, 1.0, 1.2])  # too few; not in order
    (None, None)
    """
    pairs = list(combinations(enumerate(values), 2))
    if not pairs:
        return None
    score = sum((b > a) - (b < a) for (_, a), (_, b) in pairs)
    if probability(len(values), abs(score)) > _SURE:
        return None
    return median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def probability(many: int, score: int) -> float:
    """Of a score at least so far from 0 in a random order of distinct values."""
    ways = [1]  # by number of pairs out of order
    for place in range(1, many):
        longer = [0] * (len(ways) + place)
        for at, count in enumerate(ways):
            for more in range(place + 1):
                longer[at + more] += count
        ways = longer
    pairs = len(ways) - 1
    return sum(count for at, count in enumerate(ways) if abs(pairs - 2 * at) >= score) / math.factorial(many)
