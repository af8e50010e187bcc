"""Runs of a job over time: each as a small Parquet file in a folder, asked by DuckDB."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from tracelens.comparison.step_change import PRACTICAL
from tracelens.comparison.steps import LEVEL
from tracelens.errors import InputError, UsageError
from tracelens.files import check_place, write_bytes
from tracelens.job.noise import half_interval
from tracelens.job.trend import MOST_RUNS, slope
from tracelens.numbers import plural
from tracelens.results.job import Job
from tracelens.words import GENERATED

#: Of a recording that counts as one step.
UNMARKED = "no step marked"
#: Fewer earlier runs say nothing of how much runs differ.
LEAST_RUNS = 3
#: How many runs like the earlier ones count as such; other figures than the step are many.
_SURE_OF_STEP, _SURE = 1 - LEVEL, 0.99
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,79}")
_PARTS = ("computing", "messages", "copies", "input", "idle")


class RecordedRun(msgspec.Struct, frozen=True):
    """One run of the store."""

    run: str
    recorded_at: str  # ISO 8601: when it was put into the store
    job: str  # whether generated, ranks, GPUs, the model's size: runs that differ in it are not compared
    figures: dict[str, float]  # ms per step: step, parts (median rank), late (latest rank), components


class Moved(msgspec.Struct, frozen=True):
    """A figure of the last run that differs from the earlier ones by more than they do among themselves."""

    figure: str
    ms: float
    usual_ms: float  # median of the earlier runs
    noise_ms: float  # by which one more of the earlier runs differs at most in 95 % of cases, 99 % of parts
    runs: int  # earlier ones of the same job


class Trend(msgspec.Struct, frozen=True):
    """A figure that rises or falls over the runs of the last one's job."""

    figure: str
    ms_per_run: float  # median slope
    first_ms: float
    last_ms: float
    runs: int


class History(msgspec.Struct, frozen=True):
    """The runs, oldest first, and what moved in the last one; the largest first."""

    runs: list[RecordedRun]
    moved: list[Moved]
    earlier: int  # runs that the last one is compared with
    trends: list[Trend] = []  # the steepest first


def figures(job: Job) -> dict[str, float]:
    """ms per step by which runs are compared; waits only where the job's calls tell them."""
    parts = [row.parts for row in job.ranks]
    found = {"step": job.step_ms}
    found |= {name: median(getattr(one, f"{name}_ms") for one in parts) for name in _PARTS}
    found["communication"] = median(one.waiting_ms + one.sending_ms for one in parts)
    if job.waits_told:
        found["waiting"] = median(one.waiting_ms for one in parts)
        found["late"] = max(row.late_ms for row in job.ranks)
    return found | {f"component {name}": times[0] for name, times in job.components.items()}


def place(store: Path, run: str) -> Path:
    """The file of a run that is to be added, its folder made. Raises UsageError as ``record`` does."""
    if not _NAME.fullmatch(run):
        raise UsageError(f"--run {run[:80]!r}: use letters, digits and . _ + - for the name of a run")
    path = store / f"{run}.parquet"
    if path.exists():
        raise UsageError(f"{store} has a run {run}: give another --run, or remove {path.name}")
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{store} cannot be the folder of runs ({error.strerror or error})"
        raise UsageError(f"{why}: name that folder first, then what is added") from None
    check_place(path)
    return path


