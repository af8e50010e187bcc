"""The pages as pictures that a person has looked at: light, dark, printed, and on a telephone.

``TRACELENS_REGOLD=1`` writes ``golden/*.png`` again; look at them before they are kept.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import devtools
from tests.kept import analyzed
from tests.render import asked_report, sample_report
from tracelens.api import compare
from tracelens.render.compare_html import render_compare_html
from tracelens.render.html import render_html

pictures = pytest.importorskip("tests.browser.pictures", reason="no pillow", exc_type=ImportError)

GOLDEN = Path(__file__).parent / "golden"
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
VIEWS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"dark": True},
    "print": {"media": "print", "width": 794},  # A4 at 96 points per inch
    "narrow": {"width": 360},
    "open": {},  # every fold
}
_UNFOLD = "document.querySelectorAll('details').forEach(one => one.open = true)"


def _compared() -> str:
    return render_compare_html(
        compare(*(SAMPLES / f"generated_gpt2_vocab{size}.json.gz" for size in (50257, 50304)))
    )


PAGES: dict[str, Callable[[], str]] = {
    "full": lambda: render_html(sample_report.full()),
    "asked": lambda: render_html(asked_report.asked()),
    "compare": _compared,
}
KEPT = [("full", view) for view in VIEWS] + [("compare", view) for view in VIEWS if view != "open"]
KEPT += [("asked", "dark"), ("asked", "narrow")]
FONTS = {
    "serif": "body{font-family:'DejaVu Serif','Liberation Serif',serif}",
    "sans": "body{font-family:'Liberation Sans',Arial,sans-serif}",
    "wide": "body{letter-spacing:.25px}",
    "large": "body{font-size:15.6px}",
}
DAMAGES = {
    "a section is gone": ("main > section:nth-of-type(3){display:none}", "parts are"),
    "a section lies over another": ("main > section:nth-of-type(3){margin-top:-200px}", "above the end of"),
    "a bar is not drawn": (".bar{visibility:hidden}", "h-step has other colours"),
    "one colour is another": (".g-mlp{--c:#888!important}", "h-step has other colours"),
    "all is grey": ("main{filter:grayscale(1)}", "h-components has other colours"),
    "text has no colour": (
        ".finding{color:transparent;--fg:transparent;--mut:transparent}",
        "h-findings has 0.",
    ),
    "curves are huge": (".curves{grid-template-columns:1fr!important}", "h-explorer is"),
    "a table is gone": ("#gemms{display:none}", "h-gemms: words 0.0 gone"),
    "a table is blank": ("#gemms tbody{opacity:0}", "h-gemms: words 0.0 look"),
    "a curve has no line": (".curve polyline{visibility:hidden}", "h-explorer: drawings 0"),
    "a curve has no range": (".band{display:none}", "h-explorer: drawings 0"),
    "an axis has no numbers": (".curve .ax{visibility:hidden}", "h-explorer: words 0 axis"),
    "an axis is gone": (".roofline .ax{display:none}", "h-roofline: words 0 axis gone"),
    "a bound is not drawn": (".roof{display:none}", "h-roofline: drawings 0"),
    "the points are not drawn": (".pt{visibility:hidden}", "h-roofline: drawings 0"),
    "a column is blank": ("#gemms td:nth-child(8){opacity:0}", "h-gemms: words 0.7"),
    "a column is gone": (".tree :is(th,td):last-child{display:none}", "h-components: words 1.8 gone"),
    "a strip has no times": (".ticks text{visibility:hidden}", "h-layer: words"),
    "headings are blank": ("h2{opacity:0}", "h-step: words h2"),
    "the page is dark": ("html{filter:invert(1)}", "h-step looks otherwise"),
}  # fmt: skip


@functools.cache
def _html(name: str) -> str:
    return PAGES[name]()


@contextlib.contextmanager
def _opened(browser: devtools.Browser, folder: Path, name: str, view: str) -> Iterator[devtools.Page]:
    path = folder / "page.html"
    path.write_text(_html(name), encoding="utf-8")
    page = devtools.Page(browser, **VIEWS[view])
    try:
        page.open(path)
        if view == "open":
            page.run(_UNFOLD)
        yield page
    finally:
        page.close()


def _style(page: devtools.Page, css: str) -> None:
    page.run(
        "{ const sheet = new CSSStyleSheet();"
        f"sheet.replaceSync({css!r}); document.adoptedStyleSheets = [sheet]; }}"
    )


def _take(browser: devtools.Browser, folder: Path, name: str, view: str, css: str = "") -> Any:
    with _opened(browser, folder, name, view) as page:
        _style(page, css)
        return pictures.take(page)


@pytest.fixture(scope="module")
def unfolded(browser: devtools.Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[devtools.Page]:
    with _opened(browser, tmp_path_factory.mktemp("unfolded"), "full", "open") as page:
        yield page


@pytest.mark.parametrize(("name", "view"), KEPT)
def test_the_page_looks_as_it_did_when_a_person_looked(
    browser: devtools.Browser, tmp_path: Path, name: str, view: str
) -> None:
    path = GOLDEN / f"{name}.{view}.png"
    picture, parts = _take(browser, tmp_path, name, view)
    if os.environ.get("TRACELENS_REGOLD"):
        pictures.save(picture, parts, path)
    faults = pictures.faults(pictures.load(path), parts)
    assert faults == [], f"look at {path.name}; TRACELENS_REGOLD=1 keeps the new one"


@pytest.mark.parametrize(("name", "view"), [("full", "light"), ("full", "narrow"), ("compare", "narrow")])
@pytest.mark.parametrize("font", FONTS)
def test_another_font_passes(
    browser: devtools.Browser, tmp_path: Path, name: str, view: str, font: str
) -> None:
    kept = pictures.load(GOLDEN / f"{name}.{view}.png")
    _, parts = _take(browser, tmp_path, name, view, FONTS[font])
    assert pictures.faults(kept, parts) == []
    assert parts != kept, "the font is another"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_fails(unfolded: devtools.Page, damage: str) -> None:
    """In the part that the words begin with; others are held against it by their places alone."""
    css, words = DAMAGES[damage]
    _style(unfolded, css)
    kept = pictures.load(GOLDEN / "full.open.png")
    faults = pictures.faults(kept, pictures.look(unfolded, re.split("[: ]", words)[0], kept))
    assert any(words in fault for fault in faults), faults


def test_kept_pictures_are_small_and_none_is_left_over() -> None:
    found = {path.name: path.stat().st_size for path in GOLDEN.glob("*")}
    assert set(found) == {f"{name}.{view}.png" for name, view in KEPT}
    assert max(found.values()) < pictures.LARGEST


def test_the_picture_in_the_readme_is_the_page(browser: devtools.Browser, tmp_path: Path) -> None:
    """Of the sample trace, as wide as the picture; what stands on it changes with every rule."""
    image, io = pytest.importorskip("PIL.Image"), pytest.importorskip("io")
    path = SAMPLES.parent / "docs" / "images" / "page.png"
    html = tmp_path / "page.html"
    html.write_text(render_html(analyzed(SAMPLES / "generated_gpt2_vocab50257.json.gz").report), "utf-8")
    page = devtools.Page(browser, width=1080)
    try:
        page.open(html)
        now = image.open(io.BytesIO(page.picture(0, 0, 1080, 1180))).convert("RGB")
    finally:
        page.close()
    if os.environ.get("TRACELENS_REGOLD"):
        now.quantize(200, image.Quantize.MEDIANCUT, dither=image.Dither.NONE).save(path, optimize=True)
    kept = image.open(path)
    assert kept.size == now.size == (1080, 1180) and path.stat().st_size < 120_000
    assert pictures.alike(kept.convert("RGB"), now)
