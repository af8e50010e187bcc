"""What models of the packages of their authors showed (benchmarks/libraries), each on the fewest units."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm, said_of
from tests.attribution.test_beside_cores import _convolution
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
    QUERIES,
    STREAM,
    TOKENS,
    UP,
    WIDTH,
    _batched,
    _core_of,
    _found,
    _row,
)
from tests.attribution.test_structure import _run, _unit
from tracelens.attribution.structure.norms import written_norms

EXPERTS, PLACES = 8, 160
ROUTES = [mm("moe.router", TOKENS, EXPERTS, WIDTH), _row("moe.router", "_softmax", [BATCH, LENGTH, EXPERTS])]


def test_products_with_who_goes_where_send_tokens_to_experts_and_back(tmp_path: Path) -> None:
    """st_moe_pytorch.py, MoE: einsum('b n d, b n e c -> b e c d') and back (arXiv 2006.16668)."""
    choice = _row("moe.router", "topk", [BATCH, LENGTH, EXPERTS])
    there = _batched("moe.dispatch", BATCH, PLACES, WIDTH, LENGTH)
    rows = BATCH * PLACES // EXPERTS
    up, down = (
        _batched("moe.experts", EXPERTS, rows, n, k) for n, k in ((4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
    )
    back = _batched("moe.dispatch", BATCH, LENGTH, WIDTH, PLACES)
    bends = _row("moe.experts", "gelu", [EXPERTS, rows, 4 * WIDTH])
    mixture = [NORM, *ROUTES, choice, there, up, bends, down, back, ADD]
    _found(tmp_path, 3 * [*ATTENTION, ADD, *mixture])


def test_the_largest_of_a_softmax_chooses_an_expert(tmp_path: Path) -> None:
    """labml_nn/transformers/switch/__init__.py: route_prob_max, routes = torch.max(route_prob, dim=-1)."""
    rows = TOKENS // EXPERTS
    choice = [replace(ROUTES[1], dims=([TOKENS, EXPERTS],)), _row("", "max", [TOKENS, EXPERTS])]
    expert = [
        _row("moe.dispatch", "index", [TOKENS, WIDTH], [rows]),
        mm("moe.experts", rows, 4 * WIDTH, WIDTH),
        _row("moe.experts", "relu", [rows, 4 * WIDTH]),
        mm("moe.experts", rows, WIDTH, 4 * WIDTH),
    ]
    back = _row("moe.dispatch", "index_put_", [TOKENS, WIDTH], [rows], [rows, WIDTH])
    choice[1] = replace(choice[1], right="moe.dispatch")
    _found(tmp_path, 3 * [*ATTENTION, ADD, NORM, ROUTES[0], *choice, *(EXPERTS * expert), back, ADD])


def test_heads_attend_in_two_ways(tmp_path: Path) -> None:
    """timesformer_pytorch.py, Attention: the class token to all, then every place over time, rotated."""
    frames, places = 8, 16
    batch = BATCH * HEADS * places
    heads, table = [batch, frames, 64], [1, frames, 64]
    turn = [
        _row("attention.rope", "mul", heads, table),
        _row("attention.rope", "neg", [batch, frames, 32]),
        _row("attention.rope", "cat", [[batch, frames, 32, 1], [batch, frames, 32, 1]]),
        _row("attention.rope", "mul", heads, table),
        _row("attention.rope", "add", heads, heads),
    ]
    one = _core_of([BATCH * HEADS, 1, LENGTH])
    all_ = _core_of([batch, frames, frames + 1])
    joined = _row("attention.other", "cat", [[batch, 1, 64], heads])
    layer = [NORM, QUERIES, *one, *turn, *turn, joined, *all_, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, 3 * layer)


MAP, PLACE = [2, WIDTH, 16, 16], 256


def _by_place(right: str, n: int, k: int) -> list[Row]:
    return [_convolution(right, [2, k, 16, 16], [n, k, 1, 1])]


@pytest.mark.parametrize("linear", [True, False])
def test_convolutions_of_one_tap_make_attention_on_maps(tmp_path: Path, linear: bool) -> None:
    """denoising_diffusion_pytorch.py, LinearAttention and Attention, between blocks of convolutions."""
    batch, other = 2 * HEADS, "attention.other"
    softmax = _row(other, "_softmax", [2, HEADS, 64, PLACE])
    scale = _row(other, "mul", [2, HEADS, 64, PLACE])
    context = [_batched(other, batch, 64, 64, PLACE), _batched(other, batch, 64, PLACE, 64)]
    core = Row("attention.core", CORE.op, CORE.kernel, ([2, PLACE, HEADS, 64],) * 3)
    attends = [softmax, softmax, scale, *context] if linear else [core]
    block = [_convolution("other", MAP, [WIDTH, WIDTH, 3, 3]), _row("other", "silu", MAP)]
    made = [
        *_by_place("attention.qkv", 3 * WIDTH, WIDTH),
        *attends,
        *_by_place("attention.output", WIDTH, WIDTH),
    ]
    _found(tmp_path, 3 * [*block, *made, *block])


def test_a_shortcut_before_attention_on_maps_makes_no_queries(tmp_path: Path) -> None:
    """denoising_diffusion_pytorch.py, ResnetBlock: a convolution of one tap is its shortcut, and is added."""
    core = Row("attention.core", CORE.op, CORE.kernel, ([2, PLACE, HEADS, 64],) * 3)
    shortcut = [*_by_place("other", WIDTH, WIDTH), _row("other", "add", MAP, MAP)]
    makes, output = _by_place("attention.qkv", 3 * WIDTH, WIDTH), _by_place("attention.output", WIDTH, WIDTH)
    block = [_convolution("other", MAP, [WIDTH, WIDTH, 3, 3]), _row("other", "silu", MAP)]
    _found(tmp_path, 3 * [*block, *shortcut, *makes, core, *output, *block])


def test_a_convolution_inside_an_mlp_is_no_activation(tmp_path: Path) -> None:
    """segmentation_models_pytorch/encoders/mix_transformer.py, DWConv between fc1 and the activation."""
    wide = [BATCH, 4 * WIDTH, 16, 8]
    mixes = _convolution("mlp.other", wide, [4 * WIDTH, 1, 3, 3])
    _found(tmp_path, 3 * [*ATTENTION, ADD, NORM, UP, mixes, GELU, DOWN, ADD])


def test_a_shift_behind_the_scale_ends_an_adaptive_norm(tmp_path: Path) -> None:
    """aurora/model/swin3d.py: x + norm(attention(x)), scaled and shifted for each sample, before the MLP."""
    sample = [BATCH, 1, WIDTH]
    norm = [NORM, _row("norm", "mul", STREAM, sample), _row("norm", "add", STREAM, sample)]
    layer = [QUERIES, CORE, OUTPUT, *norm, ADD, UP, GELU, DOWN, *norm, ADD]
    _found(tmp_path, [NORM, *3 * layer, *layer[:-1]])


def test_what_follows_the_first_norm_is_no_embedding(tmp_path: Path) -> None:
    """boltz/model/layers/triangular_mult.py: before the first attention the stream is gated by itself."""
    gate = [mm("", TOKENS, WIDTH, WIDTH), _row("", "sigmoid", STREAM), _row("", "mul", STREAM, STREAM)]
    embeds = Row(
        "embedding", "aten::embedding", "void vectorized_gather_kernel", ([1000, WIDTH], [BATCH, LENGTH])
    )
    opening = [embeds, NORM, *gate]
    _found(tmp_path, [*opening, *3 * [*ATTENTION, ADD, *MLP, ADD]])


def test_a_root_is_multiplied_with_the_weight_before_the_rows() -> None:
    """moshi/modules/transformer.py, _rms_norm: x * (alpha * rsqrt(var)), in more bits."""
    x, rows, weight = (2, 64, WIDTH), (2, 64, 1), (1, 1, WIDTH)
    before = [_unit("copy_", x, x, what="copy"), _unit("pow", x), _unit("mean", x), _unit("add", rows)]
    cast = _unit("copy_", weight, weight, what="copy")
    behind = [_unit("rsqrt", rows), _unit("mul", weight, rows), _unit("mul", x, x)]
    back = _unit("copy_", x, x, what="copy")
    run = _run(*before, cast, *behind, back, _unit("gelu", x))
    assert written_norms(run) == {*range(len(run) - 1)}


def test_channels_of_a_sequence_are_divided_by_their_response() -> None:
    """f5_tts/model/modules.py, GRN: the length of each channel over all tokens."""
    x, channels, sample = (2, 64, WIDTH), (2, 1, WIDTH), (2, 1, 1)
    small = [_unit("mean", channels), _unit("add", sample), _unit("div", channels, sample)]
    wide = [
        _unit("mul", x, channels),
        _unit("mul", x, (WIDTH,)),
        _unit("add", x, (WIDTH,)),
        _unit("add", x, x),
    ]
    run = _run(_unit("linalg_vector_norm", x), *small, *wide)
    assert {*range(4)} <= written_norms(run)


def test_experts_in_what_is_called_a_mixture_need_no_router(tmp_path: Path) -> None:
    """soft_moe_pytorch/soft_moe.py: tokens are weighed by a softmax, none is chosen."""
    rows, place = TOKENS // EXPERTS, "layers.0.moe.experts.0"
    up, down = (mm("moe.experts", rows, n, k, inside=place) for n, k in ((64, WIDTH), (WIDTH, 64)))
    _found(tmp_path, [*ATTENTION, ADD, up, down, *ATTENTION, ADD])


@pytest.mark.parametrize(("behind", "count"), [("neg", 0), ("gelu", 1)])
def test_what_turns_behind_a_norm_is_no_weight_of_it(behind: str, count: int) -> None:
    """A rotation in 32 bits under autocast: no cast stands between the norm of the heads and its cosines."""
    heads, table = (64, HEADS, 64), (64, 1, 64)
    steps = [_unit("pow", heads), _unit("mean", heads), _unit("rsqrt", (64, HEADS, 1))]
    steps += [_unit("mul", heads, (64, HEADS, 1)), _unit("mul", heads, (64,))]
    run = _run(*steps, _unit("mul", heads, table), _unit(behind, (64, HEADS, 32)))
    assert written_norms(run) == {*range(len(steps) + count)}


def test_an_activation_written_out_adds_inside_its_mlp(tmp_path: Path) -> None:
    """transformer_lens: gelu_new(x) = 0.5 x (1 + tanh(x + 0.044715 x^3)), in a module of two products."""
    layer, wide = "layers.0.mlp", [BATCH, LENGTH, 4 * WIDTH]
    steps = [replace(_row("", name, wide, wide), inside=layer) for name in ("pow", "add", "tanh", "mul")]
    up, down = replace(UP, right="", inside=layer), replace(DOWN, right="", inside=layer)
    rows = [*ATTENTION, ADD, NORM, up, *steps, down, ADD, *ATTENTION, ADD]
    said = said_of(tmp_path, rows)
    assert "residual" not in said[rows.index(up) : rows.index(down)]


def test_what_counts_the_batches_of_a_norm_is_no_bias_of_queries(tmp_path: Path) -> None:
    """timm models/levit.py, ConvNorm: num_batches_tracked.add_(1) of BatchNorm2d, behind a convolution."""
    core = Row("attention.core", CORE.op, CORE.kernel, ([2, PLACE, HEADS, 64],) * 3)
    counts = [_row("norm", "add_", []), _row("norm", "native_batch_norm", MAP)]
    makes, output = _by_place("attention.qkv", 3 * WIDTH, WIDTH), _by_place("attention.output", WIDTH, WIDTH)
    block = [_convolution("other", MAP, [WIDTH, WIDTH, 3, 3]), _row("other", "silu", MAP)]
    _found(tmp_path, 3 * [*block, *makes, *counts, core, *output, *counts, *block])


CLASSES = 1000
CLASSIFIED = _row("loss", "cross_entropy_loss", [TOKENS, CLASSES])


def test_several_heads_are_put_side_by_side_before_the_loss(tmp_path: Path) -> None:
    """moshi/models/lm.py, LMModel.forward: a head for each codebook, and torch.stack."""
    one = [BATCH, LENGTH, CLASSES]
    heads = 3 * [mm("logits", TOKENS, CLASSES, WIDTH), _row("logits", "copy_", [TOKENS, WIDTH])]
    beside = _row("logits", "cat", [one, one, one])
    loss = _row("loss", "cross_entropy_loss", [3 * TOKENS, CLASSES])
    _found(tmp_path, [*2 * [*ATTENTION, ADD, *MLP, ADD], NORM, *heads[:-1], beside, loss])


@pytest.mark.parametrize("rows", [TOKENS, 2 * TOKENS])
def test_a_product_that_a_loss_takes_is_a_head_in_the_middle_too(tmp_path: Path, rows: int) -> None:
    """moshi/models/lm.py, LMModel.forward: text_linear, then the layers over codebooks, then both losses."""
    text = mm("logits" if rows == TOKENS else "", TOKENS, 7 * CLASSES, WIDTH)
    head, layers = mm("logits", TOKENS, CLASSES, WIDTH), 2 * [*ATTENTION, ADD, *MLP, ADD]
    loss = _row("loss", "cross_entropy_loss", [rows, 7 * CLASSES])
    _found(tmp_path, [*layers, NORM, text, *layers, NORM, head, CLASSIFIED, loss])


def test_a_sum_of_logits_can_be_the_gradient_of_a_bias(tmp_path: Path) -> None:
    """performer_pytorch.py: to_out behind attention that nothing in the trace tells."""
    table, logits = [64 * WIDTH, WIDTH], [TOKENS, 64 * WIDTH]
    embeds = Row("embedding", "aten::embedding", "void vectorized_gather_kernel", (table, [BATCH, LENGTH]))
    cast, sums = _row("loss", "copy_", logits, logits), _row("", "sum", logits)
    _found(tmp_path, [embeds, NORM, cast, _row("loss", "_log_softmax", logits), sums])
