"""The step after a change: what moves, by how much, within which range, and what is not known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.advice.advice_rows import gemm
from tests.advice.advice_steps import A100, H100, Shape, model_of, rows_of
from tests.said import Listener
from tracelens.hardware import find_gpu
from tracelens.results import Estimate, WhatIf
from tracelens.results.row_sizes import AttentionDims
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if

GPT = Shape(2560, 32, 10240, v=50257)
LLAMA = Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2)
CHANGES: list[dict[str, int]] = [
    {"heads": 16},
    {"kv_heads": 16},
    {"head_dim": 64},
    {"ffn": 16384},
    {"ffn": 14337},
    {"hidden": 5120},
    {"vocab": 32000},
    {"vocab": 128257},
    {"layers": 40},
    {"sequence": 4096},
    {"micro_batch": 3},
    {"hidden": 5120, "ffn": 13824, "heads": 40, "vocab": 32000},
]


def saved(one: WhatIf) -> tuple[float, float, float]:
    saving = one.saving_ms
    assert saving.low is not None and saving.mid is not None and saving.high is not None
    return saving.low, saving.mid, saving.high


@pytest.fixture(scope="module")
def llama() -> StepModel:
    return model_of(LLAMA, rest_ms=20.0)


@pytest.mark.parametrize(
    "name", ["hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "sequence", "micro_batch"]
)
def test_a_change_to_the_present_value_changes_nothing(llama: StepModel, name: str) -> None:
    value = llama.now.get(name)
    assert value is not None
    one = what_if(llama, {name: value})
    assert saved(one) == (0.0, 0.0, 0.0) and one.then_ms.mid == one.step_ms
    assert (one.change, one.rows, one.rest) == ({}, [], [])
    assert one.flops_frac == 0.0 and one.parameters[0] == one.parameters[1]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_ranges_hold_their_middle_and_the_step_adds_up(llama: StepModel, change: dict[str, int]) -> None:
    one = what_if(llama, change)
    low, mid, high = saved(one)
    assert low <= mid <= high and all(math.isfinite(end) for end in (low, mid, high))
    now = sum(row.time_ms for row in one.rows) + sum(part.time_ms for part in one.rest)
    then = sum(row.then_ms.mid or 0.0 for row in one.rows) + sum(part.then_ms.mid or 0.0 for part in one.rest)
    assert mid == pytest.approx(now - then)
    assert one.then_ms.mid == pytest.approx((one.step_ms or 0.0) - mid)
    assert one.then_ms.low == pytest.approx((one.step_ms or 0.0) - high)
    for row in one.rows:
        assert 0 < (row.then_ms.low or 0) <= (row.then_ms.mid or 0) <= (row.then_ms.high or 0)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_nothing_is_faster_than_the_datasheet(change: dict[str, int]) -> None:
    """Even where the trace's own times lie close to the floor."""
    step = model_of(LLAMA, factor=0.82)
    for row in what_if(step, change).rows:
        found = (
            next(one for one in step.work.products if one.row.id == row.gemm)
            if "×" in row.shape_then
            else None
        )
        if found is None or "and" in row.shape_then:
            continue
        m, n, k = (int(size) for size in row.shape_then.split("×"))
        calls = found.row.calls_per_step * (change.get("layers", 32) / 32 if row.component != "logits" else 1)
        floor_ms = calls * 2.0 * m * n * k / (989.4e12) * 1e3
        assert (row.then_ms.low or 0.0) >= floor_ms * 0.999


def test_time_moves_as_the_prediction_moves(said: Listener) -> None:
    """A GPU that runs 30 % above every prediction: the changed model's step is 30 % above its own."""
    for factor in (1.0, 1.3):
        before, after = model_of(LLAMA, factor=factor), model_of(replace(LLAMA, f=16384), factor=factor)
        one = what_if(before, {"ffn": 16384})
        assert one.then_ms.mid == pytest.approx(after.step_ms, rel=1e-6)
        said(sorted({row.how for row in one.rows}))


def test_a_product_that_comes_onto_the_grid_runs_like_the_aligned_ones_of_the_trace(said: Listener) -> None:
    """However slow the misaligned one was: its time says nothing of the new shape's."""
    for slow in (1.0, 3.0):
        step = model_of(GPT, factor=1.2, slowed={"logits": slow})
        one = what_if(step, {"vocab": 50304})
        assert {row.component for row in one.rows} == {"logits"}
        expected = [row for row in rows_of(replace(GPT, v=50304), factor=1.2) if row.component == "logits"]
        assert sum(row.then_ms.mid or 0.0 for row in one.rows) == pytest.approx(
            sum(row.time_ms_per_step for row in expected), rel=1e-6
        )
        said(sorted({row.how for row in one.rows}))


