"""The section of the step bar: GPU time by component group and by phase."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.accounting.limits import LARGE
from tracelens.render import groups
from tracelens.render.section import Content, Page, Section
from tracelens.results import Summary
from tracelens.words import per_step


def _content(page: Page) -> Content | None:
    shares = groups.group_shares(page.report)
    if not shares:
        return None
    return {
        "note": _note(page.report.summary),
        "groups": shares,
        "outside": groups.outside_lines(page.report),
        "phases": groups.phase_shares(page.report),
    }


def _note(summary: Summary) -> str:
    """What the bar is the whole of, and how that differs from the step."""
    note = f"{f.ms(summary.gpu_ms_per_step)} of kernels {per_step(summary.steps_marked)}"
    if 1 - summary.gpu_busy_frac >= LARGE:
        return f"{note}; idle time is not in it"
    return f"{note}, some side by side" if summary.gpu_ms_per_step > summary.step_ms.median else note


SECTION = Section("step", "Where the GPU time goes", _content, folds=False)
