"""What the pages of a comparison draw: five numbers, the steps as points, the step as bars, rows that count.

Numbers and places only; ``compare_html`` turns them into markup, ``plots_compare`` into pictures that stand
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens import numbers as f
from tracelens.comparison.spelling import arrow_ms, arrow_pct, p_value, signed_ms
from tracelens.comparison.steps import LEVEL
from tracelens.render.compare_words import interval, level_why
from tracelens.render.five_numbers import Number
from tracelens.render.groups import GROUPS, group_of
from tracelens.render.svg import Tick, round_step
from tracelens.results.comparison import Comparison, ComponentChange, GemmChange, StepChange
from tracelens.results.folders import FolderComparison

POINTS = 300  # of one side; more would be a smear
IDLE = "idle"
_OFF = 0.01  # of the step: a bar that differs by more needs a word
_CLOCK_MS = 1e-4  # 100 ns: a mean over steps has more digits than mean anything
_TICKS = 5  # at most about so many

Found = Comparison | FolderComparison


# -- five numbers ----------------------------------------------------------------------------------


def five_numbers(found: Found) -> list[Number]:
    """Step, GPU busy, exposed communication, GEMM time and MFU, each before and after."""
    return [_step(found), _busy(found), _exposed(found), _gemms(found), _mfu(found)]


def _part(found: Found, name: str) -> tuple[float, float] | None:
    return next(((one.before_ms, one.after_ms) for one in found.parts if one.name == name), None)


def _step(found: Found) -> Number:
    label = "step time" if found.steps_marked else "time recorded"
    if isinstance(found, FolderComparison):
        label = {"ranks": "step of the job", "runs": "step, median of the runs"}.get(found.kind, label)
    step = found.step
    if step is None:
        why = "see the reason above" if found.not_compared or isinstance(found, Comparison) else found.why
        return Number("step", "not compared", label, why)
    return Number(
        f"step {step.state}", arrow_ms(step.before.median, step.after.median), label, difference(step)
    )


def difference(step: StepChange) -> str:
    """The difference of the medians, and how sure it is, where the verdict above does not say so."""
    if step.state == "identical":
        return "the same trace twice"
    said = signed_ms(step.diff_ms)
    if step.p is None:
        return f"{said}; not tested"
    return said if step.state == "inconclusive" else f"{said}; {interval(step)}"


def _busy(found: Found) -> Number:
    idle = _part(found, "idle")
    note = f"idle {arrow_ms(*idle)} {found.per_step}, not tested" if idle else "idle time is not compared"
    return Number("busy", arrow_pct(found.before.gpu_busy_frac, found.after.gpu_busy_frac), "GPU busy", note)


def _exposed(found: Found) -> Number:
    label, times = "exposed communication", _part(found, "exposed communication")
    if times is None:
        return Number("comm", "not compared", label, "its times are not")
    bound = found.before.communication_is_bound or found.after.communication_is_bound
    if not any(row.component == "communication" for row in found.components):
        if bound:
            return Number("comm", f.UNKNOWN, label, "none recognised; too much GPU time is unattributed")
        return Number("comm", "none", label, "no communication in either trace")
    value = ("≥ " if bound else "") + arrow_ms(*times)
    return Number("comm", value, label, f"{found.per_step}, no compute kernel running; not tested")


def _gemms(found: Found) -> Number:
    label, times = "GEMM + attention", _part(found, "GEMMs and attention")
    a, b = found.before, found.after
    share = arrow_pct(a.gemm_frac, b.gemm_frac, least=(a.gemm_frac_is_bound, b.gemm_frac_is_bound))
    if times is None:
        return Number("gemm", share, label, "of GPU time; times are not compared")
    note = f"{signed(times[1] - times[0])} {found.per_step}; {share} of GPU time"
    return Number("gemm", arrow_ms(*times), label, note)


def shares_line(found: Found) -> str:
    """GPU busy and MFU before and after, in a line; says why where MFU is not known."""
    busy, mfu = _busy(found), _mfu(found)
    sides = found.before, found.after
    exact = all(one.mfu_frac is not None and not one.mfu_why for one in sides)
    return f"GPU busy {busy.value}, MFU {mfu.value}{'' if exact else f' ({mfu.note})'}"


def _mfu(found: Found) -> Number:
    a, b = found.before, found.after
    share = arrow_pct(a.mfu_frac, b.mfu_frac, least=(a.mfu_is_bound, b.mfu_is_bound))
    if a.mfu_frac is not None and b.mfu_frac is not None and not (a.mfu_why or b.mfu_why):
        points = 100 * (b.mfu_frac - a.mfu_frac)
        sign = "+" if points > 0 else "−"
        note = "the same" if abs(points) < 0.05 else f"{sign}{abs(points):.1f} percentage points"
        return Number("mfu", share, "MFU", note)
    both = (("before", a), ("after", b))
    whys = {name: one.mfu_why or "not judged" for name, one in both if one.mfu_frac is None or one.mfu_why}
    alike = len(whys) == 2 and len(set(whys.values())) == 1
    said = next(iter(whys.values())) if alike else ""
    value = f.UNKNOWN if a.mfu_frac is None and b.mfu_frac is None else share
    return Number("mfu", value, "MFU", said or "; ".join(f"{name}: {why}" for name, why in whys.items()))


def signed(diff_ms: float | None) -> str:
    """A difference, without the digits that a profiler's clock does not have.

    >>> signed(-0.0123), signed(0.00002)
    ('−12.3 µs', '±0')
    """
    return "±0" if diff_ms is not None and abs(diff_ms) < _CLOCK_MS / 2 else signed_ms(diff_ms)


# -- the steps as points ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Points:
    """The steps of one side: places of 0..1 across and down (later steps lower), and the median's."""

    name: str
    dots: list[tuple[float, float, str]]
    median: float
    said: str


