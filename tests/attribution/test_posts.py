"""Layers of what people post recordings of (benchmarks/libraries/posts.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, said_of, written
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    OWN,
    STREAM,
    TOKENS,
    WIDTH,
    _batched,
    _found,
    _layer_of,
    _row,
)
from tracelens.attribution.names import element_role
from tracelens.words import COMPONENTS

LAYER = [*ATTENTION, ADD, *MLP, ADD]
WORDS = 32 * WIDTH
HEAD, LOGITS = mm("logits", TOKENS, WORDS, WIDTH), [BATCH, LENGTH, WORDS]
LOSS = _row("loss", "cross_entropy_loss", [TOKENS, WORDS])
LOOKUP = Row(
    "embedding", "aten::embedding", "void vectorized_gather_kernel", ([WORDS, WIDTH], [BATCH, LENGTH])
)


def test_a_weight_mirrored_at_vectors_is_of_its_product(tmp_path: Path) -> None:
    """peft, tuners/hra/layer.py: as many reflections as the rank, and the weight times what they make."""
    square = [WIDTH, WIDTH]
    each = [
        _row("attention.other", "mul", square),
        mm("attention.qkv", WIDTH, 1, WIDTH),
        mm("attention.qkv", WIDTH, WIDTH, 1),
        _row("attention.other", "sub", square, square),
    ]
    starts = [_row("attention.other", "linalg_vector_norm", [WIDTH, 4])]
    linear = replace(OWN, op="aten::linear")
    queries = [*starts, *4 * each, mm("attention.qkv", WIDTH, WIDTH, WIDTH), linear]
    _found(tmp_path, 3 * [NORM, *queries, linear, linear, CORE, OUTPUT, ADD, *MLP, ADD])


def test_an_adapter_of_the_head_is_of_the_head(tmp_path: Path) -> None:
    """peft, LoraConfig(target_modules="all-linear") with lm_head: scaled, and added to the logits."""
    rank = 16
    adapts = [mm("logits", TOKENS, rank, WIDTH), mm("logits", TOKENS, WORDS, rank)]
    sums = [_row("logits", "mul", LOGITS), _row("logits", "add", LOGITS, LOGITS)]
    _found(tmp_path, [LOOKUP, *2 * LAYER, NORM, HEAD, *adapts, *sums, LOSS])


def _pointwise(name: str, batch: int, length: int) -> list[Row]:
    weights = [BATCH, batch // BATCH, length, length]
    return [
        _batched("attention.scores", batch, length, length, 64),
        _row("attention.other", "clamp", [BATCH, length, length]),
        _row("attention.softmax", "add", weights, [BATCH, 1, length, length]),
        _row("attention.softmax", name, weights),
        _row("attention.softmax", "div", weights),
        _batched("attention.values", batch, length, 64, length),
    ]


def test_scores_that_an_activation_bends_are_attention(tmp_path: Path) -> None:
    """generative_recommenders/research/modeling/sequential/hstu.py: silu(q k + bias) / n, and no MLP."""
    makes, gates = (
        mm("attention.qkv", TOKENS, 4 * WIDTH, WIDTH),
        _row("attention.other", "mul", STREAM, STREAM),
    )
    core = _pointwise("silu", BATCH * HEADS, LENGTH)
    _found(tmp_path, 3 * [NORM, makes, *core, gates, OUTPUT, ADD])


def test_experts_that_are_batched_are_no_attention(tmp_path: Path) -> None:
    """As many tokens in each as its MLP is wide: up, an activation, and back."""
    wide = 64
    up, down = _batched("", 8, wide, wide, WIDTH), _batched("", 8, wide, WIDTH, wide)
    rows = 3 * [NORM, up, _row("", "silu", [8, wide, wide]), down, ADD]
    _, _, found = attributed(tmp_path, written(rows))
    assert not {COMPONENTS[code] for code in found.component} & {"attention.scores", "attention.values"}


def test_what_a_loss_looks_up_opens_no_model(tmp_path: Path) -> None:
    """The same: items that the last layer's are compared with, brought to the length of one."""
    items = [BATCH, LENGTH, 4, WIDTH]
    compares = [_row("", "linalg_vector_norm", items), _row("", "div", items, items)]
    said = said_of(tmp_path, [LOOKUP, *2 * LAYER, NORM, LOOKUP, *compares, LOSS])
    assert "embedding" not in said[-3:]


