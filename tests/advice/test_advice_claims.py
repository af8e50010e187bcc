"""Rules that do their own arithmetic: words, thresholds, refusals, and their part in the total."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import bert_small_logits, gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tests.advice.test_advice_compiled_padding import logits as padded_logits
from tests.advice.test_advice_compiled_padding import pad
from tests.advice.test_advice_fp8 import in_fp8, left_out
from tests.advice.test_advice_tensor_cores import fp32
from tests.advice.test_advice_unfused_projections import attention
from tests.said import Listener
from tracelens.results import Estimate
from tracelens.rules import StepFacts, advise
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.conclude import conclude
from tracelens.rules.fp8 import Fp8

BANNED = re.compile(r"\bup to\b|\bmay\b|\bconsider|\bsub-optimal", re.IGNORECASE)
IMPERATIVES = {"Allow", "Avoid", "Compute", "Do", "Fuse", "Keep", "Make", "Pad", "Run", "Train", "Write"}


def steps() -> list[StepFacts]:
    """Steps in which each of these rules finds something."""
    copies = (
        other(1, "transpose"),
        other(2, "cast", component="norm", op="aten::to"),
        other(3, "copy", op="aten::cat", within="SplitBackward0", phase="backward"),
    )
    narrow = model(hidden=1024, heads=8, head_dim=128, layers=16)
    return [
        step_of([fp32(1)], step_ms=20.0),
        step_of([gemm(1, 4096, 4096, 4096, calls=10), fp32(2, component="logits")], step_ms=30.0),
        step_of(attention(2048, 1024, 128), dims=narrow, others=copies, gpu_busy_frac=0.5),
        step_of([in_fp8(), left_out()], dims=model(ffn=10920)),
        step_of([padded_logits()], others=(pad(),)),
    ]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*strings(key), *strings(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)


def test_each_of_these_rules_finds_something() -> None:
    found = {finding.rule for step in steps() for finding in advise(step).findings}
    assert found >= {"TL111", "TL112", "TL113", "TL115", "TL116"}


def test_the_words_are_plain_whole_sentences() -> None:
    starts = ("bf16", "tf32", "fp16", "head_dim", "ffn", "hidden", "sequence", "torch")
    for step in steps():
        for finding in advise(step).findings:
            assert finding.title.split()[0] in IMPERATIVES | {"Use", "Change", "Align"}, finding.title
            assert re.search(r"\d", finding.title)
            for text in (finding.saw, finding.why, finding.how, *finding.caveats):
                assert text[0].isupper() or text[0].isdigit() or text.startswith(starts), text
                assert text.endswith(".") and "  " not in text and "None" not in text, text
        for text in strings(asdict(advise(step))):
            assert not BANNED.search(text), text


def test_findings_say_what_they_do_to_a_checkpoint() -> None:
    states = {
        finding.rule: finding.effects.checkpoint
        for step in steps()
        for finding in advise(step).findings
        if finding.effects is not None
    }
    assert states["TL111"] == "loads" and states["TL112"] == "converts" and states["TL113"] == "loads"
    assert states["TL115"] == "pads" and states["TL116"] == "pads"


def test_findings_are_plain_values() -> None:
    for step in steps():
        for finding in advise(step).findings:
            assert json.loads(json.dumps(asdict(finding)))["rule"] == finding.rule
            assert finding.doc == f"docs/rules/{finding.rule}.md"
            bound = sum(row["bound_ms"] for row in finding.evidence["rows"])
            assert bound >= (finding.saving_ms.high or 0.0) - 1e-9


# --- thresholds and refusals -------------------------------------------------------------------------


def candidate(low: float, mid: float | None, high: float, **more: Any) -> Candidate:
    given: dict[str, Any] = {
        "name": "the change", "title": "Make 2 of 3", "components": ["mlp.up"], "confidence": "medium",
        "effort": "code", "saw": "It is so.", "how": "By this.", "fix": [], "caveats": [], "change": {},
        "kernels": {"g1": 5.0 if mid is not None else high},
        "saving": Estimate(low, mid, high, "model") if mid is not None else None,
    }  # fmt: skip
    return Candidate(**(given | more))


def state(*candidates: Candidate, **more: Any) -> tuple[str, str]:
    step = step_of([gemm(1, 64, 64, 64)], **({"step_ms": 100.0} | more))
    outcome = conclude(Fp8(), facts=step, candidates=candidates, passed="All is well.")
    return outcome.state, outcome.why


def test_without_a_candidate_the_check_passes_with_its_sentence() -> None:
    assert state() == ("passed", "All is well.")


@pytest.mark.parametrize(
    "estimate",
    [(-2.0, -1.0, 0.5), (-2.0, 0.0, 0.5), (-2.0, 1.0, 3.0), (0.01, 0.05, 0.09), (0.0, None, 0.05)],
    ids=str,
)
def test_what_does_not_pay_is_no_finding_and_the_check_says_why(
    estimate: tuple[float, float | None, float], said: Listener
) -> None:
    found, why = state(candidate(*estimate))
    assert found == "passed"
    said(why)


def test_a_saving_is_never_more_than_its_bound_and_the_step(said: Listener) -> None:
    step = step_of([gemm(1, 64, 64, 64)], step_ms=4.0)
    (finding,) = conclude(Fp8(), facts=step, candidates=[candidate(3.0, 9.0, 12.0)], passed="").findings
    assert finding.saving_ms == Estimate(3.0, 4.0, 4.0, "model")
    said(finding.how)


def test_without_a_step_time_nothing_is_claimed() -> None:
    assert state(candidate(1.0, 2.0, 3.0), step_ms=None)[0] == "could_not_run"


# --- together ----------------------------------------------------------------------------------------


def test_predictions_for_other_rows_are_added_and_bounds_stay_apart() -> None:
    """A vocabulary to pad (simulated), copies (a bound)."""
    base = facts_of(Shape(2560, 32, 10240, v=50257))
    alone = advise(base).at_stake_ms
    row = other(1, "transpose", time_us=1000.0, calls=32.0)
    both = advise(replace(base, others=(row,)))
    assert alone is not None and both.at_stake_ms is not None
    assert {finding.rule for finding in both.findings} >= {"TL101", "TL113"}
    assert both.at_stake_ms.mid == pytest.approx(alone.mid)
    assert both.at_stake_ms.high == pytest.approx(alone.high)
    assert both.open_ms == pytest.approx(32.0)


def test_a_row_of_two_predictions_counts_once() -> None:
    narrow = model(hidden=1024, heads=8, head_dim=128, layers=16)
    step = step_of(attention(2048, 1024, 128), dims=narrow, others=())
    advice = advise(step)
    assert [finding.rule for finding in advice.findings] == ["TL112"]
    assert advice.at_stake_ms is not None
    assert advice.at_stake_ms.mid == pytest.approx(advice.findings[0].saving_ms.mid)


def test_bounds_alone_stay_a_bound() -> None:
    advice = advise(step_of([bert_small_logits()], others=(other(1, "transpose"),), predict=False))
    assert advice.at_stake_ms is not None and advice.at_stake_ms.mid is None
