"""The page of a comparison: its numbers, points and bars hold the facts, and nothing is lost in a fold."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.compare.parsed import Parsed
from tests.compare.test_folders import ranks
from tests.kept import analyzed
from tests.render import sample_report
from tests.said import Listener
from tracelens.api import compare as compare_reports
from tracelens.api import compare_folders
from tracelens.render.compare_figures import (
    POINTS,
    five_numbers,
    folded,
    reach,
    step_bars,
    step_points,
    ticks,
)
from tracelens.render.compare_html import render_compare_html
from tracelens.render.compare_view import view
from tracelens.results import Report, Step, StepTime
from tracelens.results.comparison import Comparison

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [ROOT / "sample_traces" / f"generated_gpt2_vocab{size}.json.gz" for size in (50257, 50304)]


@cache
def samples() -> Comparison:
    before, after = (analyzed(path).report for path in SAMPLES)
    return compare_reports(before, after)


def with_steps(report: Report, times: list[float], **changes: Any) -> Report:
    """The report with other step times, and so another recording."""
    ordered = sorted(times)
    middle = (ordered[(len(times) - 1) // 2] + ordered[len(times) // 2]) / 2
    time = StepTime(middle, ordered[0], ordered[-1], len(times))
    first = report.steps[0]
    steps: list[Step] = [replace(first, index=at, duration_ms=ms) for at, ms in enumerate(times)]
    trace = replace(report.trace, sha256="0" * 64)
    summary = replace(report.summary, step_ms=time, **changes)
    return replace(report, steps=steps, summary=summary, trace=trace)


def compared(before: list[float], after: list[float], **changes: Any) -> Comparison:
    report = sample_report.full()
    return compare_reports(with_steps(report, before), with_steps(report, after, **changes))


def number(found: Any, key: str) -> Any:
    return next(one for one in five_numbers(found) if one.key.split()[0] == key)


def test_the_step_has_its_difference_and_how_sure_it_is(said: Listener) -> None:
    found = compared([100.0, 101, 102, 103], [90.0, 91, 92, 93])
    step = number(found, "step")
    assert step.key == "step faster" and step.value == "102 → 91.5 ms"
    said(step.note)
    few = number(compared([100.0, 101], [90.0, 91]), "step")
    assert few.key == "step too_few_steps"
    said(few.note)
    unsure = number(compared([100.0, 104, 102, 108], [100.0, 103, 101, 104]), "step")
    assert unsure.key == "step inconclusive"
    said(unsure.note)


def test_what_is_not_known_says_why(said: Listener) -> None:
    why = "no peak for this dtype"
    found = compared([100.0] * 4, [99.0] * 4, mfu_frac=None, mfu_why=why)
    mfu = number(found, "mfu")
    assert mfu.value.endswith("→ unknown")
    said(mfu.note)
    assert f"({mfu.note})" in view(found).parts
    assert why in render_compare_html(found)
    both = replace(found, before=replace(found.before, mfu_frac=None, mfu_why=why))
    assert number(both, "mfu").value == "unknown"
    said(number(both, "mfu").note)


def test_a_recording_without_communication_has_none_exposed() -> None:
    assert number(samples(), "comm").value == "none"


def test_every_step_is_a_point_on_one_axis(said: Listener) -> None:
    points = step_points(compared([100.0, 104, 102, 103], [90.0, 91, 92, 93]))
    assert points is not None
    before, after = points.sides
    assert [len(side.dots) for side in points.sides] == [4, 4]
    order = sorted(range(4), key=lambda at: before.dots[at][0])
    assert order == [0, 2, 3, 1] and [dot[1] for dot in before.dots] == [0, 1 / 3, 2 / 3, 1]
    assert max(dot[0] for dot in after.dots) < min(dot[0] for dot in before.dots)
    unit = (before.dots[1][0] - before.dots[0][0]) / 4
    assert math.isclose(before.dots[0][0] - after.dots[0][0], 10 * unit)
    assert before.dots[2][0] < before.median < before.dots[3][0]  # 102.5
    said(points.spoken)


def test_one_step_on_each_side_is_no_picture_and_many_are_thinned_and_said() -> None:
    assert step_points(compared([100.0], [90.0])) is None
    many = step_points(compared([100.0 + at % 7 for at in range(POINTS + 50)], [90.0, 91]))
    assert many is not None and len(many.sides[0].dots) == POINTS
    assert any(f"{POINTS} of {POINTS + 50} before" in note for note in many.notes)


def test_the_bars_are_all_of_the_gpu_time_and_the_idle_time_on_one_scale() -> None:
    found = samples()
    bars = step_bars(found)
    assert bars is not None
    idle = next(part for part in found.parts if part.name == "idle")
    assert math.isclose(bars.before_ms, sum(row.before_ms for row in found.components) + idle.before_ms)
    assert math.isclose(bars.after_ms, sum(row.after_ms for row in found.components) + idle.after_ms)
    assert [piece.key for piece in bars.pieces][-1] == "idle"
    assert math.isclose(sum(piece.before[1] for piece in bars.pieces), 1.0)
    assert math.isclose(sum(piece.after[1] for piece in bars.pieces), bars.after_ms / bars.before_ms)
    for piece, following in zip(bars.pieces, bars.pieces[1:], strict=False):
        assert math.isclose(sum(piece.after), following.after[0])
    assert bars.notes == []


def test_a_bar_that_is_not_as_long_as_its_step_says_why() -> None:
    bars = step_bars(compared([150.0] * 4, [150.0] * 4))
    assert bars is not None and len(bars.notes) == 1


@pytest.mark.parametrize("high", [0.004, 0.7, 3.0, 41.0, 999.0, 25_000.0])
def test_ticks_are_round_in_order_and_on_the_axis(high: float) -> None:
    found = ticks(0.0, high)
    assert 2 <= len(found) <= 7 and all(0 <= one.at <= 1 for one in found)
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert re.search(r" (µs|ms|s)$", found[-1].text)


def test_differences_are_drawn_from_one_zero_to_one_scale() -> None:
    far = reach([-6.0, 2.0])
    assert far.bar(-6.0) == (0.0, 0.75) and far.bar(2.0) == (0.75, 0.25)
    assert reach([]).bar(0.0) == (0.5, 0.0) and reach([0.0]).bar(0.0) == (0.5, 0.0)
    assert reach([-1.0, -2.0]).bar(-1.0) == (0.5, 0.5)


def test_rows_that_do_not_count_are_folded_not_lost() -> None:
    found = samples()
    still = [row for row in found.components if row.beyond_noise is False]
    line = folded(still, "row")
    assert line is not None and f"{len(still)} rows change" in line
    page = render_compare_html(found)
    assert line in Parsed(page).text
    top, _, folds = page.partition('<details class="checks fold">')
    table = 'aria-label="Components table"'
    for row in found.components:
        cell = f'<th scope="row">{row.component}<small>{row.phase}</small></th>'
        assert page.count(cell) == 1
        assert (cell in top.partition(table)[2]) is (row.beyond_noise is not False)
    assert folds and page.count("<tr class=") >= len(found.components) + len(found.gemms)


def test_a_fact_at_the_top_is_not_said_again_below(said: Listener) -> None:
    text = Parsed(render_compare_html(compared([100.0, 101], [90.0, 91]))).text
    assert text.partition("Skip to the comparison")[2].count("too few") == 1 and text.count("p = 0.33") == 1
    told = compared([100.0, 101, 102, 103], [90.0, 91, 92, 93])
    body = Parsed(render_compare_html(told)).text
    said(told.caveats)
    assert "leave open" not in body and body.count("−13.0 to −7.00 ms") == 1
    shown = Parsed(render_compare_html(samples())).text
    assert "Generated trace, not a measurement: before and after" in shown
    assert "generated, not measured" not in shown


def test_the_same_recording_twice_is_quiet() -> None:
    report = analyzed(SAMPLES[0]).report
    page = render_compare_html(compare_reports(report, report))
    assert "h-causes" not in page
    assert not re.search(r'<rect class="(less|more)"', page) and "n-step identical" in page


def test_the_page_of_folders_draws_the_job_and_its_ranks(tmp_path: Path) -> None:
    found = compare_folders(ranks(tmp_path / "before"), ranks(tmp_path / "after", factor=1.1))
    points = step_points(found)
    assert points is not None and len(points.sides[0].dots) == len(found.before.steps_ms)
    assert found.step is not None and len(found.before.steps_ms) == found.step.before.n
    page = render_compare_html(found)
    assert page.count('<rect class="old"') == page.count('<rect class="new"') == 2 * len(found.pairs)
    widths = [float(one) for one in re.findall(r'class="new" y="8" width="([\d.]+)%', page)]
    assert max(widths) == 100.0 and "n-step slower" in page


def test_the_published_numbers_are_those_of_the_page() -> None:
    found = samples()
    assert found.before.steps_ms == [step.duration_ms for step in analyzed(SAMPLES[0]).report.steps]
    gemms = next(part for part in found.parts if part.name == "GEMMs and attention")
    rows = [row.after.time_ms_per_step or 0.0 for row in found.gemms if row.after]
    assert math.isclose(gemms.after_ms, sum(rows))
