"""Normalizations and what is said of a sample (time, class), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, said_of, verdict, written
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    DOWN,
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
    _found,
    _layer_of,
    _row,
)


def test_weights_cast_for_a_normalization_are_of_it(tmp_path: Path) -> None:
    """diffusers models/normalization.py, FP32LayerNorm: input, weight and bias in float32."""
    cast, weight = _row("norm", "copy_", STREAM, STREAM), _row("norm", "copy_", [WIDTH], [WIDTH])
    norm = _row("norm", "native_layer_norm", STREAM, [], [WIDTH], [WIDTH])
    normed = [cast, weight, weight, norm, cast]
    _found(tmp_path, 3 * [*normed, *ATTENTION[1:], ADD, *normed, *MLP[1:], ADD])


def test_a_shift_for_each_sample_is_of_the_normalization(tmp_path: Path) -> None:
    """diffusers transformers/hunyuan_transformer_2d.py, AdaLayerNormShift: norm(x) + shift[:, None]."""
    shift = _row("norm", "add", STREAM, [BATCH, 1, WIDTH])
    _found(tmp_path, 3 * [NORM, shift, *ATTENTION[1:], ADD, *MLP, ADD])


def test_sines_of_a_time_embed_it(tmp_path: Path) -> None:
    """diffusers models/embeddings.py, get_timestep_embedding."""
    half, rows = [WIDTH // 2], [BATCH, WIDTH // 2]
    waves = [_row("embedding", "arange", half), _row("embedding", "exp", half)]
    waves += [_row("embedding", "mul", [BATCH, 1], [1, *half])]
    waves += [_row("embedding", name, rows) for name in ("sin", "cos")]
    waves += [_row("embedding", "cat", rows, rows), mm("embedding", BATCH, WIDTH, WIDTH)]
    _found(tmp_path, [*waves, *(3 * [*ATTENTION, ADD, *MLP, ADD])])


SAMPLE = [BATCH, 1, WIDTH]


def test_scales_and_shifts_are_of_the_normalization_with_their_casts(tmp_path: Path) -> None:
    """diffusers transformers/transformer_kandinsky6.py: norm(x) * (scale + 1) + shift, all in float32; the
    gate of the block before, made by a linear layer on the condition, scales what is added to the stream."""
    cast, small = _row("norm", "copy_", STREAM, STREAM), _row("norm", "copy_", SAMPLE, SAMPLE)
    scale = [small, _row("other", "add", SAMPLE), _row("norm", "mul", STREAM, SAMPLE)]
    normed = [cast, NORM, *scale, small, _row("norm", "add", STREAM, SAMPLE), cast]
    condition = mm("other", BATCH, 3 * WIDTH, WIDTH)
    gate = [
        condition,
        _row("residual", "copy_", STREAM, STREAM),
        _row("residual", "mul", SAMPLE, STREAM),
        ADD,
    ]
    back = _row("residual", "copy_", STREAM, STREAM)
    layer = [*normed, QUERIES, CORE, OUTPUT, *gate, *normed, *MLP[1:], *gate]
    _found(tmp_path, [*3 * layer, back])


def test_scales_and_shifts_of_every_token_come_from_a_table(tmp_path: Path) -> None:
    """diffusers transformers/transformer_helios.py: six numbers for each channel of each token."""
    six, table = [BATCH, LENGTH, 6, WIDTH], [1, 1, 6, WIDTH]
    made = [_row("other", "copy_", six, six), _row("other", "add", table, six)]
    scale = [
        _row("norm", "add", STREAM),
        _row("norm", "mul", STREAM, STREAM),
        _row("norm", "add", STREAM, STREAM),
    ]
    normed = [NORM, *scale, _row("norm", "copy_", STREAM, STREAM)]
    _found(tmp_path, 3 * [*made, *normed, QUERIES, CORE, OUTPUT, ADD, *normed, *MLP[1:], ADD])


def test_a_sum_behind_a_gated_normalization_is_of_the_stream(tmp_path: Path) -> None:
    """A block's result is normalized, weighed and added, and the next normalization takes the sum."""
    gate = _row("residual", "mul", STREAM, STREAM)
    _found(tmp_path, [*3 * [*ATTENTION, NORM, gate, ADD, *MLP, NORM, gate, ADD], NORM])


