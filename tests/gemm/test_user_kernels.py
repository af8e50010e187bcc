"""Muon's Triton kernels: shapes from their operators' dims, FLOPs of one triangle."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.gemm import GemmShape, bytes_moved, flops, is_gemm_op, shape_of

torch = pytest.importorskip("torch")
BF16 = "c10::BFloat16"


def read(op: str, dims: list[Any], strides: list[Any] | None = None) -> GemmShape | None:
    shape = shape_of(op, dims, [BF16] * 2 + ["Scalar"] * (len(dims) - 2), strides, None)
    assert shape is None or isinstance(shape, GemmShape)
    return shape


@pytest.mark.parametrize(
    ("op", "dims", "mnkb"),
    [
        ("XXT_kernel_0", [[8, 768, 3072], [8, 768, 768], *[[]] * 8], (768, 768, 3072, 8)),
        ("XXT_kernel", [[768, 3072], [768, 768], [], []], (768, 768, 3072, 1)),
        ("XTX_kernel_0", [[8, 3072, 768], [8, 768, 768], []], (768, 768, 3072, 8)),
        ("ba_plus_cAA_kernel_3", [[8, 768, 768], [8, 768, 768], *[[]] * 9], (768, 768, 768, 8)),
    ],
)
def test_shapes(op: str, dims: list[Any], mnkb: tuple[int, int, int, int]) -> None:
    shape = read(op, dims)
    assert shape is not None and shape.symmetric
    assert (shape.m, shape.n, shape.k, shape.batch) == mnkb
    assert (shape.dtype, shape.out_dtype) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("XXT_kernel_0", [[8, 768, 3072], [8, 3072, 3072]]),  # not the output of X X^T
        ("XXT_kernel_0", [[8, 768, 3072], [4, 768, 768]]),
        ("XXT_kernel_0", [[8, 768, 3072], [768, 768]]),
        ("ba_plus_cAA_kernel_1", [[8, 768, 3072], [8, 768, 768]]),  # A must be square
        ("XXT_kernel_0", [[768], [768]]),
        ("XXT_kernel_0", []),
        ("XXT_kernel_of_another_0", [[8, 768, 3072], [8, 768, 768]]),
    ],
)
def test_other_dims_have_no_shape(op: str, dims: list[Any]) -> None:
    assert read(op, dims) is None


def test_strides_give_the_layout_of_the_one_operand() -> None:
    rows = read("XXT_kernel_0", [[2, 6, 12], [2, 6, 6]], [[72, 12, 1], [36, 6, 1]])
    assert rows is not None
    assert (rows.layout, rows.lda, rows.ldb, rows.ldc) == ("TN", 12, 12, 6)
    columns = read("XTX_kernel_0", [[2, 12, 6], [2, 6, 6]], [[72, 6, 1], [36, 6, 1]])
    assert columns is not None
    assert (columns.layout, columns.lda, columns.ldb, columns.ldc) == ("NT", 6, 6, 6)


def test_flops_are_those_of_a_triangle_with_its_diagonal() -> None:
    """Counted here by hand: a multiplication and an addition for each k, for each pair row >= column."""
    size, k, batch = 5, 7, 3
    shape = read("XXT_kernel_0", [[batch, size, k], [batch, size, size]])
    assert shape is not None
    pairs = int(torch.ones(size, size).tril().sum())
    assert flops(shape) == 2 * pairs * k * batch
    full = GemmShape(size, size, k, batch, "bf16", "bf16", None)
    whole = flops(full)
    assert whole is not None and whole / 2 < 2 * pairs * k * batch < whole


def test_the_operand_crosses_memory_once() -> None:
    shape = read("XXT_kernel_0", [[8, 768, 3072], [8, 768, 768]])
    assert shape is not None
    assert bytes_moved(shape) == 8 * 2 * (768 * 3072 + 768 * 768)


def test_they_count_as_products() -> None:
    assert is_gemm_op("XXT_kernel_0") and is_gemm_op("aten::mm") and not is_gemm_op("aten::add")
