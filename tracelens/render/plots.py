"""The pictures of a report for a notebook or a file: ``analysis.plots``. The geometry is that of the page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from markupsafe import Markup, escape

from tracelens import numbers as f
from tracelens.errors import UsageError
from tracelens.render import facts, groups, losses
from tracelens.render import roofline as roofs
from tracelens.render.palette import BAD, MARK, colour_of, notes, warning
from tracelens.render.plots_layers import layer_plot, layers_plot, shares_plot
from tracelens.render.plots_search import front_plot
from tracelens.render.plots_shape import shape_plot
from tracelens.render.svg import (
    EDGE,
    INK,
    LINE,
    MUTED,
    WIDTH,
    Plot,
    element,
    keys,
    picture,
    safe,
    segment,
    standing_out,
    text,
)
from tracelens.render.text import clean
from tracelens.results import Report

_INNER = WIDTH - 2 * EDGE


class Plots:
    """The pictures that can be drawn of a report, each a method that gives a ``Plot``.

    A method raises UsageError with the reason where the report does not hold what the picture shows.
    Shown in a notebook, it is all of them below one another, and why the others are not there.
    """

    def __init__(self, report: Report) -> None:
        self._report = report

    def components(self) -> Plot:
        """GPU time of a step by component group and by phase: all of it, nothing left out."""
        return _components(self._report)

    def gemm_time(self) -> Plot:
        """Where the GEMM time of a step is lost, from all of it down to what is useful."""
        return _gemm_time(self._report)

    def roofline(self) -> Plot:
        """Roofline: TFLOP/s of each GEMM against FLOP per byte, and what the GPU allows."""
        return _roofline(self._report)

    def layers(self) -> Plot:
        """GPU time of a step by phase, group and component, and by layer."""
        return layers_plot(self._report)

    def layer(self) -> Plot:
        """One layer kernel by kernel: each pass from its first kernel to its last."""
        return layer_plot(self._report)

    def shares(self) -> Plot:
        """Shares by component: of the layers' forward pass, and of the step's GEMMs and attention."""
        return shares_plot(self._report)

    def shape(self, parameter: str) -> Plot:
        """The predicted step time against one hyper-parameter: one of ``parameters``."""
        return shape_plot(self._report, parameter)

    def front(self) -> Plot:
        """The shape search: weights against time per token, the shapes that none beats in both, the picks."""
        return front_plot(self._report)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The hyper-parameters that the step time can be drawn against."""
        return tuple(curve.parameter for curve in self._report.explorer.curves if curve.why is None)

    def _drawers(self) -> Iterator[Callable[[], Plot]]:
        yield from (self.components, self.gemm_time, self.roofline, self.shares, self.layers, self.layer)
        yield self.front
        yield from (partial(self.shape, parameter) for parameter in self.parameters)

    def __iter__(self) -> Iterator[Plot]:
        """Every picture that can be drawn."""
        for draw in self._drawers():
            with contextlib.suppress(UsageError):
                yield draw()

    def __repr__(self) -> str:
        return f"<Plots of {clean(self._report.trace.path, limit=80)}>"

    def _repr_html_(self) -> str:
        parts = []
        for draw in self._drawers():
            try:
                parts.append(Markup("<div style='margin:0 0 12px'>{}</div>").format(Markup(draw().svg)))
            except UsageError as error:
                parts.append(Markup("<p>{}</p>").format(escape(str(error))))
        return str(Markup("").join(parts))


