"""What 1000 steps cost and save: GPU-hours of the whole job, and money."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.render import sample_report
from tests.said import Listener
from tracelens.accounting.cost import parse_price, with_cost
from tracelens.errors import UsageError
from tracelens.render.costs import finding_line, job_lines, saving_line
from tracelens.results import Estimate, JobCost, Price, Report, StepTime, UnprofiledSteps

SAVING = Estimate(36.0, 72.0, 90.0, "model")
BOUND = Estimate(0.0, None, 36.0, "heuristic")


def report(saving: Estimate = SAVING, *, world: int | None = 8, **summary: Any) -> Report:
    """A step of 450 ms, which is one GPU-hour for 1000 steps on 8 GPUs."""
    full = sample_report.full()
    given: dict[str, Any] = {
        "step_ms": StepTime(450.0, 440.0, 460.0, 3),
        "shape_waste_ms": saving,
        "unprofiled": UnprofiledSteps(),
    }
    return replace(
        full,
        trace=replace(full.trace, world_size=world),
        findings=[replace(full.findings[0], saving_ms=saving)],
        summary=replace(full.summary, **(given | summary)),
    )


def cost(found: Report) -> JobCost:
    assert found.cost is not None
    return found.cost


def test_gpu_hours_are_of_the_whole_job(said: Listener) -> None:
    found = cost(with_cost(report()))
    assert found.gpus == 8 and found.gpu_hours == pytest.approx(1.0)
    assert found.saving is not None and found.saving.money is None and found.money is None
    hours = found.saving.gpu_hours
    assert [hours.low, hours.mid, hours.high] == pytest.approx([0.08, 0.16, 0.2])
    assert hours.basis == "model"
    said(found.gpus_source)


def test_the_shortest_step_costs_and_none_does_not() -> None:
    short = cost(with_cost(report(step_ms=StepTime(0.45, 0.4, 0.5, 3)), Price(2.0)))
    assert [short.gpu_hours, short.money] == pytest.approx([0.001, 0.002])
    bare = with_cost(report(step_ms=StepTime(0.0, 0.0, 0.0, 0)), Price(2.0))
    assert bare.findings[0].saving is None and cost(bare).price == Price(2.0)


def test_a_saving_of_work_in_a_step_that_waits_is_no_gpu_hour() -> None:
    waits = report(saving_of="gpu_work")
    waits = replace(waits, findings=[replace(waits.findings[0], saving_of="gpu_work")])
    found = with_cost(waits, Price(2.0))
    assert cost(found).saving is None and found.findings[0].saving is None
    assert cost(found).money == pytest.approx(2.0)


def test_without_findings_nothing_is_saved() -> None:
    assert cost(with_cost(report(shape_waste_ms=None))).saving is None
    assert cost(with_cost(report())).unprofiled_gpu_hours is None
    assert cost(with_cost(report(), Price(2.0))).unprofiled_money is None
    unpriced = cost(with_cost(report(unprofiled=UnprofiledSteps(median_ms=225.0))))
    assert unpriced.unprofiled_gpu_hours == pytest.approx(0.5) and unpriced.unprofiled_money is None


def test_one_gpu_is_counted_and_said_where_the_job_is_not_known(said: Listener) -> None:
    found = with_cost(report(world=None))
    assert cost(found).gpus == 1 and cost(found).gpu_hours == pytest.approx(0.125)
    said(" ".join(job_lines(found)))


def test_a_price_gives_money_with_its_range(said: Listener) -> None:
    found = with_cost(report(), Price(2.5, "EUR"))
    assert cost(found).money == pytest.approx(2.5)
    one = found.findings[0].saving
    assert one is not None and one.money is not None
    assert [one.money.low, one.money.mid, one.money.high] == pytest.approx([0.2, 0.4, 0.5])
    line = finding_line(found.findings[0], cost(found).price)
    said(line)


def test_a_bound_is_never_money_without_at_most(said: Listener) -> None:
    found = with_cost(report(BOUND), Price(2.5, "EUR"))
    text = saving_line(found.findings[0].saving, cost(found).price)
    assert text.count("at most") == 2  # GPU-hours and money
    said(text)
    two = replace(report(BOUND), findings=[report(BOUND).findings[0]] * 2)
    joint = job_lines(with_cost(two, Price(2.5, "EUR")))[-1]
    assert joint.count("at most") == 2
    said(joint)


def test_the_total_is_that_of_the_report_and_no_sum() -> None:
    two = report(shape_waste_ms=Estimate(40.0, 80.0, 95.0, "model"))
    found = with_cost(replace(two, findings=[two.findings[0]] * 2))
    saving = cost(found).saving
    assert saving is not None and saving.gpu_hours.mid == pytest.approx(80 * 8 * 1000 / 3.6e6)


def test_steps_without_the_profiler_stand_beside() -> None:
    found = cost(with_cost(report(unprofiled=UnprofiledSteps(median_ms=225.0)), Price(4.0)))
    assert (found.gpu_hours, found.unprofiled_gpu_hours) == pytest.approx((1.0, 0.5))
    assert (found.money, found.unprofiled_money) == pytest.approx((4.0, 2.0))


def test_a_trace_without_steps_claims_nothing_and_says_why(said: Listener) -> None:
    found = with_cost(report(steps_marked=False), Price(4.0))
    assert (cost(found).gpu_hours, cost(found).saving, cost(found).money) == (None, None, None)
    assert found.findings[0].saving is None
    said(job_lines(found)[0])
    nothing = with_cost(report(step_ms=StepTime(0.0, 0.0, 0.0, 0)))
    assert cost(nothing).gpu_hours is None
    said(cost(nothing).why)


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("2.50", Price(2.5)), ("2.50 EUR", Price(2.5, "EUR")), ("2.5EUR", Price(2.5, "EUR")),
        ("$3", Price(3.0, "$")), (".9 €", Price(0.9, "€")), (" 4 ", Price(4.0)), ("EUR 2", Price(2.0, "EUR")),
    ],
)  # fmt: skip
def test_prices_as_people_write_them(text: str, price: Price) -> None:
    assert parse_price(text) == price


@pytest.mark.parametrize(
    "text",
    [
        "",
        "free",
        "-1",
        "2,50",
        "0",
        "0.0",
        "$2 EUR",
        "1e9",
        "nan",
        "2.5 " + "xyz" * 40,
        "2 \x1b[31m",
        "1.2.3",
    ],
)
def test_what_is_no_price_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_price(text)
    assert "--price" in str(error.value) and "\n" not in str(error.value)
    assert repr(text[:40]) in str(error.value)
