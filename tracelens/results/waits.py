"""Where the step waits, and what a saving of GPU work is worth then: the one place that decides it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results import words
from tracelens.results.described import says
from tracelens.results.estimates import SavingOf, StepBound
from tracelens.results.step import Summary

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


# Whether a step waits for the CPU, and so what a saving of GPU work is worth: the one place that decides it.
# Where the GPU is idle for a good part of the step, a shorter kernel can leave a longer gap and not a shorter
# step. From the idle share alone nobody can tell which: a step that synchronizes once gains all of it, one
# whose every launch is late gains nothing. So from ``WAITS_FROM`` of idle time on, a saving is one of GPU
# work, and of the step it is something between nothing and that. Idle time that only the profiler makes does
# not count, where the run timed steps without it.

#: Idle for more than this share of the step, the GPU waits. Steps that queue their launches ahead idle for
#: less, in gaps between kernels and at the end (public H100 training traces: 2 to 7 %).
WAITS_FROM = 0.10


def idle_ms(summary: Summary) -> float:
    """Time of the median step without a GPU event, less what the profiler adds where that is known."""
    step_ms, busy = summary.step_ms.median, summary.gpu_busy_frac
    idle = (1 - busy) * step_ms
    unprofiled_ms = summary.unprofiled.median_ms
    return idle if unprofiled_ms is None else max(0.0, min(idle, unprofiled_ms - busy * step_ms))


def mean_ms(summary: Summary) -> float:
    """Mean length of a step, which idle and exposed time are of; the median where the GPU is never idle."""
    busy = summary.gpu_busy_frac
    return summary.idle_ms / (1 - busy) if busy < 1 else summary.step_ms.median


def busy_frac(summary: Summary) -> float:
    """Share of the step in which a GPU event runs, by the same rule: of the step without the profiler."""
    step_ms = summary.unprofiled.median_ms or summary.step_ms.median
    return 1 - idle_ms(summary) / step_ms if step_ms else summary.gpu_busy_frac


def waits(busy: float | None) -> bool:
    """Is the GPU idle for so much of the step that a shorter kernel need not make it shorter?"""
    return busy is not None and busy < 1 - WAITS_FROM


def step_bound(summary: Summary) -> StepBound:
    """What a step waits for; a trace without marked steps says it only where the GPU hardly idles."""
    if not waits(busy_frac(summary)):
        return "gpu"
    return "cpu" if summary.steps_marked else "unknown"


def saving_of(busy: float | None) -> SavingOf:
    """What a saving of GPU time is one of."""
    return "gpu_work" if waits(busy) else "step"
