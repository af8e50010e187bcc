"""What stands right before or inside an attention core, and between a picture and the layers, row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
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

ALL, HEAD = BATCH * HEADS, WIDTH // HEADS
OF_HEADS, OF_SCORES = [BATCH, HEADS, LENGTH, HEAD], [BATCH, HEADS, LENGTH, LENGTH]
SIZE = 8  # of a map, in each direction
MAP, WINDOWS = [BATCH, WIDTH, SIZE, SIZE], [BATCH, SIZE, SIZE, WIDTH]
SOFTMAX = _row("attention.softmax", "_softmax", OF_SCORES)


def _layers(attention: list[Row], mlp: list[Row] = MLP) -> list[Row]:
    return 3 * [*attention, ADD, *mlp, ADD]


def _scores(right: str, keys: int = LENGTH) -> Row:
    return _batched(right, ALL, LENGTH, keys, HEAD)


@pytest.mark.parametrize(
    ("steps", "parts"),
    [
        (["clamp", "clamp"], ("mlp.gate", "mlp.up")),
        (["clamp"], ("", "")),
        (["mul"], ("mlp.up", "mlp.gate")),
        (["clamp", "clamp", "mul"], ("mlp.gate", "mlp.up")),  # a sigmoid of it times 1.702 (gpt-oss, by hand)
    ],
)
def test_what_is_done_to_both_leaves_the_gate_first(
    tmp_path: Path, steps: list[str], parts: tuple[str, str]
) -> None:
    """transformers models/glm5_next/modeling_glm5_next.py: gate and up are clamped before the activation;
    models/falcon_h1: up(x) * act(gate(x) * m)."""
    wide = [BATCH, LENGTH, 4 * WIDTH]
    work = [_row("mlp.activation", name, wide) for name in (*steps, "silu", "mul")]
    both = [mm(part, TOKENS, 4 * WIDTH, WIDTH) for part in parts]
    _found(tmp_path, _layers(ATTENTION, [NORM, *both, *work, DOWN]))


def test_each_of_two_is_scaled_behind_its_own_product(tmp_path: Path) -> None:
    """transformers models/dory/modeling_dory.py: act(gate(x) * g) * (up(x) * u), and a gate on the core's
    output that is as large as the queries, and made behind them."""
    wide = [BATCH, LENGTH, 4 * WIDTH]
    scale = [_row("mlp.activation", "mul", wide[2:]), _row("mlp.activation", "mul", wide, wide[2:])]
    gate, up = (mm(part, TOKENS, 4 * WIDTH, WIDTH) for part in ("mlp.gate", "mlp.up"))
    acts = [_row("mlp.activation", name, wide) for name in ("silu", "mul")]
    few = mm("attention.qkv", TOKENS, WIDTH // 4, WIDTH)
    own = mm("attention.qkv", TOKENS, WIDTH, WIDTH)
    heads = [[BATCH, LENGTH, n, HEAD] for n in (HEADS, HEADS // 4, HEADS // 4)]
    core = [replace(CORE, dims=tuple(heads))]
    attention = [NORM, own, few, few, own, *core, OUTPUT]
    _found(tmp_path, _layers(attention, [NORM, gate, *scale, up, *scale, *acts, DOWN]))


def test_two_streams_go_up_side_by_side(tmp_path: Path) -> None:
    """transformers models/lxmert/modeling_lxmert.py, LxmertXLayer.output_fc."""
    other, (_, up, gelu, down, add) = _layer_of([BATCH, 36, WIDTH])
    both = [up, gelu, UP, GELU, down, add, DOWN, ADD]
    _found(tmp_path, 3 * [*ATTENTION, ADD, *other, *both])


def test_positions_are_added_to_the_scores_of_a_fused_core(tmp_path: Path) -> None:
    """Relative positions (arXiv 1901.02860) as transformers models/parakeet/modeling_parakeet.py has them."""
    tables = [mm("attention.qkv", 2 * LENGTH - 1, WIDTH, WIDTH), _row("attention.scores", "copy_", OF_HEADS)]
    mask = [_row("attention.other", name, OF_SCORES) for name in ("mul", "masked_fill_")]
    bias = [*tables, _scores("attention.scores", 2 * LENGTH - 1), *mask]
    _found(tmp_path, _layers([NORM, *3 * [OWN], *bias, CORE, OUTPUT]))


def test_scores_that_only_their_softmax_takes(tmp_path: Path) -> None:
    """transformers models/sam2/modeling_sam2.py, Sam2MultiScaleAttention: beside its fused core."""
    unused = [_scores("attention.scores"), SOFTMAX]
    _found(tmp_path, _layers([NORM, QUERIES, *unused, CORE, OUTPUT]))


def test_positions_are_projected_inside_the_scores(tmp_path: Path) -> None:
    """transformers models/sew_d/modeling_sew_d.py, disentangled_attention_bias; dropout written out."""
    drops = [_row("dropout", name, OF_SCORES) for name in ("bernoulli_", "sub", "copy_", "where", "mul")]
    place = [mm("attention.qkv", 2 * LENGTH, WIDTH, WIDTH), _scores("attention.scores", 2 * LENGTH)]
    core = [
        _scores("attention.scores"),
        *place,
        _row("attention.softmax", "add", OF_SCORES, OF_SCORES),
        SOFTMAX,
    ]
    values = _batched("attention.values", ALL, LENGTH, HEAD, LENGTH)
    _found(tmp_path, _layers([NORM, *3 * [OWN], *core, *drops, values, OUTPUT]))


def test_tables_and_casts_are_of_the_rotation(tmp_path: Path) -> None:
    """transformers models/vjepa2/modeling_vjepa2.py makes its tables in each layer; models/sam3 rotates in
    float32: as many casts back as there. Whether tokens are packed is asked of the same numbers."""
    asks = [_row("attention.other", name, [LENGTH]) for name in ("eq", "all")]
    angles = [LENGTH, HEAD // 2]
    waves = [_row("attention.rope", name, angles) for name in ("pow", "reciprocal", "mul", "sin", "cos")]
    turn = [
        _row("attention.rope", name, OF_HEADS, OF_HEADS) for name in ("copy_", "mul", "neg", "cat", "add")
    ]
    back = [_row("attention.rope", "copy_", OF_HEADS), _row("attention.rope", "copy_", OF_HEADS)]
    laid = _row("attention.other", "copy_", OF_HEADS)
    _found(tmp_path, _layers([NORM, QUERIES, *asks, *waves, *turn, *turn, *back, laid, CORE, OUTPUT]))


def test_a_rotation_of_neighbours_takes_its_casts_and_cuts_with_it(tmp_path: Path) -> None:
    """torchtune modules/position_embeddings.py: in float32, by pairs that are cut out."""
    half, table, heads = [BATCH, LENGTH, HEADS, 32], [1, LENGTH, 1, 32], [BATCH, LENGTH, HEADS, 64]
    pairs, turned = [*half, 2], [*half, 1]
    product = _row("attention.rope", "mul", half, table)
    sums = [_row("attention.rope", name, half, half) for name in ("sub", "add")]
    cut, cast = _row("attention.rope", "select", pairs), _row("attention.rope", "copy_", heads, heads)
    turn = [cut, product, cut, product, sums[0], cut, product, cut, product, sums[1]]
    whole = [cast, *turn, _row("attention.rope", "cat", turned, turned), cast]
    laid = _row("attention.other", "copy_", [BATCH, HEADS, LENGTH, 64], heads)
    _found(tmp_path, 3 * [NORM, QUERIES, *whole, *whole, laid, CORE, OUTPUT, ADD, *MLP, ADD])


def _convolution(right: str, *dims: list[int]) -> Row:
    return Row(right, "aten::cudnn_convolution", "sm80_xmma_fprop_implicit_gemm", dims)


PATCHES = _convolution("embedding", [BATCH, 3, 128, 128], [WIDTH, 3, 16, 16])


def test_what_chooses_among_patches_embeds(tmp_path: Path) -> None:
    """transformers models/vit_mae/modeling_vit_mae.py, random_masking."""
    places = [BATCH, SIZE * SIZE]
    chooses = [_row("embedding", name, places) for name in ("rand", "sort", "gather")]
    first = _row("embedding", "cat", [BATCH, 1, WIDTH], [BATCH, LENGTH - 1, WIDTH])
    mask = _row("", "arange", [LENGTH])
    _found(tmp_path, [PATCHES, *chooses, first, mask, *_layers(ATTENTION)])


def test_a_map_and_its_own_convolution_are_added(tmp_path: Path) -> None:
    """Positions by a convolution (arXiv 2102.10882), as transformers models/florence2 has them; then what the
    attention takes is put into windows."""
    deep = [_convolution("other", MAP, [WIDTH, 1, 3, 3]), _row("residual", "add", MAP, MAP)]
    windows = [_row("attention.other", "fill_", WINDOWS), _row("attention.other", "copy_", WINDOWS)]
    layer = [*deep, NORM, *windows, QUERIES, CORE, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, [PATCHES, *ATTENTION, ADD, *MLP, ADD, *2 * layer])


@pytest.mark.parametrize("halves", [1, 2])
def test_a_projector_of_two_layers_leads_to_the_words(tmp_path: Path, halves: int) -> None:
    """transformers models/paddleocr_vl, models/cohere2_vision: four patches into one; a gate makes halves."""
    rows, wide, inner = TOKENS // 4, 2 * WIDTH, 4 * WIDTH
    into = [mm("embedding", rows, inner * halves, inner), _row("embedding", "gelu", [rows, inner * halves])]
    into += [mm("embedding", rows, wide, inner)]
    attention, (norm, up, _, *ends) = _layer_of([*STREAM[:2], wide])
    words = 3 * [*attention, norm, up, _row("mlp.activation", "gelu", [TOKENS, 4 * wide]), *ends]
    _found(tmp_path, [PATCHES, *_layers(ATTENTION), NORM, *into, *words])


def test_streams_that_are_mixed_again_get_no_positions(tmp_path: Path) -> None:
    """transformers models/gemma3n/modeling_gemma3n.py, Gemma3nTextAltUp: sums of several streams at once,
    behind products of no name."""
    streams = [4, *STREAM]
    mixes = [NORM, mm("", TOKENS, 4, WIDTH), _row("", "clamp", [TOKENS, 16]), mm("", TOKENS, 16, 4)]
    layer = [*ATTENTION, ADD, *MLP, ADD]
    _found(tmp_path, [*2 * [*layer, *mixes, _row("residual", "add", streams, streams)], *layer])


def test_a_sigmoid_of_every_score_takes_the_softmax_s_place(tmp_path: Path) -> None:
    """arXiv 2409.04431; x-transformers attend.py, sigmoid."""
    one = Row("attention.scores", "aten::sigmoid", CORE.kernel, (OF_SCORES,), us=10)
    mask = [_row("attention.scores", "arange"), _row("attention.scores", "ge", [LENGTH, LENGTH])]
    masked = [*mask, _row("attention.scores", "masked_fill", OF_SCORES, [LENGTH, LENGTH])]
    values = _batched("attention.values", ALL, LENGTH, HEAD, LENGTH)
    _found(tmp_path, _layers([NORM, QUERIES, _scores("attention.scores"), *masked, one, values, OUTPUT]))


def test_keys_of_the_other_stream_are_no_output(tmp_path: Path) -> None:
    """diffusers transformers/transformer_kandinsky6.py: picture and sound attend to one another, each by
    queries of its own and keys and values of the other."""
    sound = 16 * BATCH
    heads = {TOKENS: [BATCH, LENGTH, HEADS, HEAD], sound: [BATCH, 16, HEADS, HEAD]}
    streams = {TOKENS: STREAM, sound: [BATCH, 16, WIDTH]}
    rows = []
    for own, other in ((TOKENS, sound), (sound, TOKENS)):
        rows += [mm("attention.qkv", tokens, WIDTH, WIDTH) for tokens in (own, other, other)]
        rows += [replace(CORE, dims=(heads[own], heads[other], heads[other]))]
        rows += [mm("attention.output", own, WIDTH, WIDTH)]
    sums = [_row("residual", "add", wide, wide) for wide in streams.values()]
    norms = [_row("norm", "native_layer_norm", wide) for wide in streams.values()]
    mlps = [mm("mlp.up", TOKENS, 4 * WIDTH, WIDTH), GELU, DOWN, sums[0]]
    _found(tmp_path, 3 * [*norms, *rows, *sums, norms[0], *mlps])


def test_halves_of_heads_are_turned_and_put_in_their_places(tmp_path: Path) -> None:
    """diffusers transformers/transformer_wan.py: out[..., 0::2] = x1 * cos - x2 * sin, and the other half."""
    half, table = [BATCH, LENGTH, HEADS, 32], [1, LENGTH, 1, 32]
    product = _row("attention.rope", "mul", half, table)
    put = _row("attention.rope", "copy_", half, half)
    turn = [[product, product, _row("attention.rope", name, half, half), put] for name in ("sub", "add")]
    _found(tmp_path, _layers([NORM, QUERIES, *(2 * [*turn[0], *turn[1]]), CORE, OUTPUT]))


def test_the_first_layer_has_an_mlp_of_each_stream(tmp_path: Path) -> None:
    """diffusers transformers/transformer_easyanimate.py: both go through one attention, then their MLPs."""
    words, text = BATCH * 32, [BATCH, 32, WIDTH]
    heads = [BATCH, LENGTH + 32, HEADS, HEAD]
    rows = [NORM, _row("norm", "native_layer_norm", text)]
    rows += [mm("attention.qkv", tokens, 3 * WIDTH, WIDTH) for tokens in (TOKENS, words)]
    rows += [replace(CORE, dims=(heads,) * 3)]
    rows += [mm("attention.output", tokens, WIDTH, WIDTH) for tokens in (TOKENS, words)]
    rows += [ADD, _row("residual", "add", text, text), NORM, _row("norm", "native_layer_norm", text)]
    for tokens, wide in ((TOKENS, STREAM), (words, text)):
        rows += [
            mm("mlp.up", tokens, 4 * WIDTH, WIDTH),
            _row("mlp.activation", "gelu", [*wide[:2], 4 * WIDTH]),
        ]
        rows += [mm("mlp.down", tokens, WIDTH, 4 * WIDTH)]
    _found(tmp_path, 2 * [*rows, ADD, _row("residual", "add", text, text)])


def test_an_mlp_of_convolutions_beside_attention_on_maps(tmp_path: Path) -> None:
    """CvT (arXiv 2103.15808) as vit_pytorch/cvt.py has it: norms over the channels of a map, and an MLP of
    two convolutions over places by themselves."""
    place, weight, wide = [BATCH, 1, SIZE, SIZE], [1, WIDTH, 1, 1], [BATCH, 4 * WIDTH, SIZE, SIZE]
    norm = [_row("norm", "var", MAP), _row("norm", "mean", MAP), _row("norm", "sub", MAP, place)]
    norm += [_row("norm", name, place) for name in ("add", "sqrt")]
    norm += [
        _row("norm", "div", MAP, place),
        _row("norm", "mul", MAP, weight),
        _row("norm", "add", MAP, weight),
    ]
    core = _core_of([ALL, SIZE * SIZE, SIZE * SIZE])
    output = _convolution("attention.output", MAP, [WIDTH, WIDTH, 1, 1])
    added = _row("residual", "add", MAP, MAP)
    mlp = [
        _convolution("mlp.up", MAP, [4 * WIDTH, WIDTH, 1, 1]),
        _row("mlp.activation", "gelu", wide),
        _convolution("mlp.down", wide, [WIDTH, 4 * WIDTH, 1, 1]),
    ]
    makes = _convolution("attention.qkv", MAP, [3 * WIDTH, WIDTH, 1, 1])
    _found(tmp_path, 3 * [*norm, makes, *core, output, added, *norm, *mlp, added])


def test_layers_of_convolutions_between_two_cores_are_no_second_way_to_attend(tmp_path: Path) -> None:
    """timm models/maxxvit.py, TransformerBlock2d, in a stage before one of linear layers that is wider."""
    half = WIDTH // 2
    maps, wide = [BATCH, half, SIZE, SIZE], [BATCH, 2 * WIDTH, SIZE, SIZE]
    of_heads = ([BATCH, SIZE * SIZE, HEADS, half // HEADS],) * 3
    norm, added = (
        _row("norm", "native_layer_norm", [BATCH, SIZE, SIZE, half]),
        _row("residual", "add", maps, maps),
    )
    layer = [
        norm,
        _convolution("attention.qkv", maps, [3 * half, half, 1, 1]),
        Row("attention.core", CORE.op, CORE.kernel, of_heads),
        _convolution("attention.output", maps, [half, half, 1, 1]),
        added,
        norm,
        _convolution("mlp.up", maps, [2 * WIDTH, half, 1, 1]),
        _row("mlp.activation", "gelu", wide),
        _convolution("mlp.down", wide, [half, 2 * WIDTH, 1, 1]),
        added,
    ]
    _found(tmp_path, [*(2 * layer), *_layers(ATTENTION)])
