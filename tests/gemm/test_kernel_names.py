"""Kernel names: every family is recognised, tiles come out in torch's orientation, lookalikes are refused."""

from __future__ import annotations

import dataclasses

import pytest

from tracelens.gemm import KernelName, parse_kernel_name, split_k_factor
from tracelens.gemm.kernel_names import row_fields


def parsed(name: str) -> KernelName:
    kernel = parse_kernel_name(name)
    assert kernel is not None, name
    return kernel


def stated(name: str) -> dict[str, object]:
    """Every field the name states, without the name itself."""
    fields = dataclasses.asdict(parsed(name))
    return {key: value for key, value in fields.items() if value is not None and key != "name"}


def test_nvjet() -> None:
    assert stated("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN") == {
        "kind": "gemm",
        "family": "nvjet",
        "tile_m": 128,
        "tile_n": 144,
        "tile_k": 64,
        "tile_pair": (144, 128),
        "stages": 6,
        "cluster": "2x1",
        "split_k": False,
        "layout": "TN",
        "tensor_core": True,
        "in_dtype": "bf16",
        "out_dtype": "bf16",
        "math_dtype": "bf16",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_splitK_NTN",
            {"split_k": True, "scheduler": "persistent", "layout": "NT"},
        ),
        ("nvjet_sm103_tst_128x16_64x12_2x1_2cta_v_bz_TNT", {"tile_m": 16, "tile_n": 128, "scheduler": None}),
        (
            "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT",
            {"tile_n": 320, "cluster": "1x2", "scheduler": "persistent"},
        ),
        ("nvjet_tst_192x192_64x3_2x1_v_bx_coopB_NNN", {"layout": "NN", "tile_m": 192}),
        ("nvjet_tss_128x256_64x4_2x1_v_badd_coopA_NTN", {"in_dtype": "bf16", "out_dtype": "fp32"}),
        ("nvjet_hsh_64x8_64x16_1x1_v_bz_splitK_NNT", {"in_dtype": "fp16", "out_dtype": "fp16", "tile_m": 8}),
        ("nvjet_qqtst_192x192_128x4_2x1_v_bz_coopB_TNN", {"in_dtype": "fp8", "out_dtype": "bf16"}),
        ("nvjet_qrtst_128x160_128x5_1x2_h_bz_coopA_algo2_TNT", {"in_dtype": "fp8", "out_dtype": "bf16"}),
        ("nvjet_rqsss_144x128_128x6_1x2_h_bz_coopA_algo2_TNN", {"in_dtype": "fp8", "out_dtype": "fp32"}),
        ("nvjet_tst_128x192_64x6_4x1f_2cta_v_badd_NTT", {"cluster": "4x1", "layout": "NT"}),
        ("nvjet_sm90_sss_128x128_32x4_2x1_v_bz_coopA_TNT", {"in_dtype": "fp32", "math_dtype": "tf32"}),
        ("nvjet_sss_128x128_32x4_2x1_v_bz_TNT", {"in_dtype": "fp32", "math_dtype": None}),
        ("nvjet_some_future_name", {"family": "nvjet", "tile_m": None, "layout": None}),
        (
            (
                "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna"
                "4_alignc4"
                "_execute_kernel__5x_cublas"
            ),
            {
                "family": "sm80_xmma",
                "tile_m": 256,
                "tile_n": 128,
                "tile_k": 8,
                "stages": 3,
                "tensor_core": False,
                "in_dtype": "fp32",
                "math_dtype": "fp32",
                "layout": "NN",
                "split_k": None,
            },
        ),
        (
            (
                "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8"
                "x16_kernel"
            ),
            {"family": "sm80_xmma", "tensor_core": True, "in_dtype": "fp16", "math_dtype": "fp16"},
        ),
        (
            (
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x64_warpgroupsize2x1x1_execute_s"
                "egment_k_off"
                "_kernel__5x_cublas"
            ),
            {
                "family": "sm90_xmma",
                "tile_m": 256,
                "tile_n": 128,
                "tile_pair": (256, 128),
                "tile_k": 64,
                "split_k": False,
                "scheduler": "persistent",
                "tensor_core": True,
            },
        ),
        (
            (
                "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_seg"
                "ment_k_off_kernel"
            ),
            {"tile_m": 128, "tile_n": 128, "in_dtype": "fp32", "math_dtype": "tf32"},
        ),
        (
            "sm100_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cgasize2x1x1_stage4_kernel",
            {"family": "sm100_xmma", "cluster": "2x1"},
        ),
        (
            (
                "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>"
                "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8::Params)"
            ),
            {
                "family": "cutlass2",
                "tile_m": 64,
                "tile_n": 128,
                "tile_k": 64,
                "stages": 6,
                "layout": "TN",
                "alignment_elements": 8,
                "tensor_core": True,
                "in_dtype": "bf16",
                "out_dtype": "bf16",
            },
        ),
        (
            "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_tn_align1>(...)",
            {"tile_m": 128, "tile_n": 256, "tile_k": None, "alignment_elements": 1},
        ),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(...)",
            {"in_dtype": "fp32", "math_dtype": "tf32", "alignment_elements": 4},
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(...)",
            {"tensor_core": False, "in_dtype": "fp32", "math_dtype": "fp32", "tile_m": 256, "tile_n": 128},
        ),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_64x1_nn_align2>(...)",
            {"tensor_core": True, "in_dtype": "fp16", "tile_k": 64},
        ),
        (
            "_ZN7cutlass7Kernel2I52cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4EEvNT_6ParamsE",
            {"family": "cutlass2", "tile_m": 256, "tile_n": 128, "alignment_elements": 4},
        ),
        (
            "cutlass3x_sm90_tensorop_gemm_f16_f16_f32_f16_f32_128x256x64_2x1x1_0_ntn_align8",
            {
                "family": "cutlass3",
                "tile_m": 256,
                "tile_n": 128,
                "cluster": "2x1",
                "layout": "NT",
                "stages": None,
                "in_dtype": "fp16",
                "out_dtype": "fp32",
                "math_dtype": "fp16",
            },
        ),
        (
            "cutlass3x_sm90_tensorop_gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_ttt_align8_stream_k",
            {"family": "cutlass3", "tile_m": 128, "tile_n": 256, "layout": "NN", "scheduler": "stream_k"},
        ),
        (
            "cutlass3x_sm100_tensorop_gemm_bf16_bf16_f32_bf16_bf16_256x192x64_2x1x1_0_tnt_align8_2sm",
            {"tile_m": 128, "tile_n": 192, "layout": "TN", "scheduler": None},  # two SMs, half of M each
        ),
        (
            "cutlass3x_sm90_tensorop_gemm_bf16_bf16_f32_bf16_bf16_256x192x64_2x1x1_0_ntt_align8",
            {"tile_m": 256, "tile_n": 192, "layout": "NT"},
        ),
        (
            (
                "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, i"
                "nt, int>, ..."
            ),
            {"family": "cutlass3", "tile_pair": None},
        ),
        (
            "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
            {"family": "legacy", "tile_m": 256, "tile_n": 128, "tile_k": 64, "stages": 3, "in_dtype": "bf16"},
        ),
        (
            "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_relu_f2f_stages_64x6_tn",
            {"tile_m": 64, "stages": 6},
        ),
        ("ampere_sgemm_128x64_nn", {"tensor_core": False, "tile_m": 64, "tile_n": 128, "math_dtype": "fp32"}),
        ("ampere_fp16_sgemm_fp16_32x128_nn", {"tensor_core": False, "in_dtype": "fp16", "tile_m": 128}),
        (
            "volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn",
            {"tensor_core": True, "in_dtype": "fp16", "tile_n": 256},
        ),
        ("volta_h884gemm_256x64_ldg8_tn", {"tensor_core": True, "in_dtype": "fp16"}),
        ("volta_sgemm_32x32_sliced1x4_tn", {"tensor_core": False, "tile_m": 32, "layout": "TN"}),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nt", {"tile_k": 32, "layout": "NT"}),
        (
            "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, ...",
            {"family": "gemmsn", "layout": "TN", "tensor_core": False},
        ),
        ("void gemmk1_kernel<int, float, 256, 5, false, ...", {"family": "gemmk1", "tensor_core": False}),
        ("void gemv2T_kernel_val<int, int, __half, ...", {"family": "gemv", "tensor_core": False}),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __half, ...",
            {"family": "gemv"},
        ),
        (
            (
                "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<__nv_bfloa"
                "t16 const>, ..."
            ),
            {"family": "cublas_dot"},
        ),
        (
            "void magma_sgemmEx_kernel<float, float, float, true, false, 6, 4, 6, 3, 4>(...)",
            {"family": "magma", "in_dtype": "fp32"},
        ),
        ("triton_tem_fused_mm_2", {"family": "triton_template", "tile_pair": None, "tensor_core": None}),
        ("triton_tem_fused_addmm_native_layer_norm_5", {"family": "triton_template"}),
        ("triton_tem_fused__scaled_mm_view_1", {"family": "triton_template"}),
        (
            (
                "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 7168u, 1u, 128u"
                ", 160u, 128u, 128u, 128u, 64u, 5u, 128u, 256u, 2u, true, 132u, (deep_gemm::GemmType)0"
                ", cutlass::bfloat16_t, deep_gemm::EpilogueIdentity>(float*, int*)"
            ),
            {"family": "deepgemm", "tile_m": 128, "tile_n": 160, "tile_k": 128, "in_dtype": "fp8"},
        ),
        (
            "void deep_gemm::sm90_bf16_gemm_impl<(cute::UMMA::Major)0, 64u, 64u>",
            {"family": "deepgemm", "tile_pair": None},
        ),
        (
            (
                "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm10<cutlass::gemm::k"
                "ernel::GemmUniversal"
                "<cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, ..."
            ),
            {"family": "grouped", "tensor_core": True},
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x96x128_MI16x16x1_SN_LDSB1",
            {
                "family": "tensile",
                "layout": "TN",
                "tile_m": None,
                "tile_pair": (128, 96),
                "tensor_core": True,
                "in_dtype": "bf16",
            },
        ),
    ],
)
def test_gemm_families(name: str, expected: dict[str, object]) -> None:
    kernel = parsed(name)
    assert kernel.kind == "gemm"
    assert {field: getattr(kernel, field) for field in expected} == expected


