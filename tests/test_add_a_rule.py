"""The worked example of docs/add-a-rule.md: its diff applies, touches four files, and its test passes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = {
    "docs/rules/TL199.md",
    "tests/advice/test_advice_eager_dropout.py",
    "tracelens/rules/catalog.py",
    "tracelens/rules/eager_dropout.py",
}


def example() -> str:
    text = (ROOT / "docs" / "add-a-rule.md").read_text(encoding="utf-8")
    found = re.search(r"^````diff\n(.*?)^````$", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_touches_four_files_and_its_test_passes(tmp_path: Path) -> None:
    assert set(re.findall(r"^\+\+\+ b/(.+)$", example(), flags=re.MULTILINE)) == FILES
    for part in ("tracelens", "docs/rules", "tests/advice"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests" / "__init__.py").touch()
    git = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(["git", "apply", "-"], input=example(), text=True, cwd=tmp_path, env=git, check=True)
    assert all((tmp_path / name).is_file() for name in FILES)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path),
            "tests/advice/test_advice_eager_dropout.py", "tests/advice/test_shape_of_rules.py",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
