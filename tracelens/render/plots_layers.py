"""The pictures by layer and by component of a layer, as SVG that stands alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.errors import UsageError
from tracelens.render import facts, layers
from tracelens.render.palette import LAYER, colour_of, notes, warning
from tracelens.render.svg import EDGE, MUTED, WIDTH, Plot, element, keys, picture, segment, text
from tracelens.results import Report

_INNER = WIDTH - 2 * EDGE
_LATE = 115  # characters of a line beside the name of a pass


def layers_plot(report: Report) -> Plot:
    """The step's GPU time by phase, group and component, and by layer."""
    ice = layers.icicle(report)
    if ice is None:
        raise UsageError(f"no picture of layers: {report.layers.why or 'their times are not known'}")
    drawn = _strip(ice.phases, 4, 20) + _strip(ice.groups, 25, 26) + _strip(ice.components, 52, 26)
    end = 84.0
    words = layers.layer_words(report)
    if ice.layers:
        drawn += text(EDGE, 106, "By layer", bold=True)
        drawn += text(EDGE + 66, 106, "all phases of a layer", fill=MUTED)
        drawn += _strip(ice.layers, 116, 20) + _strip(ice.layer_groups, 137, 30)
        end = 174.0
    for line in words:
        end += 19
        drawn += text(EDGE, end, line, fill=MUTED, limit=150)
    return picture(
        "layers",
        title="GPU time by component and by layer",
        notes=notes(
            report,
            f"{facts.per_step(report).strip()}, from the first line to the third: phases, groups, components",
        ),
        warning=warning(report),
        description=f"{ice.spoken}. {' '.join(words)}",
        body=drawn,
        height=end,
    )


def layer_plot(report: Report) -> Plot:
    """One layer kernel by kernel, each pass from its first kernel to its last."""
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
            drawn += element("rect", x=EDGE, y=y, width=_INNER, height=30, fill=LAYER)
            drawn += _strip(cells, y, 30)
            y += 34
        for at, said in one.ticks:
            x = EDGE + at * _INNER
            drawn += element("path", d=f"M{x:.1f} {y - 4:g}v5", stroke=MUTED)
            drawn += text(x, y + 13, said, size=11.5, fill=MUTED, anchor="start" if at < 0.01 else "middle")
        y += 24
    return picture(
        "layer",
        title=f"Layer {timeline.layer}, kernel by kernel",
        notes=notes(report, "gaps are where the stream is idle; kernels of other layers are faint"),
        warning=warning(report),
        description="; ".join(one.spoken for one in found) + ".",
        body=drawn,
        height=y,
    )


def shares_plot(report: Report) -> Plot:
    """What a layer's forward pass takes by component, and what the step's products do."""
    found = layers.shares(report)
    if not found:
        raise UsageError("no picture of shares: no time in layers and no GEMM is known")
    drawn, y = "", 0.0
    for bar in found:
        drawn += text(EDGE, y + 16, bar.title, bold=True)
        drawn += text(WIDTH - EDGE, y + 16, bar.note, fill=MUTED, anchor="end")
        drawn += _strip(bar.cells, y + 26, 40)
        entries = [(colour_of(key), name, f.pct(frac), f.ms(time)) for key, name, frac, time in bar.rows]
        legend, end = keys(entries, y + 92)
        drawn += legend
        y = end + 22
    return picture(
        "shares",
        title="Shares by component",
        notes=notes(report, "of this trace; the forward pass as in Figure 2 of arXiv 2401.14489"),
        warning=warning(report),
        description=". ".join(f"{bar.title}: {bar.spoken}" for bar in found) + ".",
        body=drawn,
        height=y - 12,
    )


def _strip(cells: Sequence[layers.Cell], y: float, height: float) -> str:
    """Cells side by side; the faint ones are of other layers."""
    drawn = []
    for cell in cells:
        key, _, faint = cell.key.partition(" ")
        one = segment(
            EDGE + cell.start * _INNER, y, cell.width * _INNER, height,
            fill=colour_of(key), title=cell.title, label="" if faint else cell.label,
        )  # fmt: skip
        drawn.append(element("g", one, opacity="0.35") if faint else one)
    return "".join(drawn)


__all__ = ["layer_plot", "layers_plot", "shares_plot"]
