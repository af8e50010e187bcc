"""The answer for a job at a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracelens.gates import Judged
from tracelens.render.console import Out
from tracelens.render.gates import gates_markdown
from tracelens.render.job_cells import (
    COLLECTIVE_HEADS,
    COLLECTIVE_NOTE,
    collective_cells,
    finding_lines,
    largest_components,
    part_names,
    rank_cells,
    short_findings,
    worst_first,
)
from tracelens.render.job_words import CHECK, caveats, check, details, evidence, identity, model_line, verdict
from tracelens.render.text import escape, table
from tracelens.results.job import Job

RANKS = 4  # listed at a terminal: all of a small job, else the latest and the slowest; the page has all
COLLECTIVES = 3
FINDINGS = 2
_SHORT = {
    "computing": "comp.",
    "waiting for other ranks": "wait",
    "sending": "send",
    "communication": "comm.",
    "sends and receives": "p2p",
    "waiting for input": "input",
}


def render_job(job: Job, *, console: Console, outputs: Sequence[tuple[str, int]] = ()) -> None:
    """Print the answer; about 24 lines of 80 columns."""
    out = Out(console)
    out.line(identity(job), "dim")
    if model := model_line(job):
        out.line(model, "dim")
    out.line(verdict(job), "bold")
    for line in details(job):
        out.line(f"  {line}")
    out.line()
    parts = part_names(job)
    heads = ["step", *(_SHORT.get(said, said) for _, said in parts), "late"]
    late = {one.name for one in job.stragglers}
    rows = out.table([("", "l"), *((head, "r") for head in heads)])
    for row in worst_first(job, RANKS):
        name = out.text(f"  {row.name}", "bold" if row.name in late else "")
        rows.add_row(name, *map(out.text, rank_cells(job, row)))
    out.print(rows)
    more = len(job.ranks) - len(worst_first(job, RANKS))
    others = f"{more} more ranks; " * bool(more)
    out.line(f"  {others}mean ms per step; late: what the others wait for it (median)", "dim")
    if named := largest_components(job):
        out.line(f"  {named}")
    out.line()
    waited = [row for row in job.collectives if row.waiting_ms > 0][:COLLECTIVES]
    if waited:
        heads = ["  collective", "size", "skew", "last", "waiting"]
        lines = out.table([(head, "r" if at else "l") for at, head in enumerate(heads)])
        for call in waited:
            _, size, _, skew, last, waiting, *_ = collective_cells(call)
            cells = (f"  {call.collective}", size, skew.partition(",")[0], last, waiting)
            lines.add_row(*map(out.text, cells))
        out.print(lines)
        out.line("  skew: first to last arrival, median of clear calls; waiting: per step and rank", "dim")
    for line in short_findings(job)[:FINDINGS]:
        out.line(f"  {line}")
    out.line(" ".join(caveats(job)), "dim")
    out.line(f"Check a fix: {CHECK} (folders of all ranks' traces)")
    out.wrote(outputs)


def job_markdown(job: Job, *, gates: Sequence[Judged] = ()) -> str:
    """The answer as Markdown, in the terminal's order."""
    lines = [f"**{escape(verdict(job))}**", "", *(f"- {escape(line)}" for line in details(job)), ""]
    lines += [escape(identity(job)), "", *[escape(model_line(job)), ""] * bool(model_line(job))]
    lines += gates_markdown(gates)
    rows = worst_first(job, 64)
    parts = part_names(job)
    lines += table(["", "step, ms", *(name for _, name in parts), "others wait"],
                   [[row.name, *rank_cells(job, row)] for row in rows])  # fmt: skip
    lines += ["", f"and {len(job.ranks) - len(rows)} more ranks"] if len(rows) < len(job.ranks) else []
    if job.collectives:
        lines += ["", *table(COLLECTIVE_HEADS, [collective_cells(row) for row in job.collectives[:20]])]
        lines += ["", COLLECTIVE_NOTE]
    said = finding_lines(job)
    lines += ["", "### Findings", "", *(f"- {escape(line)}" for line in said)] if said else []
    sentences, commands = evidence(job)
    lines += ["", "### How to check", "", *(f"- {escape(line)}" for line in sentences)]
    lines += ["", "```console", *(f"$ {line}" for line in commands), "```"]
    lines += ["", f"{escape(check(job))} `{CHECK}`"]
    lines += ["", *(f"- {escape(line)}" for line in caveats(job))]
    return "\n".join(lines) + "\n"
