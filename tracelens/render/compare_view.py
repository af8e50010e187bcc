"""What terminal, Markdown and page show of a comparison, of two traces and of two folders alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelens.comparison.spelling import arrow_ms
from tracelens.render import compare, compare_folders
from tracelens.render.compare_figures import Found, shares_line
from tracelens.results.comparison import Comparison, GemmChange
from tracelens.results.folders import FilePair, SharedPeak

LEFT = 200  # files that are not compared, listed


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """A comparison in words; what only one kind has is empty in the other."""

    identity: str
    changes: list[str]
    outcomes: list[str]  # of the findings before
    reports: Literal["report", "reports"]
    of: str  # what times are of: "" or ", medians over the pairs"
    parts: str
    nothing_moved: str
    gemms: list[GemmChange]
    pairs: list[FilePair]
    pair_heads: list[str]
    peaks: list[SharedPeak]
    left: list[str]


def view(found: Found) -> ComparisonView:
    """Collect it."""
    some = [one for one in found.parts if one.before_ms or one.after_ms]
    parts = ", ".join(f"{one.name} {arrow_ms(one.before_ms, one.after_ms)}" for one in some)
    shares = shares_line(found)
    if isinstance(found, Comparison):
        return ComparisonView(
            identity=compare.identity(found),
            changes=_arrows(compare.changes_lines(found)),
            outcomes=compare.outcome_lines(found),
            reports="report",
            of="",
            parts=f"{parts} {found.per_step} (not tested); {shares}" if parts else "",
            nothing_moved=compare.nothing_moved(found),
            gemms=compare.moved_gemms(found),
            pairs=[], pair_heads=[], peaks=[], left=[],
        )  # fmt: skip
    return ComparisonView(
        identity=compare_folders.identity(found),
        changes=_arrows(compare_folders.change_lines(found)),
        outcomes=compare_folders.finding_lines(found),
        reports="reports",
        of=", medians over the pairs",
        parts=f"{parts} {found.per_step}; {shares} (medians, not tested)" if parts else "",
        nothing_moved=compare_folders.nothing_moved(found),
        gemms=[],
        pairs=found.pairs,
        pair_heads=compare_folders.pair_heads(found),
        peaks=found.peaks if found.not_compared else [],
        left=shortened([f"{one.side}: {one.file[:80]}: {one.why}" for one in found.left], LEFT),
    )


def shortened(lines: list[str], most: int) -> list[str]:
    """The first lines, and how many more there are."""
    return [*lines[:most], f"and {len(lines) - most} more"] if len(lines) > most else lines


def _arrows(lines: list[str]) -> list[str]:
    return [line.replace("->", "→") for line in lines]
