"""TL103: padding inside flash kernels, small heads, and how the bound is limited."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.advice.advice_rows import attention, cutlass, facts, flash2, gemm, model
from tests.said import Listener
from tracelens.results import Finding, GemmRow
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.engine.pages import why
from tracelens.rules.head_dimension import HeadDimension
from tracelens.step.words.search import losing_degrees

RULE = HeadDimension()
GPT3_2_7B: dict[str, int | None] = {"hidden": 2560, "heads": 32, "kv_heads": 32, "head_dim": 80}

#: FlashAttention on an A100, 128 heads, TFLOP/s by head dimension (arXiv 2401.14489).
A100_TFLOPS = {8: 22, 16: 49, 32: 87, 64: 136, 80: 208, 128: 222}


def one(*rows: GemmRow, **more: Any) -> Finding:
    (finding,) = RULE.check(facts(*rows, **more)).findings
    return finding


def test_the_copied_2_7b_shape_is_found(said: Listener) -> None:
    finding = one(attention(1, 80, kernel=flash2(96)), step_ms=100.0, dims=model(**GPT3_2_7B))
    assert finding.change == {"head_dim": [80, 128], "heads": [32, 20]}
    assert finding.fix == ["- heads = 32   # head_dim 80", "+ heads = 20   # head_dim 128"]
    assert (finding.effort, finding.confidence) == ("retrain", "medium")
    assert finding.parameter_delta == 0
    assert finding.evidence["padding_frac"] == pytest.approx(1 - 80 / 96)
    said(finding.title, finding.saw, finding.caveats)


def test_the_title_names_the_split_that_the_saving_is_of_and_no_other() -> None:
    """40 heads of 64 in place of 32 of 80 saved a twelfth of what 20 of 128 did, on one H100."""
    finding = one(attention(1, 80, kernel=flash2(96)), step_ms=100.0, dims=model(**GPT3_2_7B))
    assert len(finding.evidence["options"]) == 2
    assert {int(size) for size in re.findall("[0-9]+", finding.title)} == {32, 80, 20, 128}


def test_lost_degrees_of_tensor_parallelism_are_named() -> None:
    finding = one(attention(1, 80, kernel=flash2(96)), step_ms=100.0, dims=model(**GPT3_2_7B))
    assert any(losing_degrees(20, [8]) in caveat for caveat in finding.caveats)
    even = one(attention(1, 80, kernel=flash2(96), heads=64), step_ms=100.0,
               dims=model(hidden=5120, heads=64, kv_heads=64, head_dim=80))  # fmt: skip
    assert even.change["heads"] == [64, 40]
    assert not any("divide" in caveat for caveat in even.caveats)


def test_the_bound_is_no_more_than_the_work_that_falls_away(said: Listener) -> None:
    finding = one(attention(1, 80, kernel=flash2(96)), step_ms=100.0, dims=model(**GPT3_2_7B))
    assert finding.saving_ms.high == pytest.approx(32 * 0.2 * (1 - 80 / 128))
    said(finding.how)


def test_the_bound_holds_for_the_measured_sweep() -> None:
    # At equal width time goes with 1 / TFLOP/s: the measured gain never exceeds what the bound allows.
    for size, speed in A100_TFLOPS.items():
        assert 1 - speed / A100_TFLOPS[128] <= 1 - size / 128 + 1e-12


def test_the_floor_limits_the_bound_too() -> None:
    fast = attention(1, 80, kernel=flash2(96), time_us=25.0)
    finding = one(fast, step_ms=10.0, dims=model(**GPT3_2_7B))
    floor_us = 0.5 * 4 * 32 * 2048**2 * 80 / 989e12 * 1e6
    assert finding.saving_ms.high == pytest.approx(32 * (25.0 - floor_us) / 1e3)


@pytest.mark.parametrize(("head_dim", "state"), [(80, "passed"), (72, "found")])
def test_flash_attention_4_pads_to_multiples_of_16(head_dim: int, state: str) -> None:
    """flash_attn/cute/flash_fwd_sm100.py: head_dim_padded."""
    name = "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at"
    dims = model(hidden=32 * head_dim, heads=32, head_dim=head_dim)
    assert RULE.check(facts(attention(1, head_dim, kernel=name), step_ms=100.0, dims=dims)).state == state


def test_small_heads_take_the_next_size_first(said: Listener) -> None:
    finding = one(
        attention(1, 40, heads=64, kernel=flash2(64)), dims=model(hidden=2560, heads=64, head_dim=40)
    )
    assert finding.change == {"head_dim": [40, 64], "heads": [64, 40]}
    said(finding.title)


def test_one_head_is_no_heads(said: Listener) -> None:
    finding = one(attention(1, 16, heads=8, kernel=flash2(64)), dims=model(hidden=128, heads=8, head_dim=16))
    assert finding.change == {"head_dim": [16, 64], "heads": [8, 2]}
    said(finding.title)


def test_heads_of_32_fill_their_kernel_and_are_still_small() -> None:
    finding = one(attention(1, 32, kernel=flash2(32)), dims=model(hidden=1024, heads=32, head_dim=32))
    assert finding.confidence == "medium"


def test_a_size_off_the_grid_counts_all_time_above_the_floor(said: Listener) -> None:
    rows = [
        gemm(1, 2048, 2048, 36, batch=64, component="attention.scores", kernel=cutlass(4), calls=24),
        gemm(
            2,
            2048,
            36,
            2048,
            batch=64,
            component="attention.values",
            kernel=cutlass(4),
            calls=24,
            layout="NN",
        ),
    ]
    finding = one(*rows, dims=model(hidden=2304, heads=64, head_dim=36))
    assert finding.gemms == ["g1", "g2"] or finding.gemms == ["g2", "g1"]
    assert finding.change == {"head_dim": [36, 64], "heads": [64, 36]}
    said(finding.why)


def test_an_uneven_width_changes_the_head_dimension_alone(said: Listener) -> None:
    finding = one(attention(1, 80, heads=3, kernel=flash2(96)), dims=model(hidden=240, heads=3, head_dim=80))
    assert finding.change == {"head_dim": [80, 128]}
    assert finding.fix == ["- head_dim = 80", "+ head_dim = 128"]
    assert finding.parameter_delta is None
    said(finding.title, finding.caveats)


def test_unknown_heads_leave_both_sizes_open(said: Listener) -> None:
    finding = one(
        attention(1, 80, kernel=flash2(96), attention=AttentionDims(kv_heads=4, head_dim=80, tokens=64))
    )
    assert finding.fix == ["- head_dim = 80", "+ head_dim = 128"]
    said(finding.title)


def test_key_value_heads_are_mentioned_and_leave_the_delta_open(said: Listener) -> None:
    finding = one(attention(1, 80, kernel=flash2(96)), dims=model(**(GPT3_2_7B | {"kv_heads": 8})))
    assert finding.parameter_delta is None
    said(finding.caveats)


def test_heads_are_those_of_the_whole_model_on_every_rank(said: Listener) -> None:
    """A rank's 32 heads of 80 are 20 of 128: of the model's 256, 160. No rank has a part of head_dim."""
    finding = one(attention(1, 80, kernel=flash2(96)), dims=model(**(GPT3_2_7B | {"tensor_parallel": 8})))
    assert finding.change == {"head_dim": [80, 128], "heads": [256, 160]}
    assert finding.fix == ["- heads = 256   # head_dim 80", "+ heads = 160   # head_dim 128"]
    said(finding.title, finding.caveats)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_usual_sizes_pass(head_dim: int, said: Listener) -> None:
    outcome = RULE.check(facts(attention(1, head_dim)))
    assert outcome.state == "passed"
    said(outcome.why)


def test_a_size_that_the_kernel_is_compiled_for_passes() -> None:
    assert RULE.check(facts(attention(1, 96))).state == "passed"
    assert RULE.check(facts(attention(1, 96, kernel="cudnn_generated_fort_native_sdpa"))).state == "passed"


def test_cudnn_s_kernels_on_hopper_say_what_they_compute() -> None:
    """An H100 takes as long for heads of 96 as for 128: benchmarks/gpu/results/h100-sxm."""
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
    for head_dim in (80, 96):
        finding = one(attention(1, head_dim, kernel=name), dims=model(**GPT3_2_7B))
        assert finding.confidence != "low" and finding.evidence["compiled_head_dim"] == 128
    assert RULE.check(facts(attention(1, 128, kernel=name))).state == "passed"


def test_a_kernel_that_does_not_say_gives_low_confidence(said: Listener) -> None:
    name = "cudnn_generated_fort_native_sdpa_sm100_flash_fprop_f16_knob_7"
    finding = one(attention(1, 80, kernel=name), dims=model(**GPT3_2_7B))
    assert finding.confidence == "low"
    said(finding.saw)


def test_values_of_another_width_are_not_judged() -> None:
    row = attention(1, 192, attention=AttentionDims(1, 32, 32, 2048, 2048, 192, 128))
    assert RULE.check(facts(row)).state == "could_not_run"


def test_without_attention_it_does_not_apply() -> None:
    assert RULE.check(facts(gemm(1, 64, 64, 64))).state == "not_applicable"


def test_without_a_head_dimension_or_step_it_could_not_run(said: Listener) -> None:
    outcome = RULE.check(facts(attention(1, None, kernel="cudnn_generated_fort_native_sdpa")))
    assert outcome.state == "could_not_run"
    said(outcome.why)
    assert RULE.check(facts(attention(1, 80), step_ms=None)).state == "could_not_run"


def test_a_small_share_passes_with_the_figure(said: Listener) -> None:
    outcome = RULE.check(facts(attention(1, 80, kernel=flash2(96), calls=1), step_ms=5000.0))
    assert outcome.state == "passed"
    said(outcome.why)


def test_heads_are_those_of_the_row_and_not_of_the_model() -> None:
    """SAM: an encoder of 16 heads of 80, and a decoder of 8 heads of 16 whose sizes the model's are."""
    dims = model(hidden=256, heads=8, head_dim=16)
    finding = one(attention(1, 80, heads=16, kernel=flash2(96)), step_ms=100.0, dims=dims)
    assert {(way["head_dim"], way["heads"]) for way in finding.evidence["options"]} == {(128, 10), (64, 20)}
    assert finding.change == {} and finding.parameter_delta is None
    assert finding.effects is not None and finding.effects.checkpoint == "scratch"


