"""Layers as further repositories write them (benchmarks/libraries/repos.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, written
from tests.attribution.test_beside_cores import ALL, HEAD, OF_HEADS, OF_SCORES, _layers, _scores
from tests.attribution.test_names import _roles, decided, situation
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    DOWN,
    GELU,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    QUERIES,
    STREAM,
    TOKENS,
    UP,
    WIDTH,
    _batched,
    _found,
    _row,
)
from tracelens.attribution.components import decide
from tracelens.words import COMPONENTS

STATISTIC = [BATCH, LENGTH, 1]
LOSS = Row("loss", "aten::mse_loss", "mse", (STREAM, STREAM))


@pytest.mark.parametrize("deviation", [["std"], ["copy_", "var", "sqrt"]])
def test_a_norm_that_divides_by_the_deviation(tmp_path: Path, deviation: list[str]) -> None:
    """codertimo/BERT-pytorch bert_pytorch/model/utils/layer_norm.py."""
    norm = [
        _row("norm", "mean", STREAM),
        *(_row("norm", name, STATISTIC if name == "sqrt" else STREAM) for name in deviation),
        _row("norm", "sub", STREAM, STATISTIC),
        _row("norm", "mul", [WIDTH], STREAM),
        _row("norm", "add", STATISTIC),
        _row("norm", "div", STREAM, STATISTIC),
        _row("norm", "add", STREAM, [WIDTH]),
    ]
    _found(tmp_path, _layers([*norm, *ATTENTION[1:]], [*norm, *MLP[1:]]))


def test_what_is_added_before_one_product_of_all_three_is_of_the_stream(tmp_path: Path) -> None:
    """SamsungSAILMontreal/TinyRecursiveModels models/recursive_reasoning/trm.py: the input is added again and
    again to a stream that is normalized behind its sums."""
    layer = [QUERIES, CORE, OUTPUT, ADD, NORM, UP, GELU, DOWN, ADD, NORM]
    _found(tmp_path, [*layer, *3 * [ADD, ADD, *layer, *layer]])


def test_experts_are_chosen_by_their_distance(tmp_path: Path) -> None:
    """SalesforceAIResearch/uni2ts src/uni2ts/module/ffn.py, MoEFeedForward."""
    experts, rows, picked = 8, [TOKENS, WIDTH], [TOKENS // 8, WIDTH]
    inner = [TOKENS // 8, 4 * WIDTH]
    routes = [
        _row("moe.router", "cat", [BATCH, LENGTH, WIDTH], [BATCH, LENGTH, 1], [BATCH, LENGTH, 1]),
        _batched("moe.router", BATCH, LENGTH, experts, WIDTH + 2),
        _row("moe.router", "topk", [TOKENS, experts]),
        _row("moe.router", "_softmax", [TOKENS, 1]),
    ]
    expert = [
        _row("moe.dispatch", "index", rows),
        mm("moe.experts", picked[0], 4 * WIDTH, WIDTH),
        _row("moe.experts", "silu", inner),
        mm("moe.experts", picked[0], WIDTH, 4 * WIDTH),
        _row("moe.dispatch", "mul", [picked[0], 1], picked),
        _row("moe.dispatch", "index_put_", rows, [picked[0]], picked),
    ]
    _found(tmp_path, 3 * [*ATTENTION, ADD, NORM, *routes, *experts * expert, ADD])


def test_a_branch_of_some_samples_is_drawn_and_added(tmp_path: Path) -> None:
    """facebookresearch/dinov2 layers/block.py, drop_add_residual_stochastic_depth."""
    few = BATCH // 2
    some, flat = [few, LENGTH, WIDTH], [LENGTH * WIDTH]
    draws = [_row("dropout", "randperm"), _row("dropout", "index", STREAM)]
    adds = [
        _row("residual", "mul", some, [WIDTH]),
        _row("residual", "index_add", [BATCH, *flat], [few], [few, *flat]),
    ]
    norm, tokens = _row("norm", "native_layer_norm", some), few * LENGTH
    heads = [few, LENGTH, 4, 64]
    attention = [mm("attention.qkv", tokens, 3 * WIDTH, WIDTH), replace(CORE, dims=(heads,) * 3)]
    attention += [mm("attention.output", tokens, WIDTH, WIDTH)]
    mlp = [mm("mlp.up", tokens, 4 * WIDTH, WIDTH), _row("mlp.activation", "gelu", [few, LENGTH, 4 * WIDTH])]
    mlp += [mm("mlp.down", tokens, WIDTH, 4 * WIDTH)]
    _found(tmp_path, 3 * [*draws, norm, *attention, *adds, *draws, norm, *mlp, *adds])


def test_a_block_whose_input_is_projected_beside_is_no_mlp_of_a_layer(tmp_path: Path) -> None:
    """google-research/timesfm src/timesfm/torch/dense.py, ResidualBlock, behind the last layer."""
    square, silu = mm("", TOKENS, WIDTH, WIDTH), _row("", "silu", STREAM)
    head = [square, silu, square, square, _row("", "add", STREAM, STREAM)]
    mlp = [NORM, replace(square, right="mlp.up"), silu, replace(square, right="mlp.down")]
    trace, _, found = attributed(tmp_path, written([*_layers(ATTENTION, mlp), *head, LOSS]))
    order = trace.kernels.ts_ns.argsort(kind="stable")[-len(head) - 1 : -1]
    assert not {COMPONENTS[found.component[at]] for at in order} & {
        "mlp.up",
        "mlp.gate",
        "mlp.down",
        "residual",
    }


def test_what_is_made_for_pairs_of_positions_is_no_rotation(tmp_path: Path) -> None:
    """SalesforceAIResearch/uni2ts src/uni2ts/module/position/attn_bias.py, BinaryAttentionBias."""
    half = [*OF_HEADS[:3], HEAD // 2]
    turns = [_row("attention.rope", "neg", half), _row("attention.rope", "cat", half, half)]
    turns += [
        _row("attention.rope", "mul", OF_HEADS, [LENGTH, HEAD]),
        _row("attention.rope", "add", OF_HEADS, OF_HEADS),
    ]
    bias = _row("attention.other", "add", OF_SCORES, OF_SCORES)
    softmax = _row("attention.softmax", "_softmax", OF_SCORES)
    values = _batched("attention.values", ALL, LENGTH, HEAD, LENGTH)
    core = [_scores("attention.scores"), softmax, values]
    _found(tmp_path, _layers([NORM, QUERIES, *turns, *turns, bias, *core, OUTPUT]))


def test_an_mlp_that_embeds() -> None:
    """PixArt-alpha diffusion/model/nets/PixArt_blocks.py, CaptionEmbedder.y_proj."""
    found = decide(replace(situation("caption_embedder.mlp.fc1"), inner="linear", order_in_mlp=(0, 2)))
    assert found is None or found.component == "mlp.up"  # a projection of its own name
    assert (
        decided(replace(situation("caption_embedder.mlp"), inner="linear", order_in_mlp=(0, 2)))
        == "embedding"
    )


def test_a_rotation_in_a_layer_adds_no_residual() -> None:
    """allenai/OLMo olmo/model.py: a block calls its RotaryEmbedding itself."""
    assert (
        decided(replace(situation("blocks.0.rotary_emb"), inner="add", outer="add", residual=True))
        == "attention.rope"
    )


def test_a_block_of_attention_that_bends_and_normalizes_twice_is_a_layer() -> None:
    """facebookresearch/dinov3 dinov3/layers/block.py: forward_list is no call of a module."""
    held = ("ALayerNorm", "ALinear", "BLayerNorm", "BLinear", "GELU", "CLinear")
    paths = ["SelfAttentionBlock", *(f"SelfAttentionBlock.{name}" for name in held)]
    assert _roles(*paths)[0] == "layer"
    assert _roles(*[path for path in paths if "GELU" not in path])[0] == "attention"
