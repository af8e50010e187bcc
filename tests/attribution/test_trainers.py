"""Layers as repositories that people train from write them (benchmarks/libraries/trainers.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_names import decided, situation
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    DOWN,
    GELU,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    OWN,
    STREAM,
    TOKENS,
    UP,
    WIDTH,
    _core_of,
    _found,
    _row,
)
from tests.attribution.test_rare_layers import _stage

RANK = 16


def _adapted(base: Row, wide: int, given: int, *, again: bool = True) -> list[Row]:
    """peft, tuners/lora/dora.py, DoraLinearLayer.forward; ``again``: the product behind its own dropout."""
    part, other = base.right, f"{base.right.partition('.')[0]}.other"
    weight, rows = [wide, given], [BATCH, LENGTH, wide]
    eye = [_row(other, "arange"), _row(other, "copy_", [given, given], [given, given])]
    length = [_row(other, "mul", weight), _row(other, "add", weight, weight)]
    length += [_row(other, "linalg_vector_norm", weight), _row(other, "div", [wide], [wide])]
    scales = [
        _row(other, "sub", [1, wide]),
        *2 * [_row(other, "mul", [1, wide], rows)],
        _row(other, "mul", rows),
    ]
    return [
        base,
        *eye,
        mm(part, given, RANK, given),
        mm(part, given, wide, RANK),
        *length,
        mm(part, TOKENS, RANK, given),
        mm(part, TOKENS, wide, RANK),
        *[mm(part, TOKENS, wide, given)] * again,
        *scales,
        *2 * [_row(other, "add", rows, rows)],
    ]


@pytest.mark.parametrize("again", [True, False])
def test_an_adapter_that_splits_length_and_direction_is_of_what_it_adapts(
    tmp_path: Path, again: bool
) -> None:
    queries = [row for _ in range(3) for row in _adapted(OWN, WIDTH, WIDTH, again=again)]
    output = _adapted(OUTPUT, WIDTH, WIDTH, again=again)
    mlp = [*_adapted(UP, 4 * WIDTH, WIDTH, again=again), GELU, *_adapted(DOWN, WIDTH, 4 * WIDTH, again=again)]
    _found(tmp_path, 3 * [NORM, *queries, CORE, *output, ADD, NORM, *mlp, ADD])


def test_what_an_adapter_adds_is_no_residual() -> None:
    """peft names its module lora_magnitude_vector in the linear layer that it adapts."""
    where = replace(situation("layers.0.mlp.Linear.lora_magnitude_vector", inner="add"), residual=True)
    assert decided(where) == "mlp.other"
    assert decided(replace(where, path=situation("layers.0.mlp").path)) == "residual"


def test_a_frozen_layer_is_a_product_for_each_sample() -> None:
    """aten::linear makes a bmm of a weight without gradient on rows that are not contiguous."""
    frozen = replace(situation("resblocks.0.attn", inner="bmm", after_core=False), outer="linear")
    assert decided(frozen) == "attention.qkv"
    assert decided(replace(frozen, outer="bmm")) == "attention.scores"


def test_rows_of_the_stream_are_brought_to_the_length_of_one(tmp_path: Path) -> None:
    """ngpt/model.py, justnorm: without a weight; heads of cosine attention are of that attention."""
    one = [BATCH, LENGTH, 1]
    norm = [_row("norm", "linalg_vector_norm", STREAM), _row("norm", "div", STREAM, one)]
    step = _row("residual", "sub", STREAM, STREAM), _row("residual", "mul", [WIDTH], STREAM)
    layer = [*ATTENTION[1:], *norm, *step, ADD, *norm, *MLP[1:], *norm, *step, ADD, *norm]
    _found(tmp_path, 3 * layer)


def test_a_stage_can_begin_with_heads_that_no_fused_kernel_takes(tmp_path: Path) -> None:
    """hiera/hiera.py: in windows, with scores of five dimensions, the queries being the largest of four."""
    norm, attention, mlp = _stage(WIDTH, 4 * TOKENS)
    _, behind, its_mlp = _stage(2 * WIDTH, TOKENS)
    heads, windows = 2 * WIDTH // 64, TOKENS // 16
    core = _core_of([1, heads, windows, 16, 64])
    pools = _row("other", "max", [1, 4, TOKENS, 2 * WIDTH])
    queries = mm("attention.qkv", 4 * TOKENS, 6 * WIDTH, WIDTH)
    largest = _row("attention.other", "max", [1, heads, windows, 4, 16, 64])
    first = [norm, mm("other", 4 * TOKENS, 2 * WIDTH, WIDTH), pools, queries, largest, *core, *behind[3:]]
    _found(tmp_path, [*2 * [*attention, *mlp], *first, *its_mlp, *2 * [*behind, *its_mlp]])


@pytest.mark.parametrize("width", [WIDTH, 2 * WIDTH])
def test_each_token_times_the_row_of_a_word_and_its_sum_is_a_logit(tmp_path: Path, width: int) -> None:
    """SASRec.pytorch/model.py: (log_feats * pos_embs).sum(-1)."""
    table = [64 * WIDTH, WIDTH]
    looks = Row("embedding", "aten::embedding", "void vectorized_gather_kernel", (table, [BATCH, LENGTH]))
    rows, right = [BATCH, LENGTH, width], "logits" if width == WIDTH else ""
    dots = [_row(right, "mul", rows, rows), _row(right, "sum", rows)]
    loss = _row("loss", "binary_cross_entropy_with_logits", [TOKENS])
    _found(tmp_path, [looks, *2 * [*ATTENTION, ADD, *MLP, ADD], NORM, looks, *dots, loss])


@pytest.mark.parametrize("shapes", [True, False])
def test_series_that_agree_with_themselves_attend(tmp_path: Path, shapes: bool) -> None:
    """transformers models/autoformer/modeling_autoformer.py and Time-Series-Library, AutoCorrelation."""
    heads, waves = [BATCH * HEADS, LENGTH, 64], [BATCH * HEADS, LENGTH // 2 + 1, 64]
    made = 3 * [_row("attention.other", "copy_", heads, heads)] + 2 * [
        _row("attention.other", "_fft_r2c", heads)
    ]
    scores = [_row("attention.scores", "mul", waves, waves), _row("attention.scores", "_fft_c2r", waves)]
    lags = [_row("attention.softmax", "mean", heads), _row("attention.softmax", "topk", [LENGTH])]
    moved = [_row("attention.values", name, heads, heads) for name in ("roll", "mul", "add_")]
    core = [*scores, *lags, _row("attention.softmax", "_softmax", [BATCH, 8]), *3 * moved]
    own = mm("attention.qkv", TOKENS, WIDTH, WIDTH)
    layer = [*3 * [own], *made, *core, OUTPUT, ADD, NORM, UP, GELU, DOWN, ADD, NORM]
    _found(tmp_path, 3 * layer, shapes=shapes)