@pytest.mark.parametrize(
    ("name", "family", "direction", "tile", "head_dim"),
    [
        (
            (
                "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128"
                ", 4, false, false,"
                " cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloa"
                "t16_t> >, false>"
            ),
            "flash2",
            "forward",
            (128, 128),
            64,
        ),
        (
            (
                "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bw"
                "d_kernel_traits<128,"
                " 64, 128, 8, 2, 4, 2, false, false, cutlass::half_t>, false>"
            ),
            "flash2",
            "backward",
            (64, 128),
            128,
        ),
        (
            (
                "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::C"
                "ollectiveMainloopFwdSm90"
                "<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<128>, cute::C<"
                "176>, cute::C<128> >,"
                " 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, false>"
            ),
            "flash3",
            "forward",
            (128, 176),
            128,
        ),
        (
            (
                "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<flash::C"
                "ollectiveMainloopBwdSm90"
                "<2, 2, 2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cut"
                "e::C<128>, cute::C<128> >,"
                " cutlass::bfloat16_t, float>"
            ),
            "flash3",
            "backward",
            (64, 128),
            128,
        ),
        (
            (
                "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2, cute::tu"
                "ple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<cute::C<64>, cute::C<128>, cute::C<"
                "192> >, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true> > >(P)"
            ),
            "flash3",
            "backward",
            (64, 128),
            192,
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
            "cudnn_sdpa",
            "forward",
            None,
            128,
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x128x128_1x1x1_kernel0_0",
            "cudnn_sdpa",
            "backward",
            None,
            128,
        ),
        (
            (
                "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlas"
                "s::bfloat16_t>::Params)"
            ),
            "mem_efficient",
            "forward",
            (64, 128),
            None,
        ),
        (
            (
                "fmha_cutlassB_f32_aligned_64x64_k64_dropout_sm80(PyTorchMemEffAttention::AttentionBackwa"
                "rdKernel<float>::Params)"
            ),
            "mem_efficient",
            "backward",
            (64, 64),
            None,
        ),
        ("triton_tem_fused_flex_attention_1", "flex", "forward", None, None),
        ("triton_tem_fused_flex_attention_backward_4", "flex", "backward", None, None),
        (
            "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
            "trtllm_fmha",
            "forward",
            None,
            None,
        ),
        ("attn_fwd", "aotriton", "forward", None, None),
        ("aiter::fmha_fwd_hd128_bf16_rtz", "aiter", "forward", None, None),
    ],
)
def test_attention_families(
    name: str, family: str, direction: str, tile: tuple[int, int] | None, head_dim: int | None
) -> None:
    kernel = parsed(name)
    assert (kernel.kind, kernel.family, kernel.direction) == ("attention", family, direction)
    assert (kernel.tile, kernel.head_dim) == (tile, head_dim)


