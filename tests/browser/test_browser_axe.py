"""axe-core, the engine that accessibility audits run, finds no violation of WCAG A or AA on our pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import Open, engine, violations
from tests.compare.test_folders import ranks, vocab
from tests.kept import analyzed
from tests.render import asked_report, large_report, sample_report, verified_report
from tracelens.api import compare as compare_reports
from tracelens.api import compare_folders
from tracelens.render.compare_html import render_compare_html
from tracelens.render.html import render_html

SAMPLES = sorted((Path(__file__).resolve().parents[2] / "sample_traces").glob("*.json.gz"))
pytestmark = pytest.mark.skipif(
    not engine(), reason="axe-core is not installed: pip install --no-deps axe-playwright-python"
)


def folders(tmp_path: Path) -> str:
    before, after = ranks(tmp_path / "before"), ranks(tmp_path / "after", factor=1.1, change=vocab)
    return render_compare_html(compare_folders(before, after))


def comparison(_: Path) -> str:
    before, after = (analyzed(path).report for path in SAMPLES[:2])
    return render_compare_html(compare_reports(before, after))


#: Pages of every kind beside the variants: those of real traces are looked at in test_browser_page.
PAGES: dict[str, Callable[[Path], str]] = {
    "verified": lambda _: render_html(verified_report.report(verified_report.verified())),
    "asked": lambda _: render_html(asked_report.asked()),
    "hostile": lambda _: render_html(asked_report.hostile()),
    "findings of one line": lambda _: render_html(large_report.large(18, 40)),
    "comparison": comparison,
    "folders": folders,
}


def test_axe_sees_what_is_wrong(show: Open) -> None:
    bad = '<!doctype html><html lang="en"><title>x</title><img src="data:,"><p style="color:#ccc">pale'
    found = violations(show(bad))
    assert {line.partition(":")[0] for line in found} == {"image-alt", "color-contrast"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", sorted(sample_report.VARIANTS))
def test_no_violation_on_any_variant_of_the_page(opened: Open, name: str, dark: bool) -> None:
    assert violations(opened(name, dark=dark)) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_violation_on_any_kind_of_page(show: Open, tmp_path: Path, name: str) -> None:
    html = PAGES[name](tmp_path)
    for width, dark in itertools.product((360, 1280), (False, True)):
        assert violations(show(html, width=width, dark=dark)) == [], (width, dark)
