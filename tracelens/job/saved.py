"""The reports that summaries of ranks hold: two jobs are compared by them as by their traces."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelens.errors import InputError, brief
from tracelens.job.find import SUMMARY, TRACES
from tracelens.job.summary import RankSummary, decode, each_trace_once
from tracelens.results import Report
from tracelens.results.job import JOB_VERSION, Job
from tracelens.results.json import from_json, to_json

_MOST = 1 << 28  # bytes of one report; more is no report


def unpack_report(summary: RankSummary) -> Report:
    """The rank's own report. Raises InputError where it is damaged."""
    engine = zlib.decompressobj()
    try:
        return from_json(engine.decompress(summary.report, _MOST))
    except zlib.error as error:
        raise InputError(
            f"the report in the summary of {brief(summary.file, 80)} is damaged: {error}"
        ) from None


def has_summaries(given: str | Path) -> bool:
    """A summary file, or a folder of summaries without traces beside them."""
    path = Path(given)
    if not os.path.isdir(path):
        return path.name.endswith(SUMMARY) and os.path.isfile(path)
    names = [one.name.lower() for one in path.iterdir() if not one.name.startswith(".")]
    return any(name.endswith(SUMMARY) for name in names) and not any(name.endswith(TRACES) for name in names)


def is_answer(given: str | Path) -> bool:
    """The JSON of an answer for a job (``--json``); a pipe is not read: nobody may be writing to it."""
    if not os.path.isfile(given):
        return False
    try:
        with open(given, "rb") as file:
            return file.read(64).lstrip().startswith((b'{\n  "job_version"', b'{"job_version"'))
    except (OSError, ValueError):
        return False


def load_answer(path: str | Path) -> Job:
    """The saved answer for a job. Raises InputError where it is damaged or of another major version."""
    name = Path(path).name
    try:
        data = Path(path).read_bytes()
        version = msgspec.json.decode(data, type=_AnswerHead).job_version
        if version.partition(".")[0] != JOB_VERSION.partition(".")[0]:
            raise InputError(f"{name} has job version {brief(version)}; this tracelens reads {JOB_VERSION}")
        job = msgspec.json.decode(data, type=Job)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is no whole answer for a job: {brief(error, 300)}") from None
    if not job.step_ms > 0:
        raise InputError(f"{name} is no whole answer for a job: its step takes no time")
    return job


class _AnswerHead(msgspec.Struct):
    job_version: str


@dataclass(frozen=True, slots=True)
class RankFolder:
    """A folder of traces and reports; ``summaries``: of the reports that were unpacked from them, by path."""

    path: Path
    summaries: dict[Path, RankSummary]


def holds_ranks(given: str | Path) -> bool:
    """A folder, or a summary. Raises InputError for the answer of a job: it has no reports of ranks."""
    if is_answer(given):
        raise InputError(
            f"{Path(given).name} is the answer for a job, without reports of ranks: write them with "
            "--summary FILE and compare those files"
        )
    return os.path.isdir(given) or has_summaries(given)


@contextmanager
def as_folder(given: str | Path) -> Iterator[RankFolder]:
    """The folder, or a temporary one with the report of each rank in these summaries.

    Raises InputError where a summary cannot be read.
    """
    path = Path(given)
    if not has_summaries(path):
        yield RankFolder(path, {})
        return
    files = sorted(path.glob(f"*{SUMMARY}")) if path.is_dir() else [path]
    with tempfile.TemporaryDirectory(prefix="tracelens-") as temporary:
        folder = Path(temporary) / path.resolve().name
        folder.mkdir()
        ranks = [one for file in files for one in decode(file.read_bytes(), file.name)]
        found: dict[Path, RankSummary] = {}
        for at, one in enumerate(each_trace_once(ranks)):
            stem = Path(one.file).name.removesuffix(".zst").removesuffix(".gz").removesuffix(".json")
            report = folder / f"{stem or at}.report.json"
            if report in found:
                report = folder / f"{at}.{report.name}"
            report.write_bytes(to_json(unpack_report(one)))
            found[report] = one
        yield RankFolder(folder, found)
