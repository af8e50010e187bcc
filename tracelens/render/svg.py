"""A small writer of SVG, and the picture that stands alone: in a notebook, in a file, in a paper.

Every style is an attribute of its element. A ``<style>`` would reach beyond the picture where a notebook puts
it inside its own page, and is what converters drop first.
"""

from __future__ import annotations

import hashlib
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from tracelens.render.text import clean

WIDTH = 1000  # of every picture, so that they line up below one another
EDGE = 24
INK, MUTED, LINE, PAPER, WARNING = "#16191d", "#59636e", "#e0e4e9", "#ffffff", "#8a5000"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_HEAD = 24  # from the upper edge to the line of the title
_CHARACTER = 0.56  # of the font's size: the width of a character, on average
_COLUMNS = 3  # of a legend
_LINE_OF = 132  # characters between the edges, in the widest of the usual fonts
_NO_XML = str.maketrans(dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd"))  # no XML file can hold these two


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis and the number that stands there."""

    at: float
    text: str


def round_step(span: float, most: int) -> tuple[float, int]:
    """The step of a round axis, 1, 2 or 5 times a power of ten, for at most about so many; its decimals.

    >>> round_step(41.0, 5), round_step(0.3, 4)
    ((10.0, 0), (0.1, 1))
    """
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(one * power for one in (1, 2, 5, 10) if one * power >= span / most * 0.999)
    return step, max(0, -math.floor(math.log10(step) + 1e-9))


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture as SVG that needs nothing around it. Shows itself in a notebook; ``str()`` is its text."""

    name: str
    title: str
    description: str  # what a reader who does not see it is told
    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Plot {self.name}: {self.title}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture. Raises UsageError where the place cannot be written."""
        from tracelens.files import write_text

        write_text(path, self.svg)


def element(name: str, body: str = "", /, **attributes: str | float | None) -> str:
    """One element; ``body`` is markup already, attributes are escaped, and None leaves one out.

    >>> element("text", safe("a<b"), x=1.25, text_anchor="end", fill=None)
    '<text x="1.2" text-anchor="end">a&lt;b</text>'
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}={_quoted(value)}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{body}</{name}>" if body else f"<{name}{written}/>"


def _quoted(value: str | float) -> str:
    if isinstance(value, str):
        return quoteattr(_clean(value, 2000))
    return f'"{value:.1f}"'.replace('.0"', '"')


def _clean(text: str, limit: int) -> str:
    return clean(text, limit=limit).translate(_NO_XML)


def safe(text: str, limit: int = 400) -> str:
    """A string from anywhere as text of the picture."""
    return escape(_clean(text, limit))


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 13,
    fill: str = INK,
    anchor: str | None = None,
    bold: bool = False,
    limit: int = 160,
) -> str:
    """A line of text; ``anchor`` is start, middle or end."""
    return element(
        "text",
        safe(words, limit),
        x=x,
        y=y,
        font_size=size,
        fill=fill,
        text_anchor=anchor,
        font_weight="650" if bold else None,
    )


def rect(
    x: float, y: float, width: float, height: float, *, fill: str, title: str = "", **more: str | float | None
) -> str:
    """A rectangle with what it says to a pointer."""
    said = element("title", safe(title)) if title else ""
    return element("rect", said, x=x, y=y, width=max(width, 0.0), height=height, fill=fill, **more)


def wide(words: str, size: float) -> float:
    """About how wide a line of text is."""
    return _CHARACTER * size * len(words)


def keys(entries: Sequence[tuple[str | None, str, str, str]], y: float) -> tuple[str, float]:
    """A legend of (colour, title, share, time) in columns, read downwards; the markup and where it ends."""
    each, step = -(-len(entries) // _COLUMNS), 20.0
    across = (WIDTH - 2 * EDGE) / _COLUMNS
    drawn = []
    for at, (colour, title, share, time) in enumerate(entries):
        x, line = EDGE + at // each * across, y + at % each * step
        known = {"stroke": MUTED, "stroke_dasharray": "3 2"} if colour is None else {}
        drawn.append(rect(x + 0.5, line - 9.5, 11, 11, fill=colour or PAPER, rx=2, **known))
        drawn.append(text(x + 20, line, title, limit=34))
        drawn.append(text(x + across - 98, line, share, anchor="end", bold=True))
        drawn.append(text(x + across - 30, line, time, fill=MUTED, anchor="end"))
    return "".join(drawn), y + (each - 1) * step


def paragraphs(said: Sequence[str], y: float) -> tuple[str, float]:
    """Sentences below one another, broken where the picture ends; the markup and where it ends."""
    drawn = []
    for words in said:
        for line in textwrap.wrap(_clean(words, 600), _LINE_OF):
            drawn.append(text(EDGE, y, line, fill=MUTED))
            y += 18
    return "".join(drawn), y - 6


def picture(
    name: str, *, title: str, notes: Sequence[str], warning: str, description: str, body: str, height: float
) -> Plot:
    """Put a title and a line of notes above ``body``, whose upper edge is at 0, on paper of its own.

    The paper is opaque, so that the picture reads the same on a dark page; ``warning`` stands out.
    """
    top = _HEAD + 28
    lines = text(EDGE, _HEAD + 6, title, size=17, bold=True, limit=90)
    if warning:
        lines += text(WIDTH - EDGE, _HEAD + 6, warning, size=13, fill=WARNING, anchor="end", bold=True)
    for line in (line for note in notes for line in textwrap.wrap(_clean(note, 400), _LINE_OF)):
        lines += text(EDGE, top, line, fill=MUTED)
        top += 19
    content = lines + element("g", body, transform=f"translate(0 {top})")
    key = f"tl-{hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()[:10]}"
    whole = top + height + 14
    said = f"{description} {warning}." if warning else description
    markup = element(
        "svg",
        element("title", safe(title), id=f"{key}-t")
        + element("desc", safe(said, 2000), id=f"{key}-d")
        + rect(0.5, 0.5, WIDTH - 1, whole - 1, fill=PAPER, rx=8, stroke=LINE)
        + content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {whole:g}",
        width=WIDTH,
        height=whole,
        style="max-width:100%;height:auto",
        role="img",
        aria_labelledby=f"{key}-t {key}-d",
        font_family=_FONT,
    )
    return Plot(name, clean(title), clean(said), markup)
