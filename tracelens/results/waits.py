"""Where the step waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: What the next kernel waited for.
IdleWait = Literal["host_wait", "kernel_wait", "other"]
WaitPart = Literal["temporal", "idle", "queue", "path"]


@dataclass(frozen=True, slots=True)
class IdleCause:
    """Idle time of one stream by what the next kernel waited for; another stream can work meanwhile."""

    device: int
    stream: int
    cause: IdleWait  # host_wait: not launched yet; kernel_wait: queued, gap below 30 us
    ms_per_step: float
    frac: float  # of this stream's idle time


@dataclass(frozen=True, slots=True)
class QueueLength:
    """GPU events of one stream launched and not begun, seen at every launch and every beginning."""

    device: int
    stream: int
    launches: int  # in the analysed steps
    mean: float
    median: float
    highest: int


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time on the critical path of one step, by what bounds it."""

    bound_by: str  # in the words of HTA: "cpu_bound", "gpu_compute_bound"
    time_ms: float
    frac: float  # of the path


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the step waits, as holistic-trace-analysis finds it in this trace's own tables (``--waits``).

    From the first to the last GPU event of the analysed steps, per step: idle + compute + non_compute.
    """

    tool: str | None = None  # with its version
    idle_ms: float | None = None  # no GPU event runs
    compute_ms: float | None = None  # some computing kernel runs
    non_compute_ms: float | None = None  # only copies or communication run
    overlap_frac: float | None = None  # of communication time, some computing kernel runs beside it
    idle: list[IdleCause] = field(default_factory=list)  # longest first
    queue: list[QueueLength] = field(default_factory=list)
    queued_frac: float | None = None  # of the GPU events, those in ``queue``
    path: list[PathPart] = field(default_factory=list)  # longest first; they add up to the path's length
    path_step: int | None = None  # the N of its ProfilerStep#N: the step of median length
    path_of_ms: float | None = None  # that step's length
    blocked_ms: float | None = None  # of that step, host calls that wait: no length on the path
    missing: dict[WaitPart, str] = field(default_factory=dict)  # why it is not there
    why: str | None = "not asked for"  # why there is nothing at all
