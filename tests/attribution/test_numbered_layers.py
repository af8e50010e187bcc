"""What is counted as a layer: two MLPs of one, a mixer in place of attention, and no pooler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, written
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    FLASH,
    HEADS,
    LENGTH,
    MLP,
    STREAM,
    TOKENS,
    WIDTH,
    _row,
)
from tracelens.accounting.model import model_dims
from tracelens.attribution import find_calls

HALVED = [*MLP, _row("residual", "mul", STREAM), ADD]
ATTENDS = [*ATTENTION, ADD]
GLU = [BATCH, 2 * WIDTH, LENGTH]
CONVOLVES = [
    _row("", "native_layer_norm", STREAM),
    Row("", "aten::convolution", "cudnn::conv", ([BATCH, WIDTH, LENGTH], [2 * WIDTH, WIDTH, 1])),
    _row("", "glu", GLU),
    Row("", "aten::convolution", "cudnn::conv", ([BATCH, WIDTH, LENGTH], [WIDTH, 1, 31])),
    ADD,
]
OWN_MLP = [_row("moe.dispatch", "index", STREAM), *MLP, ADD]  # of other tokens than the first
ROUTES = [
    _row("norm", "native_layer_norm", STREAM),
    mm("moe.router", TOKENS, 8, WIDTH),
    *[_row("moe.router", name, [TOKENS, 8]) for name in ("_softmax", "topk")],
]
ENDS = [mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss", [TOKENS, 1000])]


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        ([*HALVED, *ATTENDS, *CONVOLVES, *HALVED], 1),  # transformers models/wav2vec2_conformer
        (
            [*ATTENDS, *MLP, ADD, *OWN_MLP],
            1,
        ),  # transformers models/higgs_audio_v2: for words, for sound
        # transformers models/longcat_flash: experts run beside the next MLP and attention
        ([*ATTENDS, *ROUTES, *MLP, ADD, *ATTENDS, *MLP, ADD], 2),
        ([*ATTENDS, *MLP, ADD, *CONVOLVES, *MLP, ADD], 2),  # a layer that convolves where others attend
        ([*ATTENDS, *MLP, ADD, _row("", "_fft_r2c", STREAM), ADD, *MLP, ADD], 2),  # or mixes some other way
    ],
)
def test_two_mlps_that_nothing_parts_are_of_one_layer(tmp_path: Path, layer: list[Row], count: int) -> None:
    trace, links, found = attributed(tmp_path, written([*3 * layer, *ENDS]))
    assert model_dims(found, find_calls(trace, links, found)).layers.value == 3 * count


def test_what_pools_behind_the_last_layer_is_none(tmp_path: Path) -> None:
    """transformers models/siglip/modeling_siglip.py, SiglipMultiheadAttentionPoolingHead."""
    heads = ([BATCH, 1, HEADS, 64], *2 * ([BATCH, LENGTH, HEADS, 64],))
    pools = [
        mm("", BATCH, WIDTH, WIDTH),
        mm("", TOKENS, 2 * WIDTH, WIDTH),
        Row("attention.core", "aten::_flash_attention_forward", FLASH, heads),
        mm("", BATCH, WIDTH, WIDTH),
    ]
    behind = [_row("norm", "native_layer_norm", [BATCH, 1, WIDTH]), mm("", BATCH, 10, WIDTH)]
    ends = [*behind, _row("loss", "cross_entropy_loss", [BATCH, 10])]
    layers = 3 * [*ATTENDS, *MLP, ADD]
    for rows, count in (([*layers, *pools, *ends], 3), ([*layers, *ATTENDS, *ENDS], 4)):
        trace, links, found = attributed(tmp_path, written(rows))
        assert model_dims(found, find_calls(trace, links, found)).layers.value == count
