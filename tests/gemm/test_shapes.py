"""Operator inputs as Kineto writes them, to shapes; whatever does not fit is None and nothing raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.gemm import (
    ATTENTION_OPS,
    GEMM_OPS,
    WRAPPERS,
    AttentionShape,
    GemmShape,
    alignment_bytes,
    bytes_moved,
    flops,
    shape_of,
)

BF16, FP32, E4M3, E5M2 = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "c10::Float8_e5m2"


def gemm(op: str, dims: list[Any], types: list[str], **lists: Any) -> GemmShape:
    shape = shape_of(op, dims, types, lists.get("strides"), lists.get("concrete"))
    assert isinstance(shape, GemmShape)
    return shape


def attention(
    op: str, dims: list[Any], types: list[str], concrete: list[str] | None = None
) -> AttentionShape:
    shape = shape_of(op, dims, types, None, concrete)
    assert isinstance(shape, AttentionShape)
    return shape


@pytest.mark.parametrize(
    ("op", "dims", "mnkb"),
    [
        ("aten::mm", [[64, 32], [32, 16]], (64, 16, 32, 1)),
        ("aten::mm", [[64, 32], [32, 16], [64, 16]], (64, 16, 32, 1)),
        ("aten::mm.out", [[64, 32], [32, 16], [64, 16]], (64, 16, 32, 1)),
        ("aten::addmm", [[16], [64, 32], [32, 16], [], []], (64, 16, 32, 1)),
        ("aten::addmm", [[16], [64, 32], [32, 16], [], [], [64, 16]], (64, 16, 32, 1)),
        ("aten::addmm_", [[64, 16], [64, 32], [32, 16], [], []], (64, 16, 32, 1)),
        ("aten::_addmm_activation", [[16], [64, 32], [32, 16], [], [], []], (64, 16, 32, 1)),
        ("aten::bmm", [[8, 64, 32], [8, 32, 16]], (64, 16, 32, 8)),
        ("aten::baddbmm", [[8, 64, 16], [8, 64, 32], [8, 32, 16], [], []], (64, 16, 32, 8)),
        ("aten::addbmm", [[64, 16], [8, 64, 32], [8, 32, 16], [], []], (64, 16, 32, 8)),
        ("aten::_int_mm", [[64, 32], [32, 16]], (64, 16, 32, 1)),
        ("aten::linear", [[4, 16, 32], [48, 32], [48]], (64, 48, 32, 1)),
        ("aten::linear", [[32], [48, 32], []], (1, 48, 32, 1)),
        ("aten::matmul", [[4, 16, 32], [32, 48]], (64, 48, 32, 1)),
        ("aten::matmul", [[2, 4, 16, 32], [2, 4, 32, 48]], (16, 48, 32, 8)),
        ("aten::_scaled_mm", [[64, 32], [32, 16], [], [], [], [], [], []], (64, 16, 32, 1)),
        ("aten::_grouped_mm", [[640, 32], [8, 32, 16], [8], [], []], (640, 16, 32, 1)),
        ("aten::_scaled_grouped_mm", [[32, 640], [640, 16], [], [], [8], [], [], [], []], (32, 16, 640, 1)),
        ("aten::_scaled_mm", [[64, 32], [32, 16]] + [[]] * 6 + [[64, 16]], (64, 16, 32, 1)),
        ("aten::_scaled_mm_v2", [[64, 32], [32, 16]] + [[]] * 10, (64, 16, 32, 1)),
        ("aten::_scaled_grouped_mm_v2", [[640, 32], [8, 32, 16]] + [[]] * 6 + [[8], []], (640, 16, 32, 1)),
        ("aten::bmm", [[8, 64, 32], [8, 32, 16], [8, 64, 16]], (64, 16, 32, 8)),
        ("aten::baddbmm", [[8, 64, 16], [8, 64, 32], [8, 32, 16], [], [], [8, 64, 16]], (64, 16, 32, 8)),
        ("aten::_int_mm", [[64, 32], [32, 16], [64, 16]], (64, 16, 32, 1)),
        ("aten::mm", [[0, 32], [32, 16]], (0, 16, 32, 1)),
    ],
)
def test_gemm_operators(op: str, dims: list[Any], mnkb: tuple[int, int, int, int]) -> None:
    shape = gemm(op, dims, [BF16] * len(dims))
    assert (shape.m, shape.n, shape.k, shape.batch) == mnkb


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("aten::mm", [[64, 32], [31, 16]]),  # K differs
        ("aten::mm", [[64, 32]]),
        ("aten::mm", []),
        ("aten::mm", [[64, 32], []]),
        ("aten::mm", [[64, -32], [-32, 16]]),
        ("aten::mm", [[64, 32.0], [32.0, 16]]),
        ("aten::mm", [["64", "32"], ["32", "16"]]),
        ("aten::mm", [[True, 32], [32, 16]]),
        ("aten::mm", "[[64, 32], [32, 16]]"),
        ("aten::mm", [[[64, 32], [32, 16]]]),
        ("aten::bmm", [[8, 64, 32], [4, 32, 16]]),
        ("aten::bmm", [[64, 32], [32, 16]]),
        ("aten::addmm", [[64, 32], [32, 16]]),
        ("aten::matmul", [[64, 32], [32]]),  # a vector
        ("aten::matmul", [[1, 64, 32], [8, 32, 16]]),  # broadcasting: several readings
        ("aten::linear", [[4, 16, 32], [48, 31], []]),
        ("aten::_grouped_mm", [[4, 640, 32], [8, 32, 16], [8]]),
        ("aten::add", [[64, 32], [64, 32], []]),
        ("aten::einsum", [[], [[64, 32], [32, 16]], []]),
        ("aten::_scaled_dot_product_flash_attention", [[8, 12, 128, 64], [8, 12, 128, 32], [8, 12, 128, 64]]),
        ("aten::_scaled_dot_product_flash_attention", [[8, 12, 128, 64], [8, 5, 128, 64], [8, 5, 128, 64]]),
        ("aten::_scaled_dot_product_flash_attention", [[128, 12, 64]] * 3),
        ("aten::_flash_attention_backward", [[8, 128, 12, 64]] * 3),
    ],
)
def test_what_does_not_fit_is_none(op: str, dims: Any) -> None:
    assert shape_of(op, dims, [BF16] * 3, None, None) is None


@pytest.mark.parametrize(
    ("strides", "layout", "lda", "ldb"),
    [
        ([[32, 1], [16, 1]], "NN", 32, 16),
        ([[32, 1], [1, 32]], "TN", 32, 32),  # y = x W^T
        ([[1, 64], [16, 1]], "NT", 64, 16),  # the gradient of W
        ([[1, 64], [1, 32]], "TT", 64, 32),
        ([[768, 1], [1, 768]], "TN", 768, 768),  # slices of wider matrices
        ([[64, 2], [16, 1]], None, None, 16),  # no unit stride: torch copies first
        ([[0, 1], [16, 1]], None, None, 16),  # expanded
        ([[32, 1], []], None, 32, None),
        (None, None, None, None),
    ],
)
def test_layout_and_leading_dimensions(
    strides: list[list[int]] | None, layout: str | None, lda: int | None, ldb: int | None
) -> None:
    shape = gemm("aten::mm", [[64, 32], [32, 16]], [BF16, BF16], strides=strides)
    assert (shape.layout, shape.lda, shape.ldb, shape.ldc) == (layout, lda, ldb, None)


def test_out_operand_gives_type_and_leading_dimension() -> None:
    shape = gemm(
        "aten::mm", [[64, 32], [32, 16], [64, 16]], [BF16, BF16, FP32], strides=[[32, 1], [16, 1], [24, 1]]
    )
    assert (shape.dtype, shape.out_dtype, shape.ldc) == ("bf16", "fp32", 24)


def test_scaled_mm_as_recorded_on_an_h100() -> None:
    types = [E5M2, E4M3, FP32, FP32, "", "", "Scalar", "Scalar", BF16]
    shape = gemm(
        "aten::_scaled_mm",
        [[32768, 50304], [50304, 768], [], [], [], [], [], [], [32768, 768]],
        types,
        strides=[[50304, 1], [1, 50304], [], [], [], [], [], [], [768, 1]],
        concrete=["", "", "", "", "", "", "15", "False", ""],
    )
    assert shape == GemmShape(32768, 768, 50304, 1, "fp8", "bf16", "TN", 50304, 50304, 768)


def test_vllm_writes_the_result_of_eight_bits_into_its_first_operand() -> None:
    dims: list[list[int]] = [[1024, 6144], [1024, 2048], [2048, 6144], [1024, 1], [1], []]
    strides = [[6144, 1], [2048, 1], [1, 2048], [1, 1], [1], []]
    types = [BF16, E4M3, E4M3, FP32, FP32, ""]
    shape = gemm("_C::cutlass_scaled_mm", dims, types, strides=strides)
    assert shape == GemmShape(1024, 6144, 2048, 1, "fp8", "bf16", "TN", 2048, 2048, 6144)
    assert shape_of("_C::cutlass_scaled_mm", [[9, 9], *dims[1:]], types, None, None) is None


@pytest.mark.parametrize(
    ("op", "dims", "types", "concrete", "out_dtype"),
    [
        ("aten::_scaled_mm", [[64, 32], [32, 16]] + [[]] * 6, [E4M3] * 2, [""] * 6 + ["6", "False"], "fp32"),
        ("aten::_scaled_mm", [[64, 32], [32, 16]] + [[]] * 6, [E4M3] * 2, [""] * 8, "fp8"),
        ("aten::_scaled_mm", [[64, 32], [32, 16]] + [[]] * 6, [E4M3] * 2, None, None),
        ("aten::_scaled_mm_v2", [[64, 32], [32, 16]] + [[]] * 10, [E4M3] * 2, [""] * 9 + ["15"], "bf16"),
        ("aten::mm", [[64, 32], [32, 16], []], [BF16, BF16, "Scalar"], ["", "", "6"], "fp32"),
        ("aten::mm", [[64, 32], [32, 16]], [BF16, BF16], None, "bf16"),
        (
            "aten::addmm",
            [[16], [64, 32], [32, 16], [], [], []],
            [BF16] * 3,
            ["", "", "", "6", "1", "1"],
            "fp32",
        ),
        ("aten::addmm", [[16], [64, 32], [32, 16], [], []], [BF16] * 3, ["", "", "", "1", "1"], "bf16"),
        ("aten::_int_mm", [[64, 32], [32, 16]], ["signed char"] * 2, None, "int32"),
        ("aten::_grouped_mm", [[640, 32], [8, 32, 16], [8]], [BF16] * 2, None, "bf16"),
        ("aten::_scaled_grouped_mm", [[640, 32], [8, 32, 16]] + [[]] * 7, [E4M3] * 2, None, "bf16"),
    ],
)
def test_out_dtype(
    op: str, dims: list[Any], types: list[str], concrete: list[str] | None, out_dtype: str | None
) -> None:
    assert gemm(op, dims, types, concrete=concrete).out_dtype == out_dtype


def test_dtypes() -> None:
    def dtype(*types: str) -> str | None:
        return gemm("aten::mm", [[64, 32], [32, 16]], list(types)).dtype

    assert dtype(FP32, FP32) == "fp32"
    assert dtype("c10::Half", "c10::Half") == "fp16"
    assert dtype(E4M3, E5M2) == "fp8"
    assert dtype(BF16, FP32) is None
    assert dtype() is None
    assert shape_of("aten::mm", [[4, 4], [4, 4]], ["c10::complex<float>"] * 2, None, None) is None


def test_fp4_counts_two_elements_to_a_byte() -> None:
    shape = gemm("aten::_scaled_mm", [[64, 16], [16, 32]] + [[]] * 6, ["c10::Float4_e2m1fn_x2"] * 2)
    assert (shape.k, shape.dtype) == (32, "fp4")


def test_grouped_products() -> None:
    shape = gemm("aten::_grouped_mm", [[640, 32], [8, 32, 16], [8]], [BF16, BF16, "int"])
    assert (shape.groups, shape.grouped, flops(shape)) == (8, "m", 2 * 640 * 32 * 16)
    assert bytes_moved(shape) == 2 * (640 * 32 + 8 * 32 * 16 + 640 * 16)
    weight_gradient = gemm("aten::_grouped_mm", [[32, 640], [640, 16], [8]], [BF16, BF16, "int"])
    assert (weight_gradient.groups, weight_gradient.grouped) == (8, "k")
    assert bytes_moved(weight_gradient) == 2 * (32 * 640 + 640 * 16 + 8 * 32 * 16)


Q = [8, 12, 1024, 64]


@pytest.mark.parametrize(
    ("op", "dims", "concrete", "causal", "backward"),
    [
        ("aten::_scaled_dot_product_flash_attention", [Q, Q, Q, [], [], [], []],
         ["", "", "", "0.", "True", "False", ""], True, False),
        ("aten::_scaled_dot_product_efficient_attention", [Q, Q, Q, [], [], [], [], []],
         ["", "", "", "", "False", "0.", "True", ""], True, False),
        ("aten::_scaled_dot_product_cudnn_attention", [Q, Q, Q, [], [], [], [], [], []],
         ["", "", "", "", "True", "0.", "False", "False", ""], False, False),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", [Q, Q, Q, [], [], [], []],
         ["", "", "", "0.", "True", "", ""], True, False),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", [Q] * 5 + [[8, 12, 1024]] + [[]] * 4,
         [""] * 6 + ["0.", "True", "", ""], True, True),
        ("aten::_scaled_dot_product_flash_attention_backward", [Q] * 5 + [[]] * 10,
         [""] * 8 + ["1024", "1024", "0.", "True", "", "", ""], True, True),
        ("aten::_scaled_dot_product_efficient_attention_backward", [Q] * 4 + [[], Q] + [[]] * 7,
         [""] * 11 + ["False", ""], False, True),
        ("aten::_scaled_dot_product_cudnn_attention_backward", [Q] * 5 + [[]] * 11,
         [""] * 14 + ["True", ""], True, True),
        ("aten::scaled_dot_product_attention", [Q, Q, Q, [], [], [], [], []],
         ["", "", "", "", "0.", "True", "", "False"], True, False),
        ("aten::_scaled_dot_product_flash_attention", [Q, Q, Q], None, None, False),
    ],
)  # fmt: skip
def test_attention_with_heads_first(
    op: str, dims: list[Any], concrete: list[str] | None, causal: bool | None, backward: bool
) -> None:
    shape = attention(op, dims, [BF16] * 5, concrete)
    assert shape == AttentionShape(8, 12, 12, 1024, 1024, 64, 64, "bf16", causal, backward)


S = [8, 1024, 12, 64]


@pytest.mark.parametrize(
    ("op", "dims", "concrete", "causal", "backward"),
    [
        ("aten::_flash_attention_forward", [S, S, S] + [[]] * 12,
         [""] * 5 + ["1024", "1024", "0.", "True", "False", "0.125", "", "", "", ""], True, False),
        ("aten::_flash_attention_backward", [S] * 5 + [[8, 12, 1024]] + [[]] * 11,
         [""] * 8 + ["1024", "1024", "0.", "True"] + [""] * 5, True, True),
        ("aten::_efficient_attention_forward", [S, S, S] + [[]] * 11,
         [""] * 8 + ["0.", "1"] + [""] * 4, True, False),
        ("aten::_efficient_attention_backward", [S] * 4 + [[], S] + [[]] * 14,
         [""] * 14 + ["2", "False"], True, True),
        ("flash_attn::_flash_attn_forward", [S, S, S] + [[]] * 8,
         ["", "", "", "0.", "0.125", "True", "-1", "-1", "0.", "", "False"], True, False),
    ],
)  # fmt: skip
def test_attention_with_length_first(
    op: str, dims: list[Any], concrete: list[str], causal: bool | None, backward: bool
) -> None:
    shape = attention(op, dims, [BF16] * 5, concrete)
    assert shape == AttentionShape(8, 12, 12, 1024, 1024, 64, 64, "bf16", causal, backward)


def test_grouped_query_cross_and_value_dim() -> None:
    shape = attention(
        "aten::_scaled_dot_product_cudnn_attention",
        [[2, 32, 128, 192], [2, 8, 512, 192], [2, 8, 512, 128]],
        [BF16] * 3,
    )
    assert (shape.heads, shape.kv_heads, shape.query_len, shape.key_len) == (32, 8, 128, 512)
    assert (shape.head_dim, shape.value_dim) == (192, 128)
    assert shape.describe() == "b=2 h=32 kv=8 sq=128 sk=512 d=192 dv=128"
    assert flops(shape) == 2 * 2 * 32 * 128 * 512 * (192 + 128)
    assert bytes_moved(shape) == 2 * (2 * 128 * 32 * (192 + 128) + 2 * 512 * 8 * (192 + 128))


def test_packed_flash_attention_3_as_recorded_on_an_h100() -> None:
    t = [32768, 6, 128]
    concrete = (
        [""] * 12 + ["2048", "2048"] + [""] * 9 + ["0.1", "True", "128", "0", "0", "0.", "True"] + [""] * 4
    )
    shape = attention(
        "flash_attn_3::fwd", [t, t, t] + [[]] * 4 + [[128], [128]] + [[]] * 25, [BF16] * 3, concrete
    )
    assert shape.varlen and shape.causal is True and not shape.backward
    assert (shape.batch, shape.query_len, shape.query_tokens, shape.heads) == (None, None, 32768, 6)
    assert flops(shape) is None, "the lengths of packed sequences are in no trace"
    assert bytes_moved(shape) == 4 * 2 * 32768 * 6 * 128
    assert shape.describe() == "packed tokens=32768 h=6 kv=6 d=128"
    back = attention(
        "flash_attn_3::bwd",
        [t] * 5 + [[6, 32768]] + [[]] * 15,
        [BF16] * 5,
        [""] * 13 + ["2048", "2048", "0.1", "True", "384", "0", "0.", "False", "0"],
    )
    assert back.backward and back.causal is True and back.varlen


def test_packed_efficient_attention() -> None:
    one = [1, 4096, 12, 64]
    shape = attention("aten::_efficient_attention_forward", [one, one, one, [], [9], [9], [], []], [BF16] * 3)
    assert shape.varlen and flops(shape) is None and shape.query_tokens == 4096


def test_a_window_wider_than_the_keys_is_none() -> None:
    def window(left: str) -> tuple[int, int] | None:
        concrete = [""] * 5 + ["1024", "1024", "0.", "True", "False", "", left, "0"]
        return attention("aten::_flash_attention_forward", [S, S, S], [BF16] * 3, concrete).window

    assert window("256") == (256, 0)
    assert window("1024") is window("-1") is window("") is None


@pytest.mark.parametrize(
    ("mask", "strides", "found"),
    [
        ([], [], None),
        ([8, 12, 1024, 1024], [0, 0, 1024, 1], "mask"),
        ([8, 12, 1024, 1024], [0, 1048576, 1024, 1], "bias"),
        ([8, 12, 1024, 1024], None, "mask?"),
        ([1024, 1024], [1024, 1], "mask"),
    ],
)
def test_a_tensor_added_to_the_scores(mask: list[int], strides: list[int] | None, found: str | None) -> None:
    """Torch expands a mask to all heads before the memory-efficient kernel: its stride over heads is zero."""
    inputs = [None, None, None, strides] if strides is not None else None
    shape = shape_of("aten::_efficient_attention_forward", [S, S, S, mask], [BF16] * 4, inputs, [])
    assert isinstance(shape, AttentionShape) and shape.mask == found
    assert shape.describe() == "b=8 h=12 s=1024 d=64" + (f" {found}" if found else "")
    assert shape.dims.mask == found and shape.dims.heads_of_all == (12, 12, 64)


@pytest.mark.parametrize(("window", "query_len"), [((256, 0), 1024), ((100, 30), 1024), ((100, 0), 64)])
def test_scores_inside_a_window(window: tuple[int, int], query_len: int) -> None:
    shape = AttentionShape(1, 1, 1, query_len, 1024, 64, 64, "bf16", True, False, window=window)
    queries = np.arange(1024 - query_len, 1024)[:, None]
    seen = (np.arange(1024) >= queries - window[0]) & (np.arange(1024) <= queries + window[1])
    assert shape.pairs == seen.sum() and flops(shape) == 4 * 64 * seen.sum()


def test_operator_sets_do_not_overlap() -> None:
    assert not GEMM_OPS & ATTENTION_OPS and not GEMM_OPS & WRAPPERS and not ATTENTION_OPS & WRAPPERS
    assert {"aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_mm", "aten::_grouped_mm"} <= GEMM_OPS
    assert {"aten::linear", "aten::matmul", "aten::scaled_dot_product_attention"} <= WRAPPERS


scalars = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=6)
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=5), max_leaves=25)
arguments = st.lists(st.lists(st.integers(-1, 70), max_size=4) | junk, max_size=18) | junk
strings = (
    st.lists(st.sampled_from([BF16, FP32, E4M3, "", "Scalar", "6", "True", "-1"]) | junk, max_size=18) | junk
)


@given(st.sampled_from(sorted(GEMM_OPS | ATTENTION_OPS | WRAPPERS)), arguments, strings, arguments, strings)
def test_hostile_inputs_give_a_sound_shape_or_none(
    op: str, dims: Any, types: Any, strides: Any, concrete: Any
) -> None:
    shape = shape_of(op, dims, types, strides, concrete)
    if isinstance(shape, GemmShape):
        assert min(shape.m, shape.n, shape.k, shape.batch) >= 0
        assert shape.layout in {None, "NN", "NT", "TN", "TT"}
    if shape is not None:
        count, moved = flops(shape), bytes_moved(shape)
        assert (count is None or count >= 0) and (moved is None or moved >= 0)


@given(junk, junk)
def test_hostile_operator_names(op: Any, dims: Any) -> None:
    assert shape_of(op, dims, None, None, None) is None or op in WRAPPERS | GEMM_OPS


def test_the_step_between_matrices_of_a_batch_counts_for_alignment() -> None:
    """Heads of 64 inside a row of 3 * 12 * 50: each matrix begins where its stride says."""
    strides = [[50, 1800, 1], [1024 * 1800, 1, 1800]]
    found = shape_of("aten::bmm", [[12, 1024, 64], [12, 64, 1024]], ["c10::BFloat16"] * 2, strides, None)
    assert isinstance(found, GemmShape)
    assert (found.batch_stride_a, found.batch_stride_b) == (50, 1024 * 1800)
    assert alignment_bytes(found) == {"a": 4, "b": 16, "c": 128}
    single = shape_of("aten::mm", [[8, 8], [8, 8]], ["float"] * 2, [[8, 1], [8, 1]], None)
    assert isinstance(single, GemmShape) and single.batch_stride_a is None


def test_an_operand_expanded_over_the_batch_is_moved_once() -> None:
    shared = GemmShape(64, 64, 64, 10, "bf16", "bf16", "NN", lda=64, ldb=64, batch_stride_b=0)
    each = GemmShape(64, 64, 64, 10, "bf16", "bf16", "NN", lda=64, ldb=64, batch_stride_b=4096)
    moved = bytes_moved(each)
    assert moved is not None and bytes_moved(shared) == moved - 9 * 64 * 64 * 2
