"""``tracelens doctor``: is a recording good enough?"""

from __future__ import annotations

import click

from tracelens.cli.gates import check_files, shown
from tracelens.cli.streams import echo_json, fetched

_CODES = {"good": 0, "poor": 1, "unusable": 3}


@click.command(short_help="Is a trace good enough to analyze, and what does it lack?")
@click.argument("trace")
@click.option(
    "--json", metavar="FILE", help="The diagnosis as JSON ('-': standard output, instead of the text)."
)
@click.option("-q", "--quiet", is_flag=True, help="Only the exit code.")
def doctor(trace: str, json: str | None, quiet: bool) -> None:
    """Say whether TRACE is good enough to analyze, what it lacks, and the profiler argument that gives it.

    Checked are the file, GPU events, launches, shapes, module names, marked steps, dropped events, the GPU's
    name and clocks, and the six rules that PyTorch holds its own traces to (torch.profiler._trace_validator).

    \b
    Exit codes: 0 good, 1 poor (a check failed or a rule is broken), 2 wrong use,
    3 unusable (no trace, or without GPU events).
    """
    from tracelens.diagnosis import diagnose
    from tracelens.files import write_bytes
    from tracelens.results.json import diagnosis_json

    check_files({"--json": json}, inputs=(trace,))
    with fetched(trace) as (path,):
        found = diagnose(path)
    if json not in (None, "-"):
        write_bytes(json, diagnosis_json(found))
    with shown():
        if json == "-":
            echo_json(diagnosis_json(found))
        elif not quiet:
            from tracelens.render.console import stdout_console
            from tracelens.render.diagnosis import render_diagnosis

            render_diagnosis(found, console=stdout_console())
    raise click.exceptions.Exit(_CODES[found.verdict])
