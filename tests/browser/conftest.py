"""A browser for the tests of this folder, and the report's page opened in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import devtools
from tests.render import sample_report
from tracelens.render.html import render_html

Open = Callable[..., devtools.Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[devtools.Browser]:
    executable = devtools.find()
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(devtools.NAMES)} is on PATH")
    with devtools.launch(executable) as started:
        yield started


@pytest.fixture
def show(browser: devtools.Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page given as text."""
    pages: list[devtools.Page] = []

    def go(html: str, fragment: str = "", *, name: str = "page", **how: Any) -> devtools.Page:
        path = tmp_path / f"{name}.html"
        path.write_text(html, encoding="utf-8")
        page = devtools.Page(browser, **how)
        pages.append(page)
        page.open(path, fragment)
        return page

    yield go
    for page in pages:
        page.close()


@pytest.fixture
def opened(show: Open) -> Open:
    """Opens the page of a variant of the sample report."""

    def go(name: str = "full", fragment: str = "", **how: Any) -> devtools.Page:
        return show(render_html(sample_report.VARIANTS[name]()), fragment, name=name, **how)

    return go
