"""Steps that are short and long by turns, as where an optimizer updates some weights every other step.

Mixed, their spread hides a change of either kind; so each kind is compared with its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from statistics import median

from tracelens.comparison.steps import Kind

#: The gap between short and long steps: so many times what steps of a kind differ by, and so much of a step.
_APART, _GAP = 2.0, 0.02
#: Steps of a kind on each side; fewer show no pattern.
_LEAST = 2


def kinds_of_steps(before: Sequence[float], after: Sequence[float]) -> list[Kind]:
    """The short and the long steps where both sides, in order, take turns in one pattern; else nothing.

    >>> kinds_of_steps([59.5, 62.4, 59.6, 62.5], [61.5, 59.5, 61.7, 59.1])
    [([59.5, 59.6], [59.5, 59.1]), ([62.4, 62.5], [61.5, 61.7])]
    >>> kinds_of_steps([59.5, 62.4, 59.6, 62.5], [59.5, 59.6, 59.1, 59.3])
    []
    """
    old, new = _pattern(before), _pattern(after)
    turned = [old[at:] + old[:at] for at in range(len(old))]
    if not old or new not in turned:
        return []
    sides = [
        [[ms for at, ms in enumerate(times) if pattern[at % len(pattern)] is long] for long in (False, True)]
        for times, pattern in ((before, old), (after, new))
    ]
    return list(zip(*sides, strict=True)) if min(len(one) for side in sides for one in side) >= _LEAST else []


def typical(kinds: Sequence[Kind], pattern_of: Sequence[float]) -> tuple[float, float]:
    """Of steps that take turns, what one takes on average on both sides: medians, in the pattern's shares.

    A median over short and long steps is of whichever kind the recording happens to hold more of.

    >>> typical([([58.5, 58.6, 58.7], [59.5, 59.5]), ([61.8, 61.8], [62.5, 62.5])], [58.6, 61.8] * 2)
    (60.2, 61.0)
    """
    pattern = _pattern(pattern_of)
    shares = (pattern.count(False) / len(pattern), pattern.count(True) / len(pattern))
    old, new = (
        fsum(share * median(kind[side]) for share, kind in zip(shares, kinds, strict=True)) for side in (0, 1)
    )
    return old, new


def _pattern(times: Sequence[float]) -> list[bool]:
    """Which step of a period is long, parted from the short ones by the widest gap; empty where none is."""
    if len(times) < 2 * _LEAST:
        return []
    ordered = sorted(times)
    gap, at = max((high - low, at) for at, (low, high) in enumerate(pairwise(ordered)))
    spread = max(ordered[at] - ordered[0], ordered[-1] - ordered[at + 1])
    if gap <= max(_APART * spread, _GAP * median(times)):
        return []
    long = [ms > ordered[at] for ms in times]
    for period in range(2, len(times) // 2 + 1):
        if long[period:] == long[:-period]:
            return long[:period]
    return []
