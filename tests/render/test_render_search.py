"""The shape search on the page and in the terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.render import verified_report
from tests.render.sample_report import HOSTILE, full
from tests.render.sample_search import FOUND, GOOD, PICK
from tests.render.verified_report import verified
from tests.said import Listener
from tracelens.render import search
from tracelens.render.html import render_html
from tracelens.render.terminal import render_terminal
from tracelens.render.verified import lines as verified_lines
from tracelens.results import Estimate, FrontPoint, ShapeSearch

REFUSED = ShapeSearch("could_not_run", "No shape was searched: no step time is known.")


def _terminal(found: ShapeSearch | None, *, transformer: bool = True) -> str:
    report = full()
    report = replace(
        report, shape_search=found, model=replace(report.model, found="whole" if transformer else "none")
    )
    console = Console(file=io.StringIO(), width=80, no_color=True)
    render_terminal(report, console=console, verbose=True)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def _section(found: ShapeSearch | None) -> str:
    page = render_html(replace(full(), shape_search=found))
    return page.partition('aria-labelledby="h-search"')[2].partition("</section>")[0]


def test_the_terminal_says_it_in_two_lines(said: Listener) -> None:
    for found in (FOUND, GOOD):
        lines = " ".join(_terminal(found).split())
        said("Shape search" + lines.partition("Shape search")[2][:180])
    assert "Shape search" not in _terminal(None)


def test_a_model_that_cannot_be_searched_says_why_and_no_model_says_nothing() -> None:
    assert REFUSED.verdict in " ".join(_terminal(REFUSED).split())
    assert "Shape search" not in _terminal(REFUSED, transformer=False)


def test_a_search_that_tried_nothing_says_why_once_and_names_no_size_as_searched() -> None:
    why = "the heads are not known"
    found = replace(
        REFUSED,
        verdict=f"No shape was searched: {why}.",
        searched=["vocab"],
        not_searched={"hidden": why, "heads": "no shapes", "head_dim": "no shapes"},
    )
    section = _section(found)
    assert section.count(found.verdict) == 1 and section.count("no shapes") == 1
    assert "heads, head_dim: no shapes" in section and "Searched: vocab" not in section
    assert REFUSED.verdict in _section(REFUSED)


def test_the_page_shows_picks_front_and_what_was_left_out() -> None:
    section = _section(FOUND)
    for words in (FOUND.verdict, "3.3% (1.7 to 4.6%)", "3.30 ms", "retrain", "8.80 ms → 5.74 ms", "±1%",
                  "Not recommended: heads 32 → 20", "Searched: heads.",
                  "Not searched: vocab: not known."):  # fmt: skip
        assert words in section.replace("\xa0", " ")
    assert section.count('class="dot-front"') == 2 * 3, "a wide figure and a narrow one"
    assert section.count('class="dot-pick"') == section.count('class="dot-now"') == 2
    assert "style=" not in section  # the policy allows none
    assert _section(None) == ""
    assert "<svg" not in _section(GOOD) and GOOD.verdict in _section(GOOD).replace("\xa0", " ")


def test_hostile_text_stays_text() -> None:
    hostile = replace(FOUND, verdict=HOSTILE, picks=[replace(PICK, title=HOSTILE, change={HOSTILE: [1, 2]})],
                      not_searched={HOSTILE: HOSTILE})  # fmt: skip
    assert "<img" not in _section(hostile)
    assert "\x1b" not in _terminal(replace(hostile, picks=[replace(PICK, title="\x1b[31mred")]))


def test_the_figure_holds_every_point_inside_its_frame(said: Listener) -> None:
    figure = search.figure(FOUND)
    assert figure is not None
    for dot in figure.dots:
        assert search.LEFT <= dot.x <= search.WIDTH - search.RIGHT
        assert search.TOP <= dot.y <= search.HEIGHT - search.BOTTOM
    by_kind = {dot.kind: dot for dot in figure.dots}
    assert by_kind["pick"].y > by_kind["now"].y  # faster is lower
    assert by_kind["pick"].x == by_kind["now"].x  # as many weights
    assert any(tick.text == "0" for tick in figure.x_ticks) and any(
        tick.text == "0" for tick in figure.y_ticks
    )
    assert search.figure(GOOD) is None
    said(figure.dots[0].title)


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 12, 50])
def test_few_points_of_a_front_keep_the_fastest(count: int) -> None:
    front = [FrontPoint({"ffn": [0, at]}, -0.001 * at, 1 - 0.001 * at) for at in range(count)]
    shown = search.thinned(front)
    assert len(shown) == min(count, 6)
    if count:
        assert shown[-1] == front[-1] and shown == [one for one in front if one in shown]


def test_the_points_of_a_front_that_are_shown_are_the_useful_ones() -> None:
    """Weights for next to no time stay, weights for much time go; the present shape and picks stay anyhow."""
    points = [(0.0093, 1.0571), (0.0075, 1.0026), (0.0074, 1.0025), (0.0073, 1.0024), (0.0, 1.0),
              (-0.0001, 0.9999), (-0.004, 0.9856), (-0.0076, 0.98), (-0.0077, 0.979)]  # fmt: skip
    front = [FrontPoint({"ffn": [0, at]} if w else {}, w, t) for at, (w, t) in enumerate(points)]
    kept = [points[front.index(one)] for one in search.thinned(front, most=4)]
    assert kept == [(0.0075, 1.0026), (0.0, 1.0), (-0.004, 0.9856), (-0.0077, 0.979)]
    pick = replace(PICK, change=front[5].change)
    assert front[5] in search.thinned(front, [pick], most=4)


@pytest.mark.parametrize("spread", [1e-9, 1e-4, 0.003, 0.02, 0.3, 4.0])
def test_ticks_are_few_and_inside(spread: float) -> None:
    front = [FrontPoint({}, 0.0, 1.0), FrontPoint({"ffn": [1, 2]}, -spread, 1.0 - spread)]
    figure = search.figure(replace(GOOD, front=front))
    assert figure is not None
    assert 2 <= len(figure.x_ticks) <= 6 and len({tick.text for tick in figure.x_ticks}) == len(
        figure.x_ticks
    )


def test_a_pick_that_is_a_findings_change_names_the_finding(said: Listener) -> None:
    change: dict[str, list[int | None]] = {"vocab": [50257, 50304]}
    one = replace(FOUND, picks=[replace(PICK, title="vocab 50257 → 50304", change=change)])
    finding = replace(full().findings[0], rule="TL101", change={"vocab_size": [50257, 50304]})
    assert "TL101" not in search.line(one, [replace(finding, change={"heads": [2, 4]})])
    said(search.line(one, [finding]))


def test_heads_of_a_finding_that_the_search_left_out_are_named(said: Listener) -> None:
    finding = replace(full().findings[0], rule="TL103", change={"head_dim": [80, 128], "heads": [16, 10]})
    for found in (FOUND, GOOD):
        kept = replace(found, tried=13, kept_degree=4)
        assert "10 heads" in search.line(kept, [finding])
        assert "heads are" not in search.line(kept, [replace(finding, change={"heads": [16, 20]})])
        assert "heads are" not in search.line(replace(kept, kept_degree=1), [finding])
    said(search.line(replace(GOOD, tried=13, kept_degree=4), [finding]))


def test_what_was_measured_of_a_pick_stands_beside_its_prediction() -> None:
    """On the page under the picks, in the terminal among what was measured."""
    assert "Measured" not in _section(FOUND)
    checked = replace(FOUND, picks=[replace(PICK, verified=verified(3.1, name="<layer>"))])
    section = _section(checked)
    assert "Measured 3.10 ms" in section and "its pick was measured" in section
    assert "<layer>" not in section and "&lt;layer&gt;" in section
    run = verified_report.report(verified(), notes=())
    said = verified_lines(replace(run, shape_search=checked))
    assert "heads 32 → 20: Measured 3.10 ms (3.00–3.20 ms), predicted" in " ".join(said)
    assert len(verified_lines(replace(run, shape_search=FOUND))) == len(said) - 1


def test_a_pick_whose_saving_is_not_known_is_drawn_nowhere() -> None:
    """And the next one keeps its number in the list."""
    blind = replace(PICK, saving_frac=Estimate(None, None, None, "model"))
    figure = search.figure(replace(FOUND, picks=[blind, PICK]))
    assert figure is not None
    assert [dot.label for dot in figure.dots if dot.kind == "pick"] == ["2"]