def test_attention_of_other_heads_does_not_take_the_models_head_dimension() -> None:
    """The encoder in a captured graph: its grid tells 16 heads, and nothing how large they are."""
    captured = attention(1, None, attention=AttentionDims(25, 16, None, None, None, None))
    dims = model(hidden=256, heads=8, head_dim=16)
    assert RULE.check(facts(captured, step_ms=100.0, dims=dims)).state == "could_not_run"
    decoders = attention(1, None, attention=AttentionDims(25, 8, None, None, None, None))
    assert one(decoders, step_ms=100.0, dims=dims).evidence["head_dim"] == 16


def test_two_attentions_of_one_head_dimension_are_two_findings() -> None:
    rows = attention(1, 80, heads=16, kernel=flash2(96)), attention(2, 80, heads=8, kernel=flash2(96))
    findings = RULE.check(facts(*rows, step_ms=100.0, dims=model(**GPT3_2_7B))).findings
    assert [finding.gemms for finding in findings] == [["g2"], ["g1"]]


def test_separate_products_say_their_head_dimension_themselves() -> None:
    """A ParticleTransformer whose dimensions are not known as a model's: 8 heads of 16 over 53 particles."""
    scores = gemm(1, 53, 53, 16, batch=64, component="attention.scores")
    values = gemm(2, 53, 16, 53, batch=64, component="attention.values")
    outcome = RULE.check(facts(scores, values, dims=model()))
    assert outcome.findings and {one.evidence["head_dim"] for one in outcome.findings} == {16}


