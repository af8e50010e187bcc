"""What is kept of texts belongs to tests that are there, and tests quote no text elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TypeGuard

from tests.said import kept, path_of

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
_QUOTED = 4  # plain words that a space follows: a text of as many is a sentence


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
    quoting = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and any(map(_is_sentence, ast.walk(node.test)))
    ]
    assert quoting == []


def _is_sentence(node: ast.AST) -> bool:
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and len(re.findall(r"\b[a-z]{2,}\b(?= )", text)) >= _QUOTED
