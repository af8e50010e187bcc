"""Pictures that stand alone: they say what the report says, are read anywhere, and run nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tracelens
from tests.render import sample_report
from tests.render.sample_search import FOUND, FRONT, GOOD, PICK
from tests.said import Listener
from tracelens import numbers as f
from tracelens.comparison.spelling import signed_ms
from tracelens.errors import UsageError
from tracelens.render import facts, groups, losses
from tracelens.render.plots import Plots
from tracelens.render.standing import colour_of
from tracelens.render.svg import PAPER, Plot
from tracelens.results import Report

SVG = "{http://www.w3.org/2000/svg}"
#: All that a picture is made of: nothing that runs, styles its surroundings, or points outside.
ELEMENTS = {"svg", "title", "desc", "g", "rect", "path", "line", "polygon", "polyline", "circle", "text"}
NAMES = ("components", "gemm_time", "roofline", "shares", "layers", "layer", "front", "shape")


def searched() -> Report:
    return replace(sample_report.full(), shape_search=FOUND)


def plot(report: Report, name: str) -> Plot:
    plots = Plots(report)
    drawn: Plot = plots.shape("vocab") if name == "shape" else getattr(plots, name)()
    return drawn


def read(drawn: Plot) -> ElementTree.Element:
    return ElementTree.fromstring(drawn.svg)


def words(drawn: Plot) -> list[str]:
    return [one.text or "" for one in read(drawn).iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def report() -> Report:
    return searched()


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_told_to_who_does_not_see_it_and_needs_nothing_else(report: Report, name: str) -> None:
    drawn = plot(report, name)
    tree = read(drawn)
    title, described = tree.find(f"{SVG}title"), tree.find(f"{SVG}desc")
    assert title is not None and described is not None
    assert title.text == drawn.title and (described.text or "").startswith(drawn.description[:200])
    assert tree.get("aria-labelledby") == f"{title.get('id')} {described.get('id')}"
    assert tree.get("role") == "img"
    assert {one.tag.removeprefix(SVG) for one in tree.iter()} <= ELEMENTS
    assert not re.search(r"href|url\(|class=|on[a-z]+=", drawn.svg)
    assert drawn._repr_svg_() == str(drawn) == drawn.svg
    assert len(repr(drawn)) < 120


@pytest.mark.parametrize("name", NAMES)
def test_its_paper_is_its_own_so_that_it_reads_on_a_dark_page(report: Report, name: str) -> None:
    tree = read(plot(report, name))
    paper = tree.find(f"{SVG}rect")
    assert paper is not None and paper.get("fill") == PAPER
    width, height = float(tree.get("width", 0)), float(tree.get("height", 0))
    assert [0, 0, width, height] == [float(one) for one in tree.get("viewBox", "").split()]
    assert float(paper.get("width", 0)) >= width - 1 and float(paper.get("height", 0)) >= height - 1


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drawn_beside_the_paper(report: Report, name: str) -> None:
    tree = read(plot(report, name))
    width = float(tree.get("width", 0))
    for one in tree.iter(f"{SVG}rect"):
        x = float(one.get("x", 0))
        assert x >= 0 and x + float(one.get("width", 0)) <= width
    for one in tree.iter(f"{SVG}text"):
        assert 0 <= float(one.get("x", 0)) <= width


def test_the_page_s_style_is_in_the_attributes(report: Report) -> None:
    assert colour_of("g-mlp") == "#2a7f4f" and colour_of("p-recompute") == "#a8432f"
    assert colour_of("g-unattributed") is None, "hatched on the page, a dashed border here"
    drawn = read(plot(report, "components"))
    of_mlp = next(one for one in drawn.iter(f"{SVG}g") if "MLP: " in (one.findtext(f"{SVG}title") or ""))
    bar, label = of_mlp.find(f"{SVG}rect"), of_mlp.find(f"{SVG}text")
    assert bar is not None and label is not None
    assert (bar.get("fill"), label.get("fill"), label.get("text-anchor")) == ("#2a7f4f", "#fff", "middle")
    assert "var(" not in "".join(one.svg for one in Plots(report)) and "%" not in str(bar.attrib)


def test_the_bar_of_components_is_all_of_the_gpu_time(report: Report) -> None:
    drawn = plot(report, "components")
    shares = groups.group_shares(report)
    tree = read(drawn)
    bars = [one for one in tree.iter(f"{SVG}rect") if 50 <= float(one.get("height", 0)) <= 54]
    assert len(bars) == len(shares)
    for share, bar in zip(shares, bars, strict=True):
        assert float(bar.get("width", 0)) / 952 == pytest.approx(share.frac, abs=0.003)
        assert f"{share.title}: " in drawn.description
        assert share.title in words(drawn)


def test_the_fall_of_gemm_time_ends_at_what_is_useful(report: Report) -> None:
    drawn = plot(report, "gemm_time")
    falls = losses.waterfall(report)
    assert [fall.text for fall in falls] == [one for one in words(drawn) if one.endswith((" ms", " µs"))]
    bars = [one for one in read(drawn).iter(f"{SVG}rect") if one.get("height") == "14"]
    whole = float(bars[0].get("width", 0))
    for fall, bar in zip(falls, bars, strict=True):
        assert float(bar.get("width", 0)) / whole == pytest.approx(fall.frac, abs=0.012)
        assert (float(bar.get("x", 0)) - float(bars[0].get("x", 0))) / whole == pytest.approx(
            fall.start, abs=0.006
        )


def test_every_row_with_a_finding_is_a_diamond_in_the_roofline(report: Report) -> None:
    drawn = plot(report, "roofline")
    red = [one for one in read(drawn).iter(f"{SVG}path") if one.get("fill") == "#b3261e"]
    blue = list(read(drawn).iter(f"{SVG}circle"))
    known = [row for row in report.gemms if row.tflops and row.math_dtype in report.gpu.peak_tflops]
    assert len(red) == sum(bool(row.findings) for row in known)
    assert len(red) + len(blue) == len(known)
    assert any("◆ has a finding" in line for line in words(drawn)) and "▲" not in drawn.svg


def test_one_curve_for_each_hyper_parameter_that_has_one(report: Report) -> None:
    plots = Plots(report)
    assert plots.parameters == ("ffn", "vocab", "heads", "sequence")
    drawn = plots.shape("vocab")
    assert "TL101: 50304" in words(drawn) and "now" in words(drawn)
    assert "now 50257" in drawn.description
    with pytest.raises(UsageError, match=r"no curve of 'hidden': sizes of 4\.1 ms are in no formula"):
        plots.shape("hidden")
    with pytest.raises(UsageError, match="no curve of 'depth': this report has ffn, vocab, heads, sequence"):
        plots.shape("depth")


def test_the_front_of_the_shape_search_names_its_picks(report: Report, said: Listener) -> None:
    drawn = plot(report, "front")
    circles = list(read(drawn).iter(f"{SVG}circle"))
    assert len(circles) == len(FRONT) + 1 + 1  # the present shape and the pick
    said(next(one for one in words(drawn) if one.startswith("1. heads 32 → 20: ")))
    assert PICK.title in drawn.description and {"1", "now"} <= {one.strip() for one in words(drawn)}
    two = replace(report, shape_search=replace(FOUND, picks=[PICK, PICK]))
    assert "1, 2" in words(plot(two, "front")), "numbers of one place are one name"
    with pytest.raises(UsageError, match=r"no picture of the shape search: This shape is already good"):
        Plots(replace(report, shape_search=GOOD)).front()


def test_the_layer_is_drawn_kernel_by_kernel(report: Report) -> None:
    timeline = report.layers.timeline
    assert timeline is not None
    drawn = plot(report, "layer")
    titles = [one.text or "" for one in read(drawn).iter(f"{SVG}title")]
    assert len(titles) - 1 == sum(len(one.start_us) for one in timeline.passes)
    assert drawn.title == f"Layer {timeline.layer}, kernel by kernel"


def test_what_cannot_be_drawn_says_why() -> None:
    unknown = sample_report.unknown_gpu()
    with pytest.raises(UsageError, match="no roofline: the peaks of this GPU are not known; name it"):
        Plots(unknown).roofline()
    layers = replace(unknown.layers, rows=[], timeline=None)
    empty = replace(unknown, components=[], gemms=[], gemm_time=None, layers=layers)
    plots = Plots(empty)
    for draw in (plots.components, plots.gemm_time, plots.layers, plots.layer, plots.front):
        with pytest.raises(UsageError, match=r"^no picture of .*: "):
            draw()
    assert list(plots) == []
    shown = Plots(empty)._repr_html_()
    assert "<svg" not in shown and "are not known" in shown


def test_all_pictures_are_shown_below_one_another(report: Report) -> None:
    shown = Plots(report)._repr_html_()
    found = list(Plots(report))
    assert [one.svg in shown for one in found] == [True] * shown.count("<svg ")
    assert len({one.name for one in found}) == len(found)
    assert all(re.fullmatch(r"[a-z_-]+", one.name) for one in found), "names are good for files"
    assert shown.count("<svg ") == len(NAMES) - 1 + len(Plots(report).parameters)
    keys = re.findall(r' id="([^"]+)"', shown)
    assert len(keys) == len(set(keys)), "an id names one thing on a page with many pictures"
    assert len(repr(Plots(report))) < 100


@pytest.mark.parametrize("name", NAMES)
def test_a_generated_trace_says_so_on_every_picture(report: Report, name: str) -> None:
    made = replace(report, trace=replace(report.trace, generated=True))
    measured = replace(report, trace=replace(report.trace, generated=False))
    assert facts.GENERATED in words(plot(made, name))
    assert facts.GENERATED in plot(made, name).description
    assert facts.GENERATED not in plot(measured, name).svg


@pytest.mark.parametrize("hostile", [*sample_report.HOSTILE_NAMES, "a\x00b\ufffe\uffff\ud800]]>&amp;<!--"])
def test_names_in_a_comparison_are_text(report: Report, hostile: str) -> None:
    other = replace(report, components=[replace(row, component=hostile) for row in report.components])
    drawn = tracelens.compare(report, other).plots.components()
    assert {one.tag.removeprefix(SVG) for one in read(drawn).iter()} <= ELEMENTS


@pytest.mark.parametrize("hostile", [*sample_report.HOSTILE_NAMES, "a\x00b\ufffe\uffff\ud800]]>&amp;<!--"])
def test_names_from_a_trace_are_text(report: Report, hostile: str) -> None:
    gemms = [replace(row, component=hostile) for row in report.gemms]
    components = [replace(row, component=hostile) for row in report.components]
    rows = [replace(row, component=hostile) for row in report.layers.rows]
    timeline = report.layers.timeline
    assert timeline is not None
    named = replace(
        report,
        trace=replace(report.trace, path=hostile),
        gpu=replace(report.gpu, title=hostile),
        gemms=gemms,
        components=components,
        shape_search=replace(FOUND, verdict=hostile, picks=[replace(PICK, title=hostile)]),
        layers=replace(
            report.layers, rows=rows, timeline=replace(timeline, names=[hostile] * len(timeline.names))
        ),
    )
    for name in NAMES:
        drawn = plot(named, name)
        assert {one.tag.removeprefix(SVG) for one in read(drawn).iter()} <= ELEMENTS
        assert drawn.svg.encode("utf-8").isascii() or not set(drawn.svg) & set("\x00\x1b\u202e\u2028\ufffe")
        assert len(drawn.svg) < 120_000
    html = Plots(named)._repr_html_()
    assert "<img" not in html and "<script" not in html


def test_a_comparison_is_drawn_where_its_times_compare(report: Report) -> None:
    found = tracelens.compare(report, sample_report.no_findings())
    drawn = found.plots.components()
    said = words(drawn)
    assert found.verdict in said
    for row in found.components[:12]:
        assert f"{row.component} {row.phase}" in said and signed_ms(row.diff_ms) in said
        assert (
            f"{row.component} {row.phase} {f.ms(row.before_ms)} → {f.ms(row.after_ms)}" in drawn.description
        )
    other = replace(report, gpu=replace(report.gpu, name="a100-sxm-80gb", title="NVIDIA A100"))
    with pytest.raises(UsageError, match=r"^no picture of components: times are not compared: "):
        tracelens.compare(report, other, across=True).plots.components()


def test_a_picture_is_saved_as_it_is_shown(report: Report, tmp_path: Path) -> None:
    drawn = plot(report, "components")
    drawn.save(tmp_path / "components.svg")
    assert (tmp_path / "components.svg").read_text(encoding="utf-8") == drawn.svg
    with pytest.raises(UsageError, match="there is no folder"):
        drawn.save(tmp_path / "none" / "components.svg")


def test_the_same_report_gives_the_same_picture(report: Report) -> None:
    for name in NAMES:
        assert plot(report, name) == plot(searched(), name)
