"""The documentation page of a rule: in the installed package, or beside it in a source checkout."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tracelens.errors import UsageError
from tracelens.rules.catalog import RULES


def _folder() -> Traversable:
    installed = resources.files("tracelens") / "docs" / "rules"
    if installed.is_dir():
        return installed
    return Path(str(resources.files("tracelens"))).parent / "docs" / "rules"


def explain(rule: str) -> str:
    """The page of a rule as Markdown; ``rule`` is an id or a slug, in any case.

    Raises ``UsageError`` naming the rules there are when none has that id.

    >>> explain("tl101").splitlines()[0]
    '# TL101 pad-vocabulary'
    """
    wanted = rule.strip().lower()
    for known in RULES:
        if wanted in (known.id.lower(), known.slug):
            return (_folder() / f"{known.id}.md").read_text(encoding="utf-8")
    names = ", ".join(f"{known.id} ({known.slug})" for known in RULES)
    raise UsageError(f"unknown rule {rule[:40]!r}; known: {names}")
