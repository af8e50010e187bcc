"""``tracelens analyze``: one trace to a page, a terminal summary and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.cli.gates import Ci, answer, check_forms, gate_options, printed, shown, taking
from tracelens.cli.help import GATES, Grouped, complete_gpu
from tracelens.cli.streams import fetched, mergeable, redact_option
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.analysis import Analysis
    from tracelens.gates import Judged


@dataclass(frozen=True, slots=True)
class AnalyzeOptions:
    """What the command line said."""

    traces: tuple[str, ...]
    output: str | None
    no_html: bool
    json: str | None
    markdown: str | None
    kernels: str | None
    perfetto: str | None
    keep_metadata: bool
    redact: bool
    gpu: str | None
    device: int | None
    steps: str | None
    reference: str | None
    gemm: tuple[str, ...]
    what_if: tuple[str, ...]
    waits: bool
    price: str | None
    summary: str | None
    keep: str | None
    pages: str | None
    workers: int | None
    dask: str | None
    ci: Ci
    quiet: bool
    verbose: bool

    @property
    def gemms(self) -> list[str]:
        """Rows whose figures are asked for."""
        return [name.strip() for text in self.gemm for name in text.split(",") if name.strip()]

    def forms(self, trace: str) -> dict[str, str | None]:
        """What is to be written of ``trace``: its form -> the file, in their order."""
        page = None if self.no_html else self.output or _page_name(trace)
        return {"html": page, "json": self.json, "kernels": self.kernels, "perfetto": self.perfetto,
                "summary": self.summary, "markdown": self.markdown}  # fmt: skip

    def given(self, *names: str) -> list[str]:
        """Those of these options that were given, as they are written."""
        unset = (None, False, ())  # 0 is a device
        return [
            f"--{name.replace('_', '-')}"
            for name in names
            if not any(getattr(self, name) is one for one in unset)
        ]


_GROUPS = {
    "Outputs": ("output", "no_html", "json", "markdown", "kernels", "perfetto", "keep_metadata", "redact"),
    "What is judged": ("gpu", "device", "steps", "reference", "what_if", "gemm", "waits", "price"),
    "Many ranks": ("summary", "keep", "pages", "workers", "dask"),
    **GATES,
}


@click.command(
    cls=Grouped, groups=_GROUPS, short_help="Where the GPU time of a trace or a job went, and what to change."
)
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
@click.option(
    "-o", "--output", metavar="HTML", help="Where the page goes [default: TRACE.report.html, here]."
)
@click.option("--no-html", is_flag=True, help="Write no page.")
@click.option("--json", metavar="FILE", help="The report as JSON; '-' prints it instead of the summary.")
@click.option(
    "--markdown",
    metavar="FILE",
    help="As Markdown; '-' prints it. The file of $GITHUB_STEP_SUMMARY is added to.",
)
@click.option("--kernels", metavar="FILE", help="One row per GPU event, as .parquet or .csv.")
@click.option(
    "--perfetto", metavar="FILE", help="The trace with tracks of component, layer, phase and findings."
)
@click.option(
    "--keep-metadata", is_flag=True, help="--perfetto keeps host, user, environment and whole paths."
)
@redact_option
@click.option(
    "--gpu", metavar="NAME", shell_complete=complete_gpu, help="Judge against this GPU, e.g. h100-sxm."
)
@click.option("--device", metavar="N", type=int, help="Of a trace of several GPUs the one with this number.")
@click.option("--steps", metavar="A:B", help="Only the steps ProfilerStep#A to ProfilerStep#B.")
@click.option(
    "--reference",
    metavar="TRACE",
    help="An eager trace of the same job: what it says of a kernel holds for the same kernel here.",
)
@click.option(
    "--gemm", metavar="ID[,ID]", multiple=True, help="How the figures of GEMM g1, g2, ... come about."
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="CHANGES",
    help="Predict the step with these changes, e.g. vocab=50304,heads=20. Repeatable.",
)
@click.option("--waits", is_flag=True, help="Also idle time by cause, queue and critical path (extra hta).")
@click.option(
    "--price", metavar="AMOUNT", help='Of one GPU-hour, e.g. "2.50 EUR": costs and savings in money.'
)
@click.option(
    "--summary",
    metavar="FILE",
    callback=mergeable,
    help="This rank as a small file, NAME.summary, for `tracelens merge`.",
)
@click.option("--keep", metavar="FOLDER", help="Finished ranks are kept there and not redone.")
@click.option("--pages", metavar="FOLDER", help="Each rank's own page goes there, with a link.")
@click.option("--workers", type=click.IntRange(1), help="Ranks analyzed at once [default: all cores].")
@click.option("--dask", metavar="ADDRESS", help="On the Dask cluster of this scheduler (extra dask).")
@gate_options("report", "shape_waste>5%")
@click.option("-q", "--quiet", is_flag=True, help="No summary in the terminal.")
@click.option("-v", "--verbose", is_flag=True, help="The summary with GEMMs, communication and coverage.")
@taking(AnalyzeOptions)
def analyze(options: AnalyzeOptions) -> None:
    """Analyze TRACE, a torch.profiler trace (.json, .json.gz, .json.zst, .pftrace; '-' reads standard input).

    Prints a summary and writes one self-contained HTML page. A report that --json wrote is shown again,
    without its trace: what needs the trace is refused. Several traces, a folder or a pattern are the ranks of
    a job: one answer for all of them.
    """
    from tracelens.cli.job import is_job

    if is_job(options.traces):
        _analyze_job(options)
    else:
        with fetched(*options.traces) as (trace,):
            _analyze_one(replace(options, traces=(trace,)))


def _analyze_job(asked: AnalyzeOptions) -> None:
    from tracelens.cli.job import RankOptions, analyze_ranks

    given = asked.given("kernels", "perfetto", "device", "steps", "reference", "gemm", "what_if", "price")
    if given:
        raise UsageError(f"{', '.join(given)}: of one trace only; this is a job of several ranks")
    page = None if asked.no_html else asked.output or "job.report.html"
    analyze_ranks(
        asked.traces,
        outputs={"html": page, "json": asked.json, "markdown": asked.markdown, "summary": asked.summary},
        ci=asked.ci,
        quiet=asked.quiet,
        redacted=asked.redact,
        how=RankOptions(asked.gpu, asked.keep, asked.pages, asked.workers, asked.dask, asked.waits),
    )


def _analyze_one(asked: AnalyzeOptions) -> None:
    from tracelens.gates import REPORT_METRICS, judge_report
    from tracelens.gates.judge import as_gate
    from tracelens.kinds import kind_of
    from tracelens.render.gates import finding_annotations

    if given := asked.given("keep", "pages", "workers", "dask"):
        raise UsageError(f"{', '.join(given)}: for several ranks only: give a folder or more traces")
    (trace,) = asked.traces
    saved = kind_of(trace) == "report"
    _check(asked, trace, saved=saved)
    wanted = [as_gate(text, REPORT_METRICS) for text in asked.ci.fail_on]
    result = _reopen(asked, trace) if saved else _analyze(asked, trace)
    if asked.redact:
        from tracelens.render.redact import redact_report

        result = replace(result, report=redact_report(result))
    gates = judge_report(result.report, wanted)
    if asked.gemms:
        from tracelens.render.console import stdout_console
        from tracelens.render.terminal_verbose import render_derivations

        with shown():
            render_derivations(result.report, asked.gemms, console=stdout_console())
    answer(
        asked.forms(result.report.trace.path if asked.redact else trace),
        partial(_made, result, asked, gates),
        partial(_show, result, asked),
        gates=gates,
        ci=asked.ci,
        quiet=asked.quiet,
        notes=lambda: finding_annotations(result.report),
    )


def _check(asked: AnalyzeOptions, trace: str, *, saved: bool) -> None:
    """UsageError for what cannot be made of this file, before anything is read."""
    if asked.kernels is not None and Path(asked.kernels).suffix.lower() not in (".parquet", ".csv"):
        raise UsageError(f"cannot tell the format of {asked.kernels}: end it in .parquet or .csv")
    given = asked.given("kernels", "perfetto", "gpu", "device", "steps", "reference", "waits", "summary")
    if saved and given:
        raise UsageError(
            f"{trace} is a saved report: {', '.join(given)} need{'s' if len(given) == 1 else ''} the trace"
        )
    if asked.perfetto is not None:
        from tracelens.render.perfetto import check_perfetto

        if asked.redact:
            raise UsageError(
                "--redact and --perfetto: that file holds the trace's own events, with their names"
            )
        check_perfetto(trace, asked.perfetto)
    elif asked.keep_metadata:
        raise UsageError("--keep-metadata is of --perfetto: give that too")
    forms = asked.forms(trace)
    if asked.gemms and printed(forms):
        name = printed(forms)[0]
        raise UsageError(f"--gemm and {name} both write to standard output: give {name[:-2]} a file")
    check_forms(forms, asked.ci, inputs=(trace, asked.reference))


def _analyze(asked: AnalyzeOptions, trace: str) -> Analysis:
    from tracelens import api
    from tracelens.cli.progress import is_large, progress

    steps = _steps(asked.steps)
    with progress("analyzing", long=is_large(trace)) as bar:
        return api.analyze(
            trace, gpu=asked.gpu, device=asked.device, steps=steps, reference=asked.reference,
            what_ifs=asked.what_if, waits=asked.waits, price=asked.price, progress=bar,
        )  # fmt: skip


def _reopen(asked: AnalyzeOptions, report: str) -> Analysis:
    """A saved report as it is, with what can be added to it without the trace."""
    from tracelens.analysis import Analysis

    result = Analysis.load(report)
    if asked.what_if:
        result = result.with_what_if(*asked.what_if)
    return result if asked.price is None else result.with_price(asked.price)


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        raise UsageError(f"--steps {text}: give the first and the last step, e.g. --steps 12:15")
    return int(match[1]), int(match[2] or match[1])


def _made(result: Analysis, asked: AnalyzeOptions, gates: list[Judged], form: str) -> bytes | None:
    """One form of the answer; the kernels and the annotated trace are written right here."""
    if form == "html":
        from tracelens.render.html import render_html

        now = datetime.now().strftime("%Y-%m-%d %H:%M")
        return render_html(result.report, generated_at=now).encode()
    if form == "json":
        from tracelens.results.json import to_json

        return to_json(result.report)
    if form == "markdown":
        from tracelens.render.markdown import render_report_markdown

        return render_report_markdown(result.report, gates=gates).encode()
    if form == "summary":
        from tracelens.job.summary import encode, summarize

        return encode([summarize(result)])
    if form == "kernels" and asked.kernels is not None:
        from tracelens.render.kernels import write_kernels
        from tracelens.render.redact import redact_kernels

        write_kernels(redact_kernels(result.kernels) if asked.redact else result.kernels, asked.kernels)
    elif asked.perfetto is not None:
        from tracelens.cli.streams import warn
        from tracelens.render.perfetto import write_perfetto

        for note in write_perfetto(result, asked.perfetto, keep_metadata=asked.keep_metadata).notes:
            warn(f"{asked.perfetto}: {note}")
    return None


def _page_name(trace: str) -> str:
    name = "trace" if trace == "-" else Path(trace).name
    for suffix in (".gz", ".json", ".trace", ".pt", ".report"):
        name = name.removesuffix(suffix)
    return f"{name or 'trace'}.report.html"


def _show(result: Analysis, asked: AnalyzeOptions, written: list[tuple[str, int]]) -> None:
    from tracelens.render.console import stdout_console
    from tracelens.render.terminal import render_terminal

    if asked.gemms:
        for name, _ in written:
            click.echo(f"wrote {name}")
    else:
        render_terminal(result.report, console=stdout_console(), outputs=written, verbose=asked.verbose)
