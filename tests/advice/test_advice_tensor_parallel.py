"""TL107: slices of ranks, copies of the vocabulary, and fewer ranks at the same GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import only_finding as only
from tests.advice.advice_answers import says_why
from tests.advice.advice_messages import message
from tests.advice.advice_rows import facts as plain_facts
from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import Shape, dims_of, facts_of, spread
from tests.said import Listener
from tracelens.rules import StepFacts
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.tensor_parallel import TensorParallel

LLAMA = Shape(4096, 32, 14336, v=32064, kv=8, gated=True, b=2, t=4)
TOKENS = LLAMA.b * LLAMA.s
ACTIVATION, SUMS = 2.0 * TOKENS * LLAMA.h, 4.0 * TOKENS


def facts(
    x: Shape = LLAMA, *, exposed: float = 4.0, split: bool | None = True, loss: float = 0.0, **more: object
) -> StepFacts:
    """A step of ranks whose messages show (or not) that they split the vocabulary; copies exchange little."""
    sizes = {True: (ACTIVATION, SUMS), False: (ACTIVATION,), None: (None,)}[split]
    sent = [message(bytes_per_call=size, group_size=x.t, exposed=exposed) for size in sizes]
    sent.append(message(purpose="data-parallel gradients", group="mesh_dp", group_size=2, exposed=1.0))
    others = {"communication": sum(row.exposed_ms_per_step for row in sent), "loss": loss}
    dims = spread(dims_of(x), pipeline_parallel=1)
    return facts_of(x, communication=sent, dims=dims, others=others, **more)  # type: ignore[arg-type]


def check(step: StepFacts) -> Outcome:
    return TensorParallel().check(step)


def test_fewer_ranks_that_pay_are_a_finding(said: Listener) -> None:
    finding = only(check(facts(exposed=20.0)))
    assert finding.change == {"tensor_parallel": [4, 2]} and finding.effort == "config"
    assert finding.saving_ms.basis == "model" and (finding.saving_ms.low or 0.0) > 0
    said(finding.title, finding.saw, finding.caveats)


def test_no_more_is_promised_than_the_rows_and_messages_hold() -> None:
    step = facts(exposed=20.0)
    outcome = check(step)
    finding = only(outcome)
    assert finding.saving_ms.high is not None and finding.saving_ms.high <= sum(outcome.bounds_ms.values())
    assert outcome.bounds_ms["TL107 outside of rows"] >= 40.0


def test_ranks_that_cost_little_pass_and_say_so(said: Listener) -> None:
    """Wide slices and hidden messages: what more weights on a rank cost is more than what it saves."""
    says_why(check(facts(exposed=0.01)), "passed", said)


def test_logits_of_the_whole_vocabulary_on_every_rank_are_to_be_split(said: Listener) -> None:
    finding = only(check(facts(split=False)))
    assert finding.change == {"vocab_parallel": [1, 4]} and finding.evidence["part"] == 8064
    assert finding.parameter_delta == 0
    said(finding.title)
    logits = [row.id for row in facts().gemms if row.component == "logits"]
    assert sorted(finding.gemms) == sorted(logits)
    copies = sum(row.time_ms_per_step for row in facts().gemms if row.component == "logits") * 3 / 4
    assert finding.saving_ms.mid == pytest.approx(copies, rel=0.1)
    said(" ".join(finding.caveats))


def test_thin_slices_and_sizes_off_the_grid_are_told(said: Listener) -> None:
    x = replace(LLAMA, t=8, h=2048, d=128, f=8 * 1365, kv=8, v=4001)
    step = facts(x, exposed=30.0)
    step = replace(step, gemms=[replace(row, tiles=64) for row in step.gemms])
    outcome = check(step)
    text = outcome.findings[0].saw if outcome.findings else outcome.why
    said(text)


def test_key_value_heads_that_ranks_copy_are_known_from_the_configuration(said: Listener) -> None:
    x = replace(LLAMA, t=8, kv=8)
    step = facts(x, declared={"kv_heads": 2, "vocab": 8 * LLAMA.v})
    outcome = check(step)
    text = outcome.findings[0].saw if outcome.findings else outcome.why
    said(text)
    plain = check(facts(x, declared={"kv_heads": 8, "vocab": 8 * LLAMA.v}))
    assert "key-value" not in (plain.findings[0].saw if plain.findings else plain.why)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (facts(replace(LLAMA, t=1)), "not_applicable"),
        (plain_facts(gemm(1, 64, 64, 64)), "not_applicable"),
        (plain_facts(gemm(1, 64, 64, 64), dims=model(False)), "not_applicable"),
        (
            plain_facts(gemm(1, 64, 64, 64), communication=[message()]),
            "could_not_run",
        ),
        (
            plain_facts(gemm(1, None, None, None), dims=model(tensor_parallel=4), communication=[message()]),
            "could_not_run",
        ),
        (
            plain_facts(gemm(1, 64, 64, 64), dims=model(tensor_parallel=4), communication=[message()]),
            "could_not_run",
        ),
        (
            facts(split=None, loss=40.0),
            "could_not_run",
        ),
        (replace(facts(), step_ms=None), "could_not_run"),
    ],
)
def test_what_cannot_be_judged_says_why(step: StepFacts, state: str, said: Listener) -> None:
    says_why(check(step), state, said)
