"""The alignment ladder: published steps by architecture, measured ones where there are any."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.said import Listener
from tracelens.errors import InputError
from tracelens.gemm.ladder import alignment_ladder, operand_alignment
from tracelens.hardware import Gpu, find_gpu, list_gpus
from tracelens.hardware.measurements import GemmMeasurement, Measurements

A100 = find_gpu(None, override="a100-sxm-40gb")
H100 = find_gpu(None, override="h100-sxm")
SWEEPS = Path(__file__).parents[3] / "shared" / "paper_data" / "a100_gemm_sweeps.csv"


def measurements(*gemms: GemmMeasurement, gpu: str = "a100-sxm-40gb") -> Measurements:
    return Measurements(gpu, {}, {}, {}, "2026-11-21", "made up", "made up", gemms)


def gemm(n: int, time_us: float, dtype: str = "fp16", layout: str = "NN") -> GemmMeasurement:
    return GemmMeasurement("n", 4096, n, 4096, 1, dtype, dtype, layout, time_us, None, ())


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "tf32", "fp32"])
def test_every_ladder_falls_with_the_alignment_and_orders_its_ranges(gpu: Gpu, dtype: str) -> None:
    steps = alignment_ladder(gpu=gpu, dtype=dtype).steps
    assert steps[0].mid == 1.0
    for step in steps:
        assert step.source
        known = [value for value in (step.low, step.mid, step.high) if value is not None]
        assert known == sorted(known)
        assert all(0 < value <= 1 for value in known)
    mids = [step.mid for step in steps if step.mid is not None]
    assert mids == sorted(mids, reverse=True)


def test_an_architecture_without_a_source_is_unknown_below_the_best_step() -> None:
    ladder = alignment_ladder(gpu=find_gpu("NVIDIA Z9000"), dtype="bf16")
    assert ladder.step(128).mid == 1.0
    assert ladder.step(64).mid is None and "nothing published" in ladder.step(64).source


def test_any_multiple_of_128_bytes_is_as_good_as_128() -> None:
    ladder = alignment_ladder(gpu=A100, dtype="bf16")
    assert ladder.step(4096).mid == 1.0
    assert ladder.step(24).mid == ladder.step(8).mid


def test_wrong_input_is_one_clear_error(said: Listener) -> None:
    with pytest.raises(InputError) as error:
        alignment_ladder(gpu=A100, dtype="bf16").step(0)
    said(error.value)
    with pytest.raises(InputError) as error:
        alignment_ladder(gpu=A100, dtype="bf17")
    said(error.value)


def test_the_operand_that_a_dimension_misaligns_depends_on_the_layout() -> None:
    sizes = {"dtype": "bf16", "out_dtype": "bf16"}
    assert operand_alignment(512, 50257, 768, layout="TN", **sizes) == {"a": 128, "b": 128, "c": 2}
    assert operand_alignment(512, 50257, 768, layout="NN", **sizes) == {"a": 128, "b": 2, "c": 2}
    assert operand_alignment(50257, 768, 512, layout="NT", **sizes) == {"a": 2, "b": 128, "c": 128}


def test_measured_pairs_replace_the_published_step_and_leave_the_others() -> None:
    taken = measurements(gemm(1024, 70), *(gemm(n, 100) for n in (1022, 1018, 1014)), gemm(1016, 71))
    ladder = alignment_ladder(gpu=A100, dtype="fp16", measured=taken)
    assert ladder.step(4).mid == pytest.approx(0.7)
    assert ladder.step(4).basis == "calibrated" and "3 pairs" in ladder.step(4).source
    assert ladder.step(16).basis == "model"  # one pair is no median


def test_measurements_of_another_gpu_or_type_say_nothing() -> None:
    taken = measurements(gemm(1024, 70), *(gemm(n, 100) for n in (1022, 1018, 1014)))
    assert alignment_ladder(gpu=H100, dtype="fp16", measured=taken).step(4).basis != "calibrated"
    assert alignment_ladder(gpu=A100, dtype="bf16", measured=taken).step(4).basis != "calibrated"


def test_a_partner_two_percent_larger_is_scaled_by_the_work() -> None:
    taken = measurements(gemm(51200, 1000), *(gemm(n, 2000) for n in (51010, 51018, 51026)))
    step = alignment_ladder(gpu=A100, dtype="fp16", measured=taken).step(4)
    assert step.mid == pytest.approx(0.5 * 51018 / 51200)


@pytest.mark.skipif(not SWEEPS.is_file(), reason="the paper's raw sweeps are not beside the checkout")
def test_the_papers_staircase_confirms_the_published_steps() -> None:
    with SWEEPS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["sweep"] == "mm/ksweep_low"]
    taken = []
    for row in rows:
        m, k, n = int(row["m"]), int(row["reduction"]), int(row["n_out"])
        if n > 192:
            time_us = 2.0 * m * n * k / float(row["tflops"]) / 1e6
            taken.append(GemmMeasurement("n", m, n, k, 1, "fp16", "fp16", "NN", time_us, None, ()))
    own = alignment_ladder(gpu=A100, dtype="fp16", measured=measurements(*taken))
    shipped = alignment_ladder(gpu=A100, dtype="fp16")
    for size in (64, 32, 16, 8, 4):
        assert own.step(size).basis == "calibrated"
        assert own.step(size).mid == pytest.approx(shipped.step(size).mid, rel=0.02)
