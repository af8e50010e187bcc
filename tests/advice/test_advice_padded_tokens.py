"""TL127: rows of linear layers against tokens of packed attention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_steps import Shape, facts_of
from tracelens.results import GemmRow
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


def test_padding_is_a_share_of_every_linear_layer() -> None:
    facts = packed(4096, 6144)  # 5120 of 8192 rows in the mean
    (finding,) = check(facts).findings
    linear = sum(row.time_ms_per_step for row in facts.gemms if row.kind == "gemm")
    assert finding.saving_ms.high == pytest.approx(0.375 * linear) and finding.saving_ms.mid is None
    assert finding.title == "Pack sequences: 37.5% of the rows of the linear layers are padding"


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
