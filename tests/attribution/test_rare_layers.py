"""Layers that few models have, row by row, and what stands beside the usual ones in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, said_of, written
from tests.attribution.test_beside_cores import (
    ALL,
    HEAD,
    MAP,
    OF_SCORES,
    SIZE,
    SOFTMAX,
    _convolution,
    _layers,
    _scores,
)
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
    QUERIES,
    STREAM,
    TOKENS,
    UP,
    WIDTH,
    _batched,
    _core_of,
    _found,
    _layer_of,
    _row,
)
from tests.trace.tools import op
from tracelens.words import COMPONENTS

POOL = Row("other", "aten::max_pool2d_with_indices", "void max_pool_forward_nchw")


def test_a_low_rank_mlp_gates_a_norm(tmp_path: Path) -> None:
    """transformers models/axk2/modeling_axk2.py: sigmoid(W2 silu(W1 x)) x, behind every norm."""
    rank = WIDTH // 16
    low = [mm("mlp.up", TOKENS, rank, WIDTH), _row("mlp.activation", "silu", [BATCH, LENGTH, rank])]
    gates = [_row("norm", "copy_", STREAM, STREAM), _row("norm", "sigmoid", STREAM)]
    back = [_row("norm", "mul", STREAM, STREAM), _row("norm", "copy_", STREAM, STREAM)]
    norm = [NORM, *low, mm("mlp.down", TOKENS, WIDTH, rank), *gates, *back]
    _found(tmp_path, 3 * [*norm, *ATTENTION[1:], ADD, *norm, *MLP[1:], ADD])


def test_heads_are_normed_by_their_length_and_width(tmp_path: Path) -> None:
    """transformers models/zaya/modeling_zaya.py: x (sqrt(d) / |x|), a root mean square without a weight."""
    heads, length = [BATCH, LENGTH, HEADS, 64], [BATCH, LENGTH, HEADS, 1]
    small = [_row("norm", name, length) for name in ("clamp", "reciprocal", "mul")]
    norm = [_row("norm", "linalg_vector_norm", heads), *small, _row("norm", "mul", heads, length)]
    _found(tmp_path, _layers([NORM, *3 * [OWN], *norm, *norm, CORE, OUTPUT]))


def test_clipping_is_of_what_gives_and_of_what_takes(tmp_path: Path) -> None:
    """transformers models/gemma3n/modeling_gemma3n.py, audio: clamped between -limit and limit."""

    def clips(part: str) -> list[Row]:
        return [_row(part, "neg"), _row(part, "clamp", STREAM)]

    attention = [*clips("attention.other"), *ATTENTION, *clips("attention.other"), NORM, ADD]
    mlp = [*clips("mlp.other"), *MLP, *clips("mlp.other"), NORM, ADD]
    _found(tmp_path, [*ATTENTION, ADD, *MLP, ADD, *3 * [*attention, *mlp], *ATTENTION, ADD, *MLP, ADD])


def test_two_streams_attend_by_the_sum_of_their_scores(tmp_path: Path) -> None:
    """transformers models/lilt/modeling_lilt.py: a layout's stream, narrower, beside the text's."""
    width = WIDTH // 4
    narrow = width // HEADS
    own = [mm("attention.qkv", TOKENS, width, width)] * 3
    scores = [_scores("attention.scores"), _batched("attention.scores", ALL, LENGTH, LENGTH, narrow)]
    scores += [_row("attention.softmax", name, OF_SCORES, OF_SCORES) for name in ("div", "div", "add", "add")]
    moves = _row("attention.other", "copy_", [BATCH, LENGTH, HEADS, narrow])
    core = [SOFTMAX, _batched("attention.values", ALL, LENGTH, narrow, LENGTH), moves]
    core += [SOFTMAX, _batched("attention.values", ALL, LENGTH, HEAD, LENGTH)]
    small = [BATCH, LENGTH, width]
    norm = _row("norm", "native_layer_norm", small)
    layout = [mm("attention.output", TOKENS, width, width), _row("", "add", small, small), norm]
    attention = [*own, *3 * [OWN], *scores, *core, OUTPUT, ADD, NORM]
    _found(tmp_path, 3 * [*attention, *layout, UP, GELU, DOWN, ADD, NORM])


def test_what_a_convolution_gives_is_pooled(tmp_path: Path) -> None:
    """transformers models/informer/modeling_informer.py, InformerConvLayer: channels of the stream."""
    maps, longer = [BATCH, WIDTH, LENGTH], [BATCH, WIDTH, LENGTH + 2]
    distils = [
        _convolution("other", longer, [WIDTH, WIDTH, 3]),
        _row("norm", "native_batch_norm", maps, [WIDTH]),
        _row("other", "elu", maps),
        replace(POOL, dims=(maps,)),
    ]
    _found(tmp_path, [*2 * [*ATTENTION, ADD, *MLP, ADD], *distils, *2 * [*ATTENTION, ADD, *MLP, ADD]])


def _stage(width: int, tokens: int) -> tuple[Row, list[Row], list[Row]]:
    """The norm, the attention and the MLP of layers of some width, with their sums."""
    attention, mlp = _layer_of([1, tokens, width], width // 64)
    return attention[0], attention, mlp


def test_a_stage_begins_with_a_product_of_the_stream_that_is_pooled(tmp_path: Path) -> None:
    """timm models/hieradet_sam2.py: the shortcut is widened and pooled as the queries are."""
    norm, attention, mlp = _stage(WIDTH, 4 * TOKENS)
    _, behind, its_mlp = _stage(2 * WIDTH, TOKENS)
    pool = Row(
        "other", "aten::max_pool2d_with_indices", "void max_pool_forward_nchw", ([1, 2 * WIDTH, 64, 32],)
    )
    queries = mm("attention.qkv", 4 * TOKENS, 6 * WIDTH, WIDTH)
    heads = [[1, rows, 2 * WIDTH // 64, 64] for rows in (TOKENS, 4 * TOKENS)]
    core = replace(CORE, dims=(heads[0], heads[1], heads[1]))
    first = [norm, mm("other", 4 * TOKENS, 2 * WIDTH, WIDTH), pool, queries, core, *behind[3:]]
    _found(tmp_path, [*2 * [*attention, *mlp], *first, *its_mlp, *2 * [*behind, *its_mlp]])


def test_the_last_mlp_of_a_stage_widens_the_stream(tmp_path: Path) -> None:
    """timm models/mvitv2.py, MultiScaleBlock: shortcut_proj_mlp beside an MLP that ends in the next width."""
    norm, attention, mlp = _stage(WIDTH, TOKENS)
    _, behind, its_mlp = _stage(2 * WIDTH, TOKENS)
    wide = [1, TOKENS, 2 * WIDTH]
    last = [norm, mm("other", TOKENS, 2 * WIDTH, WIDTH), mlp[1], mlp[2]]
    last += [mm("mlp.down", TOKENS, 2 * WIDTH, 4 * WIDTH), _row("residual", "add", wide, wide)]
    _found(tmp_path, [*2 * [*attention, *mlp], *attention, *last, *3 * [*behind, *its_mlp]])


def test_what_bends_heads_before_the_convolution_behind_them_is_of_attention(tmp_path: Path) -> None:
    """timm models/levit.py on maps: hardswish, a convolution with its batch norm, and the sum."""
    places, maps = SIZE * SIZE, [BATCH, WIDTH, SIZE, SIZE]
    scores = [BATCH, HEADS, places, places]
    core = [_batched("attention.scores", ALL, places, places, HEAD)]
    core += [
        _row("attention.softmax", "_softmax", scores),
        _batched("attention.values", ALL, HEAD, places, places),
    ]
    bends = [_row("attention.other", "hardswish", maps)]
    norm = _row("norm", "native_batch_norm", maps, [WIDTH])
    makes, output = (
        [_convolution(part, MAP, [n * WIDTH, WIDTH, 1, 1]), _row("norm", "add_"), norm]
        for part, n in (("attention.qkv", 3), ("attention.output", 1))
    )
    rows = [*makes, *core, *bends, *output, _row("residual", "add", MAP, MAP)]
    _found(tmp_path, 3 * rows)


@pytest.mark.parametrize("block", [ATTENTION, MLP])
def test_a_shortcut_is_weighed_ahead_of_its_block(tmp_path: Path, block: list[Row]) -> None:
    """timm models/metaformer.py, Scale: res_scale1(x) + token_mixer(norm1(x)), in this order."""
    weighs = _row("residual", "mul", STREAM, [WIDTH])
    both = [[weighs, *part] if part is block else part for part in (ATTENTION, MLP)]
    _found(tmp_path, [*ATTENTION, ADD, *MLP, ADD, *3 * [*both[0], ADD, *both[1], ADD]])


@pytest.mark.parametrize("normed", ["_softmax", "linalg_vector_norm"])
def test_additive_attention_and_the_mlp_of_convolutions_behind_it(tmp_path: Path, normed: str) -> None:
    """transformers models/swiftformer, timm models/swiftformer.py: one score for each token."""
    places = SIZE * SIZE
    tokens, maps, wide = BATCH * places, [BATCH, WIDTH, SIZE, SIZE], [BATCH, 4 * WIDTH, SIZE, SIZE]
    stream, ones = [BATCH, places, WIDTH], [BATCH, places, 1]
    own = mm("attention.qkv", tokens, WIDTH, WIDTH)
    by_length = [
        _row("attention.other", "linalg_vector_norm", stream),
        _row("attention.other", "clamp", ones),
    ]
    by_length += [_row("attention.other", "div", stream, stream)]
    scores = [mm("attention.scores", tokens, 1, WIDTH), _row("attention.other", "mul", ones)]
    sums = [_row("attention.softmax", normed, ones), _row("attention.other", "mul", ones, stream)]
    sums += [_row("attention.values", "sum", stream), _row("attention.other", "mul", stream, stream)]
    output = mm("attention.output", tokens, WIDTH, WIDTH)
    behind = [output, _row("attention.other", "add", stream, stream), output]
    added = [_row("other", "mul", [WIDTH, 1, 1], maps), _row("residual", "add", maps, maps)]
    mlp = [
        _convolution("mlp.up", maps, [4 * WIDTH, WIDTH, 1, 1]),
        _row("mlp.activation", "gelu", wide),
        _convolution("mlp.down", wide, [WIDTH, 4 * WIDTH, 1, 1]),
    ]
    attention = [*2 * [own, *by_length], *scores, *sums, *behind]
    local = [_convolution("other", maps, [WIDTH, 1, 3, 3])]
    rows = [*local, *attention, *added, *mlp, *added]
    _found(tmp_path, 2 * rows)


def test_a_class_token_stands_aside_while_positions_are_added(tmp_path: Path) -> None:
    """timm models/coat.py, ConvPosEnc and FactorAttnConvRelPosEnc: a softmax of the keys comes first."""
    side = 8
    places = side * side
    rows, stream = places + 1, [BATCH, places + 1, WIDTH]
    maps = [BATCH, WIDTH, side, side]
    heads = [BATCH, HEADS, rows, HEAD]
    add, norm = _row("residual", "add", stream, stream), _row("norm", "native_layer_norm", stream)
    positions = [_convolution("other", maps, [WIDTH, 1, 3, 3]), _row("residual", "add", maps, maps)]
    positions += [_row("other", "cat", [[BATCH, 1, WIDTH], [BATCH, places, WIDTH]])]
    core = [_row("attention.other", "copy_", [3, BATCH, HEADS, rows, HEAD])]
    core += [_row("attention.softmax", "_softmax", heads)]
    core += [_batched("attention.scores", ALL, HEAD, HEAD, rows)]
    core += [_batched("attention.values", ALL, rows, HEAD, HEAD)]
    attention = [norm, mm("attention.qkv", BATCH * rows, 3 * WIDTH, WIDTH), *core]
    attention += [mm("attention.output", BATCH * rows, WIDTH, WIDTH), add]
    wide = _row("mlp.activation", "gelu", [BATCH, rows, 4 * WIDTH])
    up, down = (mm("mlp.up", BATCH * rows, 4 * WIDTH, WIDTH), mm("mlp.down", BATCH * rows, WIDTH, 4 * WIDTH))
    _found(tmp_path, 3 * [*positions, *attention, norm, up, wide, down, add])


def test_stochastic_depth_is_dropout_wherever_it_stands(tmp_path: Path) -> None:
    """timm layers/drop.py, drop_path, in a model without attention (FocalNet)."""
    each = [BATCH, 1, 1]
    drops = [
        *[_row("dropout", "bernoulli_", each), _row("dropout", "div_", each)],
        _row("dropout", "mul", STREAM, each),
    ]
    _found(tmp_path, 3 * [NORM, mm("", TOKENS, WIDTH, WIDTH), *drops])
    rest = [_row("", "bernoulli_", each), _row("", "div_", each), _row("", "mul", each, each)]
    _found(tmp_path, 3 * [NORM, *rest])


def test_separable_attention_on_maps(tmp_path: Path) -> None:
    """timm layers/separable_self_attention, LinearSelfAttention of MobileViTv2, and the MLP behind it."""
    maps, score, whole = [BATCH, WIDTH, 4, 64], [BATCH, 1, 4, 64], [BATCH, 4 * WIDTH, 4, 64]
    attention = [
        _convolution("attention.qkv", maps, [2 * WIDTH + 1, WIDTH, 1, 1]),
        *[_row("attention.softmax", "_softmax", score), _row("attention.other", "mul", maps, score)],
        *[_row("attention.values", "sum", maps), _row("attention.other", "relu", maps)],
        _row("attention.other", "mul", maps, maps),
        _convolution("attention.output", maps, [WIDTH, WIDTH, 1, 1]),
    ]
    norm, added = _row("norm", "native_group_norm", maps, [WIDTH]), _row("residual", "add", maps, maps)
    mlp = [
        _convolution("mlp.up", maps, [4 * WIDTH, WIDTH, 1, 1]),
        _row("mlp.activation", "silu", whole),
        _convolution("mlp.down", whole, [WIDTH, 4 * WIDTH, 1, 1]),
    ]
    _found(tmp_path, 3 * [norm, *attention, added, norm, *mlp, added])


def test_a_head_of_classes_behind_layers_of_convolutions(tmp_path: Path) -> None:
    """timm models/visformer.py: attention on maps, their mean, and a linear layer."""
    places, few = SIZE * SIZE, [BATCH, 1000]
    core = _core_of([BATCH, HEADS, places, places])
    parts = (("attention.qkv", 3), ("attention.output", 1))
    makes, output = (_convolution(part, MAP, [n * WIDTH, WIDTH, 1, 1]) for part, n in parts)
    layer = [makes, *core, output, _row("residual", "add", MAP, MAP)]
    loss = [_row("loss", name, few) for name in ("_log_softmax", "nll_loss_forward")]
    _found(tmp_path, [*3 * layer, _row("other", "mean", MAP), mm("logits", BATCH, 1000, WIDTH), *loss])


def test_a_bias_of_distances_can_be_made_as_wide_as_all_heads(tmp_path: Path) -> None:
    """timm models/swin_transformer_v2_cr.py, meta_mlp: 384 wide, as a stage's stream is."""
    pairs = LENGTH * LENGTH
    bias = [
        mm("attention.other", pairs, WIDTH, 2),
        _row("attention.other", "relu", [pairs, WIDTH]),
        mm("attention.other", pairs, HEADS, WIDTH),
        _row("attention.softmax", "add", OF_SCORES, [1, HEADS, LENGTH, LENGTH]),
    ]
    values = _batched("attention.values", ALL, LENGTH, HEAD, LENGTH)
    _found(tmp_path, _layers([NORM, QUERIES, _scores("attention.scores"), *bias, SOFTMAX, values, OUTPUT]))


