"""The figures of a comparison, of two files or two folders, that a gate can ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from tracelens.comparison.causes import alike_ms
from tracelens.comparison.moves import with_moves
from tracelens.comparison.spelling import signed_ms, signed_pct
from tracelens.gates.metrics import Metric, Range, Reading, exact, unknown
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


def _refused(result: Compared) -> str:
    """Why no time is compared; "" where times are."""
    if result.not_compared:
        return f"times are not compared: {' and '.join(result.not_compared)}"
    return ""


def _regression(result: Compared, _: str) -> Reading:
    """The step's change where the test sees one, else nothing; its range is what the steps leave open."""
    if why := _refused(result):
        return unknown(why)
    if result.step is None:
        return _worst_pair(result) if isinstance(result, FolderComparison) else unknown("no step")
    step = result.step
    if step.state == "too_few_steps":
        return unknown(step.why)
    if step.state == "identical":
        return Reading(_both(exact(0.0), step), note="the same trace twice")
    low, high = sorted((step.shift_low_ms, step.shift_high_ms))
    if step.state in _CHANGED:
        return Reading(
            _both(Range(min(low, step.diff_ms), step.diff_ms, max(high, step.diff_ms), True), step)
        )
    seen = f"{signed_ms(step.diff_ms)} ({signed_pct(step.diff_frac)}) is within what steps differ by"
    found = Range(min(low, 0.0), 0.0, max(high, 0.0), True)
    return Reading(_both(found, step), note=f"{_UNSEEN[step.state]}: {seen}")


_UNSEEN = {"no_change": "no measurable change", "inconclusive": "inconclusive"}


def _worst_pair(result: FolderComparison) -> Reading:
    """Of files of different models: the pair that became slower by most, where its own steps say so."""
    few = [pair.name for pair in result.pairs if pair.state == "too_few_steps"]
    if few:
        return unknown(
            f"too few steps for a test in {few[0]}" + (f" and {len(few) - 1} more" if few[1:] else "")
        )
    moved = [pair for pair in result.pairs if pair.state in _CHANGED]
    slower = [pair for pair in moved if pair.state == "slower"]
    if not slower:
        if len(moved) == len(result.pairs):
            slower = moved  # all became faster: the one that did by least
        else:
            return Reading(
                {form: exact(0.0) for form in ("share", "time")}, note="no pair of files is slower"
            )
    share = max(slower, key=lambda pair: pair.diff_frac if pair.diff_frac is not None else math.inf)
    time = max(slower, key=lambda pair: pair.after.step_ms - pair.before.step_ms)
    return Reading(
        {
            "share": exact(share.diff_frac if share.diff_frac is not None else math.inf),
            "time": exact(time.after.step_ms - time.before.step_ms),
        },
        note=f"the most of {len(result.pairs)} pairs: {share.name}",
    )


def _step_change(result: Compared, _: str) -> Reading:
    """The difference of the medians, whatever a test says of it."""
    if why := _refused(result):
        return unknown(why)
    if result.step is None:
        return unknown("of files of different models there is no one step; regression judges their pairs")
    step = result.step
    note = {"too_few_steps": "not tested: too few steps", **_UNSEEN}.get(step.state, "")
    return Reading(_both(exact(step.diff_ms), step), note=note)


def _unprofiled(result: Compared, _: str) -> Reading:
    if why := _refused(result):
        return unknown(why)
    step = result.step
    if step is None or step.unprofiled_before_ms is None or step.unprofiled_after_ms is None:
        return unknown("the step without the profiler is not in both traces (`tracelens capture` times it)")
    diff = step.unprofiled_after_ms - step.unprofiled_before_ms
    found = {"time": exact(diff)}
    if step.unprofiled_diff_frac is not None:
        found["share"] = exact(step.unprofiled_diff_frac)
    return Reading(found, note="not tested")


