"""What ``tracelens doctor`` shows: a verdict, what is missing with its remedy, what is there."""

from __future__ import annotations

from rich.console import Console

from tracelens.render.console import Out
from tracelens.render.facts import rule_lines
from tracelens.results.diagnosis import Diagnosis, State

_SAYS = {
    "good": "Good enough to analyze",
    "poor": "Can be analyzed; a better recording tells more",
    "unusable": "Cannot be analyzed",
}
_MARKS: dict[State, tuple[str, str]] = {
    "unusable": ("x", "red"),
    "poor": ("!", "yellow"),
    "note": ("·", "dim"),
}
_ORDER: tuple[State, ...] = ("unusable", "poor", "note")
_LACKS = 6  # with two lines each


def render_diagnosis(found: Diagnosis, *, console: Console) -> None:
    """Print it."""
    out = Out(console)
    out.line(f"{_SAYS[found.verdict]}: {found.file}", "bold")
    missing = [check for state in _ORDER for check in found.checks if check.state == state]
    for check in missing[:_LACKS]:
        mark, style = _MARKS[check.state]
        out.line(out.text(f"{mark} {check.says}: ", style).append_text(out.text(check.remedy)))
    if len(missing) > _LACKS:
        out.line(f"  and {len(missing) - _LACKS} more: --json -")
    good = [f"{check.code} ({check.says})" for check in found.checks if check.state == "good"]
    if good:
        out.line(f"Good: {', '.join(good)}", "dim")
    for number, line in enumerate(rule_lines(found.rules)):
        out.line(f"! {line}" if number else line, "yellow" if number else "dim")