def test_a_mixers_batched_products_ahead_of_its_scan_are_projections(tmp_path: Path) -> None:
    """transformers models/zamba/modeling_zamba.py: names say which block it is, its units which part."""
    inner, few = 2 * WIDTH, [BATCH, 2 * WIDTH, LENGTH]
    makes = [_batched("ssm.projection", 8, TOKENS, 48, inner)]
    scan = [_row("ssm.scan", "exp", [*few, 16]), _row("ssm.scan", "mul", [*few, 16])]
    mixer = [
        mm("ssm.projection", TOKENS, 2 * inner, WIDTH),
        Row("ssm.conv", "aten::convolution", "conv_depthwise2d_forward_kernel", (few, [inner, 1, 4])),
        *[_row("ssm.scan", "silu", few), *makes, *scan, mm("ssm.projection", TOKENS, WIDTH, inner)],
    ]
    named = [replace(row, inside="mamba_mixer") for row in mixer]
    layer = [*ATTENTION, ADD, *MLP, ADD]
    _found(tmp_path, [*3 * [*layer, NORM, *named, ADD], *layer])


def test_a_head_behind_attention_on_maps_projects_no_heads(tmp_path: Path) -> None:
    """timm models/maxxvit.py, coatnet_1: a convolution is the output projection, and pre_logits as wide."""
    core = replace(CORE, dims=([BATCH, SIZE * SIZE, HEADS, 64],) * 3)
    parts = (("attention.qkv", 3), ("attention.output", 1))
    makes, output = (_convolution(part, MAP, [n * WIDTH, WIDTH, 1, 1]) for part, n in parts)
    layer = [makes, core, output, _row("residual", "add", MAP, MAP)]
    ends = [_row("", "mean", MAP), mm("", BATCH, WIDTH, WIDTH), _row("", "tanh", [BATCH, WIDTH])]
    rows = [*3 * layer, *ends, mm("logits", BATCH, 1000, WIDTH), _row("loss", "_log_softmax", [BATCH, 1000])]
    said = said_of(tmp_path, rows)
    assert "attention.output" not in said[-5:]
    assert said[-2:] == ["logits", "loss"]


