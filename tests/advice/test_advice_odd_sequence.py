"""TL110: lengths off attention's blocks and off the 16-byte grid, padded or cut where that pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_losses import judged_facts
from tests.advice.advice_rows import NVJET, attention, cutlass, facts, gemm, model
from tests.advice.advice_steps import A100, H100, Shape, dims_of, model_of, rows_of
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu
from tracelens.results import Finding, GemmRow, Lost
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules import StepFacts, advise
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.odd_sequence import OddSequence

RULE = OddSequence()
GPUS = pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])
#: A vision transformer: 28 * 28 patches and a class token.
VIT = Shape(768, 12, 3072, v=1000, b=8, s=785, layers=12)


def one(outcome: Outcome) -> Finding:
    (finding,) = outcome.findings
    return finding


def unfused(x: Shape, *, slow: float = 3.0) -> StepFacts:
    """A step whose scores go through memory; off the grid their products take ``slow`` times as long."""
    rows: list[GemmRow] = [row for row in rows_of(x) if row.kind == "gemm"]
    orders = {
        "attention.scores": [("forward", (x.s, x.s, x.head), "TN", ("s", "s", "d"))],
        "attention.values": [("forward", (x.s, x.head, x.s), "NN", ("s", "d", "s"))],
    }
    for component, products in orders.items():
        for role, (m, n, k), layout, names in products:
            fast = predict_gemm(m // 8 * 8, n // 8 * 8, k // 8 * 8, batch=x.b * x.a, gpu=H100, layout=layout)
            off = x.s % 8 != 0
            time = (fast.time_us.mid or 0.0) * (slow if off else 1.0)
            rows.append(
                gemm(200 + len(rows), m, n, k, component=component, role=role, layout=layout, names=names,
                     batch=x.b * x.a, time_us=time, calls=x.layers,
                     kernel=cutlass(1, layout=layout.lower()) if off else NVJET)
            )  # fmt: skip
    step = model_of(x, rows=rows)
    return StepFacts(rows, dims_of(x), H100.info(), step.step_ms, 0.99, step)


def scores() -> list[GemmRow]:
    common: dict[str, Any] = {"batch": 96, "calls": 12}
    return [
        gemm(1, 3137, 3137, 64, component="attention.scores", kernel=cutlass(1), time_us=1901.6,
             names=("s", "s", "d"), **common),
        gemm(2, 3137, 64, 3137, component="attention.values", layout="NN", time_us=1699.0,
             names=("s", "d", "s"), kernel=cutlass(1, layout="nn"), **common),
    ]  # fmt: skip


def test_unfused_attention_off_the_grid_is_padded_onto_it(said: Listener) -> None:
    finding = one(RULE.check(unfused(VIT)))
    now, then = finding.change["sequence"]
    assert int(then) % 8 == 0 and now == 785
    assert (finding.saving_ms.low or 0.0) > 0 and finding.effort == "config"
    said(finding.title, finding.caveats, finding.saw)


def test_padding_that_costs_more_than_it_saves_is_refused(said: Listener) -> None:
    """The products run as if aligned: nothing is left to gain, and padded tokens cost."""
    says_why(RULE.check(unfused(VIT, slow=1.0)), "passed", said)


def test_padding_counts_tokens_once_and_cutting_counts_what_stays() -> None:
    """The saving of a padded length is the step's own; that of a cut one is per token."""
    step = unfused(VIT)
    tried = one(RULE.check(step)).evidence["tried"]
    assert step.step_ms is not None
    assert {"792", "768"} & set(tried)
    for value, (low, mid, high) in tried.items():
        assert low <= mid <= high, value


def test_one_token_above_a_block_is_cut_where_that_pays(said: Listener) -> None:
    x = Shape(1024, 16, 4096, b=8, s=513, layers=24)
    finding = one(RULE.check(judged_facts(x)))
    assert finding.change == {"sequence": [513, 512]}
    said(finding.title, finding.caveats)
    tokens = x.b * x.s
    then = replace(x, s=512)
    truth = sum(row.time_ms_per_step for row in rows_of(x)) - tokens / (then.b * then.s) * sum(
        row.time_ms_per_step for row in rows_of(then)
    )
    low, high = finding.saving_ms.low, finding.saving_ms.high
    assert low is not None and high is not None and low <= truth
    assert high <= finding.evidence["bound_ms"] + 1e-9


