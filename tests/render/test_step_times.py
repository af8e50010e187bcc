"""The profiled step stands beside the unprofiled one, and what cannot be told is not told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.render import sample_report
from tests.said import Listener
from tracelens.render import step_times
from tracelens.results import Report, Step, StepTime, UnprofiledSteps


def _report(
    before: float | None, after: float | None, *, profiled: float = 20.0, busy_frac: float = 0.4
) -> Report:
    """Steps of 20 ms with the profiler, and medians without it."""
    sides = [None if ms is None else StepTime(ms, ms, ms, n) for ms, n in ((before, 8), (after, 5))]
    known = [time.median for time in sides if time is not None for _ in range(time.n)]
    median = sorted(known)[len(known) // 2] if known else None
    report = sample_report.full()
    unprofiled = UnprofiledSteps(
        before_ms=sides[0],
        after_ms=sides[1],
        median_ms=median,
        clock="cuda_events",
        profiler_frac=None if median is None else 1 - median / profiled,
        drift_frac=after / before - 1 if before and after else None,
        mfu_frac=0.5,
        why=None if median else "no reason given",
    )
    summary = replace(
        report.summary, step_ms=StepTime(profiled, profiled, profiled, 3), unprofiled=unprofiled
    )
    return replace(report, summary=summary, steps=[Step(0, 0, profiled, busy_frac)])


def test_both_times_and_how_many_steps_they_come_from(said: Listener) -> None:
    said(step_times.lines(_report(19.8, 19.8)), step_times.lines(_report(None, 19.8))[0])


def test_nothing_is_said_where_nothing_was_timed(said: Listener) -> None:
    report = _report(None, None)
    assert step_times.lines(report) == []
    said([row.title for row in step_times.rows(report)])


def test_what_the_profiler_cost(said: Listener) -> None:
    text = step_times.lines(_report(11.0, 11.0))[1]
    said(text)


def test_a_cost_that_the_runs_own_pace_blurs_is_a_range(said: Listener) -> None:
    _, cost, drift = step_times.lines(_report(10.0, 12.0))
    said(cost, drift)


@pytest.mark.parametrize(("before", "after"), [(25.0, 25.0), (15.0, 22.0), (18.0, 24.0)])
def test_a_cost_that_cannot_be_told_is_not_told(before: float, after: float) -> None:
    report = _report(before, after)
    assert any("not known" in line for line in step_times.lines(report))
    assert not any("profiler's cost:" in line for line in step_times.lines(report))


def test_more_gpu_work_than_a_whole_step_without_is_no_cost_of_the_profiler(said: Listener) -> None:
    (_, text) = step_times.lines(_report(15.0, 15.0, busy_frac=0.9))
    assert "profiler's cost:" in step_times.lines(_report(15.0, 15.0, busy_frac=0.7))[1]
    said(text)


def test_a_trace_without_marked_steps_is_not_compared() -> None:
    report = _report(15.0, 15.0)
    unprofiled = replace(report.summary.unprofiled, profiler_frac=None, mfu_frac=None)
    report = replace(report, summary=replace(report.summary, unprofiled=unprofiled))
    (said,) = step_times.lines(report)
    assert "no step" in said and "20.0 ms" not in said
