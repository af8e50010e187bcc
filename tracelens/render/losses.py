"""Where the GEMM time of a step is lost: the lines, waterfall and bars that page and terminal show."""

from __future__ import annotations

from dataclasses import dataclass, replace

from markupsafe import Markup

from tracelens import numbers as f
from tracelens.gemm.lost import FACTORS, PARTS
from tracelens.render import facts
from tracelens.render.derivation import derive, written
from tracelens.render.section import Content, Page, Section
from tracelens.results import GemmRow, GemmTime, Report, Term

#: Causes as the waterfall names them, in its order.
CAUSES = {
    "overlap": ("overlap", "SMs and bandwidth that kernels of other streams took meanwhile"),
    "clock": ("clock", "steps in which all shapes run slower than in the fastest step"),
    "alignment": ("alignment", "operands whose rows do not start on 128-byte boundaries"),
    "wave": ("wave", "wave quantization: SMs without a tile while others compute"),
    "tile": ("tile", "tile quantization: work outside the output matrix"),
    "memory": ("memory", "moving the operands takes longer than the arithmetic"),
    "other": ("other", "the rest: clocks, caches, fixed cost, causes that could not be separated"),
    "not_judged": ("not judged", "no shape, no peak, or faster than the ceiling"),
}
_IF_ANY = ("overlap", "clock", "not_judged")  # nothing is said of them where they are nothing
_CEILING = "gap to the datasheet peak that the best measured matmul has as well"
_HELPERS = "helper kernels of GEMMs (split-K reductions)"
_SMALL = "GEMMs so small that the kernel's fixed cost takes most of their time"
_WORTH_NAMING = 0.05  # of a row's time: a cause
_WORTH_DRAWING = 0.01  # of a row's time: a part of its bar
_WORTH_SAYING = 0.05  # of GEMM time without a figure for a cause


@dataclass(frozen=True, slots=True)
class Fall:
    """One bar of the waterfall; ``start`` and ``width`` are shares of the step's GEMM time."""

    key: str
    title: str
    note: str
    text: str  # the time per step
    frac: float
    start: float
    judged_frac: float | None  # share of GEMM time in which this cause has a figure
    most: GemmRow | None  # the row that loses most to it


def waterfall(report: Report) -> list[Fall]:
    """Bars from the whole GEMM time down, cause by cause, to what is useful; empty without GEMM time."""
    time = report.gemm_time
    if time is None or time.total <= 0 or not _any_judged(time):
        return []

    def fall(key: str, title: str, note: str, lost: float, start: float = 0.0) -> Fall:
        text, judged = f.ms(lost), time.judged_frac.get(key)
        text = f"≥ {text}" if key in time.at_least else text
        share, begin = lost / time.total, max(0.0, start / time.total)
        return Fall(key, title, note, text, share, begin, judged, _most(report, key))

    bars = [fall("total", "GEMM time", "", time.total)]
    left = time.total
    for key, (title, note) in CAUSES.items():
        lost = getattr(time, key)
        left -= lost
        if key not in _IF_ANY or lost:
            bars.append(fall(key, title, note, lost, left))
        if key == "other":
            bars += [
                fall(part, "of other", said, getattr(time, part), left + shift)
                for part, said, shift in (
                    ("ceiling", _CEILING, 0.0),
                    ("helpers", _HELPERS, time.ceiling),
                    ("small", _SMALL, time.ceiling + time.helpers),
                )
                if getattr(time, part)
            ]
    return [*bars, fall("useful", "useful", "FLOP at the dense datasheet peak", time.useful)]


def _in_unit_of(total_ms: float, value_ms: float) -> str:
    """Write a time in the unit that suits the total, so that a column of them compares."""
    return f"{f.sig(value_ms)} ms" if total_ms >= 1 else f"{f.sig(value_ms * 1e3)} µs"


def _most(report: Report, key: str) -> GemmRow | None:
    def lost(row: GemmRow) -> float:
        if key == "not_judged":
            return row.time_ms_per_step if row.lost_ms.useful is None else 0.0
        if key in ("total", "useful", "small"):
            return 0.0
        return getattr(row.lost_ms, key) or 0.0

    rows = [row for row in report.gemms if row.kind == "gemm"]
    most = max(rows, key=lost, default=None)
    return most if most is not None and lost(most) > 0 else None


def time_line(time: GemmTime, *, per: str) -> str:
    """Say in one line where the GEMM time goes, all in one unit; ``per``: ``facts.per_step``."""
    if not _any_judged(time):
        return f"The {f.ms(time.total)} of GEMM time{per} cannot be split: {_why_not(time)}."

    def said(name: str, value: float) -> str:
        bound = "≥ " if name in time.at_least else ""
        text = f"{name} {bound}{_in_unit_of(time.total, value).split()[0]}"
        return f"{text} ({f.pct(value / time.total)})" if name in ("useful", "other") else text

    lost = {title: (key, getattr(time, key)) for key, (title, _) in CAUSES.items()}
    parts = [said(title, value) for title, (key, value) in lost.items() if value or key not in _IF_ANY]
    aside = f" (without fused attention, {f.ms(time.attention)})" if time.attention else ""
    head = f"Of {_in_unit_of(time.total, time.total)} of GEMM time{per}{aside}"
    return f"{head}: {', '.join([said('useful', time.useful), *parts])}."


