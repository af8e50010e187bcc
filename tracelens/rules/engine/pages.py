"""A rule's documentation page: in the installed package, or beside it in a source checkout."""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

_WHY = "\n## Why it costs\n"


def _folder() -> Traversable:
    installed = resources.files("tracelens") / "docs" / "rules"
    if installed.is_dir():
        return installed
    return Path(str(resources.files("tracelens"))).parent / "docs" / "rules"


@cache
def page(rule: str) -> str:
    """The page of a rule as Markdown; ``rule`` is its id."""
    return (_folder() / f"{rule}.md").read_text(encoding="utf-8")


@cache
def why(rule: str, part: str = "") -> str:
    """Why it costs time: the first paragraph of that section of the page, or of its subsection ``part``.

    >>> why("TL112")[:45]
    'A GEMM with few columns gives the GPU too few'
    """
    section = page(rule).split(_WHY, 1)[1].split("\n## ", 1)[0]
    if part:
        section = section.split(f"\n### {part}\n", 1)[1]
    return " ".join(section.strip().split("\n\n", 1)[0].replace("`", "").split())
