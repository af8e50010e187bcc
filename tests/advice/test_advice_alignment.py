"""Which loads a kernel uses and which dimension keeps it from 16-byte ones."""

from __future__ import annotations

import pytest

from tests.advice.advice_rows import NVJET, SIMT, XMMA, bert_small_logits, cutlass, gemm
from tests.said import Listener
from tracelens.step.alignment import boundary_bytes, grid_elements, load_bytes, misfit_of, off_grid


@pytest.mark.parametrize(
    ("dtype", "grid"), [("bf16", 8), ("fp16", 8), ("fp32", 4), ("tf32", 4), ("fp8", 16), ("int8", 16)]
)
def test_the_grid_is_16_bytes_of_each_type(dtype: str, grid: int) -> None:
    assert grid_elements(dtype) == grid
    assert off_grid(gemm(1, 64, 10 * grid, 512, dtype=dtype, kernel="")) == ()
    assert off_grid(gemm(1, 64, 10 * grid + grid // 2, 512, dtype=dtype, kernel="")) == (
        ("n", 10 * grid + grid // 2),
    )


def test_rows_of_30522_elements_begin_on_4_byte_boundaries_in_bf16() -> None:
    assert boundary_bytes(30522, "bf16") == 4
    assert boundary_bytes(30522, "fp32") == 8
    assert boundary_bytes(30522, None) is None


def test_an_odd_number_of_tokens_is_harmless_as_rows_of_a_linear_layer() -> None:
    # AMD-AGI/TraceLens, H100: M = 25089 runs on the kernel that M = 25088 runs on.
    assert misfit_of(gemm(1, 25089, 3072, 768, kernel=XMMA)) is None
    assert misfit_of(gemm(1, 768, 3072, 25089, role="wgrad", layout="NT", kernel=XMMA)) is None
    assert misfit_of(gemm(1, 768, 3072, 25089, role="wgrad", layout=None, kernel="unnamed")) is None


def test_the_same_number_is_a_leading_dimension_of_the_score_matrix(said: Listener) -> None:
    scores = gemm(1, 3137, 3137, 64, batch=96, component="attention.scores", kernel=cutlass(1))
    values = gemm(
        2, 3137, 64, 3137, batch=96, component="attention.values", kernel=cutlass(1, layout="nn"), layout="NN"
    )
    for row, letter in ((scores, "n"), (values, "k")):
        misfit = misfit_of(row)
        assert misfit is not None and misfit.dims == ((letter, 3137),)
        said(misfit.kernel)


def test_an_unaligned_weight_shows_in_all_three_products() -> None:
    rows = [
        gemm(1, 4096, 10922, 4096, kernel="unnamed"),
        gemm(2, 4096, 4096, 10922, role="dgrad", layout="NN", kernel="unnamed"),
        gemm(3, 10922, 4096, 4096, role="wgrad", layout="NT", kernel="unnamed"),
    ]
    assert [off_grid(row) for row in rows] == [(("n", 10922),), (("k", 10922),), (("m", 10922),)]


def test_nothing_is_padded_of_a_product_with_a_vector() -> None:
    """epfml/DenseFormer modules/denseformer.py: a weighted sum of what three layers gave."""
    assert misfit_of(gemm(1, 1, 3145728, 3, kernel="unnamed")) is None
    assert misfit_of(gemm(1, 2, 3145728, 3, kernel="unnamed")) is not None


def test_a_kernel_that_loads_16_bytes_outweighs_an_odd_shape() -> None:
    for kernel in (NVJET, cutlass(8), "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"):
        row = gemm(1, 4096, 10922, 4096, kernel=kernel)
        assert load_bytes(row) == 16
        assert misfit_of(row) is None


@pytest.mark.parametrize(
    ("types", "dtype", "align", "loads"),
    [("bf16", "bf16", 4, 8), ("bf16", "bf16", 1, 2), ("f16", "fp16", 2, 4), ("tf32", "fp32", 2, 8)],
)
def test_alignment_in_a_kernel_name_counts_elements(types: str, dtype: str, align: int, loads: int) -> None:
    row = gemm(1, 4096, 4096, 4096, dtype=dtype, kernel=cutlass(align, types=types))
    assert load_bytes(row) == loads
    assert misfit_of(row) is not None


def test_align4_is_full_width_in_tf32() -> None:
    assert misfit_of(gemm(1, 4096, 4100, 4096, dtype="fp32", kernel=cutlass(4, types="tf32"))) is None


def test_padded_storage_is_on_the_grid_whatever_its_width() -> None:
    row = gemm(1, 4096, 10922, 4096, kernel="unnamed", alignment_bytes={"a": 128, "b": 128, "c": 128})
    assert off_grid(row) == ()


def test_fp32_on_cuda_cores_is_left_to_another_rule() -> None:
    assert (
        misfit_of(gemm(1, 141, 30523, 511, dtype="fp32", kernel=SIMT, tensor_core="eligible_unused")) is None
    )


def test_half_precision_on_cuda_cores_is_a_fallback(said: Listener) -> None:
    name = "void cutlass::Kernel2<cutlass_80_simt_hgemm_128x32_8x5_nn_align1>(P)"
    misfit = misfit_of(gemm(1, 512, 512, 512, dtype="fp16", kernel=name, tensor_core="eligible_unused"))
    assert misfit is not None and misfit.dims == ()
    said(misfit.kernel)


def test_products_with_a_vector_have_nothing_to_align() -> None:
    name = "std::enable_if<true>::type internal::gemvx::kernel<int, int, __nv_bfloat16>"
    assert misfit_of(gemm(1, 1, 401, 768, kernel=name, tensor_core="ineligible")) is None
    assert (
        misfit_of(gemm(1, 8, 401, 768, kernel="gemmSN_TN_kernel<float>", tensor_core="eligible_unused"))
        is None
    )


def test_the_bert_small_kernel_loads_4_bytes() -> None:
    assert load_bytes(bert_small_logits()) == 4
