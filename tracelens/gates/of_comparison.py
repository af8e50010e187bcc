"""The figures of a comparison, of two files or two folders, that a gate can ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from tracelens.comparison.causes import alike_ms
from tracelens.comparison.moves import with_moves
from tracelens.gates.metrics import Metric, Range, Reading, Remark, exact, remark, shares, unknown
from tracelens.results.comparison import Comparison, ComponentChange, Side, StepChange
from tracelens.results.folders import FilePair, FolderComparison, FolderSide
from tracelens.words import COMPONENTS

Compared = Comparison | FolderComparison
_CHANGED = ("faster", "slower")


def without_drift(result: Compared) -> Compared:
    """The comparison without what all GEMMs of the same work changed by alike: step, pairs, components."""
    components = [replace(row, beyond_noise=False) if row.alike else row for row in result.components]
    step = None if result.step is None else _without(result.step, alike_ms(result.causes))
    if isinstance(result, Comparison):
        return replace(result, step=step, components=components)
    pairs = [_pair_without(pair) for pair in result.pairs]
    return replace(result, step=step, components=components, pairs=pairs)


def _without(step: StepChange, alike: float) -> StepChange:
    diff = step.diff_ms - alike
    return replace(
        step,
        diff_ms=diff,
        diff_frac=diff / step.before.median if step.before.median else None,
        shift_low_ms=step.shift_low_ms - alike,
        shift_high_ms=step.shift_high_ms - alike,
    )


def _pair_without(pair: FilePair) -> FilePair:
    after = replace(pair.after, step_ms=pair.after.step_ms - alike_ms(pair.causes))
    frac = after.step_ms / pair.before.step_ms - 1 if pair.before.step_ms else None
    return replace(pair, after=after, diff_frac=frac)


def _refused(result: Compared) -> Reading | None:
    """No time is compared; None where times are."""
    return unknown("not_compared", why=result.not_compared) if result.not_compared else None


def _regression(result: Compared, _: str) -> Reading:
    """The step's change where the test sees one, else nothing; its range is what the steps leave open."""
    if refused := _refused(result):
        return refused
    if result.step is None:
        return _worst_pair(result) if isinstance(result, FolderComparison) else unknown("no_step")
    step = result.step
    if step.state == "too_few_steps":
        return unknown("report", why=step.why)
    if step.state == "identical":
        return Reading(shares(exact(0.0), step.before.median), notes=[remark("same_trace")])
    low, high = sorted((step.shift_low_ms, step.shift_high_ms))
    if step.state in _CHANGED:
        change = Range(min(low, step.diff_ms), step.diff_ms, max(high, step.diff_ms), True)
        return Reading(shares(change, step.before.median))
    seen = remark("within_noise", state=step.state, diff_ms=step.diff_ms, diff_frac=step.diff_frac)
    change = Range(min(low, 0.0), 0.0, max(high, 0.0), True)
    return Reading(shares(change, step.before.median), notes=[seen])


def _worst_pair(result: FolderComparison) -> Reading:
    """Of files of different models: the pair that became slower by most, where its own steps say so."""
    few = [pair.name for pair in result.pairs if pair.state == "too_few_steps"]
    if few:
        return unknown("few_steps", pairs=few)
    moved = [pair for pair in result.pairs if pair.state in _CHANGED]
    slower = [pair for pair in moved if pair.state == "slower"]
    if not slower:
        if len(moved) == len(result.pairs):
            slower = moved  # all became faster: the one that did by least
        else:
            return Reading({form: exact(0.0) for form in _BOTH}, notes=[remark("no_pair_slower")])
    share = max(slower, key=lambda pair: pair.diff_frac if pair.diff_frac is not None else math.inf)
    time = max(slower, key=lambda pair: pair.after.step_ms - pair.before.step_ms)
    return Reading(
        {
            "share": exact(share.diff_frac if share.diff_frac is not None else math.inf),
            "time": exact(time.after.step_ms - time.before.step_ms),
        },
        notes=[remark("most_of_pairs", pairs=len(result.pairs), name=share.name)],
    )


def _step_change(result: Compared, _: str) -> Reading:
    """The difference of the medians, whatever a test says of it."""
    if refused := _refused(result):
        return refused
    if result.step is None:
        return unknown("different_models")
    step = result.step
    untested = step.state in ("too_few_steps", "no_change", "inconclusive")
    notes = [remark("not_tested", state=step.state)] if untested else []
    return Reading(shares(exact(step.diff_ms), step.before.median), notes=notes)


def _unprofiled(result: Compared, _: str) -> Reading:
    if refused := _refused(result):
        return refused
    step = result.step
    if step is None or step.unprofiled_before_ms is None or step.unprofiled_after_ms is None:
        return unknown("unprofiled_unknown")
    diff = step.unprofiled_after_ms - step.unprofiled_before_ms
    found = {"time": exact(diff)}
    if step.unprofiled_diff_frac is not None:
        found["share"] = exact(step.unprofiled_diff_frac)
    return Reading(found, notes=[remark("not_tested")])


def _component(result: Compared, name: str) -> Reading:
    """What a component takes more than noise, all phases; its range holds what could not be told."""
    if refused := _refused(result):
        return refused
    rows = [row for row in result.components if row.component == name]
    if not rows:
        return unknown("component_unseen", component=name)
    known = [row for row in rows if row.beyond_noise is not None]
    open_ms = [row.diff_ms for row in rows if row.beyond_noise is None and row.diff_ms]
    if not known and open_ms:
        return Reading(why=_untold(rows))
    diff = sum(row.diff_ms for row in known if row.beyond_noise)
    low, high = diff + sum(ms for ms in open_ms if ms < 0), diff + sum(ms for ms in open_ms if ms > 0)
    time, before = Range(low, diff, high, True), sum(row.before_ms for row in rows)
    notes = [_untold(rows, phases=_phases(rows))] if open_ms else []
    return Reading({"time": time, "share": _of(time, before)}, notes=notes)