def test_what_brings_words_onto_the_stream_embeds(tmp_path: Path) -> None:
    """diffusers transformers/transformer_flux2.py: x_embedder, context_embedder, without biases."""
    words, whole = BATCH * 32, BATCH * (LENGTH + 32)
    heads = [BATCH, LENGTH + 32, 4, 64]
    core = [replace(CORE, dims=(heads,) * 3)]
    queries = [mm("attention.qkv", rows, 3 * WIDTH, WIDTH) for rows in (TOKENS, words)]
    (norm, _, _, output, add), (_, *other, _) = _layer_of([BATCH, 32, WIDTH])
    norms, sums = [NORM, norm], [ADD, add]
    layer = [*norms, *queries, *core, OUTPUT, output, *sums, *norms, *MLP[1:], *other, *sums]
    ahead = [mm("embedding", TOKENS, WIDTH, 48), mm("embedding", words, WIDTH, 768)]
    assert whole == TOKENS + words
    _found(tmp_path, [*ahead, *3 * layer])


def test_what_weighs_several_streams_is_of_the_residual(tmp_path: Path) -> None:
    """Hyper-connections (arXiv 2409.19606) as vit_pytorch/simple_vit_with_hyper_connections.py has them."""
    streams, few = [BATCH, LENGTH, 3, WIDTH], [BATCH, LENGTH, 3, 4]
    weights = Row("residual", "aten::mm", "gemm", ([3 * TOKENS, WIDTH], [WIDTH, 4]))
    mixes = Row("residual", "aten::bmm", "bmm", ([TOKENS, 4, 3], [TOKENS, 3, WIDTH]))
    made = [_row("residual", name, few) for name in ("tanh", "mul")]
    ahead = [_row("norm", "native_layer_norm", streams), weights, *made, mixes]
    back = [_row("residual", "mul", STREAM, [BATCH, LENGTH, 3]), _row("residual", "add", streams, streams)]
    _found(tmp_path, 3 * [*ahead, *ATTENTION, *back, *ahead, *MLP, *back])


def test_streams_that_are_samples_of_their_own_are_of_the_residual(tmp_path: Path) -> None:
    """The same where the streams lie behind one another (hyper_connections.py of lucidrains): each is weighed
    beside the others, normalized by its length ahead of that, and added to by itself."""
    beside, apart = [BATCH, LENGTH, 1, 3, WIDTH], [3 * BATCH, LENGTH, WIDTH]
    length = [_row("norm", "linalg_vector_norm", beside), _row("norm", "clamp", [BATCH, LENGTH, 1, 3, 1])]
    length += [_row("norm", "div", beside, beside), _row("norm", "mul", beside, [WIDTH])]
    weights = Row("residual", "aten::mm", "gemm", ([3 * TOKENS, WIDTH], [WIDTH, 4]))
    mixes = Row("residual", "aten::bmm", "bmm", ([TOKENS, 4, 3], [TOKENS, 3, WIDTH]))
    ahead = [*length, weights, _row("residual", "tanh", [BATCH, LENGTH, 1, 3, 4]), mixes]
    back = [_row("residual", "mul", STREAM, [BATCH, LENGTH, 3]), _row("residual", "add", apart, apart)]
    _found(tmp_path, 3 * [*ahead, *ATTENTION, *back, *ahead, *MLP, *back])


def test_a_product_that_weighs_all_earlier_streams_is_of_the_residual(tmp_path: Path) -> None:
    """DenseFormer (arXiv 2402.02622): tensordot of a few weights with the streams of all layers before."""
    weighs = [Row("residual", "aten::mm", "gemm", ([1, n], [n, TOKENS * WIDTH])) for n in (2, 3)]
    layer = [*ATTENTION, ADD, *MLP, ADD]
    _found(tmp_path, [*layer, weighs[0], *layer, weighs[1], *layer])


