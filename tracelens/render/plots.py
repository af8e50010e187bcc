"""The pictures of a report for a notebook or a file, ``analysis.plots``: drawings of the page with words."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from markupsafe import Markup, escape

from tracelens import numbers as f
from tracelens.errors import UsageError
from tracelens.render import explorer, facts, groups, layers, losses, search
from tracelens.render import roofline as roofs
from tracelens.render.standing import colour_of, standing
from tracelens.render.svg import EDGE, LINE, MUTED, WIDTH, Plot, element, keys, paragraphs, picture, text
from tracelens.render.templates import drawing
from tracelens.render.text import clean
from tracelens.results import Report

_LATE = 115  # characters of a line beside the name of a pass
_LARGER, _FRONT = 1.85, 1.5  # than on the page, where curves stand side by side
_TABLE = 716.0  # where the values of a curve stand
_NOTE = 20  # characters between a value and its time


class Plots:
    """The pictures that can be drawn of a report, each a method that gives a ``Plot``.

    A method raises UsageError with the reason where the report does not hold what the picture shows.
    Shown in a notebook, it is all of them below one another, and why the others are not there.
    """

    def __init__(self, report: Report) -> None:
        self._report = report

    def components(self) -> Plot:
        """GPU time of a step by component group and by phase: all of it, nothing left out."""
        report = self._report
        shares, phases = groups.group_shares(report), groups.phase_shares(report)
        if not shares:
            raise UsageError("no picture of components: the analyzed steps have no GPU time")
        drawn = standing(drawing("groups_bar", shares), EDGE, 6) + standing(
            drawing("phases_bar", phases), EDGE, 64
        )
        legend, below = _legend("g", shares, 112)
        more, end = _legend("p", phases, below + 34)
        rule = element("path", d=f"M{EDGE} {below + 12}H{WIDTH - EDGE}", stroke=LINE)
        said = "; ".join(f"{s.title}: {f.pct(s.frac)}, {f.ms(s.ms_per_step)}" for s in (*shares, *phases))
        return _picture(
            report,
            "components",
            title="Where the GPU time goes",
            note=f"{f.ms(report.summary.gpu_ms_per_step)} of GPU time{facts.per_step(report)}, the sum over"
            " every GPU event; shares are of all of it",
            description=f"{said}.",
            body=drawn + legend + rule + more,
            height=end,
        )

    def gemm_time(self) -> Plot:
        """Where the GEMM time of a step is lost, from all of it down to what is useful."""
        report = self._report
        falls, time = losses.waterfall(report), report.gemm_time
        if not falls or time is None:
            why = (
                losses.time_line(time, per=facts.per_step(report))
                if time is not None and time.total
                else "no GEMM time in these steps."
            )
            raise UsageError(f"no picture of GEMM time: {why.rstrip('.')}")
        drawn, step = [], 34.0
        for at, fall in enumerate(falls):
            y, part = 4 + at * step, fall.key in ("ceiling", "helpers", "small")
            x = EDGE + (16 if part else 0)
            bar = f'<g class="fall">{losses.fall_bar(fall)}</g>'
            drawn += [
                text(x, y + (12 if fall.note else 17), fall.title, bold=not part),
                text(x, y + 26, fall.note, size=11.5, fill=MUTED, limit=70),
                standing(bar, 380, y + 6, inside=f"f-{fall.key}", width=400),
                text(880, y + 17, fall.text, anchor="end", bold=fall.key in ("total", "useful")),
                text(WIDTH - EDGE, y + 17, f.pct(fall.frac), anchor="end", fill=MUTED),
            ]
        attention = f"; fused attention, {f.ms(time.attention)}, is not split" if time.attention else ""
        return _picture(
            report,
            "gemm_time",
            title="Where the GEMM time is lost",
            note=f"{falls[0].text}{facts.per_step(report)}{attention}",
            description="; ".join(f"{one.title} {one.text} ({f.pct(one.frac)})" for one in falls) + ".",
            body="".join(drawn),
            height=4 + len(falls) * step,
        )

    def roofline(self) -> Plot:
        """Roofline: TFLOP/s of each GEMM against FLOP per byte, and what the GPU allows."""
        report = self._report
        roof = roofs.roofline(report, report.gemms)
        if roof is None:
            why = "no row has a known shape, time, peak and bandwidth"
            if report.gpu.name == "unknown":
                why = 'the peaks of this GPU are not known; name it with gpu="h100-sxm" or the like'
            raise UsageError(f"no roofline: {why}")
        rows = "1 row is" if roof.left_out == 1 else f"{roof.left_out} rows are"
        rest = f"; {rows} not drawn: no shape, no peak, or under 0.1% of GPU time" if roof.left_out else ""
        dashed = f"; dashed: {roof.dashed}" if roof.dashed else ""
        piled = "; +2: number of further rows at the same place" if roof.piled else ""
        return _picture(
            report,
            "roofline",
            title="Roofline: TFLOP/s of each GEMM against what the GPU allows",
            note="achieved TFLOP/s against FLOP per byte, each operand counted once; larger marks take more"
            f" time, ◆ has a finding{piled}{dashed}{rest}",
            description=roofs.words(roof),
            body=standing(drawing("roofline", roof, True), 0, 12 - roof.frame.top, inside="roofline"),
            height=roof.frame.height - roof.frame.top + 10,
        )

    def layers(self) -> Plot:
        """GPU time of a step by phase, group and component, and by layer."""
        report = self._report
        ice = layers.icicle(report)
        if ice is None:
            raise UsageError(f"no picture of layers: {report.layers.why or 'their times are not known'}")
        drawn = _strip(ice.phases, 4, 20) + _strip(ice.groups, 25, 26) + _strip(ice.components, 52, 26)
        end, words = 84.0, layers.layer_words(report)
        if ice.layers:
            drawn += text(EDGE, 106, "By layer", bold=True)
            drawn += text(EDGE + 66, 106, "all phases of a layer", fill=MUTED)
            drawn += _strip(ice.layers, 116, 20) + _strip(ice.layer_groups, 137, 30)
            end = 174.0
        lines, end = paragraphs(words, end + 19)
        return _picture(
            report,
            "layers",
            title="GPU time by component and by layer",
            note=f"{facts.per_step(report).strip()}, from the first line to the third: phases, groups,"
            " components",
            description=f"{ice.spoken}. {' '.join(words)}",
            body=drawn + lines,
            height=end,
        )

    def layer(self) -> Plot:
        """One layer kernel by kernel: each pass from its first kernel to its last."""
        report = self._report
        found, timeline = layers.passes(report), report.layers.timeline
        if not found or timeline is None:
            why = report.layers.why or "it is not kept where no layer repeats in the analysed steps"
            raise UsageError(f"no picture of one layer: {why}")
        drawn, y = "", 0.0
        for one in found:
            y += 16
            drawn += text(EDGE, y, one.phase, bold=True) + text(EDGE + 86, y, one.title, fill=MUTED)
            for line in textwrap.wrap(one.late, _LATE):
                y += 17
                drawn += text(EDGE + 86, y, line, fill=MUTED)
            y += 8
            for name, cells in one.lanes:
                if len(one.lanes) > 1:
                    drawn += text(EDGE, y + 11, name, size=11.5, fill=MUTED)
                    y += 16
                drawn += _strip(cells, y, 30, "pass")
                y += 34
            drawn += standing(drawing("ticks", one.ticks), EDGE, y - 4)
            y += 24
        return _picture(
            report,
            "layer",
            title=f"Layer {timeline.layer}, kernel by kernel",
            note="gaps are where the stream is idle; kernels of other layers are faint",
            description="; ".join(one.spoken for one in found) + ".",
            body=drawn,
            height=y,
        )

    def shares(self) -> Plot:
        """Shares by component of the layers' forward pass."""
        report = self._report
        bar = layers.forward_shares(report)
        if bar is None:
            raise UsageError("no picture of shares: no time of a forward pass is known")
        drawn = text(EDGE, 16, bar.title, bold=True)
        drawn += text(WIDTH - EDGE, 16, bar.note, fill=MUTED, anchor="end")
        drawn += _strip(bar.cells, 26, 40, "")
        entries = [(colour_of(key), name, f.pct(frac), f.ms(time)) for key, name, frac, time in bar.rows]
        legend, end = keys(entries, 92)
        return _picture(
            report,
            "shares",
            title="Shares by component",
            note="of this trace; the forward pass as in Figure 2 of arXiv 2401.14489",
            description=f"{bar.title}: {bar.spoken}.",
            body=drawn + legend,
            height=end + 10,
        )

    def shape(self, parameter: str) -> Plot:
        """The predicted step time against one hyper-parameter: one of ``parameters``."""
        report = self._report
        found = next((one for one in explorer.figures(report) if one.curve.parameter == parameter), None)
        if found is None:
            raise UsageError(_no_curve(report, parameter))
        table, below = _values(found)
        series, below = _series(found, below + 26)
        said = [
            *(f"Suggested by {rule}: {words}" for rule, words in found.links),
            *found.lines,
            *found.notes,
            *explorer.notes(report),
        ]
        lines, end = paragraphs(said, max(explorer.HEIGHT * _LARGER + 32, below + 10))
        curve = standing(drawing("curve", found, explorer.BOX), EDGE - 14, 10, inside="curve", scale=_LARGER)
        times = "times are for the present tokens" if found.curve.per_token else "time of the whole"
        return _picture(
            report,
            f"shape-{parameter}",
            title=f"The step against {found.title}",
            note=f"predicted, not measured; {times}; now {found.curve.now}: {found.time_now}",
            description=f"{found.spoken}. {' '.join(found.lines)}",
            body=curve + table + series + lines,
            height=end,
        )

    def front(self) -> Plot:
        """The shape search: weights against time per token, the shapes that none beats in both, the picks."""
        report = self._report
        found = report.shape_search
        if found is None:
            raise UsageError("no picture of the shape search: this report does not hold one")
        figure = search.figure(found)
        if figure is None:
            raise UsageError(f"no picture of the shape search: {found.verdict.rstrip('.')}")
        picks = search.pick_lines(found)
        meant = (
            "Line: no other shape tried has as many weights and is faster, by the middle of its prediction;"
            " not recommended by itself."
        )
        said = (
            [*picks, f"{meant} Numbers: picks; their whole range is faster."]
            if picks
            else [found.verdict, meant]
        )
        lines, end = paragraphs(said, search.HEIGHT * _FRONT + 30)
        searched = f"{found.tried:,} shapes with weights within ±{100 * found.parameters_limit_frac:g}%"
        return _picture(
            report,
            "front",
            title="Weights against time per token",
            note=f"{searched}, predicted for this step, not measured",
            description=" ".join([found.verdict, *(f"{line}." for line in picks)]),
            body=standing(drawing("front", figure, search.BOX), 4, 8, inside="front", scale=_FRONT) + lines,
            height=end,
        )

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


