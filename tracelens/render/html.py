"""The report as one offline HTML file: server-made SVG and tables, a hash CSP, and no network."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from tracelens import numbers as f
from tracelens import words
from tracelens.render import (
    costs,
    explorer,
    facts,
    groups,
    layers,
    limits,
    losses,
    roofline,
    search,
    step_times,
    verified,
    waits,
    what_if,
)
from tracelens.render.limits import Limits
from tracelens.render.templates import environment, part
from tracelens.render.text import clean, clean_lines, short_kernel
from tracelens.results import GemmRow, Report
from tracelens.results.json import to_json
from tracelens.words import EVIDENCE, SEVERITY_FROM, TO_TRY

CALLS = 24  # communication rows shown
EMBEDDED = 16  # rows in the embedded JSON, besides those that findings name
STEPS = 200  # steps in it, as many as the page lists

#: What could end the script element, a line in it, or hide and reorder text for who reads the source.
_ESCAPED = re.compile("[<>&\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_EVIDENCE_WORDS = {
    "annotation": "a named module range in the trace",
    "module_stack": "nn.Module frames",
    "sequence": "backward tied to its forward operator",
    "op": "the operator's own name says it",
    "structure": "order and shape matched to a transformer",
    "kernel_name": "the kernel's name only",
    "none": "unattributed",
}


def render_html(report: Report, *, generated_at: str | None = None) -> str:
    """Return the page; ``generated_at`` is shown in the footer when given.

    The page needs no network and no script. It stays under 300 kB (1 MB with more than 100 GEMM rows or 24
    findings) by showing fewer derivations, then shorter tables of kernels, then fewer GEMM rows, and says
    what it leaves out. The embedded JSON follows the published schema and holds the longest rows and the
    findings that are told in full.
    """
    limit, budget = limits.first(report)
    while True:
        page = _render(report, limit, generated_at)
        smaller = limit.tighter()
        if smaller is None or len(page.encode("utf-8", "replace")) <= budget:
            return page
        limit = smaller


def _render(report: Report, limit: Limits, generated_at: str | None) -> str:
    css, js = part("report.css"), part("report.js")
    rows = limits.rows(report, limit)
    marked = report.summary.steps_marked
    of = {"per_step": words.per_step(marked), "slash_step": words.slash_step(marked)}
    numbers = {"r": report, "rows": rows, "generated_at": generated_at, **of}
    page: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            **numbers,
            **_words(report),
            **_findings(report, limit),
            **_figures(report, rows),
            **_losses(report, rows, limit.derived),
            **_waits(report),
            **_explorer(report),
            **_layers(report, limit.listed),
            css=Markup(css),
            js=Markup(js),
            data=Markup(_embedded(_cut(report, rows, limit.whole))),
            csp=Markup(_policy(css, js)),
        )
    )
    return page


def _cut(report: Report, rows: list[GemmRow], whole: int) -> Report:
    """Leave in the embedded report what a script needs and a reader without the file of --json would miss.

    Of the GEMM rows, the longest and those that findings name: the table on the page has all that are
    shown. Without the words that stand in the text of the page (why a cause has no figure, what an
    alignment rests on) and without the timeline, whose kernels are a table of the page.
    """
    linked = limits.named(report.findings[:whole])
    kept = rows[:EMBEDDED] + [row for row in rows[EMBEDDED:] if row.id in linked]
    plain = [
        replace(
            row, lost_ms=replace(row.lost_ms, why={}), alignment_basis=None, leading={}, leading_source=None
        )
        for row in kept
    ]
    return replace(
        report,
        gemms=plain,
        findings=report.findings[:whole],
        steps=report.steps[:STEPS],
        communication=report.communication[:CALLS],
        waits=waits.shortened(report.waits),
        layers=replace(report.layers, timeline=None),
    )


def _words(report: Report) -> dict[str, Any]:
    """Collect what the page says in words that the terminal says too."""
    return {
        "generated": facts.GENERATED,
        "model_line": facts.model_line(report),
        "run_line": facts.run_line(report),
        "steps_text": facts.steps_text(report),
        "numbers": facts.five_numbers(report),
        "checks": facts.checks_by_state(report),
        "checks_line": facts.checks_line(report),
        "job_lines": costs.job_lines(report),
        "price": report.cost.price if report.cost else None,
        "communication_line": facts.communication_line(report),
        "states": facts.STATES,
        "marks": facts.MARKS,
        "severity_from": SEVERITY_FROM,
        "detail": _detail(report.summary.verdict_detail),
        "overlap": facts.overlap_words(report),
        "dims": facts.dims(report.model),
        "no_dims": facts.no_dims(report),
        "coverage_lines": facts.coverage_lines(report),
        "lent_lines": facts.lent_lines(report),
        "step_lines": step_times.lines(report),
        "step_rows": step_times.rows(report),
    }


def _findings(report: Report, limit: Limits) -> dict[str, Any]:
    """Collect the findings told in full, those of one line, and how a rule's name finds its place."""
    listed = report.findings[: limit.whole + limit.lines]
    position = {finding.rule: n for n, finding in reversed(list(enumerate(listed, 1)))}
    exact = {(finding.rule, row): n for n, finding in enumerate(listed, 1) for row in finding.gemms}
    return {
        "whole": listed[: limit.whole],
        "more": listed[limit.whole :],
        "unlisted": len(report.findings) - len(listed),
        "finding_of": lambda rule, row: exact.get((rule, row)) or position.get(rule),
    }


