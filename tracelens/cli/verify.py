"""``tracelens verify``: a report's suggestions, measured on the GPU at hand."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.cli.progress import progress
from tracelens.cli.streams import end_measuring, need_torch, resume_option
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.measure.verify.run import Done


@click.command(short_help="Measure the suggestions of a report on this GPU.")
@click.argument("report", type=click.Path(dir_okay=False))
@click.option(
    "-o", "--output", metavar="FILE", help="Where the report goes [default: REPORT.verified.json, beside it]."
)
@click.option("--html", metavar="FILE", help="The page of the verified report, too.")
@click.option("--model", is_flag=True, help="Measure a small training step of both shapes, too.")
@click.option("--rule", "rules", multiple=True, metavar="TLxxx", help="Only the findings of this rule.")
@click.option("--anyway", is_flag=True, help="Measure on another GPU than the report's.")
@resume_option
@click.option("--cpu-dry-run", is_flag=True, hidden=True)
def verify(
    report: str,
    output: str | None,
    html: str | None,
    model: bool,
    rules: tuple[str, ...],
    anyway: bool,
    resume: bool,
    cpu_dry_run: bool,
) -> None:
    """Measure the suggestions of REPORT on this GPU, before and after.

    REPORT is what `analyze --json` or `suggest --json` wrote. For each suggestion it times the GEMMs
    and attention calls that change, and whole layers (forward and backward) of both shapes, and writes
    measured beside predicted. Needs PyTorch with CUDA and the GPU to itself; seconds for a suggestion.
    REPORT itself is not changed. Ctrl-C keeps what was measured.
    """
    need_torch("verify")
    from tracelens.measure.devices import open_device
    from tracelens.measure.verify import read_source
    from tracelens.measure.verify import verify as measure
    from tracelens.measure.verify.file import check_writable, default_output
    from tracelens.measure.verify.meter import open_meter

    source = read_source(report)
    if html is not None and source.kind != "report":
        raise UsageError("--html: only the report of a trace has a page")
    out = Path(output) if output is not None else default_output(Path(report))
    check_writable(out)
    kept: list[Path] = []

    def keep(done: Done) -> None:
        if (previous := done.write(out)) is not None:
            kept.append(previous)

    with progress("verifying", long=True, first="warming up") as bar:
        device = open_device("cpu" if cpu_dry_run else "cuda")
        with open_meter(device, toy=cpu_dry_run, fresh=not resume) as meter:
            done = measure(
                source, device=device, model=model, anyway=anyway or cpu_dry_run,
                only=tuple(rule.upper() for rule in rules), progress=bar, kept=keep, meter=meter,
            )  # fmt: skip
    keep(done)
    _show(done, out, kept, html)
    end_measuring(done.stopped)


def _show(done: Done, out: Path, kept: list[Path], html: str | None) -> None:
    from rich.console import Console

    from tracelens.render.verified import render_verification

    named = [
        (asked.title, found)
        for asked, found in zip(done.source.asked, done.verified, strict=True)
        if found is not None
    ]
    render_verification(named, done.verification, console=Console())
    click.echo()
    if done.stopped is not None:
        click.echo(f"stopped early: {done.stopped}; what was measured is in the file")
    for previous in kept:
        click.echo(f"the file that was there before is now {previous}")
    click.echo(f"wrote {out}")
    if html is not None:
        _page(out, html)
        click.echo(f"wrote {html}")


def _page(report: Path, html: str) -> None:
    if find_spec("msgspec") is None:
        raise UsageError(f"--html needs msgspec, which is not installed here: the report is in {report}")
    from tracelens.analysis import Analysis
    from tracelens.files import write_text
    from tracelens.render.html import render_html

    write_text(html, render_html(Analysis.load(report).report))
