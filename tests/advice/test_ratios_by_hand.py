"""How one product's time moves with its shape, and which shapes are tried, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.advice.advice_rows import attention, gemm
from tests.said import Listener
from tracelens.config.model_config import ModelConfig
from tracelens.gemm.ladder import LadderStep
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.hardware import find_gpu
from tracelens.results import Estimate
from tracelens.step.measured_step import _moved_call
from tracelens.step.predicted import (
    FAR_ERROR,
    NEAR_ERROR,
    _ladder_error,
    _left_grid,
    _narrow,
    _on_grid,
    _spread_of,
    anchored,
    type_error,
)
from tracelens.step.step_search import _diff
from tracelens.step.work import AttentionCall, Dim

A100 = find_gpu(None, override="a100-sxm-80gb")


def predicted(
    n: int = 1024, times: tuple[float | None, ...] = (80, 100, 150), *, size: int = 1024, dtype: str = "bf16"
) -> Prediction:
    found, (low, mid, high) = predict_gemm(size, n, size, gpu=A100, dtype=dtype), times
    return replace(found, time_us=Estimate(low, mid, high, "model"))


# --- by this trace's aligned products -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("anchor", "tflops", "wanted"),
    [
        (None, 1.0, (80, 100, 150)),  # nothing to compare with: as predicted
        ((1.2, 0.01), 1000.0, (120 * math.exp(-NEAR_ERROR), 120, 120 * math.exp(NEAR_ERROR))),
        ((1.2, 0.5), 1000.0, (120 * math.exp(-0.5), 120, 120 * math.exp(0.5))),
        # 2 * 1024^3 operations at 10 TFLOP/s: 215 us
        ((1.2, 0.5), 10.0, (120 * math.exp(-0.5), 2 * 1024**3 / 1e7, 2 * 1024**3 / 1e7)),
        ((1.2, 0.9), 10.0, (120 * math.exp(-0.9), 2 * 1024**3 / 1e7, 120 * math.exp(0.9))),
    ],
)
def test_a_product_on_the_grid_by_what_aligned_ones_took(
    anchor: tuple[float, float] | None, tflops: float, wanted: tuple[float, float, float], said: Listener
) -> None:
    row = gemm(1, 1024, 1023, 1024, time_us=400.0)
    found = anchored(predicted(), row, anchor, ("now", "then"), 0.0, tflops)
    assert not isinstance(found, str) and found.kind == "anchored"
    assert (found.low, found.mid, found.high) == pytest.approx(tuple(one / 400 for one in wanted))
    said(found.how)


@pytest.mark.parametrize("times", [(None, 100, 150), (80, None, 150), (80, 100, None)])
def test_a_product_without_a_whole_range_is_not_anchored(
    times: tuple[float | None, ...], said: Listener
) -> None:
    found = anchored(predicted(times=times), gemm(1, 8, 8, 8), (1.0, 0.1), ("", ""), 0.0, 1.0)
    said(found)


# --- off the grid -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call_us", "narrow", "ends"),
    [
        (100.0, None, (0.9, 1.0, 1.2)),
        (300.0, None, None),  # three times its prediction
        (20.0, None, None),  # a fifth
        (100.0, (1.5, 0.3), None),
        (100.0, (1.5, 0.01), None),
    ],
)
def test_a_product_that_leaves_the_grid(
    call_us: float, narrow: tuple[float, float] | None, ends: tuple[float, float, float] | None
) -> None:
    """Its pace is carried over as far as predictions vary; the range reaches from none of it to all."""
    old, new = predicted(4096, size=4096), predicted(4095, (900, 1000, 1100), size=4096)
    assert old.chosen is not None
    least, most = old.chosen.rates.low_frac, old.chosen.rates.high_frac
    frac, pace = new.alignment_frac, call_us / 100
    assert frac is not None and 0.2 < least < 1 < most < 3
    low, mid, high = (one * frac if ends else None for one in ends or (0, 0, 0))
    step = LadderStep(2, low, mid, high, "model", "made up")
    found = _left_grid(old, new, gemm(1, 4096, 4096, 4096, time_us=call_us), narrow, step, ("", ""), 0.0)
    assert not isinstance(found, str)
    if narrow is not None:
        factor, faster = narrow[0], max(narrow[1], NEAR_ERROR)
        slower = faster
    else:
        factor = {100.0: 1.0, 300.0: most, 20.0: least}[call_us]
        faster = NEAR_ERROR + math.log(factor / min(pace, 1)) + (math.log(1.2) if ends else 0)
        slower = NEAR_ERROR + math.log(max(pace, 1) / factor) + (math.log(1 / 0.9) if ends else 0)
    wanted = 1000 * factor
    assert (found.low, found.mid, found.high) == pytest.approx(
        (wanted * math.exp(-faster) / call_us, wanted / call_us, wanted * math.exp(slower) / call_us)
    )


@pytest.mark.parametrize(("floor_us", "low_us"), [(0.0, None), (99.5, 99.5)])
def test_no_product_off_the_grid_is_faster_than_on_it(
    floor_us: float, low_us: float | None, said: Listener
) -> None:
    """4095 of 4096 columns take as much of the time at least; the low end is off by a near ratio's error."""
    old, new = predicted(4096, size=4096), predicted(4095, (9, 10, 11), size=4096)
    step = LadderStep(2, None, None, None, "model", "")
    found = _left_grid(old, new, gemm(1, 4096, 4096, 4096, time_us=100.0), None, step, ("", ""), floor_us)
    assert not isinstance(found, str)
    aligned = 100 * 4095 / 4096
    assert found.mid == pytest.approx(aligned / 100)
    assert found.low == pytest.approx((low_us or aligned * math.exp(-NEAR_ERROR)) / 100)
    said(found.how)


