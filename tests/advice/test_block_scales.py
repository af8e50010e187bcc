"""Sizes and block scales: the rules of TransformerEngine, torchtitan and ms-swift, on made-up rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.advice.advice_facts import step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import gemm
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.evidence.low_precisions import misfits


def up(tokens: int, ffn: int, **more: Any) -> GemmRow:
    return gemm(1, tokens, ffn, 4096, component="mlp.up", names=("b*s", "f", "h"), **more)


def training(*rows: GemmRow, **more: Any) -> StepFacts:
    wgrad = gemm(9, 4096, 4096, 8192, role="wgrad", layout="NT", component="attention.qkv")
    return step_of([*rows, wgrad], **more)


@pytest.mark.parametrize(
    ("ffn", "block", "off"),
    [
        (11008, 32, {}),
        (11008, 128, {}),
        (10944, 32, {}),  # 342 blocks of 32
        (10944, 128, {10944: "ffn"}),  # 85.5 of 128
        (11008 // 8, 32, {}),  # of 8 ranks: 43 blocks of 32
        (11008 // 8, 128, {1376: "ffn"}),  # sharded, 10.75 of 128
        (10920, 32, {10920: "ffn"}),
    ],
)
def test_both_sizes_of_a_rank_are_whole_blocks(ffn: int, block: int, off: dict[int, str]) -> None:
    assert misfits(up(8192, ffn), block, training()) == off


def test_tokens_count_where_gradients_need_the_other_direction() -> None:
    row = up(8200, 11008)
    assert misfits(row, 32, training()) == {8200: "tokens"}
    assert misfits(row, 32, step_of([row])) == {}


def test_sequence_parallel_ranks_cast_their_part_of_the_tokens() -> None:
    """modelscope/ms-swift#9723: the sequence divides by ranks x 32."""
    gathers = [message("all_gather", group_size=8)]
    assert misfits(up(8192, 11008), 32, training(communication=gathers)) == {}
    assert misfits(up(128, 11008), 32, training(communication=gathers)) == {16: "tokens"}
    assert misfits(up(128, 11008), 32, training()) == {}
