"""Layers as jobs that people profile write them (benchmarks/libraries/workloads.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_beside_cores import _convolution
from tests.attribution.test_names import _roles, decided, situation
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
    _batched,
    _core_of,
    _found,
    _row,
)
from tracelens.attribution.components import decide
from tracelens.attribution.names import element_role

LAYER = [*ATTENTION, ADD, *MLP, ADD]


def _changed(base: Row, wide: int, given: int) -> list[Row]:
    """peft, tuners/lokr/layer.py: base_layer(x) + linear(x, w1 kron w2)."""
    family = base.right.partition(".")[0]
    other, blocks = f"{family}.other", 8
    makes = [
        mm(other, wide // blocks, given // blocks, 4),
        _row(other, "mul", [blocks, 1, blocks, 1], [1, wide // blocks, 1, given // blocks]),
        _row(other, "mul", [wide, given]),
    ]
    results = [BATCH, LENGTH, wide]
    return [base, *makes, mm(base.right, TOKENS, wide, given), _row(other, "add", results, results)]


def test_a_weight_that_is_made_whole_is_of_the_product_that_it_changes(tmp_path: Path) -> None:
    queries = [row for _ in range(3) for row in _changed(OWN, WIDTH, WIDTH)]
    mlp = [*_changed(UP, 4 * WIDTH, WIDTH), GELU, *_changed(DOWN, WIDTH, 4 * WIDTH)]
    _found(tmp_path, 3 * [NORM, *queries, CORE, *_changed(OUTPUT, WIDTH, WIDTH), ADD, NORM, *mlp, ADD])


def _turned(base: Row, given: int, block: int = 32) -> list[Row]:
    """peft, tuners/oft/layer.py, OFTRotationModule, ahead of base_layer."""
    other, count = f"{base.right.partition('.')[0]}.other", given // block
    blocks = [count, block, block]
    series = 3 * [_batched(base.right, count, block, block, block), _row(other, "add_", blocks, blocks)]
    turns = _batched(base.right, count, TOKENS, block, block)
    heads = [BATCH, LENGTH, count, block]
    makes = [_row(other, "fill_", blocks), _row(other, "sub", blocks, blocks)]
    return [*makes, *series, turns, _row(other, "copy_", heads, heads), base]


def test_what_turns_the_input_of_a_product_is_of_that(tmp_path: Path) -> None:
    queries = 3 * _turned(OWN, WIDTH)
    mlp = [*_turned(UP, WIDTH), GELU, *_turned(DOWN, 4 * WIDTH)]
    _found(tmp_path, 3 * [NORM, *queries, CORE, *_turned(OUTPUT, WIDTH), ADD, NORM, *mlp, ADD])


def test_a_batched_product_in_a_module_of_one_product_is_no_score() -> None:
    """The same, with names."""
    where = replace(situation("layers.0.self_attn.Linear.OFTRotationModule", inner="bmm", after_core=False))
    assert decided(where) == "attention.qkv"


def test_a_model_that_is_called_after_its_head_is_none() -> None:
    """NeoBERT/model.py, NeoBERTLMHead: the whole model."""
    held = ("NeoBERTLMHead", "NeoBERTLMHead.NeoBERT", "NeoBERTLMHead.NeoBERT.EncoderBlock")
    assert _roles(*held)[0] == "logits"
    assert _roles(*held, f"{held[-1]}.Linear")[0] is None


def test_experts_of_attention_are_no_mlp_beside_a_mixture() -> None:
    """JetMoE/jetmoe/modeling_jetmoe.py, JetMoEBlock: attention calls a part of its mixture."""
    held = (
        "MoEBlock",
        "MoEBlock.Attention",
        "MoEBlock.Attention.Experts",
        "MoEBlock.MoE",
        "MoEBlock.MoE.Experts",
    )
    assert _roles(*held) == ["layer", "attention", "experts", "moe", "experts"]
    assert element_role("MultiExpertLayer") == "experts"  # soft_mixture_of_experts


ROUTER = mm("moe.router", TOKENS, 8, WIDTH)
CHOICE = [_row("moe.router", name, [TOKENS, 8]) for name in ("topk", "_softmax")]


def _experts(rows: int = TOKENS // 4, *, right: str = "moe.experts") -> list[Row]:
    wide = [rows, 2 * WIDTH]
    gated = [mm(right, rows, 2 * WIDTH, WIDTH), _row(right, "silu", wide), mm(right, rows, 2 * WIDTH, WIDTH)]
    return [*gated, _row(right, "mul", wide, wide), mm(right, rows, WIDTH, 2 * WIDTH)]


def test_experts_that_are_called_feed_forward_are_experts(tmp_path: Path) -> None:
    """mistral_inference/moe.py: MoeLayer is called by its forward, so no module says what they are."""
    expert = [replace(row, inside="layers.0.feed_forward") for row in _experts()]
    routes = [NORM, ROUTER, *CHOICE, _row("moe.dispatch", "index", [TOKENS, WIDTH])]
    rows = [
        *ATTENTION,
        ADD,
        *routes,
        *4 * [*expert, _row("moe.dispatch", "index_add_", [TOKENS, WIDTH])],
        ADD,
    ]
    _found(tmp_path, 2 * rows)


def test_a_noisy_router_has_several_products(tmp_path: Path) -> None:
    """arXiv 1701.06538; llama-moe, TopKBalancedNoisyGate: two layers, and a third for the noise. What is
    squared and averaged of one number for each expert is no norm."""
    small = [TOKENS, 8]
    gate = [ROUTER, _row("moe.router", "tanh", small), mm("moe.router", TOKENS, 8, 8), ROUTER]
    noise = [_row("moe.router", name, small, small) for name in ("mul", "add")]
    balance = [_row("moe.dispatch", "mean", [8]), _row("moe.dispatch", "pow"), _row("moe.dispatch", "add")]
    sends = _row("moe.dispatch", "index_select", [TOKENS, WIDTH])
    back = _row("moe.dispatch", "index_add", [TOKENS, WIDTH])
    rows = [*ATTENTION, ADD, NORM, *gate, *noise, *CHOICE, *balance, sends, *4 * _experts(), back, ADD]
    _found(tmp_path, 3 * rows)


def test_heads_that_share_their_values_are_rows_of_one_product(tmp_path: Path) -> None:
    """DeepSeek-VL2, modeling_deepseek.py: rotated and compressed keys are scored apart, of one sequence."""
    rank, turned = 256, 32
    scores = [HEADS, LENGTH, LENGTH]
    core = [
        _batched("attention.other", HEADS, LENGTH, rank, 64),
        _batched("attention.scores", HEADS, LENGTH, LENGTH, turned),
        _batched("attention.scores", HEADS, LENGTH, LENGTH, rank),
        _row("attention.softmax", "_softmax", [1, *scores]),
        _batched("attention.values", 1, HEADS * LENGTH, rank, LENGTH),
        _batched("attention.other", HEADS, LENGTH, 64, rank),
    ]
    stream = [1, LENGTH, WIDTH]
    norm, add = _row("norm", "native_layer_norm", stream), _row("residual", "add", stream, stream)
    makes = [mm("attention.qkv", LENGTH, n, WIDTH) for n in (HEADS * (64 + turned), rank + turned)]
    output = mm("attention.output", LENGTH, WIDTH, WIDTH)
    up, down = mm("mlp.up", LENGTH, 4 * WIDTH, WIDTH), mm("mlp.down", LENGTH, WIDTH, 4 * WIDTH)
    bends = _row("mlp.activation", "gelu", [1, LENGTH, 4 * WIDTH])
    _found(tmp_path, 3 * [norm, *makes, *core, output, add, norm, up, bends, down, add])


def test_the_sum_behind_a_narrow_mlp_is_the_stream(tmp_path: Path) -> None:
    """transformer_user_action/transact.py: an MLP that is narrower than the stream is no adapter."""
    up, down = mm("mlp.up", TOKENS, WIDTH // 8, WIDTH), mm("mlp.down", TOKENS, WIDTH, WIDTH // 8)
    bends = _row("mlp.activation", "relu", [BATCH, LENGTH, WIDTH // 8])
    _found(tmp_path, 3 * [NORM, OWN, OWN, OWN, CORE, OUTPUT, ADD, NORM, up, bends, down, ADD])


def test_two_projections_behind_attention_with_a_chance_between(tmp_path: Path) -> None:
    """TimeSformer/timesformer/models/vit.py, Block: temporal_attn.proj, drop_path, temporal_fc."""
    samples = [BATCH, 1, 1]
    drops = [
        _row("dropout", "rand"),
        *[_row("dropout", name, samples) for name in ("add", "floor_")],
        *[_row("dropout", "div", STREAM), _row("dropout", "mul", STREAM, samples)],
    ]
    _found(tmp_path, 3 * [*ATTENTION, *drops, OUTPUT, ADD, *MLP, *drops, ADD])


def test_masks_that_are_made_as_large_as_the_picture_are_no_loss(tmp_path: Path) -> None:
    """segmenter/segm/model/segmenter.py: F.interpolate of the classes of patches, ahead of their loss."""
    head = mm("logits", TOKENS, 150, WIDTH)
    larger = _row("other", "upsample_bilinear2d", [BATCH, 150, 16, 16])
    loss = _row("loss", "cross_entropy_loss", [BATCH, 150, 256, 256])
    _found(tmp_path, [*2 * LAYER, NORM, head, larger, loss])
    where = replace(situation(""), path=None, inner=None, outer="picture", behind=True)
    assert decide(where) is None


@pytest.mark.parametrize("last", [True, False])
def test_values_read_at_places_behind_the_last_core_are_of_no_head(tmp_path: Path, last: bool) -> None:
    """RT-DETR, rtdetr_decoder.py: the last layer attends to maps, and so no core follows."""
    maps = BATCH * 1024
    values = mm("attention.qkv", maps, WIDTH, WIDTH)
    offsets = mm("attention.other", TOKENS, HEADS * 8, WIDTH)
    weights = mm("attention.other", TOKENS, HEADS * 4, WIDTH)
    softmax = _row("attention.softmax", "_softmax", [BATCH, LENGTH, HEADS, 4])
    grid = ([BATCH * HEADS, 64, 32, 32], [BATCH * HEADS, LENGTH, 4, 2])
    reads = Row("attention.values", "aten::grid_sampler_2d", "grid_sampler_2d_kernel", grid)
    heads = [BATCH * HEADS, 64, LENGTH, 4]
    sums = [_row("attention.other", "mul", heads, heads), _row("attention.other", "sum", heads)]
    crosses = [values, offsets, weights, softmax, reads, *sums, OUTPUT, ADD]
    layer = [NORM, OWN, OWN, OWN, CORE, OUTPUT, ADD, NORM, *crosses, *MLP, ADD]
    ends = [
        NORM,
        mm("logits", TOKENS, 80, WIDTH),
        _row("loss", "binary_cross_entropy_with_logits", [TOKENS, 80]),
    ]
    _found(tmp_path, [*2 * layer, *(ends if last else [*LAYER, *ends])])


@pytest.mark.parametrize("inner", [True, False])
def test_a_soft_mixture_weighs_tokens_and_slots(tmp_path: Path, inner: bool) -> None:
    """arXiv 2308.00951: experts that are one product of all, or an MLP each (soft_moe_pytorch)."""
    experts, slots = 8, 32
    weights = [BATCH, LENGTH, slots]
    rows = BATCH * slots // experts
    each = [mm("moe.experts", rows, 2 * WIDTH, WIDTH), _row("moe.experts", "gelu", [rows, 2 * WIDTH])]
    mlps = experts * [*each, mm("moe.experts", rows, WIDTH, 2 * WIDTH)]
    mixture = [
        _batched("moe.router", 1, TOKENS, slots, WIDTH),
        *2 * [_row("moe.router", "_softmax", weights)],
        _batched("moe.dispatch", BATCH, slots, WIDTH, LENGTH),
        *(mlps if inner else [_batched("moe.experts", slots, BATCH, WIDTH, WIDTH)]),
        _batched("moe.dispatch", BATCH, WIDTH, LENGTH, slots),
    ]
    _found(tmp_path, [*3 * [*ATTENTION, ADD, NORM, *mixture, ADD], *LAYER])


def test_one_attention_can_take_what_another_gives(tmp_path: Path) -> None:
    """Motionformer/slowfast/models/vit_helper.py, TrajectoryAttention: keys of each picture by itself,
    then of all pictures, with nothing added between."""
    pictures, batch = 4, BATCH * HEADS
    keys, heads = LENGTH // pictures, [BATCH, HEADS, LENGTH, 64]
    first = [
        _batched("attention.scores", batch, LENGTH, LENGTH, 64),
        _row("attention.softmax", "_softmax", [batch, LENGTH, pictures, keys]),
        _batched("attention.values", pictures * batch, LENGTH, 64, keys),
        _row(
            "attention.other",
            "copy_",
            [BATCH, LENGTH, pictures, HEADS, 64],
            [BATCH, LENGTH, pictures, HEADS, 64],
        ),
    ]
    second = [
        mm("attention.qkv", TOKENS, WIDTH, WIDTH),
        mm("attention.qkv", pictures * TOKENS, 2 * WIDTH, WIDTH),
        _row("attention.other", "mul_", heads),
        _batched("attention.scores", batch * LENGTH, 1, pictures, 64),
        _row("attention.softmax", "_softmax", [BATCH, HEADS, LENGTH, pictures]),
        _batched("attention.values", batch * LENGTH, 1, 64, pictures),
    ]
    _found(tmp_path, 3 * [NORM, OWN, OWN, OWN, *first, *second, OUTPUT, ADD, *MLP, ADD])


def test_what_stands_before_a_network_of_convolutions_makes_no_queries(tmp_path: Path) -> None:
    """act/detr/models/detr_vae.py: a latent is made of one transformer, pictures run through convolutions,
    another transformer follows. Attention is written out in three dimensions, by PyTorch's own module."""
    core = _core_of([BATCH * HEADS, LENGTH, LENGTH])
    layer = [OWN, OWN, OWN, *core, OUTPUT, ADD, NORM, UP, GELU, DOWN, ADD, NORM]
    latent = [mm("", BATCH, 64, WIDTH), _row("", "exp", [BATCH, 32]), mm("", BATCH, WIDTH, 32)]
    maps = [BATCH, 64, 56, 56]
    block = [_convolution("other", maps, [64, 64, 3, 3]), _row("other", "relu_", maps)]
    _found(tmp_path, [*2 * layer, *latent, *3 * block, *2 * layer])


