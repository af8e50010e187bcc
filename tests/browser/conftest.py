"""A browser for the tests of this folder, and the report's page opened in it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.browser import devtools
from tests.render import sample_report
from tracelens.render.html import render_html

Open = Callable[..., devtools.Page]
#: Everything up to WCAG 2.2 AA.
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


@cache
def engine() -> str:
    """axe-core as a Python package carries it, or nothing; its driver, which that asks for, is not needed."""
    try:
        files = importlib.metadata.files("axe-playwright-python") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = next(Path(str(file.locate())) for file in files if file.name == "axe.min.js")
    return found.read_text(encoding="utf-8")


def violations(page: devtools.Page) -> list[str]:
    """What axe finds on a page with everything unfolded, a line each."""
    page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.run(engine() + "; undefined")
    options = json.dumps({"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]})
    found = page.run(f"axe.run(document, {options}).then(done => JSON.stringify(done.violations))")
    return [
        f"{one['id']}: {one['help']}: {node['target']}: {node['html'][:160]}"
        for one in json.loads(found)
        for node in one["nodes"]
    ]


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
