"""TL123: tiles of grouped GEMMs whose last rows hold no token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_experts import Mix, mixed_rows
from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.results import Known
from tracelens.rules import StepFacts
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.evidence.mixtures import unfilled
from tracelens.rules.expert_tiles import ExpertTiles

H100_GBPS = 3350
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
    ("how", "ranks", "rows", "empty"),
    [
        ("batched", 1, 640, 0.2),  # a capacity factor of 1.25
        ("batched", 4, 2560, 0.2),  # every rank has as many rows, so this one's say it
        ("grouped", 1, 640, 0.2),  # 512 in the mean, padded to 128
        ("grouped", 4, 2560, None),  # this rank may have more tokens than the others
        ("batched", 1, 544, None),
        ("batched", 1, 512, None),
    ],
)
def test_rows_without_a_token_are_a_finding(how: str, ranks: int, rows: int, empty: float | None) -> None:
    """Top 8 of 64 experts, 4096 tokens: 512 rows of each hold a token."""
    x = Shape(2048, 16, 1408, v=32000, kv=8, d=128, layers=16, b=2, s=2048)
    mix = Mix(x, 64, [rows] * (64 // ranks), how, ranks=ranks)
    step = facts_of(x, rows=mixed_rows(mix), dims=mix.dims)
    step = replace(step, model=replace(step.model, top_k=Known(8, "aten::topk")))
    found = [one for one in check(step).findings if "top_k" in one.evidence]
    assert [one.evidence["empty_frac"] for one in found] == ([pytest.approx(empty)] if empty else [])
    time = sum(row.time_ms_per_step for row in step.gemms if row.component == "moe.experts")
    for one in found:
        assert one.change == {"capacity": [rows, round(rows * 0.8)]}
        assert one.fix[0].startswith("- capacity_factor = 1.25 ")
        assert 0 < (one.saving_ms.high or 0.0) <= 0.2001 * time


@pytest.mark.parametrize(
    ("loads", "top_k", "empty"),
    [
        ([4096] * 8, 2, 0.75),
        ([4096] * 8, None, 0.875),  # at most: each token is of one expert at least
        ([4096] * 8, 8, None),  # a mixture of all
        ([4096] * 2, None, None),  # shared experts beside those that no GEMM shows
        ([512] * 8, 1, None),
    ],
)
def test_experts_in_turn_that_each_compute_all_tokens_are_a_finding(
    loads: list[int], top_k: int | None, empty: float | None, said: Listener
) -> None:
    """8 experts, 4096 tokens; the work that is left is that of a row for each choice."""
    x = Shape(2048, 16, 1408, v=32000, kv=8, d=128, layers=16, b=2, s=2048)
    mix = Mix(x, 8, loads, "loop")
    step = facts_of(x, rows=mixed_rows(mix), dims=mix.dims)
    outcome = check(replace(step, model=replace(step.model, top_k=Known(top_k, "aten::topk"))))
    assert [one.evidence["empty_frac"] for one in outcome.findings] == ([empty] if empty else [])
    time = sum(row.time_ms_per_step for row in step.gemms if row.component == "moe.experts")
    for one in outcome.findings:
        assert one.change == {"tokens_of_an_expert": ["all", "those that chose it"]}
        assert one.flops_delta == -(empty or 0) and one.confidence == ("medium" if top_k else "low")
        assert 0.7 * (empty or 0) * time < (one.saving_ms.high or 0.0) <= (empty or 0) * time * 1.0001
        said(one.title, one.saw, one.caveats[0])


def test_rows_of_padding_that_wait_for_memory_leave_it_the_weights() -> None:
    """320 rows, 256 of them with a token: the GEMMs move bytes, and a fifth of those of the rows can go."""
    x = Shape(1024, 8, 1024, v=8192, kv=8, d=128, layers=16, b=2, s=2048)
    mix = Mix(x, 32, [320] * 32, "batched")
    step = facts_of(x, rows=mixed_rows(mix), dims=replace(mix.dims, top_k=Known(2, "aten::topk")))
    moved_ms = {32 * 2 * (1024 * 1024 + rows * 2048) / H100_GBPS / 1e6: rows for rows in (320, 256)}
    now, then = moved_ms
    rows = [
        replace(row, time_ms_per_step=row.calls_per_step * now) if row.component == "moe.experts" else row
        for row in step.gemms
    ]
    (finding,) = check(replace(step, gemms=rows)).findings
    calls = sum(row.calls_per_step for row in rows if row.component == "moe.experts")
    assert finding.saving_ms.high == pytest.approx(calls * (now - then), rel=0.01)


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (facts(*[2000, 2096] * 16), "passed"),
        (facts(*[60, 68] * 16), "passed"),  # less than a tile: TL109
        (facts(*[200, 312] * 16, tile_m=None), "could_not_run"),
        (facts(*[256] * 32, how="batched"), "not_applicable"),
        (facts_of(X), "not_applicable"),
    ],
    ids=["full tiles", "few rows", "unknown tile", "batched", "no mixture"],
)
def test_what_is_no_finding_says_why(step: StepFacts, state: str, said: Listener) -> None:
    says_why(check(step), state, said)