def test_a_product_that_says_no_heads_has_those_of_the_fused_calls_of_its_size() -> None:
    """Segment Anything's relative positions beside its attention, no dimension of a model known."""
    rows = attention(1, 80, heads=16, kernel=flash2(96)), gemm(2, 5600, 14, 80, component="attention.scores")
    assert sorted(one(*rows, step_ms=100.0, dims=model()).gemms) == ["g1", "g2"]


@pytest.mark.parametrize(
    ("head_dim", "compiled", "part"), [(36, 64, "no multiple of 8"), (40, 64, "below 64"), (80, 96, "")]
)
def test_the_reason_is_that_of_the_size(head_dim: int, compiled: int, part: str, said: Listener) -> None:
    """The parts of docs/rules/TL103.md: no multiple of 8, below 64, and else the first."""
    dims = model(hidden=64 * head_dim, heads=64, head_dim=head_dim)
    finding = one(attention(1, head_dim, heads=64, kernel=flash2(compiled)), dims=dims)
    assert finding.why == why("TL103", part)
    said(finding.why)


def test_a_size_off_the_grid_is_not_limited_to_the_work_that_falls_away(said: Listener) -> None:
    """36 of 64 columns: half of the operations at 989 TFLOP/s are all that has to stay."""
    dims = model(hidden=2304, heads=64, head_dim=36)
    finding = one(attention(1, 36, heads=64, kernel=flash2(64)), dims=dims)
    floor_us = 0.5 * 4 * 64 * 2048**2 * 36 / 989e6
    assert finding.saving_ms.high == pytest.approx(32 * (200.0 - floor_us) / 1e3)
    assert finding.evidence["padding_frac"] == pytest.approx(1 - 36 / 64)
    said(finding.how)


