"""What is kept of texts belongs to tests that are there, and tests quote no text elsewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter
from typing import TypeGuard

import tracelens
from tests.said import kept, path_of

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("test_*.py"))
PACKAGE = Path(tracelens.__file__).parent
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


def test_sentences_of_tables_get_their_values() -> None:
    """``name = "... {}".format`` takes any arguments, so what each call of it hands over is counted here."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    trees = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): ast.parse(text)
        for path, text in texts.items()
        if "words" in path.as_posix() or re.search("^from .*words", text, re.MULTILINE)
    }
    fields = {
        f"{module}.{node.targets[0].id}": sorted(_fields(node.value.value.value))
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Constant)
    }
    given = [call for module, tree in trees.items() for call in _calls(module, tree) if call[0] in fields]
    assert {name for name, _ in given} == {*fields}, "nothing says these"
    assert [(name, keys) for name, keys in given if keys != fields[name]] == []


def _fields(text: object) -> set[str]:
    names = [name for _, name, _, _ in Formatter().parse(str(text)) if name is not None]
    return {name or str(at) for at, name in enumerate(names)}


def _calls(module: str, tree: ast.Module) -> list[tuple[str, list[str]]]:
    """Each call, by the full name of what is called, and the keys of its arguments."""
    nodes = [*ast.walk(tree)]
    known = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    calls = []
    for node in nodes:
        if isinstance(node, ast.Call):
            of, last = (node.func, "") if isinstance(node.func, ast.Name) else _member(node.func)
            if isinstance(of, ast.Name):
                keys = [*map(str, range(len(node.args))), *(one.arg or "**" for one in node.keywords)]
                calls.append((known.get(of.id, f"{module}.{of.id}") + last, sorted(keys)))
    return calls


def _member(node: ast.expr) -> tuple[ast.expr | None, str]:
    return (node.value, f".{node.attr}") if isinstance(node, ast.Attribute) else (None, "")