@pytest.mark.parametrize(
    ("name", "kind", "family"),
    [
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, ...", "gemm_helper", "splitk_reduce"),
        (
            "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0EfffLb1ELb1ELb0EEEv",
            "gemm_helper",
            "splitk_reduce",
        ),
        (
            (
                "void epilogue::impl::globalKernel<float, float, float, true, true>(int, int, long, float"
                "*, cublasLtEpilogue_t, ..."
            ),
            "gemm_helper",
            "cublas_epilogue",
        ),
        ("Cijk_SB_BiasS_HAS_ScaleAlphaVec_PostGSU8_VW4", "gemm_helper", "splitk_reduce"),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16, ...", "attention", "vllm"),
        ("void paged_attention_ll4mi_reduce_kernel<__hip_bfloat16, ...", "attention_helper", "vllm"),
        ("void vllm::paged_attention_v2_reduce_kernel<...", "attention_helper", "vllm"),
        (
            "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<float>, ...",
            "gemm_helper",
            "cublas_dot",
        ),
        (
            "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t, ...",
            "gemm_helper",
            "grouped",
        ),
        (
            "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<...",
            "attention_helper",
            "flash3",
        ),
        (
            "void cutlass::device_kernel<flash::FlashAttnBwdPostprocessConvertdQ<cute::tuple<...",
            "attention_helper",
            "flash3",
        ),
        (
            "void flash::prepare_varlen_num_blocks_kernel<8, false>(int, int, ...",
            "attention_helper",
            "flash3",
        ),
        ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, ...", "attention_helper", "flash2"),
        ("void pytorch_flash::flash_bwd_convert_dq_kernel<...", "attention_helper", "flash2"),
        (
            "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, ...",
            "attention_helper",
            "flash2",
        ),
    ],
)
def test_helpers_are_told_from_the_kernels_they_help(name: str, kind: str, family: str) -> None:
    kernel = parsed(name)
    assert (kernel.kind, kernel.family, kernel.tensor_core) == (kind, family, None)


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_addmm_gelu_view_17",
        "triton_per_fused_add_addmm_native_dropout_native_layer_norm_view_8",
        "triton_red_fused__log_softmax__log_softmax_backward_data_div_mm_backward_mul_0",
        "triton_poi_fused__scaled_mm__to_copy_clone_div_lift_fresh_permute_0",
        "triton_poi_fused__scaled_dot_product_flash_attention_5",
        "triton_per_fused__flash_attn_backward__unsafe_view_mul_sigmoid_sum_view_10",
        "triton__0d1d2de",
        "triton_tem_fused_convolution_0_0d1d2d",
        "triton_tem_fused_mul_9",  # a template, but of what?
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>(float*, ...",
        (
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage"
            "4_kernel_cudnn"
        ),
        (
            "sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32"
            "_warpgroupsize1x1x1"
        ),
        (
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_3"
            "2x4_nhwc_align8>(...)"
        ),
        (
            "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(i"
            "nt, int, int, ..."
        ),
        "volta_scudnn_128x64_stridedB_splitK_interior_nn_v1",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, ...",
        "create_flashinfer_kv_indices_triton",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "XXT_kernel_of_someone_else",
        "Memcpy DtoD (Device -> Device)",
        "",
    ],
)
def test_not_a_gemm(name: str) -> None:
    assert parse_kernel_name(name) is None


