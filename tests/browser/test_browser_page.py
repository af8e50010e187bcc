"""The page in a real headless Chromium: quiet, offline, safe, readable, and alive."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from tests.browser import devtools
from tests.browser.conftest import Open, engine, violations
from tests.browser.test_browser_hostile import sorts_and_filters
from tests.kept import analyzed
from tests.render import sample_report
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import analyze
from tracelens.render.html import render_html

CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
ROOT = Path(__file__).resolve().parents[2]
TRACES = sorted((ROOT / "sample_traces").glob("*.json.gz")) + sorted(
    (ROOT.parent / "shared" / "traces").glob("*.json.gz")
)
ROWS = "[...document.querySelectorAll('#gemms tbody tr')]"


def _filter(page: devtools.Page, query: str) -> None:
    box = "document.getElementById('filter')"
    page.run(f"{box}.value = {query!r}; {box}.dispatchEvent(new Event('input'))")


@pytest.mark.parametrize("name", sorted(sample_report.VARIANTS))
def test_no_console_message_no_dialog_and_no_request_but_the_file_itself(opened: Open, name: str) -> None:
    page = opened(name)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.complaints() == []
    assert [url.rsplit("/", 1)[-1] for url in page.requests()] == [f"{name}.html"]


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name.split(".")[0])
def test_the_page_of_a_real_trace_is_quiet_offline_readable_and_alive(show: Open, trace: Path) -> None:
    """One after another light and dark, narrow and wide; below every kind of page in all of them."""
    at = TRACES.index(trace)
    page = show(render_html(analyzed(trace).report), dark=bool(at % 2), width=(360, 1280)[at // 2 % 2])
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.complaints() == []
    assert [url.rsplit("/", 1)[-1] for url in page.requests()] == ["page.html"]
    assert page.run(CONTRAST)["bad"] == []
    if engine():
        assert violations(page) == []
    if page.run(f"{ROWS}.length"):
        sorts_and_filters(page)
    assert page.complaints() == []


def test_a_hostile_trace_comes_out_as_text(browser: devtools.Browser, tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    model = ModelSpec(family="gpt2", hidden=128, heads=2, vocab=503, layers=1, sequence=64, micro_batch=1)
    made = build(model, Options(steps=1, module_frames=False, ranges=True)).text()
    trace = tmp_path / "trace.json"
    trace.write_text(made.replace("nvjet_", hostile + "nvjet_").replace("transformer.h.0.attn", hostile))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(trace).report), encoding="utf-8")
    page = devtools.Page(browser)
    try:
        page.open(path)
        assert page.run("document.querySelectorAll('img').length") == 0
        assert "onerror=alert(1)" in page.run("document.body.textContent")
        assert page.seen("Page.javascriptDialogOpening") == []
        assert page.complaints() == []
    finally:
        page.close()


def test_the_policy_really_stops_code_and_network(opened: Open) -> None:
    page = opened()
    page.run(
        "{ const s = document.createElement('script'); s.textContent = 'window.broken = 1';"
        "document.body.append(s);"
        "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i); }"
    )
    assert page.run("window.broken") is None
    assert len(page.complaints()) >= 2, "both are refused, and said so"


def test_hostile_names_are_text(opened: Open) -> None:
    page = opened("hostile")
    assert page.run("document.querySelectorAll('img, svg[onload], main script').length") == 0
    assert sample_report.HOSTILE in page.run("document.querySelector('h1').textContent")
    assert (
        json.loads(page.run("document.getElementById('report').textContent"))["trace"]["path"]
        == sample_report.HOSTILE
    )
    assert page.seen("Page.javascriptDialogOpening") == []


@pytest.mark.parametrize("name", sorted(sample_report.VARIANTS))
def test_the_page_never_scrolls_sideways(opened: Open, name: str) -> None:
    page = opened(name)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (1280, 700, 360):
        page.resize(width)
        assert page.run("document.documentElement.clientWidth") == width
        assert page.run("document.documentElement.scrollWidth") <= width
        inside = page.run(
            "document.querySelector('.tall').scrollWidth > document.querySelector('.tall').clientWidth"
        )
        assert inside or width > 1000, "the table scrolls in its own container"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["full", "no_findings", "partial", "generated", "no_transformer"])
def test_text_can_be_read_in_light_and_dark(opened: Open, name: str, dark: bool) -> None:
    page = opened(name, dark=dark)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    colour = page.run("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(18, 21, 26)" if dark else "rgb(255, 255, 255)")
    result = page.run(CONTRAST)
    assert result["bad"] == []
    assert result["seen"] > 100


def test_without_script_everything_still_shows(opened: Open) -> None:
    page = opened(scripts=False)
    count = len(sample_report.full().gemms)
    # Inspection from outside still works: the page's own script is what is off.
    document = page.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    rows = page.call("DOM.querySelectorAll", nodeId=document, selector="#gemms tbody tr")["nodeIds"]
    assert len(rows) == count
    assert page.call("DOM.querySelectorAll", nodeId=document, selector="#gemms button")["nodeIds"] == []
    for selector, shown in (
        (".bar", True),
        ("#gemms", True),
        ("details.part > summary", True),
        (".tools", False),
    ):
        node = page.call("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        if shown:
            assert page.call("DOM.getBoxModel", nodeId=node)["model"]["height"] > 15
        else:
            with pytest.raises(RuntimeError):  # no box: a dead control is not shown
                page.call("DOM.getBoxModel", nodeId=node)


def test_a_telephone_shows_a_gemms_sizes_and_time_without_scrolling(opened: Open) -> None:
    page = opened(width=420)
    right = page.run(
        "Math.max(...[...document.querySelectorAll('#gemms thead th')]"
        ".filter(th => /^(Component|M × N × K|ms)/.test(th.textContent))"
        ".map(th => th.getBoundingClientRect().right))"
    )
    assert 200 < right <= 420


def test_columns_sort_both_ways_with_unknown_values_last(opened: Open) -> None:
    page = opened()
    column = page.run(
        "[...document.querySelectorAll('#gemms thead th')]"
        ".findIndex(th => th.textContent.startsWith('TFLOP/s'))"
    )
    values = f"{ROWS}.map(r => parseFloat(r.cells[{column}].textContent.replace(/[,≤]/g, '')))"
    head = f"document.querySelectorAll('#gemms thead th')[{column}]"
    before = page.run(f"{ROWS}.map(r => r.id)")
    page.run(f"{head}.querySelector('button').click()")
    down = page.run(values)
    known = [v for v in down if v is not None]
    assert known == sorted(known, reverse=True) and down[-1] is None
    assert page.run(f"{head}.getAttribute('aria-sort')") == "descending"
    page.run(f"{head}.querySelector('button').click()")
    up = page.run(values)
    assert up[:-1] == sorted(known) and up[-1] is None
    page.run("document.querySelector('#gemms thead th button').click()")
    names = page.run(f"{ROWS}.map(r => r.cells[0].textContent)")
    assert names[0].startswith("attention.core") and names[-1].startswith("unattributed")
    assert sorted(page.run(f"{ROWS}.map(r => r.id)")) == sorted(before)
    assert page.complaints() == []


@pytest.mark.parametrize(
    ("query", "count"),
    [("mlp wgrad", 2), ("TL101", 3), ("2048x2560x10240", 2), ("nothing like it", 0), ("", 16)],
)
def test_the_filter_keeps_rows_that_hold_every_word(opened: Open, query: str, count: int) -> None:
    page = opened()
    _filter(page, query)
    assert page.run(f"{ROWS}.filter(r => r.getClientRects().length).length") == count
    assert page.run("document.getElementById('shown').value") == (
        f"{count} of 18 rows" if query else "18 rows"
    )
    page.run("document.getElementById('every').checked = true")
    assert query or page.run(f"{ROWS}.filter(r => r.getClientRects().length).length") == 18


def test_a_link_to_a_folded_finding_opens_it_and_one_to_a_row_shows_it(opened: Open) -> None:
    page = opened(fragment="#f2")
    assert page.run("document.querySelectorAll('details.finding')[1].open") is True
    _filter(page, "TL301")
    page.run(
        "new Promise(r => { addEventListener('hashchange', () => setTimeout(r)); location.hash = '#g12'; })"
    )
    assert page.run("document.getElementById('g12').hidden") is False


@pytest.mark.parametrize("scripts", [True, False])
def test_a_rows_link_opens_its_derivation_and_no_other(opened: Open, scripts: bool) -> None:
    page = opened(fragment="#d-g3", scripts=scripts)
    document = page.call("DOM.getDocument", depth=0)["root"]["nodeId"]

    def count(selector: str) -> int:
        return len(page.call("DOM.querySelectorAll", nodeId=document, selector=selector)["nodeIds"])

    assert count("#g3 a[href='#d-g3']") == count("#d-g3 a[href='#g3']") == 1
    assert count("details.derived[open]") == count("details.derived[open] #d-g3") == 1
    assert count("details[open] > #h-derived") == 1, "the fold around them opens, too"


def test_many_derivations_are_folded_into_one_line(opened: Open) -> None:
    page = opened()
    fold = "document.getElementById('h-derived').parentElement"
    assert page.run(f"{fold}.open") is False
    count = page.run(f"{fold}.querySelectorAll('details.derived:not(.meanings)').length")
    assert count == 4 and f"{count} rows" in page.run("document.getElementById('h-derived').textContent")


def test_derivations_and_checks_are_not_printed(opened: Open) -> None:
    page = opened()
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    shown = "[...document.querySelectorAll('.derived, #h-checks')].filter(d => d.checkVisibility()).length"
    assert page.run(shown) > 1
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert page.run(shown) == 0


@pytest.mark.parametrize("width", [360, 1280])
def test_the_roofline_fits_the_window_and_is_read_once(opened: Open, width: int) -> None:
    page = opened(width=width)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    seen = page.run(
        "[...document.querySelectorAll('.roofline')].filter(s => s.checkVisibility())"
        ".map(s => [s.getBoundingClientRect().width, s.parentElement.clientWidth])"
    )
    assert len(seen) == 1 and seen[0][0] <= seen[0][1]
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    names = [node.get("name", {}).get("value", "") for node in tree if not node.get("ignored")]
    assert sum(name.startswith("Roofline:") for name in names) == 1
    links = sum("TFLOP/s at" in name for name in names)
    assert links > 10 if width > 700 else links == 1, "a telephone's marks are too small to be pressed"


@pytest.mark.parametrize("name", ["full", "no_findings"])
def test_no_label_of_a_telephones_picture_is_cut_or_touches_another(opened: Open, name: str) -> None:
    page = opened(name, width=360)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    cut = page.run(
        "[...document.querySelectorAll('.strip svg text')].filter(t => t.checkVisibility() &&"
        " t.getBoundingClientRect().right > t.closest('svg').getBoundingClientRect().right + 2)"
        ".map(t => t.textContent)"
    )
    assert cut == []
    for ticks in page.run(
        "[...document.querySelectorAll('.ticks')].map(s => [...s.querySelectorAll('text')]"
        ".filter(t => t.checkVisibility()).map(t => t.getBoundingClientRect()).map(b => [b.left, b.right]))"
    ):
        assert len(ticks) > 1
        assert all(one[1] < other[0] for one, other in itertools.pairwise(ticks))


def test_every_control_can_be_reached_by_keyboard_and_has_a_name(opened: Open) -> None:
    page = opened()
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node["role"]["value"]
        for node in tree
        if node.get("role", {}).get("value")
        in {"button", "link", "searchbox", "textbox", "region", "img", "image"}
        and not node.get("ignored")
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    unreachable = page.run(
        "[...document.querySelectorAll('.scroll, pre, a[href], button, input, summary')]"
        ".filter(e => e.tabIndex < 0).length"
    )
    assert unreachable == 0


def test_print_shows_folded_findings_and_whole_tables(opened: Open, tmp_path: Path) -> None:
    page = opened(scripts=False)
    data = page.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
    path = tmp_path / "page.pdf"
    path.write_bytes(devtools.decode(data))
    assert path.read_bytes().startswith(b"%PDF")
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    document = page.call("DOM.getDocument", depth=0)["root"]["nodeId"]
    folded = page.call("DOM.querySelectorAll", nodeId=document, selector="details.finding:not([open]) dl")[
        "nodeIds"
    ]
    assert len(folded) == 2
    for node in folded:
        assert page.call("DOM.getBoxModel", nodeId=node)["model"]["height"] > 40


def test_the_command_line_dump_agrees(tmp_path: Path) -> None:
    executable = devtools.find()
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(devtools.NAMES)} is on PATH")
    path = tmp_path / "hostile.html"
    path.write_text(render_html(sample_report.hostile()), encoding="utf-8")
    flags = [flag for flag in devtools.FLAGS if "pipe" not in flag]
    profile = f"--user-data-dir={tmp_path}/profile"
    done = subprocess.run(
        [executable, *flags, profile, "--enable-logging=stderr", "--v=0", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=3600,
        check=True,
    )
    assert 'id="gemms"' in done.stdout and "<img" not in done.stdout
    assert "CONSOLE" not in done.stderr
