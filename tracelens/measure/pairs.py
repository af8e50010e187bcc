"""Two shapes of a layer, or of a small training step, timed in turns."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from tracelens.measure.cases import CannotMeasure, MeasureOptions
from tracelens.measure.devices import guarded
from tracelens.measure.kernels import CallKernels, record_kernels
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.timing import Call, Device, time_calls

#: In each turn; a call is a whole forward and backward.
TURN = MeasureOptions(seconds_per_case=0.1, batch_us=1.0, min_batches=5, max_batches=8, warmup_calls=2)
TURNS = 4
_RUNNING = 5  # calls in a row where none can be queued
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Times of both sides, one of each turn; neighbours in time stand at the same index."""

    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...]
    queued: bool  # False: the step waits for the GPU in its middle, and the host's gaps are in the times
    kernels: tuple[CallKernels, CallKernels] = (CallKernels(), CallKernels())
    date: str = ""  # "": today

    @property
    def ms(self) -> tuple[float, float]:
        """Medians."""
        return statistics.median(self.before_ms), statistics.median(self.after_ms)

    @property
    def spread_frac(self) -> float:
        """(largest - smallest) / median of the side that varied more."""
        return max(spread_of(self.before_ms), spread_of(self.after_ms))


def measure_pair(
    before: _T,
    after: _T,
    build: Callable[[_T], Call],
    *,
    device: Device,
    options: MeasureOptions = TURN,
    turns: int = TURNS,
    record: bool = True,
) -> PairTimes:
    """Time ``before`` and ``after`` turn by turn, each first in every other turn: a clock that drifts does
    so for both.

    Both are built, also where they are equal: memory may lie differently. Raises ``CannotMeasure`` where
    there is too little memory or torch refuses.
    """
    try:
        return _in_turns((before, after), build, device=device, options=options, turns=turns, record=record)
    finally:
        _release(device)


def _in_turns(
    shapes: tuple[_T, _T],
    build: Callable[[_T], Call],
    *,
    device: Device,
    options: MeasureOptions,
    turns: int,
    record: bool,
) -> PairTimes:
    steps = [guarded(partial(build, shape), what=str(shape)) for shape in shapes]
    times: tuple[list[float], list[float]] = ([], [])
    queued = True
    for turn in range(turns):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            took_ms, whole = guarded(partial(_time, steps[side], device, options), what=str(shapes[side]))
            times[side].append(took_ms)
            queued = queued and whole
    none = CallKernels()
    kernels = (_kernels(steps[0], device), _kernels(steps[1], device)) if record else (none, none)
    return PairTimes(tuple(times[0]), tuple(times[1]), queued, kernels)


def measure_layers(before: LayerShape, after: LayerShape, *, device: Device, **how: Any) -> PairTimes:
    """Forward and backward of two layers, or of two logits layers."""
    from tracelens.measure.layers import layer_step

    return measure_pair(before, after, partial(layer_step, device=device.kind), device=device, **how)


def measure_steps(before: StepShape, after: StepShape, *, device: Device, **how: Any) -> PairTimes:
    """A whole training step of two small models."""
    from tracelens.measure.layers import training_step

    return measure_pair(before, after, partial(training_step, device=device.kind), device=device, **how)


def _time(step: Call, device: Device, options: MeasureOptions) -> tuple[float, bool]:
    """Milliseconds, and whether all of it could be queued before the GPU began."""
    try:
        return time_calls(step, device=device, options=options).time_us / 1e3, True
    except CannotMeasure:
        return running_ms(step), False


def running_ms(step: Call) -> float:
    """Of a step that waits for the GPU in its middle, so that it cannot be queued before the GPU begins:
    several in a row between two events, the gaps that the host leaves included."""
    for _ in range(2):
        step(0)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_RUNNING):
        step(0)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / _RUNNING


def _kernels(step: Call, device: Device) -> CallKernels:
    (launched,) = record_kernels([lambda: lambda: step(0)], device=device)
    return launched


def _release(device: Device) -> None:
    gc.collect()
    if device.kind == "cuda":
        torch.cuda.empty_cache()


def spread_of(times: Sequence[float]) -> float:
    """(largest - smallest) / median."""
    return (max(times) - min(times)) / statistics.median(times)
