"""TL109: experts in turn or together, rows enough for each, ranks that divide them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import only_finding as only
from tests.advice.advice_answers import says_why
from tests.advice.advice_experts import Mix, mixed_rows
from tests.advice.advice_rows import facts as plain_facts
from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.rules import StepFacts
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.experts import Experts

X = Shape(2048, 16, 1408, v=32000, kv=8, d=128, layers=16, b=2, s=2048)
LOOP = Mix(X, 64, [500, 524] * 32, "loop")


def facts(mix: Mix) -> StepFacts:
    return facts_of(mix.x, rows=mixed_rows(mix), dims=mix.dims)


def check(step: StepFacts) -> Outcome:
    return Experts().check(step)


def test_experts_one_after_the_other_are_a_finding(said: Listener) -> None:
    finding = only(check(facts(LOOP)))
    said(finding.title, finding.saw)
    assert finding.effort == "code" and finding.parameter_delta == 0
    assert (finding.saving_ms.low, finding.saving_ms.mid, finding.basis) == (0.0, None, "heuristic")
    experts = sum(row.time_ms_per_step for row in facts(LOOP).gemms if row.component == "moe.experts")
    assert 0 < (finding.saving_ms.high or 0.0) < experts
    assert set(finding.components) == {"moe.experts"}


def test_more_shapes_than_gemms_in_a_step_are_of_steps_that_differ(said: Listener) -> None:
    """A router sends an expert other numbers of tokens in every step."""
    step = facts(LOOP)
    rare = replace(step, gemms=[replace(row, calls_per_step=row.calls_per_step / 2000) for row in step.gemms])
    same, other = (only(check(one)).saw.rpartition(" That is ")[2] for one in (step, rare))
    assert len(other.split()) > len(same.split())
    said(other)


def test_the_bound_is_what_packing_tiles_is_predicted_to_save(said: Listener) -> None:
    """64 products of 512 rows are 44 tiles each where the GPU has 132 SMs: together they fill it."""
    said(only(check(facts(LOOP))).how)


def test_experts_together_with_rows_enough_pass(said: Listener) -> None:
    says_why(check(facts(Mix(X, 16, [2048] * 16))), "passed", said)


@pytest.mark.parametrize("how", ["batched", "grouped"])
def test_few_rows_for_each_expert_are_a_finding(how: str, said: Listener) -> None:
    """64 rows read 64 experts' whole weights: the time is that of the memory, not of the work."""
    x = replace(X, b=1, s=1024)
    finding = only(check(facts(Mix(x, 128, [64] * 128, how))))
    assert finding.change == {"capacity": [64, 128]}
    experts = sum(row.time_ms_per_step for row in facts(Mix(x, 128, [64] * 128, how)).gemms
                  if row.component == "moe.experts")  # fmt: skip
    assert 0.1 * experts < (finding.saving_ms.high or 0.0) < 0.5 * experts
    said(finding.title, finding.caveats)


def test_ranks_that_do_not_divide_the_experts_are_a_finding() -> None:
    mix = Mix(X, 60, [2048] * 8, ranks=8)
    finding = only(check(facts(mix)))
    assert finding.change == {"experts": [60, 64]}
    assert finding.evidence["imbalance_frac"] == pytest.approx(8 / 7.5 - 1)
    experts = sum(row.time_ms_per_step for row in facts(mix).gemms if row.component == "moe.experts")
    assert finding.saving_ms.high == pytest.approx((1 - 7.5 / 8) * experts)


def test_a_width_off_the_grid_is_left_to_the_rule_of_alignment(said: Listener) -> None:
    step = facts(Mix(replace(X, f=1404), 16, [2048] * 16))
    outcome = check(
        replace(step, gemms=[replace(row, kernel="unnamed", kernel_family="other") for row in step.gemms])
    )
    assert outcome.state == "passed" and "TL102" in outcome.why
    said(outcome.why)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (facts_of(X), "not_applicable"),
        (plain_facts(gemm(1, 64, 64, 64), dims=model(False)), "not_applicable"),
        (plain_facts(gemm(1, None, None, None, component="moe.experts")), "could_not_run"),
        (
            plain_facts(
                gemm(1, 4096, 1408, 2048, component="moe.experts"),
                dims=model(hidden=2048, ffn=1408, micro_batch=2, sequence=2048),
            ),
            "could_not_run",
        ),
        (
            plain_facts(
                gemm(1, 1, 1408, 2048, component="moe.experts", batch=512),
                dims=model(hidden=2048, ffn=1408, micro_batch=1, sequence=256),
            ),
            "could_not_run",
        ),
        (replace(facts(LOOP), step_ms=None), "could_not_run"),
    ],
    ids=["no mixture", "no model", "no shapes", "all tokens", "weights of each row", "no step time"],
)
def test_what_cannot_be_judged_says_why(step: StepFacts, state: str, said: Listener) -> None:
    says_why(check(step), state, said)


def test_without_a_prediction_the_bound_is_the_time_above_the_floor(said: Listener) -> None:
    step = replace(facts(LOOP), step=None)
    said(only(check(step)).how)
    assert check(replace(facts(Mix(X, 128, [64] * 128)), step=None)).state == "passed"
