"""The shape search as page and terminal show it: its picks, and the Pareto front as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens import numbers as f
from tracelens.render.section import Content, Page, Section
from tracelens.render.svg import Tick, round_step
from tracelens.results import Estimate, Finding, FrontPoint, ShapePick, ShapeSearch

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 16, 40
#: Points of the front that a terminal shows.
POINTS = 6
#: Changes below half of the last digit shown.
_ROUND = 0.00005
_TICKS = 4
_NEAR = 12.0  # from one dot to another: nearer ones have one name
#: An axis shows no less than this: what is below it is nothing to see.
_NARROWEST = 0.002
#: Parameters that a finding names as a configuration does.
_NAMES = {"vocab_size": "vocab"}
#: Where the axes are.
BOX = {"top": TOP, "right": RIGHT, "bottom": BOTTOM, "height": HEIGHT}


def signed(frac: float) -> str:
    """A growth, with its sign.

    >>> signed(-0.0461), signed(0.00018), signed(0.0)
    ('-4.61%', '+0.02%', '±0')
    """
    return "±0" if abs(frac) < _ROUND else f"{frac:+.2%}"


def words(change: Mapping[str, Sequence[int | None]]) -> str:
    """A change in short, heads with their size; kv_heads are none of their own where they are as many.

    >>> words({"heads": [32, 20], "kv_heads": [32, 20], "head_dim": [80, 128], "vocab": [50257, 50304]})
    'heads 20 × 128, vocab 50304'
    """
    if not change:
        return "the present shape"
    shown = {name: f"{name} {pair[1]}" for name, pair in change.items()}
    if change.get("kv_heads") == change.get("heads"):
        shown.pop("kv_heads", None)
    if {"heads", "head_dim"} <= change.keys():
        shown["heads"] += shown.pop("head_dim").replace("head_dim", " ×")
    return ", ".join(shown.values())


def key(change: Mapping[str, Sequence[int | None]]) -> tuple[tuple[str, int | None], ...]:
    """What two changes are told apart by."""
    return tuple(sorted((name, pair[1]) for name, pair in change.items()))


def thinned(
    front: Sequence[FrontPoint], picks: Sequence[ShapePick] = (), *, most: int = POINTS
) -> list[FrontPoint]:
    """At most ``most`` points: the present shape, picks, the fastest, and what adds most to the front.

    A point adds what it alone offers: weights over the next faster one, times its gain over the next heavier.
    """
    shown = list(front)
    named = {key({}), *(key(pick.change) for pick in picks)}
    while len(shown) > most:
        adds = [
            ((before.time_frac - one.time_frac) * (one.parameters_frac - after.parameters_frac), at)
            for at, (before, one, after) in enumerate(zip([front[0], *shown], shown, shown[1:], strict=False))
            if key(one.change) not in named
        ]
        if not adds:
            break
        del shown[min(adds)[1]]
    return shown


def spread(saving: Estimate) -> str:
    """``16.2% (10.7 to 31.3%)``."""
    if saving.mid is None:
        return f.UNKNOWN
    if saving.low is None or saving.high is None:
        return f"{saving.mid:.1%}"
    return f"{saving.mid:.1%} ({100 * saving.low:.1f} to {saving.high:.1%})"


def why_unsure(pick: ShapePick) -> str:
    """What a pick that is not recommended is predicted to save, and why it is not."""
    if pick.unsure_over:
        why = f"but not surely more than {words(pick.unsure_over)} alone"
    elif (pick.saving_frac.low or 0.0) > 0:
        why = "but at the low end only by fewer operations"
    else:
        why = "but the range includes slower"
    return f"Predicted {spread(pick.saving_frac)}, {why}: measure it."


def same_change(finding: Finding, pick: ShapePick) -> bool:
    """Whether a finding and a pick are one change under two names."""
    named = {_NAMES.get(name, name): pair[-1] for name, pair in finding.change.items()}
    return bool(named) and named == {name: pair[-1] for name, pair in pick.change.items()}


def _shapes(tried: int) -> str:
    return f"{tried:,} shape" if tried == 1 else f"{tried:,} shapes"


def line(found: ShapeSearch, findings: Sequence[Finding] = ()) -> str:
    """What the search says in a summary; a pick that is a finding's change only names it."""
    return " ".join([_line(found, findings), *_not_tried(found, findings)])


def _not_tried(found: ShapeSearch, findings: Sequence[Finding]) -> list[str]:
    """Heads that a finding proposes and the search leaves out, and why."""
    proposed = [(one.rule, one.change["heads"][-1]) for one in findings if "heads" in one.change]
    return [
        f"{rule}'s {heads} heads are left out: they would not divide over {found.kept_degree} tensor-parallel"
        " ranks, as the present heads do."
        for rule, heads in proposed
        if found.tried and isinstance(heads, int) and heads % found.kept_degree
    ]


def _line(found: ShapeSearch, findings: Sequence[Finding]) -> str:
    if found.state == "good" and found.tried:
        return f"None of {found.tried:,} other shapes of this size is clearly faster than the present one."
    if not found.picks:
        return found.verdict
    best = found.picks[0]
    known = next((one.rule for one in findings if same_change(one, best)), None)
    if known is not None:
        change = f"{known}'s change, {best.title}"
        if len(found.picks) == 1:
            return f"None of {_shapes(found.tried)} of this size is clearly faster than {change}."
        return f"{change}, comes first of the {len(found.picks)} picks among {_shapes(found.tried)}."
    return (
        f"{best.title}: {f.ms(best.saving_ms.mid)} less, {spread(best.saving_frac)}, among"
        f" {_shapes(found.tried)} of this size ({best.effort})."
    )


