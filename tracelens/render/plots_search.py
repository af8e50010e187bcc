"""The Pareto front of the shape search, as SVG that stands alone: the page's figure, enlarged."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.errors import UsageError
from tracelens.render import search
from tracelens.render.palette import GOOD, MARK, notes, warning
from tracelens.render.svg import (
    INK,
    LINE,
    MUTED,
    PAPER,
    Plot,
    element,
    paragraphs,
    picture,
    safe,
    standing_out,
    text,
)
from tracelens.results import Report, ShapeSearch

_LARGER = 1.5
_LEFT, _TOP = 4.0, 8.0
_COLOURS = {"front": MARK, "now": INK, "pick": GOOD}
_NEAR = 16.0  # numbers closer than this would lie on one another


def front_plot(report: Report) -> Plot:
    """Weights against time per token: the shapes that no other one beats in both, and the picks."""
    found = report.shape_search
    if found is None:
        raise UsageError("no picture of the shape search: this report does not hold one")
    figure = search.figure(found)
    if figure is None:
        raise UsageError(f"no picture of the shape search: {found.verdict.rstrip('.')}")
    lines, end = paragraphs(_words(found), _TOP + search.HEIGHT * _LARGER + 22)
    dots = [_dot(dot) for dot in figure.dots]
    names = _names(figure.dots)
    drawn = [_axes(figure), *dots, *(halo for halo, _ in names), *(name for _, name in names), lines]
    searched = f"{found.tried:,} shapes with weights within ±{100 * found.parameters_limit_frac:g}%"
    return picture(
        "front",
        title="Weights against time per token",
        notes=notes(report, f"{searched}, predicted for this step, not measured"),
        warning=warning(report),
        description=" ".join([found.verdict, *(f"{line}." for line in _picks(found))]),
        body="".join(drawn),
        height=end,
    )


def _picks(found: ShapeSearch) -> list[str]:
    lines = []
    for number, pick in enumerate(found.picks, 1):
        weights = f", weights {search.signed(pick.parameters_frac)}" if pick.parameters is not None else ""
        saved = f"{search.spread(pick.saving_frac)} less time per token"
        lines.append(f"{number}. {pick.title}: {saved}{weights} ({pick.effort})")
    return lines


def _words(found: ShapeSearch) -> list[str]:
    meant = (
        "Line: no other shape tried has as many weights and is faster, by the middle of its prediction;"
        " not recommended by itself."
    )
    if not found.picks:
        return [found.verdict, meant]
    return [*_picks(found), f"{meant} Numbers: picks; their whole range is faster."]


def _x(at: float) -> float:
    return _LEFT + at * _LARGER


def _y(at: float) -> float:
    return _TOP + at * _LARGER


def _axes(figure: search.Figure) -> str:
    left, right = _x(search.LEFT), _x(search.WIDTH - search.RIGHT)
    top, bottom = _y(search.TOP), _y(search.HEIGHT - search.BOTTOM)
    drawn = []
    for tick in figure.x_ticks:
        drawn.append(element("path", d=f"M{_x(tick.at):.1f} {top:.1f}V{bottom:.1f}", stroke=LINE))
        drawn.append(text(_x(tick.at), bottom + 18, tick.text, size=12, fill=MUTED, anchor="middle"))
    for tick in figure.y_ticks:
        drawn.append(element("path", d=f"M{left:.1f} {_y(tick.at):.1f}H{right:.1f}", stroke=LINE))
        drawn.append(text(left - 8, _y(tick.at) + 4, tick.text, size=12, fill=MUTED, anchor="end"))
    drawn.append(text(right, bottom + 40, "weights", size=12, fill=MUTED, anchor="end"))
    drawn.append(text(left - 60, top - 10, "time per token", size=12, fill=MUTED))
    pairs = (pair.split(",") for pair in figure.line.split())
    points = " ".join(f"{_x(float(x)):.1f},{_y(float(y)):.1f}" for x, y in pairs)
    drawn.append(element("polyline", points=points, fill="none", stroke=MARK, stroke_width=1.5))
    return "".join(drawn)


def _dot(dot: search.Dot) -> str:
    drawn = element(
        "circle", cx=_x(dot.x), cy=_y(dot.y), r=4 if dot.kind == "front" else 6, fill=_COLOURS[dot.kind],
        stroke=PAPER,
    )  # fmt: skip
    return element("g", element("title", safe(dot.title)) + drawn)


def _names(dots: Sequence[search.Dot]) -> list[tuple[str, str]]:
    """Names beside their dots; those of one place are one name."""
    places: list[tuple[float, float, list[str]]] = []
    for dot in dots:
        if not dot.label:
            continue
        x, y = _x(dot.x), _y(dot.y)
        near = next((p for p in places if abs(p[0] - x) < 2 * _NEAR and abs(p[1] - y) < _NEAR), None)
        if near is None:
            places.append((x, y, [dot.label]))
        else:
            near[2].append(dot.label)
    return [standing_out(x + 10, y + 5, ", ".join(labels), bold=True) for x, y, labels in places]


__all__ = ["front_plot"]
