"""Geometry of the roofline figure: where points, roofs and labels go; the template draws them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens import numbers as f
from tracelens.render import facts
from tracelens.results import GemmRow, Report

WIDTH, HEIGHT = 1000, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 26, 16, 40
NEGLIGIBLE = 0.001  # of all GPU time: smaller rows would stretch the axes over decades of nothing
LABELS = 8  # more names than this hide the points


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line and its number."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Roof:
    """One dtype's bound: memory slope, then the flat peak."""

    points: str  # for <polyline>
    label: str
    y: float
    ceiling_y: float | None  # best matmul anyone measured
    ceiling_label: str


@dataclass(frozen=True, slots=True)
class Point:
    """One GEMM row."""

    row: str
    x: float
    y: float
    r: float
    bad: bool
    title: str
    label: str
    label_x: float
    label_y: float
    anchor: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything the figure draws, in user units of WIDTH x HEIGHT."""

    x_ticks: list[Tick]
    y_ticks: list[Tick]
    roofs: list[Roof]
    points: list[Point]
    left_out: int


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> list[Tick]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
        inside = [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
        if len(inside) > 9:
            inside = [v for v in inside if math.isclose(math.log10(v) % 1, 0, abs_tol=1e-9)] or inside
        return [Tick(self.at(v), f"{v:,g}") for v in inside]


def _nice(value: float, up: bool) -> float:
    exponent = math.floor(math.log10(value))
    steps = [m * 10.0**e for e in range(exponent - 1, exponent + 2) for m in (1, 2, 5)]
    return min(s for s in steps if s >= value) if up else max(s for s in steps if s <= value)


def _usable(row: GemmRow) -> bool:
    known = row.intensity and row.intensity > 0 and row.tflops and row.tflops > 0
    return bool(known and (row.frac >= NEGLIGIBLE or row.findings))


def roofline(report: Report, shown: list[GemmRow]) -> Roofline | None:
    """Lay out the figure, or return None where peak, bandwidth or every point is unknown."""
    gpu = report.gpu
    rows = [row for row in shown if _usable(row) and row.math_dtype in gpu.peak_tflops]
    if not rows or not gpu.bandwidth_gbps:
        return None
    seen = [row.math_dtype for row in rows]
    dtypes = sorted({d for d in seen if d is not None}, key=lambda d: -seen.count(d))[:3]
    peaks = {dtype: gpu.peak_tflops[dtype] for dtype in dtypes}
    slope = gpu.bandwidth_gbps / 1e3  # GB/s x FLOP/byte = GFLOP/s
    xs, ys = [row.intensity or 0.0 for row in rows], [row.tflops or 0.0 for row in rows]
    ridge = [peak / slope for peak in peaks.values()]
    x = _Axis(_nice(min(*xs, *ridge) * 0.7, False), _nice(max(*xs, *ridge) * 1.3, True), LEFT, WIDTH - RIGHT)
    y = _Axis(_nice(min(ys) * 0.7, False), _nice(max(*ys, *peaks.values()) * 1.1, True), HEIGHT - BOTTOM, TOP)
    best = gpu.ceiling_tflops | gpu.measured_tflops  # measured on this very GPU where there are any
    roofs = [_roof(dtype, peak, slope, best.get(dtype), x, y) for dtype, peak in peaks.items()]
    return Roofline(x.ticks(), y.ticks(), roofs, _points(rows, x, y, roofs), len(shown) - len(rows))


def _roof(dtype: str, peak: float, slope: float, ceiling: float | None, x: _Axis, y: _Axis) -> Roof:
    start = max(x.low, y.low / slope)
    corners = [(start, min(start * slope, peak)), (max(peak / slope, start), peak), (x.high, peak)]
    points = " ".join(f"{x.at(a)},{y.at(b)}" for a, b in corners)
    known = ceiling is not None and y.low < ceiling < peak
    return Roof(
        points,
        f"{f.sig(peak)} TFLOP/s dense {dtype} (datasheet)",
        y.at(peak),
        y.at(ceiling) if known and ceiling is not None else None,
        f"{f.sig(ceiling)} best measured matmul" if known else "",
    )


def _points(rows: list[GemmRow], x: _Axis, y: _Axis, roofs: list[Roof]) -> list[Point]:
    longest = max(row.time_ms for row in rows) or 1.0
    taken: list[tuple[float, float, float, float]] = []
    for roof in roofs:  # the roofs' own labels stand at the right end, above the line
        taken.append((WIDTH - 260, roof.y - 16, WIDTH, roof.y + 2))
        if roof.ceiling_y is not None:
            taken.append((WIDTH - 180, roof.ceiling_y - 2, WIDTH, roof.ceiling_y + 16))
    centres = [
        (x.at(r.intensity or 1.0), y.at(r.tflops or 1.0), 3.5 + 5.5 * math.sqrt(r.time_ms / longest))
        for r in rows
    ]
    taken += [(cx - r, cy - r, cx + r, cy + r) for cx, cy, r in centres]
    points: list[Point] = []
    named: set[str] = set()
    for row, (cx, cy, r) in zip(rows, centres, strict=True):
        name = f"{row.component} {row.role}" if row.role else row.component
        place = None
        if len(named) < LABELS and name not in named and len(name) < 40:
            place = _place(name, cx, cy, r, taken)
        lx, ly, anchor = place or (0.0, 0.0, "start")
        if place:
            named.add(name)
        title = (
            f"{name}, {facts.shape(row)}: {f.sig(row.tflops)} TFLOP/s at {f.sig(row.intensity)} FLOP/byte, "
            f"{f.ms(row.time_ms_per_step)} per step"
        )
        points.append(
            Point(
                row.id, cx, cy, round(r, 1), bool(row.findings), title, name if place else "", lx, ly, anchor
            )
        )
    return points


def _place(
    name: str, cx: float, cy: float, r: float, taken: list[tuple[float, float, float, float]]
) -> tuple[float, float, str] | None:
    """Find a free place for a label beside its point; a label that fits nowhere is left to the title."""
    width = 6.6 * len(name)
    for dx, dy, anchor in (
        (r + 4, 4, "start"),
        (-r - 4, 4, "end"),
        (r + 2, -r - 2, "start"),
        (r + 2, r + 11, "start"),
    ):
        left = cx + dx if anchor == "start" else cx + dx - width
        box = (left, cy + dy - 10, left + width, cy + dy + 3)
        inside = box[0] > LEFT and box[2] < WIDTH - RIGHT and box[1] > TOP - 10 and box[3] < HEIGHT - BOTTOM
        if inside and not any(
            a < box[2] and c > box[0] and b < box[3] and d > box[1] for a, b, c, d in taken
        ):
            taken.append(box)
            return round(cx + dx, 1), round(cy + dy, 1), anchor
    return None
