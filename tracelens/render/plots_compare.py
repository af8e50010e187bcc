"""The pictures of a comparison, as SVG that stands alone: ``comparison.plots``."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.comparison.spelling import signed_ms, signed_pct
from tracelens.errors import UsageError
from tracelens.render import compare, facts
from tracelens.render.compare_figures import StepBars, StepPoints, signed, step_bars, step_points
from tracelens.render.groups import group_of
from tracelens.render.standing import colour_of, standing
from tracelens.render.svg import EDGE, INK, LINE, MUTED, PAPER, WIDTH, Plot, element, picture, rect, text
from tracelens.render.templates import drawing
from tracelens.render.text import clean
from tracelens.results.comparison import Comparison, ComponentChange

_ROWS = 12  # components and phases drawn
_BEFORE, _NOT_KNOWN = "#bcc4cd", "#79838e"
_LEFT, _RIGHT = 270.0, 700.0
_JUDGED = {True: "more than noise", False: "noise", None: "not known"}


class ComparisonPlots:
    """The pictures that can be drawn of a comparison, each a method that gives a ``Plot``."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def step(self) -> Plot:
        """The step before above the step after, on one scale: its parts, its idle time, and every step.

        Raises UsageError with the reason where the two sides' times are not compared.
        """
        found = self._comparison
        _refuse(found, "the step")
        bars, points = step_bars(found), step_points(found)
        if bars is None:
            raise UsageError("no picture of the step: neither side has GPU time in its steps")
        body, y = _points(points) if points else ("", 0.0)
        for name, total, at in (("before", bars.before_ms, y + 18), ("after", bars.after_ms, y + 100)):
            body += text(EDGE, at - 4, f"{name} {f.ms(total)}", fill=MUTED)
            body += standing(drawing("pieces_bar", bars.pieces, name, total), EDGE, at + 2, inside="both")
        body += standing(drawing("flow", bars.pieces), EDGE, y + 66)
        body += standing(drawing("axis", bars.ticks), EDGE, y + 150)
        table, end = _pieces(bars, y + 196)
        generated = found.before.generated or found.after.generated
        per = found.per_step
        said = "; ".join(f"{one.title} {f.ms(one.before_ms)} → {f.ms(one.after_ms)}" for one in bars.pieces)
        return picture(
            "step",
            title="The step before and after",
            notes=[
                clean(found.verdict, limit=260),
                "; ".join(
                    [f"GPU time by component group and idle time, ms {per}, on one scale", *bars.notes]
                ),
                compare.identity(found),
            ],
            warning=facts.GENERATED if generated else "",
            description=f"{said}. Steps: {points.spoken}." if points else f"{said}.",
            body=body + table,
            height=end,
        )

    def components(self) -> Plot:
        """GPU time per step by component and phase before and after, the largest difference first.

        Raises UsageError with the reason where the two sides' times are not compared.
        """
        found = self._comparison
        _refuse(found, "components")
        every = compare.component_rows(found)
        rows = every[:_ROWS]
        longest = max((max(row.before_ms, row.after_ms) for row in rows), default=0.0)
        if not longest:
            raise UsageError("no picture of components: neither side has GPU time in its steps")
        generated = found.before.generated or found.after.generated
        rest = every[_ROWS:]
        also = (
            f"; {len(rest)} more differ by {signed_ms(sum(row.diff_ms for row in rest))} together"
            if rest
            else ""
        )
        return picture(
            "comparison",
            title=f"GPU time {found.per_step} by component, before and after",
            notes=[
                clean(found.verdict, limit=260),
                f"upper bar before, lower bar after; noise, or too small to matter, is said so{also}",
                compare.identity(found),
            ],
            warning=facts.GENERATED if generated else "",
            description="; ".join(f"{_name(row)} {_times(row)}" for row in rows) + ".",
            body="".join(
                _row(row, longest, 6 + 34 * at, moved=compare.is_move(found, row))
                for at, row in enumerate(rows)
            ),
            height=6 + 34 * len(rows),
        )

    def __repr__(self) -> str:
        return "<Plots of a comparison>"


def _refuse(found: Comparison, what: str) -> None:
    if found.not_compared:
        raise UsageError(f"no picture of {what}: times are not compared: {'; '.join(found.not_compared)}")


def _points(points: StepPoints) -> tuple[str, float]:
    """Every step of both sides as a point on one axis, and where that ends."""
    drawn, y = "", 8.0
    for side in points.sides:
        drawn += text(EDGE, y + 10, f"{side.name}: {side.said}", fill=MUTED)
        drawn += standing(drawing("lane", side, points.ticks, ""), EDGE, y + 16)
        y += 60
    return drawn + standing(drawing("axis", points.ticks), EDGE, y - 10), y + 28


def _pieces(bars: StepBars, y: float) -> tuple[str, float]:
    """The legend: before, after and the difference of every part, and where it ends."""
    ends = (_LEFT + 90, _LEFT + 190, _LEFT + 300)
    heads = zip(ends, ("before", "after", "difference"), strict=True)
    drawn = [text(x, y, head, fill=MUTED, size=12, anchor="end") for x, head in heads]
    for one in bars.pieces:
        y += 21
        fill = colour_of(f"g-{one.key}")
        known = {} if fill else {"stroke": MUTED, "stroke_dasharray": "3 2"}
        drawn.append(rect(EDGE + 0.5, y - 10, 11, 11, fill=fill or PAPER, rx=2, **known))
        drawn.append(text(EDGE + 20, y, one.title, limit=38))
        said = (f.ms(one.before_ms), f.ms(one.after_ms), signed(one.diff_ms))
        drawn += [text(x, y, words, anchor="end") for x, words in zip(ends, said, strict=True)]
    return "".join(drawn), y + 10


def _name(row: ComponentChange) -> str:
    return f"{clean(row.component, limit=24)} {row.phase}"


def _times(row: ComponentChange) -> str:
    return f"{f.ms(row.before_ms)} → {f.ms(row.after_ms)}"


def _row(row: ComponentChange, longest: float, y: float, *, moved: bool = False) -> str:
    """Two bars and the difference, faint words where it is none that counts."""
    scale = (_RIGHT - _LEFT) / longest
    colour = colour_of(f"g-{group_of(row.component).key}") or _NOT_KNOWN
    said = f"{_name(row)}: {_times(row)}"
    growth = signed_pct(row.diff_frac) if row.diff_frac is not None else ""
    judged, more = "moved" if moved else _JUDGED[row.beyond_noise], bool(row.beyond_noise)
    ink = INK if more else MUTED
    parts = [
        element("path", d=f"M{_LEFT:g} {y}v28", stroke=LINE),
        text(EDGE, y + 18, _name(row), limit=38),
        rect(_LEFT, y + 2, row.before_ms * scale, 11, fill=_BEFORE, title=said),
        rect(_LEFT, y + 14, row.after_ms * scale, 11, fill=colour, title=said),
        text(_RIGHT + 100, y + 18, signed_ms(row.diff_ms), anchor="end", bold=more, fill=ink),
        text(_RIGHT + 162, y + 18, growth, anchor="end", fill=MUTED),
        text(WIDTH - EDGE, y + 18, judged, anchor="end", fill=MUTED, size=12),
    ]  # fmt: skip
    return "".join(parts)
