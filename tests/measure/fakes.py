"""Devices whose clock and times are written down beforehand: no test of the logic waits or measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tracelens.measure.cases import MeasureOptions
from tracelens.measure.timing import Call

#: Quick on the CPU: two batches of a few calls.
HASTY = MeasureOptions(
    seconds_per_case=0.0, min_seconds=0.0, batch_us=20, max_calls=3, min_batches=2, warmup_calls=1
)


@dataclass
class FakeDevice:
    """Each batch takes ``calls`` times the next of ``times_us`` (the last for ever); the clock follows."""

    times_us: list[float]
    kind: str = "cpu"
    l2_bytes: int = 1 << 16
    torch_device: Any = field(default_factory=lambda: torch.device("cpu"))
    now_s: float = 0.0
    batches: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)

    def time_batch(self, call: Call, calls: int) -> float:
        for index in range(calls):
            call(index)
        one_us = self.times_us[min(len(self.batches), len(self.times_us) - 1)]
        self.batches.append(calls)
        self.now_s += one_us * calls / 1e6
        return one_us * calls

    def synchronize(self) -> None:
        pass

    def clock(self) -> float:
        return self.now_s