def ran(found: ShapeSearch) -> str:
    """What of the search was run on a GPU, in a few words."""
    count = sum(one.verified is not None and one.verified.state == "measured" for one in found.picks)
    if not count:
        return "predicted, not measured"
    return "its pick was measured" if count == len(found.picks) == 1 else f"{count} of its picks measured"


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of the figure; ``kind``: front | pick | now."""

    kind: str
    x: float
    y: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class FrontFigure:
    """The Pareto front in user units of width x HEIGHT: growth of the weights across, of the time upwards."""

    width: int
    left: int
    line: str  # of the front, for <polyline>
    dots: list[Dot]
    x_ticks: list[Tick]
    y_ticks: list[Tick]


def figure(found: ShapeSearch, *, width: int = WIDTH, left: int = LEFT) -> FrontFigure | None:
    """The figure, or None where the front has no two points to join."""
    if len(found.front) < 2:
        return None
    points = [(point.parameters_frac, point.time_frac - 1.0) for point in found.front]
    told = [
        (pick, number, -mid)
        for number, pick in enumerate(found.picks, 1)
        if (mid := pick.saving_frac.mid) is not None
    ]
    picked = [(pick.parameters_frac, y) for pick, _, y in told]
    across = _Axis.of([x for x, _ in (*points, *picked, (0.0, 0.0))], left, width - RIGHT)
    up = _Axis.of([y for _, y in (*points, *picked, (0.0, 0.0))], HEIGHT - BOTTOM, TOP)
    dots = [
        Dot("front", across.at(x), up.at(y), "", _title(words(point.change), x, y))
        for point, (x, y) in zip(found.front, points, strict=True)
    ]
    dots.append(Dot("now", across.at(0.0), up.at(0.0), "now", "the present shape"))
    dots += [
        Dot("pick", across.at(x), up.at(y), str(number), _title(f"{number}. {words(pick.change)}", x, y))
        for (pick, number, _), (x, y) in zip(told, picked, strict=True)
    ]
    line = " ".join(f"{across.at(x)},{up.at(y)}" for x, y in sorted(points))
    return FrontFigure(width, left, line, _named_together(dots), across.ticks(), up.ticks())


def _named_together(dots: Sequence[Dot]) -> list[Dot]:
    """Dots so near one another that their names would lie on one another have one name together."""
    found: list[Dot] = []
    for dot in dots:
        upon = next(
            (at for at, one in enumerate(found)
             if dot.label and one.label and abs(one.x - dot.x) < 2 * _NEAR and abs(one.y - dot.y) < _NEAR),
            None,
        )  # fmt: skip
        if upon is not None:
            found[upon] = replace(found[upon], label=f"{found[upon].label}, {dot.label}")
            dot = replace(dot, label="")
        found.append(dot)
    return found


def pick_lines(found: ShapeSearch) -> list[str]:
    """The picks as numbered lines."""
    lines = []
    for number, pick in enumerate(found.picks, 1):
        weights = f", weights {signed(pick.parameters_frac)}" if pick.parameters is not None else ""
        saved = f"{spread(pick.saving_frac)} less time per token"
        lines.append(f"{number}. {pick.title}: {saved}{weights} ({pick.effort})")
    return lines


def _title(text: str, weights: float, time: float) -> str:
    return f"{text}: weights {signed(weights)}, time per token {signed(time)}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Shares from ``low`` to ``high`` on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low, high = min(values), max(values)
        margin = max(0.08 * (high - low), (_NARROWEST - (high - low)) / 2)
        return cls(low - margin, high + margin, start, end)

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self) -> list[Tick]:
        """Round numbers, zero among them where it is inside."""
        step, _ = round_step(self.high - self.low, _TICKS)
        first = int(self.low // step) + 1
        last = int(self.high // step)
        digits = 0 if step >= 0.01 else 1 if step >= 0.001 else 2
        return [
            Tick(self.at(n * step), f"{100 * n * step:+.{digits}f}%" if n else "0")
            for n in range(first, last + 1)
        ]


def reasons(pick: ShapePick, *, most: int = 4) -> list[str]:
    """Where a pick's saving comes from."""
    return [
        f"{one.component} {one.role}: {f.ms(one.time_ms)} → {f.ms(one.then_ms)}"
        for one in pick.reasons[:most]
    ]


def _not_searched(found: ShapeSearch) -> list[tuple[str, str]]:
    """Sizes, those with one reason together, and the reason."""
    names: dict[str, list[str]] = {}
    for name, why in found.not_searched.items():
        names.setdefault(why, []).append(name)
    return [(", ".join(some), why) for why, some in names.items()]


def _content(page: Page) -> Content | None:
    found = page.report.shape_search
    if found is None or (found.state == "could_not_run" and not page.report.model.transformer):
        return None
    known = {
        at
        for at, pick in enumerate(found.picks)
        if any(same_change(one, pick) for one in page.report.findings)
    }
    return {
        "note": line(found, page.report.findings),
        "open": len(known) < len(found.picks),
        "x": found,
        "fig": figure(found),
        "narrow": figure(found, width=328, left=50),
        "box": BOX,
        "not_searched": _not_searched(found),
        "ran": ran(found),
        "same_change": same_change,
        "spread": spread,
        "signed": signed,
        "why_unsure": why_unsure,
        "reasons": reasons,
    }


SECTION = Section("search", "Shape search", _content)