def test_a_cast_in_a_norm_is_of_that_where_tokens_are_as_many_as_channels(tmp_path: Path) -> None:
    """mistral_inference/transformer_layers.py, RMSNorm: as many tokens as channels, as large as a weight."""
    square, one = [WIDTH, WIDTH], [WIDTH, 1]
    norm = [
        _row("norm", "copy_", square, square),
        *[_row("norm", name, square) for name in ("pow", "mean")],
        *[_row("norm", name, one) for name in ("add", "rsqrt")],
        _row("norm", "mul", square, one),
        _row("norm", "copy_", square, square),
        _row("norm", "mul", square, [WIDTH]),
    ]
    queries = 3 * [mm("attention.qkv", WIDTH, WIDTH, WIDTH)]
    core = replace(CORE, dims=([1, WIDTH, HEADS, 64],) * 3)
    output, add = mm("attention.output", WIDTH, WIDTH, WIDTH), _row("residual", "add", square, square)
    mlp = [mm("mlp.up", WIDTH, 4 * WIDTH, WIDTH), _row("mlp.activation", "gelu", [WIDTH, 4 * WIDTH])]
    down = mm("mlp.down", WIDTH, WIDTH, 4 * WIDTH)
    _found(tmp_path, 3 * [*norm, *queries, core, output, add, *norm, *mlp, down, add])