@pytest.mark.parametrize(
    ("name", "grid", "batch", "factor"),
    [
        ("ampere_sgemm_128x64_nn", (4, 16, 3), 1, 3),
        ("ampere_sgemm_128x64_nn", (4, 16, 96), 96, 1),  # z counts the batch
        ("ampere_sgemm_128x64_nn", (4, 16, 3), 96, None),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8", (8, 2, 5), 1, 5),
        ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN", (2, 66, 1), 1, 1),
        ("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_splitK_NTN", (2, 64, 1), 1, None),
        ("ampere_sgemm_128x64_nn", None, 1, None),
        ("ampere_sgemm_128x64_nn", (4, 16, 1), 1, 1),
        ("ampere_sgemm_128x64_nn", (4, 16, 0), 1, None),  # no launch has such a grid
        ("ampere_sgemm_128x64_nn", (4, 16, 2), 2, 1),
        ("triton_tem_fused_mm_2", (64, 1, 1), 1, None),
    ],
)
def test_split_k_factor(name: str, grid: tuple[int, int, int] | None, batch: int, factor: int | None) -> None:
    assert split_k_factor(parsed(name), grid=grid, batch=batch) == factor


@pytest.mark.parametrize(
    ("name", "kind", "family"),
    [
        # Inductor's templates: fused in a graph, and by the template's name while they are tuned
        ("triton_tem_fused_mm_5", "gemm", "triton_template"),
        ("triton_tem_fused_addmm_relu_3", "gemm", "triton_template"),
        ("triton_tem_fused_bmm", "gemm", "triton_template"),
        ("triton_tem_fused__scaled_mm_7", "gemm", "triton_template"),
        ("triton_mm", "gemm", "triton_template"),
        ("triton_mm_12", "gemm", "triton_template"),
        ("triton_mm_persistent_tma", "gemm", "triton_template"),
        ("triton_scaled_grouped_mm_0", "gemm", "triton_template"),
        ("triton_tem_fused_flex_attention_0", "attention", "flex"),
        ("triton_tem_fused__to_copy_flex_attention_backward_zeros_1", "attention", "flex"),
        ("triton_flex_attention", "attention", "flex"),
        ("triton_flex_decoding_2", "attention", "flex"),
        ("_attn_fwd", "attention", "triton_attention"),
        ("_attn_bwd_preprocess", "attention_helper", "triton_attention"),
        # users' own
        ("XXT_kernel", "gemm", "triton_symmetric"),
        ("ba_plus_cAA_kernel", "gemm", "triton_symmetric"),
        ("matmul_kernel", "gemm", "triton_user"),
        ("scaled_matmul_kernel_with_block_pointers_0d1d2de", "gemm", "triton_user"),
        ("_p_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x128", "gemm", "triton_user"),
        ("_w8a8_block_fp8_matmul", "gemm", "triton_user"),
        ("linear_relu_square_kernel", "gemm", "triton_user"),
        ("_grouped_gemm_backward_dX_kernel", "gemm", "triton_grouped"),
        ("fused_moe_kernel_gptq_awq", "gemm", "triton_moe"),
        # weights of 4 or 8 bits
        ("void marlin::Marlin<__nv_bfloat16, 256, 1, 8, 8, true>(int4 const*)", "gemm", "marlin"),
        ("void marlin_moe_wna16::Marlin<__half, 256, 4, 16>(int4 const*)", "gemm", "marlin"),
        ("void Marlin<256, 1, 8, 8, 4, 8>(int4 const*, int4 const*)", "gemm", "marlin"),
        ("void vllm::gptq::gemm_half_q_half_gptq_4bit_kernel<true, 8>(half const*)", "gemm", "quantized"),
        # block-scaled and grouped
        ("cutlass3x_sm100_bstensorop_s128x256x64gemm_block_scaled_ue8m0xe4m3", "gemm", "cutlass3"),
        ("void deep_gemm::sm100_fp8_gemm_1d1d_impl<0, 0, 4096u, 7168u>(int*)", "gemm", "deepgemm"),
        (
            "void cutlass::device_kernel<GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(P)",
            "gemm",
            "grouped",
        ),
        (
            "void fused_moe::run_global<fused_moe::Fused_Moe_Kernel_sm80<T, T, T, 32, 128, 64, 2> >(P)",
            "gemm",
            "grouped",
        ),
        (
            "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(P)",
            "gemm",
            "cutlass3",
        ),
        # attention of NVIDIA's libraries
        ("cudnn_generated_fort_native_sdpa_sm100_flash_bprop_f16_knob_31", "attention", "cudnn_sdpa"),
        ("fmha_dgrad_fp16_512_64_sm80_kernel", "attention", "fmha"),
    ],
)  # fmt: skip
def test_families_that_say_no_tile(name: str, kind: str, family: str) -> None:
    kernel = parsed(name)
    assert (kernel.kind, kernel.family, kernel.tile) == (kind, family, None)


