"""TL117: attention in separate kernels, against one fused kernel."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import A100, H100, RTX3060, V100, other, step_of
from tests.advice.advice_rows import attention, gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware import Gpu
from tracelens.results import GemmRow, OtherRow
from tracelens.rules.advise import advise
from tracelens.rules.catalog import RULES
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.rule import Rule
from tracelens.rules.layout_copies import LayoutCopies
from tracelens.rules.pad_vocabulary import PadVocabulary
from tracelens.rules.unfused_attention import UnfusedAttention

RULE = UnfusedAttention()
DIMS = model(hidden=768, heads=12, head_dim=64, layers=12, sequence=1024, micro_batch=8)
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)"
HEADS, S, D, LAYERS = 96, 1024, 64, 12.0


def core(
    *, heads: int = HEADS, q: int = S, k: int = S, d: int = D, training: bool = False, **more: Any
) -> list[GemmRow]:
    """Scores and values of one size, 200 us each; in training four more in the backward."""
    given: dict[str, Any] = {"batch": heads, "calls": LAYERS, "time_us": 200.0, "op": "aten::bmm"} | more
    scores, values = "attention.scores", "attention.values"
    rows = [
        gemm(1, q, k, d, component=scores, **given),
        gemm(2, q, d, k, component=values, **given),
    ]
    if training:
        back = {"role": "dgrad", **given}
        rows += [
            gemm(3, k, d, q, component=values, **back), gemm(4, q, k, d, component=values, **back),
            gemm(5, q, d, k, component=scores, **back), gemm(6, k, d, q, component=scores, **back),
        ]  # fmt: skip
    return rows


def softmax(number: int = 1, **more: Any) -> OtherRow:
    given: dict[str, Any] = {"op": "aten::_softmax", "kernel": SOFTMAX, "calls": LAYERS, "time_us": 300.0}
    return other(number, "reduction", component="attention.softmax", **(given | more))


def pointwise(number: int, op: str, **more: Any) -> OtherRow:
    given: dict[str, Any] = {"calls": LAYERS, "time_us": 150.0, "component": "attention.softmax"}
    return other(number, "elementwise", op=op, **(given | more))


def check(*others: OtherRow, rows: list[GemmRow] | None = None, **more: Any) -> Outcome:
    given: dict[str, Any] = {"dims": DIMS, "step_ms": 60.0, "others": others or (softmax(),)}
    return RULE.check(step_of(core() if rows is None else rows, **(given | more)))


def fused(
    direction: str = "forward", *, backend: str, causal: bool = False, gpu: Gpu = H100, **more: Any
) -> tuple[float, float, float]:
    """Predicted ms per step of the calls of ``core``."""
    sizes: dict[str, Any] = {"heads": HEADS, "seq_q": S, "seq_k": S, "head_dim": D, "dtype": "bf16"} | more
    time = predict_attention(
        AttentionProblem(batch=1, kv_heads=sizes["heads"], causal=causal, direction=direction, **sizes),
        gpu=gpu,
        backend=backend,
    ).time_us
    assert time.low is not None and time.mid is not None and time.high is not None
    return time.low * LAYERS / 1e3, time.mid * LAYERS / 1e3, time.high * LAYERS / 1e3


CHAIN = (200 + 200 + 300) * LAYERS / 1e3


# --- found -------------------------------------------------------------------------------------------


def test_the_saving_is_the_measured_chain_minus_the_predicted_fused_kernel(said: Listener) -> None:
    (finding,) = check().findings
    # Hopper takes cuDNN from torch 2.11 on and FlashAttention before: the slower is the middle.
    flash, cudnn = fused(backend="flash"), fused(backend="cudnn")
    assert finding.saving_ms.mid == pytest.approx(CHAIN - max(flash[1], cudnn[1]))
    assert finding.saving_ms.low == pytest.approx(CHAIN - max(flash[2], cudnn[2]))
    assert finding.saving_ms.high == pytest.approx(CHAIN - min(flash[0], cudnn[0]))
    assert (finding.basis, finding.confidence, finding.effort) == ("model", "medium", "code")
    assert finding.gemms == ["g1", "g2"]
    assert any("scaled_dot_product_attention(" in line for line in finding.fix)
    assert any('attn_implementation="sdpa"' in line for line in finding.fix)
    said(finding.saw, finding.fix)


def test_training_counts_the_backward_of_both() -> None:
    back = softmax(2, phase="backward", op="aten::_softmax_backward_data", time_us=400.0)
    (finding,) = check(softmax(), back, rows=core(training=True)).findings
    chain = (6 * 200 + 300 + 400) * LAYERS / 1e3
    then = [max(fused(d, backend=b)[1] for b in ("flash", "cudnn")) for d in ("forward", "backward")]
    assert finding.saving_ms.mid == pytest.approx(chain - sum(then))
    assert finding.gemms == [f"g{number}" for number in range(1, 7)]


def test_the_memory_of_the_scores_is_said_and_the_fused_kernels_statistics_are_kept(said: Listener) -> None:
    (finding,) = check(softmax(), rows=core(training=True)).findings
    effects = finding.effects
    assert effects is not None and effects.memory.delta is not None
    assert effects.memory.delta == -LAYERS * (2 * HEADS * S * S - 4 * HEADS * S)
    assert effects.memory.delta == effects.memory.activations
    assert effects.parameters.delta == 0 and effects.checkpoint == "loads"
    said(effects.memory.how)


def test_the_backward_multiplies_five_times_and_not_four() -> None:
    (finding,) = check(softmax(), rows=core(training=True)).findings
    assert finding.effects is not None
    # One of six equal products more.
    assert finding.effects.flops.frac == pytest.approx(1 / 6)


def test_without_a_backward_no_scores_are_kept(said: Listener) -> None:
    (finding,) = check().findings
    assert finding.effects is not None and finding.effects.memory.delta is None
    assert finding.effects.flops.delta == 0
    said(finding.effects.memory.how)


def test_recomputed_forwards_are_replaced_as_well() -> None:
    again = [
        gemm(7, S, S, D, component="attention.scores", batch=HEADS, calls=LAYERS, time_us=200.0,
             phase="recompute"),
        gemm(8, S, D, S, component="attention.values", batch=HEADS, calls=LAYERS, time_us=200.0,
             phase="recompute"),
    ]  # fmt: skip
    (finding,) = check(softmax(), rows=[*core(training=True), *again]).findings
    forward, backward = (max(fused(d, backend=b)[1] for b in ("flash", "cudnn"))
                         for d in ("forward", "backward"))  # fmt: skip
    chain = (8 * 200 + 300) * LAYERS / 1e3
    assert finding.saving_ms.mid == pytest.approx(chain - 2 * forward - backward)
    assert finding.effects is not None and finding.effects.memory.delta is None
    assert "recomputed" in finding.effects.memory.how


def test_a_mask_can_be_causal_or_a_tensor(said: Listener) -> None:
    (finding,) = check(softmax(), pointwise(2, "aten::masked_fill")).findings
    chain = CHAIN + 150 * LAYERS / 1e3
    causal = min(fused(backend=b, causal=True)[0] for b in ("flash", "cudnn"))
    read = 2 * HEADS * S * S / 3350e6 * LAYERS
    tensor = fused(backend="efficient")[1] + read
    assert finding.saving_ms.high == pytest.approx(chain - causal)
    assert finding.saving_ms.mid == pytest.approx(chain - tensor, rel=1e-3)
    assert any("ALiBi" in caveat for caveat in finding.caveats)
    said(finding.how)


def test_a_mask_that_decides_whether_it_is_faster_leaves_a_bound(said: Listener) -> None:
    chain_us = fused(backend="efficient")[1] / LAYERS * 1e3
    rows = core(time_us=chain_us / 3)
    outcome = check(softmax(time_us=chain_us / 3), pointwise(2, "aten::add", time_us=chain_us / 3), rows=rows)
    (finding,) = outcome.findings
    assert finding.saving_ms.mid is None and finding.basis == "heuristic" and finding.confidence == "low"
    said(finding.how)


def test_a_head_dimension_that_takes_no_mask_tensor_leaves_the_causal_kernel(said: Listener) -> None:
    (finding,) = check(softmax(), pointwise(2, "aten::add"), rows=core(d=60), gpu=A100).findings
    assert finding.evidence["kernels"] == ["flash"]
    said(finding.how, finding.fix)


def test_what_is_added_to_the_scores_is_passed_on_and_not_called_causal(said: Listener) -> None:
    for rows in (
        [softmax(), pointwise(2, "aten::add")],
        [softmax(op=None, kernel="scaled_masked_softmax_warp")],
    ):
        (finding,) = check(*rows).findings
        assert "attn_mask=mask" in finding.fix[2]
        said(finding.fix)


def test_megatrons_kernel_says_that_the_mask_is_causal(said: Listener) -> None:
    kernel = "void scaled_upper_triang_masked_softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10>()"
    (finding,) = check(softmax(op=None, kernel=kernel)).findings
    flash, cudnn = fused(backend="flash", causal=True), fused(backend="cudnn", causal=True)
    assert finding.saving_ms.mid == pytest.approx(CHAIN - max(flash[1], cudnn[1]))
    said(finding.fix)


@pytest.mark.parametrize("op", ["aten::tanh", "aten::cat", "aten::sigmoid", "CustomScores", "aten::topk"])
def test_what_sdpa_does_not_do_to_scores_leaves_a_bound(op: str) -> None:
    (finding,) = check(softmax(), pointwise(2, op)).findings
    assert finding.saving_ms.mid is None and finding.basis == "heuristic"
    chain = CHAIN + 150 * LAYERS / 1e3
    assert finding.saving_ms.high is not None and finding.saving_ms.high < chain
    assert any("flex_attention" in caveat for caveat in finding.caveats)


def test_names_from_the_trace_stay_out_of_sentences() -> None:
    (finding,) = check(softmax(), pointwise(2, "evil</script>\x1b[31m", kernel="<i>")).findings
    text = " ".join([finding.saw, finding.how, *finding.caveats, str(finding.evidence)])
    assert "<" not in text and "\x1b" not in text


@pytest.mark.parametrize(
    "named",
    [
        {"op": "aten::sum"},
        {"op": "x", "kernel": "triton_per_fused_embedding_dense_backward_3"},
    ],
)
def test_a_bias_that_is_trained_leaves_a_bound(named: dict[str, str], said: Listener) -> None:
    gradient = pointwise(2, **named, phase="backward", within="AddBackward0")
    (finding,) = check(softmax(), pointwise(3, "aten::add"), gradient, rows=core(training=True)).findings
    assert finding.saving_ms.mid is None
    said(finding.caveats)


def test_copies_for_the_products_count_and_copies_around_them_at_the_high_end_alone() -> None:
    for_product = other(2, "transpose", component="attention.values", op="aten::reshape", calls=LAYERS,
                        within="aten::matmul", dims=(8, 12, S, D))  # fmt: skip
    around = other(3, "transpose", op="aten::contiguous", dims=(8, S, 12, D), calls=LAYERS)
    (plain,), (more,) = check().findings, check(softmax(), for_product, around).findings
    copy = 50 * LAYERS / 1e3
    assert plain.saving_ms.mid is not None and plain.saving_ms.high is not None
    assert more.saving_ms.mid == pytest.approx(plain.saving_ms.mid + copy)
    assert more.saving_ms.high == pytest.approx(plain.saving_ms.high + 2 * copy)


@pytest.mark.parametrize(
    "row",
    [
        other(2, "copy", op="aten::cat", within="SplitBackward0", phase="backward"),
        other(2, "copy", op="aten::reshape", dims=(8, 4, 3, S, D)),
        other(2, "elementwise", op="aten::add"),
        other(2, "transpose", component="mlp.up"),
        other(2, "elementwise", component="dropout", op="aten::native_dropout", module="Block.MLP.Dropout"),
    ],
)
def test_other_kernels_of_attention_stay(row: OtherRow) -> None:
    (plain,), (more,) = check().findings, check(softmax(), row).findings
    assert more.saving_ms == plain.saving_ms


def test_the_title_counts_the_copies_that_its_bound_counts(said: Listener) -> None:
    around = other(3, "transpose", op="aten::contiguous", dims=(8, S, 12, D), calls=LAYERS, time_us=2000)
    (found,) = check(softmax(), around).findings
    sure, whole = CHAIN, CHAIN + 2000 * LAYERS / 1e3
    assert found.saving_ms.high is not None and sure < found.saving_ms.high < whole
    said(found.title)
    (plain,) = check().findings
    said(plain.title)


def test_dropout_of_the_same_module_counts_at_the_high_end_alone() -> None:
    mine = softmax(module="Block.Attention")
    drop = other(2, "elementwise", component="dropout", op="aten::native_dropout",
                 module="Block.Attention.Dropout", calls=LAYERS)  # fmt: skip
    (plain,), (more,) = check(mine).findings, check(mine, drop).findings
    assert more.saving_ms.mid == plain.saving_ms.mid
    assert more.saving_ms.high == pytest.approx((plain.saving_ms.high or 0.0) + 50 * LAYERS / 1e3)


def test_multihead_attention_is_told_not_to_compute_weights(said: Listener) -> None:
    native = "aten::_native_multi_head_attention"
    rows = (
        softmax(within=native, module="Layer.MultiheadAttention"),
        other(2, "other", op="aten::_transform_bias_rescale_qkv", within=native, calls=LAYERS),
        other(3, "reduction", op="aten::sum", within=native, module="Layer.MultiheadAttention", calls=LAYERS),
        other(4, "elementwise", op="aten::div_", within="aten::div_", module="Layer.MultiheadAttention",
              calls=LAYERS),
    )  # fmt: skip
    (finding,) = check(*rows).findings
    (plain,) = check().findings
    assert any("need_weights=False" in line for line in finding.fix)
    assert finding.saving_ms.mid == pytest.approx((plain.saving_ms.mid or 0.0) + 3 * 50 * LAYERS / 1e3)
    said(finding.caveats)


def test_sdpa_that_took_its_own_unfused_path_is_told_so(said: Listener) -> None:
    scale = pointwise(2, "aten::mul", within="aten::_scaled_dot_product_attention_math")
    (finding,) = check(softmax(), scale).findings
    assert any("sdpa_kernel" in line for line in finding.fix)
    said(finding.caveats)


@pytest.mark.parametrize(
    ("gpu", "dtype", "backend"),
    [(A100, "bf16", "flash"), (A100, "fp32", "efficient"), (RTX3060, "fp32", "efficient"),
     (V100, "fp16", "efficient")],
)  # fmt: skip
def test_which_kernel_it_becomes_follows_from_gpu_and_type(gpu: Gpu, dtype: str, backend: str) -> None:
    slow: dict[str, Any] = {"time_us": 20000.0, "dtype": dtype}
    (finding,) = check(softmax(), rows=core(**slow), gpu=gpu, step_ms=2000.0).findings
    assert finding.evidence["kernels"] == [backend]
    chain = (2 * 20000 + 300) * LAYERS / 1e3
    then = fused(backend=backend, gpu=gpu, dtype=dtype)[1]
    assert finding.saving_ms.mid == pytest.approx(chain - then)


def test_two_sizes_are_two_predictions() -> None:
    scores, values = core(q=256, k=256)
    small = [replace(scores, id="g7"), replace(values, id="g8")]
    (finding,) = check(softmax(), rows=[*core(), *small]).findings
    assert len(finding.evidence["cores"]) == 2
    then = sum(max(fused(backend=b, seq_q=s, seq_k=s)[1] for b in ("flash", "cudnn")) for s in (S, 256))
    assert finding.saving_ms.mid == pytest.approx(CHAIN + 400 * LAYERS / 1e3 - then)


def test_calls_of_one_query_beside_others_are_taken_to_stay() -> None:
    few = [replace(row, id=f"g{7 + at}") for at, row in enumerate(core(q=1, time_us=20.0, calls=3.0))]
    (plain,), (finding,) = check().findings, check(rows=[*core(), *few]).findings
    # 2 x 3 x 20 us of products stay, with as large a part of the softmax
    left = 2 * 3 * 20 / (2 * 3 * 20 + 2 * 12 * 200)
    chain = CHAIN + 0.12
    assert finding.saving_ms.mid == pytest.approx((plain.saving_ms.mid or 0.0) + 0.12 - left * chain)
    assert finding.saving_ms.high == pytest.approx((plain.saving_ms.high or 0.0) + 0.12)
    assert finding.saving_ms.low == pytest.approx((plain.saving_ms.low or 0.0) + 0.12 - 3 / 15 * chain)
    assert check(rows=few).state == "could_not_run"


def test_a_step_that_waits_for_the_host_can_gain_nothing() -> None:
    (finding,) = check(gpu_busy_frac=0.3).findings
    assert finding.saving_ms.low == 0.0
    assert finding.saving_of == "gpu_work" and finding.severity == "low"


def test_compiled_softmax_is_known_by_its_kernels_name() -> None:
    name = "triton_per_fused__softmax__to_copy_abs_all_amax_eq_mul_ne_sub_view_13"
    (finding,) = check(softmax(op=name, kernel=name)).findings
    assert finding.saving_ms.mid is not None
    (capped,) = check(softmax(op=name, kernel="triton_per_fused__softmax__to_copy_mul_tanh_13")).findings
    assert capped.saving_ms.mid is None and any("(tanh)" in caveat for caveat in capped.caveats)


# --- together with others ----------------------------------------------------------------------------


def test_copies_that_two_findings_name_count_once() -> None:
    copies = [
        other(2, "transpose", component="attention.values", op="aten::reshape", within="aten::matmul",
              dims=(8, 12, S, D), calls=LAYERS, time_us=200.0),
    ]  # fmt: skip
    facts = step_of(core(), dims=DIMS, step_ms=60.0, others=(softmax(), *copies))
    advice = advise(facts, rules=(RULE, LayoutCopies()))
    assert [finding.rule for finding in advice.findings] == ["TL117", "TL113"]
    alone = advise(facts, rules=(RULE,))
    assert advice.at_stake_ms is not None and alone.at_stake_ms is not None
    assert advice.at_stake_ms.mid == alone.at_stake_ms.mid
    assert advice.at_stake_ms.high == pytest.approx(alone.at_stake_ms.high)


class _Fixed(Rule):
    """A rule with the findings it is given."""

    slug, title = "fixed", "Fixed"

    def __init__(self, name: str, outcome: Outcome) -> None:
        self.id, self.outcome = name, outcome  # type: ignore[misc]

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        raise NotImplementedError

    def check(self, facts: StepFacts, /) -> Outcome:
        return self.outcome


def test_of_a_row_that_a_simulated_change_shares_nothing_counts_twice() -> None:
    base = facts_of(Shape(2560, 32, 10240, v=50257))
    rows = [replace(row, id=f"a{row.id}", time_ms_per_step=40.0) for row in core()]
    facts = replace(base, gemms=[*base.gemms, *rows], others=(softmax(),))
    padded, own = PadVocabulary().check(facts), RULE.check(facts)
    assert padded.state == own.state == "found" and any(padded.changes)
    vocab, fused_ms = padded.findings[0].saving_ms.mid or 0.0, own.findings[0].saving_ms.mid or 0.0
    assert 0 < vocab < fused_ms

    def at_stake(*rows: str) -> float | None:
        """Of both, where the simulated change touches ``rows`` as well."""
        (finding,) = padded.findings
        shared = replace(padded, findings=(replace(finding, gemms=[*finding.gemms, *rows]),))
        found = advise(facts, rules=(_Fixed("TL101", shared), _Fixed("TL117", own))).at_stake_ms
        return found.mid if found is not None else None

    assert at_stake() == pytest.approx(vocab + fused_ms)
    assert fused_ms < (at_stake("ag1") or 0.0) < vocab + fused_ms
    assert at_stake(*own.bounds_ms) == pytest.approx(fused_ms)


def test_no_rule_adds_to_more_than_the_chain() -> None:
    facts = step_of(core(training=True), dims=DIMS, step_ms=60.0, others=(softmax(),))
    advice = advise(facts, rules=RULES)
    assert advice.at_stake_ms is not None and (advice.at_stake_ms.high or math.inf) < 6 * 200 * 12 / 1e3 + 3.6


# --- passed, not applicable, could not run -----------------------------------------------------------


def test_fused_attention_passes_and_says_which(said: Listener) -> None:
    says_why(check(rows=[attention(1, 64)]), "passed", said)


def test_a_fused_kernel_that_is_not_faster_is_no_finding(said: Listener) -> None:
    says_why(check(softmax(time_us=1.0), rows=core(time_us=1.0)), "passed", said)


def test_a_little_chain_is_no_finding(said: Listener) -> None:
    says_why(check(step_ms=60_000.0), "passed", said)


def test_sizes_that_no_fused_kernel_takes_pass_with_the_reason(said: Listener) -> None:
    says_why(check(rows=core(d=30, dtype="fp32")), "passed", said)


def test_what_it_does_not_apply_to() -> None:
    assert check(rows=[]).state == "not_applicable"
    assert check(rows=[gemm(1, 64, 64, 64)]).absent
    nothing = check(rows=[gemm(1, 64, 64, 64)], dims=model(False))
    assert (nothing.state, nothing.absent) == ("not_applicable", True)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"others": None}, "analyze the trace itself"),
        ({"step_ms": None}, "No step time is known"),
        ({"others": ()}, "no softmax is known between them"),
        ({"others": (pointwise(1, "aten::relu"),)}, "no softmax is known between them"),
        ({"predict": False}, "cannot be predicted"),
        ({"rows": core(q=1)}, "split the keys"),
    ],
)
def test_what_is_missing_is_said(more: dict[str, Any], why: str) -> None:
    outcome = check(**more)
    assert outcome.state == "could_not_run" and why in outcome.why


def test_kernels_of_another_vendor_are_not_judged() -> None:
    facts = step_of(core(), dims=DIMS, others=(softmax(),))
    outcome = RULE.check(replace(facts, gpu=replace(facts.gpu, vendor="amd")))
    assert outcome.state == "could_not_run" and "NVIDIA" in outcome.why


def test_unknown_sizes_say_how_to_get_them(said: Listener) -> None:
    rows = core()
    open_ = gemm(1, None, None, None, component="attention.scores", batch=HEADS, shape_note="no inputs")
    says_why(check(rows=[open_, rows[1]]), "could_not_run", said)


def test_scores_without_their_values_are_not_judged(said: Listener) -> None:
    says_why(check(rows=core()[:1]), "could_not_run", said)
