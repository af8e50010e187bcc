"""Names in the roofline figure: none on another, on a point or outside, on pages of real traces, too."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

from tests.render import sample_report
from tracelens.analysis import analyze
from tracelens.render.roofline import NARROW, WIDE, Frame, roofline
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
    return sample_report.full() if name == "full" else analyze(TRACES[name]).report


def _box(words: str, x: float, y: float, anchor: str, frame: Frame) -> Box:
    width = 0.9 * frame.character * len(words)  # a font a tenth wider than it is counted for is rare
    left = x - width if anchor == "end" else x
    return left, y - 9, left + width, y + 2


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["full", *TRACES])
def test_names_are_free_of_each_other_and_of_points(name: str, frame: Frame) -> None:
    report = _report(name)
    drawn = roofline(report, report.gemms, frame=frame)
    if drawn is None:
        pytest.skip("no roofline of this trace")
    bounds = [_box(one.label, one.label_x, one.label_y, "end", frame) for one in drawn.roofs]
    names = [_box(p.label, p.label_x, p.label_y, p.anchor, frame) for p in drawn.points if p.label]
    assert bounds and names
    for one, other in itertools.combinations([*bounds, *names], 2):
        assert not _meet(one, other)
    dots = [(p.x - p.r, p.y - p.r, p.x + p.r, p.y + p.r) for p in drawn.points]
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


def test_rows_with_a_finding_are_named_first() -> None:
    report = _report("full")
    drawn = roofline(report, report.gemms, frame=NARROW)
    assert drawn is not None
    found = {p.title.split(",")[0] for p in drawn.points if p.bad}
    assert len([p for p in drawn.points if p.label]) == NARROW.names
    assert sum(p.label in found for p in drawn.points if p.label) >= 3