def _components(report: Report) -> Plot:
    shares, phases = groups.group_shares(report), groups.phase_shares(report)
    if not shares:
        raise UsageError("no picture of components: the analyzed steps have no GPU time")
    drawn = [
        segment(
            EDGE + s.start_frac * _INNER, 6, s.frac * _INNER, 54, fill=colour_of(f"g-{s.key}"), size=13,
            title=_said(s), label=_longest(f"{s.short} {100 * s.frac:.0f}%", f"{100 * s.frac:.0f}%", s.frac),
        )
        for s in shares
    ]  # fmt: skip
    drawn += [
        segment(
            EDGE + s.start_frac * _INNER, 64, s.frac * _INNER, 20, fill=colour_of(f"p-{s.key}"),
            title=_said(s), label=f"{s.title} {100 * s.frac:.0f}%",
        )
        for s in phases
    ]  # fmt: skip
    legend, below = keys([(colour_of(f"g-{s.key}"), s.title, *_figures(s)) for s in shares], 112)
    more, end = keys([(colour_of(f"p-{s.key}"), s.title, *_figures(s)) for s in phases], below + 34)
    rule = element("path", d=f"M{EDGE} {below + 12}H{WIDTH - EDGE}", stroke=LINE)
    described = [_said(s) for s in (*shares, *phases)]
    return picture(
        "components",
        title="Where the GPU time goes",
        notes=notes(
            report,
            f"{f.ms(report.summary.gpu_ms_per_step)} of GPU time{facts.per_step(report)}, the sum over"
            " every GPU event; shares are of all of it",
        ),
        warning=warning(report),
        description=f"{'; '.join(described)}.",
        body="".join(drawn) + legend + rule + more,
        height=end,
    )


def _longest(label: str, short: str, frac: float) -> str:
    """The label that fits a part of the bar."""
    return label if frac >= 0.13 else short


def _said(share: groups.Share) -> str:
    return f"{share.title}: {f.pct(share.frac)}, {f.ms(share.ms_per_step)}"


def _figures(share: groups.Share) -> tuple[str, str]:
    return f.pct(share.frac), f.ms(share.ms_per_step)


def _gemm_time(report: Report) -> Plot:
    falls, time = losses.waterfall(report), report.gemm_time
    if not falls or time is None:
        why = (
            losses.time_line(time, per=facts.per_step(report))
            if time is not None and time.total
            else "no GEMM time in these steps."
        )
        raise UsageError(f"no picture of GEMM time: {why.rstrip('.')}")
    left, right, step = 380.0, 780.0, 34.0
    drawn = []
    for at, fall in enumerate(falls):
        y = 4 + at * step
        part = fall.key in ("ceiling", "helpers", "small")
        strong = fall.key in ("total", "useful")
        line = y + (12 if fall.note else 17)
        drawn.append(text(EDGE + (16 if part else 0), line, fall.title, bold=not part))
        drawn.append(text(EDGE + (16 if part else 0), y + 26, fall.note, size=11.5, fill=MUTED, limit=70))
        drawn.append(
            segment(
                left + fall.start * (right - left), y + 4, max(fall.frac * (right - left), 1.0), 18,
                fill=colour_of(f"f-{fall.key}"),
                title=f"{fall.title}: {fall.text}, {f.pct(fall.frac)} of GEMM time",
            )
        )  # fmt: skip
        drawn.append(text(880, y + 17, fall.text, anchor="end", bold=strong))
        drawn.append(text(WIDTH - EDGE, y + 17, f.pct(fall.frac), anchor="end", fill=MUTED))
    attention = f"; fused attention, {f.ms(time.attention)}, is not split" if time.attention else ""
    return picture(
        "gemm_time",
        title="Where the GEMM time is lost",
        notes=notes(report, f"{falls[0].text}{facts.per_step(report)}{attention}"),
        warning=warning(report),
        description="; ".join(f"{one.title} {one.text} ({f.pct(one.frac)})" for one in falls) + ".",
        body="".join(drawn),
        height=4 + len(falls) * step,
    )


