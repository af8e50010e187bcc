"""The section of checks: which rules found nothing, which did not apply, and which could not run."""

from __future__ import annotations

from tracelens.render import facts
from tracelens.render.section import Content, Page, Section


def _content(page: Page) -> Content | None:
    checks = facts.checks_by_state(page.report)
    if not any(checks.values()):
        return None
    return {"note": facts.checks_line(page.report), "checks": checks, "states": facts.STATES}


SECTION = Section("checks", "Checks", _content, printed=False)
