"""TL115: sizes that keep products of an fp8 model in 16 bits, and what fp8 has room for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import A100, H100, step_of
from tests.advice.advice_rows import UNKNOWN_GPU, gemm, model
from tests.said import Listener
from tracelens.results import GemmRow
from tracelens.results.row_sizes import Groups
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.fp8 import Fp8

RULE = Fp8()
FP8 = "nvjet_qqtst_192x192_128x4_2x1_v_bz_coopB_TNN"


def in_fp8(number: int = 1, **more: Any) -> GemmRow:
    given: dict[str, Any] = {"dtype": "fp8", "kernel": FP8, "component": "attention.qkv", "out_dtype": "bf16"}
    return gemm(number, 8192, 12288, 4096, **(given | more))


def left_out(number: int = 2, **more: Any) -> GemmRow:
    """ffn 10920: a multiple of 8."""
    given: dict[str, Any] = {
        "component": "mlp.up",
        "time_us": 1500.0,
        "bound": "compute",
        "names": ("b*s", "f", "h"),
    }
    return gemm(number, 8192, 10920, 4096, **(given | more))


def check(*rows: GemmRow, **more: Any) -> Outcome:
    given: dict[str, Any] = {"dims": model(hidden=4096, ffn=10920, heads=32), "step_ms": 20.0}
    return RULE.check(step_of(rows, **(given | more)))


def test_a_size_keeps_a_layer_of_an_fp8_model_in_16_bits(said: Listener) -> None:
    (finding,) = check(in_fp8(), left_out()).findings
    said(finding.title)
    assert finding.change == {"ffn": [10920, 10928]} and finding.effort == "retrain"
    assert finding.gemms == ["g2"] and finding.confidence == "low"
    product = 2 * 8192 * 10920 * 4096 / 1979e12 * 1e3
    casts = 5 * (8192 * 4096 + 10920 * 4096) / 3350e9 * 1e3
    assert finding.saving_ms.high == pytest.approx(1.5 - product - casts, rel=1e-3)
    assert finding.saving_ms.mid is None


def test_experts_are_linear_layers_too(said: Listener) -> None:
    says_why(check(gemm(1, None, 2048, 7168, component="moe.experts", groups=Groups("m", 4))), "passed", said)


def test_tokens_count_for_the_weights_gradient_alone() -> None:
    odd: dict[str, Any] = {"component": "mlp.up", "time_us": 1500.0, "bound": "compute"}
    forward = gemm(2, 8190, 10912, 4096, **odd)
    assert check(in_fp8(), forward).state == "passed"
    wgrad = gemm(2, 10912, 4096, 8190, role="wgrad", layout="NT", **odd)
    assert check(in_fp8(), wgrad).state == "found"


def test_logits_alone_in_fp8_prove_no_fp8_model(said: Listener) -> None:
    says_why(check(in_fp8(component="logits"), left_out()), "passed", said)


def test_a_model_in_16_bits_is_left_to_tl124(said: Listener) -> None:
    outcome = check(left_out())
    assert outcome.state == "passed" and outcome.findings == ()
    said(outcome.why)


def test_where_it_does_not_apply(said: Listener) -> None:
    ampere = check(left_out(), gpu=A100)
    assert ampere.state == "not_applicable"
    unknown = RULE.check(replace(step_of([left_out()], predict=False), gpu=UNKNOWN_GPU))
    assert unknown.state == "could_not_run"
    said(ampere.why, unknown.why)
    assert check(gemm(1, 512, 512, 512, component="other")).state == "not_applicable"
    assert check(left_out(dtype="fp32")).state == "not_applicable"
    assert check(left_out(dtype="bf16"), gpu=H100).state == "passed"


def test_without_types_it_could_not_run(said: Listener) -> None:
    says_why(check(gemm(1, None, None, None, component="mlp.up", dtype=None)), "could_not_run", said)
