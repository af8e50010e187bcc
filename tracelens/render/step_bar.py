"""The section of the step bar: GPU time by component group and by phase."""

from __future__ import annotations

from tracelens.render import groups
from tracelens.render.section import Content, Page, Section


def _content(page: Page) -> Content | None:
    shares = groups.group_shares(page.report)
    if not shares:
        return None
    marked = page.report.summary.steps_marked
    return {
        "title": "Where the step goes" if marked else "Where the GPU time goes",
        "groups": shares,
        "phases": groups.phase_shares(page.report),
    }


SECTION = Section("step", "Where the step goes", _content, folds=False)
