"""``tracelens history``: runs of a job over time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from tracelens.errors import UsageError


@click.command(short_help="The runs of a job, and what moved in the last one.")
@click.argument("store")
@click.argument("ranks", nargs=-1)
@click.option("--run", metavar="NAME", help="Name of the run that is added [default: the time].")
@click.option("--json", metavar="FILE", help="The runs as JSON ('-': standard output).")
def history(store: str, ranks: tuple[str, ...], run: str | None, json: str | None) -> None:
    """Show the runs of a job in the folder STORE, and what moved in the last one beyond noise.

    RANKS, the traces or summaries of one more run, are added first.
    """
    from tracelens.job.history import history as read

    if run is not None and not ranks:
        raise UsageError("--run names a run that is added: give its traces or summaries after the folder")
    if ranks:
        _add(Path(store), ranks, run)
    found = read(Path(store))
    if json is not None:
        import msgspec

        from tracelens.cli.streams import give_json

        give_json(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n", json)
        if json == "-":
            return
    from tracelens.render.console import stdout_console
    from tracelens.render.history import render_history

    render_history(found, console=stdout_console())


def _add(store: Path, ranks: tuple[str, ...], run: str | None) -> None:
    from tracelens.cli.progress import progress
    from tracelens.job.history import place, record
    from tracelens.job.run import analyze_job

    now = datetime.now(UTC)
    name = run or now.strftime("%Y%m%dT%H%M%SZ")
    place(store, name)  # before the work
    with progress("ranks", long=True) as bar:
        job = analyze_job(ranks, progress=bar)
    record(job, store, run=name, when=now)
