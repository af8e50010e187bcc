"""The figures that the verdict compares, each counted by hand, and where its rule turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_messages import message
from tests.advice.advice_rows import gemm
from tests.render import sample_report
from tracelens.accounting.limits import Limits, StepPicture, byte_times, limits
from tracelens.results import ComponentRow, Estimate, StepTime, UnprofiledSteps

REPORT = sample_report.full()


def component(name: str, time_ms: float, *, phase: str = "forward", kernels: float = 1.0) -> ComponentRow:
    return ComponentRow(name, phase, time_ms, int(time_ms * 1e6), 0.0, 1, None, None, time_ms, kernels)


def picture(*, busy: float = 0.75, exposed_ms: float = 0.0, marked: bool = True, **more: Any) -> StepPicture:
    """Steps of 20 ms, all alike; a quarter of them idle."""
    summary = replace(
        REPORT.summary, step_ms=StepTime(20.0, 20.0, 20.0, 3), gpu_busy_frac=busy, gpu_ms_per_step=15.0,
        idle_ms=20.0 * (1 - busy), exposed_communication_ms=exposed_ms, steps_marked=marked,
        unprofiled=UnprofiledSteps(),
    )  # fmt: skip
    given: dict[str, Any] = {
        "summary": summary, "model": REPORT.model, "coverage": replace(REPORT.coverage, component_frac=0.9),
        "gpu": REPORT.gpu,
    }  # fmt: skip
    return StepPicture(**(given | more))


def test_each_figure_is_of_the_median_step() -> None:
    """Means of 16 ms, a median of 20: shares of the one are times of the other."""
    seen = picture(exposed_ms=2.0)
    seen = replace(seen, summary=replace(seen.summary, idle_ms=4.0))  # a quarter of 16 ms
    found = limits(seen)
    assert (seen.mean_ms, seen.exposed_frac) == (16.0, 0.125)
    assert (found.step_ms, found.idle_ms, found.exposed_ms, found.gpu_ms) == (20.0, 5.0, 2.5, 15.0)
    assert (found.shapes_ms, found.bounded) == (0.0, False)
    assert limits(picture(marked=False)).idle_ms == 0.0  # between two steps or in one: nobody knows


def test_without_a_step_nothing_is_a_share_of_it() -> None:
    seen = picture(busy=1.0, exposed_ms=2.0)
    empty = replace(seen, summary=replace(seen.summary, step_ms=StepTime(0.0, 0.0, 0.0, 0)))
    assert (empty.mean_ms, empty.exposed_frac) == (0.0, 0.0)
    assert limits(empty).exposed_ms == 0.0


@pytest.mark.parametrize(
    ("stake", "shapes_ms", "bounded"),
    [
        (Estimate(1.0, 2.0, 3.0, "model"), 2.0, False),
        (Estimate(-1.0, 0.0, 3.0, "model"), 0.0, False),
        (Estimate(0.0, None, 3.0, "heuristic"), 3.0, True),
        (Estimate(None, None, None, "model"), 0.0, True),
        (None, 0.0, False),
    ],
)
def test_shapes_count_with_their_middle_or_else_their_bound(
    stake: Estimate | None, shapes_ms: float, bounded: bool
) -> None:
    found = limits(picture(at_stake=stake))
    assert (found.shapes_ms, found.bounded) == (shapes_ms, bounded)


def test_memory_is_kernels_that_move_bytes_and_products_that_wait_for_them() -> None:
    """Of two products of 1.5 ms the one that moves 2.6 GB at 3,350 GB/s waits for memory most of its time."""
    rows = [
        replace(gemm(1, 8, 8, 8, component="logits", time_us=1500.0), bound="memory", bytes=2.6e9),
        replace(gemm(6, 8, 8, 8, component="logits", time_us=1500.0), bound="memory", bytes=2.4e9),
        replace(gemm(2, 8, 8, 8, component="mlp.up", time_us=700.0), bound="latency"),
        replace(gemm(3, 8, 8, 8, component="mlp.up", time_us=5000.0), bound="compute"),
        replace(gemm(4, 8, 8, 8, component="loss", time_us=250.0), bound="compute"),
        replace(gemm(5, 8, 8, 8, component="loss", time_us=250.0), bound=None),
    ]
    parts = [
        component("norm", 1.0), component("norm", 2.0, phase="backward"), component("loss", 3.0),
        component("mlp.up", 6.0), component("communication", 4.0),
    ]  # fmt: skip
    seen = picture(gemms=rows, components=parts)
    assert dict(byte_times(seen)) == {"norm": 3.0, "loss": 2.5}
    found = limits(seen)
    assert (found.bytes_ms, found.slow_ms, found.memory_ms) == pytest.approx((5.5, 2.2, 7.7))
    only = picture(gemms=rows, components=[component("loss", 0.4)])  # rounding: never below nothing
    assert dict(byte_times(only)) == {"loss": 0.0}


@pytest.mark.parametrize(("frac", "bytes_ms", "slow_ms"), [(0.5, 3.0, 1.5), (0.49, 0.0, 0.0)])
def test_of_components_that_are_mostly_unknown_nothing_is_said(
    frac: float, bytes_ms: float, slow_ms: float
) -> None:
    rows = [replace(gemm(1, 8, 8, 8, time_us=1500.0), bound="memory", bytes=4e9)]
    coverage = replace(REPORT.coverage, component_frac=frac)
    found = limits(picture(gemms=rows, components=[component("norm", 3.0)], coverage=coverage))
    assert (found.bytes_ms, found.slow_ms) == (bytes_ms, slow_ms)


def test_of_a_model_that_was_not_found_nothing_is_said() -> None:
    unknown = replace(REPORT.model, found="none")
    assert limits(picture(components=[component("norm", 3.0)], model=unknown)).bytes_ms == 0.0


def test_waiting_is_small_messages_and_what_large_ones_take_beyond_their_fastest() -> None:
    """128 MiB among 8 ranks at 50 GB/s where the fastest call had 300: 1 - 1.15 / 6 of it is waiting."""
    h100 = picture().gpu.name
    assert h100 == "h100-sxm"
    size = float(2**27)
    large = message(
        bytes_per_call=size, group_size=8, calls=10, calls_per_step=10.0, time=47.0, exposed=40.0,
        bus_gbps=50.0, best_bus_gbps=300.0,
    )  # fmt: skip
    small = message(bytes_per_call=2.0**16 - 1, time=3.0, exposed=2.0)
    at = message(bytes_per_call=2.0**16, time=3.0, exposed=1.0)
    unsaid = message(bytes_per_call=None, time=3.0, exposed=0.5)
    seen = picture(exposed_ms=43.5, communication=[large, small, at, unsaid])
    waiting = 47.0 * (1 - 1.15 * 50.0 / 300.0)
    assert seen.small_ms == 2.0
    assert seen.slow_ms == pytest.approx(40.0 - (47.0 - waiting))
    assert seen.waiting_ms == pytest.approx(2.0 + 40.0 - (47.0 - waiting))
    hidden = replace(large, exposed_ms_per_step=1.0)  # what sending takes is more than shows
    assert picture(communication=[hidden]).slow_ms == 0.0


def test_a_quarter_of_waiting_sends_for_the_late_rank() -> None:
    small = message(bytes_per_call=1000.0, time=3.0, exposed=1.0)
    assert picture(exposed_ms=4.0, communication=[small]).waits_for_rank
    assert not picture(exposed_ms=4.1, communication=[small]).waits_for_rank
    assert not picture(exposed_ms=0.0, communication=[small]).waits_for_rank


def test_idle_time_is_dealt_out_to_the_kernels_that_the_cpu_launches() -> None:
    """5 ms of idle time: 25 kernels are 200 us each, 40 are 125."""
    parts = [component("norm", 1.0, kernels=20.0), component("mlp.up", 1.0, kernels=5.0)]
    sent = component("communication", 1.0, kernels=1000.0)
    seen = picture(components=[*parts, sent])
    assert seen.gap_us == pytest.approx(200.0, rel=1e-9) and seen.launches_wait
    more = picture(components=[*parts, component("norm", 1.0, kernels=15.0)])
    assert more.gap_us == pytest.approx(125.0, rel=1e-9) and not more.launches_wait
    assert picture(components=[sent]).gap_us == 0.0


def test_overlap_hides_no_more_than_there_is_compute() -> None:
    """15 of 20 ms are busy, of which communication alone takes some."""
    assert picture(exposed_ms=5.0).hideable_ms == 5.0  # 10 ms of compute
    assert picture(exposed_ms=9.0).hideable_ms == 6.0
    assert picture(exposed_ms=16.0).hideable_ms == 0.0


EVEN = Limits(
    step_ms=100.0, idle_ms=0.0, exposed_ms=0.0, bytes_ms=0.0, slow_ms=0.0, gpu_ms=60.0, shapes_ms=0.0
)


@pytest.mark.parametrize(
    ("more", "first", "told"),
    [
        ({"idle_ms": 15.0, "exposed_ms": 15.0}, "idle", ("idle", "exposed")),
        ({"idle_ms": 15.0, "exposed_ms": 16.0}, "exposed", ("idle", "exposed")),
        ({"idle_ms": 14.0, "exposed_ms": 16.0}, "exposed", ("exposed",)),
        ({"idle_ms": 20.0, "bytes_ms": 31.0}, "memory", ("memory",)),
        ({"idle_ms": 31.0, "bytes_ms": 31.0}, "idle", ("idle",)),  # of equals the wait
        ({"idle_ms": 4.9}, "shapes", ("shapes",)),
        ({"exposed_ms": 2.1, "shapes_ms": 0.9}, "exposed", ("exposed",)),
        ({"exposed_ms": 2.0, "shapes_ms": 0.9}, "shapes", ("shapes",)),
        ({"exposed_ms": 2.1, "shapes_ms": 1.0}, "shapes", ("shapes",)),
        ({"idle_ms": 20.0, "exposed_ms": 20.0, "shapes_ms": 21.0}, "shapes", ("shapes",)),
        ({"bytes_ms": 35.0, "shapes_ms": 35.0}, "shapes", ("shapes",)),
        # a little exposed beside much idle time is no measured wait that goes before a bound
        ({"exposed_ms": 1.0, "idle_ms": 20.0, "shapes_ms": 30.0, "bounded": True}, "shapes", ("shapes",)),
        ({"exposed_ms": 15.0, "shapes_ms": 30.0, "bounded": True}, "exposed", ("exposed",)),
        ({"exposed_ms": 14.9, "shapes_ms": 30.0, "bounded": True}, "shapes", ("shapes",)),
        (
            {"exposed_ms": 16.0, "idle_ms": 20.0, "shapes_ms": 30.0, "bounded": True},
            "idle",
            ("idle", "exposed"),
        ),
    ],
)
def test_what_comes_first_and_what_is_told_beside_it(
    more: dict[str, Any], first: str, told: tuple[str, ...]
) -> None:
    found = replace(EVEN, **more)
    assert (found.first, found.told) == (first, told)