@pytest.mark.parametrize("ends", [384, WIDTH])
def test_a_projection_head_never_comes_back_to_the_stream(tmp_path: Path, ends: int) -> None:
    """moco-v3/moco/builder.py, dino/vision_transformer.py: three layers behind the last norm, of a pass that
    another follows. What comes back can be an MLP."""
    wide, right = 8 * WIDTH, "other" if ends != WIDTH else ""
    bends = _row(right, "gelu", [BATCH, wide])
    layers = [mm(right, BATCH, n, k) for n, k in ((wide, WIDTH), (wide, wide), (ends, wide))]
    head = [layers[0], bends, layers[1], bends, layers[2]]
    patches = _convolution("embedding", [BATCH, 3, 64, 64], [WIDTH, 3, 4, 4])
    _found(tmp_path, 2 * [patches, *2 * LAYER, NORM, *head])


def test_positions_of_a_later_pass_are_no_sum_of_the_stream(tmp_path: Path) -> None:
    """dino/vision_transformer.py, prepare_tokens, of the smaller crops."""
    patches = _convolution("embedding", [BATCH, 3, 64, 64], [WIDTH, 3, 4, 4])
    token = _row("embedding", "cat", [BATCH, 1, WIDTH], [BATCH, LENGTH - 1, WIDTH])
    positions = _row("embedding", "add", STREAM, [1, LENGTH, WIDTH])
    _found(tmp_path, 3 * [patches, token, positions, *2 * LAYER, NORM])
