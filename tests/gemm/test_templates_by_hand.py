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
    last = words[before - 2 if name.startswith("sm90_") else before - 1]  # K, but of sm90's before kNumGroups
    wide = (last - 1, last, None) if "wgrad" in name else (last - 2 if before > 2 else None, last - 1, last)
    assert found.sizes == (None if "hc_prenorm" in name else wide)
    more = parse_kernel_name(
        f"void deep_gemm::{name}<{', '.join(f'{word}u' for word in [*words, *[1] * 9])}>(int*)"
    )
    assert more is not None and (more.tile, more.stages, more.scheduler) == (None, None, None)


@pytest.mark.parametrize(("eighth", "tile"), [(128, (64, 160)), (6, None)])  # kNumTMAThreads, or the stages
def test_deep_gemm_s_twelve_words_are_told_apart(eighth: int, tile: tuple[int, int] | None) -> None:
    words = f"4096u, 7168u, 64u, 160u, 128u, 32u, 4u, {eighth}u, 128u, 1u, true, (deep_gemm::GemmType)2"
    found = parse_kernel_name(f"void deep_gemm::fp8_gemm_kernel<{words}>(int*)")
    assert found is not None and found.tile == tile
    assert found.sizes == (tile and (None, 4096, 7168))


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


#: M, N and K of the tile in torch's order, stages, cluster and layout; operands, output and multiplier.
_READ = [
    ("nvjet_tqtst_128x256_64x4_2x1_v_bz_TNN", (256, 128, 64), 4, "2x1", "TN", (None, "bf16", None)),
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_newword_TNN", (256, 128, 64), 4, "2x1", "TN",
     ("bf16", "bf16", "bf16")),
    ("nvjet_sm120_tst_mma_128x64x64_3_64x32x64_tmaAB_bz_TNNN", (None, None, 64), 3, None, "TN",
     ("bf16", "bf16", "bf16")),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x128x64_cgasize1x2x1_stage4_tensor16x8x16_kernel",
     (64, 128, 64), 4, "1x2", "TN", ("fp8", "bf16", "fp8")),
    ("sm100_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x64_stage4_kernel", (None, None, 64), 4, None,
     "TN", ("bf16", "bf16", None)),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P)", (32, 128, 8), 5, None, "NN",
     ("fp32", "fp32", "fp32")),
    ("void cutlass::Kernel2<cutlass_75_tensorop_s1688gemm_256x128_16x3_tn_align4>(P)", (128, 256, 16), 3,
     None, "TN", ("fp32", "fp32", "tf32")),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x128_32x6_nt_align2>(P)", (128, 64, 32), 6,
     None, "NT", ("bf16", "fp32", "bf16")),
    ("cutlass3x_sm90_tensorop_gemm_e4m3_e5m2_f32_bf16_bf16_128x64x128_1x2x1_5_tnt_align16_stream_k",
     (128, 64, 128), 5, "1x2", "TN", ("fp8", "bf16", "fp8")),
    ("cutlass3x_sm100a_tensorop_gemm_bf16_bf16_f32_bf16_bf16_256x64x64_2x1x1_3_ntn_align8_2sm", (64, 128, 64),
     3, "2x1", "NT", ("bf16", "bf16", "bf16")),
    ("turing_s1688gemm_fp16_128x64_ldg8_nn", (64, 128, None), None, None, "NN", ("fp16", "fp32", "fp16")),
    ("turing_h1688gemm_128x64_ldg8_tn", (64, 128, None), None, None, "TN", ("fp16", "fp16", "fp16")),
    ("volta_s884gemm_128x64_ldg8_tn", (64, 128, None), None, None, "TN", (None, "fp32", None)),
    ("ampere_s1688gemm_tf32_128x64_ldg4_stages_32x3_nn", (64, 128, 32), 3, None, "NN",
     ("fp32", "fp32", "tf32")),
    ("bmm_Bfloat16_E4m3E4m3_Fp32_t128x64x256_s6_s3_et64x16_m64x16x32_cga2x1x1_16dp256b_rM_TN_noShflA_sm100f",
     (128, 64, 256), None, "2x1", None, (None, None, None)),
    ("Cijk_Ailk_Bjlk_HHS_BH_MT64x32x16_SE", (None, None, 16), None, None, "NT", ("fp16", None, None)),
    ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const> >",
     (None, None, None), None, None, "TN", ("fp32", None, "fp32")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tile", "stages", "cluster", "layout", "dtypes"), _READ)
def test_names_by_the_grammar_that_their_readers_cite(
    name: str,
    tile: tuple[int | None, ...],
    stages: int | None,
    cluster: str | None,
    layout: str | None,
    dtypes: tuple[str | None, ...],
) -> None:
    found = parse_kernel_name(name)
    assert found is not None and (found.tile_m, found.tile_n, found.tile_k) == tile
    assert (found.stages, found.cluster, found.layout) == (stages, cluster, layout)
    assert (found.in_dtype, found.out_dtype, found.math_dtype) == dtypes
