"""Pictures that stand alone, as a browser draws them: every word is on the paper, and none on another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.browser import devtools
from tests.kept import analyzed
from tests.render import sample_report
from tests.render.sample_search import FOUND
from tracelens.render.plots import Plots
from tracelens.render.svg import Plot

SAMPLE, TWIN = (
    Path(__file__).resolve().parents[2] / "sample_traces" / f"generated_gpt2_vocab{size}.json.gz"
    for size in (50257, 50304)
)
#: The words of every line of text with its box, halos apart: they are drawn under the same words.
BOXES = """[...document.querySelectorAll('text:not([aria-hidden])')].map(one => {
  const box = one.getBoundingClientRect();
  return [one.textContent, box.left, box.top, box.right, box.bottom];
})"""
PAPER = """(() => { const box = document.querySelector('svg').getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom]; })()"""
_TOUCH = 3.0  # pixels by which boxes of letters overlap without the letters doing so


@pytest.fixture(scope="module")
def drawn() -> list[Plot]:
    made = Plots(replace(sample_report.full(), shape_search=FOUND))
    return [*made, *Plots(analyzed(SAMPLE).report), tracelens.compare(SAMPLE, TWIN).plots.components()]


@pytest.fixture
def page(browser: devtools.Browser) -> Iterator[devtools.Page]:
    opened = devtools.Page(browser, width=1100)
    yield opened
    opened.close()


def test_every_word_can_be_read(drawn: list[Plot], page: devtools.Page, tmp_path: Path) -> None:
    for number, one in enumerate(drawn):
        path = tmp_path / f"{number}.html"
        path.write_text(f"<!doctype html><meta charset=utf-8><body>{one.svg}", encoding="utf-8")
        page.open(path)
        boxes: list[list[Any]] = page.run(BOXES)
        left, top, right, bottom = page.run(PAPER)
        assert boxes
        for words, *box in boxes:
            inside = box[0] >= left and box[1] >= top and box[2] <= right and box[3] <= bottom
            assert inside, f"{one.name}: {words!r} leaves the paper"
        for (words, *a), (others, *b) in itertools.combinations(boxes, 2):
            across = min(a[2], b[2]) - max(a[0], b[0])
            along = min(a[3], b[3]) - max(a[1], b[1])
            assert across <= _TOUCH or along <= _TOUCH + 1, f"{one.name}: {words!r} lies on {others!r}"


def test_saved_they_open_as_pictures(drawn: list[Plot], page: devtools.Page, tmp_path: Path) -> None:
    """As a notebook shows them: from an ``<img>``, where nothing outside the file counts."""
    for number, one in enumerate(drawn):
        one.save(tmp_path / f"{number}.svg")
    images = "".join(f"<img src='{number}.svg'>" for number in range(len(drawn)))
    (tmp_path / "all.html").write_text(f"<!doctype html>{images}", encoding="utf-8")
    page.open(tmp_path / "all.html")
    sizes = page.run("[...document.images].map(one => [one.complete, one.naturalWidth, one.naturalHeight])")
    assert len(sizes) == len(drawn)
    assert all(complete and width == 1000 and height > 100 for complete, width, height in sizes)
    assert not page.complaints()
