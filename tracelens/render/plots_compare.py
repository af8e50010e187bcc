"""The picture of a comparison, as SVG that stands alone: ``comparison.plots``."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.compare.result import Comparison, ComponentChange
from tracelens.compare.spelling import signed_ms, signed_pct
from tracelens.errors import UsageError
from tracelens.render import compare, facts
from tracelens.render.groups import group_of
from tracelens.render.svg import EDGE, INK, LINE, MUTED, WIDTH, Plot, element, picture, rect, text
from tracelens.render.text import clean

_ROWS = 12  # components and phases drawn
_BEFORE, _NOT_KNOWN = "#bcc4cd", "#79838e"
_LEFT, _RIGHT = 270.0, 700.0
_JUDGED = {True: "more than noise", False: "noise", None: "cannot be told"}


class ComparisonPlots:
    """The pictures that can be drawn of a comparison, each a method that gives a ``Plot``."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def components(self) -> Plot:
        """GPU time per step by component and phase before and after, the largest difference first.

        Raises UsageError with the reason where the two sides' times are not compared.
        """
        return _components(self._comparison)

    def __repr__(self) -> str:
        return "<Plots of a comparison>"


def _components(found: Comparison) -> Plot:
    if found.not_compared:
        raise UsageError(f"no picture of components: times are not compared: {'; '.join(found.not_compared)}")
    rows = found.components[:_ROWS]
    longest = max((max(row.before_ms, row.after_ms) for row in rows), default=0.0)
    if not longest:
        raise UsageError("no picture of components: neither side has GPU time in its steps")
    generated = found.before.generated or found.after.generated
    rest = found.components[_ROWS:]
    also = (
        f"; {len(rest)} more differ by {signed_ms(sum(row.diff_ms for row in rest))} together" if rest else ""
    )
    return picture(
        "comparison",
        title="GPU time per step by component, before and after",
        notes=[
            clean(found.verdict, limit=260),
            f"upper bar before, lower bar after; noise, or too small to matter, is said so{also}",
            compare.identity(found),
        ],
        warning=facts.GENERATED if generated else "",
        description="; ".join(f"{_name(row)} {_times(row)}" for row in rows) + ".",
        body="".join(_row(row, longest, 6 + 34 * at) for at, row in enumerate(rows)),
        height=6 + 34 * len(rows),
    )


def _name(row: ComponentChange) -> str:
    return f"{clean(row.component, limit=24)} {row.phase}"


def _times(row: ComponentChange) -> str:
    return f"{f.ms(row.before_ms)} → {f.ms(row.after_ms)}"


def _row(row: ComponentChange, longest: float, y: float) -> str:
    """Two bars and the difference, faint words where it is none that counts."""
    scale = (_RIGHT - _LEFT) / longest
    group = group_of(row.component)
    colour = _NOT_KNOWN if group.key == "unattributed" else group.colour
    said = f"{_name(row)}: {_times(row)}"
    growth = signed_pct(row.diff_frac) if row.diff_frac is not None else ""
    judged, more = _JUDGED[row.beyond_noise], bool(row.beyond_noise)
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


__all__ = ["ComparisonPlots"]
