"""Parts that neighbours tell, in layers written row by row from the public source of a model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, assert_right, attributed, mm, verdict, written
from tests.trace.tools import op
from tracelens.accounting.model import model_dims
from tracelens.attribution import find_calls
from tracelens.words import COMPONENTS

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>"
BATCH, LENGTH, WIDTH, HEADS = 4, 128, 256, 4
TOKENS, STREAM = BATCH * LENGTH, [BATCH, LENGTH, WIDTH]


def _row(right: str, name: str, *dims: object) -> Row:
    return Row(right, f"aten::{name}", ELEMENTWISE, dims, us=10)


def _batched(right: str, batch: int, m: int, n: int, k: int) -> Row:
    return Row(right, "aten::bmm", "bmm", ([batch, m, k], [batch, k, n]))


NORM = _row("norm", "native_layer_norm", STREAM)
ADD = _row("residual", "add", STREAM, STREAM)
QUERIES = mm("attention.qkv", TOKENS, 3 * WIDTH, WIDTH)
CORE = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([BATCH, LENGTH, HEADS, 64],) * 3)
OUTPUT = mm("attention.output", TOKENS, WIDTH, WIDTH)
OWN = mm("attention.qkv", TOKENS, WIDTH, WIDTH)
UP = mm("mlp.up", TOKENS, 4 * WIDTH, WIDTH)
GELU = _row("mlp.activation", "gelu", [BATCH, LENGTH, 4 * WIDTH])
DOWN = mm("mlp.down", TOKENS, WIDTH, 4 * WIDTH)
OUTSIDE = mm("", TOKENS, WIDTH, WIDTH)
ATTENTION, MLP = [NORM, QUERIES, CORE, OUTPUT], [NORM, UP, GELU, DOWN]


def _core_of(scores: list[int], head_dim: int = 64, values: int = 0) -> list[Row]:
    """Attention written out: its scores, their softmax, and the values, where they are of another width."""
    (*batch, rows, keys), width = scores, values or head_dim
    return [
        _batched("attention.scores", math.prod(batch), rows, keys, head_dim),
        _row("attention.softmax", "_softmax", scores),
        _batched("attention.values", math.prod(batch), rows, width, keys),
    ]


def _layer_of(stream: list[int], heads: int = HEADS) -> tuple[list[Row], list[Row]]:
    """Attention and MLP of a layer of another stream, each from its norm to its sum."""
    tokens, width = math.prod(stream[:-1]), stream[-1]
    norm, add = _row("norm", "native_layer_norm", stream), _row("residual", "add", stream, stream)
    core = replace(CORE, dims=([*stream[:-1], heads, width // heads],) * 3)
    attention = [norm, mm("attention.qkv", tokens, 3 * width, width), core]
    up, down = mm("mlp.up", tokens, 4 * width, width), mm("mlp.down", tokens, width, 4 * width)
    gelu = _row("mlp.activation", "gelu", [*stream[:-1], 4 * width])
    return [*attention, mm("attention.output", tokens, width, width), add], [norm, up, gelu, down, add]


def _found(folder: Path, rows: list[Row], *, shapes: bool = True) -> None:
    """All that is named in ``rows`` is found, and "" is called nothing."""
    trace, _, found = attributed(folder, written(rows, shapes=shapes))
    order = trace.kernels.ts_ns.argsort(kind="stable")
    said = [COMPONENTS[found.component[at]] for at in order]
    named = [(row.op, one) for row, one in zip(rows, said, strict=True) if row.right]
    wanted = [(row.op, row.right) for row in rows if row.right]
    assert named == wanted
    assert {one for row, one in zip(rows, said, strict=True) if not row.right} <= {"unattributed"}


def test_a_product_that_takes_a_sum_as_it_is_is_of_no_block(tmp_path: Path) -> None:
    """Hyper-connections (transformers models/hy_v4/modeling_hy_v4.py): a small product weighs the streams."""
    weighs = [ADD, mm("", TOKENS, 24, WIDTH), NORM, _row("", "sigmoid", [BATCH, LENGTH, 24])]
    _found(tmp_path, 4 * [*ATTENTION, *weighs, *MLP, *weighs], shapes=False)


def test_the_second_of_two_layers_makes_no_queries(tmp_path: Path) -> None:
    """transformers models/conditional_detr/modeling_conditional_detr.py, query_scale: its result
    is multiplied with the positions that queries and keys get."""
    layer = [*(5 * [OWN]), CORE, OUTPUT, ADD, *MLP, ADD]
    parts = ("mlp.up", "mlp.activation", "mlp.down")
    first, later = (
        [mm(up, TOKENS, WIDTH, WIDTH), _row(bends, "relu", STREAM), mm(down, TOKENS, WIDTH, WIDTH)]
        for up, bends, down in (("", "", ""), parts)
    )
    _found(tmp_path, [NORM, *first, *layer, *2 * [NORM, *later, *layer]])


def test_what_a_router_is_cast_from_is_no_step_of_the_norm(tmp_path: Path) -> None:
    """transformers models/deepseek_v3/modeling_deepseek_v3.py: the gate takes its input in float32."""
    steps = ("copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_", "mul")
    norm = [_row("norm", name) for name in steps]
    routes = [_row("moe.router", name) for name in ("copy_", "mm", "sigmoid", "topk")]
    experts = [mm("moe.experts", 64, 64, 64), _row("moe.experts", "silu"), mm("moe.experts", 64, 64, 64)]
    back = [_row("moe.dispatch", "index_add_"), ADD]
    layer = [*norm, QUERIES, CORE, OUTPUT, ADD, *norm, *routes, *experts, *back]
    ends = [*norm, mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss")]
    _found(tmp_path, [*(4 * layer), *ends], shapes=False)


def test_what_is_added_behind_a_cast_back_is_no_step_of_the_norm(tmp_path: Path) -> None:
    """transformers models/gemma2/modeling_gemma2.py: blocks are normalized before they are added."""
    steps = ("copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_", "add", "mul", "copy_")
    norm = [_row("norm", name) for name in steps]
    layer = [*norm, QUERIES, CORE, OUTPUT, *norm, ADD, *norm, UP, GELU, DOWN, *norm, ADD]
    ends = [*norm, mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss")]
    _found(tmp_path, [*(3 * layer), *ends], shapes=False)


def test_a_bias_put_together_is_of_the_product_that_takes_it(tmp_path: Path) -> None:
    """timm models/beit.py, Attention: torch.cat((q_bias, k_bias, v_bias))."""
    bias = _row("attention.qkv", "cat", 3 * [[WIDTH]])
    _found(tmp_path, 2 * [NORM, bias, QUERIES, CORE, OUTPUT, ADD, *MLP, ADD])


@pytest.mark.parametrize("shapes", [True, False])
def test_what_scales_a_block_is_of_the_residual(tmp_path: Path, shapes: bool) -> None:
    """timm layers/layer_scale.py: x * gamma, before it is added."""
    scale = _row("residual", "mul", STREAM, [WIDTH])
    _found(tmp_path, 3 * [*ATTENTION, scale, ADD, *MLP, scale, ADD], shapes=shapes)


def test_heads_beside_those_of_the_core_go_into_its_output_projection(tmp_path: Path) -> None:
    """transformers models/convbert/modeling_convbert.py: half of the heads are convolutions."""
    heads = [BATCH, LENGTH, HEADS // 2, 64]
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, (heads,) * 3)
    beside = _row("attention.other", "cat", [heads, heads])
    makes = 3 * [mm("attention.qkv", TOKENS, WIDTH // 2, WIDTH)]
    _found(tmp_path, 3 * [NORM, *makes, core, beside, OUTPUT, ADD, *MLP, ADD])


def test_weights_of_channels_are_of_their_map_however_many(tmp_path: Path) -> None:
    """transformers models/conditional_detr/modeling_conditional_detr.py, FrozenBatchNorm2d."""
    maps, weight = [BATCH, WIDTH, 14, 14], [1, WIDTH, 1, 1]
    frozen = [_row("other", name, weight, weight) for name in ("rsqrt", "mul", "sub")]
    block = [
        Row("other", "aten::convolution", "cudnn::cnn::conv", (maps, [WIDTH, WIDTH, 3, 3])),
        *[*frozen, _row("other", "mul", maps, weight), _row("other", "add", maps, weight)],
    ]
    _found(tmp_path, [*(2 * block), *(2 * [*ATTENTION, ADD, *MLP, ADD])])


def test_a_table_that_queries_are_multiplied_with_is_of_attention(tmp_path: Path) -> None:
    """timm layers/bottleneck_attn.py, PosEmbedRel: rows of all queries, by distances in one direction."""
    batch = BATCH * HEADS
    core = [
        _batched("attention.scores", batch, LENGTH, LENGTH, 64),
        mm("attention.other", batch * LENGTH, 31, 64),
        _row("attention.softmax", "add", [batch, LENGTH, LENGTH], [batch, LENGTH, LENGTH]),
        _row("attention.softmax", "_softmax", [batch, LENGTH, LENGTH]),
        _batched("attention.values", batch, LENGTH, 64, LENGTH),
    ]
    rows = 2 * [NORM, QUERIES, *core, OUTPUT, ADD, *MLP, ADD]
    assert_right(tmp_path, rows)


BMM = Row("attention.scores", "aten::bmm", "bmm")
SOFTMAX = _row("attention.softmax", "_softmax")
VALUES = Row("attention.values", "aten::bmm", "bmm")
MIXES = [mm("attention.other", TOKENS, HEADS, HEADS), _row("attention.softmax", "add")]
BIAS = [mm("attention.other", 15 * 15, 512, 2), _row("attention.other", "relu"), *MIXES]


@pytest.mark.parametrize(
    "core",
    [
        [BMM, *MIXES, SOFTMAX, *MIXES, VALUES],  # timm models/cait.py, TalkingHeadAttn
        [BMM, *BIAS, SOFTMAX, VALUES],  # timm models/swin_transformer_v2.py, cpb_mlp
        [BMM, SOFTMAX, mm("attention.other", TOKENS, WIDTH, WIDTH), VALUES],  # timm models/convit.py, v
    ],
)
def test_linear_layers_inside_a_core_without_shapes(tmp_path: Path, core: list[Row]) -> None:
    rows = 4 * [NORM, QUERIES, *core, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, rows, shapes=False)


def test_two_products_of_different_blocks_are_no_core(tmp_path: Path) -> None:
    """Experts that are batched, and the router of the next layer."""
    experts = Row("", "aten::bmm", "bmm")
    router = [_row("norm", "native_layer_norm"), mm("", TOKENS, 8, WIDTH), _row("", "topk")]
    softmax = Row("attention.softmax moe.router", "aten::_softmax", ELEMENTWISE)
    rows = 4 * [*router, softmax, experts, _row("", "index_add_")]
    _, _, found = attributed(tmp_path, written(rows, shapes=False))
    said = {COMPONENTS[code] for code in found.component}
    assert not said & {"attention.scores", "attention.values", "attention.other"}


def test_what_makes_a_bias_beside_the_queries_stays_open_without_shapes(tmp_path: Path) -> None:
    """timm layers/pos_embed_rel.py, RelPosMlp, before a fused core."""
    bias = [mm("", 15 * 15, 512, 2), _row("", "relu"), mm("", 15 * 15, HEADS, 512)]
    layer = [NORM, QUERIES, *bias, CORE, OUTPUT, ADD, *MLP, ADD]
    trace, _, found = attributed(tmp_path, written(4 * layer, shapes=False))
    order = trace.kernels.ts_ns.argsort(kind="stable")
    for row, at in zip(4 * layer, order, strict=True):
        said = COMPONENTS[found.component[at]]
        assert said == row.right or (not row.right and said in ("unattributed", "attention.other"))


def test_a_layer_with_another_mlp_is_read_where_its_attention_is_the_others(tmp_path: Path) -> None:
    """transformers models/glm4_moe/modeling_glm4_moe.py: the first layers have no experts."""
    gated = [mm("mlp.gate", TOKENS, 512, WIDTH), GELU, mm("mlp.up", TOKENS, 512, WIDTH)]
    dense = [NORM, *gated, _row("mlp.activation", "mul"), mm("mlp.down", TOKENS, WIDTH, 512), ADD]
    routes = [_row("moe.router", name) for name in ("mm", "sigmoid", "topk")]
    experts = [mm("moe.experts", 64, 64, 64), _row("moe.experts", "silu"), mm("moe.experts", 64, 64, 64)]
    mixture = [NORM, *routes, *experts, _row("moe.dispatch", "index_add_"), ADD]
    ends = [NORM, mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss")]
    _found(tmp_path, [*ATTENTION, ADD, *dense, *(3 * [*ATTENTION, ADD, *mixture]), *ends], shapes=False)


@pytest.mark.parametrize("shapes", [True, False])
def test_a_projection_between_two_stacks_of_layers_joins_two_models(tmp_path: Path, shapes: bool) -> None:
    """transformers models/git/modeling_git.py: a picture's layers, a projection, a text's layers."""
    layer = [NORM, *3 * [OWN], CORE, OUTPUT, ADD, *MLP, ADD]
    projects = [NORM, mm("", TOKENS, WIDTH, WIDTH)]
    ends = [NORM, mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss")]
    rows = [*(4 * layer), *projects, *(4 * layer), *ends]
    trace, links, found = attributed(tmp_path, written(rows, shapes=shapes))
    assert verdict(rows, trace, found)[1] == {}
    assert model_dims(found, find_calls(trace, links, found)).layers.value is None
    assert found.further == {4: False}


def test_between_stages_no_product_makes_queries(tmp_path: Path) -> None:
    """timm models/pit.py, Pooling: a convolution, a layer for the token, and both put side by side."""
    pools = [_row("", "cudnn_convolution"), mm("", BATCH, WIDTH, WIDTH), _row("", "cat")]
    stage = 3 * [*ATTENTION, ADD, *MLP, ADD]
    rows = [*stage, *pools, *stage]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    order = trace.kernels.ts_ns.argsort(kind="stable")
    said = [COMPONENTS[found.component[at]] for at in order]
    assert {one for row, one in zip(rows, said, strict=True) if not row.right} <= {"unattributed", "other"}


def test_a_cast_back_behind_a_weight_that_was_cast_is_of_the_norm(tmp_path: Path) -> None:
    """transformers models/gemma/modeling_gemma.py, GemmaRMSNorm: weight.float(), and type_as at the end."""
    ones, weight = [BATCH, LENGTH, 1], [WIDTH]
    norm = [
        *[_row("norm", "copy_", STREAM, STREAM), _row("norm", "pow", STREAM), _row("norm", "mean", STREAM)],
        *[_row("norm", "add", ones), _row("norm", "rsqrt", ones), _row("norm", "mul", STREAM, ones)],
        *[_row("norm", "copy_", weight, weight), _row("norm", "mul", STREAM, weight)],
        _row("norm", "copy_", STREAM, STREAM),
    ]
    layer = [*norm, QUERIES, CORE, OUTPUT, *norm, ADD, *norm, UP, GELU, DOWN, *norm, ADD]
    ends = [*norm, mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss")]
    _found(tmp_path, [*(3 * layer), *ends])


def test_a_product_is_as_large_as_it_is_whatever_lays_out_its_operands(tmp_path: Path) -> None:
    """An einsum that copies its operands, which takes longer than to multiply them."""
    heads = [BATCH, HEADS, LENGTH, 64]
    copies = [_row("attention.scores", "copy_", heads)] * 2
    scores = [*copies, replace(_batched("attention.scores", BATCH * HEADS, LENGTH, LENGTH, 64), us=5)]
    weighs = _row("attention.softmax", "_softmax", [BATCH, HEADS, LENGTH, LENGTH])
    values = [replace(copies[0], right="attention.values")]
    values += [_batched("attention.values", BATCH * HEADS, LENGTH, 64, LENGTH)]
    rows = 2 * [NORM, QUERIES, *scores, weighs, *values, OUTPUT, ADD, *MLP, ADD]
    events = written(rows)
    for at, row in enumerate(rows):
        if row.op == "aten::bmm":
            first = at - (2 if row.right == "attention.scores" else 1)
            events.append(op("aten::einsum", ts=9 + 100 * first, dur=100 * (at - first) + 15))
    trace, _, found = attributed(tmp_path, events)
    order = trace.kernels.ts_ns.argsort(kind="stable")
    assert [COMPONENTS[found.component[at]] for at in order] == [row.right for row in rows]


def test_between_two_convolutions_over_a_sequence_nothing_is_of_an_mlp(tmp_path: Path) -> None:
    """torchaudio/models/conformer.py, _ConvolutionModule: as wide as the stream."""
    wide, map_ = [BATCH, 2 * WIDTH, WIDTH], [BATCH, WIDTH, WIDTH]  # as long as it is wide, too
    conv = _row("other", "convolution", map_, [2 * WIDTH, WIDTH, 1])
    each = _row("other", "convolution", map_, [WIDTH, 1, 31])
    gate = [
        _row("other", "copy_", wide, wide),
        _row("other", "sigmoid", map_),
        _row("other", "mul", map_, map_),
    ]
    layer = [NORM, QUERIES, CORE, OUTPUT, ADD, NORM, conv, *gate, each, ADD, *MLP, ADD]
    _found(tmp_path, 2 * layer)


@pytest.mark.parametrize("longest", [5, 50])
def test_a_linear_layer_can_run_as_a_product_for_each_sample(tmp_path: Path, longest: int) -> None:
    """Of rows that lie apart, with its bias added behind: in a public trace of Segment Anything."""
    wide = 3 * WIDTH
    queries = [_batched("attention.qkv", BATCH, LENGTH, wide, WIDTH)]
    queries += [replace(_row("attention.qkv", "add_", [BATCH, LENGTH, wide], [wide]), us=longest)]
    rows = 2 * [NORM, *queries, CORE, OUTPUT, ADD, *MLP, ADD]
    events = written(rows)
    given = {"Input Dims": [STREAM, [wide, WIDTH], [wide]]}
    for at, row in enumerate(rows):
        if row.op == "aten::bmm":
            events.append(op("aten::linear", ts=9 + 100 * at, dur=115, **given))
    trace, _, found = attributed(tmp_path, events)
    order = trace.kernels.ts_ns.argsort(kind="stable")
    assert [COMPONENTS[found.component[at]] for at in order] == [row.right for row in rows]


def test_a_cast_of_a_map_right_before_a_loss_is_of_either(tmp_path: Path) -> None:
    """monai's UNETR, whose last map a script casts and compares with zeros."""
    map_ = [BATCH, 14, 96, 96]
    ends = [_row("other", "convolution", [BATCH, 48, 96, 96], [14, 48, 1, 1]), _row("other", "relu", map_)]
    ends += [_row("", "copy_", map_, map_), _row("", "fill_", map_), _row("loss", "mse_loss", map_, map_)]
    _found(tmp_path, [*2 * [NORM, QUERIES, CORE, OUTPUT, ADD, *MLP, ADD], *ends])


