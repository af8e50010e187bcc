"""Geometry and words of the pictures by layer: the icicle, one layer's kernels, and shares by component."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tracelens import numbers as f
from tracelens.render.groups import GROUPS, group_of
from tracelens.render.section import Content, Page, Section
from tracelens.render.svg import round_step
from tracelens.render.text import short_kernel
from tracelens.results import LayerPass, LayerRow, Layers, Report
from tracelens.sums import summed
from tracelens.words import COMPONENTS, PHASES, per_step

_COLUMNS = 24  # layers, or runs of them, side by side
_DRAWN = 0.0004  # of the step: what is thinner cannot be seen
_CHARACTER = 0.0065  # of the width: a character of a label in a wide window
_UNEVEN = 0.1  # of the median layer: a layer worth a word
_NAMED = 3  # uneven layers that are named
_LANES = 4  # streams drawn apart
_LISTED = 64  # layers in a table
#: Components of a layer: what Figure 2 of the paper shows shares of.
_OF_A_LAYER = ("attention.", "mlp.", "moe.", "norm", "residual", "dropout")
_SHORT = {"attention": "attn", "embedding": "emb"}


@dataclass(frozen=True, slots=True)
class StripCell:
    """One rectangle; ``start`` and ``width`` are shares of the picture's width."""

    key: str  # css class
    start: float
    width: float
    label: str  # "" where it does not fit
    title: str


@dataclass(frozen=True, slots=True)
class Icicle:
    """Rows of cells: of the step phases, groups and components; of its layers, layers and groups."""

    phases: list[StripCell]
    groups: list[StripCell]
    components: list[StripCell]
    layers: list[StripCell]
    layer_groups: list[StripCell]
    spoken: str


@dataclass(frozen=True, slots=True)
class LayerLine:
    """One layer in the table: ms per step of each phase, in the order of ``phases``."""

    layer: int
    by_phase: list[float]
    total: float
    frac: float  # of the longest layer


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the layer, drawn: a lane of cells for each stream."""

    phase: str
    brief: str
    title: str
    late: str  # what of it belongs to other layers, or ""
    spoken: str
    lanes: list[tuple[str, list[StripCell]]]
    ticks: list[tuple[float, str]]
    rows: list[tuple[str, str, str, str, str]]  # start, time, component, kernel, note
    left_out: int  # of the kernels, not in rows


@dataclass(frozen=True, slots=True)
class ShareBar:
    """Shares by component."""

    title: str
    note: str
    spoken: str
    cells: list[StripCell]
    rows: list[tuple[str, str, float, float]]  # css class, component, share, ms


def _place(name: str, known: Sequence[str]) -> int:
    """Its place among the known ones, or behind them."""
    return known.index(name) if name in known else len(known)


def _total(row: LayerRow) -> float:
    return sum(row.time_ms) + row.rest_ms


def _short(component: str) -> str:
    head, _, tail = component.partition(".")
    return tail or _SHORT.get(head, head)


def _fits(text: str, width: float) -> str:
    return text if (len(text) + 1.5) * _CHARACTER <= width else ""


def icicle(report: Report) -> Icicle | None:
    """The step's GPU time by phase, group, component and layer; None where it is not known."""
    rows = sorted(
        (row for row in report.layers.rows if _total(row) > 0),
        key=lambda row: (
            _place(row.phase, PHASES),
            GROUPS.index(group_of(row.component)),
            _place(row.component, COMPONENTS),
        ),
    )
    whole = sum(_total(row) for row in rows)
    if not rows or whole <= 0:
        return None
    phases = _joined(rows, whole, lambda row: (f"p-{row.phase}", row.phase))
    columns, inside = _by_layer(report.layers)
    return Icicle(
        phases=phases,
        groups=_joined(
            rows, whole, lambda row: (f"g-{group_of(row.component).key}", group_of(row.component).title)
        ),
        components=_joined(rows, whole, lambda row: (f"g-{group_of(row.component).key}", row.component)),
        layers=columns,
        layer_groups=inside,
        spoken="; ".join(cell.title for cell in phases),
    )


