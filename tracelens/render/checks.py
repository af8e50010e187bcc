"""The section of checks: which rules found nothing, which did not apply, and which could not run."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.render import facts
from tracelens.render.section import Content, Page, Section
from tracelens.results import Check
from tracelens.rules.engine.needs import judged_part


def _content(page: Page) -> Content | None:
    checks = facts.checks_by_state(page.report)
    if not any(checks.values()):
        return None
    part = judged_part(page.report.coverage)
    return {
        "note": facts.checks_line(page.report),
        "checks": {state: _by_reason(found, part) for state, found in checks.items()},
        "states": facts.STATES,
        "part": part if any(part in check.why for check in checks["passed"]) else "",
    }


def _by_reason(checks: Sequence[Check], part: str) -> dict[str, list[Check]]:
    """Checks with the same reason share one line; ``part``, which ends many of them, is said once for all."""
    found: dict[str, list[Check]] = {}
    for check in checks:
        found.setdefault(check.why.removesuffix(part).rstrip(), []).append(check)
    return found


SECTION = Section("checks", "Checks", _content, printed=False)
