"""Figures as SVG text: axes with units, legend, and whose measurement it is in the picture itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.paper.figure import Figure, Mark, Panel, Series

WIDTH = 960
_HEAD, _FOOT = 74, 14
_HEIGHT = {1: 340, 2: 320}  # of a panel, by panels beside each other
_LEFT, _RIGHT, _AXIS = 62, 18, 46  # of the plot within its panel
_ROW = 18  # of the legend
_CHARACTER = 6.7  # about the width of one at 12 px
_FONT = "font-family='system-ui, Segoe UI, Helvetica, Arial, sans-serif'"
_CENTRED = "text-anchor='middle'"
_INK, _SOFT, _GRID, _WARNING = "#1a1a1a", "#555555", "#e3e3e3", "#b00020"
DRY = "DRY RUN on a CPU: nothing here was measured on a GPU"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            part = math.log2(value / self.low) / math.log2(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        """Round values inside: powers of two, or steps of 1, 2, 2.5 or 5 times a power of ten."""
        if self.log:
            powers = [2.0**e for e in range(math.ceil(math.log2(self.low)), int(math.log2(self.high)) + 1)]
            return powers[:: math.ceil(len(powers) / most)]
        step = _step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, int(self.high / step + 1e-9) + 1)]


def _step(least: float) -> float:
    unit = 10.0 ** math.floor(math.log10(least))
    return next(part * unit for part in (1, 2, 2.5, 5, 10) if part * unit >= least * (1 - 1e-9))


def svg(figure: Figure) -> str:
    """The whole picture. Panels without a point are left out."""
    panels = [panel for panel in figure.panels if any(one.points for one in panel.series)]
    columns = min(figure.columns, max(1, len(panels)))
    width = WIDTH / columns
    body: list[str] = []
    top = float(_HEAD)
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        legends = max(len(_legend_rows(panel.series, width)) for panel in row)
        height = _HEIGHT[columns] + legends * _ROW
        for at, panel in enumerate(row):
            body += _panel(panel, at * width, top, width, height, legends, figure.dry_run)
        top += height
    total = round(top + _FOOT)
    title = escape(f"{figure.letter}: {figure.title}")
    sized = f"viewBox='0 0 {WIDTH} {total}' width='{WIDTH}' height='{total}'"
    signed = _WARNING if figure.dry_run else _INK
    style = f"{_FONT} font-size='12' fill='{_INK}'"
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' {sized} role='img' {style}>",
            f"<title>{title}</title>",
            f"<desc>{escape(_signature(figure))}. {escape(figure.shape)}</desc>",
            f"<rect width='{WIDTH}' height='{total}' fill='#ffffff'/>",
            f"<text x='16' y='26' font-size='18' font-weight='600'>{title}</text>",
            f"<text x='16' y='46' font-size='13' fill='{signed}'>{escape(_signature(figure))}</text>",
            f"<text x='16' y='64' fill='{_SOFT}'>{escape(figure.shape)}</text>",
            *body,
            "</svg>",
            "",
        ]
    )


def _signature(figure: Figure) -> str:
    """GPU, type, date: "NVIDIA H200 SXM 141GB, bf16, measured 2026-11-21"."""
    if figure.dry_run:
        return f"{DRY} ({figure.dtype}, {figure.date})"
    return ", ".join(part for part in (figure.gpu, figure.dtype, f"measured {figure.date}") if part)


def _panel(
    panel: Panel, left: float, top: float, width: float, height: float, legends: int, dry_run: bool
) -> Iterator[str]:
    series = [one for one in panel.series if one.points]
    points = [point for one in series for point in one.points]
    plot_top, bottom = top + 30 + legends * _ROW, top + height - _AXIS
    x = _x_scale([point.x for point in points], panel.log_x, left + _LEFT, left + width - _RIGHT)
    high = max(point.tflops for point in points)
    step = _step(high / 5)
    y = _Scale(0.0, step * math.ceil(high * 1.03 / step), bottom, plot_top)
    yield f"<text x='{left + _LEFT:.1f}' y='{top + 16:.1f}' font-weight='600'>{escape(panel.title)}</text>"
    yield from _legend(panel.series, left, top + 34, width)
    yield from _axes(panel, x, y, dry_run)
    for mark in panel.marks:
        yield from _mark(mark, x, y)
    for one in series:
        yield from _drawn(one, x, y)


def _x_scale(values: Sequence[float], log: bool, start: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if log:
        return _Scale(low / 1.15, high * 1.15, start, end, True)
    margin = (high - low) * 0.02 or max(1.0, low * 0.5)
    return _Scale(low - margin, high + margin, start, end)


def _axes(panel: Panel, x: _Scale, y: _Scale, dry_run: bool) -> Iterator[str]:
    middle = (x.start + x.end) / 2
    for value in y.ticks(6):
        at = y.at(value)
        yield f"<path d='M{x.start:.1f} {at}H{x.end:.1f}' stroke='{_GRID}'/>"
        yield _text(f"{value:g}", x.start - 7, at + 4, "text-anchor='end'", fill=_SOFT)
    for value in x.ticks(12 if x.end - x.start > 600 else 7):
        at = x.at(value)
        yield f"<path d='M{at} {y.start:.1f}v5' stroke='{_SOFT}'/>"
        yield _text(f"{value:g}", at, y.start + 18, _CENTRED, fill=_SOFT)
    yield f"<path d='M{x.start:.1f} {y.start:.1f}H{x.end:.1f}' stroke='{_SOFT}'/>"
    yield _text(panel.x_label, middle, y.start + 36, _CENTRED)
    up = (y.start + y.end) / 2
    beside = x.start - 44
    yield _text(panel.y_label, beside, up, f"{_CENTRED} transform='rotate(-90 {beside:.1f} {up:.1f})'")
    if dry_run:
        style = "fill-opacity='0.28' font-size='40' font-weight='700'"
        turned = f"transform='rotate(-16 {middle:.1f} {up:.1f})'"
        yield _text("DRY RUN, no GPU", middle, up, f"{_CENTRED} {style} {turned}", fill=_WARNING)


def _text(words: str, x: float, y: float, style: str = "", *, fill: str = _INK) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {style} fill='{fill}'>{escape(words)}</text>"


def _mark(mark: Mark, x: _Scale, y: _Scale) -> Iterator[str]:
    at = x.at(mark.x)
    if x.start <= at <= x.end:
        yield f"<path d='M{at} {y.start:.1f}V{y.end:.1f}' stroke='#999999' stroke-dasharray='2 4'/>"
        left = at < (x.start + x.end) / 2  # labels keep inside the plot
        anchor = "start" if left else "end"
        style = f"text-anchor='{anchor}' font-size='11'"
        yield _text(mark.label, at + (3 if left else -3), y.start - 5, style, fill=_SOFT)


def _drawn(series: Series, x: _Scale, y: _Scale) -> Iterator[str]:
    places = [(x.at(point.x), y.at(point.tflops)) for point in series.points]
    if series.line != "none" and len(places) > 1:
        path = " ".join(f"{a},{b}" for a, b in places)
        dashes = " stroke-dasharray='6 4'" if series.line == "dashed" else ""
        yield f"<polyline points='{path}' fill='none' stroke='{series.colour}' stroke-width='1.6'{dashes}/>"
    size = 2.2 if len(places) > 80 else 3.2
    yield _marks(series, "".join(_MARKERS[series.marker](a, b, size) for a, b in places))


def _marks(series: Series, drawn: str) -> str:
    """Markers of one series as one path; those made of lines alone are not filled."""
    if series.marker in _OPEN:
        return f"<path d='{drawn}' fill='none' stroke='{series.colour}' stroke-width='1.5'/>"
    return f"<path d='{drawn}' fill='{series.colour}'/>"


# --- legend -------------------------------------------------------------------------------------------


def _legend_rows(series: Sequence[Series], width: float) -> list[list[Series]]:
    """Names wrapped to the width of the panel."""
    rows: list[list[Series]] = [[]]
    used, room = 0.0, width - _LEFT - _RIGHT
    for one in series:
        if not one.points:
            continue
        need = _entry(one)
        if rows[-1] and used + need > room:
            rows.append([])
            used = 0.0
        rows[-1].append(one)
        used += need
    return rows


def _entry(series: Series) -> float:
    return 40 + len(series.name) * _CHARACTER


def _legend(series: Sequence[Series], left: float, top: float, width: float) -> Iterator[str]:
    for at, row in enumerate(_legend_rows(series, width)):
        x, y = left + _LEFT, top + at * _ROW
        for one in row:
            if one.line != "none":
                dashes = " stroke-dasharray='6 4'" if one.line == "dashed" else ""
                yield f"<path d='M{x:.1f} {y - 4:.1f}h22' stroke='{one.colour}' stroke-width='1.6'{dashes}/>"
            yield _marks(one, _MARKERS[one.marker](x + 11, y - 4, 3.6))
            yield _text(one.name, x + 27, y)
            x += _entry(one)


# --- markers ------------------------------------------------------------------------------------------


def _circle(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r:g} 0a{r} {r} 0 1 0 {-2 * r:g} 0"


def _square(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y - r:.1f}h{2 * r:g}v{2 * r:g}h{-2 * r:g}z"


def _triangle(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y + r:.1f}h{2 * r:g}L{x:.1f} {y - r:.1f}z"


def _down(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y - r:.1f}h{2 * r:g}L{x:.1f} {y + r:.1f}z"


def _diamond(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y:.1f}L{x:.1f} {y - r:.1f}L{x + r:.1f} {y:.1f}L{x:.1f} {y + r:.1f}z"


def _cross(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y - r:.1f}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"


def _nothing(x: float, y: float, r: float) -> str:
    return ""


def _plus(x: float, y: float, r: float) -> str:
    return f"M{x - r:.1f} {y:.1f}h{2 * r:g}M{x:.1f} {y - r:.1f}v{2 * r:g}"


_MARKERS: dict[str, Callable[[float, float, float], str]] = {
    "circle": _circle, "square": _square, "triangle": _triangle, "diamond": _diamond, "cross": _cross,
    "plus": _plus, "down": _down, "ring": _circle, "none": _nothing,
}  # fmt: skip
_OPEN = {"cross", "plus", "ring"}
