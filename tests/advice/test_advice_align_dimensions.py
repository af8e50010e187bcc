"""TL102: one finding per dimension to change, and no false alarms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_rows import H100, NVJET, SIMT, bert_small_logits, cutlass, facts, gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.results import GemmRow
from tracelens.rules.align_dimensions import AlignDimensions
from tracelens.rules.engine.facts import Outcome
from tracelens.step.whatif import what_if

RULE = AlignDimensions()
LLAMA = model(hidden=4096, heads=32, ffn=10922, vocab=32000, layers=32, sequence=2048, micro_batch=2)


def mlp() -> list[GemmRow]:
    """An MLP without a gate; the width of a gated one is TL104's."""
    common: dict[str, Any] = {"calls": 32, "time_us": 1400.0, "kernel": cutlass(2)}
    return [
        gemm(1, 4096, 10922, 4096, component="mlp.up", names=("b*s", "f", "h"), **common),
        gemm(2, 4096, 4096, 10922, component="mlp.down", names=("b*s", "h", "f"), **common),
    ]


def check(*rows: GemmRow, **more: Any) -> Outcome:
    return RULE.check(facts(*rows, **more))


def test_an_mlp_is_one_finding_for_its_one_parameter(said: Listener) -> None:
    (finding,) = check(*mlp(), step_ms=500.0, dims=LLAMA).findings
    said(finding.title)
    assert finding.change == {"ffn": [10922, 10944]}
    assert finding.fix == ["- ffn = 10922", "+ ffn = 10944"]
    assert sorted(finding.gemms) == ["g1", "g2"]
    assert sorted(finding.components) == ["mlp.down", "mlp.up"]
    assert finding.parameter_delta == 32 * 2 * 4096 * 22
    assert finding.flops_delta == pytest.approx(22 / 10922)
    assert (finding.severity, finding.confidence, finding.effort) == ("high", "medium", "retrain")


@pytest.mark.parametrize(
    "gate",
    [
        gemm(3, 4096, 10922, 4096, component="mlp.gate", kernel=cutlass(2), names=("b*s", "f", "h")),
        gemm(3, 4096, 21844, 4096, component="mlp.up", kernel=cutlass(4), names=("b*s", "2*f", "h")),
    ],
    ids=["gate", "gate and up in one"],
)
def test_the_width_of_a_gated_mlp_is_left_to_its_own_rule(gate: GemmRow, said: Listener) -> None:
    outcome = check(*mlp(), gate, dims=LLAMA)
    assert outcome.state == "passed" and "TL104" in outcome.why
    said(outcome.why)


def test_the_sequence_is_left_to_its_own_rule(said: Listener) -> None:
    row = gemm(1, 3137, 3137, 64, batch=96, component="attention.scores", kernel=cutlass(1),
               names=("s", "s", "d"))  # fmt: skip
    outcome = check(row, dims=model(sequence=3137, head_dim=64, heads=12))
    assert outcome.state == "passed" and "TL110" in outcome.why
    said(outcome.why)


def test_hidden_keeps_its_heads_even() -> None:
    rows = gemm(1, 4096, 3002, 3002, kernel=cutlass(2), names=("b*s", "h", "h"))
    (finding,) = check(rows, dims=model(hidden=3002, heads=6)).findings
    assert finding.change == {"hidden": [3002, 3072]}


def test_a_small_head_is_padded_to_the_grid_not_to_64(said: Listener) -> None:
    row = gemm(1, 5184, 4, 1024, component="other", kernel=cutlass(2), calls=5, time_us=11.3)
    (finding,) = check(row, step_ms=1.0).findings
    assert (finding.change, finding.effort) == ({"dimension": [4, 8]}, "code")
    said(finding.title)


def test_a_fallback_with_aligned_dimensions_is_left_to_the_rule_of_views() -> None:
    outcome = check(gemm(1, 4096, 4096, 4096, kernel=cutlass(4), component="attention.qkv"))
    assert outcome.state == "passed" and outcome.findings == ()


def test_a_fallback_to_cuda_cores_with_aligned_dimensions_is_found(said: Listener) -> None:
    row = gemm(1, 4096, 4096, 4096, kernel=SIMT, component="attention.qkv", tensor_core="eligible_unused")
    (finding,) = check(row).findings
    assert finding.change == {} and finding.fix == []
    assert finding.confidence == "medium"
    (narrow,) = check(*mlp(), step_ms=500.0, dims=LLAMA).findings
    assert finding.why != narrow.why
    said(finding.title, finding.caveats, finding.why, narrow.why)