def test_separate_products_have_no_masks_to_count(said: Listener) -> None:
    scores = gemm(1, 2048, 2048, 40, batch=64, component="attention.scores", calls=24)
    finding = one(scores, dims=model(hidden=2560, heads=64, head_dim=40))
    assert finding.confidence == "medium"
    said(finding.saw, finding.how)


def test_nothing_of_the_same_width_adds_no_weights_and_no_work() -> None:
    alike = one(attention(1, 80, kernel=flash2(96)), dims=model(**GPT3_2_7B))
    assert (alike.parameter_delta, alike.flops_delta) == (0, 0.0)
    unknown = one(attention(1, 80, kernel=flash2(96)), dims=model(**(GPT3_2_7B | {"kv_heads": None})))
    assert (unknown.parameter_delta, unknown.flops_delta) == (0, 0.0)
    for dims in (GPT3_2_7B | {"kv_heads": 8}, GPT3_2_7B | {"heads": 16, "kv_heads": 16}):
        other = one(attention(1, 80, kernel=flash2(96)), dims=model(**dims))
        assert (other.parameter_delta, other.flops_delta) == (None, None)


def test_a_size_that_passes_says_by_what_it_fits(said: Listener) -> None:
    cudnn = "cudnn_generated_fort_native_sdpa"
    for row in (attention(1, 96), attention(1, 64, kernel=cudnn), attention(1, 96, kernel=cudnn)):
        outcome = RULE.check(facts(row))
        assert outcome.state == "passed"
        said(outcome.why)


def test_two_numbers_of_heads_of_one_size_pass_in_one_sentence() -> None:
    """A model that pairs heads in some of its layers: 6 heads and 12, both of 128."""
    rows = [attention(at, 128, heads=heads, kernel=flash2(128)) for at, heads in ((1, 6), (2, 12))]
    outcome, alone = RULE.check(facts(*rows)), RULE.check(facts(rows[0]))
    assert outcome.state == "passed" and outcome.why == alone.why