def _joined(
    rows: Sequence[LayerRow], whole: float, name: Callable[[LayerRow], tuple[str, str]]
) -> list[StripCell]:
    """Neighbours of one phase and name as one cell."""
    found: list[tuple[tuple[str, str, str], float, float]] = []
    start = 0.0
    for row in rows:
        what, time = (row.phase, *name(row)), _total(row)
        if found and found[-1][0] == what:
            found[-1] = (what, found[-1][1], found[-1][2] + time)
        else:
            found.append((what, start, time))
        start += time
    cells = []
    for (phase, key, title), begin, time in found:
        width = time / whole
        if width < _DRAWN:
            continue
        of = "" if title == phase else f", {phase}"
        said = f"{title}{of}: {f.pct(width)}, {f.ms(time)}"
        label = _fits(title, width) or _fits(_short(title), width)
        cells.append(StripCell(key, begin / whole, width, label, said))
    return cells


def _by_layer(layers: Layers) -> tuple[list[StripCell], list[StripCell]]:
    """Layers, or runs of them, side by side, and below each one its time by group."""
    totals = [sum(row.time_ms[at] for row in layers.rows) for at in range(len(layers.layers))]
    whole = sum(totals)
    if whole <= 0:
        return [], []
    joined = math.ceil(len(totals) / _COLUMNS)
    columns: list[StripCell] = []
    inside: list[StripCell] = []
    start = 0.0
    for first in range(0, len(totals), joined):
        part = range(first, min(first + joined, len(totals)))
        name = f.integers([layers.layers[at] for at in part])
        time = sum(totals[at] for at in part)
        said = f"{'layer' if len(part) == 1 else 'layers'} {name}: {f.ms(time)}"
        columns.append(StripCell("l-layer", start / whole, time / whole, _fits(name, time / whole), said))
        inside += _groups_in(layers, part, name, start, whole)
        start += time
    return columns, inside


def _groups_in(layers: Layers, part: range, name: str, start: float, whole: float) -> list[StripCell]:
    """What the layers of a column spend in each group."""
    cells = []
    for group in GROUPS:
        mine = [row for row in layers.rows if group_of(row.component) is group]
        time = sum(row.time_ms[at] for row in mine for at in part)
        if time / whole >= _DRAWN:
            title = f"{name}, {group.title}: {f.ms(time)}"
            cells.append(StripCell(f"g-{group.key}", start / whole, time / whole, "", title))
        start += time
    return cells


def layer_phases(report: Report) -> list[str]:
    """The phases that have time in layers."""
    found = {row.phase for row in report.layers.rows if any(row.time_ms)}
    return [phase for phase in PHASES if phase in found]


def layer_lines(report: Report) -> list[LayerLine]:
    """GPU time of each layer, by phase."""
    phases = layer_phases(report)
    lines = []
    for at, number in enumerate(report.layers.layers):
        times = [sum(row.time_ms[at] for row in report.layers.rows if row.phase == phase) for phase in phases]
        lines.append((number, times))
    longest = max((sum(times) for _, times in lines), default=0.0) or 1.0
    return [LayerLine(number, times, sum(times), sum(times) / longest) for number, times in lines[:_LISTED]]


def layer_words(report: Report) -> list[str]:
    """How alike the layers are, and which one is not."""
    layers = report.layers
    if layers.why is not None:
        return [f"No layers: {layers.why}."]
    totals = [sum(row.time_ms[at] for row in layers.rows) for at in range(len(layers.layers))]
    whole = sum(_total(row) for row in layers.rows)
    least = "" if report.coverage.complete else "At least "
    said = [
        f"{least}{f.pct(sum(totals) / whole)} of GPU time is in {f.plural(len(totals), 'layer')}"
        if whole
        else ""
    ]
    if len(totals) < 2:
        return [f"{said[0]}."]
    middle = statistics.median(totals)
    per = per_step(report.summary.steps_marked)
    said.append(f"a layer takes {f.ms_range(min(totals), max(totals))} {per}, the median {f.ms(middle)}")
    uneven = sorted(
        (at for at, time in enumerate(totals) if abs(time - middle) > _UNEVEN * middle),
        key=lambda at: -abs(totals[at] - middle),
    )
    lines = [f"{'; '.join(said)}."]
    lines += [_uneven(layers, at, totals[at] / middle - 1) for at in uneven[:_NAMED]]
    if len(uneven) > _NAMED:
        lines.append(f"{len(uneven) - _NAMED} more layers differ from the median by more than 10%.")
    return lines


