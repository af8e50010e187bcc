"""What a section of the page is: one Python file, one template, and one line in ``sections.SECTIONS``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracelens.accounting.loads import stand_for
from tracelens.render.limits import PageLimits
from tracelens.results import GemmRow, Report

#: What a section's template is filled with; "note" stands beside the heading, "title" in its place, and
#: "open" says whether a section that can be folded is shown unfolded.
Content = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """What every section is made from."""

    report: Report
    rows: list[GemmRow]  # GEMM rows shown
    limit: PageLimits

    @property
    def by_id(self) -> dict[str, GemmRow]:
        """The GEMM rows shown, by the id of each row of the report that they stand for."""
        shown = {row.id: row for row in self.rows}
        of_report = stand_for(self.report.gemms).items()
        return {each: shown[its] for each, its in of_report if its in shown}


@dataclass(frozen=True, slots=True)
class Section:
    """A section: ``content`` gives what ``<name>.html.j2`` is filled with, or None where there is nothing."""

    name: str  # its anchor is h-<name>
    title: str
    content: Callable[[Page], Content | None]
    leads: tuple[str, ...] = ()  # values of ``summary.limited_by`` that move it to the front, unfolded
    folds: bool = True
    printed: bool = True
    wide: bool = False