def test_a_product_that_leaves_the_grid_runs_like_the_misaligned_ones_of_the_trace(said: Listener) -> None:
    """Here they take 0.4 of their predictions; an odd width's kernels are those of the odd vocabulary."""
    one = what_if(model_of(GPT, slowed={"logits": 0.4}), {"ffn": 10239})
    for row in one.rows:
        said(row.how)
    off = [row for row in rows_of(replace(GPT, f=10239)) if row.component.startswith("mlp")]
    assert sum(row.then_ms.mid or 0.0 for row in one.rows) == pytest.approx(
        0.4 * sum(row.time_ms_per_step for row in off), rel=1e-6
    )


@pytest.mark.parametrize(("pace", "kept"), [(1.0, 1.0), (1.1, 1.1), (2.0, 1.11), (0.5, 0.912)])
def test_a_pace_beyond_what_predictions_vary_by_is_not_carried_off_the_grid(pace: float, kept: float) -> None:
    """No misaligned product in the trace: as slow as its aligned kernel, but by 11 % at most on an H100."""
    x = replace(GPT, v=50304)
    one = what_if(model_of(x, factor=1.0, slowed={"mlp.up": pace, "mlp.down": pace}), {"ffn": 10238})
    off = rows_of(replace(x, f=10238), factor=1.0)
    bare = sum(row.time_ms_per_step for row in off if row.component.startswith("mlp"))
    low, mid, high = (
        sum(getattr(row.then_ms, end) or 0.0 for row in one.rows) for end in ("low", "mid", "high")
    )
    assert mid == pytest.approx(kept * bare, rel=1e-6)
    assert low <= min(bare, pace * bare) and max(bare, pace * bare) <= high


def test_off_the_grid_is_no_faster_than_on_it(said: Listener) -> None:
    step = model_of(replace(GPT, v=50304), slowed={"mlp.up": 20.0})
    one = what_if(step, {"ffn": 10238})
    slow = [row for row in one.rows if row.component == "mlp.up"]
    assert slow
    assert all((row.then_ms.mid or 0.0) == pytest.approx(row.time_ms * 10238 / 10240) for row in slow)
    said(sorted({row.how for row in slow}))


def test_a_kernel_that_loads_16_bytes_all_the_same_gains_no_more_than_the_grid_above_it() -> None:
    """Storage padded where the shape is odd: what is left is the step from 16 bytes to 128."""
    aligned = gemm(1, 8, 8, 8).kernel
    rows = [replace(row, kernel=aligned) if row.component == "logits" else row for row in rows_of(GPT)]
    for row, fast in zip(rows, rows_of(replace(GPT, v=50304)), strict=True):
        if row.component == "logits":
            rows[rows.index(row)] = replace(row, time_ms_per_step=fast.time_ms_per_step)
    _, mid, _ = saved(what_if(model_of(GPT, rows=rows), {"vocab": 50304}))
    logits = sum(row.time_ms_per_step for row in rows if row.component == "logits")
    assert 0 <= mid < 0.05 * logits


def test_there_and_back_at_one_alignment_is_where_it_began() -> None:
    there = what_if(model_of(LLAMA), {"ffn": 16384})
    rows = {row.gemm: row for row in there.rows}
    moved = [
        replace(
            row, time_ms_per_step=rows[row.id].then_ms.mid or 0.0, n=_to(row.n), k=_to(row.k), m=_to(row.m)
        )
        if row.id in rows
        else row
        for row in rows_of(LLAMA)
    ]
    back = what_if(model_of(replace(LLAMA, f=16384), rows=moved), {"ffn": 14336})
    assert saved(back)[1] == pytest.approx(-saved(there)[1], rel=1e-9)


def _to(size: int | None) -> int | None:
    return 16384 if size == 14336 else size


def test_two_changes_are_simulated_together_and_not_added() -> None:
    """Half the heads and half the sequence both act on attention: the second acts on what the first left."""
    step = model_of(LLAMA)
    alone = [saved(what_if(step, change))[1] for change in ({"hidden": 2048, "heads": 16}, {"ffn": 7168})]
    both = saved(what_if(step, {"hidden": 2048, "heads": 16, "ffn": 7168}))[1]
    assert max(alone) < both < sum(alone)


def test_more_layers_repeat_what_is_in_them(llama: StepModel) -> None:
    one = what_if(llama, {"layers": 64})
    logits = sum(p.row.time_ms_per_step for p in llama.work.products if p.row.component == "logits")
    assert saved(one)[1] == pytest.approx(-((llama.step_ms or 0.0) - logits))
    assert {row.component for row in one.rows}.isdisjoint({"logits"})
    assert what_if(llama, {"layers": 16}).flops_frac == pytest.approx(
        -0.5 * (1 - _logits_share(llama)), rel=1e-6
    )


def _logits_share(step: StepModel) -> float:
    work = {True: 0.0, False: 0.0}
    for product in step.work.products:
        work[product.row.component == "logits"] += (product.row.flops or 0.0) * product.row.calls_per_step
    for call in step.work.attention:
        work[False] += (call.row.flops or 0.0) * call.row.calls_per_step
    return work[True] / sum(work.values())