def _uneven(layers: Layers, at: int, growth: float) -> str:
    """Name the group that makes a layer longer or shorter than the median one."""
    gaps: dict[str, tuple[float, float]] = {}  # group -> time here, time in a median layer
    for row in layers.rows:
        title = group_of(row.component).title
        here, usual = gaps.get(title, (0.0, 0.0))
        gaps[title] = (here + row.time_ms[at], usual + statistics.median(row.time_ms))
    most = max(gaps, key=lambda name: (gaps[name][0] - gaps[name][1]) * (1 if growth > 0 else -1))
    here, usual = gaps[most]
    what = f"no {most} recognised" if not here else f"{most} {f.ms(here)}, usually {f.ms(usual)}"
    than = "longer" if growth > 0 else "shorter"
    return f"Layer {layers.layers[at]} is {f.pct(abs(growth))} {than} than the median: {what}."


def passes(report: Report, *, listed: int = 150) -> list[Pass]:
    """One layer's kernels, pass by pass; ``listed`` of each in its table."""
    timeline = report.layers.timeline
    if timeline is None:
        return []
    return [_pass(one, timeline.layer, timeline.names, listed) for one in timeline.passes]


def _pass(one: LayerPass, layer: int, names: Sequence[str], listed: int) -> Pass:
    length = one.length_us or 1.0
    lanes: dict[str, list[StripCell]] = {}
    rows = []
    streams = sorted(set(one.stream), key=lambda stream: (-one.stream.count(stream), stream))
    columns = zip(one.start_us, one.duration_us, one.component, one.name, one.stream, one.layer, strict=True)
    for start, time, component, name, stream, number in columns:
        kernel = short_kernel(names[name])
        other = "" if number == layer else f"layer {number}" if number >= 0 else "no layer"
        width = min(time, length - start) / length  # another layer's kernel can run on
        label = _fits(_short(component), width)
        title = f"{component} {f.ms(time / 1e3)}: {kernel}" + (f" ({other})" if other else "")
        key = f"g-{group_of(component).key}" + (" faint" if other else "")
        lane = f"stream {stream}" if streams.index(stream) < _LANES else "other streams"
        lanes.setdefault(lane, []).append(StripCell(key, start / length, width, label, title))
        note = ", ".join(filter(None, [other, f"stream {stream}" if len(streams) > 1 else ""]))
        rows.append((f"{start:.1f}", f"{time:.1f}", component, kernel, note))
    order = [*(f"stream {stream}" for stream in streams[:_LANES]), "other streams"]
    count = len(rows) + one.left_out
    words = f"{f.plural(count, 'kernel')} in {f.ms(one.length_us / 1e3)}, GPU busy {f.pct(one.busy_frac)}"
    begins = f"begins {f.ms(one.begins_ms)} after the step began"
    return Pass(
        one.phase,
        f"{f.ms(one.length_us / 1e3)}, {f.plural(count, 'kernel')}",
        f"{words}; {begins}",
        _put_off(one, layer, any(name.startswith("triton_") for name in names)),
        f"{one.phase} of layer {layer}: {words}",
        sorted(lanes.items(), key=lambda one: order.index(one[0])),
        _ticks(length),
        rows[:listed],
        count - len(rows[:listed]),
    )


