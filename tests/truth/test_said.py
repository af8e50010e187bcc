"""What is kept of texts belongs to tests that are there, and tests quote no text elsewhere."""

from __future__ import annotations

from pathlib import Path

from tests.said import kept, path_of

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))


def test_kept_texts_belong_to_tests() -> None:
    """A text of a test or a file that is gone would be read and believed by nobody but a reviewer."""
    wanted = {path_of(file): file.read_text(encoding="utf-8") for file in FILES}
    for path in sorted(TESTS.rglob("said/*.json")):
        assert path in wanted, f"{path.name} is kept for no test file"
        gone = [name for name in kept(path) if f"def {name.partition('[')[0]}(" not in wanted[path]]
        assert gone == [], f"{path.name} keeps texts of tests that are gone"
