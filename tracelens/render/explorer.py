"""Geometry and words of the shape explorer: step time against each hyper-parameter."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracelens import numbers as f
from tracelens.render.findings import is_worth
from tracelens.render.section import Content, Page, Section
from tracelens.render.svg import Tick, round_step
from tracelens.results import Curve, Report

WIDTH, HEIGHT = 360, 206
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 34, 24
#: Where the axes are.
BOX = {"left": LEFT, "right": WIDTH - RIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM}
_PAD = 0.08  # of the times' range, above and below
_BAND = 0.6  # of the times' range: a wider band is cut, or it would flatten the teeth
_ABOVE = 15.0  # where marks stand whose time is off the axis
_UPON = 4.0  # from one line through the figure to another: nearer ones are one
_ROWS = 10  # values in a table
_TICKS = 4  # at most about so many
_CROWDED = 12  # more labels than this do not fit below an axis
#: Values spread by their place in the list: divisors are far apart.
_BY_PLACE = frozenset({"heads", "kv_heads"})
_TILE = 64  # tokens: beyond a multiple of it begins a tile that is hardly filled
#: Values of one alignment, a css class.
Kind = Literal["full", "half", "off"]
#: css class -> what its values have in common.
_KINDS: dict[Kind, str] = {"full": "on 128 bytes", "half": "on 16 to 64 bytes", "off": "under 16 bytes"}
_TOKEN_KINDS: dict[Kind, str] = {"full": f"multiples of {_TILE}", "half": "other values"}
_UNITS = {"sequence": "tokens", "tokens": "tokens"}
_MORE_IS_A_LARGER_MODEL = frozenset({"hidden", "kv_heads", "ffn", "vocab"})


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind: a line on the axis, and marks above it where their time is off it."""

    kind: Kind
    title: str
    line: str  # for <polyline>; "" for fewer than two points
    dots: list[tuple[float, float]]
    above: list[float]
    span: str  # "37.9–41.5 ms"


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that stands out."""

    x: float
    y: float
    text: str
    title: str
    anchor: str
    text_x: float
    apart: bool = True  # from the line of now: a second one upon it would be read as one


@dataclass(frozen=True, slots=True)
class CurveValue:
    """A line of the table of values."""

    value: str
    note: str
    aligned: str
    time: str
    spread: str


@dataclass(frozen=True, slots=True)
class CurveFigure:
    """Everything one figure draws and says, in user units of WIDTH x HEIGHT."""

    curve: Curve
    at: int  # which of the curves that are drawn
    title: str
    spoken: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    unit: str
    band: str
    series: list[Series]
    unknown: list[float]
    now: Mark
    suggested: list[Mark]
    lines: list[str]
    links: list[tuple[str, str]]  # (rule, what it says)
    rows: list[CurveValue]
    notes: list[str]  # of this curve alone
    time_now: str
    by_place: bool  # values stand at even distances, whatever lies between them


@dataclass(frozen=True, slots=True)
class Missing:
    """Parameters without a curve, and why."""

    names: str
    why: str


class _Scale:
    """Where a value and a time stand."""

    def __init__(self, curve: Curve, low: float, high: float) -> None:
        self.values = curve.values
        self.by_place = curve.parameter in _BY_PLACE
        self.low, self.high = low, high
        self.inner = WIDTH - LEFT - RIGHT

    def x(self, value: int) -> float:
        if self.by_place:
            part = (self.values.index(value) + 0.5) / len(self.values)
        else:
            first, last = self.values[0], self.values[-1]
            part = (value - first) / (last - first) if last > first else 0.5
        return round(LEFT + part * self.inner, 1)

    def y(self, time: float) -> float:
        part = (time - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP), 1)

    def inside(self, time: float) -> bool:
        return self.low <= time <= self.high


def figures(report: Report) -> list[CurveFigure]:
    """One figure for every curve that there is."""
    common = _common(report.explorer.curves)
    drawn = [curve for curve in report.explorer.curves if curve.why is None]
    return [_figure(curve, at, common) for at, curve in enumerate(drawn)]


def missing(report: Report) -> list[Missing]:
    """What is not drawn; parameters with one reason together."""
    reasons: dict[str, list[str]] = {}
    for curve in report.explorer.curves:
        if curve.why is not None:
            reasons.setdefault(curve.why, []).append(curve.parameter)
    return [Missing(", ".join(names), why) for why, names in reasons.items()]


def notes(report: Report, *, above: str = "") -> list[str]:
    """What holds for half of the curves or more, each said once, unless it is said ``above``."""
    return [_sentence(note) for note in _common(report.explorer.curves) if note not in above]


def _common(curves: Sequence[Curve]) -> list[str]:
    drawn = [curve for curve in curves if curve.why is None]
    count = Counter(note for curve in drawn for note in curve.notes)
    return [note for note, times in count.items() if times > 1 and 2 * times >= len(drawn)]


def _sentence(note: str) -> str:
    return f"{f.capital(note)}."


def _figure(curve: Curve, at: int, common: Sequence[str]) -> CurveFigure:
    kinds = [_kind(curve, at) for at in range(len(curve.values))]
    low, high = _range(curve, kinds)
    scale = _Scale(curve, low, high)
    factor, unit = (1.0, "ms") if high >= 1 else (1e3, "µs")
    series = [one for kind in _KINDS if (one := _series(curve, kinds, kind, scale)) is not None]
    upon = [_upon(curve, one.value, scale) for one in curve.suggested if one.value != curve.now]
    now = _mark(curve, curve.now, f"now: {curve.now}" if any(upon) else "now", scale)
    suggested = [
        _mark(curve, one.value, f"{one.rule}: {one.value}", scale)
        for one in curve.suggested
        if one.value != curve.now and _mid(curve, one.value) is not None
    ]
    work = " of GPU work" if curve.saving_of == "gpu_work" else ""
    axis = " per token, for the present tokens" if curve.per_token else ""
    mids = [time for time in curve.mid_ms if time is not None]
    spoken = (
        f"{curve.parameter} from {curve.values[0]} to {curve.values[-1]}: predicted time{work}{axis}"
        f" {_span(min(mids), max(mids))}; now {curve.now}: {_ms(_mid(curve, curve.now))}"
    )
    return CurveFigure(
        curve=curve,
        at=at,
        title=curve.parameter,
        spoken="; ".join([spoken, *(one.title for one in suggested)]),
        x_ticks=_x_ticks(curve, scale),
        y_ticks=[Tick(scale.y(one / factor), text) for one, text in _nice(low * factor, high * factor)],
        unit=unit,
        band=_band(curve, kinds, scale),
        series=series,
        unknown=[scale.x(v) for v, time in zip(curve.values, curve.mid_ms, strict=True) if time is None],
        now=now,
        suggested=suggested,
        lines=_lines(curve),
        links=[(one.rule, _said(curve, one.value)) for one in curve.suggested],
        rows=_table(curve, kinds),
        by_place=scale.by_place,
        time_now=_ms(_mid(curve, curve.now)) + work,
        notes=[_sentence(note) for note in curve.notes if note not in common],
    )


def _kind(curve: Curve, at: int) -> Kind:
    if curve.alignment_bytes:
        size = curve.alignment_bytes[at]
        return "full" if size >= 128 else "half" if size >= 16 else "off"
    if curve.parameter in _UNITS:
        return "full" if curve.values[at] % _TILE == 0 else "half"
    return "full"


def _mid(curve: Curve, value: int) -> float | None:
    return curve.mid_ms[curve.values.index(value)]


def _range(curve: Curve, kinds: Sequence[Kind]) -> tuple[float, float]:
    """The axis: what is on the grid, now and what is suggested; the rest stands above it."""
    named = {curve.now, *(one.value for one in curve.suggested)}
    points = zip(curve.values, kinds, curve.low_ms, curve.mid_ms, curve.high_ms, strict=True)
    shown = [
        (low, mid, high)
        for value, kind, low, mid, high in points
        if mid is not None and (kind != "off" or value in named)
    ]
    mids = [mid for _, mid, _ in shown]
    least, most = min(mids), max(mids)
    span = max(most - least, 0.002 * most, 1e-9)
    low = max(min(low if low is not None else mid for low, mid, _ in shown), least - _BAND * span)
    high = min(max(high if high is not None else mid for _, mid, high in shown), most + _BAND * span)
    return max(0.0, min(low, least - _PAD * span)), max(high, most + _PAD * span)


def _series(curve: Curve, kinds: Sequence[Kind], kind: Kind, scale: _Scale) -> Series | None:
    points = [
        (value, time)
        for value, one, time in zip(curve.values, kinds, curve.mid_ms, strict=True)
        if one == kind and time is not None
    ]
    if not points:
        return None
    inside = [(scale.x(value), scale.y(time)) for value, time in points if scale.inside(time)]
    joined = len(inside) > 1 and kind != "off"  # below 16 bytes every step of alignment is its own kind
    line = " ".join(f"{x:g},{y:g}" for x, y in inside) if joined else ""
    titles = _KINDS if curve.alignment_bytes else _TOKEN_KINDS
    title = titles.get(kind, "") if curve.alignment_bytes or curve.parameter in _UNITS else ""
    times = [time for _, time in points]
    span = _span(min(times), max(times))
    above = [scale.x(value) for value, time in points if time > scale.high]
    few = kind != "full" or scale.by_place or len(points) <= _CROWDED
    return Series(kind, title, line, inside if few else [], above, span)


def _band(curve: Curve, kinds: Sequence[Kind], scale: _Scale) -> str:
    """The range of the full series' times, as a polygon; the frame cuts what is beyond."""
    best = [
        (scale.x(value), scale.y(min(high, scale.high)), scale.y(max(low, scale.low)))
        for value, kind, low, high in zip(curve.values, kinds, curve.low_ms, curve.high_ms, strict=True)
        if kind == "full" and low is not None and high is not None and low <= scale.high and high >= scale.low
    ]
    if len(best) < 2:
        return ""
    upper = [f"{x:g},{y:g}" for x, y, _ in best]
    return " ".join([*upper, *(f"{x:g},{y:g}" for x, _, y in reversed(best))])