@pytest.mark.parametrize(
    ("n", "dtype", "kind"),
    [(1025, "bf16", ("bf16", True)), (1026, "bf16", ("bf16", False)), (1025, "fp32", ("fp32", True)),
     (1026, "fp32", ("fp32", False)), (1028, "bf16", ("bf16", False))],
)  # fmt: skip
def test_odd_sizes_have_kernels_of_their_own(n: int, dtype: str, kind: tuple[str, bool]) -> None:
    assert _narrow(predicted(n, dtype=dtype), gemm(1, 1024, n, 1024, dtype=dtype)) == kind


@pytest.mark.parametrize(("dtype", "step"), [("bf16", 8), ("fp32", 4), ("fp8", 16), ("fp64", 2)])
def test_padded_storage_has_the_next_16_bytes(dtype: str, step: int) -> None:
    wanted = tuple(-(-size // step) * step for size in (1001, 1002, 1008))
    assert _on_grid((1001, 1002, 1008, 3), gemm(1, 8, 8, 8, dtype=dtype)) == (*wanted, 3)


def test_errors_of_another_type() -> None:
    """8 or 4 bits for 16 within 0.2; any other two miss the truth apart, by half of what both leave open."""
    old, new = predicted(times=(90, 100, 200)), predicted(times=(80, 100, 150))
    assert type_error(0.1, {"bf16", "fp8"}, old, new) == (0.2, (0.0, 0.0))
    assert type_error(0.3, {"fp16", "nvfp4"}, old, new) == (0.3, (0.0, 0.0))
    open_by = (0.5 * math.log(2), 0.5 * math.log(1.5))
    assert _spread_of(old, new) == pytest.approx(open_by)
    assert _spread_of(new, old) == pytest.approx((0.5 * math.log(1.5), 0.5 * math.log(2)))
    for types in ({"bf16", "fp32"}, {"fp8", "nvfp4"}, {"fp8", "fp32"}):
        error, beside = type_error(0.01, types, old, new)
        assert error == FAR_ERROR and beside == pytest.approx(open_by)
    assert type_error(9.0, {"bf16", "fp32"}, old, new)[0] == 9.0
    assert (
        _spread_of(predicted(times=(None, 1, 1)), new)
        == _spread_of(old, predicted(times=(0, 1, 1)))
        == (0, 0)
    )


def test_what_two_alignments_leave_open_adds() -> None:
    """The steps of 2 and of 8 bytes of arXiv 2401.14489 on A100: 0.276 to 0.297, and 0.613 to 0.69."""
    narrow, wider, row = predicted(1025), predicted(1028), gemm(1, 8, 8, 8)
    assert narrow.alignment_frac and wider.alignment_frac
    faster, slower = _ladder_error(narrow, wider, row, gpu=A100, measured=None)
    assert faster == pytest.approx(math.log(0.283 / 0.276) + math.log(0.69 / 0.665), abs=0.03)
    assert slower == pytest.approx(math.log(0.297 / 0.283) + math.log(0.665 / 0.613), abs=0.03)
    assert _ladder_error(wider, narrow, row, gpu=A100, measured=None) == pytest.approx((slower, faster))
    assert _ladder_error(narrow, narrow, row, gpu=A100, measured=None) == (0.0, 0.0)


# --- sizes of a row -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "now", "rows"),
    [
        # 100 rows where the mean was 50
        (1, {"capacity": 75}, 150),
        (1, {"capacity": 75, "row_multiple": 1}, 150),
        (1, {"capacity": 75, "row_multiple": 16}, 160),
        (16, {"capacity": 75, "row_multiple": 128}, 206),  # half of a multiple in the mean
        (128, {"capacity": 75, "row_multiple": 16}, 94),
        (128, {"capacity": 1, "row_multiple": 1}, 1),
        (1, {}, None),
    ],
)
def test_rows_of_an_expert_after_a_change(seen: int, now: dict[str, int], rows: int | None) -> None:
    assert Dim("rows", load=(100, 50, seen)).value(ModelConfig(**now)) == rows  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "rows"),
    [
        ({"micro_batch": 2, "sequence": 1024}, 300),
        ({"micro_batch": 4, "sequence": 1024}, 600),
        ({"micro_batch": 1, "sequence": 1024}, 150),
        ({"micro_batch": 2, "sequence": 512}, None),
        ({"micro_batch": 4, "sequence": 512}, None),  # as many tokens, of other sequences
        ({"sequence": 1024}, None),
    ],
)
def test_rows_of_their_own_grow_with_the_micro_batch(now: dict[str, int], rows: int | None) -> None:
    assert Dim("300 rows", own=(300, 2048, 1024)).value(ModelConfig(**now)) == rows  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dim", "t", "size"),
    [
        (Dim("f", ((2, ("ffn",)),), sharded=True), 4, 500),
        (Dim("f", ((2, ("ffn",)),)), 4, 2000),
        (Dim("f", ((1, ("ffn",)),), sharded=True), 3, None),
        (Dim("f", ((1, ("ffn",)),), sharded=True, padded_to=64), 2, 512),
        (Dim("f", ((1, ("ffn",)), (-1, ("heads",))), constant=5), 1, 989),
        (Dim("f", ((1, ("vocab",)),)), 1, None),
    ],
)
def test_a_dimension_on_a_rank(dim: Dim, t: int, size: int | None) -> None:
    assert dim.value(ModelConfig(ffn=1000, heads=16, tensor_parallel=t)) == size


