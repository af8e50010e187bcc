"""The section of communication: every collective, what it serves, and how much of it is exposed."""

from __future__ import annotations

from tracelens.render import facts
from tracelens.render.section import Content, Page, Section
from tracelens.render.slow_calls import slow_calls

CALLS = 24  # rows shown
SEEN = 6  # of them before the rest is folded


def _content(page: Page) -> Content | None:
    calls = page.report.communication
    if not calls:
        return None
    return {
        "note": facts.communication_line(page.report),
        "slow": slow_calls(page.report),
        "calls": calls[:SEEN],
        "more": calls[SEEN:CALLS],
        "left": len(calls[CALLS:]),
        "rest_ms": sum(row.time_ms_per_step for row in calls[CALLS:]),
    }


SECTION = Section("communication", "Communication", _content, leads=("exposed",))
