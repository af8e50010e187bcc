"""The page's pictures and the other pages in a real browser: reachable by key, readable, printable."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.browser import devtools
from tests.browser.conftest import Open
from tests.job.simulated import Simulation, data_parallel
from tests.render import sample_report
from tracelens.api import compare
from tracelens.job.run import analyze_job
from tracelens.render.compare_html import render_compare_html
from tracelens.render.job_html import render_job_html
from tracelens.results.job import JobGemm

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
KEYS = {"Tab": 9, "ArrowRight": 39, "Home": 36, "Enter": 13}


def _press(page: devtools.Page, key: str) -> None:
    for kind in ("rawKeyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])
    page.run("new Promise(done => setTimeout(done))")


def _ax(page: devtools.Page) -> list[dict[str, Any]]:
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [node for node in nodes if not node.get("ignored")]


def _named(nodes: list[dict[str, Any]], *roles: str) -> list[str]:
    return [
        node.get("name", {}).get("value", "") for node in nodes if node.get("role", {}).get("value") in roles
    ]


def test_a_curve_is_read_point_by_point_with_the_keyboard(opened: Open) -> None:
    page = opened()
    curve = sample_report.full().explorer.curves[0]
    first = '.curve[data-at="0"]'
    page.run(OPEN_ALL)
    page.run(f"document.querySelector('{first} input').focus()")
    said = f"document.querySelector('{first} output').value"
    assert page.run(said) == "10240, on 128 bytes: 149.5 ms, now"
    assert page.run("document.querySelector('.at-read')") is None  # nothing is marked before a key is pressed
    _press(page, "ArrowRight")
    assert page.run(said).startswith("10241, on 2 bytes: 229.5 ms (228 ms")
    spoken = page.run(f"document.querySelector('{first} input').getAttribute('aria-valuetext')")
    assert spoken == page.run(said)
    _press(page, "Home")
    assert page.run(said).startswith(f"{curve.values[0]}, on 128 bytes: ")
    left = page.run(f"document.querySelector('{first} svg').dataset.left")
    assert page.run("document.querySelector('.at-read').getAttribute('d')").startswith(f"M{left} ")
    assert page.complaints() == []


def test_the_reading_line_stands_on_the_marks(opened: Open) -> None:
    """What the script computes from the data is where the server drew the value: now, on every curve."""
    page = opened()
    page.run("document.querySelectorAll('.curve input').forEach(i => i.dispatchEvent(new Event('input')))")
    lines = page.run(
        "[...document.querySelectorAll('.at-read')].map(l => parseFloat(l.getAttribute('d').slice(1)))"
    )
    marks = page.run("[...document.querySelectorAll('.curve .now')].map(c => c.cx.baseVal.value)")
    assert len(lines) == 4 and lines == pytest.approx(marks, abs=0.06)


def test_values_without_a_prediction_are_passed_over(opened: Open) -> None:
    page = opened()
    known = [time for time in sample_report.full().explorer.curves[0].mid_ms if time is not None]
    first = '.curve[data-at="0"]'
    assert page.run(f"document.querySelector('{first} input').max") == str(len(known) - 1)


def test_tab_reaches_every_control_in_the_order_of_the_page(opened: Open) -> None:
    page = opened()
    focusable = "a[href], button, input, summary, [tabindex='0']"
    page.run("document.activeElement.blur()")
    tops = []
    for _ in range(60):
        _press(page, "Tab")
        tops.append(
            page.run(
                f"[...document.querySelectorAll({focusable!r})].filter(e => e.getClientRects().length ||"
                " e.matches('.skip')).indexOf(document.activeElement)"
            )
        )
    assert tops[0] == 0 and -1 not in tops
    assert tops == sorted(set(tops))


def test_headings_are_nested_and_every_picture_control_and_region_has_a_name(opened: Open) -> None:
    page = opened("what_if")
    page.run(OPEN_ALL)
    levels = page.run("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    nodes = _ax(page)
    for roles in (("image", "img"), ("slider",), ("region",), ("navigation",), ("searchbox",), ("figure",)):
        names = _named(nodes, *roles)
        assert names, roles
        assert roles == ("figure",) or all(names), roles
    assert "main" in {node.get("role", {}).get("value") for node in nodes}


def test_a_picture_says_to_a_reader_what_it_shows(opened: Open) -> None:
    page = opened()
    page.run(OPEN_ALL)
    names = _named(_ax(page), "image", "img")
    assert any(name.startswith("vocab from 50176 to 50368: ") for name in names)
    assert any("suggested TL101: 50304" in name for name in names)
    assert any(name.startswith("GPU time by layer: ") and "Layer 3" in name for name in names)
    assert any(name.startswith("forward of layer 16: 5 kernels") for name in names)


def test_the_contents_lead_to_their_sections(opened: Open) -> None:
    page = opened()
    links = page.run("[...document.querySelectorAll('.toc a')].map(a => a.getAttribute('href'))")
    assert len(links) >= 9
    for link in links:
        page.run(f"document.querySelector('.toc a[href=\\'{link}\\']').click()")
        page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        top = page.run(f"document.querySelector('{link}').getBoundingClientRect().top")
        assert -1 <= top <= page.run("innerHeight"), link


def test_without_script_the_pictures_stand_and_no_dead_control(opened: Open) -> None:
    page = opened(scripts=False)
    document = page.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    for selector in (".bar", ".curve:first-child > svg", ".toc"):
        found = page.call("DOM.querySelectorAll", nodeId=document, selector=selector)["nodeIds"]
        assert found, selector
        for node in found[:1]:
            assert page.call("DOM.getBoxModel", nodeId=node)["model"]["height"] > 15
    assert page.call("DOM.querySelectorAll", nodeId=document, selector=".curve input")["nodeIds"] == []


def test_in_print_pictures_stay_and_controls_go(opened: Open) -> None:
    page = opened()
    page.run(OPEN_ALL)
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert page.run("document.querySelector('.curve input').getClientRects().length") == 0
    assert page.run("document.querySelector('.curve > svg').getBoundingClientRect().height") > 60
    assert page.run("document.querySelector('.icicle .strip').getBoundingClientRect().height") > 10
    page.run(OPEN_ALL)
    assert page.run(CONTRAST)["bad"] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["what_if", "waits", "unknown_gpu", "hostile"])
def test_every_section_can_be_read_in_light_and_dark(opened: Open, name: str, dark: bool) -> None:
    page = opened(name, dark=dark)
    page.run(OPEN_ALL)
    result = page.run(CONTRAST)
    assert result["bad"] == [] and result["seen"] > 100


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_comparison_is_quiet_readable_and_fits(
    browser: devtools.Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    before, after = (SAMPLES / f"generated_gpt2_vocab{size}.json.gz" for size in (50257, 50304))
    path = tmp_path / "compare.html"
    path.write_text(render_compare_html(compare(before, after)), encoding="utf-8")
    page = devtools.Page(browser, width=width, dark=dark)
    try:
        page.open(path)
        assert page.complaints() == []
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run(CONTRAST)["bad"] == []
        assert all(_named(_ax(page), "image", "img", "region", "link"))
        reach = "[...document.querySelectorAll('.scroll, a[href]')].filter(e => e.tabIndex < 0).length"
        assert page.run(reach) == 0
    finally:
        page.close()


def test_the_embedded_data_is_what_the_curves_show(opened: Open) -> None:
    page = opened()
    data = json.loads(page.run("document.getElementById('report').textContent"))
    shown = [curve for curve in data["explorer"]["curves"] if not curve.get("why")]
    titles = page.run("[...document.querySelectorAll('.curve h3')].map(h => h.textContent)")
    assert sorted(curve["parameter"] for curve in shown) == sorted(titles)


def test_the_gemms_of_a_comparison_are_filtered_and_sorted_with_those_that_are_folded(
    browser: devtools.Browser, tmp_path: Path
) -> None:
    before, after = (SAMPLES / f"generated_gpt2_vocab{size}.json.gz" for size in (50257, 50304))
    path = tmp_path / "compare.html"
    path.write_text(render_compare_html(compare(before, after)), encoding="utf-8")
    page = devtools.Page(browser)
    try:
        page.open(path)
        seen = "[...document.querySelectorAll('.gemms tbody tr')].filter(r => !r.hidden).length"
        every, fold = page.run(seen), "document.querySelector('#gemms-still').closest('details').open"
        assert page.run(fold) is False
        page.run(
            "{ const i = document.getElementById('filter'); i.value = 'mlp wgrad';"
            "i.dispatchEvent(new Event('input')); }"
        )
        assert 0 < page.run(seen) < every and page.run(fold) is True
        assert f"of {every} rows" in page.run("document.getElementById('shown').value")
        page.run("document.querySelectorAll('#gemms-still thead button')[3].click()")
        times = page.run(
            "[...document.querySelectorAll('#gemms-still tbody tr')].map(r => +r.cells[3].dataset.v)"
        )
        assert times == sorted(times, reverse=True) and len(times) > 3
        assert page.run("document.querySelectorAll('#gemms [aria-sort]').length") == 0
        assert page.complaints() == []
    finally:
        page.close()


def test_a_jobs_shapes_stay_on_one_line_of_a_telephone(browser: devtools.Browser, tmp_path: Path) -> None:
    """A step of an optimizer alone is named once."""
    row = JobGemm("optimizer", "", "optimizer", 16384, 50304, 10240, 8, "bf16", 2, 1.0, "rank 1", 1.1, 0.5)
    found = analyze_job(Simulation(data_parallel(2, steps=2)).write(tmp_path), workers=1)
    path = tmp_path / "job.html"
    path.write_text(render_job_html(msgspec.structs.replace(found, gemms=[row])), encoding="utf-8")
    page = devtools.Page(browser, width=420)
    try:
        page.open(path)
        cells = "[...document.querySelectorAll('[aria-label=GEMMs] tbody tr > *')]"
        assert page.run(f"{cells}[0].textContent") == "optimizer"
        assert page.run(f"{cells}[1].getBoundingClientRect().height") < 40
        assert page.run("document.documentElement.scrollWidth") <= 420
    finally:
        page.close()
