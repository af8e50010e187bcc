"""Text and tables of Markdown in which no name from a trace is more than text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tracelens.render.text import clean

_LIMIT = 300
#: Everything that Markdown or HTML reads as more than text, and what makes an address a link.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&@$])")
_LINK = re.compile(r"(?i)(https?|ftp|www)([:.])")
#: At the beginning of a line a command to GitHub's runner, should the Markdown go to standard output.
_COMMAND = re.compile(r"^(\s*)::")


def escape(text: str) -> str:
    r"""Make a string plain text in Markdown.

    >>> escape("<b>|x|")
    '\\<b\\>\\|x\\|'
    """
    text = _SPECIAL.sub(r"\\\1", clean(text, limit=_LIMIT))
    return _COMMAND.sub(r"\1\\::", _LINK.sub(r"\1\\\2", text))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table; its cells are escaped, its heads are ours."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(heads), line(["---"] * len(heads)), *(line(escape(cell) for cell in row) for row in rows)]


def fenced(lines: Iterable[str]) -> list[str]:
    """Lines of a diff in a code block that none of them can end."""
    body = [_COMMAND.sub(r"\1: :", clean(line, limit=_LIMIT)) for line in lines]
    longest = max((len(run) for line in body for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}diff", *body, fence]
