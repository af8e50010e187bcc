"""What objects show of themselves in a notebook, and what is kept of them there as text."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import tracelens
from tests.render import sample_report
from tracelens import Analysis
from tracelens.api import ShownComparison, ShownSuggestions
from tracelens.render.compare_html import render_compare_html
from tracelens.render.html import render_html


@pytest.fixture(scope="module")
def comparison() -> ShownComparison:
    return tracelens.compare(sample_report.full(), sample_report.no_findings())


@pytest.fixture(scope="module")
def suggestions(tmp_path_factory: pytest.TempPathFactory) -> ShownSuggestions:
    config = tmp_path_factory.mktemp("model") / "config.json"
    sizes = {"hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 4, "vocab_size": 50257,
             "intermediate_size": 6912, "max_position_embeddings": 2048}  # fmt: skip
    config.write_text(json.dumps({"model_type": "llama", **sizes}))
    return tracelens.suggest(config, gpu="h100-sxm")


def framed(shown: str) -> str:
    found = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*" title="[^"]*"></iframe>', shown)
    assert found is not None
    return html.unescape(found[1])


def test_an_analysis_shows_its_page_and_is_kept_as_a_line() -> None:
    analysis = Analysis(sample_report.full())
    assert framed(analysis._repr_html_()) == render_html(analysis.report)
    assert repr(analysis) == f"<Analysis of 'rank0.pt.trace.json.gz': {analysis.report.summary.verdict}>"
    assert "\n" not in repr(analysis)


def test_an_analysis_gives_the_pictures_of_its_report() -> None:
    analysis = Analysis(sample_report.full())
    assert analysis.plots.components().svg in analysis.plots._repr_html_()
    assert analysis.plots.parameters == tuple(
        curve.parameter for curve in analysis.report.explorer.curves if curve.why is None
    )


def test_a_comparison_shows_its_page_and_is_kept_as_a_line(comparison: ShownComparison) -> None:
    assert framed(comparison._repr_html_()) == render_compare_html(comparison)
    assert repr(comparison) == f"<Comparison: {comparison.verdict}>"


def test_a_comparison_of_folders_shows_its_page(tmp_path: Path) -> None:
    for name, report in (("before", sample_report.full()), ("after", sample_report.no_findings())):
        (tmp_path / name).mkdir()
        Analysis(report).save(tmp_path / name / "rank0.json")
    found = tracelens.compare_folders(tmp_path / "before", tmp_path / "after")
    assert framed(found._repr_html_()) == render_compare_html(found)
    assert repr(found) == f"<FolderComparison: {found.verdict}>"


def test_suggestions_show_what_the_terminal_shows(suggestions: ShownSuggestions) -> None:
    shown = suggestions._repr_html_()
    assert shown.startswith("<pre ") and shown.endswith("</pre>")
    said = html.unescape(re.sub(r"<[^>]*>", "", shown))
    assert suggestions.verdict in " ".join(said.split())
    for pick in suggestions.picks:
        assert pick.title in said
    assert repr(suggestions) == f"<Suggestions: {suggestions.verdict}>"


def test_suggestions_are_read_on_white_paper(suggestions: ShownSuggestions) -> None:
    shown = suggestions._repr_html_()
    assert "background:#fff" in shown
    inks = set(re.findall(r"(?<!-)color: (#[0-9a-f]{6})", shown))
    assert inks
    for ink in inks:
        assert 1.05 / (_luminance(ink) + 0.05) >= 4.5, ink


def _luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


@pytest.mark.parametrize("hostile", sample_report.HOSTILE_NAMES)
def test_names_are_text(hostile: str, suggestions: ShownSuggestions, comparison: ShownComparison) -> None:
    shown = replace(suggestions, model=hostile)._repr_html_()
    assert set(re.findall(r"<(/?[a-z]+)", shown)) <= {"pre", "/pre", "span", "/span"}
    framed(replace(comparison, verdict=hostile)._repr_html_())
    assert "\x1b" not in shown
