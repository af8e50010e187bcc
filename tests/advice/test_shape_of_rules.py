"""The shape of a rule: one small file that imports no other rule, in the list, with a page that says why."""

from __future__ import annotations

import ast
import inspect
import re
import statistics
from pathlib import Path

import pytest

from tracelens.render.pages import wrapped
from tracelens.rules import RULES
from tracelens.rules.engine.pages import page, why
from tracelens.rules.engine.rule import Rule

ROOT = Path(__file__).parents[2]
MODULES = {rule.id: inspect.getmodule(type(rule)) for rule in RULES}
FILES = {rule: Path(str(module.__file__)) for rule, module in MODULES.items() if module is not None}


def test_every_rule_is_one_file_of_its_own() -> None:
    assert len(FILES) == len(RULES) == len({*FILES.values()})
    not_rules = {"__init__", "advise", "catalog", "pages"}
    folder = next(iter(FILES.values())).parent
    assert {*FILES.values()} == {one for one in folder.glob("*.py") if one.stem not in not_rules}


def test_rules_are_short() -> None:
    lines = {rule: len(path.read_text(encoding="utf-8").splitlines()) for rule, path in FILES.items()}
    assert all(count <= 150 for count in lines.values()), lines
    assert statistics.median(lines.values()) <= 120, lines


@pytest.mark.parametrize("rule", FILES)
def test_no_rule_imports_a_rule(rule: str) -> None:
    tree = ast.parse(FILES[rule].read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [name for name in names if name.startswith("tracelens.rules")]
    assert ours
    assert all(name.split(".")[2] in ("engine", "evidence") for name in ours if name.count(".") > 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_page_says_why_in_plain_sentences(rule: Rule) -> None:
    source = FILES[rule.id].read_text(encoding="utf-8")
    parts = re.findall(r"^### (.+)$", page(rule.id), flags=re.MULTILINE)
    for part in ("", *parts):
        said = why(rule.id, part)
        assert said.endswith(".") and "{" not in said and "**" not in said and "](" not in said
        assert said not in source, "said twice"


def test_rules_are_listed_by_their_numbers() -> None:
    numbers = [rule.id for rule in RULES]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("rule", FILES)
def test_a_page_at_a_terminal_names_pages_that_are_there(rule: str) -> None:
    shown = wrapped(page(rule), 80)
    assert "](" not in shown
    for named in re.findall(r"\]\(\.\./([\w-]+\.md)", page(rule)):
        assert f"docs/{named}" in shown and (ROOT / "docs" / named).is_file()
