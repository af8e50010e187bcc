"""``tracelens compare``: before and after a change."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from tracelens.cli.gates import Ci, answer, check_forms, gate_options
from tracelens.cli.help import GATES, Grouped
from tracelens.cli.streams import fetched, redact_option
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.gates import Judged
    from tracelens.results.comparison import Comparison
    from tracelens.results.folders import FolderComparison

    Compared = Comparison | FolderComparison


_GROUPS = {"Outputs": ("json", "markdown", "html", "redact", "quiet"), **GATES}


@click.command(cls=Grouped, groups=_GROUPS, short_help="Did a change help, and where: BEFORE against AFTER.")
@click.argument("before")
@click.argument("after")
@click.option("--across", is_flag=True, help="Other GPU, dtype or world size: compare shares of peak only.")
@click.option(
    "--json", metavar="FILE", help="The comparison as JSON ('-': standard output, instead of the summary)."
)
@click.option(
    "--markdown",
    metavar="FILE",
    help="As Markdown ('-': standard output, instead of the summary); the file of $GITHUB_STEP_SUMMARY "
    "is added to.",
)
@click.option("-o", "--output", "html", metavar="HTML", help="As one offline HTML page.")
@redact_option
@gate_options("comparison", "regression>3%")
@click.option(
    "--allow-clock-drift",
    is_flag=True,
    help="--fail-on does not count what all GEMMs of the same shape and kernel changed by alike "
    "(clock, power, library).",
)
@click.option("-q", "--quiet", is_flag=True, help="No summary in the terminal.")
def compare(
    before: str,
    after: str,
    across: bool,
    redact: bool,
    ci: Ci,
    allow_clock_drift: bool,
    quiet: bool,
    **forms: str | None,
) -> None:
    """Say whether the step's time changed from BEFORE to AFTER, what changed, and where the time went.

    Each is a torch.profiler trace or a report of 'tracelens analyze --json'; or both are folders of them,
    the ranks of a job or several runs, which are paired by rank, else by name. Summaries ('--summary') stand
    for the ranks in them.
    """
    from tracelens.gates import COMPARISON_METRICS, judge_comparison
    from tracelens.gates.judge import as_gate

    check_forms(forms, ci, inputs=(before, after))
    if allow_clock_drift and not ci.fail_on:
        raise UsageError("--allow-clock-drift is about what --fail-on counts: give a --fail-on")
    wanted = [as_gate(text, COMPARISON_METRICS) for text in ci.fail_on]
    result = _compare(before, after, across=across)
    if redact:
        from tracelens.render.redact import redact as redacted

        result = redacted(result)
    gates = judge_comparison(result, wanted, allow_clock_drift=allow_clock_drift)
    wished = {form: forms[form] for form in ("json", "markdown", "html")}
    answer(wished, partial(_made, result, gates), partial(_show, result), gates=gates, ci=ci, quiet=quiet)


def _compare(before: str, after: str, *, across: bool) -> Compared:
    from tracelens.comparison.load import compare as compare_files
    from tracelens.job.compare import compare_folders
    from tracelens.job.saved import holds_ranks
    from tracelens.render.compare_folder_words import told_folders
    from tracelens.render.compare_words import told

    folders = [path for path in (before, after) if path != "-" and holds_ranks(path)]
    if not folders:
        with fetched(before, after) as (first, second):
            return told(compare_files(first, second, across=across))
    if len(folders) == 1:
        other = after if folders[0] == before else before
        raise UsageError(f"{folders[0]} is a folder and {other} is none: give two files or two folders")
    from tracelens.cli.progress import progress

    with progress("comparing") as bar:
        return told_folders(compare_folders(before, after, across=across, workers=None, progress=bar))


def _made(result: Compared, gates: list[Judged], form: str) -> bytes:
    if form == "json":
        from tracelens.results.json import compare_json

        return compare_json(result)
    if form == "markdown":
        from tracelens.render.compare_markdown import render_markdown

        return render_markdown(result, gates=gates).encode()
    from tracelens.render.compare_html import render_compare_html

    return render_compare_html(result, generated_at=datetime.now().strftime("%Y-%m-%d %H:%M")).encode()


def _show(result: Compared, written: list[tuple[str, int]]) -> None:
    from tracelens.render.compare_terminal import render_compare
    from tracelens.render.console import stdout_console

    render_compare(result, console=stdout_console(), outputs=written)