def test_retention_is_read_where_its_values_are_wider_than_its_keys(tmp_path: Path) -> None:
    """torchscale/component/multiscale_retention.py: scores decay by distance and are divided by a number for
    each row of them; no softmax."""
    batch, scores = BATCH * HEADS, [BATCH, HEADS, LENGTH, LENGTH]
    each = [BATCH, HEADS, LENGTH, 1]
    decays = [_row("attention.scores", "mul", scores, [HEADS, LENGTH, LENGTH])]
    decays += [_row("attention.scores", "sum", scores), _row("attention.scores", "abs", each)]
    decays += [_row("attention.scores", "clamp", each), _row("attention.scores", "div", scores, each)]
    core = [_batched("attention.scores", batch, LENGTH, LENGTH, 64), *decays]
    core += [_batched("attention.values", batch, LENGTH, 128, LENGTH)]
    makes = [mm("attention.qkv", TOKENS, width, WIDTH) for width in (WIDTH, WIDTH, 2 * WIDTH)]
    back = mm("attention.output", TOKENS, WIDTH, 2 * WIDTH)
    _found(tmp_path, 3 * [NORM, *makes, *core, back, ADD, *MLP, ADD])


def test_the_heads_of_attention_in_windows_are_those_of_its_output(tmp_path: Path) -> None:
    """local_attention: the softmax is of heads, windows, queries and keys, and no heads stand second."""
    windows, batch = 2 * HEADS + 1, BATCH * HEADS
    tokens, wide = BATCH * windows * 32, HEADS * 64
    stream = [BATCH, windows * 32, WIDTH]
    core = [
        _batched("attention.scores", batch * windows, 32, 64, 64),
        _row("attention.softmax", "softmax", [batch, windows, 32, 64]),
        _batched("attention.values", batch * windows, 32, 64, 64),
    ]
    norm, add = _row("norm", "native_layer_norm", stream), _row("residual", "add", stream, stream)
    block = [norm, mm("attention.qkv", tokens, 3 * wide, WIDTH), *core]
    mlp = [norm, mm("mlp.up", tokens, 4 * WIDTH, WIDTH)]
    mlp += [_row("mlp.activation", "gelu", [BATCH, windows * 32, 4 * WIDTH])]
    mlp += [mm("mlp.down", tokens, WIDTH, 4 * WIDTH)]
    _found(tmp_path, 3 * [*block, mm("attention.output", tokens, WIDTH, wide), add, *mlp, add])


