"""TL108: stages whose layers do not divide, and a last stage with the logits on top."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_messages import message
from tests.advice.advice_rows import facts as plain_facts
from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import Shape, dims_of, facts_of, rows_of, spread
from tests.said import Listener
from tracelens.rules import StepFacts
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.pipeline_layers import PipelineLayers

#: 8 layers on this rank for 4 micro-batches: 32 calls of each.
X = Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2, layers=32)


def facts(
    *, stages: int | None = 4, here: int | None = 8, whole: int | None = 32, logits: bool = False,
    others: dict[str, float] | None = None,
) -> StepFacts:  # fmt: skip
    rows = [row for row in rows_of(X) if logits or row.component != "logits"]
    dims = spread(dims_of(X), pipeline_parallel=stages, layers=here)
    return facts_of(
        X, rows=rows, dims=dims, communication=[message("send/recv", purpose="pipeline", group="pp")],
        declared={} if whole is None else {"layers": whole}, others=others,
    )  # fmt: skip


def check(step: StepFacts) -> Outcome:
    return PipelineLayers().check(step)


def test_a_middle_stage_of_layers_that_divide_passes(said: Listener) -> None:
    says_why(check(facts()), "passed", said)


def test_layers_that_do_not_divide_are_a_finding(said: Listener) -> None:
    """30 layers over 4 stages: the longest has 8, the mean is 7.5, and this rank is one of the longest."""
    outcome = check(facts(whole=30))
    (finding,) = outcome.findings
    assert outcome.state == "found"
    assert finding.change == {"layers": [30, 32]}
    assert finding.evidence["imbalance_frac"] == pytest.approx(8 / 7.5 - 1)
    layers = sum(row.time_ms_per_step for row in facts().gemms)
    # Half a layer of 8, and the 3 micro-batches that fill the pipeline beside the 4 of the step.
    assert finding.saving_ms.high == pytest.approx(0.5 / 8 * layers * (1 + 3 / 4), rel=1e-6)
    assert (finding.saving_ms.low, finding.saving_ms.mid, finding.basis) == (0.0, None, "heuristic")
    said(finding.title, finding.caveats, finding.how.split("\n")[:2])


def test_a_shorter_stage_waits_for_the_longest() -> None:
    """7 of the 30: what it takes itself is less, what the longest is above the mean is the same."""
    short, long = check(facts(whole=30, here=7)), check(facts(whole=30, here=8))
    assert short.findings[0].evidence["imbalance_frac"] == long.findings[0].evidence["imbalance_frac"]


def test_logits_on_top_of_as_many_layers_are_a_finding(said: Listener) -> None:
    step = facts(logits=True, others={"loss": 30.0})
    (finding,) = check(step).findings
    layers = sum(row.time_ms_per_step for row in step.gemms if row.component != "logits")
    extra = sum(row.time_ms_per_step for row in step.gemms if row.component == "logits") + 30.0
    assert finding.evidence["extra_layers"] == pytest.approx(extra / (layers / 8))
    moved = finding.evidence["moved"]
    assert 1 <= moved <= 7
    assert finding.change == {"last_stage_layers": [8, 8 - moved]} and finding.effort == "config"
    # The others get one layer more each, this one loses ``moved``: the longest of them is the pace.
    now, then = 8 + extra / (layers / 8), max(8 + -(-moved // 3), 8 - moved + extra / (layers / 8))
    assert finding.saving_ms.high == pytest.approx((now - then) * layers / 8 * 1.75, rel=1e-6)
    said(finding.caveats, finding.saw)


def test_a_last_stage_with_fewer_layers_is_balanced_already() -> None:
    assert check(facts(logits=True, here=5, whole=32, others={"loss": 30.0})).state == "passed"


def test_logits_worth_less_than_a_layer_pass(said: Listener) -> None:
    says_why(check(facts(others={"loss": 0.5})), "passed", said)


def test_a_first_stage_has_the_embedding(said: Listener) -> None:
    (finding,) = check(facts(others={"embedding": 200.0})).findings
    assert list(finding.change) == ["first_stage_layers"]
    said(finding.caveats)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (facts(stages=1), "not_applicable"),
        (plain_facts(gemm(1, 64, 64, 64), dims=model(False)), "not_applicable"),
        (facts(stages=None), "could_not_run"),
        (facts(whole=None), "could_not_run"),
        (facts(here=None), "could_not_run"),
        (replace(facts(), step_ms=None), "could_not_run"),
    ],
    ids=["one stage", "no model", "stages", "layers of all", "layers here", "no step time"],
)
def test_what_cannot_be_judged_says_why(step: StepFacts, state: str, said: Listener) -> None:
    says_why(check(step), state, said)
