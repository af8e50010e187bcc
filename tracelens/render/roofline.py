"""Geometry of the roofline figure: where points, roofs and labels go; the template draws them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tracelens import numbers as f
from tracelens.render import facts
from tracelens.render.roofline_names import SAME, Anchor, Box, Circle, Names, Place
from tracelens.render.section import Content, Page, Section
from tracelens.render.svg import Tick
from tracelens.results import GemmRow, GpuInfo, Report

NEGLIGIBLE = 0.001  # of all GPU time: smaller rows would stretch the axes over decades of nothing
_BOUNDS = 3  # dtypes whose bound is drawn
_LINE = 14  # user units from a line of text to the next
_OVER = 5  # from a bound up to its name
DIAMOND = 1.25  # half a diagonal of the diamond for a finding, in radii of the circle for none: as much area


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a figure in user units, its margins, and how many names it has room for."""

    width: int
    height: int
    left: int
    right: int  # the margins
    top: int
    bottom: int
    ticks: int  # at most, of an axis
    names: int  # of points: more would hide them
    character: float  # width of one, about
    brief: bool = False  # names without the words that the caption has, too, and short roles

    @property
    def end(self) -> int:
        """Where the axes end at the right."""
        return self.width - self.right

    @property
    def floor(self) -> int:
        """Where the axis across is."""
        return self.height - self.bottom


WIDE = Frame(1000, 310, 56, 26, 20, 40, 9, 10, 6.6)
# a telephone of 360 points without its margins
NARROW = Frame(328, 256, 44, 16, 18, 38, 6, 5, 6.4, brief=True)


@dataclass(frozen=True, slots=True)
class Roof:
    """One bound: the memory slope, then the flat peak; its name stands over where the flat part begins."""

    points: str  # for <polyline>
    label: str
    label_x: float  # where the label ends
    label_y: float
    ceiling: tuple[float, float] | None  # where the line of the best matmul measured begins: x, y


@dataclass(frozen=True, slots=True)
class Point:
    """One GEMM row."""

    row: str
    x: float
    y: float
    r: float
    half: float  # of the mark's width: of a diamond where it is bad
    bad: bool  # has a finding
    title: str
    label: str  # "" where another says it, or where there is no room
    label_x: float
    label_y: float
    anchor: Anchor
    line: str  # for <path>: from the mark to a label that is not right beside it, or ""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Everything the figure draws, in user units of its frame."""

    frame: Frame
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    roofs: list[Roof]
    points: list[Point]
    left_out: int
    dashed: str  # what the dashed lines are, and how many rows are above theirs; "" where there are none
    piled: bool  # some label is for several marks upon each other