def _of(time: Range, before_ms: float) -> Range:
    """As a share of the time before; without bounds where there was none."""

    def share(ms: float) -> float:
        return ms / before_ms if before_ms else math.copysign(math.inf, ms) if ms else 0.0

    return Range(
        share(time.low), None if time.mid is None else share(time.mid), share(time.high), time.measured
    )


def _untold(rows: Iterable[ComponentChange], phases: Sequence[str] = ()) -> Remark:
    why = next((row.why for row in rows if row.beyond_noise is None and row.why), "")
    return remark("untold", why=why, phases=phases)


def _phases(rows: Iterable[ComponentChange]) -> list[str]:
    return [row.phase for row in rows if row.beyond_noise is None and row.diff_ms]


def _worst_component(result: Compared, _: str) -> Reading:
    """The component (of one phase) that takes most more."""
    if refused := _refused(result):
        return refused
    rows = with_moves(result.components, result.moves)  # work counted elsewhere is no growth
    known = [row for row in rows if row.beyond_noise is not None]
    if not known and any(row.diff_ms for row in rows):
        return Reading(why=_untold(rows))
    if not result.components:
        return unknown("no_component")
    slower = [row for row in known if row.beyond_noise and row.diff_ms > 0]
    untold = [row for row in rows if row.beyond_noise is None and row.diff_ms > 0]

    def most(rows: list[ComponentChange], read: Callable[[ComponentChange], float]) -> float:
        return max((read(row) for row in rows), default=0.0)

    def ms(row: ComponentChange) -> float:
        return row.diff_ms

    def frac(row: ComponentChange) -> float:
        return row.diff_ms / row.before_ms if row.before_ms else math.inf

    found = {
        form: Range(most(slower, read), most(slower, read), most([*slower, *untold], read), True)
        for form, read in (("time", ms), ("share", frac))
    }
    notes = []
    if slower:
        worst = max(slower, key=ms)
        named = {"component": worst.component, "phase": worst.phase, "diff_ms": worst.diff_ms}
        notes.append(remark("most_of_components", **named))
    if untold:
        notes.append(remark("untold_components", many=len(untold)))
    return Reading(found, notes=notes)


def _part(
    name: str, bounded: Callable[[Side | FolderSide], bool] = lambda _: False
) -> Callable[[Compared, str], Reading]:
    """The change of a part of the step; ``bounded``: is a side's time of it a lower bound?"""

    def read(result: Compared, _: str) -> Reading:
        if refused := _refused(result):
            return refused
        part = next((one for one in result.parts if one.name == name), None)
        if part is None:
            return unknown("not_known")
        diff = part.after_ms - part.before_ms
        low = -math.inf if bounded(result.before) else diff
        high = math.inf if bounded(result.after) else diff
        time = exact(diff) if low == high else Range(low, None, high, False)
        whole_ms = result.step.before.median if result.step is not None else 0.0
        if result.step is not None and isinstance(result, Comparison) and result.before.steps_ms:
            whole_ms = fmean(result.before.steps_ms)  # parts of folders are medians over the pairs
        found = shares(time, whole_ms)
        return Reading(found, why=remark("different_models"), notes=[remark("not_tested")])

    return read


def _still_there(result: Compared, _: str) -> Reading:
    """Findings of the report before that nothing was done about."""
    there = {(one.rule, one.title) for one in result.findings if one.state == "still_there"}
    return Reading({"count": exact(len(there))})


_BOTH = ("share", "time")

COMPARISON_METRICS: dict[str, Metric[Compared]] = {
    metric.name: metric
    for metric in (
        Metric(
            "regression",
            _BOTH,
            "How much slower the step became where a test over the steps sees it, else 0; "
            "below zero: faster. % of the step before.",
            _regression,
            signed=True,
        ),
        Metric(
            "step_change",
            _BOTH,
            "Difference of the median steps, whatever the test says. % of the step before.",
            _step_change,
            signed=True,
        ),
        Metric(
            "unprofiled_change",
            _BOTH,
            "Difference of the median steps without the profiler, as `tracelens capture` timed them; "
            "not tested. % of the step before.",
            _unprofiled,
            signed=True,
        ),
        Metric(
            "component_change",
            _BOTH,
            "What this component takes more per step, beyond noise, all phases. % of its own time before.",
            _component,
            signed=True,
            choices=COMPONENTS,
            choice="COMPONENT",
        ),
        Metric(
            "component_regression",
            _BOTH,
            "What the component and phase takes more that grew most, beyond noise. % of its own time before.",
            _worst_component,
        ),
        Metric(
            "idle_change",
            _BOTH,
            "Idle time per step, after minus before; not tested. % of the mean step before.",
            _part("idle"),
            signed=True,
        ),
        Metric(
            "exposed_communication_change",
            _BOTH,
            "Exposed communication per step, after minus before; not tested. Where too much GPU time is "
            "unattributed each is a lower bound. % of the mean step before.",
            _part("exposed communication", lambda side: side.communication_is_bound),
            signed=True,
        ),
        Metric(
            "gpu_time_change",
            _BOTH,
            "Sum of GPU event times per step, after minus before; not tested. % of the mean step before.",
            _part("sum of GPU time"),
            signed=True,
        ),
        Metric(
            "findings_still_there",
            ("count",),
            "Findings of the report before that are still there.",
            _still_there,
        ),
    )
}