def _both(time: Range, step: StepChange) -> dict[str, Range]:
    """A time as a range, and as a share of the step before."""
    base = step.before.median
    if not base:
        return {"time": time}
    mid = None if time.mid is None else time.mid / base
    return {"time": time, "share": Range(time.low / base, mid, time.high / base, time.measured)}


def _component(result: Compared, name: str) -> Reading:
    """What a component takes more than noise, all phases; its range holds what could not be told."""
    if why := _refused(result):
        return unknown(why)
    rows = [row for row in result.components if row.component == name]
    if not rows:
        return unknown(f"no kernel is known to be {name} in what was compared")
    known = [row for row in rows if row.beyond_noise is not None]
    open_ms = [row.diff_ms for row in rows if row.beyond_noise is None and row.diff_ms]
    if not known and open_ms:
        return unknown(_untold(rows))
    diff = sum(row.diff_ms for row in known if row.beyond_noise)
    low, high = diff + sum(ms for ms in open_ms if ms < 0), diff + sum(ms for ms in open_ms if ms > 0)
    time, before = Range(low, diff, high, True), sum(row.before_ms for row in rows)
    note = f"{_untold(rows)} in {', '.join(_phases(rows))}" if open_ms else ""
    return Reading({"time": time, "share": _of(time, before)}, note=note)


def _of(time: Range, before_ms: float) -> Range:
    """As a share of the time before; without bounds where there was none."""

    def share(ms: float) -> float:
        return ms / before_ms if before_ms else math.copysign(math.inf, ms) if ms else 0.0

    return Range(
        share(time.low), None if time.mid is None else share(time.mid), share(time.high), time.measured
    )


def _untold(rows: Iterable[ComponentChange]) -> str:
    why = next((row.why for row in rows if row.beyond_noise is None and row.why), "")
    return f"not told from noise: {why}"


def _phases(rows: Iterable[ComponentChange]) -> list[str]:
    return [row.phase for row in rows if row.beyond_noise is None and row.diff_ms]


def _worst_component(result: Compared, _: str) -> Reading:
    """The component (of one phase) that takes most more."""
    if why := _refused(result):
        return unknown(why)
    rows = with_moves(result.components, result.moves)  # work counted elsewhere is no growth
    known = [row for row in rows if row.beyond_noise is not None]
    if not known and any(row.diff_ms for row in rows):
        return unknown(_untold(rows))
    if not result.components:
        return unknown("no component is known")
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
        notes.append(f"most: {worst.component} {worst.phase} {signed_ms(worst.diff_ms)}")
    if untold:
        notes.append(f"{len(untold)} not told from noise")
    return Reading(found, note=", ".join(notes))


def _part(
    name: str, bounded: Callable[[Side | FolderSide], bool] = lambda _: False
) -> Callable[[Compared, str], Reading]:
    """The change of a part of the step; ``bounded``: is a side's time of it a lower bound?"""

    def read(result: Compared, _: str) -> Reading:
        if why := _refused(result):
            return unknown(why)
        part = next((one for one in result.parts if one.name == name), None)
        if part is None:
            return unknown("not known")
        diff = part.after_ms - part.before_ms
        low = -math.inf if bounded(result.before) else diff
        high = math.inf if bounded(result.after) else diff
        time = exact(diff) if low == high else Range(low, None, high, False)
        shares = _both(time, result.step) if result.step is not None else {"time": time}
        return Reading(shares, why="there is no one step to take a share of", note="not tested")

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
            "Idle time per step, after minus before; not tested. % of the step before.",
            _part("idle"),
            signed=True,
        ),
        Metric(
            "exposed_communication_change",
            _BOTH,
            "Exposed communication per step, after minus before; not tested. Where too much GPU time is "
            "unattributed each is a lower bound. % of the step before.",
            _part("exposed communication", lambda side: side.communication_is_bound),
            signed=True,
        ),
        Metric(
            "gpu_time_change",
            _BOTH,
            "Sum of GPU event times per step, after minus before; not tested. % of the step before.",
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
