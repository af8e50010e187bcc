"""The step with the profiler beside the step without it, in the words of page and terminal."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens import numbers as f
from tracelens.results import Report, StepTime

#: Step times that differ by less are taken for the same.
SAME = 0.03


@dataclass(frozen=True, slots=True)
class StepLine:
    """One line of the table: how the steps ran, their times, and how those were taken."""

    title: str
    time: StepTime
    note: str


def rows(report: Report) -> list[StepLine]:
    """Set the kinds of steps side by side; the profiled ones alone where no others were timed."""
    found = report.summary.unprofiled
    clock = {"cuda_events": "between CUDA events", "perf_counter": "on the CPU's clock"}.get(
        found.clock or "", "clock not stated"
    )
    listed = [
        ("with the profiler", report.summary.step_ms, report.summary.step_source),
        ("without, before the window", found.before_ms, clock),
        ("without, after the window", found.after_ms, clock),
    ]
    return [StepLine(title, time, note) for title, time, note in listed if time is not None]


def lines(report: Report) -> list[str]:
    """Say both step times, what the profiler cost, and whether the run itself changed its pace.

    Nothing where no step was timed without the profiler.
    """
    step, found = report.summary.step_ms, report.summary.unprofiled
    if found.median_ms is None:
        return []
    counts = [
        f"{time.n if time else 'none'} {word}"
        for time, word in ((found.before_ms, "before"), (found.after_ms, "after"))
    ]
    without = f"{f.ms(found.median_ms)} without (median of {' and '.join(counts)})"
    if found.profiler_frac is None:
        return [f"Step {without}; the profiled trace marks no step to compare with."]
    said = [f"Step {f.ms(step.median)} with the profiler, {without}."]
    return [*said, *(_other_work(report) or _cost(report)), *_drift(report)]


def _cost(report: Report) -> list[str]:
    """How much of the profiled step is the profiler's, as far as the run's own changes let it be told."""
    step, found = report.summary.step_ms.median, report.summary.unprofiled
    frac = found.profiler_frac
    if frac is None or abs(frac) <= SAME:
        return []
    shares = [1 - time.median / step for time in (found.before_ms, found.after_ms) if time]
    low, high = min(shares), max(shares)
    if low <= 0:
        return ["What the profiler cost is not known: steps without it were as long or longer."]
    share = f.pct(frac) if f"{low:.2f}" == f"{high:.2f}" else f"{f.pct(low)} to {f.pct(high)}"
    said = f"{share} of the profiled step is the profiler's cost: idle time and MFU refer to that longer step"
    return [said + (f" ({f.pct(found.mfu_frac)} MFU without it)." if found.mfu_frac is not None else ".")]


def _other_work(report: Report) -> list[str]:
    """A profiled step with more GPU work than a whole step without: then they are not the same work."""
    without = report.summary.unprofiled.median_ms
    if without is None or not report.steps:
        return []
    busy = sum(step.duration_ms * step.gpu_busy_frac for step in report.steps) / len(report.steps)
    if busy <= (1 + SAME) * without:
        return []
    more = f"The GPU works {f.ms(busy)} of a profiled step, more than a whole step without"
    return [f"{more}: its kernels were slower or did other work, so the cost of the profiler is not known."]


def _drift(report: Report) -> list[str]:
    found = report.summary.unprofiled
    drift, before, after = found.drift_frac, found.before_ms, found.after_ms
    if drift is None or before is None or after is None or abs(drift) <= SAME:
        return []
    how = f"{f.pct(abs(drift))} {'longer' if drift > 0 else 'shorter'} than before it"
    times = f"{f.ms(before.median)}, then {f.ms(after.median)}"
    return [
        f"Without the profiler, steps after the window took {how} ({times}): the run itself changed speed."
    ]
