"""A drawing of the page as a picture that stands alone: classes become attributes, by the page's own style.

Programs that convert SVG know neither style sheets nor places in percent. So the little of CSS that the
page's drawings use is resolved here: selectors of elements and classes, what is inherited, and ``var()``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from xml.etree import ElementTree

from tracelens.render.svg import EDGE, INK, MUTED, PAPER, WIDTH, element, safe, wide
from tracelens.render.templates import part

_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_COMPOUND = re.compile(r"([a-z][a-z0-9]*)?((?:\.[\w-]+)*)")
_INHERITED = frozenset({
    "fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap",
    "font-size", "font-weight", "text-anchor", "paint-order",
})  # fmt: skip
_OWN = frozenset({"background", "opacity"})
_ACROSS, _ALONG = ("x", "width", "x1", "x2", "cx"), ("y", "height", "y1", "y2", "cy")
_PLACES = (*_ACROSS, *_ALONG, "r", "d", "points", "transform")
_HATCHED = {"fill": PAPER, "stroke": MUTED, "stroke-width": "1.5", "stroke-dasharray": "4 3"}
_VAR = re.compile(r"var\((--[\w-]+)\)")
_TEXT = 13.0
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

Style = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Selector:
    """Compounds of (tag or "", classes), outermost first, and what they set."""

    compounds: tuple[tuple[str, frozenset[str]], ...]
    style: Mapping[str, str]

    @property
    def weight(self) -> tuple[int, int]:
        return sum(len(names) for _, names in self.compounds), sum(bool(tag) for tag, _ in self.compounds)

    def fits(self, chain: list[tuple[str, frozenset[str]]]) -> bool:
        """Does it select the last of ``chain``, an element below its ancestors?"""
        wanted, classes = self.compounds[-1]
        tag, names = chain[-1]
        if (wanted and wanted != tag) or not classes <= names:
            return False
        above = reversed(chain[:-1])
        return all(
            any(one in ("", tag) and needed <= names for tag, names in above)
            for one, needed in reversed(self.compounds[:-1])
        )


@cache
def _selectors() -> tuple[_Selector, ...]:
    """The page's rules for light paper, weakest first."""
    found = []
    text = re.sub(r"@[^{}]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", part("report.css") + part("compare.css"))
    for names, body in _RULE.findall(text):
        style = {
            key.strip(): value.replace("!important", "").strip()
            for key, _, value in (one.partition(":") for one in body.split(";"))
            if key.strip().startswith("--") or key.strip() in _INHERITED | _OWN
        }
        for name in names.split(",") if style else ():
            compounds = [_COMPOUND.fullmatch(one) for one in name.split()]
            if name.strip() == ":root":
                found.append(_Selector((("root", frozenset()),), style))
            elif all(compounds):
                pairs = [
                    (one[1] or "", frozenset(filter(None, one[2].split(".")))) for one in compounds if one
                ]
                found.append(_Selector(tuple(pairs), style))
    return tuple(sorted(found, key=lambda one: one.weight))


def _styled(chain: list[tuple[str, frozenset[str]]], around: Style) -> Style:
    """What holds for the last of ``chain``: what it inherits, and what the rules say of it."""
    style = {key: value for key, value in around.items() if key not in _OWN}
    for one in _selectors():
        if one.fits(chain):
            style |= one.style
    return {key: _VAR.sub(lambda name: style.get(name[1], ""), value) for key, value in style.items()}


@cache
def _root() -> Style:
    return _styled([("root", frozenset())], {})


def colour_of(key: str) -> str | None:
    """The colour of a class of the page; None for what is not known, which is hatched there."""
    chain: list[tuple[str, frozenset[str]]] = [("g", frozenset({key})), ("g", frozenset({"seg"}))]
    around = _styled(chain, _styled(chain[:1], _root()))
    fill = _styled([*chain, ("rect", frozenset())], around)["fill"]
    return None if fill.startswith("url(") else fill


