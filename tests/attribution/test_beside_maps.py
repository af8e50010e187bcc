"""Attention between convolutions, and heads of models that attend nowhere, as timm writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_parts import (
    ADD,
    BATCH,
    CORE,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    QUERIES,
    TOKENS,
    WIDTH,
    _batched,
    _core_of,
    _found,
    _row,
)
from tracelens.attribution.structure.attention_on_maps import _of_maps
from tracelens.attribution.structure.units import Kind

SIDE, WINDOW = 16, 256  # of a map, and its places
MAP = [BATCH, WIDTH, SIDE, SIDE]
CLASSES = 1000


def _convolution(given: list[int], weight: list[int], right: str = "other") -> Row:
    return Row(right, "aten::cudnn_convolution", "cudnn_convolution", (given, weight))


def _one(right: str) -> Row:
    return _convolution(MAP, [WIDTH, WIDTH, 1, 1], right)


def _block() -> list[Row]:
    return [_convolution(MAP, [WIDTH, WIDTH, 3, 3]), _row("norm", "native_batch_norm", MAP, [WIDTH], [WIDTH])]


@pytest.mark.parametrize(("loss", "right"), [("cross_entropy_loss", "other"), ("mse_loss", "")])
def test_a_loss_of_classes_takes_a_head_without_any_attention(tmp_path: Path, loss: str, right: str) -> None:
    """timm models/starnet.py: blocks of convolutions, a pooling and a linear layer."""
    head = mm(right, BATCH, CLASSES, WIDTH)
    _found(tmp_path, [*3 * _block(), head, _row("loss", loss, [BATCH, CLASSES], [BATCH])])


def test_a_loss_of_classes_may_be_fused_by_a_library(tmp_path: Path) -> None:
    """Liger-Kernel ops/cross_entropy.py."""
    shapes = ([BATCH, CLASSES], [BATCH])
    loss = Row("loss", "LigerCrossEntropyFunction", "liger_cross_entropy_kernel", shapes)
    _found(tmp_path, [*3 * _block(), mm("other", BATCH, CLASSES, WIDTH), loss])


def _core() -> list[Row]:
    return _core_of([BATCH, HEADS, WINDOW, WINDOW])


def test_queries_are_laid_out_before_keys_are_made(tmp_path: Path) -> None:
    """timm models/mobilenetv4 and efficientformer_v2.py: keys and values are convolved on the way."""
    lay = _row("attention.other", "copy_", *2 * [[BATCH, HEADS, WINDOW, 64]])
    scale = _row("attention.other", "mul", [BATCH, HEADS, WINDOW, 64])
    keys = [_one("other"), _row("norm", "native_batch_norm", MAP, [WIDTH], [WIDTH])]
    values = [_one("attention.qkv"), *keys[1:]]
    back = _row("attention.other", "copy_", MAP, MAP)
    layer = [*keys, lay, *keys, lay, *values, scale, *_core(), back, _one("attention.output")]
    _found(tmp_path, 2 * [*_block(), *layer, *_block()])


def test_linear_attention_stands_between_convolutions_more_than_once(tmp_path: Path) -> None:
    """timm models/efficientvit_mit.py, LiteMLA: keys are summed with the values first."""
    batch, heads = BATCH * HEADS, [BATCH, HEADS, WINDOW, 64]
    attends = [
        *2 * [_row("attention.other", "relu", heads)],
        _batched("attention.scores", batch, 64, 65, WINDOW),
        _batched("attention.values", batch, WINDOW, 65, 64),
        _row("attention.other", "div", heads, [BATCH, HEADS, WINDOW, 1]),
        _row("attention.other", "copy_", heads, heads),
    ]
    _found(tmp_path, 3 * [*_block(), _one("other"), *attends, _one("other")])


def test_a_number_for_each_head_of_every_pair_is_of_attention(tmp_path: Path) -> None:
    """timm models/convit.py, GPSA: a softmax of positions beside that of the scores."""
    pairs = BATCH * LENGTH * LENGTH
    places = [
        mm("attention.other", pairs, HEADS, 3),
        _row("attention.other", "add", [BATCH, LENGTH, LENGTH, HEADS]),
    ]
    scores = [BATCH, HEADS, LENGTH, LENGTH]
    core = [
        _batched("attention.scores", BATCH * HEADS, LENGTH, LENGTH, 64),
        *2 * [_row("attention.softmax", "_softmax", scores)],
        _row("attention.softmax", "add", scores, scores),
        _batched("attention.values", BATCH * HEADS, LENGTH, 64, LENGTH),
    ]
    queries = mm("attention.qkv", TOKENS, 2 * WIDTH, WIDTH)
    values = mm("attention.qkv", TOKENS, WIDTH, WIDTH)
    layer = [NORM, queries, *places, *core[:-1], values, core[-1], OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, 3 * layer)


@pytest.mark.parametrize(("rows", "right"), [(HEADS, "attention.other"), (HEADS + 1, "")])
def test_a_table_with_a_row_for_each_head_is_of_attention(tmp_path: Path, rows: int, right: str) -> None:
    """timm models/tiny_vit.py: biases are looked up before the windows are normalized."""
    looks = _row(right, "index", [rows, LENGTH])
    down = _convolution(MAP, [WIDTH, WIDTH, 3, 3])
    _found(tmp_path, 3 * [down, looks, NORM, QUERIES, CORE, OUTPUT, ADD, *MLP, ADD])


def test_a_gate_is_made_beside_the_queries_of_the_same_map(tmp_path: Path) -> None:
    """timm models/iformer.py, SHMABlock: of a convolution of its own, and multiplied behind the core."""
    norm = _row("norm", "native_batch_norm", MAP, [WIDTH], [WIDTH])
    gate = _row("attention.other", "sigmoid", MAP)
    makes = [_one("other"), norm, gate, _one("other"), norm, _one("attention.qkv"), norm]
    layer = [*makes, *_core(), _row("attention.other", "mul", MAP, MAP), _one("attention.output")]
    _found(tmp_path, 2 * [*_block(), *layer, *_block()])


@pytest.mark.parametrize("classes", [CLASSES, CLASSES - 1])
def test_a_distilled_head_is_added_to_the_other(tmp_path: Path, classes: int) -> None:
    """timm models/deit.py and levit.py: the mean of both goes to the loss."""
    first = mm("other" if classes == CLASSES else "", BATCH, classes, WIDTH)
    behind = [_row("other", "add", *2 * [[BATCH, CLASSES]]), _row("other", "div", [BATCH, CLASSES])]
    behind = behind if classes == CLASSES else [_row("", "clamp", [BATCH, CLASSES])]
    loss = _row("loss", "cross_entropy_loss", [BATCH, CLASSES], [BATCH])
    _found(tmp_path, [*3 * _block(), first, mm("other", BATCH, CLASSES, WIDTH), *behind, loss])


@pytest.mark.parametrize(("places", "maps"), [((16, 16), True), ((256,), False)])
def test_a_convolution_over_a_sequence_convolves_no_map(places: tuple[int, ...], maps: bool) -> None:
    """transformers models/inkling2/modeling_inkling2.py: short convolutions of what attention gives."""
    taps = (3,) * len(places)
    assert _of_maps(Kind("convolution", "conv", tensors=((2, 64, *places), (64, 1, *taps)))) == maps


@pytest.mark.parametrize(("offsets", "right"), [(WINDOW, "attention.other"), (WINDOW + 1, "")])
def test_heads_that_attend_one_by_one_share_a_table_of_offsets(
    tmp_path: Path, offsets: int, right: str
) -> None:
    """timm models/efficientvit_msra.py, CascadedGroupAttention: one table, looked up ahead of all."""
    core = _core_of([BATCH, WINDOW, WINDOW], 16, 64)
    norm = _row("norm", "native_batch_norm", MAP, [WIDTH], [WIDTH])
    looks = _row(right, "index", [HEADS, offsets])
    _found(
        tmp_path, 2 * [*_block(), looks, _one("attention.qkv"), norm, *core, _one("attention.output"), norm]
    )


@pytest.mark.parametrize(("channels", "right"), [(WIDTH // 8, "other"), (WIDTH // 4, "")])
def test_a_few_embeddings_times_every_place_of_a_map_are_masks(
    tmp_path: Path, channels: int, right: str
) -> None:
    """segment_anything/modeling/mask_decoder.py: hyper_in @ upscaled_embedding."""
    shrinks = [WIDTH, WIDTH // 8, 1, 1]
    bends = _row(right, "gelu", [BATCH, WIDTH // 8, SIDE, SIDE])
    masks = _batched(right, BATCH, 4, WINDOW, channels)
    _found(tmp_path, [NORM, QUERIES, CORE, OUTPUT, *MLP, NORM, _convolution(MAP, shrinks), bends, masks])