def _put_off(one: LayerPass, layer: int, compiled: bool) -> str:
    """Kernels of layers whose backward comes before: what no other kernel waits for can run late.

    Inductor orders a compiled graph by its own memory and fusion, and moves weight gradients behind the
    next layers' gradients of activations.
    """
    kernels = zip(one.layer, one.component, one.duration_us, strict=True)
    moved_here = [kernel for kernel in kernels if kernel[0] > layer and one.phase == "backward"]
    if not moved_here:
        return ""
    late = summed((number, time) for number, _, time in moved_here)
    parts = summed((component, time) for _, component, time in moved_here)
    name = f"{'layer' if len(late) == 1 else 'layers'} {f.integers(sorted(late))}"
    whose = "that layer's" if len(late) == 1 else "those layers'"
    most = sorted(parts, key=lambda part: -parts[part])[:_NAMED]
    listed = f"{', '.join(most)}{' and others' if len(parts) > _NAMED else ''}"
    behind = f"behind {whose} own backward"
    moved = f"they run {behind}, as weight gradients can"
    if compiled:
        moved = f"torch.compile (Inductor) moved them {behind}, as it does with weight gradients"
    taken = f.ms(sum(late.values()) / 1e3)
    return f"the faint {taken} are kernels of {name} ({listed}): {moved}, which nothing waits for"


def _ticks(length_us: float) -> list[tuple[float, str]]:
    step, _ = round_step(length_us, 5)
    found = [at * step for at in range(int(length_us / step) + 1)]
    return [(at / length_us, f.ms(at / 1e3) if at else "0") for at in found if at <= 0.97 * length_us]


def forward_shares(report: Report) -> ShareBar | None:
    """What the forward pass of the layers takes by component; None where nothing is known of it."""
    times, title, note = _forward(report.layers)
    whole = sum(times.values())
    if whole <= 0:
        return None
    cells, rows, start = [], [], 0.0
    for component, time in times.items():
        frac, key = time / whole, f"g-{group_of(component).key}"
        said = f"{component}: {f.pct(frac)}, {f.ms(time)}"
        cells.append(StripCell(key, start, frac, _fits(_short(component), frac), said))
        rows.append((key, component, frac, time))
        start += frac
    spoken = ", ".join(f"{component} {f.pct(frac)}" for _, component, frac, _ in rows)
    return ShareBar(title, note, spoken, cells, rows)


def _forward(layers: Layers) -> tuple[dict[str, float], str, str]:
    """Time by component of the forward pass of the layers alone, its title, and what it counts.

    The model's last norm or the activation of its head are in no layer. Where no kernel is tied to a layer,
    it is the components that a layer has, wherever they run.
    """
    rows = [row for row in layers.rows if row.phase == "forward"]
    if layers.layers:
        times = _sums((row.component, sum(row.time_ms)) for row in rows if any(row.time_ms))
        note = f"every kernel in them, {f.ms(sum(times.values()))}, all layers together"
        return times, "Forward pass of the layers", note
    times = _sums((row.component, _total(row)) for row in rows if row.component.startswith(_OF_A_LAYER))
    note = "components of a layer; layers are not known here, so a norm outside them counts too"
    open_ms = sum(_total(row) for row in rows if row.component == "unattributed")
    if times and open_ms:  # it can be any part: shares without it would be too large
        times, note = times | {"unattributed": open_ms}, f"{note}, and what is unattributed"
    return times, "Forward pass", note


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    return dict(sorted(summed(pairs).items(), key=lambda one: _place(one[0], COMPONENTS)))


def _content(page: Page) -> Content | None:
    found, timeline = passes(page.report, listed=page.limit.listed), page.report.layers.timeline
    if not found or timeline is None:
        return None
    step = f"step {timeline.step}; " if len(page.report.steps) > 1 else ""
    return {
        "title": f"Layer {timeline.layer}, kernel by kernel",
        "note": step + "; ".join(f"{one.phase} {one.brief}" for one in found),
        "passes": found,
    }


SECTION = Section("layer", "One layer, kernel by kernel", _content)
