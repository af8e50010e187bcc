"""What is kept of texts belongs to tests that are there, and tests quote no text elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

from benchmarks.house import quoting
from tests.said import kept, path_of

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))


def test_kept_texts_belong_to_tests() -> None:
    """A text of a test or a file that is gone would be read and believed by nobody but a reviewer."""
    files = {path_of(file): file for file in FILES}
    for path in sorted(TESTS.rglob("said/*.json")):
        assert path in files, f"{path.name} is kept for no test file"
        module = ast.parse(files[path].read_text(encoding="utf-8"))
        tests = {one.name for one in ast.walk(module) if _says(one)}
        gone = [name for name in kept(path) if name.partition("[")[0] not in tests]
        assert gone == [], f"{path.name} keeps texts of tests that say nothing"


def _says(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    """Is it a test that hands over texts?"""
    return isinstance(node, ast.FunctionDef) and any(arg.arg == "said" for arg in node.args.args)


def test_asserts_quote_no_sentences() -> None:
    """A changed word breaks no test of a value."""
    assert quoting() == 0
