"""The section of components and layers: the icicle, shares by component, and the exact table."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.render import groups, layers
from tracelens.render.section import Content, Page, Section
from tracelens.results import Report
from tracelens.words import spoken

_NAMED = 3  # components that the heading names


def _content(page: Page) -> Content | None:
    report = page.report
    if not report.components:
        return None
    return {
        "note": _largest(page),
        "ice": layers.icicle(report),
        "layer_words": layers.layer_words(report),
        "layer_phases": layers.layer_phases(report),
        "layer_lines": layers.layer_lines(report),
        "shares": layers.shares(report),
        "phases": groups.phase_shares(report),
        "tree": groups.tree(report),
    }


def _largest(page: Page) -> str:
    rows = sorted(component_times(page.report).items(), key=lambda one: -one[1])[:_NAMED]
    whole = page.report.summary.gpu_ms_per_step
    return ", ".join(f"{spoken(name)} {f.pct(time / whole)}" for name, time in rows) if whole else ""


def component_times(report: Report) -> dict[str, float]:
    """GPU time by component, all phases together, in ms per step."""
    times: dict[str, float] = {}
    for row in report.components:
        times[row.component] = times.get(row.component, 0.0) + row.time_ms_per_step
    return times


SECTION = Section("components", "Components and layers", _content, leads=("memory",))