@dataclass(frozen=True, slots=True)
class StepPoints:
    """Both sides' steps on one axis."""

    sides: list[Points]
    ticks: list[Tick]
    spoken: str
    notes: list[str]


def step_points(found: Found) -> StepPoints | None:
    """Every step on one axis, so that its noise is seen; None where neither side has several."""
    sides = {"before": found.before.steps_ms, "after": found.after.steps_ms}
    step = found.step
    if step is None or not all(sides.values()) or max(map(len, sides.values())) < 2:
        return None
    times = [ms for side in sides.values() for ms in side]
    low, high = _around(min(times), max(times))
    medians = {"before": step.before.median, "after": step.after.median}

    def place(ms: float) -> float:
        return min(max((ms - low) / (high - low), 0.0), 1.0)

    what = "run" if isinstance(found, FolderComparison) and found.kind == "runs" else "step"
    middle = "mean of short and long:" if step.kinds else "median"
    drawn, spoken = [], []
    for name, every in sides.items():
        kept = every if len(every) <= POINTS else [every[i * len(every) // POINTS] for i in range(POINTS)]
        last = max(len(kept) - 1, 1)
        dots = [(place(ms), at / last if len(kept) > 1 else 0.5, f.ms(ms)) for at, ms in enumerate(kept)]
        said = f"{middle} {f.ms(medians[name])} of {len(every)} {what}{'' if len(every) == 1 else 's'}"
        drawn.append(Points(name, dots, place(medians[name]), said))
        spoken.append(f"{name} {said}, {f.ms_range(min(every), max(every))}")
    return StepPoints(drawn, ticks(low, high), "; ".join(spoken), _points_notes(step, sides, low, what))


def _points_notes(step: StepChange, sides: dict[str, list[float]], low: float, what: str) -> list[str]:
    line = "the mean of the short and the long ones' medians" if step.kinds else "the median"
    said = [f"each point is one {what}, later ones lower; the line is {line}"]
    said += ["the axis does not begin at 0"] if low > 0 else []
    cut = [f"{POINTS} of {len(every)} {name}" for name, every in sides.items() if len(every) > POINTS]
    said += [f"shown: {' and '.join(cut)}"] if cut else []
    if step.state == "identical":
        return said
    if step.p is None:
        least = f"with so few it cannot go below p = {p_value(step.smallest_p)}, and {LEVEL:g} is asked for"
        return [*said, f"{step.test}: {least}"]
    said.append(f"{step.test}: {step.why}")
    if odd := level_why(step, f"{what}s"):
        said.append(f"the interval is of {step.shift_level:.0%} because {odd}")
    return said


def _around(low: float, high: float) -> tuple[float, float]:
    """A little more than from the least to the most; at least 2 % of the step, so that calm looks calm."""
    spread = max(high - low, 0.02 * high, 1e-6)
    middle = (low + high) / 2
    low, high = middle - 0.58 * spread, middle + 0.58 * spread
    return (0.0, high) if low < 0.15 * high else (low, high)


def ticks(low: float, high: float) -> list[Tick]:
    """Round times on an axis, all in one unit and with the same decimals.

    >>> [(round(one.at, 3), one.text) for one in ticks(0.0, 41.0)]
    [(0.0, '0'), (0.244, '10'), (0.488, '20'), (0.732, '30'), (0.976, '40 ms')]
    """
    unit, factor = ("s", 1e-3) if high >= 10_000 else ("µs", 1e3) if high < 1 else ("ms", 1.0)
    low, high = low * factor, high * factor
    each, places = round_step(high - low, _TICKS)
    first, last = math.ceil(low / each - 1e-9), math.floor(high / each + 1e-9)
    return [
        Tick(
            min(max((n * each - low) / (high - low), 0.0), 1.0),
            f"{n * each:,.{places}f}" + (f" {unit}" if n == last else ""),
        )
        for n in range(first, last + 1)
    ]


# -- the step as two bars --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A component group, or idle time, in both steps; the places are shares of the common scale."""

    key: str
    title: str
    short: str
    before_ms: float
    after_ms: float
    diff_ms: float
    before: tuple[float, float]  # where it begins, how wide it is
    after: tuple[float, float]


@dataclass(frozen=True, slots=True)
class StepBars:
    """Two bars on one scale of ms per step."""

    pieces: list[Piece]
    ticks: list[Tick]
    before_ms: float  # all pieces of a side
    after_ms: float
    notes: list[str]


def step_bars(found: Found) -> StepBars | None:
    """GPU time by component group and idle time, before and after; None where times are not compared."""
    idle = _part(found, "idle")
    sums = {group.key: [0.0, 0.0] for group in GROUPS}
    for row in found.components:
        pair = sums[group_of(row.component).key]
        pair[0] += row.before_ms
        pair[1] += row.after_ms
    parts: list[tuple[str, str, str, float, float]] = [
        (g.key, g.title, g.short, sums[g.key][0], sums[g.key][1]) for g in GROUPS if any(sums[g.key])
    ]
    if idle is None or not parts:
        return None
    parts.append((IDLE, "Idle: no kernel runs", IDLE, idle[0], idle[1]))
    totals = sum(part[3] for part in parts), sum(part[4] for part in parts)
    scale = max(totals)
    starts, pieces = [0.0, 0.0], []
    for key, title, short, old, new in parts:
        places = [(starts[0] / scale, old / scale), (starts[1] / scale, new / scale)]
        pieces.append(Piece(key, title, short, old, new, new - old, places[0], places[1]))
        starts = [starts[0] + old, starts[1] + new]
    return StepBars(pieces, ticks(0.0, scale), *totals, _bars_notes(found, totals))


def _bars_notes(found: Found, totals: tuple[float, float]) -> list[str]:
    """Why a bar is not as long as its step, where it is not."""
    if isinstance(found, FolderComparison) and len(found.pairs) > 1:
        return ["medians over the pairs, piece by piece: they do not have to add up to the step"]
    step = found.step
    if step is None:
        return []
    off = [abs(total - one.median) for total, one in zip(totals, (step.before, step.after), strict=True)]
    if max(off) <= _OFF * step.before.median:
        return []
    why = "means over the steps; overlapping kernels count in full"
    return [f"{why}, so a bar can differ from the median step"]


# -- rows that count and rows that do not ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the bars of a table go: where their zero is, and what a share of 1 stands for."""

    zero: float
    span_ms: float

    def bar(self, diff_ms: float) -> tuple[float, float]:
        """Where a bar begins and how wide it is, as shares of its cell."""
        width = abs(diff_ms) / self.span_ms
        return (self.zero - width if diff_ms < 0 else self.zero), width


def reach(diffs: Sequence[float]) -> Reach:
    """Room for the largest saving to the left of zero and for the largest loss to the right.

    >>> reach([-3.0, 1.0]).bar(-1.5)
    (0.375, 0.375)
    """
    less = max((-diff for diff in diffs if diff < 0), default=0.0)
    more = max((diff for diff in diffs if diff > 0), default=0.0)
    span = less + more
    return Reach(less / span, span) if span > 0 else Reach(0.5, 1.0)


def folded(rows: Sequence[ComponentChange] | Sequence[GemmChange], what: str) -> str | None:
    """One line for rows that changed by no more than noise, or too little to matter; None without any."""
    if not rows:
        return None
    total = math.fsum(row.diff_ms for row in rows if row.diff_ms is not None)
    verb, subject = ("changes", what) if len(rows) == 1 else ("change", f"{what}s")
    together = "" if len(rows) == 1 else " together"
    return (
        f"{len(rows)} {subject} {verb} by no more than noise, or too little to matter:"
        f" {signed(total)}{together}"
    )
