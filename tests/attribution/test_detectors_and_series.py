"""Parts of detectors, tables and series (benchmarks/fresh/hub_3.txt and hub_4.txt), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, written
from tests.attribution.test_grammars import _gemm as _linear
from tests.attribution.test_grammars import _unit
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    LENGTH,
    MLP,
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
from tracelens.attribution.structure.forward import Forward
from tracelens.attribution.structure.maps import linear_convolutions
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.runs import Excerpt, Label, Run
from tracelens.words import COMPONENTS

LAYER = [*ATTENTION, ADD, *MLP, ADD]


@pytest.mark.parametrize("given", [4, WIDTH])
def test_what_predicts_boxes_of_every_layer_is_an_mlp(tmp_path: Path, given: int) -> None:
    """transformers models/d_fine/modeling_d_fine.py: positions of boxes, and boxes of queries."""
    bends = _row("mlp.activation", "relu", [BATCH, LENGTH, 64])
    boxes = [mm("mlp.up", TOKENS, 64, given), bends, mm("mlp.other", TOKENS, 64, 64), bends]
    boxes += [mm("mlp.down", TOKENS, 4, 64)]
    places = [mm("mlp.up", TOKENS, 64, given), bends, mm("mlp.down", TOKENS, 20, 64)]
    _found(tmp_path, [*LAYER, *2 * [NORM, *boxes, *places, *LAYER]])


def test_an_mlp_of_other_rows_between_layers_is_not_said_to_be_of_the_decoder(tmp_path: Path) -> None:
    """The same, enc_bbox_head: it takes all places of the pictures, and the best of them are queries."""
    bends = _row("", "relu", [BATCH, 2 * LENGTH, WIDTH])
    head = [mm("", 2 * TOKENS, WIDTH, WIDTH), bends, mm("", 2 * TOKENS, 4, WIDTH)]
    _found(tmp_path, [*LAYER, *2 * [NORM, *head, *LAYER]])


def test_streams_that_a_layer_of_both_weighs_are_a_residual(tmp_path: Path) -> None:
    """The same, DFineGate: sigmoid(Linear(cat(x, y))) weighs both."""
    both = [BATCH, LENGTH, 2 * WIDTH]
    weighs = [_row("residual", "cat", [STREAM, STREAM]), mm("residual", TOKENS, 2 * WIDTH, 2 * WIDTH)]
    weighs += [_row("residual", "sigmoid", both), *2 * [_row("residual", "mul", STREAM, STREAM)], ADD]
    _found(tmp_path, 3 * [NORM, QUERIES, CORE, OUTPUT, *weighs, *MLP, ADD])


def test_a_query_and_keys_that_are_added(tmp_path: Path) -> None:
    """transformers models/slanet/modeling_slanet.py, SLANetAttentionGRUCell, and its own GRU."""
    keys, query = [BATCH, LENGTH, 64], [BATCH, 1, 64]
    scores = mm("attention.scores", TOKENS, 1, 64)
    rows = [mm("attention.qkv", TOKENS, 64, WIDTH), mm("attention.qkv", BATCH, 64, 32)]
    rows += [_row("attention.other", "add", keys, query), _row("attention.other", "tanh", keys), scores]
    rows += [_row("attention.softmax", "_softmax", [BATCH, LENGTH, 1])]
    rows += [_batched("attention.values", BATCH, 1, WIDTH, LENGTH)]
    rows += [_row("other", "gru_cell", [BATCH, WIDTH], [BATCH, 32]), _row("other", "_cudnn_rnn", STREAM)]
    _found(tmp_path, 3 * rows)


def test_the_last_block_of_a_series_and_what_scales_it_back(tmp_path: Path) -> None:
    """transformers models/timesfm/modeling_timesfm.py, TimesFmResidualBlock and its denormalization."""
    horizon, numbers = [BATCH, LENGTH, 16, 10], [BATCH, 1, 1, 1]
    bends = _row("mlp.activation", "silu", [BATCH, LENGTH, 96])
    block = [mm("mlp.up", TOKENS, 96, WIDTH), bends, mm("mlp.down", TOKENS, 160, 96)]
    summed = _row("residual", "add", *2 * [[BATCH, LENGTH, 160]])
    back = [_row("other", name, horizon, numbers) for name in ("mul", "add")]
    _found(tmp_path, [*3 * LAYER, *block, mm("other", TOKENS, 160, WIDTH), summed, *back])


def test_a_norm_scales_ahead_and_what_it_gives_is_weighed_behind() -> None:
    """transformers models/muse_spark/modeling_muse_spark.py: InputScaledRMSNorm, before routing weights."""
    whole, ones, weight = (8 * TOKENS, WIDTH), (8 * TOKENS, 1), (WIDTH,)
    cast = _unit("copy_", whole, whole, what="copy")
    kinds = [cast, _unit("add", weight, what="add"), _unit("copy_", weight, weight, what="copy")]
    kinds += [_unit("mul", whole, weight), cast, cast, _unit("pow", whole), _unit("mean", whole)]
    kinds += [_unit("add", ones, what="add"), _unit("rsqrt", ones), _unit("mul", whole, ones), cast]
    steps = {*range(len(kinds))}
    weighed = Run("forward", [*range(14)], [*kinds, _unit("mul", whole, ones), _unit("index", whole)])
    assert written_norms(weighed) == steps


def test_experts_of_all_tokens_are_summed_by_themselves(tmp_path: Path) -> None:
    """transformers models/inkling/modeling_inkling.py, InklingSharedExperts: products of every expert."""
    rows, wide = [2 * TOKENS, WIDTH], [2, TOKENS, 64]
    up, down = (
        Row("moe.experts", "aten::_grouped_mm", "grouped", ([2 * TOKENS, k], [16, k, n], [16]))
        for k, n in ((WIDTH, 64), (64, WIDTH))
    )
    chooses = [mm("moe.router", TOKENS, 16, WIDTH), _row("moe.router", "topk", [TOKENS, 16])]
    sends = [_row("moe.dispatch", "sort", [2 * TOKENS]), _row("moe.dispatch", "index", rows)]
    back = [_row("moe.dispatch", "index", rows), _row("moe.dispatch", "sum", [TOKENS, 2, WIDTH])]
    shared = [_batched("moe.experts", 2, TOKENS, 64, WIDTH), _row("moe.experts", "silu", wide)]
    shared += [_batched("moe.experts", 2, TOKENS, WIDTH, 64)]
    shared += [_row("moe.experts", "sum", [2, TOKENS, WIDTH])]
    experts = [up, _row("moe.experts", "silu", [2 * TOKENS, 64]), down]
    layer = [*ATTENTION, ADD, NORM, *chooses, *sends, *experts, *back, *shared]
    _found(tmp_path, 3 * [*layer, _row("moe.experts", "add", STREAM, STREAM), ADD])


@pytest.mark.parametrize("shapes", [True, False])
def test_where_the_backward_begins_the_loss_has_its_gradient(tmp_path: Path, shapes: bool) -> None:
    """(out.mean() / accumulated).backward() of torch: autograd begins with ones_like(loss)."""
    layer = [replace(row, number=1) for row in 3 * LAYER]
    share = replace(_row("loss", "div", []), number=2)
    seed = _row("loss", "fill_", [])
    rows = [*layer, share, seed, replace(share, number=-2)]
    trace, _, found = attributed(tmp_path, written(rows, shapes=shapes))
    order = trace.kernels.ts_ns.argsort(kind="stable")
    said = [COMPONENTS[found.component[at]] for at in order]
    assert said[len(layer) :] == ["loss", "loss", "loss"]


def test_what_a_part_is_called_later_counts() -> None:
    """Streams that are summed ahead of the head, in a run whose adapters are read apart (models/hy_v4_vl)."""
    kinds = 3 * [_unit("mul", (TOKENS, WIDTH))]
    whole = Run("forward", [0, 1, 2], kinds, labels={1: Label("norm", 4)})
    part = Excerpt(whole, [0, 1, 2], whole.part([0, 1, 2]))
    part.run.labels = {0: Label("logits", 0), 1: Label("logits", 0)}
    part.give_back()
    part.run.labels |= {0: Label("residual", 0), 2: Label("mlp.up", 1)}
    part.give_back()
    assert whole.labels == {0: Label("residual", 5), 1: Label("norm", 4), 2: Label("mlp.up", 6)}


def test_a_convolution_of_one_tap_beside_one_of_several_is_one_whatever_is_viewed_between() -> None:
    """transformers models/xcodec and models/dac, DacResidualUnit: x + sin(alpha * x) ** 2 / alpha between."""
    whole, alpha = (BATCH, 64, LENGTH), (1, 64, 1)
    first = _unit("conv1d", whole, (64, 64, 7), what="convolution")
    snake = [
        _unit("view", whole),
        _unit("add", alpha),
        _unit("reciprocal", alpha),
        _unit("mul", alpha, whole),
    ]
    snake += [
        _unit("sin", whole),
        _unit("pow", whole),
        _unit("mul", alpha, whole),
        _unit("add", whole, whole),
    ]
    kinds = [first, *snake, _unit("view", whole), _unit("conv1d", whole, (64, 64, 1), what="convolution")]
    run = Run("forward", [*range(len(kinds))], kinds)
    linear_convolutions(run)
    assert run.kinds[-1].what == "convolution"


def test_a_convolution_of_one_tap_behind_its_own_padding() -> None:
    """transformers models/mimi/modeling_mimi.py, MimiConv1d: single numbers say how far it pads."""
    first = _unit("conv1d", (BATCH, 64, LENGTH), (32, 64, 3), what="convolution")
    numbers = [_unit(name) for name in (*3 * ["sub", "add"], "div", "ceil", "copy_", "mul", "add")]
    bends = _unit("elu", (BATCH, 32, LENGTH), what="activation")
    kinds = [first, bends, *numbers, _unit("conv1d", (BATCH, 32, LENGTH), (64, 32, 1), what="convolution")]
    run = Run("forward", [*range(len(kinds))], kinds)
    linear_convolutions(run)
    assert run.kinds[-1].what == "convolution"


def test_what_leads_from_one_stream_to_another_is_of_neither(tmp_path: Path) -> None:
    """timm models/crossvit.py, MultiScaleBlock.projs: norm, GELU and a linear layer of class tokens."""
    wide = 2 * WIDTH
    attention, mlp = _layer_of([BATCH, LENGTH, wide])
    over = []
    for given, made in ((WIDTH, wide), (wide, WIDTH)):
        token = [BATCH, 1, given]
        over += [_row("norm", "native_layer_norm", token), _row("other", "gelu", token)]
        over += [mm("other", BATCH, made, given)]
    _found(tmp_path, 3 * [*2 * LAYER, *2 * [*attention, *mlp], *over])


def test_an_mlp_that_bends_before_and_behind_its_convolution_over_a_picture(tmp_path: Path) -> None:
    """timm models/pvt_v2.py, MlpWithDepthwiseConv(extra_relu=True)."""
    side, inner = 8, 4 * WIDTH
    maps = [BATCH, inner, side, side]
    attention, (norm, up, *ends) = _layer_of([BATCH, side * side, WIDTH])
    over = Row("mlp.other", "aten::convolution", "dw", (maps, [inner, 1, 3, 3]))
    _found(tmp_path, 3 * [*attention, norm, up, _row("mlp.activation", "relu", maps), over, *ends])


def test_a_convolution_of_single_places_between_two_transformers_embeds_nothing(tmp_path: Path) -> None:
    """timm models/byobnet.py, MobileVitBlock: its conv_1x1 makes the width of the next stage."""
    wide, maps = 2 * WIDTH, [BATCH, WIDTH, 8, 8]
    attention, mlp = _layer_of([BATCH, 64, wide])
    local = Row("other", "aten::convolution", "conv", (maps, [WIDTH, WIDTH, 3, 3]))
    leads = Row("other", "aten::convolution", "conv", (maps, [wide, WIDTH, 1, 1]))
    _found(tmp_path, [*3 * LAYER, local, _row("other", "silu", maps), leads, *3 * [*attention, *mlp]])


def test_what_projects_neighbours_side_by_side_behind_the_last_layer_is_a_head(tmp_path: Path) -> None:
    """timm models/deepseek_vit.py: an aligner of nine patches' channels, unfolded."""
    rows, made = TOKENS // 4, [BATCH, LENGTH // 4, 96]
    head = [mm("other", rows, 96, 4 * WIDTH), _row("other", "gelu", made), mm("other", rows, 96, 96)]
    _found(tmp_path, [*3 * LAYER, NORM, *head])


