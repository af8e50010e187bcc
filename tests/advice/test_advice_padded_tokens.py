"""TL127: rows of linear layers against tokens of packed attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.results import GemmRow, PaddedBatch
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.padded_tokens import PaddedTokens

RULE = PaddedTokens()
X = Shape(2048, 16, 5504, gated=True, b=8, s=1024, layers=8)


def packed(*tokens: int, heads: int = 16) -> StepFacts:
    """The step with packed attention of so many tokens, by call."""
    facts = facts_of(X)
    rows: list[GemmRow] = [row for row in facts.gemms if row.kind == "gemm"]
    calls = [row for row in facts.gemms if row.kind == "attention"]
    for number, count in enumerate(tokens):
        sizes = AttentionDims(None, heads, heads, head_dim=128, tokens=count)
        rows += [replace(row, id=f"{row.id}.{number}", attention=sizes) for row in calls]
    return replace(facts, gemms=rows)


def check(facts: StepFacts) -> Outcome:
    return RULE.check(facts)


def test_packed_attention_without_sizes_is_seen_by_its_operator(said: Listener) -> None:
    facts = packed(4096)
    rows = [replace(row, attention=None, op="_vllm_fa2_C::varlen_fwd") if row.kind == "attention" else row
            for row in facts.gemms]  # fmt: skip
    says_why(check(replace(facts, gemms=rows)), "could_not_run", said)


def test_padding_is_a_share_of_every_linear_layer(said: Listener) -> None:
    facts = packed(4096, 6144)  # 5120 of 8192 rows in the mean
    (finding,) = check(facts).findings
    linear = sum(row.time_ms_per_step for row in facts.gemms if row.kind == "gemm")
    assert finding.saving_ms.high == pytest.approx(0.375 * linear) and finding.saving_ms.mid is None
    said(finding.title)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (packed(8192), "passed"),
        (packed(8100), "passed"),  # a last sequence cut short
        (packed(16384), "passed"),  # attention of something else
        (packed(4096, heads=12), "not_applicable"),  # of a vision tower
        (facts_of(X), "not_applicable"),
    ],
)
def test_no_padding_is_invented(facts: StepFacts, state: str) -> None:
    assert check(facts).state == state


def bucketed(*buckets: tuple[int, float]) -> StepFacts:
    """Batches of these many rows in turn, and of each the tokens that packed attention has in it."""
    facts = facts_of(X)
    times = {rows: rows / (X.b * X.s) / len(buckets) for rows, _ in buckets}
    gemms: list[GemmRow] = []
    for row in facts.gemms:
        for rows, held in buckets:
            calls = row.calls_per_step / len(buckets)
            if row.kind == "attention":
                sizes = AttentionDims(None, 16, 16, head_dim=128, tokens=round(rows * held))
                gemms.append(replace(row, attention=sizes, calls_per_step=calls))
            else:
                m, k = (row.m, rows) if row.role == "wgrad" else (rows, row.k)
                time = row.time_ms_per_step * times[rows]
                gemms.append(replace(row, m=m, k=k, calls_per_step=calls, time_ms_per_step=time))
    return replace(facts, gemms=gemms)


def test_batches_of_changing_length_are_compared_as_a_whole() -> None:
    """Tokens of all batches over the rows of the longest one alone would call full batches half empty."""
    assert check(bucketed((8192, 1.0), (1024, 1.0))).state == "passed"
    facts = bucketed((8192, 0.75), (4096, 0.75))
    (finding,) = check(facts).findings
    linear = sum(row.time_ms_per_step for row in facts.gemms if row.kind == "gemm")
    assert finding.saving_ms.high == pytest.approx(0.25 * linear)


def test_where_attention_of_some_batches_is_not_packed_nothing_is_compared() -> None:
    facts = bucketed((8192, 0.75), (4096, 0.75))
    some = [row for row in facts.gemms if row.attention is None or row.attention.tokens == 3072]
    assert check(replace(facts, gemms=some)).state == "could_not_run"


def test_operators_that_pad_tell_each_batch_by_itself() -> None:
    facts = bucketed((8192, 1.0), (4096, 1.0))
    gemms = [row for row in facts.gemms if row.kind == "gemm"]
    padded = [PaddedBatch(8192, 4096.0), PaddedBatch(4096, 4096.0), PaddedBatch(512, 1.0)]
    (finding,) = check(replace(facts, gemms=gemms, padded=padded)).findings
    half = [row for row in gemms if 8192 in (row.m, row.k)]
    assert finding.saving_ms.high == pytest.approx(0.5 * sum(row.time_ms_per_step for row in half))
    assert finding.evidence["empty_frac"] == pytest.approx(1 / 3)
    assert check(replace(facts, gemms=gemms, padded=padded[1:2])).state == "passed"
    assert check(replace(facts, gemms=gemms, padded=padded[2:])).state == "not_applicable"