def _mark(curve: Curve, value: int, text: str, scale: _Scale) -> Mark:
    """The text stands on the side away from the other marks."""
    time = _mid(curve, value)
    x = scale.x(value)
    others = [one.value for one in curve.suggested] if value == curve.now else [curve.now]
    before = any(other > value for other in others)
    if x > WIDTH - 80:
        before = True
    if x < LEFT + 80:
        before = False
    y = _ABOVE if time is None or time > scale.high else scale.y(max(time, scale.low))
    title = f"now {value}: {_ms(time)}" if value == curve.now else f"suggested {text}: {_ms(time)}"
    shift = -5 if before else 5
    apart = value == curve.now or not _upon(curve, value, scale)
    return Mark(x, y, text, title, "end" if before else "start", round(x + shift, 1), apart)


def _upon(curve: Curve, value: int, scale: _Scale) -> bool:
    """Whether a value stands where the one of now does."""
    return abs(scale.x(value) - scale.x(curve.now)) < _UPON


def _x_ticks(curve: Curve, scale: _Scale) -> list[Tick]:
    if scale.by_place:
        shown = curve.values if len(curve.values) <= _CROWDED else curve.values[::2]
        return [Tick(scale.x(value), str(value)) for value in shown]
    first, last = curve.values[0], curve.values[-1]
    ticks = [(scale.x(round(at)), str(round(at))) for at, _ in _nice(first, last) if at == round(at)]
    return [Tick(min(x, WIDTH - 3.5 * len(text)), text) for x, text in ticks]


