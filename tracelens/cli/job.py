"""``tracelens merge``, and ``tracelens analyze`` of several ranks: one answer for a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.cli.gates import Ci, answer, check_forms, gate_options
from tracelens.cli.help import GATES, Grouped
from tracelens.cli.streams import mergeable, redact_option
from tracelens.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tracelens.gates import Judged
    from tracelens.job.run import Pages
    from tracelens.job.summary import RankSummary
    from tracelens.results.job import Job

_MAGIC = set("*?[")


def is_job(traces: Sequence[str]) -> bool:
    """Several files, a folder, a pattern, an address of these, a summary, a saved answer: of a job."""
    if len(traces) > 1:
        return True
    (only,) = traces
    if only == "-":
        return False
    if "://" in only:
        from tracelens.job.find import is_file_address

        return not is_file_address(only)
    from tracelens.job.saved import has_summaries, is_answer

    path = Path(only)
    if os.path.isdir(path) or (_MAGIC & set(only) and not os.path.exists(path)):
        return True
    return has_summaries(path) or is_answer(path)


@click.command(
    cls=Grouped,
    groups={"Outputs": ("html", "json", "markdown", "summary", "redact", "quiet"), **GATES},
    short_help="One answer for a job from summaries of its ranks.",
)
@click.argument("summaries", nargs=-1, required=True)
@click.option("-o", "--output", "html", metavar="HTML", help="Where the page goes [default: none].")
@click.option("--json", metavar="FILE", help="The answer as JSON ('-': standard output).")
@click.option("--markdown", metavar="FILE", help="The answer as Markdown ('-': standard output).")
@click.option(
    "--summary", metavar="FILE", callback=mergeable, help="All ranks as NAME.summary, to merge further."
)
@redact_option
@gate_options("job", "straggler>5%")
@click.option("-q", "--quiet", is_flag=True, help="Nothing in the terminal.")
def merge(summaries: tuple[str, ...], redact: bool, ci: Ci, quiet: bool, **outputs: str | None) -> None:
    """One answer for a job from the SUMMARIES of its ranks: files of 'analyze TRACE --summary FILE', folders.

    The order of the files changes nothing. Traces among them are summarized first.
    """
    analyze_ranks(summaries, outputs=outputs, ci=ci, quiet=quiet, redacted=redact)


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How ranks are summarized: for which GPU, where finished ones and their pages lie, by whom."""

    gpu: str | None = None
    keep: str | None = None
    pages: str | None = None
    workers: int | None = None
    dask: str | None = None
    waits: bool = False

    def engine(self) -> AbstractContextManager[Executor | None]:
        """What runs the ranks; None: processes of this machine."""
        if self.dask is None:
            return nullcontext()
        from tracelens.job.run import dask_executor

        return dask_executor(self.dask)

    def checked(self, *, redacted: bool) -> Pages | None:
        """Where each rank's own page goes; the folders are made where they are not there yet."""
        from tracelens.job.run import Pages
        from tracelens.render.job_html import write_rank_page

        if self.waits:
            from tracelens.hta.library import library

            library()
        if redacted and self.pages is not None:
            raise UsageError("--pages writes names: not with --redact")
        if self.dask is not None and self.workers is not None:
            raise UsageError("--workers is of this machine: the Dask cluster has its own")
        for name, folder in (("--keep", self.keep), ("--pages", self.pages)):
            try:
                if folder is not None:
                    os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise UsageError(f"{name} {folder}: {error.strerror}; give a folder") from None
        return None if self.pages is None else Pages(self.pages, write_rank_page)


def analyze_ranks(
    paths: Sequence[str],
    *,
    outputs: Mapping[str, str | None],
    ci: Ci,
    quiet: bool,
    redacted: bool = False,
    how: RankOptions | None = None,
) -> None:
    """Summarize the ranks, merge them, and show and write the answer; ``redacted``: with hashes for names.

    ``outputs``: "html", "json", "markdown", "summary" -> file; None: not asked for.
    """
    from tracelens.gates import JOB_METRICS, judge_job
    from tracelens.gates.judge import as_gate

    check_forms(outputs, ci, inputs=paths)
    wanted = [as_gate(text, JOB_METRICS) for text in ci.fail_on]
    how = how or RankOptions()
    own = how.checked(redacted=redacted)
    job, found = _answer(paths, how, own, summary=outputs.get("summary") is not None)
    if redacted:
        from tracelens.render.redact import redact, redact_summary

        job, found = redact(job), [redact_summary(one) for one in found]
    gates = judge_job(job, wanted)
    links = _links(job, own, outputs.get("html"))

    def made(form: str) -> bytes:
        from tracelens.job.summary import encode

        return encode(found) if form == "summary" else _made(job, gates, links, form)

    wished = {form: outputs.get(form) for form in ("html", "json", "markdown", "summary")}
    answer(wished, made, partial(_show, job), gates=gates, ci=ci, quiet=quiet)


def _answer(
    paths: Sequence[str], how: RankOptions, own: Pages | None, *, summary: bool
) -> tuple[Job, list[RankSummary]]:
    """The answer and its ranks; of a saved answer, shown again, without them."""
    from tracelens.cli.progress import progress
    from tracelens.job.merge import merge as merged
    from tracelens.job.run import RankWork, summarize_files
    from tracelens.job.saved import is_answer, load_answer
    from tracelens.render.verdict import told

    if len(paths) == 1 and is_answer(paths[0]):
        if summary or how != RankOptions():
            raise UsageError(f"{paths[0]} is a saved answer: it is shown again, and has no ranks to analyze")
        return load_answer(paths[0]), []
    work = RankWork(how.gpu, how.keep, own, how.waits, told)
    with progress("ranks", long=True) as bar, how.engine() as executor:
        found, left = summarize_files(paths, work, workers=how.workers, executor=executor, progress=bar)
    return merged(found, left), found


def _links(job: Job, pages: Pages | None, page: str | None) -> dict[str, str]:
    """Each rank's own page by its name, relative to the job's."""
    if pages is None or page is None:
        return {}
    own = {row.name: pages.of(row.file, row.sha256) for row in job.ranks}
    return {name: Path(os.path.relpath(file, Path(page).parent)).as_posix() for name, file in own.items()}


def _made(job: Job, gates: list[Judged], links: dict[str, str], form: str) -> bytes:
    if form == "json":
        from tracelens.results.job import to_json

        return to_json(job)
    if form == "markdown":
        from tracelens.render.job import job_markdown

        return job_markdown(job, gates=gates).encode()
    from tracelens.render.job_html import render_job_html

    now = datetime.now().strftime("%Y-%m-%d %H:%M")
    return render_job_html(job, generated_at=now, pages=links).encode()


def _show(job: Job, written: list[tuple[str, int]]) -> None:
    from tracelens.render.console import stdout_console
    from tracelens.render.job import render_job

    render_job(job, console=stdout_console(), outputs=written)
