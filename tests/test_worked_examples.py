"""The worked examples of docs/add-*.md: their diffs apply to as many files as said, and their tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: page -> files that such a thing touches.
PAGES = {
    "add-a-rule": {
        "docs/rules/TL199.md",
        "tests/advice/test_advice_eager_dropout.py",
        "tracelens/rules/catalog.py",
        "tracelens/rules/eager_dropout.py",
    },
    "add-a-gpu": {"tracelens/hardware/gpus.toml"},
    "add-an-architecture": {
        "tests/gemm/test_architecture_example.py",
        "tracelens/gemm/predict/architectures/sm130.toml",
    },
    "add-a-kernel-family": {
        "docs/kernel-names.md",
        "tests/gemm/test_names_example_gemm.py",
        "tracelens/gemm/gemm_readers.py",
        "tracelens/gemm/gemm_rules.py",
    },
    "add-a-layer": {
        "tests/attribution/test_grammar_gated_convolution.py",
        "tracelens/attribution/structure/grammars.py",
    },
    "add-a-page-section": {
        "templates/slow_steps.html.j2",
        "tests/render/test_render_slow_steps.py",
        "tracelens/render/sections.py",
        "tracelens/render/slow_steps.py",
    },
}
#: Those whose diff is how something was added that is there.
DONE = ("add-a-layer",)
#: Tests that the suite has for every such thing.
COMMON = ("tests/advice/test_shape_of_rules.py", "tests/hardware/test_gpu_table.py")


def example(page: str) -> str:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = re.search(r"^````diff\n(.*?)^````$", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("page", PAGES)
def test_an_example_touches_as_many_files_as_said(page: str) -> None:
    assert set(re.findall(r"^\+\+\+ b/(.+)$", example(page), flags=re.MULTILINE)) == PAGES[page]


def test_the_examples_apply_together_and_their_tests_pass(tmp_path: Path) -> None:
    files = [name for page in PAGES.values() for name in page]
    for part in ("tracelens", "templates", "docs/rules", "tests/advice", "tests/render", "tests/hardware"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    for part in ("attribution", "gemm"):
        (tmp_path / "tests" / part).mkdir()
    for guide in (ROOT / "docs").glob("*.md"):
        shutil.copy(guide, tmp_path / "docs")
    (tmp_path / "tests" / "__init__.py").touch()
    for name in (name for page in DONE for name in PAGES[page] if name.startswith("tests/")):
        shutil.copy(ROOT / name, tmp_path / name)
    git = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    for page, way in (*((page, ["--reverse"]) for page in DONE), *((page, []) for page in PAGES)):
        subprocess.run(
            ["git", "apply", *way, "-"], input=example(page), text=True, cwd=tmp_path, env=git, check=True
        )
    assert all((tmp_path / name).is_file() for name in files)
    tests = [name for name in files if name.startswith("tests/")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *tests,
         *COMMON],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