def test_a_fallback_without_a_shape_is_found_by_name(said: Listener) -> None:
    (finding,) = check(gemm(1, None, None, None, dtype=None, kernel=cutlass(1))).findings
    said(finding.saw)
    # a kernel takes 3 us at least
    assert finding.saving_ms.high == pytest.approx(2.0 - 0.003)


def test_a_fallback_without_a_shape_is_of_the_size_that_its_part_of_the_model_has(said: Listener) -> None:
    """A CUDA graph's kernels have no shapes; what it captured tells the model's sizes."""
    row = gemm(1, None, None, None, dtype=None, kernel=cutlass(2), component="mlp.down")
    (finding,) = check(row, dims=model(hidden=4096, ffn=10922)).findings
    assert finding.change == {"ffn": [10922, 10944]}
    said(finding.saw)
    for sizes in ({"hidden": 4097, "ffn": 10922}, {"ffn": 10922}, {"hidden": 4096, "ffn": 10944}):
        assert check(row, dims=model(**sizes)).findings[0].change == {}
    other = gemm(1, None, None, None, dtype=None, kernel=cutlass(2), component="attention.output")
    assert check(other, dims=model(hidden=4096, ffn=10922)).findings[0].change == {}


def test_dimensions_alone_give_medium_confidence(said: Listener) -> None:
    (finding,) = check(
        gemm(1, 4096, 10922, 4096, kernel="unnamed", names=(None, "f", "h")), dims=LLAMA
    ).findings
    assert finding.confidence == "medium"
    said(finding.saw)


def test_rows_of_the_vocabulary_rule_are_not_counted_again() -> None:
    assert check(bert_small_logits(), dims=model(vocab=30522)).state == "not_applicable"


def test_the_head_dimension_of_scores_is_left_to_its_own_rule() -> None:
    row = gemm(
        1, 2048, 2048, 36, batch=64, component="attention.scores", kernel=cutlass(4), names=("s", "s", "d")
    )
    assert check(row, dims=model(head_dim=36, heads=64, sequence=2048)).state == "passed"


def test_aligned_gemms_pass_with_the_count(said: Listener) -> None:
    says_why(check(gemm(1, 141, 512, 512), gemm(2, None, None, None, kernel=NVJET)), "passed", said)


def test_tiny_gemms_pass_and_say_how_little(said: Listener) -> None:
    says_why(check(gemm(1, 5184, 4, 1024, kernel=cutlass(2), time_us=11.3), step_ms=1000.0), "passed", said)


def test_what_is_left_out_below_the_threshold_is_said(said: Listener) -> None:
    tiny = gemm(9, 5184, 4, 1024, component="other", kernel=cutlass(2), time_us=11.3)
    outcome = check(*mlp(), tiny, step_ms=500.0, dims=LLAMA)
    assert len(outcome.findings) == 1
    said(outcome.why)


def test_without_shapes_it_could_not_run(said: Listener) -> None:
    says_why(check(gemm(1, None, None, None)), "could_not_run", said)
    assert check(*mlp(), step_ms=None).state == "could_not_run"


def test_full_precision_on_cuda_cores_is_not_judged(said: Listener) -> None:
    simt = gemm(1, 141, 511, 511, dtype="fp32", kernel=SIMT, tensor_core="eligible_unused")
    assert check(simt).state == "not_applicable"
    said(check(simt, gemm(2, 64, 64, 64)).why, check(gemm(2, 64, 64, 64)).why)


def test_without_gemms_it_does_not_apply() -> None:
    assert RULE.check(facts(gpu=H100)).state == "not_applicable"


def test_two_sizes_of_one_product_without_a_parameter_are_one_finding(said: Listener) -> None:
    rows = (
        gemm(1, 32768, 6, 12, component="attention.other", kernel=cutlass(2), calls=10, time_us=57.0),
        gemm(2, 32768, 12, 6, component="attention.other", kernel=cutlass(2), calls=10, time_us=49.0),
    )
    (finding,) = check(*rows, step_ms=10.0).findings
    assert finding.change == {"dimension_6": [6, 8], "dimension_12": [12, 16]}
    assert finding.fix[1:] == ["- size 6", "+ size 8", "- size 12", "+ size 16"]
    assert finding.saving_ms.high == pytest.approx(1.06 - 20 * 0.003)  # a kernel's 3 µs are no shape's
    assert finding.flops_delta == pytest.approx(8 / 6 * 16 / 12 - 1)
    assert finding.effects is not None and finding.effects.checkpoint == "unknown"
    said(finding.title, finding.fix[0], finding.how, finding.caveats, finding.effects.flops.how)


