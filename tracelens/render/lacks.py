"""The section of what the trace lacks, what is lost by that, and how to record it."""

from __future__ import annotations

from tracelens.render.section import Content, Page, Section


def _content(page: Page) -> Content | None:
    lacks = page.report.recording
    if not lacks:
        return None
    return {"note": "; ".join(lack.title for lack in lacks[:2])}


SECTION = Section("lacks", "What this trace lacks", _content)
