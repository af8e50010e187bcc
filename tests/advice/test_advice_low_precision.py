"""TL124: what gains in fp8 and less by layer, known answers, and what loses in an fp8 model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import low_precision
from benchmarks.silicon import FOLDER
from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import other
from tests.advice.advice_rows import gemm
from tests.advice.advice_steps import Shape, dims_of, model_of, rows_of
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.results import Finding, GemmRow, Known
from tracelens.rules import StepFacts
from tracelens.rules.evidence.low_precisions import gains
from tracelens.rules.low_precision import LowPrecision
from tracelens.step.predicted import TYPE_ERROR

RULE = LowPrecision()
LLAMA = Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2, s=8192)
MIDDLING = Shape(1024, 16, 4096, b=8, s=1024)


def facts_of(x: Shape, gpu: str = "h100-sxm", rows: list[GemmRow] | None = None, **more: Any) -> StepFacts:
    part = find_gpu(None, override=gpu)
    found = rows if rows is not None else rows_of(x, gpu=part, factor=1.0)
    step_ms = more.pop("step_ms", sum(row.time_ms_per_step for row in found))
    step = replace(model_of(x, gpu=part, rows=found), step_ms=step_ms)
    return StepFacts(gemms=found, model=dims_of(x), gpu=part.info(), step_ms=step_ms, step=step,
                     gpu_busy_frac=0.99, **more)  # fmt: skip


def finding(facts: StepFacts) -> Finding:
    (found,) = RULE.check(facts).findings
    return found


def test_large_layers_gain_and_the_logits_stay(said: Listener) -> None:
    facts = facts_of(LLAMA)
    assert facts.step is not None
    found = {gain.component: gain for gain in gains(facts, facts.step, "fp8")}
    assert {"mlp.up", "mlp.gate", "mlp.down"} <= found.keys() and "logits" not in found
    for name in ("mlp.up", "mlp.gate", "mlp.down"):
        low, mid, high = found[name].saving.low, found[name].saving.mid, found[name].saving.high
        assert low is not None and mid is not None and high is not None
        time = sum(row.time_ms_per_step for row in facts.gemms if row.component == name)
        assert 0 < low < mid < high < 0.6 * time  # twice the rate is half of the time, 1.2 times that at best
    says_why(RULE.check(facts), "passed", said)


@pytest.mark.parametrize(
    ("hidden", "ffn", "sure"), [(1024, 1024, False), (2048, 1024, False), (8192, 28672, True)]
)
def test_layers_too_small_for_fp8_are_those_that_torchao_leaves_out(
    hidden: int, ffn: int, sure: bool
) -> None:
    """torchtitan's auto_filter_small_kn is torchao's: K <= 4096 and N <= 1024, measured on H100."""
    facts = facts_of(Shape(hidden, hidden // 128, ffn, b=8, s=2048))
    assert facts.step is not None
    found = {gain.component: gain.sure for gain in gains(facts, facts.step, "fp8")}
    assert found["mlp.up"] is found["mlp.down"] is sure


@pytest.mark.skipif(
    not (FOLDER / "gemm.parquet").exists(), reason="published times are not beside the checkout"
)
def test_the_ratio_of_published_times_is_within_the_range() -> None:
    """Of linears that no constant was fitted to, nine in ten."""
    assert np.quantile(np.abs(low_precision.errors("h100_sxm", "fp8", most=150)), 0.9) <= TYPE_ERROR


def test_nothing_is_promised_whose_range_reaches_zero(said: Listener) -> None:
    says_why(RULE.check(facts_of(MIDDLING)), "passed", said)


def test_blackwell_has_more_types_and_hopper_no_nvfp4(said: Listener) -> None:
    """NVFP4's recipe leaves layers in bf16, which gain nothing."""
    for gpu, has in (("h100-sxm", False), ("b200", True)):
        why = RULE.check(facts_of(LLAMA, gpu)).why
        assert ("NVFP4" in why) is ("arXiv 2509.25149" in why) is has
        said(why)


@pytest.mark.parametrize("layers", [32, 36, 1])
def test_the_last_layers_stay_in_bf16_as_torchtitan_leaves_them(layers: int, said: Listener) -> None:
    """nvfp4.md: of Llama 3 8B layers 0-26 are NVFP4 and 27-31 bf16, of Qwen3 8B 0-29 and 30-35."""
    facts = facts_of(LLAMA, "b200")
    facts = replace(facts, model=replace(facts.model, layers=Known(layers, "modules")))
    assert facts.trains
    staged = replace(facts, model=replace(facts.model, pipeline_parallel=Known(2, "messages")))
    said(RULE.check(facts).why, RULE.check(staged).why)


def test_in_inference_no_layer_has_a_loss_to_keep_stable() -> None:
    facts = facts_of(LLAMA, "b200", rows=[row for row in rows_of(LLAMA) if row.phase == "forward"])
    assert not facts.trains and "2509.25149" not in RULE.check(facts).why


def test_a_size_off_the_blocks_is_named_with_its_repair(said: Listener) -> None:
    """10944 = 342 x 32, and 85.5 x 128: MXFP8 takes it, NVFP4 does not."""
    facts = facts_of(replace(LLAMA, f=10944), "b200")
    said(RULE.check(facts).why)
    assert facts.step is not None
    assert "mlp.up" not in {gain.component for gain in gains(facts, facts.step, "nvfp4")}


def test_layers_of_an_fp8_model_that_lose_are_named(said: Listener) -> None:
    """Small products in fp8, with the casts that the trace shows as kernels of their own."""
    gpu = find_gpu(None, override="h100-sxm")
    rows = [
        replace(row, dtype="fp8", math_dtype="fp8", out_dtype="bf16",
                time_ms_per_step=row.calls_per_step / 1e3 * (
                    predict_gemm(row.m or 0, row.n or 0, row.k or 0, gpu=gpu, dtype="fp8").time_us.mid or 0))
        for row in rows_of(MIDDLING, factor=1.0) if row.component == "mlp.up"
    ]  # fmt: skip
    cast = other(1, "cast", component="mlp.up", dtype_from="bf16", dtype_to="fp8", time_us=120.0, calls=64.0)
    found = finding(facts_of(MIDDLING, rows=rows, others=(cast,), step_ms=40.0))
    assert found.components == ["mlp.up"] and found.saving_ms.low
    said(found.title)
    back = sum(
        row.calls_per_step
        / 1e3
        * (predict_gemm(row.m or 0, row.n or 0, row.k or 0, gpu=gpu).time_us.mid or 0)
        for row in rows
    )
    now = sum(row.time_ms_per_step for row in rows) + cast.time_ms_per_step
    assert found.saving_ms.mid == pytest.approx(now - back, rel=0.05)
    assert RULE.check(facts_of(MIDDLING, rows=rows, others=(), step_ms=40.0)).state == "passed"


def test_where_it_does_not_apply() -> None:
    assert RULE.check(facts_of(LLAMA, "a100-sxm-80gb")).state == "not_applicable"
    blind = [gemm(1, None, None, None, component="mlp.up")]
    assert RULE.check(facts_of(LLAMA, rows=blind)).state == "could_not_run"
    assert (
        RULE.check(facts_of(LLAMA, rows=[gemm(1, 512, 512, 512, component="other")])).state
        == "not_applicable"
    )
