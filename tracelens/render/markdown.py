"""A report as Markdown, for a pull request or a job's summary. Names from traces stay text."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.accounting.loads import by_load
from tracelens.gates import Judged
from tracelens.render import costs, facts, groups, limit
from tracelens.render.findings import caveats, waiting
from tracelens.render.five_numbers import five_numbers
from tracelens.render.gates import gates_markdown
from tracelens.render.text import escape, fenced, table
from tracelens.render.verdict import with_verdict
from tracelens.results import Finding, Report

_FINDINGS = 20  # rows; a job's summary has room for a megabyte, a reader for less
_DIFFS = 8
_DIFF_LINES = 40
_GEMMS = 8
_WARNINGS = 10


def render_report_markdown(report: Report, *, gates: Sequence[Judged] = ()) -> str:
    """The report in the page's order: identity, verdict, gates, five numbers, findings, GEMMs, method."""
    report = with_verdict(report)
    lines = [f"*{escape(facts.GENERATED)}*", ""] if report.trace.generated else []
    if report.trace.partial:
        lines += [f"**{escape(facts.partial_line(report))}**", ""]
    lines += [f"**{escape(report.summary.verdict)}**", ""]
    for below in (report.summary.verdict_to_try, report.summary.verdict_detail):
        lines += [escape(below), ""] if below else []
    who = [report.trace.path[:80], *facts.model_line(report), *facts.run_line(report)]
    lines += [escape(" · ".join(who)), ""]
    lines += gates_markdown(gates)
    numbers = [[one.label, one.value, one.note] for one in five_numbers(report)]
    lines += [*table(["", "", ""], numbers), ""]
    if report.cost is not None and report.cost.price is not None:
        for line in costs.job_lines(report):
            lines += [escape(line), ""]
    lines += [*_limit(report), *_findings(report), *_step(report), *_gemms(report), *_tail(report)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _limit(report: Report) -> list[str]:
    """What limits the step, where GEMM shapes do not."""
    found = limit.cards(report)
    lines = ["### What costs time besides GEMM shapes", ""] if found else []
    for card in found:
        saw = [f"- {escape(line)}" for line in card.saw]
        todo = [f"{n}. {escape(line)}" for n, line in enumerate(card.todo, 1)]
        lines += [f"**{escape(card.title)}**: {escape(card.claim)}", "", *saw, "", *todo, "",
                  f"{escape(card.how)}", ""]  # fmt: skip
    return lines


def _findings(report: Report) -> list[str]:
    checks = escape(facts.checks_line(report))
    if not report.findings:
        judged = facts.checks_by_state(report)["passed"]
        head = "No findings." if judged else "No check could judge this trace."
        return ["### Findings", "", f"{head} {checks}.", ""]
    rows = []
    for one in report.findings[:_FINDINGS]:
        claim, qualifier = facts.claim(one, report)
        rows.append([one.rule, one.title, claim, qualifier, one.confidence, one.effort])
    lines = [
        "### Findings",
        "",
        *table(["rule", "fix", facts.per_step(report).strip(), "", "confidence", "effort"], rows),
        "",
    ]
    if len(report.findings) > _FINDINGS:
        lines += [f"and {len(report.findings) - _FINDINGS} more", ""]
    overlap = facts.overlap_words(report)
    for said in (f"{f.capital(overlap)}." if overlap else "", waiting(report)):
        lines += [escape(said), ""] if said else []
    for one in report.findings[:_DIFFS]:
        lines += _diff(one, report)
    return [*lines, f"{checks}.", ""]


def _diff(one: Finding, report: Report) -> list[str]:
    """The change to make, with what to know before it; nothing where a finding has none."""
    if not one.fix:
        return []
    more = [f"- {escape(line)}" for line in caveats(one)]
    title = f"**{escape(f'{one.rule} {one.title}')}**"
    saw = [escape(one.saw), ""] if one.saw else []
    saw += [escape(costs.finding_line(one, None)), ""]
    return [title, "", *saw, *fenced(one.fix[:_DIFF_LINES]), "", *more, *([""] if more else [])]


def _step(report: Report) -> list[str]:
    shares = groups.group_shares(report)
    if not shares:
        return []
    rows = [[share.title, f.pct(share.frac), f.ms(share.ms_per_step)] for share in shares]
    return [
        "### Where the GPU time goes",
        "",
        *table(["", "share", facts.per_step(report).strip()], rows),
        "",
        *(line for said in groups.outside_lines(report) for line in (escape(said), "")),
    ]


def _gemms(report: Report) -> list[str]:
    if not report.gemms:
        return []
    classes = by_load(report.gemms)
    rows = [
        [
            row.id,
            f"{row.component} {facts.role(row) if row.role else row.phase}",
            facts.shape(row),
            f.sig(row.time_ms_per_step),
            f.pct(row.frac),
            facts.of_peak(row),
            " ".join(row.findings),
        ]
        for row in classes[:_GEMMS]
    ]
    heads = ["", "GEMM", "M × N × K", f"ms{facts.per_step(report)}", "of GPU time", "of peak", "findings"]
    more = len(classes) - _GEMMS
    return ["### GEMMs", "", *table(heads, rows), "", *([f"and {more} more", ""] if more > 0 else [])]


def _tail(report: Report) -> list[str]:
    """What is not known, and what would show it."""
    lines = []
    if report.coverage.other_frac > 0:
        lines.append(
            f"- {f.pct(report.coverage.other_frac)} of GPU time has a name but is no known part of the step"
        )
    for missing in report.coverage.unattributed[:3]:
        time = f"{f.ms(missing.time_ms / max(1, len(report.steps)))}{facts.per_step(report)}"
        said = f"unattributed {time}: {missing.reason}; {missing.remedy}"
        lines.append(f"- {escape(said)}")
    for lack in facts.lacks_worth_a_line(report):
        lines.append(f"- {escape(lack.title)}: {escape(lack.remedy)}")
    if not report.trace.partial:
        lines += [f"- warning: {escape(one)}" for one in report.trace.warnings[:_WARNINGS]]
    return ["### Caveats", "", *lines, ""] if lines else []
