"""Gates in the terminal, in Markdown and as annotations: which passed, and why the others did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from tracelens.gates import Judged, Metric
from tracelens.render import facts
from tracelens.render.actions import annotation
from tracelens.render.console import Out
from tracelens.render.gate_words import about, say_range
from tracelens.render.text import escape, table
from tracelens.results import Report

WORDS = {"passed": "passed", "failed": "FAILED", "open": "passed, open", "unknown": "not judged"}
_STYLES = {"passed": "green", "failed": "bold red", "open": "yellow", "unknown": "bold yellow"}
OF_A_FOLDER = "For a folder with the traces of a job's ranks, these instead"
#: GitHub shows few annotations of a step; the Markdown has them all.
_FINDINGS = 8
#: What it is to the build.
_LEVELS = {"failed": "error", "open": "warning", "unknown": "error"}


def render_gates(gates: Sequence[Judged], *, console: Console) -> None:
    """Print a line for each gate."""
    if not gates:
        return
    out = Out(console)
    out.line()
    out.line("Gates", "bold")
    rows = out.table([("", "l"), ("", "fold"), ("", "fold")])
    for one in gates:
        rows.add_row(
            out.text(f"  {WORDS[one.state]}", _STYLES[one.state]),
            out.text(one.gate.text, "bold", limit=120),
            out.text(said(one), limit=300),
        )
    out.print(rows)


def render_metrics(metrics: Mapping[str, Sequence[Metric[Any]]], *, console: Console) -> None:
    """Print the figures that gates can ask for, under their titles."""
    out = Out(console)
    out.line("--fail-on takes NAME>VALUE, also >=, < and <=, with the unit: 5%, 2.5ms, 300us, 100MB.")
    out.line("A prediction fails with its whole range only; NAME.low, .mid or .high judge one number.")
    for title, some in metrics.items():
        out.line()
        if title:
            out.line(title, "bold")
        rows = out.table([("figure", "l"), ("in", "l"), ("", "fold")])
        for one in some:
            rows.add_row(out.text(one.shown, "bold"), out.text(one.units), out.text(one.meaning))
        out.print(rows)
    for one in (one for some in metrics.values() for one in some):
        if one.choices:
            out.line()
            out.line(
                out.text(f"{one.choice} of {one.name}: ", "bold")
                + out.text(", ".join(one.choices), limit=2000)
            )


def value(one: Judged) -> str:
    """The figure with its range; "" where it is unknown."""
    if one.found is None:
        return ""
    return say_range(one.found, one.gate.form, signed=one.gate.metric.signed)


def why(one: Judged) -> str:
    """What there is to say of the figure: why it failed, what is open, why it is unknown."""
    return "; ".join(about(one.gate, each) for each in one.remarks)


def said(one: Judged) -> str:
    """The figure, and what there is to say of it."""
    return "; ".join(part for part in (value(one), why(one)) if part)


def line(one: Judged) -> str:
    """A gate in one line."""
    start = f"{one.gate.text} {WORDS[one.state]}"
    return f"{start}: {said(one)}" if said(one) else start


def gates_markdown(gates: Sequence[Judged]) -> list[str]:
    """A section of Markdown, empty without gates."""
    if not gates:
        return []
    rows = [[one.gate.text, WORDS[one.state], value(one) or "unknown", why(one)] for one in gates]
    legend = [one for one in gates if one.state in ("failed", "unknown")]
    meanings = [f"- {escape(one.gate.text)}: {escape(one.gate.metric.meaning)}" for one in legend]
    return [
        "### Gates",
        "",
        *table(["gate", "", "figure", "why"], rows),
        "",
        *meanings,
        *([""] if meanings else []),
    ]


def gate_annotations(gates: Sequence[Judged], *, unknown_fails: bool) -> list[str]:
    """A workflow command for every gate that did not simply pass."""
    found = []
    for one in gates:
        if one.state == "passed":
            continue
        level = "warning" if one.state == "unknown" and not unknown_fails else _LEVELS[one.state]
        text = said(one) or one.gate.metric.meaning
        found.append(annotation(level, f"tracelens: {one.gate.text} {WORDS[one.state]}", text))
    return found


def finding_annotations(report: Report) -> list[str]:
    """A notice for each of the largest findings, and a warning where a part of the trace is missing."""
    found = []
    if report.trace.partial:
        found.append(annotation("warning", "tracelens: part of the trace", facts.partial_line(report)))
    for one in report.findings[:_FINDINGS]:
        claim, qualifier = facts.claim(one, report)
        found.append(annotation("notice", f"tracelens: {one.rule}", f"{one.title}: {claim} ({qualifier})"))
    return found
