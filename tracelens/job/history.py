"""Runs of a job over time: each as a small Parquet file in a folder."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import combinations
from math import atan, cos, isfinite, pi, sin, sqrt
from pathlib import Path
from statistics import median, stdev

import msgspec

from tracelens.comparison.step_change import PRACTICAL
from tracelens.comparison.steps import LEVEL
from tracelens.errors import InputError, UsageError, brief
from tracelens.files import check_place, write_bytes
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
    Raises InputError where the folder holds no run, or a file that is none.
    """
    try:
        files = sorted(store.glob("*.parquet"))
    except OSError as error:
        raise InputError(f"no folder of runs: {brief(error, 200)}") from None
    if not files:
        raise InputError(f"{store} holds no run: give the traces or summaries of one after it")
    runs = sorted((one for file in files for one in _read(file)), key=lambda one: (one.recorded_at, one.run))
    last = runs[-1]
    earlier = [one for one in runs if one.job == last.job and one is not last]
    if len(earlier) < LEAST_RUNS:
        return History(runs, [], len(earlier))
    least = PRACTICAL * median(one.figures["step"] for one in earlier)
    moved = [one for figure in last.figures if (one := _moved(figure, last, earlier, least))]
    moved.sort(key=lambda one: -abs(one.ms - one.usual_ms))
    return History(runs, moved, len(earlier), _trends([*earlier, last]))


def _read(path: Path) -> list[RecordedRun]:
    """The runs of a file: one, as ``record`` writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    runs: dict[str, RecordedRun] = {}
    try:
        rows = pq.read_table(path).select(["run", "recorded_at", "job", "figure", "ms"]).to_pylist()
        for row in rows:
            ms = row.pop("ms")
            if not isinstance(ms, int | float) or not isfinite(ms):
                raise ValueError(f"{row['figure']} of {row['run']} is {ms}")
            one = msgspec.convert({**row, "figures": {}}, RecordedRun)
            runs.setdefault(one.run, one).figures[row["figure"]] = ms
        for one in runs.values():
            if "step" not in one.figures:
                raise ValueError(f"run {one.run} has no time of its step")
    except (pa.ArrowException, OSError, LookupError, ValueError, msgspec.ValidationError) as error:
        raise InputError(f"the store holds a file that is no run, {path.name}: {brief(error, 200)}") from None
    return list(runs.values())


def _moved(figure: str, last: RecordedRun, earlier: Sequence[RecordedRun], least: float) -> Moved | None:
    """How a figure of the last run differs from earlier ones; None where it is within their noise."""
    values = [one.figures[figure] for one in earlier if figure in one.figures]
    if len(values) < LEAST_RUNS:
        return None
    ms, usual = last.figures[figure], median(values)
    noise = half_interval(stdev(values), len(values), _SURE_OF_STEP if figure == "step" else _SURE)
    return Moved(figure, ms, usual, noise, len(values)) if abs(ms - usual) > max(least, noise) else None


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


# How far the next run can lie from earlier ones by chance: the prediction interval of Student's t.
# Half of it is t * s * sqrt(1 + 1/n), for runs that vary normally. A multiple of the deviation that does not
# grow where runs are few calls three runs in ten of an unchanged job different.
def half_interval(deviation: float, runs: int, sure: float) -> float:
    """Half of the interval around ``runs`` of standard ``deviation`` that holds the next with ``sure``.

    >>> round(half_interval(1.0, 3, 0.95), 2), round(half_interval(1.0, 20, 0.99), 2)
    (4.97, 2.93)
    """
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, runs - 1) < sure else (low, middle)
    return high * deviation * sqrt(1 + 1 / runs)


def _within(t: float, freedom: int) -> float:
    """Probability of a value between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for at in range(freedom // 2):
        total += term
        term *= cos(angle) ** 2 * ((2 * at + 2) / (2 * at + 3) if odd else (2 * at + 1) / (2 * at + 2))
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


# Does a figure rise or fall from run to run? Kendall's rank test against the order, and the median slope.
# The test is that of Mann (Econometrica 13, 1945, 245-259), two-sided, its distribution counted exactly; the
# slope is the median of those of all pairs (Theil 1950, Sen 1968). One run that stands out turns neither.

#: Many figures are asked of each store, so less than the usual 5 % counts as seen.
_SURE_OF_TREND = 0.01
#: Older runs count no more: the work grows with the square of them.
MOST_RUNS = 100


def slope(values: Sequence[float]) -> float | None:
    """The change from one value to the next, where the values rise or fall; None where no trend is seen.

    >>> slope([1.0, 1.25, 1.125, 1.375, 1.5, 1.625, 1.75])
    0.125
    >>> slope([1.0, 1.1, 1.2, 1.3]), slope([1.0, 1.0, 1.1, 1.0, 1.0, 1.0, 1.2])  # too few; not in order
    (None, None)
    """
    pairs = list(combinations(enumerate(values), 2))
    if not pairs:
        return None
    score = sum((b > a) - (b < a) for (_, a), (_, b) in pairs)
    if probability(len(values), abs(score)) > _SURE_OF_TREND:
        return None
    return median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def probability(many: int, score: int) -> float:
    """Of a score at least so far from 0 in a random order of distinct values."""
    ways = [1]  # by number of pairs out of order
    for place in range(1, many):
        longer = [0] * (len(ways) + place)
        for at, count in enumerate(ways):
            for more in range(place + 1):
                longer[at + more] += count
        ways = longer
    pairs = len(ways) - 1
    return sum(count for at, count in enumerate(ways) if abs(pairs - 2 * at) >= score) / math.factorial(many)
