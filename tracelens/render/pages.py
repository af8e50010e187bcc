"""Markdown pages at a terminal: paragraphs wrapped to its width, links as text, all else as it stands."""

from __future__ import annotations

import re
import textwrap

_WIDEST = 120
_NARROWEST = 20
_OWN_LINE = re.compile(
    r"\s*(?:#|\||```|[-*+] |[0-9]+[.)] |>)"
)  # begins something: not joined to what stands above
_KEPT = re.compile(r"\s*(?:#|\|)")  # headings and tables
_LINK = re.compile(r"\[([^]]+)\]\((?:\.\./)?([\w-]+)\.md[^)]*\)")


def _without_links(text: str) -> str:
    """Another rule's page is its number, any other page where it lies.

    >>> _without_links("[TL113](TL113.md)'s ([how](../faq.md#files))")
    "TL113's (how: docs/faq.md)"
    """
    return _LINK.sub(lambda one: one[1] if one[1] == one[2] else f"{one[1]}: docs/{one[2]}.md", text)


def wrapped(text: str, width: int) -> str:
    """Fill paragraphs and the entries of lists to ``width``; code, tables and headings stay.

    >>> print(wrapped("# A\\nsome words of\\none paragraph\\n```\\nas   it  is\\n```", 20))
    # A
    some words of one
    paragraph
    ```
    as   it  is
    ```
    """
    width = max(_NARROWEST, min(width, _WIDEST))
    done: list[str] = []
    paragraph: list[str] = []
    code = False

    def fill() -> None:
        if paragraph:
            first = paragraph[0]
            indent = len(first) - len(first.lstrip())
            hang = " " * (indent + (2 if _OWN_LINE.match(first) else 0))
            words = " ".join(line.strip() for line in paragraph)
            done.extend(
                textwrap.wrap(
                    words, width, initial_indent=" " * indent, subsequent_indent=hang, break_on_hyphens=False,
                    break_long_words=False,
                )
            )  # fmt: skip
            paragraph.clear()

    for line in _without_links(text).splitlines():
        fence = line.lstrip().startswith("```")
        if code or fence or not line.strip() or _KEPT.match(line):
            fill()
            done.append(line)
            code ^= fence
            continue
        if _OWN_LINE.match(line):
            fill()
        paragraph.append(line)
    fill()
    return "\n".join(done)
