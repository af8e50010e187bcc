"""The documentation builds without a warning, and its generated pages are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import attribution_lists
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"


# in a process of its own: a click command keeps the help option of the first context that asked for it, and
# another test may have been that first one
@pytest.mark.parametrize(("script", "kept"), [("generate.py", "reference"), ("drawings.py", "images")])
def test_what_is_made_from_the_code_is_that_of_the_code(script: str, kept: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(DOCS / script), str(tmp_path)], check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    suffix = Path(next(iter(made))).suffix
    assert set(made) == {path.name for path in (DOCS / kept).glob(f"*{suffix}")}
    for name, text in made.items():
        assert (DOCS / kept / name).read_text(encoding="utf-8") == text, f"run: python docs/{script}"


def test_the_table_of_attributed_models_is_the_sum_of_their_lists() -> None:
    page = (DOCS / "attribution.md").read_text(encoding="utf-8")
    assert attribution_lists.table() in page, "put in what python -m benchmarks.attribution_lists prints"


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
