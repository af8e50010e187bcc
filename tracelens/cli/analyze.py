"""``tracelens analyze``: one trace to a page, a terminal summary and tables."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracelens.cli.gates import (
    Ci,
    check_files,
    check_outputs,
    echo_markdown,
    finish,
    gate_options,
    shown,
    write_markdown,
)
from tracelens.cli.streams import redact_option
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.analysis import Analysis
    from tracelens.gates import Judged


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
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
@click.option(
    "--markdown",
    metavar="FILE",
    help="The report as Markdown ('-': standard output, instead of the summary); the file of "
    "$GITHUB_STEP_SUMMARY is added to.",
)
@click.option("--kernels", metavar="FILE", help="One row per GPU event, as .parquet or .csv.")
@click.option(
    "--perfetto",
    metavar="FILE",
    help="The trace with component, layer, phase and finding tracks, as .json or .json.gz "
    "(see `tracelens open`).",
)
@click.option(
    "--keep-metadata",
    is_flag=True,
    help="--perfetto also writes what the trace says of itself, and whole paths: host, user and "
    "environment can stand there.",
)
@redact_option
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
@click.option(
    "--summary", metavar="FILE", help="This rank (or all of them) as a small file for `tracelens merge`."
)
@click.option(
    "--keep", metavar="FOLDER", help="Of several ranks: finished ones lie there, and are not redone."
)
@click.option(
    "--pages", metavar="FOLDER", help="Of several ranks: each rank's own page goes there, with a link."
)
@click.option(
    "--workers", type=click.IntRange(1), help="Of several ranks: so many at once [default: all cores]."
)
@gate_options("report", "shape_waste>5%")
@click.option("-q", "--quiet", is_flag=True, help="No summary in the terminal.")
@click.option("-v", "--verbose", is_flag=True, help="The summary with GEMMs, communication and coverage.")
def analyze(
    traces: tuple[str, ...],
    output: str | None,
    no_html: bool,
    json_path: str | None,
    markdown: str | None,
    kernels: str | None,
    perfetto: str | None,
    keep_metadata: bool,
    redact: bool,
    gpu: str | None,
    steps: str | None,
    reference: str | None,
    gemms: tuple[str, ...],
    what_ifs: tuple[str, ...],
    waits: bool,
    price: str | None,
    summary: str | None,
    keep: str | None,
    pages: str | None,
    workers: int | None,
    fail_on: tuple[str, ...],
    if_unknown: str,
    annotations: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Analyze TRACE, a torch.profiler trace (.json, .json.gz or .json.zst; '-' reads standard input).

    Prints a summary and writes one self-contained HTML page. A report that --json wrote is shown again,
    without its trace: what needs the trace is refused. Several traces, a folder or a pattern are the ranks of
    a job: one answer for all of them.
    """
    from tracelens.cli.job import analyze_ranks, is_job
    from tracelens.cli.streams import echo_json
    from tracelens.gates import judge_report
    from tracelens.gates.judge import parse_report_gate
    from tracelens.kinds import kind_of
    from tracelens.results.json import to_json

    ci = Ci(unknown_fails=if_unknown == "fail", annotations=annotations is not None)
    if is_job(traces):
        _refuse_of_job(
            {"--kernels": kernels, "--perfetto": perfetto, "--steps": steps, "--reference": reference,
             "--gemm": gemms or None, "--what-if": what_ifs or None, "--waits": waits or None,
             "--price": price}
        )  # fmt: skip
        page = None if no_html else output or "job.report.html"
        outputs = {"html": page, "json": json_path, "markdown": markdown, "summary": summary}
        analyze_ranks(traces, outputs=outputs, fail_on=fail_on, ci=ci, quiet=quiet, gpu=gpu, keep=keep,
                      pages=pages, workers=workers, redacted=redact)  # fmt: skip
        return
    (trace,) = traces
    if (keep, pages, workers) != (None, None, None):
        raise UsageError("--keep, --pages and --workers are for several ranks: give a folder or more traces")
    if kernels is not None and Path(kernels).suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"cannot tell the format of {kernels}: end it in .parquet or .csv")
    saved = kind_of(trace) == "report"
    if saved:
        _refuse(
            trace,
            {"--kernels": kernels, "--perfetto": perfetto, "--gpu": gpu, "--steps": steps,
             "--reference": reference, "--waits": waits or None, "--summary": summary},
        )  # fmt: skip
    if perfetto is not None:
        from tracelens.render.perfetto import check_perfetto

        if redact:
            raise UsageError(
                "--redact and --perfetto: that file holds the trace's own events, with their names"
            )
        check_perfetto(trace, perfetto)
    elif keep_metadata:
        raise UsageError("--keep-metadata is of --perfetto: give that too")
    ids = [name.strip() for text in gemms for name in text.split(",") if name.strip()]
    on_stdout = [
        f"{name} -" for name, path in (("--json", json_path), ("--markdown", markdown)) if path == "-"
    ]
    if ids and on_stdout:
        name = on_stdout[0]
        raise UsageError(f"--gemm and {name} both write to standard output: give {name[:-2]} a file")
    check_outputs(markdown=markdown, annotations=annotations is not None, on_stdout=on_stdout)
    page = None if no_html else output or _page_name(trace)
    check_files(
        {"-o": page, "--json": json_path, "--markdown": markdown, "--kernels": kernels,
         "--perfetto": perfetto, "--summary": summary},
        inputs=(trace, reference),
    )  # fmt: skip
    wanted = [parse_report_gate(text) for text in fail_on]
    if saved:
        result = _reopen(trace, what_ifs=what_ifs, price=price)
    else:
        result = _analyze(
            trace,
            gpu=gpu,
            steps=_steps(steps),
            reference=reference,
            what_ifs=what_ifs,
            waits=waits,
            price=price,
        )
    if redact:
        result = _redacted(result)
    gates = judge_report(result.report, wanted)
    told = not quiet and not on_stdout
    if ids:
        with shown():
            _derive(result, ids)
    if page is not None and redact and not output:
        page = _page_name(result.report.trace.path)
    written = _write(result, page, json_path, kernels, redact=redact)
    if perfetto is not None:
        written.append((perfetto, _perfetto(result, perfetto, keep_metadata=keep_metadata)))
    if summary is not None:
        written.append((summary, _summary(result, summary)))
    if markdown is not None and markdown != "-":
        write_markdown(markdown, _markdown(result, gates))
        written.append((markdown, _size(markdown)))
    with shown():
        if json_path == "-":
            echo_json(to_json(result.report))
        elif markdown == "-":
            echo_markdown(_markdown(result, gates))
        elif told:
            _print(result, written, gates, derived=bool(ids), verbose=verbose)
        if ci.annotations:
            _annotate(result, gates, ci)
    finish(gates, ci, told=told)


