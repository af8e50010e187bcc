"""The report as one offline HTML file: server-made SVG and tables, a hash CSP, and no network."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from tracelens import numbers as f
from tracelens import words
from tracelens.accounting.lost import worst_alignment
from tracelens.render import costs, facts, groups, limits, losses, step_times, verified, waits
from tracelens.render.five_numbers import five_numbers
from tracelens.render.section import Content, Page, Section
from tracelens.render.sections import filled
from tracelens.render.templates import environment, part, policy
from tracelens.render.text import clean_lines, short_kernel
from tracelens.render.verdict import with_verdict
from tracelens.results import GemmRow, Report
from tracelens.results.json import to_json

CALLS = 24  # communication rows in the embedded JSON
EMBEDDED = 8  # GEMM rows in it, besides those that findings name
STEPS = 200  # steps in it, as many as the page lists

#: What could end the script element, a line in it, or hide and reorder text for who reads the source.
_ESCAPED = re.compile("[<>&\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def render_html(report: Report, *, generated_at: str | None = None) -> str:
    """Return the page; ``generated_at`` is shown in the footer when given.

    The page needs no network and no script. It stays under 300 kB by showing fewer derivations, then shorter
    tables of kernels, then fewer GEMM rows, and says what it leaves out. The embedded JSON follows the
    published schema and holds the longest rows and the findings that are told in full.
    """
    report = with_verdict(report)

    @cache
    def page(limit: limits.PageLimits) -> str:
        return _render(Page(report, limits.rows(report, limit), limit), generated_at)

    def fits(limit: limits.PageLimits) -> bool:
        return len(page(limit).encode("utf-8", "replace")) <= limits.BUDGET

    first, *smaller = limits.PageLimits().all()
    if fits(first):
        return page(first)
    return page(smaller[bisect_left(smaller[:-1], True, key=fits)])


def _render(page: Page, generated_at: str | None) -> str:
    report = page.report
    css, js = part("report.css"), part("report.js")
    common = _common(page)

    def draw(section: Section, content: Content) -> Markup:
        return Markup(_environment().get_template(f"{section.name}.html.j2").render(common | content))

    text: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            **common,
            sections=filled(page, draw),
            generated=facts.GENERATED,
            generated_at=generated_at,
            model_line=facts.model_line(report),
            run_line=facts.run_line(report),
            numbers=five_numbers(report),
            step_lines=step_times.lines(report)[:1],
            job_lines=costs.job_lines(report) if common["price"] is not None else [],
            css=Markup(css),
            js=Markup(js),
            data=Markup(_embedded(_cut(report, page.rows, page.limit.whole))),
            csp=Markup(policy(css, js)),
        )
    )
    return text


def _common(page: Page) -> dict[str, Any]:
    """What every template can use."""
    report = page.report
    marked = report.summary.steps_marked
    listed = report.findings[: page.limit.whole + page.limit.lines]
    position = {finding.rule: n for n, finding in reversed(list(enumerate(listed, 1)))}
    by_id = page.by_id
    exact = {
        (finding.rule, by_id[row].id): n
        for n, finding in enumerate(listed, 1)
        for row in finding.gemms
        if row in by_id
    }
    return {
        "r": report,
        "rows": page.rows,
        "by_id": by_id,
        "per_step": words.per_step(marked),
        "slash_step": words.slash_step(marked),
        "marks": facts.MARKS,
        "price": report.cost.price if report.cost else None,
        "finding_of": lambda rule, row: exact.get((rule, row)) or position.get(rule),
    }


def _cut(report: Report, rows: list[GemmRow], whole: int) -> Report:
    """Leave in the embedded report what a script needs and a reader without the file of --json would miss.

    Of the GEMM rows, the longest and those that findings name: the table on the page has all that are
    shown. Without the words that stand in the text of the page (why a cause has no figure, what an
    alignment rests on, what ran beside its calls, why a check passed), and without what is long and no
    reader of a page looks for: kernels besides GEMMs, rows behind a finding, and the timeline, whose kernels
    are a table of the page.
    """
    linked = limits.named(report.findings[:whole])
    own = {row.id: row for row in report.gemms}  # rows of the table can stand for several
    kept = [own[row.id] for at, row in enumerate(rows) if at < EMBEDDED or row.id in linked]
    plain = [
        replace(
            row,
            lost_ms=replace(row.lost_ms, why={}),
            alignment_basis=None,
            leading={},
            leading_source=None,
            beside=None,
        )
        for row in kept
    ]
    return replace(
        report,
        gemms=plain,
        other_kernels=[],
        findings=[
            replace(one, evidence={name: seen for name, seen in one.evidence.items() if name != "rows"})
            for one in report.findings[:whole]
        ],
        checks=[replace(one, why="") for one in report.checks],
        steps=report.steps[:STEPS],
        communication=report.communication[:CALLS],
        waits=waits.shortened(report.waits),
        layers=replace(report.layers, timeline=None),
    )


@cache
def _environment() -> jinja2.Environment:
    env = environment()
    env.filters.update(exact=f.exact_ms, nbytes=f.nbytes, delta=f.delta, short_kernel=short_kernel)
    env.globals.update(
        saving=facts.claim, bounded=facts.bounded, shape=facts.shape,
        shape_detail=facts.shape_detail, role=facts.role, tile=facts.tile,
        alignment=worst_alignment, message=facts.message, group=facts.group, bus=facts.bus,
        group_of=groups.group_of,
        lost_ms=losses.lost_ms, main_cause=losses.main_cause, split_bar=losses.split_bar,
        fall_bar=losses.fall_bar,
        effects_rows=costs.effects_rows, finding_line=costs.finding_line, saving_line=costs.saving_line,
        framework_lines=costs.framework_lines,
        lines=lambda text: clean_lines(text, limit=2000, most=16),
        verified=verified, ms_range=f.ms_range,
    )  # fmt: skip
    return env


def _embedded(report: Report) -> str:
    """Encode the report so that no text in it can end the script element or a script line.

    It is compact, a third smaller; the file of --json holds every field and digit.
    """
    text = to_json(report, indent=None, compact=True).decode("utf-8")
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