def detail_lines(time: GemmTime) -> list[str]:
    """Say what is in ``other`` beside what the waterfall draws, and what is not judged."""
    if not _any_judged(time):
        return []
    untold = [
        f"{cause} in {f.ms(missing)}"
        for cause, missing in time.untold.items()
        if missing > _WORTH_SAYING * time.total
    ]
    lines = [f"In other: causes without a number ({', '.join(untold)})."] if untold else []
    if time.not_judged:
        lines.append(f"Not judged: {_why_not(time)}.")
    return lines


def _any_judged(time: GemmTime) -> bool:
    return any(time.judged_frac.values()) or time.useful > 0


def _why_not(time: GemmTime) -> str:
    return "; ".join(time.not_judged_why)


def lost_ms(row: GemmRow) -> float | None:
    """Return what a step loses in this row, None where it is not judged."""
    useful = row.lost_ms.useful
    return None if useful is None else max(0.0, row.time_ms_per_step - useful)


def main_cause(row: GemmRow) -> str:
    """Name the cause that takes most of a row and its ms per step, "wave 0.181".

    A part of the time lost, in its unit. Other where no cause takes five percent of the row.
    """
    lost, time = row.lost_ms, row.time_ms_per_step
    if lost.useful is None or not time:
        return ""
    names = ("overlap", "clock", *FACTORS, "memory")
    told = [(ms, name) for name in names if (ms := getattr(lost, name))]
    most, name = max(told, key=lambda one: one[0], default=(0.0, "other"))
    if most < _WORTH_NAMING * time:
        return f"other {f.sig(lost.other)}"
    return f"{name} {'≥ ' if name in lost.at_least else ''}{f.sig(most)}"


def segments(row: GemmRow) -> list[tuple[str, float, float]]:
    """(part, start, width) of a row's bar, as shares of its time; parts too thin to see are left out."""
    time, at = row.time_ms_per_step, 0.0
    found = []
    for name in PARTS:
        width = (getattr(row.lost_ms, name) or 0.0) / time if time else 0.0
        if width >= _WORTH_DRAWING:
            found.append((name, at, width))
        at += width
    return found


@dataclass(frozen=True, slots=True)
class Derived:
    """The derivation of one row, ready to show: (name, formula with its result, why) per line."""

    row: GemmRow
    title: str
    lines: list[tuple[str, str, str]]


def derivation(row: GemmRow, report: Report) -> Derived:
    """Return the derivation of one row."""
    role = f" {facts.role(row)}" if row.role else ""
    return Derived(
        row, f"{row.id} {row.component}{role} {facts.shape(row)}", [_line(t) for t in derive(row, report.gpu)]
    )


def shared(found: list[Derived]) -> tuple[list[Derived], list[tuple[str, str]]]:
    """Say once what lines mean that mean the same in every derivation: (derivations, name and meaning)."""
    if len(found) < 2:
        return found, []
    said: dict[str, set[str]] = {}
    same = set(found[0].lines).intersection(*(one.lines for one in found[1:]))
    for one in found:
        for name, _, why in one.lines:
            said.setdefault(name, set()).add(why)
    once = {name: next(iter(why)) for name, why in said.items() if len(why) == 1}
    cut = [
        replace(
            one,
            lines=[
                (name, text, "" if name in once else why)
                for name, text, why in one.lines
                if (name, text, why) not in same
            ],
        )
        for one in found
    ]
    alike = [
        (name, f"{text} {why}".strip()) for name, text, why in found[0].lines if (name, text, why) in same
    ]
    named = {name for name, _ in alike}
    return cut, [*alike, *((name, why) for name, why in once.items() if why and name not in named)]


def _line(term: Term) -> tuple[str, str, str]:
    value = written(term)
    shown = f"{term.formula} = {value}" if term.formula and value else term.formula or value
    return term.name, shown or f.DASH, term.why


def split_bar(row: GemmRow) -> Markup:
    """Draw a row's time as parts side by side; the title says them."""
    parts = segments(row)
    rects = "".join(
        f'<rect class="f-{name}" x="{100 * start:.1f}%" width="{100 * width:.1f}%" height="6"/>'
        for name, start, width in parts
    )
    said = "of its time " + ", ".join(f"{name} {f.pct(width)}" for name, _, width in parts)
    return Markup('<svg class="split" role="img"><title>{}</title>{}</svg>').format(said, Markup(rects))


def fall_bar(fall: Fall) -> Markup:
    """Draw one bar of the waterfall; its numbers stand in the same row, so it is silent to readers."""
    return Markup(
        f'<svg width="100%" height="14" aria-hidden="true"><rect x="{100 * fall.start:.2f}%" '
        f'width="{100 * fall.frac:.2f}%" height="14"/></svg>'
    )


def _content(page: Page) -> Content | None:
    report = page.report
    time, falls = report.gemm_time, waterfall(report)
    if time is None or not time.total or not falls:
        return None
    return {
        "note": _summary(falls),
        "open": report.summary.limited_by == "shapes" and bool(report.findings),
        "falls": falls,
        "lost_lines": detail_lines(time),
    }


def not_split(report: Report) -> str:
    """Why the section is absent although there are GEMMs, "" where it is there."""
    time = report.gemm_time
    if time is None or not time.total or waterfall(report):
        return ""
    return time_line(time, per=facts.per_step(report))


def _summary(falls: list[Fall]) -> str:
    """What is useful, and the cause that takes most."""
    causes = [fall for fall in falls if fall.key in CAUSES]
    most = max(causes, key=lambda fall: fall.frac)
    useful = f"{falls[-1].text} of {falls[0].text} is useful ({f.pct(falls[-1].frac)})"
    return f"{useful}; largest loss: {most.title} {most.text}" if most.frac else useful


SECTION = Section("lost", "Where the GEMM time is lost", _content)
