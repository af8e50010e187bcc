"""The documentation builds without a warning, and its generated pages are those of the code."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"


def test_the_reference_is_that_of_the_code() -> None:
    made = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    for name, text in made.items():
        assert (DOCS / "reference" / name).read_text(encoding="utf-8") == text, "run: python docs/generate.py"


def test_the_drawings_are_those_of_the_code() -> None:
    made = runpy.run_path(str(DOCS / "drawings.py"))["drawings"]()
    assert {path.name for path in (DOCS / "images").glob("*.svg")} == set(made)
    for name, text in made.items():
        assert (DOCS / "images" / name).read_text(encoding="utf-8") == text, "run: python docs/drawings.py"


def test_it_builds_and_warnings_are_errors(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path / "site")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        if "_build" not in page.parts:
            made = tmp_path / "site" / page.relative_to(DOCS).with_suffix(".html")
            assert made.is_file(), made
            # toctrees reach every page: the sidebar of the first one names it
            assert page.stem == "index" or page.stem in front, page