@pytest.mark.parametrize("shapes", [True, False])
def test_a_periodic_activation_between_convolutions_turns_no_heads(tmp_path: Path, shapes: bool) -> None:
    """transformers models/neucodec/modeling_neucodec.py, NeuCodecSnakeBeta: the layers behind do rotate."""
    sound, few, weights = [BATCH, 48, 8 * LENGTH], [1, 48, 1], [48, 48, 7]
    snake = [_row("other", "exp", few), _row("other", "mul", sound, few), _row("other", "sin", sound)]
    snake += [
        _row("other", "pow", sound),
        _row("other", "mul", few, sound),
        _row("other", "add", sound, sound),
    ]
    block = [*snake, _row("other", "convolution", sound, weights)]
    first = _row("embedding", "convolution", sound, [WIDTH, 48, 8])
    turns = [_row("attention.rope", name, STREAM) for name in ("mul", "neg")]
    turns += [_row("attention.rope", "cat", STREAM, STREAM), _row("attention.rope", "mul", STREAM)]
    turns += [_row("attention.rope", "add", STREAM, STREAM)]
    layer = [NORM, QUERIES, *turns, CORE, OUTPUT, ADD, NORM, *MLP, ADD]
    table = [] if shapes else [_row("attention.rope", name, STREAM) for name in ("cos", "sin")]
    first = first if shapes else replace(first, right="other")  # of what widths nothing tells
    rows = [_row("other", "convolution", sound, weights), *3 * block, first, *table, *3 * layer]
    _found(tmp_path, rows, shapes=shapes)