@GPUS
@pytest.mark.parametrize("length", [2047, 1100, 4097])
def test_a_length_that_costs_little_passes_with_the_figure(gpu: Gpu, length: int, said: Listener) -> None:
    says_why(
        RULE.check(judged_facts(Shape(1024, 16, 4096, b=8, s=length, layers=24), gpu=gpu)), "passed", said
    )


@pytest.mark.parametrize("length", [128, 1024, 8192])
def test_multiples_of_128_pass(length: int, said: Listener) -> None:
    says_why(RULE.check(judged_facts(Shape(1024, 16, 4096, b=1, s=length, layers=2))), "passed", said)


def test_an_odd_number_of_tokens_is_harmless_to_linear_layers(said: Listener) -> None:
    """M counts rows and K of the weight's gradient counts tokens: neither is a leading dimension."""
    rows = [
        gemm(1, 2047, 4096, 1024, component="mlp.up", names=("b*s", "f", "h")),
        gemm(2, 4096, 1024, 2047, component="mlp.up", role="wgrad", layout="NT", names=("f", "h", "b*s")),
    ]
    says_why(RULE.check(facts(*rows, dims=model(sequence=2047, micro_batch=1, hidden=1024))), "passed", said)


def test_without_a_simulation_narrow_loads_are_a_bound(said: Listener) -> None:
    finding = one(
        RULE.check(facts(*scores(), step_ms=120.0, dims=model(sequence=3137, head_dim=64, heads=12)))
    )
    assert finding.change == {"sequence": [3137, 3200]}
    said(finding.title)
    assert finding.effort == "config" and finding.gemms == ["g1", "g2"]
    assert finding.saving_ms.mid is None
    assert finding.flops_delta == pytest.approx((3200 / 3137) ** 2 - 1)


def test_without_a_simulation_blocks_alone_could_not_run(said: Listener) -> None:
    step = judged_facts(Shape(1024, 16, 4096, b=8, s=1025, layers=24))
    says_why(RULE.check(replace(step, step=None)), "could_not_run", said)


def test_no_other_rule_names_the_same_length() -> None:
    findings = advise(unfused(VIT)).findings
    assert [finding.rule for finding in findings if "sequence" in finding.change] == ["TL110"]


def test_it_does_not_apply_to_packed_sequences_or_unknown_lengths(said: Listener) -> None:
    packed = attention(1, 64, attention=AttentionDims(None, 1, 1, head_dim=64, tokens=4096))
    product = gemm(2, 64, 64, 64)
    named = replace(packed, attention=None, op="_vllm_fa2_C::varlen_fwd")  # its sizes are not recorded
    for step in (facts(packed, product), facts(named, product), facts(product, dims=model(False))):
        says_why(RULE.check(step), "not_applicable", said)
    says_why(RULE.check(facts(product)), "could_not_run", said)


def test_scores_off_the_grid_are_judged_beside_packed_sequences() -> None:
    """TL102 leaves the sequence to this rule, so nobody else would say it."""
    packed = attention(9, 64, attention=AttentionDims(None, 12, 12, head_dim=64, tokens=4096))
    step = facts(packed, *scores(), step_ms=120.0, dims=model(sequence=3137, head_dim=64, heads=12))
    assert one(RULE.check(step)).gemms == ["g1", "g2"]


def test_without_shapes_or_a_step_it_could_not_run(said: Listener) -> None:
    for step in (facts(gemm(1, None, None, None)), facts(*scores(), step_ms=None)):
        says_why(RULE.check(step), "could_not_run", said)


def test_tiles_beyond_the_last_token_count(said: Listener) -> None:
    """129 tokens on tiles of 128: the second row of tiles holds one of them."""
    row = gemm(1, 129, 4096, 4096, lost_ms=Lost(tile=0.5, useful=1.0))
    says_why(
        RULE.check(facts(row, step_ms=10.0, dims=model(sequence=129, micro_batch=1))), "could_not_run", said
    )
