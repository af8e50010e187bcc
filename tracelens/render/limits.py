"""How much of a report its page shows, and what is shown less of when the page would be too large."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.accounting.loads import by_load, stand_for
from tracelens.results import Finding, GemmRow, Report

ROWS = 100  # GEMM rows shown; all are in --json
FEWEST_ROWS = 12
LISTED = 150  # kernels of a pass in a table
FEWEST_LISTED = 40
WHOLE = 24  # findings told in full
FEWEST_WHOLE = 6
LINES = 500  # further findings of one line each
FEWEST_LINES = 100
BUDGET = 300_000  # bytes of a page; one that would be larger shows less


@dataclass(frozen=True, slots=True)
class PageLimits:
    """The most that a page shows of each of its long lists."""

    rows: int = ROWS
    listed: int = LISTED
    whole: int = WHOLE
    lines: int = LINES

    def all(self) -> list[PageLimits]:
        """Return these and all smaller ones, the largest first: what explains goes before results."""
        smaller = self._tighter()
        return [self] if smaller is None else [self, *smaller.all()]

    def _tighter(self) -> PageLimits | None:
        if self.listed > FEWEST_LISTED:
            return replace(self, listed=FEWEST_LISTED)
        if self.rows > FEWEST_ROWS:
            return replace(self, rows=max(FEWEST_ROWS, self.rows * 3 // 4))
        if self.whole > FEWEST_WHOLE:
            return replace(self, whole=max(FEWEST_WHOLE, self.whole // 2))
        if self.lines > FEWEST_LINES:
            return replace(self, lines=FEWEST_LINES)
        return None


def rows(report: Report, limits: PageLimits) -> list[GemmRow]:
    """Choose the longest rows, and beyond them those a finding told in full names, longest first."""
    all_rows, its = by_load(report.gemms), stand_for(report.gemms)
    linked = {its.get(row_id) for row_id in named(report.findings[: limits.whole])}
    extra = [row for row in all_rows[limits.rows :] if row.id in linked]
    return all_rows[: limits.rows] + extra[: limits.rows]


def named(findings: list[Finding]) -> set[str]:
    """Return the ids of the GEMM rows that findings name."""
    return {row_id for finding in findings for row_id in finding.gemms}
