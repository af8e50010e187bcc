"""TL107: slices of ranks, copies of the vocabulary, and fewer ranks at the same GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_messages import message
from tests.advice.advice_rows import facts as plain_facts
from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import Shape, dims_of, facts_of, spread
from tracelens.results import Finding
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


def only(outcome: Outcome) -> Finding:
    assert outcome.state == "found", outcome.why
    (finding,) = outcome.findings
    return finding


def test_fewer_ranks_that_pay_are_a_finding() -> None:
    finding = only(check(facts(exposed=20.0)))
    assert finding.title == "Split layers over 2 ranks instead of 4"
    assert finding.change == {"tensor_parallel": [4, 2]} and finding.effort == "config"
    assert finding.saving_ms.basis == "model" and (finding.saving_ms.low or 0.0) > 0
    assert "exposed for 40.0 ms per step" in finding.saw
    assert " With 8 ranks " in finding.saw
    text = " ".join(finding.caveats)
    assert "Each GPU then holds 1/2 of the layers and not 1/4" in text and "GB" in text
    assert "Compared at the same GPUs and tokens per step" in text
    assert "Other numbers of ranks, at the same GPUs and tokens: 1 " in text
    assert "times such a multiple" not in text  # that is for rules about dimensions


def test_no_more_is_promised_than_the_rows_and_messages_hold() -> None:
    step = facts(exposed=20.0)
    outcome = check(step)
    finding = only(outcome)
    assert finding.saving_ms.high is not None and finding.saving_ms.high <= sum(outcome.bounds_ms.values())
    assert outcome.bounds_ms["TL107 outside of rows"] >= 40.0


def test_ranks_that_cost_little_pass_and_say_so() -> None:
    """Wide slices and hidden messages: what more weights on a rank cost is more than what it saves."""
    outcome = check(facts(exposed=0.01))
    assert outcome.state == "passed" and "tensor_parallel = 2 is predicted to" in outcome.why
    assert "Not advised: " in outcome.why


def test_logits_of_the_whole_vocabulary_on_every_rank_are_to_be_split() -> None:
    finding = only(check(facts(split=False)))
    assert finding.title == "Split the vocabulary of 32064 over the 4 tensor-parallel ranks"
    assert finding.change == {"vocab_parallel": [1, 4]} and finding.evidence["part"] == 8064
    assert finding.parameter_delta == 0
    logits = [row.id for row in facts().gemms if row.component == "logits"]
    assert sorted(finding.gemms) == sorted(logits)
    copies = sum(row.time_ms_per_step for row in facts().gemms if row.component == "logits") * 3 / 4
    assert finding.saving_ms.mid == pytest.approx(copies, rel=0.1)
    assert "Fewer tensor-parallel ranks, at the same GPUs and tokens: 2 saves" in " ".join(finding.caveats)


def test_thin_slices_and_sizes_off_the_grid_are_told() -> None:
    x = replace(LLAMA, t=8, h=2048, d=128, f=8 * 1365, kv=8, v=4001)
    step = facts(x, exposed=30.0)
    step = replace(step, gemms=[replace(row, tiles=64) for row in step.gemms])
    outcome = check(step)
    text = outcome.findings[0].saw if outcome.findings else outcome.why
    assert "21 of them" not in text and "have fewer tiles than the GPU's 132 SMs" in text
    assert "No multiple of 16 bytes: ffn 1365 and vocabulary 4001" in text
    assert "Each rank holds one key-value head" in text


def test_key_value_heads_that_ranks_copy_are_known_from_the_configuration() -> None:
    x = replace(LLAMA, t=8, kv=8)
    step = facts(x, declared={"kv_heads": 2, "vocab": 8 * LLAMA.v})
    outcome = check(step)
    text = outcome.findings[0].saw if outcome.findings else outcome.why
    assert "2 key-value heads for 8 ranks: each is projected 4 times" in text
    plain = check(facts(x, declared={"kv_heads": 8, "vocab": 8 * LLAMA.v}))
    assert "key-value" not in (plain.findings[0].saw if plain.findings else plain.why)


@pytest.mark.parametrize(
    ("step", "state", "words"),
    [
        (facts(replace(LLAMA, t=1)), "not_applicable", "No ranks share a layer"),
        (plain_facts(gemm(1, 64, 64, 64)), "not_applicable", "No communication"),
        (plain_facts(gemm(1, 64, 64, 64), dims=model(False)), "not_applicable", "No part of a transformer"),
        (
            plain_facts(gemm(1, 64, 64, 64), communication=[message()]),
            "could_not_run",
            "name the process groups",
        ),
        (
            plain_facts(gemm(1, None, None, None), dims=model(tensor_parallel=4), communication=[message()]),
            "could_not_run",
            "None of the GEMMs that 4 ranks share has a shape: record with record_shapes=True",
        ),
        (
            plain_facts(gemm(1, 64, 64, 64), dims=model(tensor_parallel=4), communication=[message()]),
            "could_not_run",
            "cannot be simulated",
        ),
        (
            facts(split=None, loss=40.0),
            "could_not_run",
            "`tracelens capture` writes down its size",
        ),
        (replace(facts(), step_ms=None), "could_not_run", "No step time"),
    ],
)
def test_what_cannot_be_judged_says_why(step: StepFacts, state: str, words: str) -> None:
    outcome = check(step)
    assert outcome.state == state and words in outcome.why
