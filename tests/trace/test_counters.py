"""Samples of the GPU's clock and power, as torch 2.14 writes them (profiler/_cupti/monitor_trace.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.accounting.test_overlap_rows import STEPS, plain_text
from tests.planted import gpu_events, lengthen, reported
from tests.said import Listener
from tests.trace.tools import document, kernel, read
from tracelens.results import Finding, Report

CLOCK, POWER = "SM Clock (MHz)", "Power (W)"


def sample(name: str, ts: Any, value: Any, *, pid: Any = "GPU 0 Counters") -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": {"": value}}


def test_samples_are_read_and_other_counters_left(tmp_path: Path) -> None:
    events = [
        sample(CLOCK, 1.5, 1980.0),
        sample(POWER, 2, 640.5, pid="GPU 3 Counters"),
        sample("Cycles (Current Kernel)", 3, 7),
        {"ph": "C", "name": "GPU 0 Bytes", "pid": 0, "ts": 4, "args": {"Total Reserved": 5}},
        kernel(ts=10, dur=5),
    ]
    trace = read(tmp_path, document(events))
    assert [trace.symbols[code] for code in trace.counters.name] == [CLOCK, POWER]
    assert trace.counters.device.tolist() == [0, 3] and trace.counters.ts_ns.tolist() == [1500, 2000]
    assert trace.counters.value.tolist() == [1980.0, 640.5] and len(trace.kernels) == 1


@pytest.mark.parametrize("value", [None, "fast", [1], {}, True, "1e999"])
@pytest.mark.parametrize("ts", [5, 5.123456, "5", None, "soon", 1824871066122271.123])
def test_a_sample_that_is_none_harms_nothing(tmp_path: Path, ts: Any, value: Any) -> None:
    trace = read(tmp_path, document([sample(CLOCK, ts, value, pid=7), kernel(ts=10, dur=5)]))
    assert len(trace.kernels) == 1 and not np.isfinite(trace.counters.value).any()
    assert all(device == -1 for device in trace.counters.device)


def sampled(slow_mhz: float, *, times: float) -> Report:
    """A generated run whose last three steps are ``times`` as long, with samples of a clock in all."""
    trace = json.loads(plain_text())
    gpu = gpu_events(trace)
    half = len(gpu) // 2
    slow = {id(one) for one in gpu[half:]}
    lengthen(trace, lambda one: times if id(one) in slow else 1.0, lambda _: False)
    begin, change, end = gpu[0]["ts"], gpu[half]["ts"], gpu[-1]["ts"] + gpu[-1]["dur"]
    for ts in np.linspace(begin, end, 60 * STEPS).tolist():
        trace["traceEvents"].append(sample(CLOCK, ts, 1980.0 if ts < change else slow_mhz))
        trace["traceEvents"].append(sample(CLOCK, ts, 345.0, pid="GPU 1 Counters"))  # that runs nothing
    return reported(trace)


def finding(report: Report) -> Finding:
    (found,) = (one for one in report.findings if one.rule == "TL121")
    return found


def test_a_sampled_clock_confirms_or_denies_what_the_pace_says(said: Listener) -> None:
    """1965 to 1580 MHz in deepseek-ai/DeepGEMM#120: the pace follows the clock, or something else."""
    held, shared = (finding(sampled(mhz, times=1980 / 1590)) for mhz in (1590.0, 1980.0))
    assert not any("process" in one for one in held.caveats)
    assert any("process" in one for one in shared.caveats)
    said(held.saw, shared.saw)


def test_without_samples_the_clock_is_not_known(said: Listener) -> None:
    report = sampled(float("nan"), times=1.0)
    assert report.clock is not None
    assert [one.sm_mhz for one in report.clock.steps] == [1980.0] * 3 + [None] * 3
    assert all(one.power_w is None for one in report.clock.steps)
    (check,) = (one for one in report.checks if one.rule == "TL121")
    assert check.state == "passed"
    said(check.why)
