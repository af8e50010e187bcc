"""The GPU's clock and power in each step, of traces that have samples of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tracelens.accounting.steps import StepTimes
from tracelens.trace import Trace

#: Counter -> the field of ``StepPace``; its unit is the same.
_FIELDS = {"SM Clock (MHz)": "sm_mhz", "Power (W)": "power_w"}


def sampled(trace: Trace, times: StepTimes) -> dict[int, Mapping[str, float]]:
    """Position of a step -> field of ``StepPace`` -> median of the working device's samples within it.

    A field without a sample is left out.
    """
    found: dict[int, Mapping[str, float]] = {}
    counters = trace.counters
    if not len(counters) or not len(trace.kernels):
        return found
    devices, many = np.unique(trace.kernels.device, return_counts=True)
    mine = (counters.device == devices[many.argmax()]) & np.isfinite(counters.value) & (counters.value > 0)
    at_code = {code: field for code in np.unique(counters.name).tolist()
               if (field := _FIELDS.get(trace.symbols[code]))}  # fmt: skip
    for position, start, end in zip(
        times.positions, times.start_ns.tolist(), times.end_ns.tolist(), strict=True
    ):
        inside = mine & (counters.ts_ns >= start) & (counters.ts_ns < end)
        values = {field: counters.value[inside & (counters.name == code)] for code, field in at_code.items()}
        found[position] = {field: float(np.median(of)) for field, of in values.items() if len(of)}
    return found