def test_a_model_of_words_without_attention_has_no_head_that_is_surely_something_else(tmp_path: Path) -> None:
    """Its products of activations belong to layers that nobody knows here: nothing is said of it."""
    words = [_row("embedding", "embedding", [1000, WIDTH], [BATCH, LENGTH]), NORM]
    head = [mm("unattributed", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss", [TOKENS, 1000])]
    mixes = [mm("unattributed", TOKENS, WIDTH, WIDTH), _batched("unattributed", BATCH, 64, 32, LENGTH)]
    _found(tmp_path, [*words, *mixes, *head])


def test_a_layer_behind_a_written_out_norm_makes_no_stream(tmp_path: Path) -> None:
    """recurrentgemma: tokens are rows of a table by their index, and the first layers have no attention."""
    each = [BATCH, LENGTH, 1]
    norm = [_row("norm", "pow", STREAM), _row("norm", "mean", STREAM), _row("norm", "add", each)]
    norm += [
        _row("norm", "rsqrt", each),
        _row("norm", "mul", STREAM, each),
        _row("norm", "mul", STREAM, [WIDTH]),
    ]
    own = [mm("unattributed", TOKENS, WIDTH, WIDTH), _row("unattributed", "exp", STREAM)]
    own += [_row("unattributed", "copy_", STREAM, STREAM), mm("unattributed", TOKENS, WIDTH, WIDTH)]
    _found(tmp_path, [*norm, *own, *3 * [*ATTENTION, ADD, *MLP, ADD]])


def test_a_gradient_tied_to_a_head_without_a_name_is_of_no_loss(tmp_path: Path) -> None:
    """A loss that takes logits turned (classes second) gives a gradient that the head's view lays out: as
    large as logits are, and tied to an operator of the head, which stands behind layers that nobody knows."""
    logits = [BATCH, LENGTH, 1000]
    words = _row("embedding", "embedding", [1000, WIDTH], [BATCH, LENGTH])
    layers = [mm("", TOKENS, WIDTH, WIDTH), _batched("", BATCH, 64, 32, LENGTH)]
    head = [NORM, mm("", TOKENS, 1000, WIDTH), _row("", "pow", logits)]
    turned = replace(_row("", "copy_", logits, logits), number=-5)
    rows = [words, *layers, *head, turned]
    ts = 10 + 100 * (len(rows) - 3)
    linear = op("aten::linear", ts=ts - 1, dur=40, **{"Input Dims": [STREAM, [1000, WIDTH]]})
    seen = {"Input Dims": [[TOKENS, 1000]], "Sequence number": 5, "Fwd thread id": 0}
    events = [*written(rows), linear, op("aten::_unsafe_view", ts=ts + 20, dur=2, **seen)]
    trace, _, found = attributed(tmp_path, events)
    said = [COMPONENTS[found.component[at]] for at in trace.kernels.ts_ns.argsort(kind="stable")]
    assert (said[-3], said[-1]) == ("unattributed", "unattributed")


def test_two_streams_beside_one_another_behind_layers_of_another_width_are_no_patches(tmp_path: Path) -> None:
    """e2_tts_pytorch: a long skip joins the stream behind the layers of its text, which are narrower."""
    few, small = WIDTH // 2, [BATCH, LENGTH, WIDTH // 2]
    norm, add = _row("norm", "native_layer_norm", small), _row("residual", "add", small, small)
    core = replace(CORE, dims=([BATCH, LENGTH, 2, 64],) * 3)
    block = [norm, mm("attention.qkv", TOKENS, 3 * few, few), core, mm("attention.output", TOKENS, few, few)]
    wide = _row("mlp.activation", "gelu", [BATCH, LENGTH, 4 * few])
    mlp = [norm, mm("mlp.up", TOKENS, 4 * few, few), wide, mm("mlp.down", TOKENS, few, 4 * few)]
    skip = [_row("unattributed", "cat", [STREAM, STREAM]), mm("unattributed", TOKENS, WIDTH, 2 * WIDTH)]
    _found(tmp_path, [*3 * [*block, add, *mlp, add], *skip, *3 * [*ATTENTION, ADD, *MLP, ADD]])
