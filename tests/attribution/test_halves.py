"""Layers that hold two MLPs are one layer each, and layers without attention are layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, written
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    LENGTH,
    MLP,
    STREAM,
    TOKENS,
    WIDTH,
    _row,
    mm,
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
