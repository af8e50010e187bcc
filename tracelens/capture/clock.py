"""The honest step time: steps without the profiler, between marks at their ends."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from tracelens.capture.system import on_gpu

#: Steps remembered: a long wait must not pile up events.
KEEP = 20


@dataclass
class StepTimer:
    """Marks the ends of steps: CUDA events on the current stream where CUDA is used, else the CPU's clock.

    An event is done when all work queued before it is: the time between two is the step's on the GPU,
    and marking waits for nothing.
    """

    _marks: deque[Any] = field(default_factory=lambda: deque(maxlen=KEEP + 1))
    kind: str = "perf_counter"

    @property
    def started(self) -> bool:
        return bool(self._marks)

    def mark(self) -> None:
        if on_gpu():
            if self.kind != "cuda_events":
                self._marks.clear()
                self.kind = "cuda_events"
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def read_ms(self) -> list[float]:
        """Milliseconds between neighbouring marks; waits for the last event."""
        if len(self._marks) < 2:
            return []
        marks = list(self._marks)
        pairs = pairwise(marks)
        if self.kind == "cuda_events":
            marks[-1].synchronize()
            return [round(first.elapsed_time(second), 4) for first, second in pairs]
        return [round((second - first) * 1e3, 4) for first, second in pairs]
