"""Where the step waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results import words
from tracelens.results.described import says

#: What the next kernel waited for.
IdleWait = Literal["host_wait", "kernel_wait", "other"]
WaitPart = Literal["temporal", "idle", "queue", "path"]


@dataclass(frozen=True, slots=True)
class IdleCause:
    """Idle time of one stream by what the next kernel waited for; another stream can work meanwhile."""

    device: int
    stream: int
    cause: Annotated[IdleWait, says("host_wait: not launched yet; kernel_wait: queued, gap below 30 us")]
    ms_per_step: float
    frac: Annotated[float, says("of this stream's idle time")]


@dataclass(frozen=True, slots=True)
class QueueLength:
    """GPU events of one stream launched and not begun, seen at every launch and every beginning."""

    device: int
    stream: int
    launches: Annotated[int, says("in the analysed steps")]
    mean: float
    median: float
    highest: int


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time on the critical path of one step, by what bounds it."""

    bound_by: Annotated[str, says('in the words of HTA: "cpu_bound", "gpu_compute_bound"')]
    time_ms: float
    frac: Annotated[float, says("of the path")]


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the step waits, as holistic-trace-analysis finds it in this trace's own tables (``--waits``).

    From the first to the last GPU event of the analysed steps, per step: idle + compute + non_compute.
    """

    tool: Annotated[str | None, says("with its version")] = None
    idle_ms: Annotated[float | None, says("no GPU event runs")] = None
    compute_ms: Annotated[float | None, says("some computing kernel runs")] = None
    non_compute_ms: Annotated[float | None, says("only copies or communication run")] = None
    overlap_frac: Annotated[
        float | None, says("of communication time, some computing kernel runs beside it")
    ] = None
    idle: Annotated[list[IdleCause], says("longest first")] = field(default_factory=list)
    queue: list[QueueLength] = field(default_factory=list)
    queued_frac: Annotated[float | None, says("of the GPU events, those in ``queue``")] = None
    path: Annotated[list[PathPart], says("longest first; they add up to the path's length")] = field(
        default_factory=list
    )
    path_step: Annotated[int | None, says("the N of its ProfilerStep#N: the step of median length")] = None
    path_of_ms: Annotated[float | None, says("that step's length")] = None
    blocked_ms: Annotated[float | None, says("of that step, host calls that wait: no length on the path")] = (
        None
    )
    missing: Annotated[dict[WaitPart, str], says("why it is not there")] = field(default_factory=dict)
    why: Annotated[str | None, says("why there is nothing at all")] = words.NOT_ASKED

    @property
    def asked(self) -> bool:
        """Did anybody ask for what was waited for?"""
        return self.why != words.NOT_ASKED