@pytest.mark.parametrize(
    "name",
    [
        "triton_per_fused_addmm_native_layer_norm_12",
        "triton_red_fused_addmm_1",
        "triton_poi_fused_mm_0",
        "triton_tem_fused_convolution_0",
        "triton_tem_fused_mul_9",  # a template, but the name does not say of what
        "triton_convolution2d_4",
        "triton_mix_order_reduction_mm",
        "marlin_repack_kernel",
        "void gptq_marlin_repack_kernel<256, 4, false>(unsigned int const*)",
        "matmul_backward",
        "_attn_fwd_of_mine",
        "mm",
    ],
)
def test_names_that_only_look_like_products(name: str) -> None:
    assert parse_kernel_name(name) is None


@pytest.mark.parametrize(
    ("side", "cluster", "possible"),
    [
        (1, "1x1", True), (65536, "2x1", True), (65537, "2x1", False), (0, "2x1", False), (128, "0x1", False),
        (128, "1x0", False), (128, "2x65537", False),
    ],
)  # fmt: skip
def test_sizes_that_no_kernel_has_leave_the_family_alone(side: int, cluster: str, possible: bool) -> None:
    kernel = parsed(f"nvjet_tst_{side}x64_64x6_{cluster}_v_bz_TNN")
    said = (64, side) if possible else None
    assert (kernel.family, kernel.tile, kernel.cluster) == ("nvjet", said, cluster if possible else None)
    assert kernel.split_k is (False if possible else None)


