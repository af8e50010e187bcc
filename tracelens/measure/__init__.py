"""Measures GEMMs, attention and layers on the GPU at hand: what predictions are calibrated and verified with.

from tracelens.measure import GemmCase, measure_gemms, open_device
device = open_device()  # the current CUDA device
for measured in measure_gemms([GemmCase("mine", 8192, 4096, 4096)], device=device):
    print(measured.tflops, measured.kernels)

Imports torch; nothing of the analysis imports this room. ``docs/bench.md`` says how times are taken.
"""

from tracelens.measure.attention import measure_attention
from tracelens.measure.cases import AttentionCase, CannotMeasure, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.devices import open_device
from tracelens.measure.facts import (
    DeviceFacts,
    device_facts,
    measure_bandwidth,
    measure_call_gap,
    measure_launch_floor,
    read_clocks,
)
from tracelens.measure.gemms import measure_gemms
from tracelens.measure.timing import Device, Timing, time_calls

__all__ = [
    "AttentionCase", "CannotMeasure", "Device", "DeviceFacts", "GemmCase", "MeasureOptions", "CaseOutcome",
    "Timing", "device_facts", "measure_attention", "measure_bandwidth", "measure_call_gap", "measure_gemms",
    "measure_launch_floor", "open_device", "read_clocks", "time_calls",
]  # fmt: skip
