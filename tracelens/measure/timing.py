"""How often to repeat, and what the repeats say: logic that needs no GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tracelens.measure.cases import MeasureOptions

#: The i-th call of a rotation; calls with different i read and write different memory where it matters.
Call = Callable[[int], object]


class Device(Protocol):
    """Where calls run and what times them. Two exist: a CUDA device, and the CPU for tests."""

    @property
    def kind(self) -> str:
        """``cuda`` or ``cpu``; what a CPU measured is never a calibration of a GPU."""

    @property
    def torch_device(self) -> Any:
        """The ``torch.device`` that tensors are made on."""

    @property
    def l2_bytes(self) -> int:
        """The cache that rotation and flushing must exceed."""

    def time_batch(self, call: Call, calls: int) -> float:
        """Microseconds from the start of the first of ``calls`` calls to the end of the last, caches cold."""

    def synchronize(self) -> None:
        """Wait for everything queued."""

    def clock(self) -> float:
        """Seconds of a clock that never goes back."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one call, from batches of calls."""

    time_us: float  # median over the batches of the mean in a batch
    spread_frac: float | None  # (90th - 10th percentile) / median over the batches
    batches: int
    calls: int  # in each batch


def time_calls(call: Call, *, device: Device, options: MeasureOptions) -> Timing:
    """Time ``call`` until the median has settled or ``options.seconds_per_case`` are over.

    The first calls (kernel loading, heuristics, clocks) and the first batch are not counted.
    """
    for index in range(options.warmup_calls):
        call(index)
    device.synchronize()
    calls = batch_size(device.time_batch(call, 1), options=options)
    first_us = device.time_batch(call, calls)
    # A call of tens of milliseconds settles at once; seven of them would eat the sweep's budget.
    fewest = options.min_batches if first_us < options.seconds_per_case * 1e6 / 3 else 3
    begun = device.clock()
    samples: list[float] = []
    while True:
        samples.append(device.time_batch(call, calls) / calls)
        spent = device.clock() - begun
        if len(samples) >= options.max_batches or (
            len(samples) >= fewest
            and (
                spent >= options.seconds_per_case
                or (spent >= options.min_seconds and settled(samples, frac=options.settled_frac))
            )
        ):
            break
    return Timing(statistics.median(samples), spread_frac(samples), len(samples), calls)


def batch_size(one_us: float, *, options: MeasureOptions) -> int:
    """How many calls to time at once, from the time of one.

    >>> [batch_size(one, options=MeasureOptions()) for one in (30.0, 5000.0)]
    [10, 1]
    """
    return max(1, min(options.max_calls, math.ceil(options.batch_us / max(one_us, 1e-3))))


def spread_frac(samples: Sequence[float]) -> float | None:
    """(90th - 10th percentile) / median, or None of fewer than three samples.

    >>> round(spread_frac([10.0, 10.1, 10.2, 10.3, 10.4]), 4)
    0.0314
    """
    if len(samples) < 3:
        return None
    return (percentile(samples, 0.9) - percentile(samples, 0.1)) / statistics.median(samples)


def percentile(samples: Sequence[float], share: float) -> float:
    """Linear between the nearest ranks, as numpy's default.

    >>> percentile([1.0, 2.0, 3.0], 0.9)
    2.8
    """
    ordered = sorted(samples)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def settled(samples: Sequence[float], *, frac: float) -> bool:
    """Whether more samples would move the median by less than ``frac``.

    The standard error of a median is about 1.25 standard deviations over the root of their number, and
    the 10th and 90th percentiles of a normal distribution lie 2.56 standard deviations apart.
    """
    spread = spread_frac(samples)
    return spread is not None and 1.25 * spread / 2.56 / math.sqrt(len(samples)) < frac
