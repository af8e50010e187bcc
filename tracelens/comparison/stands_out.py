"""Which rank stands out of the others, and by what; none where none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from tracelens.comparison.same_work import spread_around
from tracelens.comparison.step_change import PRACTICAL
from tracelens.results.folders import FilePair, PairTime, RankPart, Side, StandsOut

_PARTS: dict[RankPart, Callable[[PairTime], float]] = {
    "idle": lambda time: time.idle_ms,
    "computing": lambda time: time.computing_ms,
    "exposed_communication": lambda time: time.exposed_ms,
}


def stand_out(pairs: Sequence[FilePair]) -> list[StandsOut]:
    """Ranks that take more of a part of the step than the others do: fewer than half of them, beyond a gap.

    The widest gap in the upper half parts them from the others. It counts where it is more than 2 % of the
    step, and its upper side lies beyond the others' spread.
    """
    sides: tuple[tuple[Side, list[PairTime]], ...] = (
        ("before", [pair.before for pair in pairs]),
        ("after", [pair.after for pair in pairs]),
    )
    found = []
    for side, times in sides:
        least = PRACTICAL * median(time.step_ms for time in times)
        for part, read in _PARTS.items():
            known = sorted(
                ((read(time), pair.name) for time, pair in zip(times, pairs, strict=True)), reverse=True
            )
            many = above([ms for ms, _ in known], least)
            for ms, name in known[:many]:
                found.append(StandsOut(name, side, part, ms, known[-1][0], known[many][0]))
    return found


def above(values: Sequence[float], least: float) -> int:
    """How many of the values, the largest first, stand out of the others."""
    splits = range(1, (len(values) + 1) // 2)
    if not splits:
        return 0
    at = max(splits, key=lambda split: values[split - 1] - values[split])
    others = values[at:]
    middle = median(others)
    beyond = values[at - 1] - middle > spread_around(middle, others)
    return at if beyond and values[at - 1] - others[0] > least else 0