def test_sines_of_three_axes_are_of_positions_beside_patches_of_three_colours(tmp_path: Path) -> None:
    """transformers models/minimax_m3_vl: a row of patches is convolved, and each has three coordinates."""
    patches, axes = [LENGTH, 3, 2, 14, 14], [LENGTH, 3, 13]
    waves = [_row("attention.rope", name, axes) for name in ("cos", "sin")]
    turns = [_row("attention.rope", name, STREAM) for name in ("mul", "neg")]
    turns += [_row("attention.rope", "cat", STREAM, STREAM), _row("attention.rope", "mul", STREAM)]
    turns += [_row("attention.rope", "add", STREAM, STREAM)]
    layer = [NORM, QUERIES, *turns, CORE, OUTPUT, ADD, NORM, *MLP, ADD]
    first = _row("embedding", "convolution", patches, [WIDTH, 3, 2, 14, 14])
    _found(tmp_path, [first, *waves, *3 * layer])


@pytest.mark.parametrize("act_first", [True, False])
def test_a_gated_mlp_without_a_sum_behind_it(tmp_path: Path, act_first: bool) -> None:
    """transformers models/molmo2/modeling_molmo2.py, Molmo2ImageProjector."""
    inside = [BATCH, LENGTH, 4 * WIDTH]
    bends, up = _row("mlp.activation", "silu", inside), mm("mlp.up", TOKENS, 4 * WIDTH, WIDTH)
    inner = [bends, up] if act_first else [up, bends]
    gated = [mm("mlp.gate", TOKENS, 4 * WIDTH, WIDTH), *inner, _row("mlp.activation", "mul", inside, inside)]
    _found(tmp_path, [QUERIES, CORE, OUTPUT, *gated, mm("mlp.down", TOKENS, 96, 4 * WIDTH)])


