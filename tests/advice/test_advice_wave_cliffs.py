"""TL105: a micro-batch just above a wave, and the saving per token of its neighbour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_losses import judged_facts
from tests.advice.advice_rows import attention, facts, gemm, model
from tests.advice.advice_steps import A100, H100, Shape, rows_of
from tests.said import Listener
from tracelens.hardware import Gpu
from tracelens.results import Finding, Lost
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules import StepFacts
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.engine.simulated import together
from tracelens.rules.wave_cliffs import WaveCliffs

RULE = WaveCliffs()
#: 1792 tokens are 14 tiles of 128: with 8 columns of tiles 112 of them, 4 more than an A100 has SMs. An H100,
#: whose last wave costs less by the published times, gains nothing there.
ABOVE_AN_EDGE = Shape(1024, 16, 4096, b=14, s=128, layers=24)


def one(outcome: Outcome) -> Finding:
    (finding,) = outcome.findings
    return finding


def time_per_token(x: Shape, gpu: Gpu = H100) -> float:
    return sum(row.time_ms_per_step for row in rows_of(x, gpu=gpu)) / (x.b * x.s)


def test_a_micro_batch_just_above_a_wave_goes_below_it(said: Listener) -> None:
    finding = one(RULE.check(judged_facts(ABOVE_AN_EDGE, gpu=A100)))
    assert finding.change == {"micro_batch": [14, 13]} and finding.effort == "config"
    assert finding.evidence["per_token"] is True
    assert list(finding.evidence["tried"]) == ["11", "12", "13", "15", "16", "17"]
    # 14 x 16 tiles on 108 SMs; 224 of 324 places
    said(finding.title, finding.saw, finding.caveats[0], finding.caveats[1], finding.how)


@pytest.mark.parametrize(
    ("x", "gpu", "near"),
    [
        (ABOVE_AN_EDGE, A100, 0.35),
        (Shape(768, 12, 3072, b=1, s=1024, layers=12), A100, 0.35),
        (Shape(1280, 20, 5120, b=1, s=1024), H100, 0.1),
    ],
)
def test_the_saving_is_the_time_per_token_of_the_step_built_anew(x: Shape, gpu: Gpu, near: float) -> None:
    """Both sides are timed by one predictor: about the arithmetic per token, not about a GPU."""
    finding = one(RULE.check(judged_facts(x, gpu=gpu)))
    then = finding.change["micro_batch"][1]
    truth = (time_per_token(x, gpu) - time_per_token(replace(x, b=int(then)), gpu)) * x.b * x.s
    low, mid, high = finding.saving_ms.low, finding.saving_ms.mid, finding.saving_ms.high
    assert low is not None and mid is not None and high is not None
    assert truth > 0 and low <= truth <= high and mid == pytest.approx(truth, rel=near)


def test_a_larger_micro_batch_says_what_it_takes(said: Listener) -> None:
    finding = one(RULE.check(judged_facts(Shape(768, 12, 3072, b=1, s=1024, layers=12), gpu=A100)))
    text = " ".join(finding.caveats)
    assert finding.change == {"micro_batch": [1, 2]}
    said(text)


def test_what_does_not_change_with_the_tokens_is_no_saving() -> None:
    """An optimizer's time, and time in which the GPU waits, spread over more tokens are not the shape's."""
    step = judged_facts(ABOVE_AN_EDGE, gpu=A100)
    found = one(RULE.check(step)).saving_ms.mid
    assert step.step is not None and step.step_ms is not None
    longer = replace(step, step=replace(step.step, step_ms=2 * step.step_ms), step_ms=2 * step.step_ms)
    assert one(RULE.check(longer)).saving_ms.mid == pytest.approx(found)


@pytest.mark.parametrize(
    "x",
    [
        Shape(1280, 20, 5120, b=8, s=1024, layers=12),
        Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=1, s=8192),
        Shape(4096, 32, 11008, v=32000, gated=True, b=4, s=4096),
    ],
)
@pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])
def test_many_waves_pass(x: Shape, gpu: Gpu, said: Listener) -> None:
    says_why(RULE.check(judged_facts(x, gpu=gpu)), "passed", said)


def test_a_change_that_is_as_likely_slower_passes_with_its_range(said: Listener) -> None:
    says_why(RULE.check(judged_facts(replace(ABOVE_AN_EDGE, b=15), gpu=A100)), "passed", said)


def test_where_the_host_is_waited_for_a_smaller_batch_is_not_advised() -> None:
    outcome = RULE.check(judged_facts(ABOVE_AN_EDGE, gpu=A100, busy_frac=0.5))
    for finding in outcome.findings:
        assert finding.change["micro_batch"][1] > 14  # type: ignore[operator]


def test_it_joins_other_findings_per_token() -> None:
    """The total is simulated with every change at once, for the tokens of the present step."""
    now = replace(ABOVE_AN_EDGE, v=50257)
    joint = together(judged_facts(now, gpu=A100), [{"micro_batch": 13}, {"vocab": 50304}])
    assert joint is not None
    then = replace(now, b=13, v=50304)
    truth = (time_per_token(now, A100) - time_per_token(then, A100)) * now.b * now.s
    low, high = joint.saving_ms.low, joint.saving_ms.high
    assert low is not None and high is not None and low <= truth <= high
    assert joint.tokens_frac == pytest.approx(-1 / 14)


def test_without_known_losses_or_simulation_it_could_not_run(said: Listener) -> None:
    step = judged_facts(ABOVE_AN_EDGE)
    says_why(RULE.check(replace(step, step=None)), "could_not_run", said)
    blind = [replace(row, lost_ms=Lost(), tiles=None) for row in step.gemms]
    outcome = RULE.check(replace(step, gemms=blind))
    assert outcome.state == "could_not_run"
    assert RULE.check(facts(gemm(1, None, None, None, role="dgrad"))).state == "could_not_run"
    assert RULE.check(replace(step, step_ms=None)).state == "could_not_run"
    said(outcome.why)


def test_products_that_wait_for_memory_lose_nothing_to_waves(said: Listener) -> None:
    step = judged_facts(ABOVE_AN_EDGE)
    waiting = [replace(row, lost_ms=Lost(useful=1.0)) for row in step.gemms]
    says_why(RULE.check(replace(step, gemms=waiting)), "passed", said)


def test_it_does_not_apply_to_inference_packed_sequences_or_unknown_tokens() -> None:
    step = judged_facts(ABOVE_AN_EDGE)
    forward = [row for row in step.gemms if row.phase == "forward"]
    cases: list[tuple[StepFacts, str]] = [
        (replace(step, gemms=forward), "No backward"),
        (
            replace(
                step,
                gemms=[
                    *step.gemms,
                    attention(99, 64, attention=AttentionDims(None, 1, 1, head_dim=64, tokens=4096)),
                ],
            ),
            "packed",
        ),
        (facts(gemm(1, 64, 64, 64, role="dgrad"), dims=model(sequence=2048)), "micro-batch is not known"),
        (facts(gemm(1, 64, 64, 64, role="dgrad"), dims=model(micro_batch=4)), "sequence length is not known"),
        (facts(gemm(1, 64, 64, 64, role="dgrad"), dims=model(False)), "No part of a transformer"),
        (facts(gemm(1, 64, 64, 64, role="dgrad"), dims=model(micro_batch=4, sequence=99)), "396 tokens"),
    ]
    for one_step, words in cases:
        outcome = RULE.check(one_step)
        state = "could_not_run" if "not known" in words else "not_applicable"
        assert outcome.state == state and words in outcome.why
