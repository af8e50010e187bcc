"""A saving of GPU work in a step that waits for the CPU is one everywhere, and none of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_steps import Shape, model_of
from tests.render import sample_report
from tracelens.accounting.cost import with_cost
from tracelens.comparison.compare import outcomes
from tracelens.gates import judge_report
from tracelens.render import costs, facts
from tracelens.render.five_numbers import five_numbers
from tracelens.results import Price, Report, StepTime, Summary, UnprofiledSteps
from tracelens.results.waits import WAITS_FROM, busy_frac, saving_of, step_bound
from tracelens.step.explorer import explore
from tracelens.step.saved_step import step_of
from tracelens.step.whatif import what_if

FULL = sample_report.full()
GPT = Shape(2560, 32, 10240, v=50257)


def summary(busy: float, **given: Any) -> Summary:
    """Of a step of 100 ms."""
    times = StepTime(100.0, 99.0, 101.0, 3)
    return replace(FULL.summary, step_ms=times, gpu_busy_frac=busy, unprofiled=UnprofiledSteps(), **given)


def waiting() -> Report:
    return replace(
        FULL,
        summary=replace(FULL.summary, saving_of="gpu_work", step_bound="cpu"),
        findings=[replace(one, saving_of="gpu_work") for one in FULL.findings],
    )


@pytest.mark.parametrize(
    ("busy", "marked", "bound"),
    [
        (0.98, True, "gpu"),
        (1 - WAITS_FROM, True, "gpu"),
        (0.79, True, "cpu"),
        (0.05, True, "cpu"),
        (0.05, False, "unknown"),
        (0.98, False, "gpu"),
    ],
)
def test_what_a_step_waits_for_follows_from_its_idle_time(busy: float, marked: bool, bound: str) -> None:
    one = summary(busy, steps_marked=marked)
    assert step_bound(one) == bound
    assert saving_of(busy_frac(one)) == ("step" if bound == "gpu" else "gpu_work")


def test_idle_time_that_only_the_profiler_makes_does_not_count() -> None:
    one = replace(summary(0.7), unprofiled=UnprofiledSteps(median_ms=72.0))
    assert busy_frac(one) == pytest.approx(70 / 72) and step_bound(one) == "gpu"
    assert step_bound(replace(one, unprofiled=UnprofiledSteps(median_ms=95.0))) == "cpu"


def test_idle_time_is_a_share_of_the_step_it_is_of() -> None:
    """The GPU works 70 ms: of a step of 95 ms without the profiler 25 are idle, of the profiled one 30."""
    report = replace(FULL, summary=replace(summary(0.7), unprofiled=UnprofiledSteps(median_ms=95.0)))
    assert busy_frac(report.summary) == pytest.approx(70 / 95)
    assert step_of(report).idle_ms == pytest.approx(25.0)


def test_no_gpu_hour_and_no_money_is_saved_where_only_gpu_work_is() -> None:
    price = Price(2.5, "EUR")
    busy, idle = with_cost(FULL, price), with_cost(waiting(), price)
    assert busy.cost is not None and idle.cost is not None
    assert busy.cost.saving is not None and all(one.saving is not None for one in busy.findings)
    assert idle.cost.saving is None and all(one.saving is None for one in idle.findings)
    assert idle.cost.money == busy.cost.money
    assert len(costs.job_lines(idle)) == len(costs.job_lines(busy)) - 1


def test_a_gate_on_savings_never_fails_by_gpu_work_alone() -> None:
    """The whole predicted range is above the limit; of the step it begins at nothing."""
    best = next(one for one in FULL.findings if one.saving_ms.low)
    assert best.saving_ms.low is not None
    gates = [f"saving[{best.rule}]>{best.saving_ms.low / 2:.6f}ms", "shape_waste>0.000001ms"]
    assert [one.state for one in judge_report(FULL, gates)] == ["failed", "failed"]
    assert [one.state for one in judge_report(waiting(), gates)] == ["open", "open"]


def test_no_number_and_no_claim_is_one_of_the_step() -> None:
    assert [one.quiet for one in five_numbers(waiting())].count(True) == 1
    for busy, idle in zip(FULL.findings, waiting().findings, strict=True):
        assert facts.claim(idle, FULL) != facts.claim(busy, FULL)
        assert not facts.claim(idle, FULL)[0].startswith("saves")


def test_a_comparison_says_what_was_predicted() -> None:
    assert {one.saving_of for one in outcomes(waiting(), FULL, [])} == {"gpu_work"}
    assert {one.saving_of for one in outcomes(FULL, FULL, [])} == {"step"}


def test_curves_of_a_step_that_waits_are_of_the_gpus_work() -> None:
    busy = model_of(GPT, rest_ms=20.0)
    assert busy.step_ms is not None
    idle = replace(busy, step_ms=busy.step_ms / 0.4, busy_frac=0.4)
    found = {one.parameter: one for one in explore(idle).curves}["vocab"]
    now = found.mid_ms[found.values.index(found.now)]
    assert found.saving_of == "gpu_work" and now == pytest.approx(busy.step_ms)


def test_a_step_gains_no_more_than_the_gpus_work_and_no_less_than_nothing() -> None:
    busy = model_of(GPT, busy_frac=0.99)
    for share in (0.05, 0.5, 0.79):
        one = what_if(replace(busy, busy_frac=share), {"vocab": 50304})
        sure = what_if(busy, {"vocab": 50304})
        assert one.saving_of == "gpu_work" and sure.saving_of == "step"
        assert one.saving_ms.low == 0.0 and one.saving_ms.high == sure.saving_ms.high
