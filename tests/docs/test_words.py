"""The guides stay short, and their words are those of our list."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.docs.blocks import ROOT, documents
from tracelens.cli import cli

#: How figures come about, with tables of evidence, which do not count as their length.
METHODS = {"accuracy.md", "attention.md", "attribution.md", "prediction.md", "shape-search.md", "experts.md"}
#: Written by hand for users and contributors: not the rules' pages, and nothing generated.
PAGES = [page for page in documents() if page.parent.name not in ("rules", "reference")]
GUIDES = [page for page in PAGES if page.name not in METHODS]
#: What is not said -> what is.
WORDS = {
    r"products?": "GEMM, or matmul",
    r"(?:the|a) host|host's": "CPU",
    r"recordings?(?! began)": "trace",
    r"twins?|orphans?|loans?|lends?|lent": "matching kernels, and what is known of them",
    r"row of products": "sequence of GEMMs",
    r"sets? the pace": "the step is CPU-bound",
    r"to mend": "Fix:",
    r"nothing of it": "predicted, not measured",
    r"what it takes": "cost and side effects",
    r"worth little|worth having": "a number, or faster",
    r"loses, too": "gap to the datasheet peak that the best measured matmul has as well",
    r"can hide in": "95 % interval",
    r"bytewise|performant|leverage[sd]?|utiliz(?:e|es|ed|ing)": "a plain verb",
}
_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2$", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\([^)]*\)")
_TEMPLATE = re.compile(r"\{[#%{].*?[#%}]\}|<[^>]*>", re.DOTALL)


def prose(page: Path) -> str:
    """A page without its blocks of code and what commands print."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_short(page: Path) -> None:
    text = prose(page)
    assert len((_TABLE.sub("", text) if page.name in METHODS else text).split()) < 1200


def test_the_guides_are_short_together() -> None:
    assert sum(len(prose(page).split()) for page in GUIDES) <= 12_500


def shown_text(page: Path) -> str:
    """The words of a page or template that a reader sees: no code, no addresses, no template language."""
    text = prose(page) if page.suffix == ".md" else _TEMPLATE.sub("", page.read_text(encoding="utf-8"))
    return _CODE.sub("", _LINK.sub("", text))


RULES = sorted((ROOT / "docs" / "rules").glob("*.md"))
TEMPLATES = sorted((ROOT / "templates").glob("*.j2"))


@pytest.mark.parametrize("page", [*GUIDES, *RULES, *TEMPLATES], ids=name)
def test_words_are_those_of_our_list(page: Path) -> None:
    text = shown_text(page)
    for pattern, instead in WORDS.items():
        found = re.search(rf".{{0,40}}\b(?:{pattern})\b.{{0,40}}", text, re.IGNORECASE)
        assert found is None, f"{name(page)}: {found[0]!r}: say {instead}"


@pytest.mark.parametrize("command", [cli, *cli.commands.values()], ids=lambda command: str(command.name))
def test_help_says_the_same_words(command: click.Command) -> None:
    with click.Context(
        command, info_name=command.name, terminal_width=2000, max_content_width=2000
    ) as context:
        text = command.get_help(context)
    for pattern, instead in WORDS.items():
        found = re.search(rf".{{0,40}}\b(?:{pattern})\b.{{0,40}}", text, re.IGNORECASE)
        assert found is None, f"{command.name}: {found[0]!r}: say {instead}"