@pytest.mark.parametrize("shapes", [True, False])
def test_a_weight_and_a_bias_of_every_head_are_of_its_norm(tmp_path: Path, shapes: bool) -> None:
    """transformers models/chameleon/modeling_chameleon.py, ChameleonLayerNorm, ahead of a rotation."""
    heads, each = [TOKENS, WIDTH // 64, 64], [WIDTH // 64, 64]
    normed = [_row("norm", "native_layer_norm", heads), _row("norm", "mul", heads, each)]
    normed += [_row("norm", "add", heads, each)]
    turned, table = [BATCH, WIDTH // 64, LENGTH, 64], [1, 1, LENGTH, 64]
    half = [BATCH, WIDTH // 64, LENGTH, 32]
    turns = [_row("attention.rope", "mul", turned, table), _row("attention.rope", "neg", half)]
    turns += [_row("attention.rope", "cat", [half, half]), _row("attention.rope", "mul", turned, table)]
    turns += [_row("attention.rope", "add", turned, turned)]
    _found(tmp_path, 3 * [NORM, QUERIES, *normed, *turns, CORE, OUTPUT, ADD, *MLP, ADD], shapes=shapes)


@pytest.mark.parametrize("gated", [True, False])
def test_what_takes_half_of_a_result_has_something_between_that_makes_one_of_two(gated: bool) -> None:
    """transformers models/dia/modeling_dia.py: keys and values of a stream half as wide are no MLP."""
    keys = _linear(WIDTH, WIDTH // 2)
    gate = _unit("mul", (BATCH, LENGTH, WIDTH // 2), (BATCH, LENGTH, WIDTH // 2))
    kinds = [_linear(WIDTH, WIDTH), *([gate] if gated else [keys]), keys]
    run = Run("forward", [*range(len(kinds))], kinds)
    assert Forward(run, WIDTH)._closes([0], 2) == gated


def test_queries_of_a_first_layer_of_features_are_of_its_attention(tmp_path: Path) -> None:
    """transformers models/fun_asr_nano/modeling_fun_asr_nano.py: 560 features, and layers of 512."""
    given = [BATCH, LENGTH, WIDTH + 48]
    first = [_row("norm", "native_layer_norm", given), *3 * [mm("attention.qkv", TOKENS, WIDTH, WIDTH + 48)]]
    rest = 2 * [NORM, *3 * [OWN], CORE, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, [*first, CORE, OUTPUT, *MLP, ADD, *rest])
