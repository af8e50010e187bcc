"""Steps on the GPU's clock, and covered time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kept import analyzed
from tests.said import Listener
from tests.trace.tools import event, kernel, launch
from tracelens.accounting.steps import step_times, unprofiled_steps
from tracelens.attribution import attribute
from tracelens.errors import UsageError
from tracelens.results import StepTime
from tracelens.results.step import LeftOut, Step
from tracelens.trace import link, read_trace
from tracelens.trace.metadata import unprofiled_times
from tracelens.trace.nesting import covered


def _times(tmp_path: Path, events: list[dict[str, Any]], wanted: tuple[int, int] | None = None) -> Any:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    links = link(trace)
    return step_times(trace, links, attribute(trace, links), wanted=wanted)


def _step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", ts=ts, dur=dur, args={})


def _kernel(
    correlation: int, launched: float | None, ts: float, dur: float, name: str = "k"
) -> list[dict[str, Any]]:
    launches = [] if launched is None else [launch(correlation, ts=launched)]
    return [*launches, kernel(name, ts=ts, dur=dur, correlation=correlation)]


def test_a_host_that_runs_ahead_does_not_shorten_the_steps(tmp_path: Path) -> None:
    # the host queues both steps within 20 us; the GPU works on each for 100 us
    times = _times(
        tmp_path, [_step(1, 0, 10), _step(2, 10, 10), *_kernel(1, 1, 5, 100), *_kernel(2, 11, 105, 100)]
    )
    assert ((times.end_ns - times.start_ns) / 1000).tolist() == [105, 100]


def test_a_synchronized_step_begins_with_its_host_range(tmp_path: Path) -> None:
    times = _times(
        tmp_path, [_step(1, 0, 100), _step(2, 100, 100), *_kernel(1, 10, 20, 50), *_kernel(2, 110, 120, 50)]
    )
    assert times.start_ns.tolist() == [0, 100_000]
    assert times.end_ns.tolist() == [100_000, 200_000]
    assert times.busy_ns.tolist() == [50_000, 50_000]


def test_what_is_told_of_each_step_and_of_all(tmp_path: Path) -> None:
    """Steps of 100, 200 and 100 µs, of which the GPU works 50 and 50; in the third it does nothing."""
    events = [_step(1, 0, 100), _step(2, 100, 200), _step(3, 300, 100),
              *_kernel(1, 10, 20, 50), *_kernel(2, 110, 120, 50)]  # fmt: skip
    times = _times(tmp_path, events)
    assert times.rows() == [Step(1, 0, 0.1, 0.5, None), Step(2, 100_000, 0.2, 0.25, None)]
    assert times.time() == StepTime(pytest.approx(0.15), 0.1, 0.2, 2)  # type: ignore[arg-type]
    assert times.left_out == [LeftOut(3, "no_gpu_work", 300_000, 0.1)] and not times.cut
    for wanted, index, left_out in (((1, 1), [1], []), ((2, 3), [2], [3]), ((1, 2), [1, 2], [])):
        some = _times(tmp_path, events, wanted=wanted)
        assert (some.index, [one.index for one in some.left_out]) == (index, left_out)


def test_without_marks_the_whole_file_is_one_step(tmp_path: Path) -> None:
    times = _times(tmp_path, [*_kernel(1, 1, 5, 100), *_kernel(2, 11, 105, 100)])
    assert (times.marked, times.index) == (False, [0])
    assert (times.start_ns.tolist(), times.end_ns.tolist()) == ([1_000], [205_000])


def test_work_queued_before_the_recording_delays_the_first_step(tmp_path: Path) -> None:
    times = _times(tmp_path, [_step(1, 10, 50), *_kernel(9, None, 0, 30), *_kernel(1, 11, 30, 40)])
    assert times.start_ns.tolist() == [30_000]
    assert times.end_ns.tolist() == [70_000]


def test_work_queued_before_the_recording_is_no_part_of_the_first_step(tmp_path: Path) -> None:
    """It still runs when the host has begun the step: kernels without a launch in the file, on any stream."""
    other = _kernel(9, None, 30, 60)
    other[0]["args"]["stream"] = 23
    times = _times(
        tmp_path,
        [
            _step(1, 0, 10), _step(2, 10, 10),
            *_kernel(8, None, 20, 30), *_kernel(7, None, 50, 50), *other,
            *_kernel(1, 1, 100, 100), *_kernel(2, 11, 200, 100),
        ],
    )  # fmt: skip
    assert ((times.end_ns - times.start_ns) / 1000).tolist() == [100, 100]
    assert (times.busy_ns / 1000).tolist() == [100, 100]


def test_the_first_step_waits_for_work_that_is_not_in_the_file(tmp_path: Path) -> None:
    """A copy on a stream blocks the CPU for 5 ms, and nothing that was recorded runs."""
    early, copy = _kernel(1, 11, 12, 1), event("gpu_memcpy", "Memcpy HtoD", ts=5020, dur=1, args={})
    early[1]["args"]["stream"] = 23
    copy["args"] = {"correlation": 2, "device": 0, "stream": 7}
    call = launch(2, ts=20) | {"name": "hipMemcpyWithStream", "dur": 5002}
    times = _times(tmp_path, [_step(1, 10, 5090), *early, call, copy, *_kernel(3, 5030, 5031, 69)])
    assert times.start_ns.tolist() == [5_020_000]
    assert times.busy_ns.tolist() == [70_000]


def test_a_kernel_without_a_launch_amid_the_steps_stays_in_one(tmp_path: Path) -> None:
    times = _times(
        tmp_path,
        [
            _step(1, 0, 10), _step(2, 10, 10),
            *_kernel(1, 1, 20, 100), *_kernel(8, None, 120, 30), *_kernel(2, 11, 150, 100),
        ],
    )  # fmt: skip
    assert (times.start_ns[0], times.end_ns[-1], times.busy_ns.sum()) == (0, 250_000, 230_000)


def test_the_first_steps_of_real_traces_are_as_long_as_the_others() -> None:
    traces = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
    found = [path for name in ("d1_*", "d1b_*", "d2_*") for path in traces.glob(name)]
    if len(found) < 3:
        pytest.skip("no such traces beside this checkout")
    for path in found:
        report = analyzed(path).report
        first, *others = (step.duration_ms for step in report.steps)
        assert first == pytest.approx(median(others), rel=0.05), path.name
        exposed = sum(row.exposed_ms_per_step for row in report.communication)
        assert report.summary.exposed_communication_ms == pytest.approx(exposed, rel=0.01, abs=1e-6)
        mean = fmean(step.duration_ms for step in report.steps)
        busy_ms = mean * report.summary.gpu_busy_frac
        assert busy_ms <= report.summary.gpu_ms_per_step * 1.001


def test_a_step_before_missing_numbers_ends_with_its_own_work(tmp_path: Path) -> None:
    """What runs in between is of no step, and delays the next one where it runs into that."""
    between = [*_kernel(2, 120, 130, 40), *_kernel(3, 480, 490, 30)]
    times = _times(
        tmp_path,
        [
            _step(3, 0, 100), _step(7, 500, 100), _step(8, 600, 100), *between,
            *_kernel(1, 10, 20, 90), *_kernel(4, 510, 520, 50), *_kernel(5, 610, 620, 50),
        ],
    )  # fmt: skip
    assert (times.start_ns / 1000).tolist() == [0, 520, 600]
    assert (times.end_ns / 1000).tolist() == [110, 600, 700]


def test_what_is_launched_behind_the_last_step_does_not_prolong_it(tmp_path: Path) -> None:
    """The beginning of a step whose end was not recorded."""
    times = _times(tmp_path, [_step(1, 0, 100), *_kernel(1, 10, 20, 90), *_kernel(2, 150, 160, 50)])
    assert (times.end_ns / 1000).tolist() == [110]


def test_without_step_ranges_the_whole_trace_is_one_step_and_says_so(tmp_path: Path) -> None:
    stop = launch(2, ts=30, dur=40, name="cudaDeviceSynchronize")  # the profiler's own
    times = _times(tmp_path, [*_kernel(1, 0, 5, 10), stop])
    assert times.count == 1
    assert not times.marked
    assert (times.end_ns - times.start_ns).tolist() == [15_000]


def test_only_communication_that_hides_behind_nothing_is_exposed(tmp_path: Path) -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    times = _times(tmp_path, [_step(1, 0, 100), *_kernel(1, 1, 10, 30), *_kernel(2, 2, 30, 40, name=reduce)])
    assert times.exposed_ns.tolist() == [30_000]


def test_steps_that_do_not_exist_are_refused(tmp_path: Path, said: Listener) -> None:
    events = [_step(3, 0, 10), *_kernel(1, 1, 2, 3)]
    assert _times(tmp_path, events, wanted=(3, 9)).index == [3]
    with pytest.raises(UsageError) as error:
        _times(tmp_path, events, wanted=(4, 9))
    said(error.value)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12),
    st.integers(0, 50),
    st.integers(0, 50),
)
def test_covered_time_is_the_union(spans: list[tuple[int, int]], a: int, b: int) -> None:
    start, end = min(a, b), max(a, b)
    points = {t for begin, length in spans for t in range(begin, begin + length)}
    expected = sum(start <= t < end for t in points)
    begins = np.array([begin for begin, _ in spans], np.int64)
    ends = np.array([begin + length for begin, length in spans], np.int64)
    assert covered(begins, ends, np.array([start]), np.array([end])).tolist() == [expected]


def _unprofiled(tmp_path: Path, *, marked: bool = True, mfu_frac: float | None = None, **ours: Any) -> Any:
    """Two profiled steps of 20 ms and 30 ms, and the metadata of a capture."""
    steps = [_step(1, 0, 20_000), _step(2, 20_000, 30_000)] if marked else []
    times = _times(tmp_path, [*steps, *_kernel(1, 5, 10, 10_000), *_kernel(2, 20_005, 20_010, 10_000)])
    metadata = {"tracelens": ours} if ours else {}
    return unprofiled_steps(unprofiled_times(metadata), times, mfu_frac=mfu_frac)


def test_steps_timed_without_the_profiler_stand_beside_the_profiled_ones(tmp_path: Path) -> None:
    time = {"clock": "cuda_events", "before_ms": [10, 12.0, 11], "after_ms": [16.0, 14.0]}
    found = _unprofiled(tmp_path, time=time, mfu_frac=0.2)
    assert (found.before_ms, found.after_ms) == (StepTime(11, 10, 12, 3), StepTime(15, 14, 16, 2))
    assert (found.median_ms, found.clock, found.why) == (12, "cuda_events", None)
    assert found.profiler_frac == pytest.approx(1 - 12 / 25)
    assert found.drift_frac == pytest.approx(15 / 11 - 1)
    assert found.mfu_frac == pytest.approx(0.2 * 25 / 12)


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        ({}, "the trace holds none"),
        ({"window": {}}, "no readable step times"),
        ({"time": {"before_ms": [1.0, "2"], "after_ms": []}}, "no readable step times"),
        ({"time": {"before_ms": [-1.0], "after_ms": []}}, "no readable step times"),
        ({"time": {"before_ms": [], "after_ms": []}}, "none before the window.*none after.*train on"),
        ({"time": {"before_ms": [], "after_ms": []}, "window": {"ended": "Ctrl-C"}}, "cut short"),
    ],
)
def test_without_such_steps_the_reason_is_said(tmp_path: Path, ours: dict[str, Any], why: str) -> None:
    found = _unprofiled(tmp_path, **ours)
    assert (found.before_ms, found.after_ms, found.median_ms, found.profiler_frac) == (None, None, None, None)
    assert re.search(why, found.why)


def test_one_side_alone_is_used_and_the_other_is_said_to_be_missing(tmp_path: Path, said: Listener) -> None:
    found = _unprofiled(tmp_path, time={"before_ms": [], "after_ms": [20.0]})
    assert (found.before_ms, found.median_ms, found.drift_frac) == (None, 20, None)
    said(found.why)


def test_a_trace_without_step_ranges_has_no_step_to_compare(tmp_path: Path, said: Listener) -> None:
    found = _unprofiled(tmp_path, marked=False, time={"before_ms": [10.0], "after_ms": [10.0]}, mfu_frac=0.2)
    assert (found.median_ms, found.profiler_frac, found.mfu_frac) == (10, None, None)
    said(found.why)