def _nice(low: float, high: float) -> list[tuple[float, str]]:
    """Round numbers between two ends, with the decimals they need."""
    if high <= low:
        return [(low, f"{low:g}")]
    step, decimals = round_step(high - low, _TICKS)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(at * step, f"{at * step:.{decimals}f}") for at in range(first, last + 1)]


def _ms(value: float | None) -> str:
    """A time with one digit more than elsewhere: neighbours on a curve differ by little."""
    if value is None:
        return f.UNKNOWN
    return f"{f.sig(value, 4)} ms" if value >= 1 or not value else f"{f.sig(1e3 * value, 4)} µs"


def _span(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f.UNKNOWN
    first, last = _ms(low), _ms(high)
    if first == last:
        return first
    number, unit = first.split()
    return f"{number}–{last}" if last.endswith(unit) else f"{first}–{last}"


def _said(curve: Curve, value: int) -> str:
    at = curve.values.index(value)
    spread = _span(curve.low_ms[at], curve.high_ms[at])
    known = "" if spread == f.UNKNOWN else f" ({spread}; {curve.basis})"
    return f"{value}: {_ms(curve.mid_ms[at])}{known}"


def _lines(curve: Curve) -> list[str]:
    """What a reader takes from the figure: what follows, and which value is faster beyond doubt."""
    lines = [f"With it: {curve.follows}."] if curve.follows else []
    time = _mid(curve, curve.now)
    larger_only = curve.parameter in _MORE_IS_A_LARGER_MODEL
    faster = [
        (mid, value)
        for value, mid, high in zip(curve.values, curve.mid_ms, curve.high_ms, strict=True)
        if mid is not None and high is not None and time is not None and high < time
        if not larger_only or value > curve.now
    ]
    what = "larger value" if larger_only else "other value"
    if larger_only and curve.now == curve.values[-1]:
        return lines
    if not faster and curve.suggested:
        return lines  # the suggestion says its own range
    if not faster:
        return [*lines, f"No {what} here is faster beyond the range of the prediction."]
    _, value = min(faster)
    if value in {one.value for one in curve.suggested}:
        return lines
    named = "larger, and faster" if larger_only else "fastest here"
    return [*lines, f"{f.capital(named)}: {_said(curve, value)}."]


def _table(curve: Curve, kinds: Sequence[Kind]) -> list[CurveValue]:
    """The values worth reading: now, suggested, the next ones of each kind, the fastest and the slowest."""
    times = _times(curve)
    known = list(times)
    now = curve.values.index(curve.now)
    suggested = {one.value: one.rule for one in curve.suggested}
    chosen = {now, *(at for at in known if curve.values[at] in suggested)}
    for kind in _KINDS:
        mine = [at for at in known if kinds[at] == kind and at != now]
        chosen.update([at for at in mine if at < now][-1:] + [at for at in mine if at > now][:1])
    extremes = {min(known, key=times.__getitem__), max(known, key=times.__getitem__)}
    chosen |= extremes
    if len(known) <= _ROWS:
        chosen.update(known)
    return [_row(curve, at, suggested, extremes) for at in sorted(chosen)]


def _row(curve: Curve, at: int, suggested: dict[int, str], extremes: set[int]) -> CurveValue:
    value = curve.values[at]
    words = ["now, measured"] if value == curve.now else []
    words += [f"suggested by {suggested[value]}"] if value in suggested else []
    if at in extremes and len(extremes) > 1:
        words.append("fastest here" if curve.mid_ms[at] == min(_times(curve).values()) else "slowest here")
    aligned = f"{curve.alignment_bytes[at]} B" if curve.alignment_bytes else ""
    spread = "" if value == curve.now else _span(curve.low_ms[at], curve.high_ms[at])
    return CurveValue(str(value), ", ".join(words), aligned, _ms(curve.mid_ms[at]), spread)


def _times(curve: Curve) -> dict[int, float]:
    return {at: time for at, time in enumerate(curve.mid_ms) if time is not None}


def _content(page: Page) -> Content | None:
    report = page.report
    drawn = figures(report)
    if not drawn:
        return None
    worth = {finding.rule for finding in report.findings if is_worth(finding)}
    work = "the GPU's work in a step" if report.summary.saving_of == "gpu_work" else "the step"
    return {
        "note": f"{work} against each size of the model, one changed at a time; predicted, not measured",
        "open": any(rule in worth for figure in drawn for rule, _ in figure.links),
        "suggested": [figure for figure in drawn if figure.suggested],
        "others": [figure for figure in drawn if not figure.suggested],
        "notes": notes(report, above=report.shape_search.verdict if report.shape_search else ""),
        "missing": missing(report),
        "size": (WIDTH, HEIGHT),
        "box": BOX,
    }


SECTION = Section("explorer", "Shape explorer", _content)
