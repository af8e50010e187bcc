"""Calibration by measurements of known truth: rates recovered, ranges that hold, nothing lent wrongly."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median

import pytest

from tracelens.gemm.ladder import operand_alignment
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.architecture import architecture
from tracelens.gemm.predict.calibration import fitted
from tracelens.gemm.predict.cost import Products, TileTable, best, costs
from tracelens.gemm.predict.derivation import evaluate
from tracelens.gemm.predict.rates import Rates, model_rates
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements

H200 = find_gpu(None, override="h200")
LADDER = {128: 1.0, 64: 0.99, 32: 0.98, 16: 0.9, 8: 0.45, 4: 0.45, 2: 0.2}


def true_rates() -> Rates:
    rates = model_rates(H200, "bf16")
    assert isinstance(rates, Rates)
    return replace(rates, multiply_tflops=700.0, bandwidth_gbps=4100.0, fixed_us=3.6, partial_wave_frac=0.7)


def truth(count: int, *, noise: float = 0.01, named: bool = False, seed: int = 3) -> list[GemmMeasurement]:
    """Times of a GPU that follows the formula exactly, with other rates than the table's and noise."""
    tiles = architecture(H200.compute_capability).named("bf16")
    table, draw = TileTable.of(tiles, sms=132), random.Random(seed)
    rows: list[GemmMeasurement] = []
    while len(rows) < count:
        layout, step = draw.choice(["TN", "NN", "NT"]), draw.choice([64, 64, 64, 8])
        m, n, k = (max(step, int(2 ** draw.uniform(7, 14)) // step * step) for _ in range(3))
        found = operand_alignment(m, n, k, dtype="bf16", out_dtype="bf16", layout=layout)
        frac = LADDER[min(value for value in found.values() if value is not None)]
        times, at, _ = best(costs(Products.of([(m, n, k, 1, frac, 2, 2)]), table, true_rates()))
        tile = tiles[int(at[0])]
        name = f"nvjet_tst_{tile.n}x{tile.m}_{tile.k}x4_{tile.cluster}_v_bz_splitK_{layout}N"
        time_us = float(times[0]) * math.exp(draw.gauss(0, noise))
        kernels = (name,) if named else ()
        rows.append(GemmMeasurement("x", m, n, k, 1, "bf16", "bf16", layout, time_us, 0.01, kernels))
    return rows


def measurements(rows: list[GemmMeasurement], gpu: str = "h200", sms: int | None = 132) -> Measurements:
    return Measurements(gpu, {"sms": sms}, {}, {}, "2026-11-21", "made up", "made up", tuple(rows))


@pytest.mark.parametrize("named", [False, True])
def test_held_out_products_are_predicted_within_5_percent_and_their_range_holds(named: bool) -> None:
    rows = truth(900, named=named)
    measured = measurements(rows[::2])
    errors, inside = [], 0
    for one in rows[1::2]:
        found = predict_gemm(one.m, one.n, one.k, gpu=H200, layout=one.layout, measured=measured).time_us
        assert found.basis == "calibrated"
        assert found.low is not None and found.mid is not None and found.high is not None
        errors.append(abs(found.mid / one.time_us - 1))
        inside += found.low <= one.time_us <= found.high
    assert median(errors) <= 0.05
    assert 0.83 <= inside / len(errors) <= 0.97


def test_the_rates_of_the_gpu_are_recovered() -> None:
    measured = replace(measurements(truth(600)), bandwidth_gbps=4200.0)  # a copy, not quite a product
    fit = fitted(measured, gpu=H200, math_dtype="bf16")
    assert fit is not None
    assert fit.rates.multiply_tflops == pytest.approx(700, rel=0.03)
    assert fit.rates.bandwidth_gbps == pytest.approx(4100, rel=0.15)
    assert fit.rates.fixed_us == pytest.approx(3.6, rel=0.15)


def test_the_same_measurements_give_the_same_prediction() -> None:
    rows = truth(200)
    turned = rows[::-1]
    one = predict_gemm(4096, 1024, 2048, gpu=H200, measured=measurements(rows))
    other = predict_gemm(4096, 1024, 2048, gpu=H200, measured=measurements(turned))
    assert one.time_us == other.time_us and one.terms == other.terms


def test_measurements_are_fitted_once() -> None:
    measured = measurements(truth(3000, named=True))
    fit = fitted(measured, gpu=H200, math_dtype="bf16")
    assert fitted(measured, gpu=H200, math_dtype="bf16") is fit


def test_the_correction_is_part_of_the_derivation() -> None:
    found = predict_gemm(4096, 1000, 2048, gpu=H200, measured=measurements(truth(200)))
    assert found.terms[-1][0] == "corrected time" and "measured" in found.terms[-1][4]
    for _, formula, value, *_ in found.terms:
        assert evaluate(formula) == pytest.approx(value, rel=1e-6)
    assert found.terms[-1][2] == pytest.approx(found.time_us.mid, rel=1e-6)


def test_a_gpu_slower_than_its_neighbours_say_is_followed() -> None:
    """Where every product of one layout takes 1.3 times as long, new shapes of that layout do, others not."""
    rows = [
        replace(one, time_us=one.time_us * 1.3) if one.layout == "NT" else one for one in truth(900, noise=0)
    ]
    measured = measurements(rows)
    times = {
        layout: predict_gemm(4096, 4096, 4096, gpu=H200, layout=layout, measured=measured).time_us.mid
        for layout in ("TN", "NT")
    }
    assert times["NT"] is not None and times["TN"] is not None
    assert times["NT"] / times["TN"] == pytest.approx(1.3, rel=0.06)


def test_far_from_every_measurement_the_range_is_wider() -> None:
    measured = measurements(truth(300))
    near = predict_gemm(4096, 4096, 4096, gpu=H200, measured=measured).time_us
    far = predict_gemm(2**20, 2**17, 2**17, gpu=H200, measured=measured).time_us
    assert near.low and near.high and far.low and far.high
    assert far.high / far.low > near.high / near.low


def test_measurements_of_another_gpu_or_slice_or_type_calibrate_nothing() -> None:
    rows = truth(100)
    for measured in (
        measurements(rows, gpu="h100-sxm"),
        measurements(rows, sms=66),
        measurements(rows[:10]),
        measurements([replace(one, dtype="fp8") for one in rows]),
        measurements([]),
    ):
        assert predict_gemm(512, 512, 512, gpu=H200, measured=measured).time_us.basis == "model"


def test_bf16_and_fp16_stand_in_for_each_other() -> None:
    measured = measurements(truth(100))
    assert (
        predict_gemm(512, 512, 512, gpu=H200, dtype="fp16", measured=measured).time_us.basis == "calibrated"
    )


def test_a_gpu_without_a_row_in_the_table_is_predicted_from_measurements_alone() -> None:
    unknown = find_gpu("NVIDIA Z9000")
    measured = replace(measurements(truth(400), gpu="unknown"), bandwidth_gbps=4200.0)
    one = truth(1, seed=11)[0]
    found = predict_gemm(one.m, one.n, one.k, gpu=unknown, layout=one.layout, measured=measured)
    assert found.time_us.basis == "calibrated" and found.time_us.mid == pytest.approx(one.time_us, rel=0.3)


def test_odd_measurements_are_left_out() -> None:
    odd = GemmMeasurement("x", 64, 64, 64, 1, "bf16", "no such type", "??", 5.0, None, ("no kernel",))
    measured = measurements([*truth(60), odd])
    assert predict_gemm(512, 512, 512, gpu=H200, measured=measured).time_us.basis == "calibrated"
