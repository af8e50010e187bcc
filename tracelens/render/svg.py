"""A small writer of SVG, and the picture that stands alone: in a notebook, in a file, in a paper.

Every style is an attribute of its element. A ``<style>`` would reach beyond the picture where a notebook puts
it inside its own page, and is what converters drop first.
"""

from __future__ import annotations

import hashlib
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
_SLIM = 6.0  # a part of a bar too slim for a dashed border
_LINE_OF = 132  # characters between the edges, in the widest of the usual fonts
_NO_XML = str.maketrans(dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd"))  # no XML file can hold these two


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
    halo: bool = False,
) -> str:
    """A line of text; ``anchor`` is start, middle or end. A ``halo`` is the edge that others stand out by."""
    around: dict[str, str | float | None] = {
        "stroke": PAPER,
        "stroke_width": 4,
        "stroke_linejoin": "round",
        "aria_hidden": "true",
    }
    return element(
        "text",
        safe(words, limit),
        x=x,
        y=y,
        font_size=size,
        fill=PAPER if halo else fill,
        text_anchor=anchor,
        font_weight="650" if bold else None,
        **(around if halo else {}),
    )


def standing_out(
    x: float, y: float, words: str, *, size: float = 13, anchor: str | None = None, bold: bool = False
) -> tuple[str, str]:
    """A line of text upon lines: its halo, to be drawn before every such text, and the text."""
    return (
        text(x, y, words, size=size, anchor=anchor, bold=bold, halo=True, limit=40),
        text(x, y, words, size=size, anchor=anchor, bold=bold, limit=40),
    )


def rect(
    x: float, y: float, width: float, height: float, *, fill: str, title: str = "", inside: str = "",
    **more: str | float | None,
) -> str:  # fmt: skip
    """A rectangle with what it says to a pointer, and ``inside`` it markup, as one group."""
    drawn = element("rect", x=x, y=y, width=max(width, 0.0), height=height, fill=fill, **more)
    if not title and not inside:
        return drawn
    said = element("title", safe(title)) if title else ""
    return element("g", said + drawn + inside)


def segment(
    x: float, y: float, width: float, height: float, *, fill: str | None, title: str, label: str = "",
    size: float = 12,
) -> str:  # fmt: skip
    """A part of a bar, its label in the middle where it fits; without ``fill`` it is what is not known."""
    style: dict[str, str | float | None] = {"stroke": PAPER, "stroke_width": 1.5}
    if fill is None and width < _SLIM:
        fill = MUTED
    elif fill is None:
        x, y, width, height = x + 1, y + 1, width - 2, height - 2
        style = {"stroke": MUTED, "stroke_width": 1.5, "stroke_dasharray": "4 3"}
    ink = on(fill or PAPER)
    middle = y + height / 2 + 0.36 * size
    fits = label and wide(label, size) + 6 <= width
    inside = text(x + width / 2, middle, label, size=size, fill=ink, anchor="middle") if fits else ""
    return rect(x, y, width, height, fill=fill or PAPER, title=title, inside=inside, **style)


def wide(words: str, size: float) -> float:
    """About how wide a line of text is."""
    return _CHARACTER * size * len(words)


def on(fill: str) -> str:
    """Black or white, whichever is read better upon a colour: a contrast of 4.5 at least (WCAG 2.2, 1.4.3).

    >>> on("#2a7f4f"), on("#7db3e8")
    ('#ffffff', '#000000')
    """
    light = luminance(fill)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def keys(
    entries: Sequence[tuple[str | None, str, str, str]], y: float, *, columns: int = 3
) -> tuple[str, float]:
    """A legend of (colour, title, share, time) in columns, read downwards; the markup and where it ends."""
    each, step = -(-len(entries) // columns), 20.0
    across = (WIDTH - 2 * EDGE) / columns
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
