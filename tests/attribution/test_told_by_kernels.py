"""What names of kernels tell where a recording has no shapes, which are off unless one asks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, said_of, written
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    MLP,
    NORM,
    TOKENS,
    WIDTH,
    _batched,
    _found,
    _row,
)
from tests.trace.tools import op
from tracelens.attribution.kernels import listed
from tracelens.words import COMPONENTS

_COPY = "at::native::{}_copy_kernel_cuda(at::TensorIteratorBase&)::"
_TO_FLOAT = _COPY.format("direct") + "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::"
_CASTS = (
    "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1>"
)
#: As an H100 of torch 2.6 runs them.
WIDEN = f"void at::native::unrolled_elementwise_kernel<{_TO_FLOAT}{{lambda(float)#1}}, {_CASTS}>(int)"
NARROW = (
    f"void at::native::vectorized_elementwise_kernel<4, {_COPY.format('bfloat16')}{{lambda(float)#1}}>(int)"
)
NUMBER = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float> >(int)"


def _rms_norm(*last: Row) -> list[Row]:
    """transformers models/gemma4/modeling_gemma4.py: the weight is cast, too."""
    steps = [_row("norm", name) for name in ("pow", "mean", "add", "rsqrt", "mul")]
    cast = replace(_row("norm", "copy_"), kernel=WIDEN)
    return [cast, *steps, cast, _row("norm", "mul"), *last]


def test_a_cast_to_fewer_bits_ends_a_norm_in_float(tmp_path: Path) -> None:
    norm = _rms_norm(replace(_row("norm", "copy_"), kernel=NARROW))
    _found(tmp_path, 3 * [*norm, *ATTENTION[1:], ADD, *norm, *MLP[1:], ADD], shapes=False)


def test_a_cast_behind_a_weight_of_few_bits_is_of_what_takes_it(tmp_path: Path) -> None:
    """transformers models/llama/modeling_llama.py under autocast."""
    steps = [_row("norm", name) for name in ("pow", "mean", "add", "rsqrt", "mul")]
    back = replace(_row("norm", "copy_"), kernel=NARROW)
    norm = [replace(back, kernel=WIDEN), *steps, back, _row("norm", "mul"), replace(back, right="")]
    _found(tmp_path, 3 * [*norm, *ATTENTION[1:], ADD, *norm, *MLP[1:], ADD], shapes=False)


def test_a_number_that_is_added_in_front_of_a_norm_is_its_own(tmp_path: Path) -> None:
    """transformers models/videoprism/modeling_videoprism.py: layer_norm(x, weight + 1)."""
    norm = [replace(_row("norm", "add"), kernel=NUMBER), NORM]
    _found(tmp_path, 3 * [*norm, *ATTENTION[1:], ADD, *norm, *MLP[1:], ADD], shapes=False)


def test_from_one_router_to_the_next_there_is_more_than_routers(tmp_path: Path) -> None:
    """transformers models/kimi_linear/modeling_kimi_linear.py: an expert of all tokens, and a mixer that is
    written out, stand between two mixtures."""
    grouped = Row("moe.experts", "aten::_grouped_mm", "cutlass::device_kernel<GemmUniversal>")
    routes = [mm("moe.router", TOKENS, 8, WIDTH), *(_row("moe.router", name) for name in ("sigmoid", "topk"))]
    sends = [_row("moe.dispatch", name) for name in ("sort", "index")]
    back = [_row("moe.dispatch", name) for name in ("mul", "index_put_", "index", "sum")]
    experts = [grouped, _row("moe.experts", "silu"), grouped]
    linear = mm("", TOKENS, WIDTH, WIDTH)
    mixes = [linear, *4 * [_row("", "exp"), _row("", "where")], linear]
    mixture = [NORM, *routes, *sends, *experts, *back, linear, _row("", "silu"), linear, _row("", "add")]
    rows = [NORM, *mixes, _row("", "add"), *mixture]
    rows = [*4 * rows, *ATTENTION, _row("", "add"), *mixture]
    said = said_of(tmp_path, rows, shapes=False)
    routed = [(row.op, one) for row, one in zip(rows, said, strict=True) if "moe" in row.right + one]
    assert routed == [(row.op, row.right) for row in rows if "moe" in row.right]


def test_what_counts_places_between_lookups_is_of_the_embeddings(tmp_path: Path) -> None:
    """transformers models/roberta/modeling_roberta.py, create_position_ids_from_input_ids; musicgen's table
    of sines is no embedding layer."""
    words = Row("embedding", "aten::embedding", "void vectorized_gather_kernel")
    counts = [_row("embedding", name) for name in ("ne", "copy_", "cumsum", "mul", "add")]
    sines = [_row("embedding", name) for name in ("arange", "add", "index_select", "add")]
    rows = [_row("", "fill_"), *counts, words, words, _row("embedding", "add"), *sines]
    _found(tmp_path, [*rows, *3 * [*ATTENTION, ADD, *MLP, ADD]], shapes=False)


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("triton_red_fused__native_batch_norm_legit_functional_add_relu_threshold_backward_34", "norm"),
        ("triton_poi_fused_native_group_norm_silu_5", "norm"),
        ("triton_poi_fused_add_native_batch_norm_backward_squeeze_27", "norm"),
        ("triton_poi_fused_add_embedding_dense_backward_native_batch_norm_backward_27", None),  # into a table
        ("triton_per_fused__to_copy_native_layer_norm_3", "norm"),
        ("triton_per_fused_add_native_layer_norm_3", "norm"),  # a residual, too
        ("triton_per_fused_add_native_dropout_native_layer_norm_3", None),
        ("triton_poi_fused_add_native_layer_norm_backward_select_backward_transpose_13", None),
        ("triton_poi_fused_convolution_0", "other"),
        ("triton_poi_fused_convolution_backward_slice_transpose_view_19", "other"),
        ("triton_poi_fused_convolution_gelu_7", None),
        ("triton_poi_fused__to_copy__unsafe_index_add_arange_clamp_mul_sub_view_30", "other"),  # a larger map
        ("triton_poi_fused__to_copy__unsafe_index_put_add_mul_neg_new_zeros_4", "other"),
        ("triton_poi_fused__to_copy_add_arange_clamp_mul_sub_9", "other"),  # the rows that it takes
        ("triton_poi_fused__unsafe_index_add_gelu_mul_sub_3", None),
        ("triton_poi_fused__to_copy__unsafe_index_put_mul_new_zeros_permute_view_4", None),  # of distances
        ("triton_poi_fused__unsafe_index_put_floor_mul_new_zeros_permute_rsub_view_4", "other"),
        ("triton_poi_fused_add_clamp_7", None),
        ("triton_poi_fused_add_77", None),
        ("triton_tem_fused_mm_3", None),
    ],
)
def test_a_list_of_one_thing_says_what_a_kernel_is(name: str, component: str | None) -> None:
    assert listed(name) == component


@pytest.mark.parametrize(("kind", "found"), [("long int", "norm"), ("float", "unattributed")])
def test_a_sum_of_whole_numbers_beside_a_norm_of_batches_counts_these(
    tmp_path: Path, kind: str, found: str
) -> None:
    batches, count = "triton_red_fused__native_batch_norm_legit_functional_7", "triton_poi_fused_add_8"
    events = written(
        [Row("norm", batches, batches, ([4, 64, 8, 8], [64])), Row(found, count, count, ([], [], []))]
    )
    for event in events:
        if event["name"] == count and event["cat"] == "cpu_op":
            event["args"]["Input type"] = [kind, kind, "Scalar"]
    attribution = attributed(tmp_path, events)[2]
    assert [COMPONENTS[code] for code in attribution.component] == ["norm", found]


def test_the_gradient_of_a_convolution_in_a_compiled_graph_is_of_no_transformer(tmp_path: Path) -> None:
    rows = [
        *2 * [*ATTENTION, ADD, *MLP, ADD],
        *2 * [Row("other", "aten::convolution_backward", "cudnn::wgrad")],
    ]
    events, start = written(rows, shapes=False), 10 + 100 * (len(rows) - 2)
    for name, ts, backward in (("CompiledFunction", 5, 0), ("CompiledFunctionBackward", start - 5, 1)):
        numbers = {"Sequence number": 5, "Fwd thread id": backward}
        events.append(op(name, ts=ts, dur=start - 20 if not backward else 200, **numbers))
    trace, _, found = attributed(tmp_path, events)
    assert [COMPONENTS[found.component[at]] for at in trace.kernels.ts_ns.argsort()[-2:]] == 2 * ["other"]


def test_the_first_layer_of_a_head_of_two_is_no_part_of_the_model(tmp_path: Path) -> None:
    """timm models/efficientvit_mit.py, ClassifierHead."""
    classes, wide = 64, 6 * WIDTH
    head = [
        _row("other", "mean", [BATCH, wide, 14, 14]),
        mm("other", BATCH, 512, wide),
        _row("norm", "native_layer_norm", [BATCH, 512]),
        _row("other", "hardswish_", [BATCH, 512]),
        mm("logits", BATCH, classes, 512),
        _row("loss", "cross_entropy_loss", [BATCH, classes]),
    ]
    maps = [BATCH, WIDTH, 14, 14]
    block = Row("other", "aten::convolution", "cudnn::cnn::conv", (maps, [wide, WIDTH, 1, 1]))
    _found(tmp_path, [*3 * [*ATTENTION, ADD, *MLP, ADD], block, *head])


def test_frequencies_are_no_norm_of_queries(tmp_path: Path) -> None:
    """transformers models/vjepa2/modeling_vjepa2.py, rotate_queries_or_keys, in every layer."""
    waves = [_row("attention.rope", name) for name in ("div_", "pow")]
    waves += [_row("", "reciprocal"), *(_row("attention.rope", name) for name in ("mul", "sin", "cos"))]
    turns = [_row("attention.rope", name) for name in ("mul", "neg", "cat", "mul", "add")]
    turned = [replace(row, right="") if row.op == "aten::reciprocal" else row for row in [*waves, *turns]]
    rows = 3 * [*ATTENTION[:2], *turned, *ATTENTION[2:], ADD, *MLP, ADD]
    said = said_of(tmp_path, rows, shapes=False)
    assert {one for row, one in zip(rows, said, strict=True) if row.op == "aten::pow"} == {"attention.rope"}


def test_a_norm_over_frames_that_is_written_out_is_no_embedding(tmp_path: Path) -> None:
    """transformers models/gemma3n/modeling_gemma3n.py, Gemma3nAudioCumulativeGroupNorm."""
    convolution = Row("embedding", "aten::convolution", "cudnn::cnn::conv")
    steps = ("sum", "cumsum", "div", "sub", "pow", "sum", "cumsum", "div", "add", "rsqrt", "mul", "mul")
    norm = [replace(_row("", name), us=5) for name in steps]
    opens = [convolution, *norm, _row("", "relu"), convolution, _row("", "relu")]
    rows = [*opens, mm("", TOKENS, WIDTH, WIDTH), *3 * [*ATTENTION, ADD, *MLP, ADD]]
    said = said_of(tmp_path, rows, shapes=False)
    assert {one for row, one in zip(rows, said, strict=True) if row.us == 5} <= {
        "unattributed",
        "norm",
        "other",
    }


def test_channels_cut_from_a_map_for_its_attention_are_of_it(tmp_path: Path) -> None:
    """timm models/shvit.py, SHSA: attention takes some of the channels, the projection all."""
    batch, places, key, width = BATCH, 49, 16, 64
    maps = [batch, 4 * width, 7, 7]

    def convolves(right: str, made: int, taken: int) -> Row:
        shapes = ([batch, taken, 7, 7], [made, taken, 1, 1])
        return Row(right, "aten::convolution", "cudnn::cnn::conv", shapes)

    block = [
        _row("attention.other", "split", maps),
        _row("norm", "native_group_norm", [batch, width, 7, 7]),
        convolves("attention.qkv", 2 * key + width, width),
        _batched("attention.scores", batch, places, places, key),
        _row("attention.softmax", "_softmax", [batch, places, places]),
        _batched("attention.values", batch, width, places, places),
        _row("attention.other", "cat", [batch, width, 7, 7], [batch, 3 * width, 7, 7]),
        convolves("attention.output", 4 * width, 4 * width),
        _row("residual", "add", maps, maps),
    ]
    _found(tmp_path, [convolves("other", 4 * width, 3), *3 * block])


def test_a_bias_beside_a_product_in_few_bits_is_spread_over_what_it_gives(tmp_path: Path) -> None:
    """torch._scaled_mm without its bias, which is cast first."""
    spread = "at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<c10::BFloat16> >"
    adds = replace(
        _row("mlp.up", "add"), kernel=f"void at::native::elementwise_kernel<128, 4, {spread}>(int)"
    )
    up = replace(MLP[1], op="aten::_scaled_mm", kernel="nvjet_sm90_qqtst_320x128_128x3_1x2_h_bz_coopB_TNT")
    cast = replace(_row("mlp.up", "copy_"), kernel=NARROW)
    _found(tmp_path, 3 * [*ATTENTION, ADD, NORM, up, cast, adds, *MLP[2:], ADD], shapes=False)
