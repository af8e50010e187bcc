"""Layers of repositories that people study and adapt (benchmarks/libraries/studies.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm, said_of
from tests.attribution.test_names import situation
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
    _row,
)
from tracelens.attribution.components import decide
from tracelens.attribution.names import element_role
from tracelens.attribution.paths import Element
from tracelens.attribution.paths import Path as ModulePath

LAYER = [*ATTENTION, ADD, *MLP, ADD]
INNER = 4 * WIDTH


def test_the_difference_of_two_maps_weighs_the_values(tmp_path: Path) -> None:
    """microsoft/unilm Diff-Transformer/multihead_diffattn.py: twice as many scores as values."""
    scores, half = [BATCH, 2 * HEADS, LENGTH, LENGTH], [BATCH, HEADS, LENGTH, LENGTH]
    core = [
        _batched("attention.scores", 2 * BATCH * HEADS, LENGTH, LENGTH, 32),
        _row("attention.softmax", "_softmax", scores),
        _row("attention.softmax", "mul", half, []),
        _row("attention.softmax", "sub", half, half),
        _batched("attention.values", BATCH * HEADS, LENGTH, 64, LENGTH),
    ]
    _found(tmp_path, 3 * [NORM, OWN, OWN, OWN, *core, OUTPUT, ADD, *MLP, ADD])


def test_two_sequences_that_attend_to_one_another_share_their_scores(tmp_path: Path) -> None:
    """cvg/LightGlue lightglue/lightglue.py: a softmax over each side, and the values of both; behind it an
    MLP of the stream and what attention gave."""
    inner, each = [BATCH, LENGTH, 3 * WIDTH], [BATCH, HEADS, LENGTH, LENGTH]
    values = _batched("attention.values", BATCH * HEADS, LENGTH, 64, LENGTH)
    core = [
        _batched("attention.scores", BATCH * HEADS, LENGTH, LENGTH, 64),
        _row("attention.softmax", "_softmax", each),
        _row("attention.softmax", "_softmax", each),
        values,
        values,
    ]
    mlp = [
        _row("mlp.other", "cat", STREAM, STREAM),
        mm("mlp.up", TOKENS, 3 * WIDTH, 2 * WIDTH),
        _row("norm", "native_layer_norm", inner),
        _row("mlp.activation", "gelu", inner),
        mm("mlp.down", TOKENS, WIDTH, 3 * WIDTH),
        ADD,
    ]
    _found(tmp_path, 3 * [NORM, OWN, OWN, OWN, *core, OUTPUT, *mlp])


def test_what_a_product_gives_is_turned_by_angles_of_its_own(tmp_path: Path) -> None:
    """peft, tuners/road/layer.py, _apply_road."""

    def turned(wide: int, part: str) -> list[Row]:
        made, columns = [BATCH, LENGTH, wide], [wide]
        angles = [_row(part, name, columns) for name in ("cos", "sin")]
        pairs = [TOKENS * wide // 64, 32]
        halves = [_row(part, "neg", pairs), _row(part, "cat", pairs, pairs)]
        return [*angles, *halves, *2 * [_row(part, "mul", made, columns)], _row(part, "add", made, made)]

    queries = [mm("attention.qkv", TOKENS, 3 * WIDTH, WIDTH), *turned(3 * WIDTH, "attention.other")]
    mlp = [NORM, mm("mlp.up", TOKENS, INNER, WIDTH), *turned(INNER, "mlp.other"), *MLP[2:]]
    _found(tmp_path, 3 * [NORM, *queries, CORE, OUTPUT, ADD, *mlp, ADD])


def test_sums_of_shares_adapt_a_product(tmp_path: Path) -> None:
    """peft, tuners/miss/layer.py: what a layer takes, in shares of the rank, summed; one matrix."""
    rank = 64
    shares = [
        _row("mlp.other", "sum", [BATCH, LENGTH, WIDTH // rank, rank]),
        mm("mlp.up", TOKENS, INNER, rank),
    ]
    added = _row("mlp.other", "add", [BATCH, LENGTH, INNER], [BATCH, LENGTH, INNER])
    _found(tmp_path, 3 * [*ATTENTION, ADD, NORM, MLP[1], *shares, added, *MLP[2:], ADD])


def test_products_by_random_bases_adapt_a_product(tmp_path: Path) -> None:
    """peft, tuners/randlora/layer.py: as large as the layer, weighed by a diagonal each."""
    bases = [_row("attention.other", "mul", [4, 64, 1], [4, 1, WIDTH])]
    bases += [_row("attention.other", "mul", [4, 64, WIDTH], [1, 64, WIDTH])]
    adapts = [OWN, *bases, OWN, OWN, _row("attention.other", "mul", STREAM, [])]
    queries = [*adapts, _row("attention.other", "add", STREAM, STREAM)]
    _found(tmp_path, 3 * [NORM, *queries, OWN, OWN, CORE, OUTPUT, ADD, *MLP, ADD])


def test_a_bias_of_places_can_take_a_row_of_linear_layers(tmp_path: Path) -> None:
    """cheerss/CrossFormer models/crossformer.py, DynamicPosBias."""
    places, few = 169, 6
    bends = [
        _row("norm", "native_layer_norm", [places, few]),
        _row("attention.other", "relu_", [places, few]),
    ]
    row = [mm("attention.other", places, few, 2), *bends, mm("attention.other", places, few, few), *bends]
    row += [mm("attention.other", places, few, few), *bends, mm("attention.other", places, HEADS, few)]
    scores = [BATCH, HEADS, LENGTH, LENGTH]
    core = [
        _batched("attention.scores", BATCH * HEADS, LENGTH, LENGTH, 64),
        *row,
        _row("attention.softmax", "add", scores, [1, *scores[1:]]),
        _row("attention.softmax", "_softmax", scores),
        _batched("attention.values", BATCH * HEADS, LENGTH, 64, LENGTH),
    ]
    _found(tmp_path, 3 * [NORM, mm("attention.qkv", TOKENS, 3 * WIDTH, WIDTH), *core, OUTPUT, ADD, *MLP, ADD])


def test_a_weight_made_normal_before_its_convolution(tmp_path: Path) -> None:
    """Beckschen/TransUNet networks/vit_seg_modeling_resnet_skip.py, StdConv2d."""
    weight, one = [64, 64, 3, 3], [64, 1, 1, 1]
    names = ("var", "sum", "div", "add", "sqrt")
    steps = [_row("norm", name, weight if name in names[:2] else one) for name in names]
    standard = [*steps[:3], _row("norm", "sub", weight, one), *steps[3:], _row("norm", "div", weight, one)]
    convolution = Row("other", "aten::convolution", "cudnn::cnn::conv", ([8, 64, 14, 14], weight))
    _found(tmp_path, [*2 * [*standard, convolution], *2 * LAYER])


def test_a_gradient_of_lookups_is_no_table_of_words(tmp_path: Path) -> None:
    """rampasek/GraphGPS: features of edges, which a linear layer takes, are as many as were looked up."""
    edges, kinds = 8 * TOKENS, 8
    rows = [
        Row("embedding", "aten::embedding", "vectorized_gather_kernel", ([kinds, WIDTH], [edges])),
        *2 * [mm("", edges, WIDTH, WIDTH)],
        _row("", "add", [edges, WIDTH], [edges, WIDTH]),
        *2 * LAYER,
        Row("embedding", "aten::embedding_dense_backward", "embedding_backward", ([edges, WIDTH], [edges])),
    ]
    _found(tmp_path, rows)


def test_what_is_bent_makes_no_keys_ahead_of_a_core(tmp_path: Path) -> None:
    """lucidrains/mixture-of-attention: a feed-forward network as wide as all keys of the core behind it."""
    keys = 4 * LENGTH
    core = Row(
        "",
        "aten::_flash_attention_forward",
        "flash_fwd_kernel",
        ([BATCH, LENGTH, HEADS, 64], *2 * [[BATCH, keys, HEADS, 64]]),
    )
    up = mm("", BATCH * keys, 2 * WIDTH, WIDTH)
    bent = _row("", "gelu", [BATCH, keys, 2 * WIDTH])
    said = said_of(tmp_path, [*LAYER, up, bent, NORM, OWN, core, OUTPUT, ADD, *LAYER])
    assert said[len(LAYER)] != "attention.qkv"


def test_a_timestep_is_no_angle_of_a_rotation(tmp_path: Path) -> None:
    """whlzy/FiT fit/model/modules.py, TimestepEmbedder: sines of one number for each sample."""
    patches = Row(
        "embedding", "aten::convolution", "cudnn::cnn::conv", ([BATCH, 3, 32, 32], [WIDTH, 3, 2, 2])
    )
    time, half = [BATCH, 64], [64]
    waves = [_row("", "mul", half, []), _row("", "exp", half), _row("", "mul", [BATCH, 1], [1, 64])]
    waves += [_row("", name, time) for name in ("cos", "sin")]
    places = _row("embedding", "add", STREAM, [1, LENGTH, WIDTH])
    turns = [
        _row("attention.rope", name, [BATCH, LENGTH, HEADS, 64]) for name in ("neg", "cat", "mul", "add")
    ]
    layer = [*ATTENTION[:2], *turns, *ATTENTION[2:], ADD, *MLP, ADD]
    said = said_of(tmp_path, [patches, *waves, places, *3 * layer])
    assert "attention.rope" not in said[1:6]


def test_a_written_loss_behind_a_picture_is_no_other_layer(tmp_path: Path) -> None:
    """Beckschen/TransUNet utils.py, DiceLoss, behind maps that are made as large as the picture."""
    maps, large = [BATCH, 9, 16, 16], [BATCH, 9, 32, 32]
    ends = [
        Row("", "aten::convolution", "cudnn::cnn::conv", ([BATCH, 64, 16, 16], [9, 64, 3, 3])),
        _row("other", "upsample_bilinear2d", maps),
        _row("", "_softmax", large),
        *(_row("", name, large, large) for name in ("mul", "sum")),
    ]
    said = said_of(tmp_path, [*2 * LAYER, *ends])
    assert said[-5:-3] == 2 * ["other"] and "other" not in said[-2:]


@pytest.mark.parametrize(("name", "role"), [("LNTuningLayer", "norm"), ("TransformerLayer", "layer")])
def test_a_wrapper_around_a_norm_is_one(name: str, role: str) -> None:
    """peft, tuners/ln_tuning/layer.py."""
    assert element_role(name) == role


def test_a_block_of_a_backbone_goes_on_as_a_map(tmp_path: Path) -> None:
    """lucidrains/robotic-transformer-pytorch, MaxViT: blocks of convolutions embed nothing."""
    maps = [BATCH, WIDTH, 16, 16]
    project = Row(
        "other", "aten::convolution", "cudnn::cnn::conv", ([BATCH, INNER, 16, 16], [WIDTH, INNER, 1, 1])
    )
    norm = _row("norm", "native_batch_norm", maps, [WIDTH], [WIDTH])
    stem = Row("other", "aten::convolution", "cudnn::cnn::conv", ([BATCH, 3, 32, 32], [INNER, 3, 3, 3]))
    rows = [stem, _row("norm", "native_batch_norm", [BATCH, INNER, 16, 16], [INNER], [INNER]), project, norm]
    _found(tmp_path, [*rows, *3 * LAYER])


def test_layers_of_an_embedding_without_convolutions_are_told_by_their_place() -> None:
    """soda-inria/tabicl model/embedding.py, ColEmbedding: attention over the cells of a column."""
    inside = replace(situation("col_embedding.blocks.0.linear"), path=None)
    elements = [
        Element(text, element_role(text), None, False) for text in ("ColEmbedding", "Block", "Linear")
    ]
    inside = replace(inside, path=ModulePath(tuple(elements), ""))
    assert decide(inside) is None
    assert getattr(decide(replace(inside, beside_convolution=True)), "component", None) == "other"
    assert decide(replace(inside, beside_convolution=True, residual=True)) is None  # a stream's


def test_a_network_ahead_of_a_core_inside_attention_is_of_it() -> None:
    """soda-inria/tabicl model/ssmax.py, QASSMaxMLP: scales the queries by what they are."""
    inside = situation("layers.0.attn.ssmax_mlp.0", after_core=False)
    assert getattr(decide(inside), "component", None) == "attention.other"
    assert getattr(decide(replace(inside, after_core=True)), "component", "").startswith("mlp.")


def test_rows_that_are_put_into_a_table_of_words_embed(tmp_path: Path) -> None:
    """peft, tuners/trainable_tokens/layer.py: W.index_copy before the words are looked up."""
    table = [64 * WIDTH, WIDTH]
    puts = _row("embedding", "index_put", table, [], [3, WIDTH])
    words = Row("embedding", "aten::embedding", "vectorized_gather_kernel", (table, [BATCH, LENGTH]))
    _found(tmp_path, [puts, words, *3 * LAYER])


def test_what_convolutions_give_is_scaled_and_added_to_the_stream(tmp_path: Path) -> None:
    """timm models/xcit.py, LPI: between attention and MLP, with a scale for each channel."""
    maps = [BATCH, WIDTH, 16, 8]
    convolves = Row("other", "aten::convolution", "cudnn::cnn::conv", (maps, [WIDTH, 1, 3, 3]))
    mixes = [
        NORM,
        convolves,
        _row("other", "gelu", maps),
        convolves,
        _row("residual", "mul", [WIDTH], STREAM),
    ]
    _found(tmp_path, 3 * [*ATTENTION, ADD, *mixes, ADD, *MLP, ADD])


def test_a_pooler_without_a_loss_is_no_head(tmp_path: Path) -> None:
    """transformers models/bert/modeling_bert.py, BertPooler."""
    ends = [
        NORM,
        mm("other", BATCH, WIDTH, WIDTH),
        _row("", "tanh", [BATCH, WIDTH]),
        _row("", "mean", STREAM),
    ]
    _found(tmp_path, [*3 * LAYER, *ends])
