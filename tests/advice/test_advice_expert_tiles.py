"""TL123: tiles of grouped GEMMs whose last rows hold no token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_experts import Mix, mixed_rows
from tests.advice.advice_steps import Shape, facts_of
from tracelens.rules import StepFacts
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.evidence.mixtures import unfilled
from tracelens.rules.expert_tiles import ExpertTiles

X = Shape(7168, 56, 2048, v=32000, kv=8, d=128, layers=4, b=2, s=4096)


def facts(*loads: int, how: str = "grouped", tile_m: int | None = 128) -> StepFacts:
    mix = Mix(X, 256, loads, how, ranks=8)
    step = facts_of(mix.x, rows=mixed_rows(mix), dims=mix.dims)
    return replace(step, gemms=[replace(row, tile_m=tile_m) for row in step.gemms])


def check(step: StepFacts) -> Outcome:
    return ExpertTiles().check(step)


def test_a_fifth_of_the_rows_is_empty_as_a_user_of_deepgemm_found() -> None:
    """deepseek-ai/DeepGEMM issue 98: 256 rows to an expert, tiles of 128, "almost to 20 % waste"."""
    step = facts(*[200, 312] * 16)
    (finding,) = check(step).findings
    assert finding.change == {"rows_of_an_expert": [256, 256]} and finding.evidence["tile_m"] == 128
    of_rows = [row for row in step.gemms if row.groups is not None and row.groups.axis == "m"]
    most = 0.2 * sum(row.time_ms_per_step for row in of_rows)
    assert finding.saving_ms.mid is None and 0 < (finding.saving_ms.high or 0.0) <= most


@pytest.mark.parametrize(("tile_m", "share"), [(64, 0.1096), (128, 0.1988), (256, 0.3325)])
def test_the_share_is_half_a_tile_of_each_expert(tile_m: int, share: float) -> None:
    step = facts(*[200, 312] * 16, tile_m=tile_m)
    row = next(row for row in step.gemms if row.groups is not None and row.groups.axis == "m")
    bound = unfilled(step, replace(row, time_ms_per_step=100 * row.time_ms_per_step))  # far above the floor
    assert bound is not None and bound.ms / bound.row.time_ms_per_step == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize(
    ("step", "state", "words"),
    [
        (facts(*[2000, 2096] * 16), "passed", "rows that hold no token"),
        (facts(*[60, 68] * 16), "passed", "rows that hold no token"),  # less than a tile: TL109
        (facts(*[200, 312] * 16, tile_m=None), "could_not_run", "tell no tile"),
        (facts(*[256] * 32, how="batched"), "not_applicable", "TL109"),
        (facts_of(X), "not_applicable", "No mixture of experts"),
    ],
)
def test_what_is_no_finding_says_why(step: StepFacts, state: str, words: str) -> None:
    outcome = check(step)
    assert outcome.state == state and words in outcome.why