@pytest.mark.parametrize(
    ("then", "wanted"),
    [
        # batch, tokens, queries, keys and growth of the operations
        ({}, (4, 4096, 1024, 512, 1.0)),
        ({"heads": 16}, (4, 4096, 1024, 512, 0.5)),
        ({"heads": 16, "head_dim": 256}, (4, 4096, 1024, 512, 1.0)),
        ({"micro_batch": 6}, (12, 12288, 1024, 512, 3.0)),
        ({"sequence": 2048}, (4, 8192, 2048, 512, 4.0)),
        ({"heads": 64, "micro_batch": 1, "sequence": 512}, (2, 1024, 512, 512, 0.25)),
    ],
)
def test_an_attention_call_of_another_shape(
    then: dict[str, int], wanted: tuple[int, int, int, int, float]
) -> None:
    now = ModelConfig(heads=32, head_dim=128, micro_batch=2, sequence=1024)
    row = replace(attention(1, head_dim=128), flops=100.0)
    call = AttentionCall(row, 4, 4096, 1024, 512, False)
    moved = _moved_call(call, now, replace(now, **then), row)  # type: ignore[arg-type]
    assert (moved.batch, moved.tokens, moved.seq_q, moved.seq_k) == wanted[:4]
    assert moved.row.flops == pytest.approx(100 * wanted[4])
    packed = _moved_call(replace(call, seq_q=None, seq_k=None), now, now, replace(row, flops=None))
    assert (packed.tokens, packed.seq_q, packed.row.flops) == (4096, None, None)


@pytest.mark.parametrize(
    ("then", "lines"),
    [
        # 32 heads of 128 are the width of the model: the head dimension follows
        ({"heads": 16, "head_dim": 256, "kv_heads": 16}, ["- heads = 32", "+ heads = 16"]),
        ({"heads": 16, "kv_heads": 16}, ["- heads = 32", "+ heads = 16"]),
        ({"heads": 16, "head_dim": 200},
         ["- heads = 32", "+ heads = 16", "- head_dim = 128", "+ head_dim = 200"]),
        ({"kv_heads": 8}, ["- kv_heads = 32", "+ kv_heads = 8"]),
        ({"head_dim": 64}, ["- head_dim = 128", "+ head_dim = 64"]),
    ],
)  # fmt: skip
def test_lines_to_paste_leave_out_what_follows(then: dict[str, int], lines: list[str]) -> None:
    now = ModelConfig(hidden=4096, heads=32, kv_heads=32, head_dim=128)
    assert _diff(now, replace(now, **then)) == lines  # type: ignore[arg-type]
