"""What holistic-trace-analysis (HTA) says of a trace, as DataFrames with documented columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.attribution import Attribution
from tracelens.hta import words
from tracelens.hta.library import LibraryMissing, library, quiet
from tracelens.hta.tables import RANK, TICK_NS, WINDOW, Tables, tables
from tracelens.results import IdleCause, PathPart, QueueLength, Step, Waits
from tracelens.results.waits import WaitPart
from tracelens.trace import Links, Trace

#: HTA's own default. Its documents call it ns; its columns make it microseconds.
CONSECUTIVE_US = 30
#: A critical path takes 0.1 to 0.2 ms an event: beyond this it is more than a quarter of a minute.
PATH_EVENTS = 100_000
#: Host calls without a length on HTA's critical path (CPGraph.BLOCKING_SYNC_CALLS), and their HIP twins.
_BLOCKING = frozenset(
    f"{api}{call}"
    for api in ("cuda", "hip")
    for call in ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "EventQuery", "Memcpy")
) | {"cudaMemcpyAsync"}
_BOUND = {"": "dependency"}


@dataclass(frozen=True)
class WaitFrames:
    """HTA's tables over the GPU events of the analysed steps; times are of all those steps together.

    ``temporal`` (one row): span_ms (first to last GPU event), idle_ms (none runs), compute_ms (some
    computing kernel runs), non_compute_ms (only copies or communication run), overlap_frac (share of
    communication time with a computing kernel beside it; NaN without communication).

    ``idle``, a row per stream and cause: device, stream, cause, time_ms, frac (of that stream's idle
    time). Causes: host_wait (the kernel was launched only after the one before had ended), kernel_wait
    (it was queued, and the gap is below 30 µs), other (it was queued and waited longer, or its launch
    is not in the file). A stream can be idle while another works.

    ``queue``, a row per stream: device, stream, launches, mean, std, median, highest: how many GPU
    events were launched and had not begun, seen at every launch and every beginning.

    ``path``, a row per kind of edge on the critical path of one step: bound_by (cpu_bound,
    gpu_compute_bound, gpu_communication_bound, gpu_kernel_launch_overhead, gpu_kernel_kernel_overhead,
    dependency), time_ms, frac. It knows no synchronization between streams or with the host.

    ``missing``: frame -> why it is empty.
    """

    version: str  # of HTA
    temporal: pd.DataFrame
    idle: pd.DataFrame
    queue: pd.DataFrame
    path: pd.DataFrame
    path_step: Step | None = None
    #: of that step the host spent in calls that wait, which the path has no length for
    blocked_ms: float = 0.0
    queued_frac: float | None = None  # of the GPU events: those whose launch HTA counts in ``queue``
    missing: dict[WaitPart, str] = field(default_factory=dict)


def wait_frames(trace: Trace, links: Links, attribution: Attribution, *, steps: Sequence[Step]) -> WaitFrames:
    """Run HTA on the GPU events of these steps.

    Raises:
        LibraryMissing: holistic-trace-analysis is not installed.
    """
    hta = library()
    counted = within(trace, attribution, steps)
    missing: dict[WaitPart, str] = {}
    built = tables(trace, links, attribution, hta, counted=counted)
    plain = built.analysis(hta)

    def run(what: WaitPart, made: Callable[[], pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
        try:
            with quiet():
                found = made()
        except Exception as error:  # a third party's: whatever it raises, the rest of the report stands
            missing[what] = words.failed(hta.version, type(error).__name__)
            found = pd.DataFrame()
        return found if len(found) else pd.DataFrame(columns=list(columns))

    step = _typical(steps)
    temporal = run("temporal", lambda: temporal_frame(plain), _TEMPORAL)
    idle = run("idle", lambda: idle_frame(built.analysis(hta, built.without_overlap()), built), _IDLE)
    queue = run("queue", lambda: queue_frame(plain, built), _QUEUE)
    host = _host_window(links, step)
    if (why := _no_path(trace, host)) is not None:
        missing["path"] = why
    found = pd.DataFrame(columns=list(_PATH))
    if "path" not in missing:
        found = run("path", lambda: path_frame(built.analysis(hta, built.in_ticks(*host))), _PATH)
    if found.empty:
        missing.setdefault("path", words.NO_PATH)
    if queue.empty:
        missing.setdefault("queue", words.NO_LAUNCH)
    return WaitFrames(
        version=hta.version,
        temporal=temporal,
        idle=idle,
        queue=queue,
        path=found,
        path_step=step if not found.empty else None,
        blocked_ms=_blocked_ms(trace, host),
        queued_frac=float(queue["launches"].sum() / counted.sum()) if len(queue) else None,
        missing=missing,
    )


def within(trace: Trace, attribution: Attribution, steps: Sequence[Step]) -> npt.NDArray[np.bool_]:
    """Which GPU events count: launched in these steps, or begun in them by the GPU's clock."""
    counted = attribution.step >= 0
    for step in steps:
        end = step.start_ns + round(step.duration_ms * 1e6)
        counted = counted | ((trace.kernels.ts_ns >= step.start_ns) & (trace.kernels.ts_ns < end))
    return counted