@pytest.mark.parametrize("tokens", [1, 6])
def test_a_product_of_one_row_weighs_no_streams_where_it_takes_more_than_there_are(
    tokens: int, tmp_path: Path
) -> None:
    """A token's way through a layer that nobody knows, and as many numbers for a sample (scale, shift and
    gate of both blocks: facebookresearch/DiT models.py) as six tokens have."""
    stream = [1, tokens, WIDTH]
    core = replace(CORE, dims=([1, tokens, WIDTH // 64, 64],) * 3)
    one = [mm("", 1, tokens * WIDTH, WIDTH), _row("norm", "native_layer_norm", stream)]
    one += [mm("", tokens, 3 * WIDTH, WIDTH), core, mm("", tokens, WIDTH, WIDTH)]
    one += [_row("", "add", stream, stream), mm("", tokens, 4 * WIDTH, WIDTH)]
    one += [_row("", "gelu", [1, tokens, 4 * WIDTH]), mm("", tokens, WIDTH, 4 * WIDTH)]
    rows = [*one, _row("", "add", stream, stream)] * 3
    found = said_of(tmp_path, rows)
    assert "attention.core" in found
    assert "residual" not in [one for one, row in zip(found, rows, strict=True) if row.op == "aten::mm"]


def test_several_streams_are_summed_ahead_of_the_head(tmp_path: Path) -> None:
    """transformers models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4HyperHead."""
    streams, few, flat = [BATCH, LENGTH, 4, WIDTH], [BATCH, LENGTH, 4], [BATCH, LENGTH, 4 * WIDTH]
    weights = Row("residual", "aten::mm", "gemm", ([TOKENS, 4 * WIDTH], [4 * WIDTH, 4]))
    made = [_row("residual", name, few) for name in ("mul", "add", "sigmoid")]
    cast = [_row("residual", "copy_", flat, flat)]
    sums = [_row("residual", "mul", [BATCH, LENGTH, 4, 1], streams), _row("residual", "sum", streams)]
    ahead = [*cast, weights, *made, *sums]
    back = [_row("residual", "mul", [BATCH, LENGTH, 4, 1], STREAM), _row("residual", "add", streams, streams)]
    head = [*ahead, NORM, mm("logits", TOKENS, 1000, WIDTH), _row("loss", "cross_entropy_loss")]
    _found(tmp_path, [*3 * [*ahead, *ATTENTION, *back, *ahead, *MLP, *back], *head])


def test_what_lays_patches_out_embeds_with_their_product(tmp_path: Path) -> None:
    """vit_pytorch: Rearrange, LayerNorm, Linear, LayerNorm, and positions by sines."""
    pixels, table = [BATCH, 8, 4, 16, 4, 3], [LENGTH, WIDTH // 4]
    patches = [BATCH, LENGTH, 48]
    ahead = [_row("embedding", "copy_", pixels, pixels), _row("norm", "native_layer_norm", patches)]
    ahead += [mm("embedding", TOKENS, WIDTH, 48), NORM]
    waves = [_row("embedding", name, table) for name in ("mul", "sin", "cos")]
    waves += [_row("embedding", "cat", *4 * [table]), _row("embedding", "add", STREAM, [LENGTH, WIDTH])]
    _found(tmp_path, [*ahead, *waves, *3 * [*ATTENTION, ADD, *MLP, ADD]])


def test_channels_divided_by_their_length_are_normalized(tmp_path: Path) -> None:
    """Global response normalization (arXiv 2301.00808) inside an MLP."""
    wide, each, mean = [BATCH, 8, 16, 4 * WIDTH], [BATCH, 1, 1, 4 * WIDTH], [BATCH, 1, 1, 1]
    norm = [_row("norm", "linalg_vector_norm", wide), _row("norm", "mean", each), _row("norm", "add", mean)]
    norm += [_row("norm", "div", each, mean), _row("norm", "mul", wide, each)]
    norm += [_row("norm", "add", wide, [1, 1, 1, 4 * WIDTH]), _row("norm", "add", wide, wide)]
    first, up, gelu, down = MLP
    _found(tmp_path, 3 * [*ATTENTION, ADD, first, up, gelu, *norm, down, ADD])


def test_a_head_whose_results_are_averaged(tmp_path: Path) -> None:
    """A loss of one's own ends in a mean, and of several micro-batches in its share."""
    few = [BATCH, LENGTH, 32]
    head = [mm("logits", TOKENS, 32, WIDTH), _row("loss", "pow", few), _row("loss", "mean", few)]
    head += [_row("loss", "div", [], [])]
    _found(tmp_path, [*3 * [*ATTENTION, ADD, *MLP, ADD], NORM, *head])


def test_a_head_whose_results_are_averaged_where_a_mask_leaves_them(tmp_path: Path) -> None:
    """models_mae.py, forward_loss: without the class token, the mean of a patch, and of the masked ones."""
    few, rows = [BATCH, LENGTH - 1, 32], [BATCH, LENGTH - 1]
    head = [mm("logits", TOKENS, 32, WIDTH), _row("loss", "sub", few, few), _row("loss", "pow", few)]
    head += [_row("loss", "mean", few), _row("loss", "mul", rows, rows)]
    head += [_row("loss", "sum", rows), _row("loss", "sum", rows), _row("loss", "div", [], [])]
    _found(tmp_path, [*3 * [*ATTENTION, ADD, *MLP, ADD], NORM, *head])


def test_a_sum_over_the_tokens_is_no_loss(tmp_path: Path) -> None:
    """An encoder that ends in a linear layer, whose rows a mask weighs and a sum pools."""
    wide = [BATCH, LENGTH, WIDTH]
    pooled = [mm("other", TOKENS, WIDTH, WIDTH), _row("", "mul", wide, [BATCH, LENGTH, 1])]
    rows = [*3 * [*ATTENTION, ADD, *MLP, ADD], NORM, *pooled, _row("", "sum", wide)]
    assert "loss" not in said_of(tmp_path, rows)


def test_scores_between_minus_one_and_one_are_of_the_head(tmp_path: Path) -> None:
    """A head that ends in a tanh, ahead of its loss."""
    few = [BATCH, LENGTH, 32]
    head = [mm("logits", TOKENS, 32, WIDTH), _row("logits", "tanh", few), _row("loss", "mse_loss", few, few)]
    _found(tmp_path, [*3 * [*ATTENTION, ADD, *MLP, ADD], NORM, *head])


def test_a_cap_on_the_scores_is_of_the_head_with_what_scales_it(tmp_path: Path) -> None:
    """transformers models/gemma2/modeling_gemma2.py: tanh(logits / cap) * cap."""
    few = [BATCH, LENGTH, 1000]
    cap = [_row("logits", "div", few, []), _row("logits", "tanh", few), _row("logits", "mul", few, [])]
    head = [mm("logits", TOKENS, 1000, WIDTH), *cap, _row("loss", "cross_entropy_loss", few)]
    _found(tmp_path, [*3 * [*ATTENTION, ADD, *MLP, ADD], NORM, *head])


def test_two_layers_that_end_wide_can_be_a_head(tmp_path: Path) -> None:
    """enformer_pytorch: a pointwise layer, and tracks of which a loss of no name is taken."""
    wide, tracks = [BATCH, LENGTH, 2 * WIDTH], [BATCH, LENGTH, 5000]
    head = [mm("other", TOKENS, 2 * WIDTH, WIDTH), _row("other", "gelu", wide)]
    head += [mm("unattributed", TOKENS, 5000, 2 * WIDTH), _row("unattributed", "softplus", tracks)]
    _found(tmp_path, [*3 * [*ATTENTION, ADD, *MLP, ADD], NORM, *head])


def test_queries_behind_a_normalization_that_is_cast_back(tmp_path: Path) -> None:
    """diffusers transformers/hunyuan_transformer_2d.py: the layer's own linear layer makes the queries of the
    attention to words, and skip_linear before it none."""
    words = 24 * BATCH
    skip = [_row("norm", "native_layer_norm", [BATCH, LENGTH, 2 * WIDTH]), mm("", TOKENS, WIDTH, 2 * WIDTH)]
    heads, other = [BATCH, LENGTH, 4, 64], [BATCH, 24, 4, 64]
    keys = 2 * [mm("attention.qkv", words, WIDTH, 768)]
    of_heads = [_row("norm", "native_layer_norm", dims, [64]) for dims in (heads, other)]
    cross = [
        NORM,
        _row("norm", "copy_", STREAM, STREAM),
        OWN,
        *keys,
        *of_heads,
        replace(CORE, dims=(heads, other, other)),
        OUTPUT,
    ]
    layer = [*ATTENTION, ADD, *cross, ADD, *MLP, ADD]
    _found(tmp_path, [*layer, *2 * [*skip, *layer]])


@pytest.mark.parametrize("module", ["", "Denoiser_0"])
def test_conditions_of_a_compiled_model_are_of_no_attention_though_its_module_runs_the_cores(
    tmp_path: Path, module: str
) -> None:
    """diffusers transformers/transformer_sd3.py under torch.compile: one module, whose name says nothing."""

    def fused(right: str, name: str, *dims: list[int]) -> Row:
        return Row(right, f"triton_{name}_0", f"triton_{name}_0", dims)

    made, bias = [BATCH, 6 * WIDTH], [6 * WIDTH]
    name = "red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view"
    norm = fused("norm", name, STREAM, made, bias, [TOKENS, WIDTH])
    bends = fused("mlp.activation", "poi_fused_addmm_gelu_view", [BATCH, LENGTH, 4 * WIDTH], [4 * WIDTH])
    layer = [mm("other", BATCH, 6 * WIDTH, WIDTH), norm, *ATTENTION[1:], norm, UP, bends, DOWN]
    rows = 3 * layer
    events = written(rows)
    if module:
        frame = {"ph": "X", "cat": "python_function", "name": f"nn.Module: {module}", "pid": 9, "tid": 1}
        events.append(frame | {"ts": 8, "dur": 100 * len(rows), "args": {}})
    trace, _, found = attributed(tmp_path, events)
    assert verdict(rows, trace, found) == (1.0, {})
