"""Whether a step waits for the CPU, and so what a saving of GPU work is worth: the one place that decides it.

Where the GPU is idle for a good part of the step, a shorter kernel can leave a longer gap and not a shorter
step. From the idle share alone nobody can tell which: a step that synchronizes once gains all of it, one
whose every launch is late gains nothing. So from ``WAITS_FROM`` of idle time on, a saving is one of GPU
work, and of the step it is something between nothing and that. Idle time that only the profiler makes does
not count, where the run timed steps without it.
"""

from __future__ import annotations

from tracelens.results.estimates import SavingOf, StepBound
from tracelens.results.step import Summary

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