def standing(
    markup: str, x: float, y: float, *, inside: str = "", width: float = WIDTH - 2 * EDGE, scale: float = 1.0
) -> str:
    """One drawing of the page at a place of a picture.

    ``markup`` is an ``<svg>`` of the page or what is in one; ``inside`` are the classes around it there,
    ``width`` what its percentages are of. Lengths are times ``scale``, letters keep their size.
    """
    tree = ElementTree.fromstring(f'<g class="{inside}">{_NO_XML.sub(chr(0xFFFD), markup)}</g>')
    drawn = "".join(_Walk(scale).drawn(tree, [], _root(), (width, 0.0)))
    return element(
        "g", drawn, transform=f"translate({x:g} {y:g})" + (f" scale({scale:g})" if scale != 1 else "")
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    scale: float

    def drawn(
        self, one: ElementTree.Element, chain: list[tuple[str, frozenset[str]]], around: Style,
        port: tuple[float, float],
    ) -> Iterator[str]:  # fmt: skip
        """The markup of an element and of all below it; ``port`` is what percentages are of."""
        if one.tag in ("defs", "title"):
            return
        chain = [*chain, (one.tag, frozenset(one.get("class", "").split()))]
        style = _styled(chain, around)
        title = one.find("title")
        said = element("title", safe(title.text or "")) if title is not None else ""
        if one.tag in ("g", "a", "svg"):
            yield self._group(one, chain, style, port, said)
            return
        given = {name: _place(name, value, port) for name, value in one.attrib.items() if name in _PLACES}
        if one.tag == "rect" and "height" not in given:  # as the page's style has it
            given["height"] = port[1]
        paint = self._paint(style, text=one.tag == "text")
        if one.tag != "text":
            yield element(one.tag, said, **given, **paint)
            return
        words = safe("".join(one.itertext()).strip())
        if paint.pop("paint_order", None):  # the halo, to be read upon lines
            yield element("text", words, **given, **paint | {"fill": PAPER, "aria_hidden": "true"})
            paint = {key: value for key, value in paint.items() if not key.startswith("stroke")}
        yield element("text", words, **given, **paint)

    def _group(
        self, one: ElementTree.Element, chain: list[tuple[str, frozenset[str]]], style: Style,
        port: tuple[float, float], said: str,
    ) -> str:  # fmt: skip
        moved = None
        if one.tag == "svg":
            x, width, height = (_place(name, one.get(name, "0"), port) for name in ("x", "width", "height"))
            nested = len(chain) > 2  # a label that is cut where its place ends
            port = (float(width or port[0]), float(height or 0.0))
            if nested and any(wide(text.text or "", _TEXT) > port[0] for text in one.iter("text")):
                return ""
            box = one.get("viewBox")
            stretched = port[0] / float(box.split()[2]) if box else 1.0
            moved = f"translate({x} 0)" if x else f"scale({stretched:g} 1)" if stretched != 1 else None
            if style.get("background", "none") != "none":
                said += element("rect", width=port[0], height=port[1], fill=style["background"])
        inside = "".join(part for below in one for part in self.drawn(below, chain, style, port))
        opacity = style.get("opacity")
        return element("g", said + inside, transform=moved, opacity=opacity) if inside or said else ""

    def _paint(self, style: Style, *, text: bool) -> dict[str, str | float | None]:
        style = {key: value for key, value in style.items() if key in _INHERITED}
        if style.get("fill", "").startswith("url("):
            style |= _HATCHED
        found: dict[str, str | float | None] = {
            key.replace("-", "_"): value.removesuffix("px")
            for key, value in style.items()
            if text or not key.startswith(("font", "text", "paint"))
        }
        size = float(style.get("font-size", f"{_TEXT}px").removesuffix("px"))
        return {"fill": INK, **found, "font_size": size / self.scale} if text else found


def _place(name: str, value: str, port: tuple[float, float]) -> str | float:
    """A length in units of the picture."""
    if value.endswith("%"):
        return float(value[:-1]) / 100 * port[name in _ALONG]
    return float(value) if name in (*_ACROSS, *_ALONG, "r") else value
