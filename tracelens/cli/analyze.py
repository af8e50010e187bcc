"""``tracelens analyze``: one trace to a page, a terminal summary and tables."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.analysis import Analysis


@click.command()
@click.argument("trace", type=str)
@click.option(
    "-o", "--output", metavar="HTML", help="Where the page goes [default: TRACE's name + .report.html, here]."
)
@click.option("--no-html", is_flag=True, help="Write no page.")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="The report as JSON ('-': standard output, instead of the summary).",
)
@click.option("--kernels", metavar="FILE", help="One row per GPU event, as .parquet or .csv.")
@click.option(
    "--perfetto",
    metavar="FILE",
    help="The trace with component, layer, phase and finding tracks, as .json or .json.gz "
    "(see `tracelens open`).",
)
@click.option("--gpu", metavar="NAME", help="Judge against this GPU, e.g. h100-sxm, whatever the trace says.")
@click.option("--steps", metavar="A:B", help="Only the steps ProfilerStep#A to ProfilerStep#B.")
@click.option(
    "--reference",
    metavar="TRACE",
    help="Another trace of the same job (eager, with shapes or modules): what is known of its kernels "
    "is lent to the same kernels here.",
)
@click.option(
    "--gemm",
    "gemms",
    metavar="ID[,ID]",
    multiple=True,
    help="How the figures of this row of the GEMM table come about (g1, g2, ...), instead of the summary.",
)
@click.option(
    "--what-if",
    "what_ifs",
    multiple=True,
    metavar="CHANGES",
    help="Predict the step with such changes, e.g. vocab=50304,heads=20; give it again for another scenario.",
)
@click.option(
    "--waits",
    is_flag=True,
    help="Also where the step waits (idle time by cause, queue, critical path); some seconds more, and "
    'needs pip install "tracelens-gpu[hta]".',
)
@click.option(
    "--price",
    metavar="AMOUNT",
    help='Price of one GPU-hour ("2.50" or "2.50 EUR"): what steps cost and findings save, in money.',
)
@click.option("-q", "--quiet", is_flag=True, help="No summary in the terminal.")
def analyze(
    trace: str,
    output: str | None,
    no_html: bool,
    json_path: str | None,
    kernels: str | None,
    perfetto: str | None,
    gpu: str | None,
    steps: str | None,
    reference: str | None,
    gemms: tuple[str, ...],
    what_ifs: tuple[str, ...],
    waits: bool,
    price: str | None,
    quiet: bool,
) -> None:
    """Analyze TRACE, a torch.profiler trace (.json or .json.gz; '-' reads standard input).

    Prints a summary and writes one self-contained HTML page.
    """
    from tracelens import analysis

    if kernels is not None and Path(kernels).suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"cannot tell the format of {kernels}: end it in .parquet or .csv")
    if perfetto is not None:
        from tracelens.render.perfetto import check_perfetto

        check_perfetto(trace, perfetto)
    ids = [name.strip() for text in gemms for name in text.split(",") if name.strip()]
    if ids and json_path == "-":
        raise UsageError("--gemm and --json - both write to standard output: give --json a file")
    result = analysis.analyze(
        trace, gpu=gpu, steps=_steps(steps), reference=reference, what_ifs=what_ifs, waits=waits, price=price
    )
    if ids:
        _derive(result, ids)
    written = _write(result, output or None if not no_html else "", trace, json_path, kernels)
    if perfetto is not None:
        written.append((perfetto, _perfetto(result, perfetto)))
    if ids and not quiet:
        for name, _ in written:
            click.echo(f"wrote {name}")
    elif not quiet and json_path != "-":
        _show(result, written)


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        raise UsageError(f"--steps {text}: give the first and the last step, e.g. --steps 12:15")
    return int(match[1]), int(match[2] or match[1])


def _write(
    result: Analysis, output: str | None, trace: str, json_path: str | None, kernels: str | None
) -> list[tuple[str, int]]:
    """Write what was asked for; (name, bytes) of each file, in the order written."""
    from tracelens.render.files import write_bytes, write_text
    from tracelens.render.html import render_html
    from tracelens.render.json import to_json
    from tracelens.render.kernels import write_kernels

    written: list[str] = []
    if output != "":
        page = output or _page_name(trace)
        write_text(page, render_html(result.report, generated_at=datetime.now().strftime("%Y-%m-%d %H:%M")))
        written.append(page)
    if json_path == "-":
        click.echo(to_json(result.report))
    elif json_path is not None:
        write_bytes(json_path, to_json(result.report))
        written.append(json_path)
    if kernels is not None:
        write_kernels(result.kernels, kernels)
        written.append(kernels)
    return [(name, _size(name)) for name in written]


def _perfetto(result: Analysis, path: str) -> int:
    """Write the annotated trace; its bytes. What it lacks is a warning."""
    from tracelens.render.perfetto import write_perfetto
    from tracelens.render.text import clean

    for note in write_perfetto(result, path).notes:
        click.echo(f"tracelens: {clean(f'{path}: {note}')}", err=True)
    return _size(path)


def _size(name: str) -> int:
    path = Path(name)
    return path.stat().st_size if path.is_file() else 0


def _page_name(trace: str) -> str:
    name = "trace" if trace == "-" else Path(trace).name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return f"{name or 'trace'}.report.html"


def _derive(result: Analysis, ids: list[str]) -> None:
    from rich.console import Console

    from tracelens.render.terminal import render_derivations

    render_derivations(result.report, ids, console=Console())


def _show(result: Analysis, written: list[tuple[str, int]]) -> None:
    from rich.console import Console

    from tracelens.render.terminal import render_terminal

    render_terminal(result.report, console=Console(), outputs=written)