def _picture(
    report: Report, name: str, *, title: str, note: str, description: str, body: str, height: float
) -> Plot:
    """A picture of a report says what is drawn, and of what: it travels without the report."""
    of = [clean(report.trace.path, limit=50), report.gpu.title, facts.steps_text(report)]
    return picture(
        name,
        title=title,
        notes=[note, " · ".join(part for part in of if part)],
        warning=facts.GENERATED if report.trace.generated else "",
        description=description,
        body=body,
        height=height,
    )


def _legend(kind: str, shares: Sequence[groups.Share], y: float) -> tuple[str, float]:
    entries = [(colour_of(f"{kind}-{s.key}"), s.title, f.pct(s.frac), f.ms(s.ms_per_step)) for s in shares]
    return keys(entries, y)


def _strip(cells: Sequence[layers.StripCell], y: float, height: int, inside: str = "icicle") -> str:
    return standing(drawing("strip", cells, height, ""), EDGE, y, inside=inside)


def _no_curve(report: Report, parameter: str) -> str:
    drawn = [one.parameter for one in report.explorer.curves if one.why is None]
    why = next((one.why for one in report.explorer.curves if one.parameter == parameter), None)
    if why is None and not drawn:
        why = report.explorer.why
    told = f"no curve of {parameter[:40]!r}"
    if why is not None:
        return f"{told}: {why}"
    return f"{told}: this report has {', '.join(drawn)}"


