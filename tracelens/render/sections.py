"""Every section of the page, in one list: its order, what leads, what is folded and what is absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from tracelens.accounting.limits import LARGE
from tracelens.render import (
    checks,
    communication,
    components,
    explorer,
    findings,
    gemm_table,
    lacks,
    layers,
    limit,
    losses,
    method,
    roofline,
    search,
    step_bar,
    waits,
    what_if,
)
from tracelens.render.section import Content, Page, Section
from tracelens.results import Summary

SECTIONS: tuple[Section, ...] = (
    step_bar.SECTION,
    limit.SECTION,
    findings.SECTION,
    what_if.SECTION,
    gemm_table.SECTION,
    losses.SECTION,
    roofline.SECTION,
    components.SECTION,
    layers.SECTION,
    communication.SECTION,
    waits.SECTION,
    search.SECTION,
    explorer.SECTION,
    lacks.SECTION,
    method.SECTION,
    checks.SECTION,
)
#: Sections that stand before what the verdict names.
_FRONT = (step_bar.SECTION, limit.SECTION)


@dataclass(frozen=True, slots=True)
class Filled:
    """A section with content, ready to be put on the page."""

    section: Section
    title: str
    note: str
    open: bool
    body: Markup


def filled(page: Page, draw: Callable[[Section, Content], Markup]) -> list[Filled]:
    """Sections with content, in the page's order; ``draw`` fills a section's template."""
    limited = _leads(page.report.summary)
    found = []
    for section in ordered(limited):
        content = section.content(page)
        if content is not None:
            title, note = content.get("title", section.title), content.get("note", "")
            open_ = not section.folds or content.get("open", limited in section.leads)
            found.append(Filled(section, title, note, open_, draw(section, content)))
    return found


def _leads(summary: Summary) -> str:
    """What the verdict names; of a trace without marked steps, exposed communication where that is large."""
    work_ms = summary.gpu_busy_frac * summary.step_ms.median
    exposed = not summary.steps_marked and summary.exposed_communication_ms >= LARGE * work_ms > 0
    return summary.limited_by or ("exposed" if exposed else "")


def ordered(limited_by: str) -> list[Section]:
    """The list with what the verdict names right behind the front; the rest keeps its order."""

    def place(section: Section) -> int:
        return 0 if section in _FRONT else 1 if limited_by in section.leads else 2

    return sorted(SECTIONS, key=place)
