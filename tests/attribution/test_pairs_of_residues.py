"""Blocks of AlphaFold 2 as OpenFold and Boltz write them, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_parts import ADD, ATTENTION, BATCH, LENGTH, MLP, WIDTH, _batched, _found, _row

SIDE, CHANNELS, HEADS, HEAD = 64, 128, 4, 32
PAIRS, MAP = SIDE * SIDE, [1, SIDE, SIDE, CHANNELS]
NORMED = _row("norm", "native_layer_norm", MAP)
ADDED = _row("residual", "add", MAP, MAP)


def _linear(right: str, n: int = CHANNELS, k: int = CHANNELS, rows: int = PAIRS) -> Row:
    return mm(right, rows, n, k)


def _gated(right: str = "other") -> list[Row]:
    """A linear layer, and the sigmoid of another that it is multiplied with."""
    gate, times = _row(right, "sigmoid", MAP), _row(right, "mul", MAP, MAP)
    return [_linear(right), gate, _linear(right), times]


def _attends() -> list[Row]:
    """openfold/model/triangular_attention.py: each row attends by itself."""
    scores = [1, SIDE, HEADS, SIDE, SIDE]
    return [
        NORMED,
        *3 * [_linear("attention.qkv")],
        _batched("attention.scores", SIDE * HEADS, SIDE, SIDE, HEAD),
        *2 * [_row("attention.softmax", "add_", scores, [1, 1, HEADS, SIDE, SIDE])],
        _row("attention.softmax", "_softmax", scores),
        _batched("attention.values", SIDE * HEADS, SIDE, HEAD, SIDE),
        _linear("attention.other"),
        *[_row("attention.other", name, MAP, MAP) for name in ("sigmoid", "mul")],
        _linear("attention.output"),
    ]


def _multiplies() -> list[Row]:
    """openfold/model/triangular_multiplicative_update.py: both edges, and their product by channel."""
    edges = _batched("other", CHANNELS, SIDE, SIDE, SIDE)
    return [NORMED, *_gated(), *_gated(), edges, NORMED, *_gated()]


def _outer() -> list[Row]:
    """openfold/model/outer_product_mean.py, for a MSA of so many sequences."""
    few, rows = 32, LENGTH * SIDE
    whole, made = [1, LENGTH, SIDE, few], _row("other", "copy_", *2 * [[1, SIDE, SIDE, few, few]])
    narrow = [_linear("other", few, 256, rows), _row("other", "mul", whole, [1, LENGTH, SIDE, 1])]
    product = _batched("other", 1, SIDE * few, SIDE * few, LENGTH)
    averages = [_batched("other", 1, SIDE, SIDE, LENGTH), _row("other", "div", MAP, [1, SIDE, SIDE, 1])]
    normed = _row("norm", "native_layer_norm", [1, LENGTH, SIDE, 256])
    return [normed, *narrow, *narrow, product, made, _linear("other", CHANNELS, few * few), *averages, ADDED]


def _transition() -> list[Row]:
    wide = [1, SIDE, SIDE, 4 * CHANNELS]
    up, down = _linear("mlp.up", 4 * CHANNELS), _linear("mlp.down", CHANNELS, 4 * CHANNELS)
    return [NORMED, up, _row("mlp.activation", "relu", wide), down, ADDED]


def test_work_on_pairs_is_no_attention(tmp_path: Path) -> None:
    block = [*_outer(), *2 * [*_multiplies(), ADDED], *2 * [*_attends(), ADDED], *_transition()]
    _found(tmp_path, 3 * block)


@pytest.mark.parametrize("drawn", [True, False])
def test_a_mask_that_rows_share_drops(tmp_path: Path, drawn: bool) -> None:
    """boltz/model/layers/dropout.py draws and compares; openfold/model/dropout.py drops a row of ones."""
    mask, stream = [BATCH, 1, WIDTH], [BATCH, LENGTH, WIDTH]
    drops = _row("dropout", "mul", stream, mask)
    made = [_row("dropout", name, *[mask] * (name != "rand")) for name in ("rand", "ge", "mul")]
    dropped = _row("dropout", "native_dropout", mask)
    branch = [*made, *ATTENTION, drops] if drawn else [*ATTENTION, dropped, drops]
    plain = [*ATTENTION, ADD, *MLP, ADD]
    _found(tmp_path, [*plain, *3 * [*branch, ADD, *MLP, ADD]])
