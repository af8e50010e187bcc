"""TL106: key-value heads are judged by their products' shape, and a smaller model is no better shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_losses import judged_facts, with_losses
from tests.advice.advice_rows import NVJET, attention, cutlass, facts, gemm, model
from tests.advice.advice_steps import A100, H100, Shape, dims_of, model_of, rows_of
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu
from tracelens.results import Lost
from tracelens.rules import StepFacts, advise
from tracelens.rules.evidence.kv_heads import other_kv_heads
from tracelens.rules.kv_heads import KvHeads

RULE = KvHeads()
GPUS = pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])
_LAYOUT = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}


def separate(x: Shape) -> StepFacts:
    """A step with products of their own for q, k and v."""
    rows = [row for row in rows_of(x) if row.component != "attention.qkv"]
    for width, expression, calls in ((x.a * x.head, "a*d", 1), (x.kv_heads * x.head, "kv*d", 2)):
        tokens = x.b * x.s
        sizes = {
            "forward": (tokens, width, x.h),
            "dgrad": (tokens, x.h, width),
            "wgrad": (width, x.h, tokens),
        }
        for role, (m, n, k) in sizes.items():
            found = predict_gemm(m, n, k, gpu=H100, layout=_LAYOUT[role])
            names = {"forward": ("b*s", expression, "h"), "dgrad": ("b*s", "h", expression),
                     "wgrad": (expression, "h", "b*s")}  # fmt: skip
            aligned = min(value for value in found.alignment.values() if value is not None) >= 16
            rows.append(
                gemm(100 + len(rows), m, n, k, component="attention.qkv", role=role, layout=_LAYOUT[role],
                     time_us=(found.time_us.mid or 100.0) * 1.05, calls=calls * x.layers, names=names[role],
                     kernel=NVJET if aligned else cutlass(4))
            )  # fmt: skip
    rows = with_losses(rows)
    step = model_of(x, rows=rows)
    return StepFacts(rows, dims_of(x), H100.info(), step.step_ms, 0.99, step)


#: 3 key-value heads of 100 are rows of 600 bytes, no multiple of 16; 2 or 4 are on the grid.
ODD = Shape(1200, 12, 4800, kv=3, d=100, b=16, s=1024, layers=12, v=32000)


def test_the_change_carried_out_is_faster_by_what_was_predicted() -> None:
    """The step is made anew with the heads that the finding names; attention's own calls among it."""
    (finding,) = RULE.check(separate(ODD)).findings
    before = separate(ODD).step_ms
    after = separate(replace(ODD, kv=int(finding.change["kv_heads"][1]))).step_ms
    low, high = finding.saving_ms.low, finding.saving_ms.high
    assert before is not None and after is not None and low is not None and high is not None
    assert 0 < low <= before - after <= high


def test_a_number_that_comes_onto_the_grid_is_found(said: Listener) -> None:
    (finding,) = RULE.check(separate(ODD)).findings
    assert finding.change == {"kv_heads": [3, 2]} and finding.effort == "retrain"
    assert (finding.saving_ms.low or 0.0) > 0
    assert finding.parameter_delta == -12 * 2 * 1200 * 100
    said(finding.title, finding.caveats)
    assert set(finding.gemms) <= {row.id for row in separate(ODD).gemms}


def test_no_more_counts_than_the_shapes_waste() -> None:
    step = separate(ODD)
    (finding,) = RULE.check(step).findings
    wasted = sum(
        (row.lost_ms.alignment or 0.0) + (row.lost_ms.tile or 0.0) + (row.lost_ms.wave or 0.0)
        for row in step.gemms
        if row.component == "attention.qkv" and 300 in (row.m, row.n, row.k)
    )
    assert (finding.saving_ms.high or 0.0) <= wasted + 1e-9


def test_a_head_dimension_off_the_grid_is_not_two_findings() -> None:
    rules = [finding.rule for finding in advise(separate(ODD)).findings]
    assert "TL103" in rules and "TL102" not in rules


def test_a_smaller_model_is_no_finding(said: Listener) -> None:
    """Half of the key-value heads is half of their work, at the same speed: no matter of shape."""
    x = Shape(768, 12, 3072, b=3, s=1024, layers=12)
    says_why(RULE.check(judged_facts(x)), "passed", said)


@pytest.mark.parametrize(
    "x",
    [
        Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=1, s=8192),
        Shape(4096, 32, 11008, v=32000, gated=True, b=1, s=4096),
        Shape(8192, 64, 28672, v=128256, kv=8, gated=True, b=1, s=8192, t=8),
    ],
    ids=["llama 3 8B", "llama 7B", "llama 3 70B over 8 ranks"],
)
@GPUS
def test_good_shapes_pass_and_say_what_they_lose(x: Shape, gpu: Gpu, said: Listener) -> None:
    says_why(RULE.check(judged_facts(x, gpu=gpu)), "passed", said)


def test_only_numbers_that_heads_and_ranks_allow_are_tried() -> None:
    x = Shape(1200, 12, 4800, kv=6, d=100, b=4, s=1024, layers=12, v=32000, t=2)
    tried = {one for one in (1, 2, 3, 4, 6, 12) if one != 6 and 12 % one == 0 and one % 2 == 0}
    assert set(other_kv_heads(judged_facts(x))) == tried


def test_unfused_attention_does_not_show_key_value_heads(said: Listener) -> None:
    rows = [
        gemm(1, 2048, 2048, 64, batch=12, component="attention.scores", names=("s", "s", "d")),
        gemm(2, 2048, 2304, 768, component="attention.qkv"),
    ]
    says_why(RULE.check(facts(*rows, dims=model(hidden=768, heads=12, head_dim=64))), "could_not_run", said)


def test_without_shapes_losses_or_a_simulation_it_could_not_run(said: Listener) -> None:
    step = separate(ODD)
    blind = replace(step, gemms=[replace(row, lost_ms=Lost()) for row in step.gemms])
    bare = facts(gemm(1, None, None, None))
    for lacking in (bare, blind, replace(step, step=None), replace(step, step_ms=None)):
        says_why(RULE.check(lacking), "could_not_run", said)


def test_it_does_not_apply_without_attention_or_its_products() -> None:
    assert RULE.check(facts(gemm(1, 64, 64, 64))).state == "not_applicable"
    assert RULE.check(facts(gemm(1, 64, 64, 64), dims=model(False))).state == "not_applicable"
    step = facts(attention(1, 64), gemm(2, 64, 64, 64), dims=model(heads=8, kv_heads=8, head_dim=64))
    assert RULE.check(step).state == "not_applicable"