def _typical(steps: Sequence[Step]) -> Step:
    """The step of median length, the shorter of two."""
    return sorted(steps, key=lambda step: (step.duration_ms, step.index))[(len(steps) - 1) // 2]


def _host_window(links: Links, step: Step) -> tuple[int, int]:
    at = links.steps.index.index(step.index)
    return int(links.steps.start_ns[at]), int(links.steps.end_ns[at])


def _no_path(trace: Trace, host: tuple[int, int]) -> str | None:
    begun = (
        (table.ts_ns >= host[0]) & (table.ts_ns <= host[1])
        for table in (trace.ops, trace.launches, trace.kernels)
    )
    events = sum(int(inside.sum()) for inside in begun)
    if not len(trace.ops) and not len(trace.launches):
        return words.NO_HOST_EVENTS
    return words.too_many_events(events) if events > PATH_EVENTS else None


def _blocked_ms(trace: Trace, host: tuple[int, int]) -> float:
    calls = trace.launches
    inside = (calls.ts_ns >= host[0]) & (calls.ts_ns <= host[1])
    blocking = trace.symbols.where(lambda name: name in _BLOCKING)[calls.name]
    return float(calls.dur_ns[inside & blocking].sum()) / 1e6


_TEMPORAL = ("span_ms", "idle_ms", "compute_ms", "non_compute_ms", "overlap_frac")
_IDLE = ("device", "stream", "cause", "time_ms", "frac")
_QUEUE = ("device", "stream", "launches", "mean", "std", "median", "highest")
_PATH = ("bound_by", "time_ms", "frac")


def temporal_frame(analysis: Any) -> pd.DataFrame:
    """``WaitFrames.temporal`` from a ``TraceAnalysis`` in ns; the others alike."""
    found = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    # HTA heads the columns "(us)"; they are in the unit of its rows, which is ns here
    times = [
        found[f"{name}(us)"] for name in ("kernel_time", "idle_time", "compute_time", "non_compute_time")
    ]
    values = [*(float(time) / 1e6 for time in times), float(overlap["comp_comm_overlap_pctg"]) / 100]
    return pd.DataFrame([values], columns=list(_TEMPORAL))


def idle_frame(analysis: Any, built: Tables) -> pd.DataFrame:
    """``WaitFrames.idle``; the rows must not overlap on a stream."""
    found, _ = analysis.get_idle_time_breakdown(
        ranks=[RANK], consecutive_kernel_delay=CONSECUTIVE_US * 1000, visualize=False
    )
    time = found["idle_time"].to_numpy(np.float64) / 1e6
    total = found.groupby("stream")["idle_time"].transform("sum").to_numpy(np.float64) / 1e6
    frame = _streams(found["stream"], built)
    frame["cause"] = found["idle_category"].to_numpy()
    frame["time_ms"] = time
    frame["frac"] = np.divide(time, total, out=np.zeros_like(time), where=total > 0)
    return frame[frame["time_ms"] > 0].sort_values("time_ms", ascending=False, ignore_index=True)


def queue_frame(analysis: Any, built: Tables) -> pd.DataFrame:
    """``WaitFrames.queue``."""
    found = analysis.get_queue_length_summary(ranks=[RANK])
    if found is None:
        return pd.DataFrame()
    lengths = found["queue_length"]
    frame = _streams(found.index.get_level_values("stream"), built)
    frame["launches"] = lengths["count"].to_numpy(np.int64) // 2  # a launch and a beginning each
    for name, theirs in (("mean", "mean"), ("std", "std"), ("median", "50%")):
        frame[name] = lengths[theirs].to_numpy(np.float64)
    frame["highest"] = lengths["max"].to_numpy(np.int64)
    return frame.sort_values(["device", "stream"], ignore_index=True)


def path_frame(analysis: Any, *, annotation: str = WINDOW, unit_ns: int = TICK_NS) -> pd.DataFrame:
    """``WaitFrames.path`` from rows in a unit of about a microsecond, within the first range of that name."""
    graph, succeeded = analysis.critical_path_analysis(RANK, annotation, 0)
    if not succeeded:
        return pd.DataFrame()
    edges = graph.get_critical_path_breakdown()
    # in whole ns: the edges come as a set, and the sum of doubles depends on their order
    ns = (edges["duration"] * unit_ns).round().astype(np.int64)
    time = ns.groupby(edges["bound_by"].replace(_BOUND)).sum()
    time = time[time > 0].sort_values(ascending=False, kind="stable")
    return pd.DataFrame(
        {
            "bound_by": time.index.to_numpy(),
            "time_ms": time.to_numpy() / 1e6,
            "frac": time.to_numpy() / max(1, int(time.sum())),
        }
    )


def _streams(numbers: Any, built: Tables) -> pd.DataFrame:
    pairs = [built.streams[int(number) - 1] for number in numbers]
    return pd.DataFrame(
        {"device": [device for device, _ in pairs], "stream": [stream for _, stream in pairs]}
    )


def report_waits(frames: Callable[[], WaitFrames], *, steps: int) -> Waits:
    """Per step of ``steps``; where the library is not installed, why there is nothing."""
    try:
        found = frames()
    except LibraryMissing as error:
        return Waits(why=str(error))
    times: dict[str, Any] = dict(found.temporal.iloc[0]) if len(found.temporal) else {}
    overlap = times.get("overlap_frac", math.nan)
    return Waits(
        tool=words.tool(found.version),
        **{
            name: float(times[name]) / steps if name in times else None
            for name in ("idle_ms", "compute_ms", "non_compute_ms")
        },
        overlap_frac=float(overlap) if math.isfinite(overlap) else None,
        idle=[
            IdleCause(
                int(row.device), int(row.stream), row.cause, float(row.time_ms) / steps, float(row.frac)
            )
            for row in _rows(found.idle)
        ],
        queue=[
            QueueLength(
                int(row.device),
                int(row.stream),
                int(row.launches),
                float(row.mean),
                float(row.median),
                int(row.highest),
            )
            for row in _rows(found.queue)
        ],
        queued_frac=found.queued_frac,
        path=[PathPart(str(row.bound_by), float(row.time_ms), float(row.frac)) for row in _rows(found.path)],
        path_step=found.path_step.index if found.path_step else None,
        path_of_ms=found.path_step.duration_ms if found.path_step else None,
        blocked_ms=found.blocked_ms if found.path_step else None,
        missing=dict(found.missing),
        why=None,
    )


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))