def test_a_mixer_does_not_begin_in_the_layer_before(tmp_path: Path) -> None:
    """minGRU_pytorch/minGRULM.py: a convolution of its own ahead of the mixer, behind the sum of an MLP."""
    maps = [BATCH, WIDTH, LENGTH]
    convolves = Row("", "aten::convolution", "conv_depthwise1d", (maps, [WIDTH, 1, 3]))
    up, down = mm("", TOKENS, 4 * WIDTH, WIDTH), mm("", TOKENS, WIDTH, 4 * WIDTH)
    scans = [_row("", name, STREAM) for name in ("neg", "logcumsumexp", "exp")]
    mixer = [mm("", TOKENS, 2 * WIDTH, WIDTH), *scans, mm("", TOKENS, WIDTH, WIDTH), ADD]
    bends = _row("", "gelu", [BATCH, LENGTH, 4 * WIDTH])
    rows = 3 * [convolves, ADD, NORM, *mixer, NORM, up, bends, down, ADD]
    said = said_of(tmp_path, rows)
    mlps = [one for row, one in zip(rows, said, strict=True) if row in (up, down)]
    assert not any(one.startswith("ssm") for one in mlps)


@pytest.mark.parametrize("shift", [[1, 1, WIDTH], [WIDTH]])
def test_one_scale_and_shift_for_all_samples_is_no_norm(tmp_path: Path, shift: list[int]) -> None:
    """wenet/squeezeformer/attention.py, adaptive_scale, of a stream that has been normalized."""
    scales = [_row("", "mul", STREAM, shift), _row("", "add", STREAM, shift)]
    rows = 3 * [*scales, OWN, OWN, OWN, CORE, OUTPUT, ADD, NORM, *MLP[1:], ADD, NORM]
    said = said_of(tmp_path, rows)
    shifts = {one for row, one in zip(rows, said, strict=True) if row == scales[1]}
    assert "residual" not in shifts and ("norm" not in shifts or shift == [WIDTH])


def test_a_feed_forward_of_experts_is_a_mixture() -> None:
    """LLMs-from-scratch ch04/07_moe/gpt_with_kv_moe.py."""
    assert element_role("MoEFeedForward") == "moe"


def test_what_comes_behind_an_embedding_is_none() -> None:
    """generative_recommenders, L2NormEmbeddingPostprocessor: of what the last layer gives."""
    assert element_role("L2NormEmbeddingPostprocessor") is None
    assert element_role("LearnablePositionalEmbeddingInputFeaturesPreprocessor") == "embedding"


def test_streams_of_two_widths_make_their_queries_one_after_the_other(tmp_path: Path) -> None:
    """mochi/dit/joint_model/asymm_models_joint.py: of a picture and of a narrower text, normalized one
    by one, in one attention."""
    words, narrow = LENGTH // 4, 3 * WIDTH // 4
    pictures, texts = [BATCH, LENGTH - words, WIDTH], [BATCH, words, narrow]

    def stream(size: list[int]) -> list[list[Row]]:
        rows, width = size[0] * size[1], size[2]
        made = [_row("norm", "native_layer_norm", size), mm("attention.qkv", rows, 3 * WIDTH, width)]
        back = [mm("attention.output", rows, width, WIDTH)]
        (*_, add), mlp = _layer_of(size)
        return [made, back, [add, *mlp]]

    (made, back, mlp), (made_too, _, _) = stream(pictures), stream(texts)
    joins = 3 * [_row("attention.other", "cat", [*pictures[:2], HEADS, 64], [*texts[:2], HEADS, 64])]
    _found(tmp_path, 3 * [*made, *made_too, *joins, CORE, *back, *mlp])
