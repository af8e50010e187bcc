"""A figure that a report gives twice is the same twice: JSON, terminal, page and Markdown."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from tests.kept import analyzed
from tests.said import Listener
from tests.trace.tools import need_shared
from tracelens import numbers as f
from tracelens.render import groups
from tracelens.render.html import render_html
from tracelens.render.markdown import render_report_markdown
from tracelens.render.terminal import render_terminal
from tracelens.results import Report

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "shared" / "traces"
FILES = [
    *sorted((ROOT / "sample_traces").glob("*50257.json.gz")),
    *(path for name in ("d1_", "d3_", "d4_") for path in sorted(TRACES.glob(f"{name}*.json.gz"))),
]
EVERY = [*FILES, *(path for path in sorted(TRACES.glob("*.json.gz")) if path not in FILES)]


@cache
def _report(path: Path) -> Report:
    return analyzed(path).report


@cache
def _page(path: Path) -> str:
    return render_html(_report(path))


def _terminal(report: Report, width: int, *, verbose: bool = False) -> str:
    file = io.StringIO()
    render_terminal(report, console=Console(file=file, width=width), verbose=verbose)
    return file.getvalue()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_shares_and_times_of_the_steps_agree(path: Path) -> None:
    report = _report(path)
    whole = report.summary.gpu_ms_per_step
    assert sum(row.frac for row in report.components) == pytest.approx(1)
    assert sum(row.time_ms_per_step for row in report.components) == pytest.approx(whole)
    for component in report.components:
        assert component.frac == pytest.approx(component.time_ms_per_step / whole)
    for row in report.gemms:
        assert row.frac == pytest.approx(row.time_ms_per_step / whole)
    assert report.summary.gemm_frac == pytest.approx(sum(row.frac for row in report.gemms))
    shown = {share.key: share.frac for share in groups.group_shares(report)}
    assert report.coverage.unattributed_frac == pytest.approx(shown.get("unattributed", 0.0), abs=1e-9)
    assert report.coverage.other_frac == pytest.approx(shown.get("other", 0.0), abs=1e-9)
    calls = sum(row.time_ms_per_step for row in report.communication)
    assert calls / whole == pytest.approx(shown.get("comm", 0.0), abs=1e-9)
    missing_ms = sum(one.time_ms for one in report.coverage.unattributed) / len(report.steps)
    assert missing_ms / whole == pytest.approx(shown.get("unattributed", 0.0), abs=1e-9)
    assert sum(step.duration_ms * step.gpu_busy_frac for step in report.steps) == pytest.approx(
        report.summary.gpu_busy_frac * sum(step.duration_ms for step in report.steps)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_terminal_page_and_markdown_say_the_same(path: Path) -> None:
    report = _report(path)
    told = [
        _terminal(report, 120, verbose=True),
        _page(path),
        render_report_markdown(report).replace("\\", ""),
    ]
    for share in groups.group_shares(report):
        for text in told:
            assert f.pct(share.frac).replace("<", "") in text and f.ms(share.ms_per_step) in text
    for row in report.gemms[:6]:
        for text in told:
            assert f.sig(row.time_ms_per_step) in text and f.pct(row.frac) in text
    terminal = " ".join(told[0].split())
    communication = next((one for one in groups.group_shares(report) if one.key == "comm"), None)
    if communication is not None:
        assert f"{f.pct(communication.frac)} of GPU time, {f.ms(communication.ms_per_step)}" in terminal
    assert "GEMM shares count it" not in terminal


def test_tiles_and_waves_are_of_one_count(said: Listener) -> None:
    """The slices of a split K fill waves: d2's 32 tiles in 2 slices are 64 in 3 waves of 28 SMs."""
    report = _report(need_shared("d2_"))
    (row,) = (one for one in report.gemms if one.id == "g2")
    assert (row.tiles, row.split_k, row.slices, row.waves) == (32, 2, 64, 3)
    assert row.wave_eff_frac == pytest.approx(64 / (3 * 28))
    assert "64 / 3<small>76.2% full, K in 2</small>" in render_html(report)
    assert "64/3" in _terminal(report, 120, verbose=True)
    said(next(check.why for check in report.checks if check.rule == "TL105"))


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_terminal_and_page_name_the_same_component_as_the_largest(path: Path) -> None:
    report = _report(path)
    _, _, listed = _terminal(report, 80).partition("GPU time by component")
    shares = groups.group_shares(report)
    largest = max(shares, key=lambda one: one.ms_per_step)
    assert listed.splitlines()[1].startswith(f"{largest.title} ")
    page = _page(path)
    assert f">{largest.title}</span><b>{f.pct(largest.frac)}</b>" in page
    assert f"Components and layers <small>{largest.short} {f.pct(largest.frac)}" in page


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_findings_together_save_no_more_than_each_of_them_alone(path: Path) -> None:
    report = _report(path)
    stake = report.summary.shape_waste_ms
    parts = [one.saving_ms for one in report.findings if one.saving_of != "wait"]
    if stake is not None:
        assert (stake.high or 0.0) <= 1e-6 + sum(one.high or 0.0 for one in parts)
        assert (stake.mid or 0.0) <= 1e-6 + sum(one.mid or 0.0 for one in parts)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_no_section_is_only_its_heading(path: Path) -> None:
    page = _page(path)
    assert len(page.encode()) <= 300_000
    for section in re.findall(r"<section .*?</section>", page, re.DOTALL):
        heading, content = re.fullmatch(r"(.*?</h2>)(.*)", section, re.DOTALL).groups()  # type: ignore[union-attr]
        assert len("".join(re.sub(r"<[^>]+>", "", content).split())) > 20, heading


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_what_is_in_no_part_of_a_transformer_is_said_by_what_it_does(path: Path) -> None:
    report = _report(path)
    shown = {share.key: share.frac for share in groups.group_shares(report)}
    for component in ("other", "unattributed"):
        told = [one.frac for one in report.coverage.outside if one.component == component]
        assert sum(told) <= shown.get(component, 0.0) + 1e-9
        # kinds of less than 1% each are not listed
        assert shown.get(component, 0.0) < 0.1 or sum(told) > 0.6 * shown[component]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_real_report_leaves_the_terminal(path: Path, width: int) -> None:
    lines = _terminal(_report(path), width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= 24
    lines = _terminal(_report(path), width, verbose=True).splitlines()
    assert max(len(line) for line in lines) <= width
    assert width < 100 or len(lines) <= 60 or path not in FILES
