"""What the step's time did, and what a test over the steps says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import fsum
from statistics import median

from tracelens.comparison import words
from tracelens.comparison.steps import LEVEL, Kind, Shift, rank_test, shift, smallest_p
from tracelens.results import StepTime
from tracelens.results.comparison import StepChange, StepKind, StepState

#: Of the step: what is smaller has no practical size. No change is claimed only where more is excluded.
PRACTICAL = 0.02


def step_change(
    before: Sequence[float],
    after: Sequence[float],
    *,
    medians: tuple[StepTime, StepTime],
    identical: bool,
    unprofiled_ms: tuple[float | None, float | None] = (None, None),
    unprofiled: Kind = ((), ()),
    what: str = "steps",
) -> StepChange:
    """Judge the step's time from times in ms on both sides, in their order, at least one on each.

    Where they are too few for a test, the steps timed without the profiler (``unprofiled``) are tested.

    ``what`` the times are of ("steps", "runs"), for the sentences. Steps that are short and long by turns are
    compared each with its own kind, where they are enough for that test; their medians are those of the
    kinds, in the shares of the pattern.
    """
    kinds = kinds_of_steps(before, after) if what == "steps" else []
    old, new = _typical(medians, kinds, before)
    by_kind = bool(kinds) and _smallest(kinds) < LEVEL
    tested: list[Kind] = kinds if by_kind else [(before, after)]
    diff = new.median - old.median
    frac = diff / old.median if old.median else None
    least, moved = _smallest(tested), diff
    instead = least >= LEVEL and _instead(unprofiled, diff)
    if instead:
        tested, by_kind = [unprofiled], False
        least, moved = _smallest(tested), median(unprofiled[1]) - median(unprofiled[0])
    p = rank_test(*tested) if least < LEVEL else None
    left = shift(*tested)
    state: StepState = "identical" if identical else _state(p, moved, left, PRACTICAL * old.median)
    sides = (len(unprofiled[0]), len(unprofiled[1])) if instead else (len(before), len(after))
    without = unprofiled_ms
    return StepChange(
        state=state,
        before=old,
        after=new,
        diff_ms=diff,
        diff_frac=frac,
        p=p,
        smallest_p=least,
        test=words.test(what, by_kind=by_kind, unprofiled=instead),
        shift_low_ms=left.low,
        shift_high_ms=left.high,
        shift_level=left.level,
        unprofiled_before_ms=without[0],
        unprofiled_after_ms=without[1],
        unprofiled_diff_frac=without[1] / without[0] - 1 if without[0] and without[1] else None,
        why=words.tested(state, sides, what, PRACTICAL),
        kinds=[StepKind(spread(one), spread(other)) for one, other in kinds],
        by_kind=by_kind,
        unprofiled_steps=sides if instead else None,
    )


def _instead(unprofiled: Kind, diff: float) -> bool:
    """Are these enough for a test, and do their medians differ to the same side?"""
    before, after = unprofiled
    if smallest_p((len(before), len(after))) >= LEVEL:
        return False
    return (median(after) - median(before)) * diff >= 0


def _typical(
    medians: tuple[StepTime, StepTime], kinds: Sequence[Kind], before: Sequence[float]
) -> tuple[StepTime, StepTime]:
    """The sides' steps: their medians, or of steps that take turns the mean of a short and a long one."""
    if not kinds:
        return medians
    old, new = typical(kinds, before)
    return replace(medians[0], median=old), replace(medians[1], median=new)


def mixed_otherwise(step: StepChange) -> bool:
    """Did the sides record short and long steps in other shares, so that means over them differ anyway?"""
    if not step.kinds:
        return False
    short, long = step.kinds
    return short.before.n * long.after.n != short.after.n * long.before.n


def spread(times: Sequence[float]) -> StepTime:
    """Median, least and most of some times."""
    return StepTime(median(times), min(times), max(times), len(times))


def _smallest(kinds: Sequence[Kind]) -> float:
    return smallest_p(*((len(before), len(after)) for before, after in kinds))


def _state(p: float | None, diff: float, left: Shift, practical_ms: float) -> StepState:
    """Seen is a difference that the test sees and whose interval lies on the side of the medians'."""
    if p is None:
        return "too_few_steps"
    if p < LEVEL and ((diff < 0 and left.high <= 0) or (diff > 0 and left.low >= 0)):
        return "faster" if diff < 0 else "slower"
    return "no_change" if max(-left.low, left.high, abs(diff)) <= practical_ms else "inconclusive"


# Steps that are short and long by turns, as where an optimizer updates some weights every other step.
# Mixed, their spread hides a change of either kind; so each kind is compared with its own.

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