def _figures(report: Report, rows: list[GemmRow]) -> dict[str, Any]:
    """Collect what the page draws."""
    evidence = report.coverage.by_evidence
    known = [name for name in EVIDENCE if evidence.get(name)]
    shown = {row.id for row in rows}
    return {
        "groups": groups.group_shares(report),
        "phases": groups.phase_shares(report),
        "tree": groups.tree(report),
        "evidence": [(n, evidence[n]) for n in [*known, *(n for n in evidence if n not in EVIDENCE)]],
        "evidence_words": _EVIDENCE_WORDS,
        "by_id": {row.id: row for row in rows},
        "top": max((row.frac for row in rows), default=0.0) or 1.0,
        "rest_frac": sum(row.frac for row in report.gemms if row.id not in shown),
        "calls": report.communication[:CALLS],
        "rest_ms": sum(row.time_ms_per_step for row in report.communication[CALLS:]),
        "longest_step": max((step.duration_ms for step in report.steps), default=0.0) or 1.0,
        "roof": roofline.roofline(report, rows),
        "small_roof": roofline.roofline(report, rows, frame=roofline.NARROW),
        "roof_words": roofline.words(report, rows),
    }


def _losses(report: Report, rows: list[GemmRow], derived: int) -> dict[str, Any]:
    """Collect where the GEMM time is lost, and how that was found for the first ``derived`` rows."""
    judged = [row for row in rows if row.lost_ms.useful is not None]
    time, falls = report.gemm_time, losses.waterfall(report)
    lines = []
    if time is not None and time.total:
        lines = (
            losses.detail_lines(time, parts=False)
            if falls
            else [losses.time_line(time, per=facts.per_step(report))]
        )
    derivations, meanings = losses.shared([losses.derivation(row, report) for row in judged[:derived]])
    return {
        "falls": falls,
        "lost_lines": lines,
        "derivations": derivations,
        "meanings": meanings,
        "derived": {row.id for row in judged[:derived]},
        "judged": sum(row.lost_ms.useful is not None for row in report.gemms),
    }


def _explorer(report: Report) -> dict[str, Any]:
    """Collect the curves of the step time against each hyper-parameter."""
    return {
        "curves": explorer.figures(report),
        "curves_missing": explorer.missing(report),
        "explorer_notes": explorer.notes(report),
        "curve_size": (explorer.WIDTH, explorer.HEIGHT),
        "curve_box": {
            "left": explorer.LEFT,
            "right": explorer.WIDTH - explorer.RIGHT,
            "top": explorer.TOP,
            "bottom": explorer.HEIGHT - explorer.BOTTOM,
        },
    }


def _layers(report: Report, listed: int) -> dict[str, Any]:
    """Collect where the time goes by layer."""
    return {
        "ice": layers.icicle(report),
        "layer_words": layers.layer_words(report),
        "layer_phases": layers.layer_phases(report),
        "layer_lines": layers.layer_lines(report),
        "passes": layers.passes(report, listed=listed),
        "shares": layers.shares(report),
    }