@dataclass(frozen=True, slots=True)
class _LogAxis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[Tick]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
        inside = [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
        if len(inside) > most:
            inside = [v for v in inside if math.isclose(math.log10(v) % 1, 0, abs_tol=1e-9)] or inside
        return [Tick(self.at(v), f"{v:,g}") for v in inside]


def _nice(value: float, up: bool) -> float:
    exponent = math.floor(math.log10(value))
    steps = [m * 10.0**e for e in range(exponent - 1, exponent + 2) for m in (1, 2, 5)]
    return min(s for s in steps if s >= value) if up else max(s for s in steps if s <= value)


def _drawable(value: float | None) -> bool:
    """Is it known, and not beyond what any GPU computes? An axis of other floats has no end."""
    return value is not None and 1e-12 < value < 1e12


def _usable(row: GemmRow) -> bool:
    known = _drawable(row.intensity) and _drawable(row.tflops)
    return bool(known and (row.frac >= NEGLIGIBLE or row.findings))


def roofline(report: Report, shown: list[GemmRow], *, frame: Frame = WIDE) -> Roofline | None:
    """Lay out the figure, or return None where peak, bandwidth or every point is unknown."""
    gpu = report.gpu
    rows = [row for row in shown if _usable(row) and _drawable(gpu.peak_tflops.get(row.math_dtype or ""))]
    if not rows or gpu.bandwidth_gbps is None or not _drawable(gpu.bandwidth_gbps):
        return None
    bounds = _bounds(rows, gpu, brief=frame.brief)
    slope = gpu.bandwidth_gbps / 1e3  # GB/s x FLOP/byte = GFLOP/s
    xs, ys = [row.intensity for row in rows if row.intensity], [row.tflops for row in rows if row.tflops]
    ridges = [bound.peak / slope for bound in bounds]
    low, high = min(*xs, *ridges) * 0.7, _nice(max(*xs, *ridges) * 1.3, True)
    low = min([low, *(_room(bound, slope, high, frame) for bound in bounds)])
    x = _LogAxis(_nice(low, False), high, frame.left, frame.end)
    top = max(*ys, *(bound.peak for bound in bounds)) * 1.1
    y = _LogAxis(_nice(min(ys) * 0.7, False), _nice(top, True), frame.floor, frame.top)
    roofs = _roofs(bounds, slope, x, y)
    points = _points(rows, x, y, frame, _drawn(roofs, x, frame))
    dashed = _dashed(rows, gpu) if any(roof.ceiling for roof in roofs) else ""
    return Roofline(
        frame, x.ticks(frame.ticks), y.ticks(frame.ticks), roofs, points, len(shown) - len(rows), dashed,
        any(" +" in one.label for one in points),
    )  # fmt: skip


def words(roof: Roofline) -> str:
    """What the figure shows, for who does not see it."""
    most = max(roof.points, key=lambda one: one.r)
    count = f"{len(roof.points)} row{'' if len(roof.points) == 1 else 's'}"
    return f"Roofline: {count} under {roof.roofs[0].label}. Most time: {most.title}."


@dataclass(frozen=True, slots=True)
class _Bound:
    peak: float
    best: float | None  # the best matmul anyone measured
    label: str


def _bounds(rows: list[GemmRow], gpu: GpuInfo, *, brief: bool) -> list[_Bound]:
    """The bounds of the dtypes that most rows compute in, the highest first; equal ones are one."""
    seen = [row.math_dtype for row in rows]
    dtypes = sorted({d for d in seen if d is not None}, key=lambda d: -seen.count(d))[:_BOUNDS]
    measured = _best(gpu)
    together: dict[tuple[float, float | None], list[str]] = {}
    for dtype in dtypes:
        peak, best = gpu.peak_tflops[dtype], measured.get(dtype)
        known = best if best is not None and best < peak else None
        together.setdefault((peak, known), []).append(dtype)
    bounds = []
    for (peak, best), names in sorted(together.items(), key=lambda one: -one[0][0]):
        head, words = ("", "best ") if brief else (" TFLOP/s dense", "best measured matmul ")
        tail = f", {words}{f.sig(best)}" if best is not None else ""
        bounds.append(_Bound(peak, best, f"{f.sig(peak)}{head} {', '.join(names)}{tail}"))
    return bounds


def _best(gpu: GpuInfo) -> dict[str, float]:
    """The best plain matmul by dtype: on this very GPU where it was measured."""
    return gpu.ceiling_tflops | gpu.measured_tflops


def _dashed(rows: list[GemmRow], gpu: GpuInfo) -> str:
    """What the dashed lines are; a best measured is no bound, and rows above it are counted."""
    best = _best(gpu)
    known = {row.math_dtype for row in rows if row.math_dtype in best}
    here = known & set(gpu.measured_tflops)
    sources = ["published for such a GPU (mamf-finder)"] if known - here else []
    sources += ["measured by tracelens on this one"] if here else []
    above = sum(
        row.tflops > best.get(row.math_dtype or "", math.inf) for row in rows if row.tflops is not None
    )
    count = f": {above} here {'is' if above == 1 else 'are'}" if above else ""
    return f"the best plain matmul {' or '.join(sources)}; rows can be faster{count}"


def _room(bound: _Bound, slope: float, high: float, frame: Frame) -> float:
    """The lowest intensity of an axis that leaves room for a bound's name before its flat part."""
    part = (frame.character * len(bound.label) + 8) / (frame.end - frame.left)
    ridge = bound.peak / slope
    return ridge if part >= 0.9 else high * (ridge / high) ** (1 / (1 - part))


def _roofs(bounds: list[_Bound], slope: float, x: _LogAxis, y: _LogAxis) -> list[Roof]:
    """The bounds with their names, from below: each name a line over its own bound and the name below it.

    Over the memory slope there is no point, so that names that end where the flat part begins hide none.
    """
    roofs: list[Roof] = []
    last = math.inf
    for bound in reversed(bounds):
        start = max(x.low, y.low / slope)
        ridge = max(bound.peak / slope, start)
        corners = [(start, min(start * slope, bound.peak)), (ridge, bound.peak), (x.high, bound.peak)]
        points = " ".join(f"{x.at(a)},{y.at(b)}" for a, b in corners)
        last = round(min(y.at(bound.peak) - _OVER, last - _LINE), 1)
        best = bound.best
        known = best is not None and best > y.low
        ceiling = (x.at(max(start, best / slope)), y.at(best)) if known and best is not None else None
        roofs.append(Roof(points, bound.label, x.at(ridge), last, ceiling))
    return roofs[::-1]


def _drawn(roofs: list[Roof], x: _LogAxis, frame: Frame) -> tuple[list[Box], list[Box], list[Box]]:
    """Where the names of the bounds, the bounds, and the dashed lines are."""
    names = [
        (one.label_x - frame.character * len(one.label), one.label_y - 10, one.label_x, one.label_y + 3)
        for one in roofs
    ]
    bounds: list[Box] = []
    dashed: list[Box] = []
    for one in roofs:
        corners = [tuple(map(float, pair.split(","))) for pair in one.points.split()]
        for (a, b), (c, d) in itertools.pairwise(corners):
            steps = max(1, round((c - a) / 12))
            for at in range(steps):
                across = [a + (c - a) * part / steps for part in (at, at + 1)]
                up = sorted(b + (d - b) * part / steps for part in (at, at + 1))
                bounds.append((across[0], up[0] - 1, across[1], up[1] + 1))
        if one.ceiling is not None:
            dashed.append((one.ceiling[0], one.ceiling[1] - 1, x.end, one.ceiling[1] + 1))
    return names, bounds, dashed


def _points(
    rows: list[GemmRow], x: _LogAxis, y: _LogAxis, frame: Frame, drawn: tuple[list[Box], list[Box], list[Box]]
) -> list[Point]:
    longest = max(row.time_ms for row in rows) or 1.0
    radii = [3.5 + 5.5 * math.sqrt(row.time_ms / longest) for row in rows]
    marks = [
        (x.at(row.intensity or 1.0), y.at(row.tflops or 1.0), r * (DIAMOND if row.findings else 1.0))
        for row, r in zip(rows, radii, strict=True)
    ]
    places = _names(rows, marks, frame, drawn)
    points = []
    for at, (row, (cx, cy, half), r) in enumerate(zip(rows, marks, radii, strict=True)):
        title = (
            f"{_name(row)}, {facts.shape(row)}: {f.sig(row.tflops)} TFLOP/s at {f.sig(row.intensity)} "
            f"FLOP/byte, {f.ms(row.time_ms_per_step)}"
        )
        label, place = places.get(at, ("", Place(0.0, 0.0, "start", None, (0.0, 0.0, 0.0, 0.0))))
        line = "M{:g} {:g}L{:g} {:g}".format(*place.line) if place.line else ""
        points.append(
            Point(
                row.id, cx, cy, round(r, 1), round(half, 1), bool(row.findings), title,
                label, place.x, place.y, place.anchor, line,
            )
        )  # fmt: skip
    return points


def _names(
    rows: list[GemmRow], marks: list[Circle], frame: Frame, drawn: tuple[list[Box], list[Box], list[Box]]
) -> dict[int, tuple[str, Place]]:
    """Names of points and their places; a name that fits nowhere is left to the title.

    Marks upon each other have one name, with how many more there are.
    """
    above, bounds, dashed = drawn
    taken = [*above, *((cx - r, cy - r, cx + r, cy + r) for cx, cy, r in marks)]
    area = (frame.left, frame.top - 10, frame.end, frame.floor)
    names = Names(area, frame.character, marks, taken, bounds, dashed)
    places: dict[int, tuple[str, Place]] = {}
    named: set[str] = set()
    told: set[int] = set()
    first, rest = _order(rows)
    for at in [*first, *rest]:
        name = _name(rows[at])
        if len(places) == frame.names or name in named or at in told or len(name) >= 40:
            continue
        cx, cy, _ = marks[at]
        pile = [n for n, one in enumerate(marks) if math.hypot(one[0] - cx, one[1] - cy) <= SAME]
        short = f"{rows[at].component} {facts.role(rows[at])}" if frame.brief and rows[at].role else name
        label = f"{short} +{len(pile) - 1}" if len(pile) > 1 else short
        place = names.place(label, at, over_bounds=at in first)
        if place:
            places[at] = label, place
            named.add(name)
            told.update(pile)
    return places


def _order(rows: list[GemmRow]) -> tuple[list[int], list[int]]:
    """Who is named first: the largest, the fastest, those with a finding; then by time and speed in turn."""
    largest = sorted(range(len(rows)), key=lambda at: -rows[at].time_ms)
    fastest = sorted(range(len(rows)), key=lambda at: -(rows[at].tflops or 0.0))
    first = dict.fromkeys([largest[0], fastest[0], *(at for at in largest if rows[at].findings)])
    in_turn = dict.fromkeys(itertools.chain.from_iterable(zip(largest, fastest, strict=True)))
    return [*first], [at for at in in_turn if at not in first]


def _name(row: GemmRow) -> str:
    return f"{row.component} {row.role}" if row.role else row.component


def _content(page: Page) -> Content | None:
    figure = roofline(page.report, page.rows)
    if figure is None:
        return None
    return {
        "note": "TFLOP/s of each GEMM against what the GPU allows",
        "open": page.report.summary.limited_by == "shapes" and bool(page.report.findings),
        "roof": figure,
        "small_roof": roofline(page.report, page.rows, frame=NARROW),
        "roof_words": words(figure),
    }


SECTION = Section("roofline", "Roofline", _content)