def _analyze(trace: str, **asked: Any) -> Analysis:
    from tracelens import analysis
    from tracelens.cli.progress import is_large, progress

    with progress("analyzing", long=is_large(trace)) as heard:
        return analysis.analyze(trace, heard=heard, **asked)


def _refuse_of_job(asked: dict[str, object]) -> None:
    given = [name for name, value in asked.items() if value is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: of one trace only; this is a job of several ranks")


def _refuse(report: str, asked: dict[str, object]) -> None:
    given = [name for name, value in asked.items() if value is not None]
    if given:
        raise UsageError(
            f"{report} is a saved report: {', '.join(given)} need{'s' if len(given) == 1 else ''} the trace"
        )


def _reopen(report: str, *, what_ifs: tuple[str, ...], price: str | None) -> Analysis:
    """A saved report as it is, with what can be added to it without the trace."""
    from tracelens.analysis import Analysis

    result = Analysis.load(report)
    if what_ifs:
        result = result.with_what_if(*what_ifs)
    return result if price is None else result.with_price(price)


def _print(
    result: Analysis, written: list[tuple[str, int]], gates: list[Judged], *, derived: bool, verbose: bool
) -> None:
    from tracelens.render.console import stdout_console
    from tracelens.render.gates import render_gates

    if derived:
        for name, _ in written:
            click.echo(f"wrote {name}")
    else:
        _show(result, written, verbose=verbose)
    render_gates(gates, console=stdout_console())


def _annotate(result: Analysis, gates: list[Judged], ci: Ci) -> None:
    from tracelens.render.gates import finding_annotations, gate_annotations

    for line in gate_annotations(gates, unknown_fails=ci.unknown_fails):
        click.echo(line)
    for line in finding_annotations(result.report):
        click.echo(line)


def _markdown(result: Analysis, gates: list[Judged]) -> str:
    from tracelens.render.markdown import render_report_markdown

    return render_report_markdown(result.report, gates=gates)


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        raise UsageError(f"--steps {text}: give the first and the last step, e.g. --steps 12:15")
    return int(match[1]), int(match[2] or match[1])


def _redacted(result: Analysis) -> Analysis:
    from dataclasses import replace

    from tracelens.render.redact import redact_report

    return replace(result, report=redact_report(result))


def _write(
    result: Analysis, page: str | None, json_path: str | None, kernels: str | None, *, redact: bool
) -> list[tuple[str, int]]:
    """Write what was asked for; (name, bytes) of each file, in the order written."""
    from tracelens.files import write_bytes, write_text
    from tracelens.render.html import render_html
    from tracelens.render.kernels import write_kernels
    from tracelens.render.redact import redact_kernels
    from tracelens.results.json import to_json

    written: list[str] = []
    if page is not None:
        write_text(page, render_html(result.report, generated_at=datetime.now().strftime("%Y-%m-%d %H:%M")))
        written.append(page)
    if json_path is not None and json_path != "-":
        write_bytes(json_path, to_json(result.report))
        written.append(json_path)
    if kernels is not None:
        write_kernels(redact_kernels(result.kernels) if redact else result.kernels, kernels)
        written.append(kernels)
    return [(name, _size(name)) for name in written]


def _perfetto(result: Analysis, path: str, *, keep_metadata: bool) -> int:
    """Write the annotated trace; its bytes. What it lacks is a warning."""
    from tracelens.cli.streams import warn
    from tracelens.render.perfetto import write_perfetto

    for note in write_perfetto(result, path, keep_metadata=keep_metadata).notes:
        warn(f"{path}: {note}")
    return _size(path)


def _summary(result: Analysis, path: str) -> int:
    from tracelens.files import write_bytes
    from tracelens.job.summary import encode, summarize

    write_bytes(path, encode([summarize(result)]))
    return _size(path)


def _size(name: str) -> int:
    path = Path(name)
    return path.stat().st_size if path.is_file() else 0


def _page_name(trace: str) -> str:
    name = "trace" if trace == "-" else Path(trace).name
    for suffix in (".gz", ".json", ".trace", ".pt", ".report"):
        name = name.removesuffix(suffix)
    return f"{name or 'trace'}.report.html"


def _derive(result: Analysis, ids: list[str]) -> None:
    from tracelens.render.console import stdout_console
    from tracelens.render.terminal import render_derivations

    render_derivations(result.report, ids, console=stdout_console())


def _show(result: Analysis, written: list[tuple[str, int]], *, verbose: bool) -> None:
    from tracelens.render.console import stdout_console
    from tracelens.render.terminal import render_terminal

    render_terminal(result.report, console=stdout_console(), outputs=written, verbose=verbose)