def test_bytes_scale_with_what_they_are_made_of(llama: StepModel) -> None:
    (norm,) = what_if(llama, {"micro_batch": 4}).rest
    assert norm.component == "norm"
    assert norm.time_ms == pytest.approx(20.0)
    assert norm.then_ms.mid == pytest.approx(40.0)
    assert what_if(llama, {"vocab": 32000}).rest == []


def test_tokens_are_told_apart_from_time(llama: StepModel) -> None:
    one = what_if(llama, {"micro_batch": 4})
    assert one.tokens_frac == 1.0 and saved(one)[1] < 0


def test_parameters_and_operations_are_counted(llama: StepModel) -> None:
    one = what_if(llama, {"ffn": 16384})
    now, then = one.parameters
    assert now and then and then - now == 32 * 3 * 4096 * (16384 - 14336)
    assert one.flops_frac is not None and 0.05 < one.flops_frac < 0.14


# --- what is not known ------------------------------------------------------------------------------------


def test_a_change_of_ranks_gives_no_saving() -> None:
    one = what_if(model_of(LLAMA), {"tensor_parallel": 2})
    assert one.saving_ms == Estimate(None, None, None, "model") and one.then_ms.mid is None
    assert "exchange" in one.notes[0]
    assert one.rows  # the kernels' own times are predicted all the same


def test_no_saving_where_much_of_what_changes_has_no_formula(said: Listener) -> None:
    rows = [*rows_of(LLAMA), gemm(99, 777, 555, 333, component="mlp.up", time_us=500_000.0)]
    one = what_if(model_of(LLAMA, rows=rows), {"ffn": 16384})
    assert one.saving_ms.mid is None and one.unpredicted_ms == pytest.approx(500.0)
    said(one.notes[0])
    untouched = what_if(model_of(LLAMA, rows=rows), {"vocab": 32000})
    assert untouched.saving_ms.mid is not None and untouched.unpredicted_ms == 0.0


def test_a_small_gap_widens_the_range(said: Listener) -> None:
    rows = rows_of(LLAMA)
    small = gemm(99, 777, 555, 333, component="mlp.up", time_us=1000.0)
    whole, gap = (what_if(model_of(LLAMA, rows=r), {"ffn": 16384}) for r in (rows, [*rows, small]))
    assert saved(gap)[1] == pytest.approx(saved(whole)[1])
    assert saved(gap)[0] < saved(whole)[0] and saved(gap)[2] > saved(whole)[2]
    said(gap.notes)


def test_a_gpu_without_rates_has_no_saving() -> None:
    unknown = find_gpu("some device of tomorrow")
    one = what_if(replace(model_of(LLAMA), gpu=unknown), {"ffn": 16384})
    assert one.saving_ms.mid is None and one.refused is not None and one.refused.code == "not_predicted"


def test_an_attention_kernel_without_a_model_has_no_saving() -> None:
    rows = [replace(row, kernel_family="flex") if row.kind == "attention" else row for row in rows_of(LLAMA)]
    one = what_if(model_of(LLAMA, rows=rows), {"heads": 16})
    assert one.saving_ms.mid is None and "flex" in one.notes[0]


def test_a_step_that_waits_for_the_host_is_promised_nothing() -> None:
    busy, idle = model_of(GPT, busy_frac=0.99), model_of(GPT, busy_frac=0.4)
    assert saved(what_if(busy, {"vocab": 50304}))[0] > 0
    assert saved(what_if(idle, {"vocab": 50304}))[0] == 0.0
    assert what_if(idle, {"vocab": 50304}).saving_of == "gpu_work"
    assert what_if(busy, {"vocab": 50304}).saving_of == "step"
    assert saved(what_if(busy, {"ffn": 12288}))[2] < 0
    assert saved(what_if(idle, {"ffn": 12288}))[2] == 0.0  # idle time can take it up


def test_an_unknown_mask_and_packed_lengths_widen_the_range() -> None:
    def width(sizes: AttentionDims | None) -> float:
        rows = [
            replace(row, attention=sizes) if sizes and row.kind == "attention" else row
            for row in rows_of(GPT)
        ]
        low, _, high = saved(what_if(model_of(GPT, rows=rows, gpu=H100), {"heads": 20}))
        return high - low

    assert width(AttentionDims(None, 32, 32, head_dim=80, tokens=8192)) >= width(None) > 0


@pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])
def test_no_change_breaks_and_none_is_better_than_free(gpu: object) -> None:
    step = model_of(GPT, gpu=gpu)  # type: ignore[arg-type]
    for ffn in (1, 7, 64, 10239, 10241, 2**20):
        one = what_if(step, {"ffn": ffn})
        if one.saving_ms.mid is not None:
            assert one.saving_ms.mid < (step.step_ms or 0.0)