def test_two_products_that_make_a_scale_are_ahead_of_an_mlp(tmp_path: Path) -> None:
    """transformers models/voxtral_realtime: normed * (1 + ada(t)), where no shapes tell."""
    scale = [mm("", BATCH, 32, WIDTH), _row("", "gelu"), mm("", BATCH, WIDTH, 32)]
    scale += [_row("", "add"), _row("", "mul")]
    layer = [NORM, *3 * [OWN], CORE, OUTPUT, ADD, NORM, *scale, UP, GELU, DOWN, ADD]
    rows = [_row("embedding", "embedding"), *4 * layer, NORM]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    order = trace.kernels.ts_ns.argsort(kind="stable")
    own = [(row, at) for row, at in zip(rows, order, strict=True) if row.op == "aten::mm" and row.right]
    assert [COMPONENTS[found.component[at]] for _, at in own] == [row.right for row, _ in own]
    assert [int(found.layer[at]) for _, at in own] == [at for at in range(4) for _ in range(6)]


def test_a_product_behind_convolutions_of_the_last_layers_result_is_of_no_mlp(tmp_path: Path) -> None:
    """transformers models/step3p7: two convolutions make a picture smaller ahead of a projector."""
    layer = [*ATTENTION, ADD, *MLP, ADD]
    smaller = [_row("other", "convolution", STREAM, [WIDTH, WIDTH, 3, 3]), OUTSIDE]
    _found(tmp_path, [*3 * layer, *smaller, *3 * layer], shapes=False)


def test_the_last_product_of_a_file_that_ends_within_a_layer_is_no_head(tmp_path: Path) -> None:
    open_ = _row("", "gelu", [BATCH, LENGTH, 4 * WIDTH])
    words = _row("embedding", "embedding", [1000, WIDTH], [BATCH, LENGTH])
    layer = [*ATTENTION, ADD, *MLP, ADD]
    _found(tmp_path, [words, *3 * layer, *ATTENTION, ADD, NORM, UP, open_])