def _waits(report: Report) -> dict[str, Any]:
    """Collect where the step waits."""
    return {
        "waits_how": waits.HOW,
        "waits_unasked": waits.NOT_ASKED,
        "wait_shares": waits.shares(report),
        "wait_bounds": waits.BOUNDS,
        "wait_causes": waits.CAUSES,
        "wait_gaps": waits.gaps(report.waits),
        "wait_rows": waits.STREAMS,
        "path_title": waits.path_title(report),
    }


@cache
def _environment() -> jinja2.Environment:
    env = environment()
    env.filters.update(
        ms=f.ms,
        pct=f.pct,
        sig=f.sig,
        count=f.count,
        exact=f.exact_ms,
        nbytes=f.nbytes,
        delta=f.delta,
        cut=lambda text, limit: clean(str(text), limit=limit),
        short_kernel=short_kernel,
        percent=lambda frac: f"{100 * frac:.3f}".rstrip("0").rstrip(".") + "%",
        percent2=lambda frac: f"{100 * frac:.2f}".rstrip("0").rstrip(".") + "%",
        runs=layers.runs,
        num6=lambda value: f"{value:.6g}",
        round_pct=lambda frac: f"{100 * frac:.0f}%",
    )
    env.globals.update(
        saving=facts.claim, bounded=facts.bounded, meter=_meter, shape=facts.shape,
        shape_detail=facts.shape_detail, role=facts.role, tile=facts.tile,
        alignment=facts.alignment, message=facts.message, group=facts.group, bus=facts.bus,
        dash=f.DASH, group_of=groups.group_of,
        lost_ms=losses.lost_ms, main_cause=losses.main_cause, split_bar=_split_bar, fall_bar=_fall_bar,
        effects_rows=costs.effects_rows, saving_line=costs.saving_line, fix_lines=costs.fix_lines,
        lines=lambda text: clean_lines(text, limit=2000, most=16),
        scenario=what_if, verified=verified, search=search, ms_range=f.ms_range,
    )  # fmt: skip
    return env


def _detail(text: str) -> Markup:
    """Write the sentences below the verdict, and in bold the one that says what to try."""
    before, begin, rest = clean(text, limit=1000).partition(TO_TRY)
    if not begin:
        return Markup.escape(before)
    what, dot, after = rest.partition(". ")
    return Markup("{}<b>{}{}{}</b>{}").format(before, begin, what, dot, after)


def _meter(frac: float) -> Markup:
    """Draw a share of 0..1 as a thin bar; the number stands beside it, so it is silent to readers."""
    width = 100 * min(max(frac, 0.0), 1.0)
    return Markup(f'<svg class="meter" aria-hidden="true"><rect width="{width:.1f}%" height="9"/></svg>')


def _split_bar(row: GemmRow) -> Markup:
    """Draw a row's time as parts side by side; the title says them."""
    parts = losses.segments(row)
    rects = "".join(
        f'<rect class="f-{name}" x="{100 * start:.1f}%" width="{100 * width:.1f}%" height="6"/>'
        for name, start, width in parts
    )
    said = "of its time " + ", ".join(f"{name} {f.pct(width)}" for name, _, width in parts)
    return Markup('<svg class="split" role="img"><title>{}</title>{}</svg>').format(said, Markup(rects))


def _fall_bar(fall: losses.Fall) -> Markup:
    """Draw one bar of the waterfall; its numbers stand in the same row, so it is silent to readers."""
    return Markup(
        f'<svg width="100%" height="14" aria-hidden="true"><rect x="{100 * fall.start:.2f}%" '
        f'width="{100 * fall.frac:.2f}%" height="14"/></svg>'
    )


def _policy(css: str, js: str) -> str:
    """Allow exactly our own style and script, and nothing else: no network, no frames, no inline code."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (css, js)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _embedded(report: Report) -> str:
    """Encode the report so that no text in it can end the script element or a script line.

    It is compact, a third smaller; the file of --json holds every field and digit.
    """
    text = to_json(report, indent=None, compact=True).decode("utf-8")
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