def _values(figure: explorer.CurveFigure) -> tuple[str, float]:
    """The values worth reading, at the right of the figure; the markup and where it ends."""
    y = 24.0
    drawn = [text(_TABLE, y, figure.title, fill=MUTED, bold=True, size=12)]
    drawn.append(text(WIDTH - EDGE, y, "time", fill=MUTED, bold=True, size=12, anchor="end"))
    for row in figure.rows:
        y += 20
        drawn.append(text(_TABLE, y, row.value, bold=True))
        drawn.append(text(WIDTH - EDGE, y, row.time, anchor="end"))
        note = row.note or (f"on {row.aligned}" if row.aligned else "")
        for at, line in enumerate(textwrap.wrap(note, _NOTE)):
            y += 15 if at else 0
            drawn.append(text(_TABLE + 62, y, line, size=11.5, fill=MUTED, limit=_NOTE))
    return "".join(drawn), y


def _series(figure: explorer.CurveFigure, y: float) -> tuple[str, float]:
    """What the lines are, below the table."""
    drawn = []
    for series in figure.series:
        if not series.title and len(figure.series) == 1 and not series.above:
            continue
        key = f'<g class="k-{series.kind}"><path class="line" d="M0 0h22"/></g>'
        above = ", some above (▲)" if series.above else ""
        drawn.append(standing(key, _TABLE, y - 4, inside="keys"))
        drawn.append(text(_TABLE + 30, y, f"{series.title or 'predicted'}{above}", size=12))
        drawn.append(text(_TABLE + 30, y + 16, series.span, size=11.5, fill=MUTED))
        y += 38
    if figure.band:
        drawn.append(standing('<rect class="band" width="22" height="13"/>', _TABLE, y - 11))
        drawn.append(text(_TABLE + 30, y, "range of the prediction", size=12))
        y += 20
    if figure.unknown:
        drawn.append(text(_TABLE, y, "×  no prediction", size=12))
        y += 20
    return "".join(drawn), y - 12