def test_tensile_tiles_are_never_told() -> None:
    kernel = parsed("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_LDSB1")
    assert (kernel.tile, kernel.tile_pair, kernel.tile_k) == (None, (16, 16), 256)


def test_what_a_name_says_only_of_its_result_its_cluster_and_its_head() -> None:
    """Each was once a fault that no test found (benchmarks/mutants.py)."""
    assert parsed("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn").out_dtype == "fp16"  # it adds up in fp32
    tokens = parsed(
        "bmm_Bfloat16_E2m1E2m1_Fp32_t128x16x256_s5_et128x16_m128x16x64_cga2x1x1_16dp256b_TN_transOut_sm100a"
    )
    assert (tokens.tile, tokens.cluster, tokens.stages) == ((16, 128), "2x1", 5)
    assert tokens.tensor_core is True
    flash = parsed(
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false>>"
    )
    assert row_fields(flash)["kernel_head_dim"] == 128
    assert row_fields(tokens)["kernel_head_dim"] is None


def test_cluster_size() -> None:
    assert parsed("nvjet_tst_192x128_64x5_4x2_h_bz_coopB_splitK_NTT").cluster_size == 8
    assert parsed("ampere_sgemm_128x64_nn").cluster_size == 1
    assert parsed("triton_tem_fused_mm_2").cluster_size is None
    hopper = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_{}warpgroupsize1x1x1_execute_kernel"
    assert parsed(hopper.format("")).cluster_size == 1
    assert parsed(hopper.format("cgasize2x1x1_")).cluster_size == 2
    assert parsed(hopper.format("cgasize1x1x2_")).cluster_size is None
