"""The guides stay short, and their words are those of our list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, documents

#: How figures come about, with their evidence: longer than a guide, to be shortened with their rooms.
METHODS = {"attribution.md", "prediction.md", "suggest.md", "experts.md"}
#: Written by hand for users and contributors: not the rules' pages, and nothing generated.
GUIDES = [
    page
    for page in documents()
    if page.parent.name not in ("rules", "reference") and page.name not in METHODS
]
_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")


def prose(page: Path) -> str:
    """A page without its blocks of code and what commands print."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_guide_is_short(page: Path) -> None:
    assert len(prose(page).split()) < 1200


def test_the_guides_are_short_together() -> None:
    assert sum(len(prose(page).split()) for page in GUIDES) <= 12_750
