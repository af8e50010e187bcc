"""Kernels go to the call that launched them, by correlation and the host's time."""

from __future__ import annotations

from typing import Any

from tracelens.measure.kernels import CallKernels, match_kernels

Event = dict[str, Any]


def mark(index: int, ts: float, dur: float, cat: str = "user_annotation") -> Event:
    return {"ph": "X", "cat": cat, "name": f"tracelens_bench#{index}", "ts": ts, "dur": dur, "tid": 1}


def launch(correlation: int, ts: float, *, cat: str = "cuda_runtime", tid: int = 1) -> Event:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": "cudaLaunchKernel", "ts": ts, "dur": 3.0, "tid": tid, "args": args}


def kernel(correlation: int, name: str, ts: float, dur: float, grid: list[int] | None = None) -> Event:
    args = {"correlation": correlation, **({"grid": grid} if grid is not None else {})}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "tid": 7, "args": args}


def test_each_kernel_goes_to_its_call_in_launch_order() -> None:
    events = [
        kernel(12, "splitKreduce", 9050.0, 2.0, [8, 1, 1]),  # the file's order is not the launches'
        mark(1, 200.0, 50.0),
        mark(0, 100.0, 50.0),
        launch(10, 110.0, cat="cuda_driver"),
        launch(11, 210.0),
        launch(12, 220.0),
        kernel(10, "nvjet", 9000.0, 5.0, [132, 1, 1]),
        kernel(11, "gemm", 9040.0, 9.0, [4, 5, 6]),
    ]
    assert match_kernels(events, calls=2) == [
        CallKernels(("nvjet",), (132, 1, 1), 5.0),
        CallKernels(("gemm", "splitKreduce"), (4, 5, 6), 11.0),  # the grid of the longest
    ]


def test_launches_of_another_thread_count_by_time() -> None:
    events = [mark(0, 100.0, 50.0), launch(1, 120.0, tid=99), kernel(1, "flash_bwd", 500.0, 9.0, [1, 2, 3])]
    assert match_kernels(events, calls=1)[0].names == ("flash_bwd",)


def test_what_no_range_launched_belongs_to_no_call() -> None:
    events: list[Event] = [
        mark(0, 100.0, 50.0),
        mark(0, 900.0, 50.0, cat="gpu_user_annotation"),  # Kineto's copy on the GPU's timeline
        launch(1, 99.0),  # before: warm-up
        launch(2, 151.0),  # after
        launch(3, 910.0),
        kernel(1, "before", 905.0, 9.0),
        kernel(2, "after", 906.0, 9.0),
        kernel(3, "in the copy", 911.0, 9.0),
        kernel(4, "without a launch", 120.0, 9.0),
        {"ph": "X", "cat": "kernel", "name": "without args", "ts": 1.0, "dur": 1.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 120.0, "dur": 5.0, "args": {}},
        {"ph": "M", "name": "process_name"},
    ]
    assert match_kernels(events, calls=2) == [CallKernels(), CallKernels()]


def test_a_call_without_kernels_keeps_its_place() -> None:
    events = [mark(0, 0.0, 9.0), mark(2, 20.0, 9.0), launch(5, 21.0), kernel(5, "third", 30.0, 1.0)]
    assert [one.names for one in match_kernels(events, calls=3)] == [(), (), ("third",)]
    assert match_kernels(events, calls=3)[2].grid is None
