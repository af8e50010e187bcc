"""Attention corrected by measurements: made-up ones, labelled so, and published ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.gemm.attention_figures import FA3_PAPER, H100, figures
from tests.gemm.test_attention_prediction import redone
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_terms import AttentionPrediction
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import AttentionMeasurement, MeasuredBackend, Measurements

H200 = find_gpu(None, override="h200")
HEAD_DIMS = tuple(range(32, 257, 8))


def predict(measured: Measurements | None, **shape: Any) -> AttentionPrediction:
    return predict_attention(AttentionProblem(**shape), gpu=H200, backend="flash", measured=measured)


def shape(batch: int, heads: int, seq: int, head_dim: int, causal: bool, direction: str) -> dict[str, Any]:
    return {
        "batch": batch, "heads": heads, "kv_heads": heads, "seq_q": seq, "seq_k": seq, "head_dim": head_dim,
        "causal": causal, "direction": direction,
    }  # fmt: skip


def made_up_us(seed: int, **call: Any) -> float:
    """A GPU that is not the model: 30 % slower, more so at long sequences and small heads, with noise."""
    modelled = predict(None, **call).time_us.mid
    assert modelled is not None
    noise = random.Random(f"{seed} {sorted(call.items())}").gauss(1.0, 0.01)
    slower = 1.3 * (call["seq_q"] / 2048) ** 0.05 * (128 / call["head_dim"]) ** 0.1
    return float(modelled * slower * (1.05 if call["causal"] else 1.0) * noise)


def measurements(calls: Iterable[dict[str, Any]], *, bandwidth_gbps: float | None = None) -> Measurements:
    rows = tuple(
        AttentionMeasurement(
            "made up", call["batch"], call["heads"], call["kv_heads"], call["seq_q"], call["seq_k"],
            call["head_dim"], "bf16", call["causal"], call["direction"], "flash", made_up_us(0, **call), 0.01,
            (),
        )
        for call in calls
    )  # fmt: skip
    return Measurements(
        "h200", {"sms": 132}, {}, {}, "2026-01-01", "none", "made up for a test", attention=rows,
        bandwidth_gbps=bandwidth_gbps,
    )  # fmt: skip


def sweep() -> list[dict[str, Any]]:
    return [
        shape(4 * 2048 // seq or 1, 16, seq, head_dim, causal, direction)
        for head_dim in HEAD_DIMS
        for seq in (1024, 2048, 4096)
        for causal in (False, True)
        for direction in ("forward", "backward")
    ]


MEASURED = measurements(sweep())


def test_shapes_between_the_measured_ones_are_met_within_the_range() -> None:
    inside, misses = 0, []
    held_out = [
        shape(batch, heads, seq, head_dim, causal, direction)
        for batch, heads, seq in ((2, 16, 3072), (8, 20, 1536), (6, 12, 2048))
        for head_dim in (40, 64, 72, 80, 100, 128, 160, 200, 256)
        for causal in (False, True)
        for direction in ("forward", "backward")
    ]
    for call in held_out:
        found, truth = predict(MEASURED, **call).time_us, made_up_us(1, **call)
        assert found.basis == "calibrated"
        assert found.low is not None and found.mid is not None and found.high is not None
        inside += found.low <= truth <= found.high
        misses.append(abs(found.mid / truth - 1))
        assert found.high / found.low < 1.35
    assert inside >= 0.9 * len(held_out)
    assert sorted(misses)[len(misses) // 2] < 0.02


def test_lengths_between_published_ones_are_met_within_the_range() -> None:
    """arXiv 2407.08608 on an H100, forward: 512, 2048 and 16384 as measurements, 1024 to 8192 held out."""
    published = [one for one in figures() if one.source == FA3_PAPER and one.direction == "forward"]
    rows = tuple(
        AttentionMeasurement(
            "published", one.batch, one.heads, one.heads, one.seq, one.seq, one.head_dim, "fp16", one.causal,
            "forward", cast(MeasuredBackend, one.backend), one.time_us, None, (),
        )
        for one in published
        if one.seq in (512, 2048, 16384)
    )  # fmt: skip
    measured = Measurements(H100, {}, {}, {}, "2024-07-11", "", "published figure", attention=rows)
    inside, misses = 0, []
    held_out = [one for one in published if one.seq not in (512, 2048, 16384)]
    for one in held_out:
        found = predict_attention(
            AttentionProblem(
                batch=one.batch,
                heads=one.heads,
                kv_heads=one.heads,
                seq_q=one.seq,
                seq_k=one.seq,
                head_dim=one.head_dim,
                causal=one.causal,
                direction="forward",
            ),
            gpu=find_gpu(None, override=H100),
            backend=one.backend,
            measured=measured,
        ).time_us
        assert found.basis == "calibrated" and found.low is not None and found.mid is not None
        assert found.high is not None
        inside += found.low <= one.time_us <= found.high
        misses.append(abs(found.mid / one.time_us - 1))
    assert len(held_out) > 50 and inside >= 0.9 * len(held_out)
    assert sorted(misses)[len(misses) // 2] < 0.03


def test_measurements_of_unknown_spread_narrow_no_range() -> None:
    call = shape(3, 16, 3072, 88, True, "forward")

    def width(measured: Measurements | None) -> float:
        time_us = predict(measured, **call).time_us
        assert time_us.low is not None and time_us.mid is not None and time_us.high is not None
        return time_us.high / time_us.mid - 1

    rows = tuple(replace(row, spread_frac=None) for row in MEASURED.attention)
    assert width(MEASURED) < 0.8 * width(None)
    assert width(replace(MEASURED, attention=rows)) >= 0.95 * width(None)


def test_a_measured_shape_is_what_was_measured() -> None:
    call = shape(4, 16, 2048, 80, True, "backward")
    truth = next(row for row in MEASURED.attention if (row.seq_q, row.head_dim) == (2048, 80) and row.causal
                 and row.direction == "backward")  # fmt: skip
    assert predict(MEASURED, **call).time_us.mid == pytest.approx(truth.time_us, rel=1e-4)


def test_the_correction_stands_in_the_derivation() -> None:
    found = predict(MEASURED, **shape(3, 16, 3072, 88, True, "forward"))
    assert "correction" in [name for name, *_ in found.terms]
    redone(found)


def test_what_was_not_measured_is_less_sure() -> None:
    """Head dimensions of another kernel, another mask, a length far beyond: each widens the range."""

    def width(measured: Measurements, call: dict[str, Any]) -> float:
        time = predict(measured, **call).time_us
        assert time.basis == "calibrated" and time.high is not None and time.mid is not None
        return time.high / time.mid - 1

    call = shape(4, 16, 2048, 128, True, "forward")
    near = width(MEASURED, call)
    only_small = measurements([one for one in sweep() if one["head_dim"] <= 96])
    only_full = measurements([one for one in sweep() if not one["causal"]])
    assert width(only_small, call) > near
    without = predict(None, **call).time_us
    assert without.high is not None and without.mid is not None
    assert width(only_full, call) >= without.high / without.mid - 1  # nothing shows what the mask costs
    assert width(MEASURED, shape(1, 16, 65536, 128, True, "forward")) > near


def test_repeats_of_a_measurement_do_not_make_it_surer() -> None:
    call = shape(5, 16, 2560, 112, True, "forward")
    once, twice = (
        predict(MEASURED, **call).time_us,
        predict(measurements([*sweep(), *sweep()]), **call).time_us,
    )
    assert once.low is not None and twice.low is not None and once.high is not None and twice.high is not None
    assert twice.high / twice.low >= 0.95 * once.high / once.low


def test_measurements_of_something_else_change_nothing() -> None:
    call = shape(4, 16, 2048, 128, True, "forward")
    backward = measurements([one for one in sweep() if one["direction"] == "backward"])
    for measured in (measurements([]), backward, measurements(sweep()[:1])):
        found = predict(measured, **call)
        assert found.time_us.basis == "model"
        assert found.time_us.mid == predict(None, **call).time_us.mid
        assert any("no measurements" in note for note in found.notes)


def test_the_measured_bandwidth_is_used() -> None:
    call = shape(64, 16, 128, 64, False, "backward")
    slow = predict(measurements([], bandwidth_gbps=2000.0), **call).time_us.mid
    fast = predict(measurements([], bandwidth_gbps=4500.0), **call).time_us.mid
    assert slow is not None and fast is not None and slow > 1.2 * fast
