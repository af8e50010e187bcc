"""Names in the roofline figure: each beside its own mark, on pages of real traces, too."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.kept import analyzed
from tests.render import sample_report
from tests.said import Listener
from tracelens.render.html import render_html
from tracelens.render.roofline import NARROW, WIDE, Frame, Point, Roofline, roofline
from tracelens.render.roofline_names import Names
from tracelens.results import Report

ROOT = Path(__file__).resolve().parents[2]
TRACES = {
    path.name.split("_")[0]: path
    for path in (
        ROOT / "sample_traces" / "generated_gpt2_vocab50257.json.gz",
        *sorted((ROOT.parent / "shared" / "traces").glob("d[1-6]_*.json.gz")),
    )
}
Box = tuple[float, float, float, float]


@cache
def _report(name: str) -> Report:
    return sample_report.full() if name == "full" else analyzed(TRACES[name]).report


def _drawn(name: str, frame: Frame) -> Roofline:
    report = _report(name)
    drawn = roofline(report, report.gemms, frame=frame)
    return drawn or pytest.skip("no roofline of this trace")


def _box(words: str, x: float, y: float, anchor: str, frame: Frame) -> Box:
    width = 0.9 * frame.character * len(words)  # a font a tenth wider than it is counted for is rare
    left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
    return left, y - 9, left + width, y + 2


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["full", *TRACES])
def test_names_are_free_of_each_other_and_of_points(name: str, frame: Frame) -> None:
    drawn = _drawn(name, frame)
    bounds = [_box(one.label, one.label_x, one.label_y, "end", frame) for one in drawn.roofs]
    names = [_box(p.label, p.label_x, p.label_y, p.anchor, frame) for p in drawn.points if p.label]
    assert bounds and names
    for one, other in itertools.combinations([*bounds, *names], 2):
        assert not _meet(one, other)
    dots = [(p.x - p.half, p.y - p.half, p.x + p.half, p.y + p.half) for p in drawn.points]
    assert not [(one, dot) for one in [*bounds, *names] for dot in dots if _meet(one, dot)]
    for left, above, right, below in [*bounds, *names]:
        assert left > 0 and right < frame.width and above > -10 and below < frame.floor


@pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_line_of_the_best_matmul_begins_on_the_memory_slope(frame: Frame) -> None:
    report = _report("full")
    drawn = roofline(report, report.gemms, frame=frame)
    assert drawn is not None
    (roof,) = drawn.roofs
    assert roof.ceiling is not None
    (x0, y0), (x1, y1), _ = (tuple(map(float, pair.split(","))) for pair in roof.points.split())
    x, y = roof.ceiling
    assert y == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=0.2)
    assert roof.label_x == x1, "the name ends where the flat part begins"


def _gap(box: Box, point: Point) -> float:
    """From a mark's edge to a box."""
    across = max(box[0] - point.x, 0.0, point.x - box[2])
    return math.hypot(across, max(box[1] - point.y, 0.0, point.y - box[3])) - point.half


def _line(point: Point) -> list[tuple[float, float]]:
    """Where the line from a mark to its name goes, point by point."""
    x0, y0, x1, y1 = (float(one) for one in re.findall(r"-?[\d.]+", point.line))
    return [(x0 + (x1 - x0) * at / 50, y0 + (y1 - y0) * at / 50) for at in range(51)]


def _others(point: Point, drawn: Roofline) -> list[Point]:
    """The marks that can be told from this one."""
    return [one for one in drawn.points if math.hypot(one.x - point.x, one.y - point.y) > 2]


@pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["full", *TRACES])
def test_a_name_is_nearer_to_its_own_mark_than_to_any_other_or_a_line_leads_there(
    name: str, frame: Frame
) -> None:
    drawn = _drawn(name, frame)
    for point in drawn.points:
        box = _box(point.label, point.label_x, point.label_y, point.anchor, frame)
        others = _others(point, drawn)
        if not point.label:
            assert not point.line
        elif not point.line:
            assert _gap(box, point) < 8
            assert all(_gap(box, point) + 1 < _gap(box, one) for one in others), point.label
        else:
            (x0, y0), *_, (x1, y1) = line = _line(point)
            assert math.hypot(x0 - point.x, y0 - point.y) == pytest.approx(point.half + 1, abs=0.2)
            near = (x1 - 4, y1 - 4, x1 + 4, y1 + 4)
            assert _meet(near, box) and math.hypot(x1 - x0, y1 - y0) < 80
            for one in others:
                assert all(math.hypot(x - one.x, y - one.y) > one.half for x, y in line), point.label
                assert _gap(box, one) > 6, point.label
            names = [_box(p.label, p.label_x, p.label_y, p.anchor, frame) for p in drawn.points if p.label]
            assert not [at for at in line[5:-5] for one in names if one != box and _meet((*at, *at), one)]


@pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["full", *TRACES])
def test_the_largest_and_the_fastest_have_a_name(name: str, frame: Frame) -> None:
    drawn = _drawn(name, frame)
    largest, fastest = max(drawn.points, key=lambda p: p.r), min(drawn.points, key=lambda p: p.y)
    for wanted in (largest, fastest):
        there = [p.label for p in drawn.points if p not in _others(wanted, drawn)]
        assert any(there), wanted.title


def test_marks_upon_each_other_have_one_name_that_counts_them() -> None:
    report = _report("generated")
    drawn = roofline(report, report.gemms)
    assert drawn is not None and drawn.piled
    labels = [p.label for p in drawn.points if p.label]
    assert "logits dgrad +2" in labels and "attention.core forward" in labels
    for point in drawn.points:
        here = [p for p in drawn.points if p not in _others(point, drawn)]
        if point.label:
            assert point.label.endswith(f" +{len(here) - 1}") or len(here) == 1
            assert [p.label for p in here if p.label] == [point.label]


def test_a_name_is_left_out_where_it_would_be_read_as_that_of_another_mark() -> None:
    own, other = (50.0, 50.0, 5.0), (60.0, 50.0, 5.0)
    around = [(50 + 12 * math.cos(at), 50 + 12 * math.sin(at), 5.0) for at in range(7)]
    area = (0.0, 0.0, 300.0, 100.0)
    free = Names(area, 6.0, [own, other], [], [], [])
    place = free.place("mlp.up", 0, over_bounds=False)
    assert place is not None and place.anchor == "end" and place.x < 50 and place.line is None
    closed = Names(area, 6.0, [own, *around], [], [], [])
    assert closed.place("mlp.up", 0, over_bounds=True) is None


def test_rows_with_a_finding_are_named_before_the_rest() -> None:
    report = _report("full")
    drawn = roofline(report, report.gemms)
    assert drawn is not None
    named = [p for p in drawn.points if p.label]
    names = {p.title.split(",")[0] for p in named}  # two rows of one name need it once
    for point in drawn.points:
        if point.bad:
            here = [p for p in named if p not in _others(point, drawn)]
            assert here or point.title.split(",")[0] in names, point.title
    small = roofline(report, report.gemms, frame=NARROW)
    assert small is not None
    first, *rest = [p for p in small.points if p.label]
    assert first.bad and len(rest) >= 3 and sum(not p.bad for p in rest) <= 1, "the fastest is named, too"


def test_a_finding_is_a_diamond_and_no_triangle() -> None:
    page = render_html(_report("generated"))
    figure = page.partition('id="h-roofline"')[2].partition("</section>")[0]
    assert "◆</span> has a finding" in figure and "▲" not in figure
    marks = re.findall(r'class="pt bad" d="M([\d.]+) ([\d.]+)l([\d.]+) ([\d.]+)-([\d.]+) ([\d.]+)-', figure)
    assert len(marks) == 6, "three rows, in the wide and in the narrow figure"
    assert all(len(set(sides)) == 1 for _, _, *sides in marks)


def test_rows_above_the_best_matmul_are_counted_and_its_source_is_named(said: Listener) -> None:
    report = _report("generated")
    drawn = roofline(report, report.gemms)
    assert drawn is not None
    published = "the best plain matmul published for such a GPU (mamf-finder); rows can be faster: 1 here is"
    assert drawn.dashed == published
    assert f"dashed: {published}." in render_html(report)
    measured = replace(report, gpu=replace(report.gpu, measured_tflops={"bf16": 900.0}))
    again = roofline(measured, measured.gemms)
    assert again is not None
    said(again.dashed)


@pytest.mark.skipif("d1" not in TRACES, reason="needs shared/traces")
def test_plain_products_above_the_best_matmul_are_counted_too(said: Listener) -> None:
    report = _report("d1")
    drawn = roofline(report, report.gemms)
    assert drawn is not None
    assert {"logits wgrad", "logits dgrad"} <= {p.label for p in drawn.points}
    said(drawn.dashed)
