"""The reports that summaries of ranks hold: two jobs are compared by them as by their traces."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def as_folder(given: str | Path) -> Iterator[Path]:
    """A folder with the report of each rank in these summaries; what is no summary, as it is.

    Raises InputError where a summary cannot be read, or where it is the answer for a job.
    """
    path = Path(given)
    if is_answer(path):
        raise InputError(
            f"{path.name} is the answer for a job, without reports of ranks: write them with --summary FILE "
            "and compare those files"
        )
    if not has_summaries(path):
        yield path
        return
    files = sorted(path.glob(f"*{SUMMARY}")) if path.is_dir() else [path]
    with tempfile.TemporaryDirectory(prefix="tracelens-") as temporary:
        folder = Path(temporary) / path.resolve().name
        folder.mkdir()
        ranks = [one for file in files for one in decode(file.read_bytes(), file.name)]
        for at, one in enumerate(each_trace_once(ranks)):
            stem = Path(one.file).name.removesuffix(".zst").removesuffix(".gz").removesuffix(".json")
            name = f"{stem or at}.report.json"
            if (folder / name).exists():
                name = f"{at}.{name}"
            (folder / name).write_bytes(to_json(unpack_report(one)))
        yield folder


__all__ = ["as_folder", "has_summaries", "is_answer", "load_answer", "unpack_report"]
