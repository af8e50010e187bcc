"""GPU time by component and phase of two reports, with kernels that only one of them places in that place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelens.comparison.gemms import differ
from tracelens.results import Report

_UNKNOWN = "unattributed"
_NONE = 1e-6  # kernels per step: what is left of a row by rounding


@dataclass(frozen=True, slots=True)
class PerStep:
    """Time and number of kernels; ``often``: their number in a step that has any."""

    ms: float = 0.0
    kernels: float = 0.0
    often: float = 0.0

    def plus(self, other: PerStep, times: float = 1.0) -> PerStep:
        """The sum with so many times another."""
        return PerStep(
            self.ms + times * other.ms, self.kernels + times * other.kernels, self.often + times * other.often
        )


Places = dict[tuple[str, str], PerStep]  # by component and phase


def places(before: Report, after: Report) -> tuple[Places, Places, tuple[float, float]]:
    """Both sides, and the ms of each that are placed as on the other.

    Kernels of one name that run equally often in a phase on both sides are the same ones, though a trace
    without shapes or modules leaves some of them unattributed: they stand where the other trace has them.
    """
    sides, names = (_of(before), _of(after)), (_by_name(before), _by_name(after))
    placed = [0.0, 0.0]
    for key in (key for key in names[0] if key in names[1]):  # in their order: sums of floats depend on it
        pair = names[0][key], names[1][key]
        unknown = [one.get((_UNKNOWN, key[0]), PerStep()) for one in pair]
        sums = [_sum(one.values()) for one in pair]
        if differ(sums[0].often, sums[1].often) or not differ(unknown[0].often, unknown[1].often):
            continue
        at = int(unknown[1].often > unknown[0].often)  # the side that knows less
        side, own, other = sides[at], pair[at], pair[1 - at]
        for place, one in own.items():
            side[place] = side[place].plus(one, -1)
        for place, one in other.items():
            side[place] = side.get(place, PerStep()).plus(sums[at], one.kernels / sums[1 - at].kernels)
        placed[at] += unknown[at].ms
    old, new = ({place: one for place, one in side.items() if one.kernels > _NONE} for side in sides)
    return old, new, (placed[0], placed[1])


def _sum(every: Iterable[PerStep]) -> PerStep:
    found = PerStep()
    for one in every:
        found = found.plus(one)
    return found


def _of(report: Report) -> Places:
    return {
        (row.component, row.phase): PerStep(row.time_ms_per_step, row.kernels_per_step)
        for row in report.components
        if row.kernels_per_step
    }


def _by_name(report: Report) -> dict[tuple[str, str], Places]:
    """By phase and name."""
    found: dict[tuple[str, str], Places] = {}
    for row in report.other_kernels:
        one = PerStep(row.time_ms_per_step, row.calls_per_step, row.calls_where_it_runs)
        found.setdefault((row.phase, row.kernel), {})[row.component, row.phase] = one
    return found
