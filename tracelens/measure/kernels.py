"""Which kernels a call launched: one profiler run over many calls, each kernel given to its call."""

from __future__ import annotations

import json
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tracelens.measure.cases import CannotMeasure
from tracelens.measure.devices import context_lost
from tracelens.measure.timing import Device

_MARK = "tracelens_bench#"
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True)
class CallKernels:
    """The kernels of one call, in launch order."""

    names: tuple[str, ...] = ()
    grid: tuple[int, int, int] | None = None  # of the longest
    time_us: float | None = None  # of all, as the profiler times them


def record_kernels(
    prepare: Sequence[Callable[[], Callable[[], object]]], *, device: Device
) -> list[CallKernels]:
    """Run one call of each under a single profiler and say which kernels it launched; on the CPU, none.

    Each entry lays out its operands and returns the call, of which only the second run counts: the first
    one loads kernels and allocates. A profiler that fails gives no names: the times stand without them.
    """
    if device.kind != "cuda" or not prepare:
        return [CallKernels()] * len(prepare)
    try:
        events = _profiled(prepare, device)
    except (RuntimeError, ValueError) as error:
        if context_lost(error):
            raise
        events = []
    return match_kernels(events, calls=len(prepare))


def _profiled(prepare: Sequence[Callable[[], Callable[[], object]]], device: Device) -> list[dict[str, Any]]:
    """The events of a Chrome trace in which each call has a range of its own."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recording:
        for index, ready in enumerate(prepare):
            with suppress(CannotMeasure, torch.OutOfMemoryError):  # its time stands, without names
                call = ready()
                call()
                device.synchronize()
                with record_function(f"{_MARK}{index}"):
                    call()
                device.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.json"
        recording.export_chrome_trace(str(path))
        text = path.read_text(encoding="utf-8", errors="replace")
    events: list[dict[str, Any]] = json.loads(text, strict=False)["traceEvents"]
    return events


def match_kernels(events: Sequence[Mapping[str, Any]], *, calls: int) -> list[CallKernels]:
    """Give each kernel of a Chrome trace to the marked range in which the host launched it.

    Kernels and launches share a correlation id; a launch belongs to the range whose time it falls in, on
    whatever thread (autograd launches from its own). A kernel without a launch belongs to no call.
    """
    ranges = sorted(_ranges(events))
    starts = [start for start, _, _ in ranges]
    launches = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    found: list[list[tuple[float, Mapping[str, Any]]]] = [[] for _ in range(calls)]
    for event in events:
        if event.get("cat") != "kernel":
            continue
        launched = launches.get(event.get("args", {}).get("correlation"))
        index = _index_at(ranges, starts, launched) if launched is not None else None
        if launched is not None and index is not None and index < calls:
            found[index].append((launched, event))
    return [_launched(sorted(one, key=lambda pair: pair[0])) for one in found]


def _ranges(events: Sequence[Mapping[str, Any]]) -> list[tuple[float, float, int]]:
    ranges = []
    for event in events:
        # Kineto repeats the range on the GPU's timeline as gpu_user_annotation.
        match = re.fullmatch(rf"{_MARK}(\d+)", str(event.get("name")))
        if match and event.get("ph") == "X" and event.get("cat") == "user_annotation":
            ranges.append((float(event["ts"]), float(event["ts"]) + float(event["dur"]), int(match[1])))
    return ranges


def _index_at(ranges: list[tuple[float, float, int]], starts: list[float], time: float) -> int | None:
    at = bisect_right(starts, time) - 1
    return ranges[at][2] if at >= 0 and time <= ranges[at][1] else None


def _launched(pairs: list[tuple[float, Mapping[str, Any]]]) -> CallKernels:
    events = [event for _, event in pairs]
    if not events:
        return CallKernels()
    longest = max(events, key=lambda event: float(event.get("dur", 0)))
    grid = longest.get("args", {}).get("grid")
    return CallKernels(
        names=tuple(str(event["name"]) for event in events),
        grid=(int(grid[0]), int(grid[1]), int(grid[2]))
        if isinstance(grid, list) and len(grid) == 3
        else None,
        time_us=sum(float(event.get("dur", 0)) for event in events),
    )