def _roofline(report: Report) -> Plot:
    roof = roofs.roofline(report, report.gemms)
    if roof is None:
        why = "no row has a known shape, time, peak and bandwidth"
        if report.gpu.name == "unknown":
            why = 'the peaks of this GPU are not known; name it with gpu="h100-sxm" or the like'
        raise UsageError(f"no roofline: {why}")
    drawn = [
        _axes(roof),
        *(_roof(one, roof.frame) for one in roof.roofs),
        *(_mark(one) for one in reversed(roof.points)),
    ]
    drawn += [element("path", d=one.line, stroke=MUTED) for one in roof.points if one.line]
    names = [_name(one) for one in roof.points if one.label]
    drawn += [halo for halo, _ in names] + [name for _, name in names]
    rows = "1 row is" if roof.left_out == 1 else f"{roof.left_out} rows are"
    rest = f"; {rows} not drawn: no shape, no peak, or under 0.1% of GPU time" if roof.left_out else ""
    dashed = f"; dashed: {roof.dashed}" if roof.dashed else ""
    piled = "; +2: number of further rows at the same place" if roof.piled else ""
    return picture(
        "roofline",
        title="Roofline: TFLOP/s of each GEMM against what the GPU allows",
        notes=notes(
            report,
            "achieved TFLOP/s against FLOP per byte, each operand counted once; larger marks take more time,"
            f" ◆ has a finding{piled}{dashed}{rest}",
        ),
        warning=warning(report),
        description=roofs.words(report, report.gemms),
        body=element("g", "".join(drawn), transform=f"translate(0 {12 - roof.frame.top})"),
        height=roof.frame.height - roof.frame.top + 10,
    )


def _axes(roof: roofs.Roofline) -> str:
    left, right, top, bottom = roof.frame.left, roof.frame.end, roof.frame.top, roof.frame.floor
    drawn = []
    for tick in roof.y_ticks:
        drawn.append(element("path", d=f"M{left} {tick.at}H{right}", stroke=LINE))
        drawn.append(text(left - 7, tick.at + 4, tick.text, size=11.5, fill=MUTED, anchor="end"))
    for tick in roof.x_ticks:
        drawn.append(element("path", d=f"M{tick.at} {top}V{bottom}", stroke=LINE))
        drawn.append(text(tick.at, bottom + 16, tick.text, size=11.5, fill=MUTED, anchor="middle"))
    across, along = (left + right) / 2, (top + bottom) / 2
    drawn.append(text(across, bottom + 34, "FLOP per byte", size=11.5, fill=MUTED, anchor="middle"))
    name = text(0, 0, "TFLOP/s", size=11.5, fill=MUTED, anchor="middle")
    return "".join([*drawn, element("g", name, transform=f"translate(14 {along}) rotate(-90)")])


def _roof(roof: roofs.Roof, frame: roofs.Frame) -> str:
    """A bound, its name, and below it the best matmul measured."""
    drawn = element("polyline", points=roof.points, fill="none", stroke=INK, stroke_width=1.6)
    drawn += text(roof.label_x, roof.label_y, roof.label, size=11.5, fill=MUTED, anchor="end")
    if roof.ceiling is not None:
        line = f"M{roof.ceiling[0]} {roof.ceiling[1]}H{frame.end}"
        drawn += element("path", d=line, stroke=MUTED, stroke_dasharray="5 4")
    return drawn


def _mark(point: roofs.Point) -> str:
    x, y, r, half = point.x, point.y, point.r, point.half
    if point.bad:
        path = f"M{x} {y - half:.1f}l{half} {half} {-half} {half} {-half} {-half}z"
        drawn = element("path", d=path, fill=BAD, fill_opacity=0.9, stroke="#ffffff")
    else:
        drawn = element("circle", cx=x, cy=y, r=r, fill=MARK, fill_opacity=0.8, stroke="#ffffff")
    return element("g", element("title", safe(point.title)) + drawn)


def _name(point: roofs.Point) -> tuple[str, str]:
    anchor = None if point.anchor == "start" else point.anchor
    return standing_out(point.label_x, point.label_y, point.label, size=12, anchor=anchor)
