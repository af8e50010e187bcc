"""What kernels carry in their templates, read off the headers that declare them."""

from __future__ import annotations

import pytest

from tracelens.gemm import parse_kernel_name

#: Every ``*gemm*`` template in the history of deepseek-ai/DeepGEMM's deep_gemm/include/deep_gemm: parameters
#: before BLOCK_M, those between BLOCK_K and the stages, and those after the stages.
_DEEP_GEMM = [
    ("fp8_gemm_kernel", 2, 1, 4),  # 2025-02-25
    ("fp8_gemm_kernel", 2, 2, 5),
    ("fp8_gemm_kernel", 2, 3, 5),
    ("fp8_wgrad_gemm_kernel", 2, 0, 5),
    ("sm90_bf16_gemm_impl", 4, 1, 7),
    ("sm90_bf16_gemm_impl", 4, 1, 8),
    ("sm90_bf16_gemm_impl", 6, 3, 8),
    ("sm90_fp8_gemm_1d1d_impl", 4, 0, 7),
    ("sm90_fp8_gemm_1d1d_impl", 4, 2, 7),
    ("sm90_fp8_gemm_1d2d_impl", 4, 1, 6),
    ("sm90_fp8_gemm_1d2d_impl", 4, 1, 7),
    ("sm90_fp8_gemm_1d2d_impl", 4, 1, 8),
    ("sm90_fp8_gemm_1d2d_impl", 5, 3, 7),
    ("sm90_fp8_gemm_1d2d_impl", 5, 3, 8),
    ("sm90_tf32_hc_prenorm_gemm_impl", 2, 2, 2),
    ("sm100_bf16_gemm_impl", 5, 4, 9),
    ("sm100_bf16_gemm_impl", 5, 4, 10),
    ("sm100_bf16_gemm_impl", 5, 4, 12),
    ("sm100_fp8_gemm_1d1d_impl", 5, 4, 8),
    ("sm100_fp8_gemm_1d1d_impl", 5, 4, 9),
    ("sm100_fp8_gemm_1d1d_impl", 7, 4, 11),
    ("sm100_fp8_gemm_1d2d_impl", 5, 4, 7),
    ("sm100_fp8_gemm_1d2d_impl", 5, 4, 8),
    ("sm100_fp8_gemm_1d2d_impl", 5, 4, 9),
    ("sm100_fp8_fp4_gemm_1d1d_impl", 7, 4, 12),
    ("sm100_fp8_fp4_gemm_1d1d_impl", 8, 4, 13),  # 2026-06-23
    ("sm100_tf32_hc_prenorm_gemm_impl", 2, 2, 2),
]


@pytest.mark.parametrize(("name", "before", "between", "after"), _DEEP_GEMM)
def test_deep_gemm_keeps_its_tile_and_stages_where_its_headers_say(
    name: str, before: int, between: int, after: int
) -> None:
    others = iter(range(1001, 1100))
    words = [*(next(others) for _ in range(before)), 64, 96, 128, *(next(others) for _ in range(between)), 6]
    words += [next(others) for _ in range(after)]
    found = parse_kernel_name(f"void deep_gemm::{name}<{', '.join(f'{word}u' for word in words)}>(int*)")
    assert found is not None
    assert (found.tile_m, found.tile_n, found.tile_k, found.stages) == (64, 96, 128, 6)
    assert found.scheduler == (None if "hc_prenorm" in name else "persistent")
    more = parse_kernel_name(
        f"void deep_gemm::{name}<{', '.join(f'{word}u' for word in [*words, *[1] * 9])}>(int*)"
    )
    assert more is not None and (more.tile, more.stages, more.scheduler) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "elements", "dtype"),
    [
        ("sm90_fp8_gemm_1d1d_impl", (), "fp8"),
        ("sm90_bf16_gemm_impl", (), "bf16"),
        ("sm90_tf32_hc_prenorm_gemm_impl", (), None),
        ("sm100_fp8_fp4_gemm_1d1d_impl", ("cutlass::float_e4m3_t", "cutlass::float_e4m3_t"), "fp8"),
        ("sm100_fp8_fp4_gemm_1d1d_impl", ("cutlass::float_e4m3_t", "cutlass::float_e2m1_t"), None),
        ("sm100_fp8_fp4_gemm_1d1d_impl", (), None),
    ],
)
def test_deep_gemm_s_operands(name: str, elements: tuple[str, ...], dtype: str | None) -> None:
    found = parse_kernel_name(f"void deep_gemm::{name}<{', '.join(['1u', *elements])}>(int*)")
    assert found is not None and found.tensor_core is True
    assert (found.in_dtype, found.math_dtype) == (dtype, dtype)
