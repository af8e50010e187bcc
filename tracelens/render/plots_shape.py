"""The step time against one hyper-parameter, as SVG that stands alone: the page's figure, enlarged."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from tracelens.errors import UsageError
from tracelens.render import explorer
from tracelens.render.palette import ACCENT, BAD, GOOD, MARK, notes, warning
from tracelens.render.svg import (
    EDGE,
    INK,
    LINE,
    MUTED,
    PAPER,
    WIDTH,
    Plot,
    element,
    paragraphs,
    picture,
    rect,
    safe,
    standing_out,
    text,
)
from tracelens.results import Report

_LARGER = 1.85  # than on the page, where many stand side by side
_LEFT = EDGE - 14  # the figure has its own margin for the numbers of its axis
_TOP = 10
_BOTTOM = explorer.HEIGHT - explorer.BOTTOM
_RIGHT = explorer.WIDTH - explorer.RIGHT
_TABLE = 716.0  # where the values stand
_NOTE = 20  # characters between a value and its time
#: kind -> colour, dashes.
_KINDS: dict[str, tuple[str, str | None]] = {
    "full": (ACCENT, None),
    "half": (GOOD, "5 3"),
    "off": (BAD, "1 4"),
}


def shape_plot(report: Report, parameter: str) -> Plot:
    """The predicted step time against ``parameter``, the others as they are."""
    found = next((one for one in explorer.figures(report) if one.curve.parameter == parameter), None)
    if found is None:
        raise UsageError(_why_not(report, parameter))
    height = explorer.HEIGHT * _LARGER
    table, below = _table(found)
    legend, below = _legend(found, below + 26)
    drawn = _frame(found) + _curve(found) + _marks(found) + table + legend
    said = [
        *(f"Suggested by {rule}: {words}" for rule, words in found.links),
        *found.lines,
        *found.notes,
        *explorer.notes(report),
    ]
    lines, end = paragraphs(said, max(_TOP + height + 22, below + 10))
    curve = found.curve
    times = "times are for the present tokens" if curve.per_token else "time of the whole"
    return picture(
        f"shape-{parameter}",
        title=f"The step against {found.title}",
        notes=notes(report, f"predicted, not measured; {times}; now {curve.now}: {found.time_now}"),
        warning=warning(report),
        description=f"{found.spoken}. {' '.join(found.lines)}",
        body=drawn + lines,
        height=end,
    )


def _why_not(report: Report, parameter: str) -> str:
    drawn = [one.parameter for one in report.explorer.curves if one.why is None]
    why = next((one.why for one in report.explorer.curves if one.parameter == parameter), None)
    if why is None and not drawn:
        why = report.explorer.why
    told = f"no curve of {parameter[:40]!r}"
    if why is not None:
        return f"{told}: {why}"
    return f"{told}: this report has {', '.join(drawn)}"


def _x(at: float) -> float:
    return _LEFT + at * _LARGER


def _y(at: float) -> float:
    return _TOP + at * _LARGER


def _points(points: str) -> str:
    """Points of a line or polygon at their place here."""
    pairs = (pair.split(",") for pair in points.split())
    return " ".join(f"{_x(float(x)):.1f},{_y(float(y)):.1f}" for x, y in pairs)


def _frame(figure: explorer.Figure) -> str:
    drawn = [text(_x(2), _y(explorer.TOP - 8), figure.unit, size=12, fill=MUTED)]
    base = f"M{_x(explorer.LEFT):g} {_y(_BOTTOM):.1f}H{_x(_RIGHT):g}"
    drawn.append(element("path", d=base, stroke=LINE))
    for tick in figure.y_ticks:
        line = f"M{_x(explorer.LEFT):g} {_y(tick.at):.1f}H{_x(_RIGHT):g}"
        drawn.append(element("path", d=line, stroke=LINE))
        drawn.append(_number(_x(explorer.LEFT) - 7, _y(tick.at) + 4, tick.text, "end"))
    for tick in figure.x_ticks:
        drawn.append(element("path", d=f"M{_x(tick.at):.1f} {_y(_BOTTOM):.1f}v6", stroke=MUTED))
        drawn.append(_number(_x(tick.at), _y(_BOTTOM) + 20, tick.text, "middle"))
    return "".join(drawn)


def _number(x: float, y: float, words: str, anchor: str) -> str:
    return text(x, y, words, size=12, fill=MUTED, anchor=anchor)


def _curve(figure: explorer.Figure) -> str:
    drawn = []
    if figure.band:
        drawn.append(element("polygon", points=_points(figure.band), fill=MARK, fill_opacity=0.2))
    for series in figure.series:
        colour, dashes = _KINDS[series.kind]
        if series.line:
            drawn.append(
                element(
                    "polyline", points=_points(series.line), fill="none", stroke=colour, stroke_width=2,
                    stroke_linejoin="round", stroke_dasharray=dashes,
                )
            )  # fmt: skip
        if series.kind == "off":
            drawn += [rect(_x(x) - 3, _y(y) - 3, 6, 6, fill=colour) for x, y in series.dots]
        else:
            drawn += [element("circle", cx=_x(x), cy=_y(y), r=3.5, fill=colour) for x, y in series.dots]
        drawn.append(_above(series.above, colour))
    if figure.unknown:
        path = "".join(f"M{_x(x) - 4:.1f} {_y(_BOTTOM) - 13:.1f}l8 8m0-8l-8 8" for x in figure.unknown)
        drawn.append(element("path", d=path, stroke=MUTED, fill="none"))
    return "".join(drawn)


def _above(places: Iterable[float], colour: str) -> str:
    path = "".join(f"M{_x(x) - 4:.1f} {_y(explorer.TOP) - 4:.1f}l4-9 4 9z" for x in places)
    return element("path", d=path, fill=colour) if path else ""


def _marks(figure: explorer.Figure) -> str:
    """Now and what is suggested: a line through the figure, a mark on it, a name above it."""
    top, drawn, names = _y(8), "", [_name(figure.now, 12)]
    for mark in figure.suggested:
        x, y = _x(mark.x), _y(mark.y)
        if mark.apart:
            line = f"M{x:.1f} {top:g}V{_y(_BOTTOM):.1f}"
            drawn += element("path", d=line, stroke=GOOD, stroke_dasharray="3 3")
        drawn += _said(element("path", d=f"M{x:.1f} {y - 8:.1f}l8 8-8 8-8-8z", fill=GOOD, stroke=PAPER), mark)
        names.append(_name(mark, 12 if mark.anchor != figure.now.anchor else 28))
    x, y = _x(figure.now.x), _y(figure.now.y)
    drawn += element("path", d=f"M{x:.1f} {top:g}V{_y(_BOTTOM):.1f}", stroke=INK, stroke_dasharray="3 3")
    drawn += _said(element("circle", cx=x, cy=y, r=6, fill=INK, stroke=PAPER, stroke_width=1.5), figure.now)
    return "".join([drawn, *(halo for halo, _ in names), *(name for _, name in names)])


def _said(drawn: str, mark: explorer.Mark) -> str:
    return element("g", element("title", safe(mark.title)) + drawn)


def _name(mark: explorer.Mark, y: float) -> tuple[str, str]:
    before = mark.anchor == "end"
    x = _x(mark.x) + (-7 if before else 7)
    return standing_out(x, _TOP + y + 4, mark.text, anchor="end" if before else None, bold=True)


def _table(figure: explorer.Figure) -> tuple[str, float]:
    """The values worth reading, at the right of the figure; the markup and where it ends."""
    y = _TOP + 14.0
    drawn = [text(_TABLE, y, figure.title, fill=MUTED, bold=True, size=12)]
    drawn.append(text(WIDTH - EDGE, y, "time", fill=MUTED, bold=True, size=12, anchor="end"))
    for row in figure.rows:
        y += 20
        drawn.append(text(_TABLE, y, row.value, bold=True))
        note = row.note or (f"on {row.aligned}" if row.aligned else "")
        drawn.append(text(WIDTH - EDGE, y, row.time, anchor="end"))
        for at, line in enumerate(textwrap.wrap(note, _NOTE)):
            y += 15 if at else 0
            drawn.append(text(_TABLE + 62, y, line, size=11.5, fill=MUTED, limit=_NOTE))
    return "".join(drawn), y


def _legend(figure: explorer.Figure, y: float) -> tuple[str, float]:
    """What the lines are, below the table."""
    drawn = []
    for series in figure.series:
        if not series.title and len(figure.series) == 1 and not series.above:
            continue
        colour, dashes = _KINDS[series.kind]
        line = element(
            "path", d=f"M{_TABLE:g} {y - 4:g}h22", stroke=colour, stroke_width=2.5, stroke_dasharray=dashes
        )
        above = ", some above (▲)" if series.above else ""
        drawn.append(line + text(_TABLE + 30, y, f"{series.title or 'predicted'}{above}", size=12))
        drawn.append(text(_TABLE + 30, y + 16, series.span, size=11.5, fill=MUTED))
        y += 38
    if figure.band:
        drawn.append(rect(_TABLE, y - 11, 22, 13, fill=MARK, fill_opacity=0.2))
        drawn.append(text(_TABLE + 30, y, "range of the prediction", size=12))
        y += 20
    if figure.unknown:
        drawn.append(text(_TABLE, y, "×  no prediction", size=12))
        y += 20
    return "".join(drawn), y - 12


__all__ = ["shape_plot"]