def test_sizes_of_different_products_stay_findings_of_their_own(said: Listener) -> None:
    rows = (
        gemm(1, 32768, 4, 1024, component="other", kernel=cutlass(2), calls=10, time_us=57.0),
        gemm(2, 32768, 1024, 6, component="other", kernel=cutlass(2), calls=10, time_us=49.0),
    )
    found = check(*rows, step_ms=10.0).findings
    assert [one.change for one in found] == [{"dimension": [4, 8]}, {"dimension": [6, 8]}]
    said([one.title for one in found])


def test_a_check_that_saw_little_has_not_passed() -> None:
    seen = gemm(1, 64, 64, 64, time_us=10.0)
    blind = gemm(2, None, None, None, dtype=None, time_us=500.0)
    cores = gemm(3, 4096, 4096, 4096, dtype="fp32", kernel=SIMT, tensor_core="eligible_unused", time_us=500.0)
    assert RULE.check(facts(seen, blind)).state == "could_not_run"
    assert RULE.check(facts(seen, cores)).state == "not_applicable"
    assert RULE.check(facts(replace(seen, time_ms_per_step=1.0), blind)).state == "passed"


def test_a_size_of_the_data_is_no_weights() -> None:
    """53 particles in attention's scores, a window of 14 in an einsum: there is no weight to pad."""
    scores = gemm(1, 53, 53, 16, batch=512, component="attention.scores", kernel=cutlass(1), layout="TN")
    linear = gemm(2, 4096, 100, 1024, component="other", kernel=cutlass(4))
    data = [one for one in RULE.check(facts(scores)).findings if one.change == {"dimension": [53, 56]}]
    (weight,) = RULE.check(facts(linear)).findings
    assert weight.change == {"dimension": [100, 104]}
    assert data and all(set(weight.caveats) != set(one.caveats) for one in data)


def test_the_part_of_ffn_that_a_rank_holds_is_simulated_for_all_of_them() -> None:
    """2 ranks with 5461 columns each: both are padded to 5504, 11008 in all."""
    step = facts_of(Shape(4096, 32, 10922, t=2))
    (finding,) = (one for one in RULE.check(step).findings if "ffn" in one.change)
    assert finding.change == {"ffn": [5461, 5504]}
    assert step.step is not None
    whole = what_if(step.step, {"ffn": 11008}).saving_ms.mid
    assert finding.saving_ms.mid == pytest.approx(whole) and whole is not None


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_width_is_the_whole_models_on_every_rank(ranks: int, said: Listener) -> None:
    step = facts_of(Shape(3002, 24, 12288, d=128, t=ranks))
    (finding,) = (one for one in RULE.check(step).findings if "hidden" in one.change)
    assert step.step is not None
    whole = what_if(step.step, {"hidden": 3072}).saving_ms
    assert finding.change == {"hidden": [3002, 3072]} and whole.mid is not None
    assert finding.saving_ms.mid == pytest.approx(whole.mid)
    said(finding.caveats)


def test_a_bare_dimension_is_not_simulated() -> None:
    (finding,) = check(gemm(1, 5184, 4, 1024, component="other", kernel=cutlass(2), calls=500)).findings
    assert finding.saving_ms.mid is None and finding.parameter_delta is None
    assert finding.change == {"dimension": [4, 8]}


def test_the_width_is_simulated_and_takes_another_model(said: Listener) -> None:
    row = gemm(1, 4096, 3002, 3002, kernel=cutlass(2), names=("b*s", "h", "h"))
    (finding,) = check(row, dims=model(hidden=3002, heads=6)).findings
    assert finding.effort == "retrain"
    (headless,) = check(row, dims=model(hidden=3002)).findings
    said("\n".join(finding.caveats), "\n".join(headless.caveats))


def test_another_size_of_the_same_products_that_is_off_the_grid_is_said(said: Listener) -> None:
    """3002 wide and ffn of 10922: what one change aligns the other keeps off."""
    row = gemm(1, 4096, 10922, 3002, component="mlp.up", kernel=cutlass(2), names=("b*s", "f", "h"))
    dims = model(hidden=3002, heads=6, ffn=10922)
    for finding in (*check(row, dims=dims).findings, *check(*mlp(), step_ms=500.0, dims=LLAMA).findings):
        said("\n".join([next(iter(finding.change)), *finding.caveats]))


def test_two_sizes_of_three_that_are_rows_in_memory_are_both_needed(said: Listener) -> None:
    row = gemm(1, 9998, 6, 10, layout="NT", component="attention.other", kernel=cutlass(2), calls=10)
    (finding,) = check(row, step_ms=10.0).findings
    assert finding.change == {"dimension_6": [6, 8], "dimension_9998": [9998, 10000]}
    said(finding.caveats)
