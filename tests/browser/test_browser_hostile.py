"""Names from a trace are text in every section and page; large pages work, and without script too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser import devtools
from tests.browser.conftest import Open
from tests.compare.test_folders import hostile as hostile_folders
from tests.render import asked_report, large_report
from tests.render.sample_report import HOSTILE
from tracelens.render.compare_html import render_compare_html
from tracelens.render.html import render_html
from tracelens.render.limits import WHOLE
from tracelens.render.markdown import render_report_markdown

ROWS = "[...document.querySelectorAll('#gemms tbody tr')]"
SECTIONS = ("h-findings", "h-what_if", "h-search", "h-explorer", "h-components", "h-layer", "h-waits")


def _quiet(page: devtools.Page) -> None:
    page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.run("document.querySelectorAll('img, svg[onload], main script, iframe').length") == 0
    assert page.seen("Page.javascriptDialogOpening") == []
    assert page.complaints() == []
    assert [url.rsplit("/", 1)[-1] for url in page.requests()] == ["page.html"]


@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_names_are_text_in_every_section(show: Open, width: int) -> None:
    page = show(render_html(asked_report.hostile()), width=width)
    _quiet(page)
    for name in SECTIONS:
        text = page.run(f"document.querySelector('section[aria-labelledby={name}]').textContent")
        assert "onerror=alert(1)" in text, name
    assert "onerror=alert(1)" in page.run("document.querySelector('.measured').textContent")
    data = json.loads(page.run("document.getElementById('report').textContent"))
    assert data["shape_search"]["verdict"] == HOSTILE
    assert page.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_names_are_text_in_a_comparison_of_folders(show: Open, tmp_path: Path, width: int) -> None:
    page = show(render_compare_html(hostile_folders(tmp_path)), width=width)
    _quiet(page)
    assert "onerror=alert(1)" in page.run("document.body.textContent")
    assert page.run("document.querySelectorAll('a[href^=http]').length") == 0
    assert page.run("document.documentElement.scrollWidth") <= width


def test_hostile_names_are_text_in_markdown() -> None:
    text = render_report_markdown(asked_report.hostile())
    assert "onerror" in text and "\x1b" not in text and "\u202e" not in text
    outside = "".join(text.split("```")[::2])  # a block of code holds text already
    assert "<img" not in outside.replace("\\<img", "")
    assert "](http" not in outside.replace("\\](", "").replace("\\]\\(", "")


def test_without_script_every_section_that_can_be_asked_for_stands(show: Open) -> None:
    page = show(render_html(asked_report.asked()), scripts=False)
    document = page.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    for folded in page.call("DOM.querySelectorAll", nodeId=document, selector="details")["nodeIds"]:
        page.call("DOM.setAttributeValue", nodeId=folded, name="open", value="")  # as a click does
    for name in SECTIONS:
        node = page.call("DOM.querySelector", nodeId=document, selector=f"section[aria-labelledby={name}]")
        assert page.call("DOM.getBoxModel", nodeId=node["nodeId"])["model"]["height"] > 60, name
    for selector in (".measured table", "section[aria-labelledby=h-search] table", ".front svg"):
        node = page.call("DOM.querySelector", nodeId=document, selector=selector)
        assert page.call("DOM.getBoxModel", nodeId=node["nodeId"])["model"]["height"] > 30, selector


@pytest.mark.parametrize("scripts", [True, False])
def test_a_link_to_a_finding_of_one_line_unfolds_the_table(show: Open, scripts: bool) -> None:
    count = WHOLE + 40
    page = show(render_html(large_report.large(18, count)), f"#f{count}", scripts=scripts)
    document = page.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=document, selector=f"details[open] #f{count}")["nodeId"]
    assert page.call("DOM.getBoxModel", nodeId=node)["model"]["height"] > 10


def test_the_largest_page_sorts_filters_and_fits(show: Open) -> None:
    page = show(render_html(large_report.large(5000, 500)), width=360)
    _quiet(page)
    assert page.run("document.documentElement.scrollWidth") <= 360
    sorts_and_filters(page)


def sorts_and_filters(page: devtools.Page) -> None:
    before = sorted(page.run(f"{ROWS}.map(row => row.id)"))
    columns = page.run("document.querySelectorAll('#gemms thead th').length")
    for column in range(columns):
        page.run(f"document.querySelectorAll('#gemms thead button')[{column}].click()")
        values = page.run(f"{ROWS}.map(row => row.cells[{column}].dataset.v ?? null)")
        known = [float(value) for value in values if value is not None]
        assert known == sorted(known, reverse=True)
        assert all(value is None for value in values[len(known) :]), "what is unknown comes last"
    assert sorted(page.run(f"{ROWS}.map(row => row.id)")) == before
    word = page.run(f"{ROWS}[0].querySelector('th').firstChild.textContent.trim().split(/\\s/)[0]")
    page.run(
        "{ const box = document.getElementById('filter');"
        f"box.value = {json.dumps(word)}; box.dispatchEvent(new Event('input')); }}"
    )
    shown = page.run(f"{ROWS}.filter(row => !row.hidden).length")
    holding = page.run(
        f"{ROWS}.filter(row => (row.textContent + row.querySelector('.kernel').title)"
        f".toLowerCase().includes({json.dumps(word.lower())})).length"
    )
    assert 0 < shown == holding
    assert page.run("document.getElementById('shown').value") == f"{shown} of {len(before)} rows"
