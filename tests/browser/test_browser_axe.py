"""axe-core, the engine that accessibility audits run, finds no violation of WCAG A or AA on our pages."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser import devtools
from tests.compare.test_folders import ranks, vocab
from tests.kept import analyzed
from tests.render import asked_report, large_report, sample_report, verified_report
from tracelens.api import compare as compare_reports
from tracelens.api import compare_folders
from tracelens.render.compare_html import render_compare_html
from tracelens.render.html import render_html

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "sample_traces").glob("*.json.gz"))
TRACES = SAMPLES + sorted((ROOT.parent / "shared" / "traces").glob("*.json.gz"))
#: Everything up to WCAG 2.2 AA.
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def engine() -> str:
    """axe-core as a Python package carries it; its driver, which that package asks for, is not needed."""
    try:
        files = importlib.metadata.files("axe-playwright-python") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("axe-core is not installed: pip install --no-deps axe-playwright-python")
    found = next(Path(str(file.locate())) for file in files if file.name == "axe.min.js")
    return found.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def axe() -> str:
    return engine()


def violations(browser: devtools.Browser, axe: str, html: str, folder: Path, **how: Any) -> list[str]:
    """What axe finds on a page with everything unfolded, a line each."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    page = devtools.Page(browser, **how)
    try:
        page.open(path)
        page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.run(axe + "; undefined")
        options = json.dumps({"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]})
        found = page.run(f"axe.run(document, {options}).then(done => JSON.stringify(done.violations))")
    finally:
        page.close()
    return [
        f"{one['id']}: {one['help']}: {node['target']}: {node['html'][:160]}"
        for one in json.loads(found)
        for node in one["nodes"]
    ]


def test_axe_sees_what_is_wrong(browser: devtools.Browser, axe: str, tmp_path: Path) -> None:
    bad = '<!doctype html><html lang="en"><title>x</title><img src="data:,"><p style="color:#ccc">pale'
    found = violations(browser, axe, bad, tmp_path)
    assert {line.partition(":")[0] for line in found} == {"image-alt", "color-contrast"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(sample_report.VARIANTS))
def test_no_violation_on_any_kind_of_page(
    browser: devtools.Browser, axe: str, tmp_path: Path, name: str, dark: bool
) -> None:
    html = render_html(sample_report.VARIANTS[name]())
    assert violations(browser, axe, html, tmp_path, dark=dark) == []


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name.split(".")[0])
def test_no_violation_on_the_page_of_a_trace(
    browser: devtools.Browser, axe: str, tmp_path: Path, trace: Path
) -> None:
    """One after another narrow and wide; what can be asked for beside it is in the pages below."""
    width = (360, 1280)[TRACES.index(trace) % 2]
    assert violations(browser, axe, render_html(analyzed(trace).report), tmp_path, width=width) == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_violation_on_a_verified_report(
    browser: devtools.Browser, axe: str, tmp_path: Path, width: int, dark: bool
) -> None:
    html = render_html(verified_report.report(verified_report.verified()))
    assert violations(browser, axe, html, tmp_path, width=width, dark=dark) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_violation_on_a_comparison(
    browser: devtools.Browser, axe: str, tmp_path: Path, dark: bool
) -> None:
    before, after = (analyzed(path).report for path in SAMPLES[:2])
    html = render_compare_html(compare_reports(before, after))
    assert violations(browser, axe, html, tmp_path, dark=dark) == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_violation_with_everything_that_can_be_asked_for(
    browser: devtools.Browser, axe: str, tmp_path: Path, width: int, dark: bool
) -> None:
    html = render_html(asked_report.asked())
    assert violations(browser, axe, html, tmp_path, width=width, dark=dark) == []


@pytest.mark.parametrize("html", [lambda: render_html(asked_report.hostile()),
                                  lambda: render_html(large_report.large(18, 40))],
                         ids=["hostile", "findings of one line"])  # fmt: skip
def test_no_violation_on_hostile_and_on_many(
    browser: devtools.Browser, axe: str, tmp_path: Path, html: Callable[[], str]
) -> None:
    assert violations(browser, axe, html(), tmp_path) == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_violation_on_a_comparison_of_folders(
    browser: devtools.Browser, axe: str, tmp_path: Path, width: int, dark: bool
) -> None:
    folders = (ranks(tmp_path / "before"), ranks(tmp_path / "after", factor=1.1, change=vocab))
    html = render_compare_html(compare_folders(*folders))
    assert violations(browser, axe, html, tmp_path, width=width, dark=dark) == []
