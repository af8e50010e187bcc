"""The summary: ceilings, the worst cliff, what was left out, and where the file is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.said import Listener
from tracelens.cli.bench import summarize
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.measure.facts import DeviceFacts
from tracelens.measure.run import Result
from tracelens.measure.summary import ceilings, worst_cliff


def row(
    m: int, n: int, k: int, time_us: float, dtype: str = "bf16", layout: str = "TN", spread: float = 0.01
) -> GemmMeasurement:
    return GemmMeasurement("x", m, n, k, 1, dtype, dtype, layout, time_us, spread, ("nvjet",), (132, 1, 1))


ROWS = (
    row(8192, 8192, 8192, 1400.0),
    row(8192, 8192, 8192, 750.0, dtype="fp8"),
    row(2048, 2048, 2048, 30.0),
    row(2048, 2049, 2048, 90.0),
    row(2048, 2056, 2048, 31.0),
    row(2048, 2049, 2048, 500.0, layout="NT"),  # nothing near it in this layout
    row(64, 64, 64, 9.0),
    row(64, 128, 64, 3.0),  # within 64, but twice as large: another shape
)


def result(**changes: object) -> Result:
    measured = Measurements(
        gpu="h200", device={"name": "NVIDIA H200"}, software={}, clocks={}, date="", command="", method="",
        gemms=ROWS, bandwidth_gbps=4300.0, launch_floor_us=3.1, notes=("3 not measured: no kernel (x, ...)",),
    )  # fmt: skip
    facts = DeviceFacts(find_gpu("NVIDIA H200"), {}, {})
    fields: dict[str, object] = {
        "measurements": measured, "path": Path("/somewhere/h200.json.gz"), "facts": facts, "seconds": 290.0,
        "tried": 8, "resumed": 0, "left": 0, "stopped": None, "previous": None,
    }  # fmt: skip
    return Result(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_whole_summary(said: Listener) -> None:
    said(summarize(result()))


def test_an_unfinished_run_says_what_is_left(said: Listener) -> None:
    text = "\n".join(
        summarize(
            result(left=1204, resumed=200, stopped="interrupted", previous=Path("h200.previous.json.gz"))
        )
    )
    said(text)


def test_the_cliff_is_between_neighbours_that_do_the_same_work() -> None:
    cliff = worst_cliff(ROWS)
    assert cliff is not None
    assert (cliff.slow.n, cliff.fast.n) == (2049, 2056)
    assert cliff.factor == pytest.approx(90 / 31)
    assert worst_cliff(ROWS[:3]) is None
    # a larger neighbour that takes longer is no cliff, however odd
    assert worst_cliff([row(2048, 2048, 2048, 30.0), row(2048, 2049, 2048, 90.0)]) is None


def test_the_ceiling_of_each_dtype_in_a_fixed_order() -> None:
    assert [(one.dtype, one.m) for one in ceilings(reversed(ROWS))] == [("bf16", 8192), ("fp8", 8192)]


def test_unsteady_times_are_told(said: Listener) -> None:
    usual = result()
    shaky = tuple(replace(one, spread_frac=0.2) for one in ROWS)
    told = summarize(result(measurements=replace(usual.measurements, gemms=shaky)))
    said(told)


def test_a_cpu_is_no_gpu(said: Listener) -> None:
    usual = result().measurements
    told = summarize(
        result(measurements=replace(usual, gpu="cpu"), facts=DeviceFacts(find_gpu(None), {}, {}))
    )
    assert not any("datasheet" in line for line in told)
    said(told[0])


def test_a_run_with_nothing_left_says_how_to_measure_anew() -> None:
    told = summarize(result(tried=0, resumed=8))
    assert any("--fresh" in line for line in told)
    assert not any("--fresh" in line for line in summarize(result()))
