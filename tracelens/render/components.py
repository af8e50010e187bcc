"""The section of components and layers: the icicle, shares by component, and the exact table."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.render import groups, layers
from tracelens.render.section import Content, Page, Section

_NAMED = 3  # groups that the heading names


def _content(page: Page) -> Content | None:
    report = page.report
    if not report.components:
        return None
    return {
        "note": ", ".join(f"{one.short} {f.pct(one.frac)}" for one in groups.largest(report, _NAMED)),
        "ice": layers.icicle(report),
        "layer_words": layers.layer_words(report),
        "layer_phases": layers.layer_phases(report),
        "layer_lines": layers.layer_lines(report),
        "bar": layers.forward_shares(report),
        "phases": groups.phase_shares(report),
        "tree": groups.tree(report),
    }


SECTION = Section("components", "Components and layers", _content, leads=("memory",))