def record(job: Job, store: Path, *, run: str, when: datetime) -> Path:
    """Put a run into the store, a folder; the file is named by the run.

    Raises:
        UsageError: the store is no folder, the name is none for a file, or the store has a run of that name.
    """
    path = place(store, run)
    import pyarrow as pa
    import pyarrow.parquet as pq

    gpus = ", ".join(sorted({row.gpu for row in job.ranks}))
    made = [GENERATED] * job.generated + [UNMARKED] * (not job.steps_marked)
    values = figures(job)
    many = len(values)
    table = pa.table(
        {
            "run": [run] * many,
            "recorded_at": [when.isoformat(timespec="seconds")] * many,
            "job": [", ".join([*made, plural(len(job.ranks), "rank"), gpus, *_sizes(job)])] * many,
            "figure": list(values),
            "ms": list(values.values()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_bytes(path, sink.getvalue().to_pybytes())
    return path


def _sizes(job: Job) -> list[str]:
    """What tells one model from another, and not a change of its shape from the shape before."""
    known = {name: getattr(job.model, name).value for name in ("hidden", "layers") if job.model is not None}
    return [f"{name} {value}" for name, value in known.items() if value is not None]


def history(store: Path) -> History:
    """The runs of a store, and what moved in the last one against the median of earlier runs of its job.

    A figure has moved by more than 2 % of the usual step and by more than the earlier runs' noise.
    Raises InputError where DuckDB is not installed, or the folder holds no run.
    """
    files = sorted(glob.glob(f"{glob.escape(str(store))}/*.parquet"))
    if not files:
        raise InputError(f"{store} holds no run: give the traces or summaries of one after it")
    rows = _asked(_RUNS, files)
    runs: dict[str, RecordedRun] = {}
    for run, recorded, job, figure, ms in rows:
        if not isinstance(ms, int | float) or not isfinite(ms) or None in (run, recorded, job, figure):
            raise InputError(f"the store holds a file that is no run: {figure} of {run} is {ms}")
        runs.setdefault(run, RecordedRun(run, recorded, job, {})).figures[figure] = ms
    for one in runs.values():
        if "step" not in one.figures:
            raise InputError(f"run {one.run} of the store has no time of its step: take its file out")
    last = list(runs.values())[-1]
    earlier = [one for one in runs.values() if one.job == last.job and one is not last]
    if len(earlier) < LEAST_RUNS:
        return History(list(runs.values()), [], len(earlier))
    trends = _trends([*earlier, last])
    usual_step = median(one.figures["step"] for one in earlier)
    moved = [
        Moved(figure, ms, usual, noise, many)
        for figure, ms, usual, deviation, many in _asked(_AGAINST_EARLIER, files)
        if many >= LEAST_RUNS and abs(ms - usual) > PRACTICAL * usual_step
        for noise in [half_interval(deviation, many, _SURE_OF_STEP if figure == "step" else _SURE)]
        if abs(ms - usual) > noise
    ]
    moved.sort(key=lambda one: -abs(one.ms - one.usual_ms))
    return History(list(runs.values()), moved, len(earlier), trends)


def _trends(runs: Sequence[RecordedRun]) -> list[Trend]:
    """Figures with a trend that adds up to more than 2 % of the usual step."""
    runs = runs[-MOST_RUNS:]
    least = PRACTICAL * median(one.figures["step"] for one in runs)
    found = []
    for figure in runs[-1].figures:
        values = [one.figures[figure] for one in runs if figure in one.figures]
        each = slope(values)
        if each is not None and abs(each) * (len(values) - 1) > least:
            found.append(Trend(figure, each, values[0], values[-1], len(values)))
    return sorted(found, key=lambda one: -abs(one.ms_per_run))


_RUNS = """
SELECT run, recorded_at, job, figure, ms FROM read_parquet($files) ORDER BY recorded_at, run
"""
_AGAINST_EARLIER = """
WITH figures AS (SELECT * FROM read_parquet($files)),
last AS (SELECT DISTINCT run, job, recorded_at FROM figures ORDER BY recorded_at DESC, run DESC LIMIT 1),
earlier AS (
    SELECT figure, median(figures.ms) AS usual, stddev_samp(figures.ms) AS deviation, count(*) AS many
    FROM figures JOIN last ON figures.job = last.job AND figures.run <> last.run
    GROUP BY figure
)
SELECT figures.figure, figures.ms, earlier.usual, earlier.deviation, earlier.many
FROM figures JOIN last ON figures.run = last.run JOIN earlier ON figures.figure = earlier.figure
"""


def check_installed() -> None:
    """Raise InputError where DuckDB is not installed."""
    if find_spec("duckdb") is None:
        raise InputError('a history needs pip install "tracelens-gpu[history]"')


def _asked(query: str, files: Sequence[str]) -> list[tuple[Any, ...]]:
    check_installed()
    import duckdb

    try:
        with duckdb.connect() as database:
            found: list[tuple[Any, ...]] = database.execute(query, {"files": list(files)}).fetchall()
            return found
    except (duckdb.Error, UnicodeDecodeError) as error:  # text in a damaged file need be no UTF-8
        raise InputError(f"the store holds a file that is no run: {str(error).splitlines()[0]}") from None
