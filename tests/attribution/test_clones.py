"""Layers as repositories that people train from write them (benchmarks/libraries/clones.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_beside_cores import ALL, HEAD, MAP, OF_SCORES, _convolution, _layers, _scores
from tests.attribution.test_names import _roles, decided, situation
from tests.attribution.test_parts import (
    ATTENTION,
    BATCH,
    CORE,
    HEADS,
    LENGTH,
    NORM,
    OUTPUT,
    OWN,
    QUERIES,
    STREAM,
    TOKENS,
    WIDTH,
    _batched,
    _found,
    _layer_of,
    _row,
)
from tracelens.attribution.components import decide
from tracelens.attribution.names import element_role
from tracelens.attribution.paths import Element
from tracelens.attribution.paths import Path as Path_

SOFTMAX = _row("attention.softmax", "_softmax", OF_SCORES)
VALUES = _batched("attention.values", ALL, LENGTH, HEAD, LENGTH)


def test_latent_attention_whose_weights_are_taken_into_queries_and_values(tmp_path: Path) -> None:
    """deepseek-ai/DeepSeek-V3 inference/model.py, MLA: products of each head's weight with all tokens."""
    rank, turned = 96, 16
    heads = [BATCH, LENGTH, HEADS, LENGTH]
    one, two = (_batched("attention.scores", BATCH, LENGTH * HEADS, LENGTH, k) for k in (rank, turned))
    core = [
        _batched("attention.other", HEADS, TOKENS, rank, 32),
        _row("norm", "native_layer_norm", [BATCH, LENGTH, rank], [rank]),
        one,
        two,
        _row("attention.softmax", "add", heads, heads),
        _row("attention.softmax", "_softmax", heads),
        _batched("attention.values", BATCH, LENGTH * HEADS, rank, LENGTH),
        _batched("attention.other", HEADS, TOKENS, WIDTH // HEADS, rank),
    ]
    makes = [mm("attention.qkv", TOKENS, wide, WIDTH) for wide in (WIDTH + HEADS * turned, rank + turned)]
    _found(tmp_path, _layers([NORM, *makes, *core, OUTPUT]))


def test_an_mlp_of_distances_inside_the_scores(tmp_path: Path) -> None:
    """microsoft/Swin-Transformer models/swin_transformer_v2.py, cpb_mlp."""
    distances = [
        mm("attention.other", 225, 512, 2),
        _row("attention.other", "relu_", [225, 512]),
        mm("attention.other", 225, HEADS, 512),
    ]
    added = _row("attention.softmax", "add", OF_SCORES, [1, *OF_SCORES[1:]])
    core = [_scores("attention.scores"), *distances, added, SOFTMAX, VALUES]
    _found(tmp_path, _layers([NORM, QUERIES, *core, OUTPUT]))


@pytest.mark.parametrize(
    ("modules", "evidence"),
    [("WindowAttention.Sequential.Linear", "structure"), ("WindowAttention.Linear", "module_stack")],
)
def test_a_network_of_layers_before_the_core_can_be_of_what_is_added(modules: str, evidence: str) -> None:
    """microsoft/Swin-Transformer models/swin_transformer_v2.py, cpb_mlp, with its names."""
    elements = tuple(Element(name, element_role(name), None, False) for name in modules.split("."))
    where = replace(situation(""), path=Path_(elements, modules), inner="linear", after_core=False)
    decision = decide(where)
    assert decision is not None
    assert (decision.component, decision.evidence) == ("attention.qkv", evidence)


def test_cosines_and_sines_are_looked_up(tmp_path: Path) -> None:
    """naver/croco models/pos_embed.py, RoPE2D: F.embedding(positions, cos)."""
    heads, half = [BATCH, HEADS, LENGTH, HEAD], [BATCH, HEADS, LENGTH, HEAD // 2]
    looks = Row("attention.rope", "aten::embedding", "indexSelect", ([32, HEAD], [BATCH, LENGTH]))
    turns = [
        _row("attention.rope", "neg", half),
        _row("attention.rope", "cat", [half, half]),
        _row("attention.rope", "mul", heads, [BATCH, 1, LENGTH, HEAD]),
        _row("attention.rope", "mul", heads, [BATCH, 1, LENGTH, HEAD]),
        _row("attention.rope", "add", heads, heads),
    ]
    rotation = [looks, looks, *turns]
    _found(tmp_path, _layers([NORM, *3 * [OWN], *rotation, *rotation, CORE, OUTPUT]))


def test_two_streams_attend_together_and_run_one_after_the_other(tmp_path: Path) -> None:
    """black-forest-labs/flux modules/layers.py, DoubleStreamBlock."""
    layers = [_layer_of(stream) for stream in (STREAM, [BATCH, 32, WIDTH])]
    heads = [BATCH, LENGTH + 32, HEADS, HEAD]
    makes = [row for attention, _ in layers for row in attention[:2]]
    behind = [row for attention, mlp in layers for row in (*attention[3:], *mlp)]
    _found(tmp_path, 3 * [*makes, replace(CORE, dims=(heads,) * 3), *behind])


def test_a_long_skip_is_of_no_layer(tmp_path: Path) -> None:
    """baofff/U-ViT libs/uvit.py, Block.skip_linear."""
    skip = [_row("other", "cat", [STREAM, STREAM]), mm("other", TOKENS, WIDTH, 2 * WIDTH)]
    _found(tmp_path, [*_layers(ATTENTION), *2 * [*skip, *_layers(ATTENTION)]])


def test_a_head_as_wide_as_an_mlp_is_none(tmp_path: Path) -> None:
    """bowang-lab/scGPT scgpt/model/model.py, ExprDecoder: up and back in the width of the stream."""
    square = [
        mm("mlp.up", TOKENS, WIDTH, WIDTH),
        _row("mlp.activation", "relu", STREAM),
        mm("mlp.down", TOKENS, WIDTH, WIDTH),
    ]
    head = [replace(row, right="other") for row in (*square, _row("", "leaky_relu", STREAM))]
    loss = Row("loss", "aten::mse_loss", "mse", ([BATCH, LENGTH], [BATCH, LENGTH]))
    layers = _layers(ATTENTION, [NORM, *square])
    _found(tmp_path, [*layers, *head, mm("logits", TOKENS, 1, WIDTH), loss])


def test_noise_and_loss_on_maps_are_no_layers(tmp_path: Path) -> None:
    """openai/guided-diffusion gaussian_diffusion.py: q_sample, and the mean of squares."""
    picture = [BATCH, 3, 8, 8]
    noise = [_row("", "mul", picture, [BATCH, 1, 1, 1]), _row("", "add", picture, picture)]
    first, last = (_convolution("other", picture, shape) for shape in ([WIDTH, 3, 3, 3], [3, WIDTH, 3, 3]))
    loss = [_row("", "sub", picture, picture), _row("", "pow", picture), _row("", "neg", picture)]
    norm = [_row("norm", "add_", []), _row("norm", "native_batch_norm", MAP)]  # and the batches it counts
    between = [_convolution("other", MAP, [WIDTH, WIDTH, 3, 3]), *norm, _row("other", "silu", MAP)]
    _found(tmp_path, [*noise, first, *3 * between, last, *loss])


def test_layers_on_maps_between_two_attentions_are_not_of_these(tmp_path: Path) -> None:
    """openai/guided-diffusion unet.py: what makes queries is a convolution of one tap over a sequence."""

    def linear(right: str, wide: int) -> Row:
        return Row(right, "aten::conv1d", "conv", ([BATCH, WIDTH, LENGTH], [wide, WIDTH, 1]))

    side = int(LENGTH**0.5)
    maps = [BATCH, WIDTH, side, side]
    block = [
        _row("norm", "native_group_norm", maps, [WIDTH]),
        _row("other", "silu", maps),
        _convolution("other", maps, [WIDTH, WIDTH, 3, 3]),
        _row("other", "add", maps, maps),
    ]
    norm = _row("norm", "native_group_norm", [BATCH, WIDTH, LENGTH], [WIDTH])
    core = [_scores("attention.scores"), SOFTMAX, VALUES]
    attention = [norm, linear("attention.qkv", 3 * WIDTH), *core, linear("attention.output", WIDTH)]
    stem = _convolution("other", [BATCH, 3, side, side], [WIDTH, 3, 3, 3])
    _found(tmp_path, [stem, *3 * [*block, *attention]])


def test_a_table_read_the_other_way_is_the_head() -> None:
    """mosaicml/llm-foundry models/layers/custom_embedding.py, SharedEmbedding."""
    assert decided(replace(situation("transformer.wte"), vocabulary="weight")) == "logits"


def test_a_table_of_rotations_is_of_these() -> None:
    """naver/croco models/pos_embed.py, with its names."""
    assert (
        decided(replace(situation("layers.0.attn.rope"), inner="embedding", outer="embedding"))
        == "attention.rope"
    )


def test_a_network_of_blocks_is_no_mlp_of_a_layer() -> None:
    """LTH14/mar models/diffloss.py: SimpleMLPAdaLN holds blocks, and their adaptive scales."""
    inside = decide(replace(situation("mlp_net.res_block.adaptive"), inner="linear", order_in_mlp=None))
    assert inside is None
    plain = decide(replace(situation("layers.0.mlp.linear_block"), inner="linear", order_in_mlp=None))
    assert plain is not None
    block = ("AdaMLP.ResBlock", "AdaMLP.ResBlock.Linear")
    assert _roles("AdaMLP", *block, "AdaMLP.FinalLayer")[0] is None
    assert _roles("AdaMLP", "AdaMLP.FinalLayer", "AdaMLP.FinalLayer.Linear")[0] == "mlp"


def test_what_hands_an_embedding_on_embeds_nothing() -> None:
    """openai/guided-diffusion unet.py"""
    assert element_role("TimestepEmbedSequential_3") is None
    assert element_role("TimestepEmbedder") == "embedding"
    assert element_role("MLPEmbedder") == "embedding"  # black-forest-labs/flux modules/layers.py


def test_few_small_heads_are_no_adapter(tmp_path: Path) -> None:
    """lucidrains/vit-pytorch mobile_vit.py: four heads of 8, on a stream of 96."""
    heads = 4 * 8
    core = [
        _batched("attention.scores", ALL, LENGTH, LENGTH, 8),
        SOFTMAX,
        _batched("attention.values", ALL, LENGTH, 8, LENGTH),
    ]
    makes, output = (
        mm("attention.qkv", TOKENS, 3 * heads, WIDTH),
        mm("attention.output", TOKENS, WIDTH, heads),
    )
    _found(tmp_path, _layers([NORM, makes, *core, output]))
