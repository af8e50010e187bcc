"""The grammar of kernel names by example, and what holds for every name: nothing is half-parsed.

The names are of public profiles, repositories and documentation; template names are shortened where their
tail says nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracelens.gemm import KernelName, parse_kernel_name
from tracelens.gemm.mangled import demangled

Tile = tuple[int, int] | None

#: name, family, (tile_m, tile_n), tile_k, further fields
TABLE: list[tuple[str, str, Tile, int | None, dict[str, Any]]] = [
    # nvjet: cuBLAS 12.8 and later
    ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "nvjet", (128, 256), 64,
     {"stages": 4, "cluster": "1x2", "split_k": False, "scheduler": "persistent", "layout": "NN"}),
    ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "nvjet", (64, 64), 64,
     {"cluster": "2x1", "split_k": False, "scheduler": None}),
    ("nvjet_sm100_tst_64x16_64x16_2x4_2cta_h_bz_splitK_bias_TNT", "nvjet", (16, 64), 64,
     {"cluster": "2x4", "split_k": True}),
    ("nvjet_sm100_hsh_128x256_64x6_2x2f_2cta_h_bz_NNT", "nvjet", (256, 128), 64,
     {"cluster": "2x2", "in_dtype": "fp16", "out_dtype": "fp16"}),
    ("nvjet_sm110_tst_256x184_64x3_2x1_v_badd_NNT", "nvjet", (184, 256), 64, {"split_k": False}),
    ("nvjet_sm90_tst_48x64_64x15_4x2_h_bz_bias_TNN", "nvjet", (64, 48), 64,
     {"stages": 15, "scheduler": "persistent"}),
    ("nvjet_sm103_tss_64x32_64x16_2x2_2cta_h_bz_splitK_TNT", "nvjet", (32, 64), 64,
     {"in_dtype": "bf16", "out_dtype": "fp32"}),
    ("nvjet_tss_128x256_64x4_2x1_v_badd_coopA_NTN", "nvjet", (256, 128), 64, {"layout": "NT"}),
    ("nvjet_qrtst_128x160_128x5_1x2_h_bz_coopA_algo2_TNT", "nvjet", (160, 128), 128,
     {"in_dtype": "fp8", "out_dtype": "bf16", "math_dtype": "fp8"}),
    ("nvjet_sm100_oohsh_128x256_256x5_2x2_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT", "nvjet", (256, 128), 256,
     {"in_dtype": "fp4", "out_dtype": "fp16", "split_k": False}),
    ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_Avec32UE8M0_Bvec32UE8M0_TNT",
     "nvjet", (256, 128), 128, {}),
    # words nobody has seen yet may change the schedule, not the tile
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_streamK_TNT", "nvjet", (256, 128), 64,
     {"split_k": None, "scheduler": None, "layout": "TN"}),
    # sm120: no cluster, the warp's tile beside the CTA's; which side is M was never seen
    ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "nvjet", (64, 64), 128,
     {"stages": 3, "cluster": None, "layout": "TN", "in_dtype": "bf16"}),
    ("nvjet_sm121_tst_mma_128x208x64_2_32x104x64_tmaAB_alignCD4_bz_TNNN", "nvjet", None, 64,
     {"tile_pair": (128, 208), "stages": 2}),
    # xmma: the tiles of cuBLAS 11 to 12.6
    ((
        "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x64x32_stage4_warpsize2x2x1_tensor16x8x16_"
        "kernel"
    ),
     "sm80_xmma", (128, 64), 32, {"stages": 4, "in_dtype": "bf16", "out_dtype": "bf16", "tensor_core": True}),
    ((
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4_"
        "execute_kernel__5x_cublas"
    ),
     "sm80_xmma", (256, 128), 8,
     {"alignment_elements": 4, "tensor_core": False, "layout": "NN", "out_dtype": "fp32"}),
    ((
        "sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x64x64_stage3_warpsize2x2x1_tensor16x8x32_"
        "kernel"
    ),
     "sm89_xmma", (128, 64), 64, {"in_dtype": "fp8", "out_dtype": "bf16", "math_dtype": "fp8"}),
    ("sm80_xmma_gemm_i8i32_i8i32_f32_tn_n_tilesize256x128x64_stage3_warpsize4x2x1_tensor16x8x32_kernel",
     "sm80_xmma", (256, 128), 64, {"in_dtype": "int8", "out_dtype": "int32"}),
    ((
        "sm90_xmma_gemm_bf16f32_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_"
        "off_kernel__5x_cublas"
    ),
     "sm90_xmma", (128, 128), 64,
     {"in_dtype": "bf16", "out_dtype": "fp32", "layout": "NT", "split_k": False, "scheduler": "persistent"}),
    ((
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32_cgasize2x1x1_warpgroupsize1x1x1_execute_"
        "segment_k_on_kernel__5x_cublas"
    ),
     "sm90_xmma", (128, 64), 32,
     {"cluster": "2x1", "split_k": True, "in_dtype": "fp32", "math_dtype": "tf32"}),
    # CUTLASS 2 by its library's names; the type behind is the operands', the one in front the output's
    ((
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_32x6_nt_align2>(cutlass_80_"
        "tensorop_s16816gemm_bf16_64x64_32x6_nt_align2::Params)"
    ),
     "cutlass2", (64, 64), 32,
     {"in_dtype": "bf16", "math_dtype": "bf16", "out_dtype": "fp32", "alignment_elements": 2}),
    ("cutlass_80_tensorop_h16816gemm_128x128_32x5_nn_align8", "cutlass2", (128, 128), 32,
     {"in_dtype": "fp16", "out_dtype": "fp16"}),
    ("cutlass_80_tensorop_d884gemm_64x128_16x3_tn_align1", "cutlass2", (128, 64), 16,
     {"in_dtype": "fp64", "out_dtype": "fp64", "math_dtype": "fp64"}),
    ("void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16>(P)",
     "cutlass2", (128, 256), 64,
     {"in_dtype": "int8", "out_dtype": "int32", "alignment_elements": 16}),
    ("void cutlass::Kernel<cutlass_80_tensorop_tf32_s1688gemm_tf32_128x64_32x3_nn_align4>(P)", "cutlass2",
     (64, 128), 32, {"in_dtype": "fp32", "out_dtype": "fp32", "math_dtype": "tf32"}),
    # CUTLASS 3 and 4 by their library's names
    ((
        "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f32_f32_128x128x64_2x1x1_0_tnn_align8_"
        "warpspecialized_cooperative_epi_tma"
    ),
     "cutlass3", (128, 128), 64,
     {"cluster": "2x1", "layout": "TN", "out_dtype": "fp32"}),
    ((
        "void cutlass::device_kernel<cutlass3x_sm100_bstensorop_s256x256x64gemm_block_scaled_ue4m3xf4_"
        "ue4m3xf4_f32_f16_f16_256x256x256_4x4x1_0_tnn_align32_o_vs16_2sm_bias_f16_relu>(P)"
    ),
     "cutlass3", (256, 128), 256,
     {"in_dtype": "fp4", "cluster": "4x4", "alignment_elements": 32, "tensor_core": True}),
    ((
        "void cutlass::device_kernel<cutlass3x_sm100_bstensorop_s128x256x64gemm_block_scaled_ue8m0xe4m3_"
        "ue8m0xe4m3_f32_f16_bf16_128x256x128_2x1x1_0_tnt_align16_o_vs32_1sm>(P)"
    ),
     "cutlass3", (128, 256), 128,
     {"in_dtype": "fp8", "out_dtype": "bf16", "layout": "TN"}),
    # CUTLASS by its templates
    ((
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
        "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<7, "
        "cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, cutlass::gemm::KernelTmaWarpSpecializedCooperati"
        "ve>, cute::tuple<cute::C<256>, cute::C<128>, cute::C<64> >, cutlass::bfloat16_t, cute::tuple<long,"
        " cute::C<1>, long>, cutlass::bfloat16_t, cute::tuple<long, cute::C<1>, long>, cute::TiledMMA<"
        "cute::MMA_Atom<cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS<>>>>, "
        "cutlass::epilogue::collective::CollectiveEpilogue<cutlass::epilogue::Sm90TmaWarpSpecialized<4, 2, "
        "16, true, false>, cute::tuple<cute::C<256>, cute::C<128>, cute::C<64> >, cute::tuple<cute::C<128>,"
        " cute::C<32> >, cutlass::bfloat16_t, cute::tuple<long, cute::C<1>, long>, float, cute::tuple<long,"
        " cute::C<1>, long>, cutlass::epilogue::fusion::FusionCallbacks<int>>, "
        "cutlass::gemm::PersistentScheduler, void> >(P)"
    ),
     "cutlass3", (256, 128), 64,
     {"stages": 7, "cluster": "2x1", "scheduler": "persistent", "layout": "TN", "in_dtype": "bf16",
      "out_dtype": "fp32", "tensor_core": True}),
    ((
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::MmaMultistage<"
        "cutlass::gemm::GemmShape<128, 256, 32>, cutlass::transform::threadblock::PredicatedTileAccessItera"
        "tor<cutlass::MatrixShape<128, 32>, cutlass::half_t, cutlass::layout::RowMajor, 1>, "
        "cutlass::gemm::threadblock::MmaPolicy<cutlass::gemm::warp::MmaTensorOp<int> >, 4, "
        "(cutlass::arch::X)0>, int> >(P)"
    ),
     "cutlass2_template", (128, 256), 32, {"stages": 4, "in_dtype": "fp16", "tensor_core": True}),
    # before cuBLAS 12: the names of Volta, Turing and Ampere
    ("ampere_s16816gemm_bf16_64x64_sliced1x2_ldg8_stages_64x6_nn", "legacy", (64, 64), 64,
     {"in_dtype": "bf16", "out_dtype": "fp32", "alignment_elements": 8, "layout": "NN"}),
    ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_relu_f2f_stages_64x3_tn", "legacy", (256, 128), 64,
     {"stages": 3, "in_dtype": "bf16", "out_dtype": "bf16"}),
    ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn", "legacy", (128, 256), None,
     {"tensor_core": True, "in_dtype": "fp16"}),
    ("volta_sgemm_128x64_splitK_nn_v1", "legacy", (64, 128), None, {"split_k": True, "tensor_core": False}),
    # DeepGEMM: template arguments, by version
    ((
        "void deep_gemm::fp8_gemm_kernel<7168u, 2048u, 64u, 128u, 128u, 1u, 8u, 128u, 128u, 1u, "
        "(GemmType)0>(P)"
    ),
     "deepgemm", (64, 128), 128, {"stages": 8, "in_dtype": "fp8"}),
    ((
        "void deep_gemm::sm90_bf16_gemm_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 0u, 4096u, 7168u, "
        "1u, 128u, 256u, 64u, 128u, 128u, 128u, 4u, 128u, 256u, 2u, true, 132u, (deep_gemm::GemmType)0, "
        "false, cutlass::bfloat16_t>(P)"
    ),
     "deepgemm", (128, 256), 64,
     {"stages": 4, "in_dtype": "bf16", "scheduler": "persistent"}),
    ("void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, 4224u, 2560u>(P)", "deepgemm", None,
     None, {"in_dtype": None}),
    (
        (
            "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u, 1u, 256u, 128u, "
            "128u, 128u, 128u, 128u, 3u, 128u, 256u, 2u, true, 132u, (deep_gemm::GemmType)0, "
            "deep_gemm::epilogue::transform::EpilogueIdentity>(float*, int*)"
        ),
        "deepgemm", (256, 128), 128, {"stages": 3, "in_dtype": "fp8"},
    ),
    (
        (
            "void deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<(cute::UMMA::Major)0, (cute::UMMA::Major)0, 128u, "
            "128u, 0u, 0u, 0u, 240u, 128u, 128u, 1u, 128u, 128u, 128u, 6u, 128u, 128u, 2u, true, 148u, true, "
            "(deep_gemm::GemmType)0, false, cutlass::float_e4m3_t, cutlass::float_e4m3_t, "
            "cutlass::bfloat16_t, deep_gemm::epilogue::transform::EpilogueIdentity>(int*)"
        ),
        "deepgemm", (240, 128), 128, {"stages": 6, "in_dtype": "fp8"},
    ),
    (
        (
            "void deep_gemm::sm90_tf32_hc_prenorm_gemm_impl<24u, 16384u, 64u, 32u, 64u, 1u, 128u, 12u, 128u, "
            "128u>(P)"
        ),
        "deepgemm", (64, 32), 64, {"stages": 12, "scheduler": None},
    ),
    # CUTLASS 3 on Hopper, as nvcc mangles it
    (
        (
            "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13"
            "CollectiveMmaINS1_34MainloopSm90TmaGmmaWarpSpecializedILi6ENS5_IJNS4_1CILi2EEENSA_ILi1EEESC_EEENS"
            "1_32KernelTmaWarpSpecializedPingpongEEENS5_IJNSA_ILi128EEESG_NSA_ILi64EEEEEENS_6half_tENS5_IJlSC_"
            "lEEESJ_SK_NS4_8TiledMMAINS4_8MMA_AtomIJNS4_4SM904GMMA26MMA_64x128x16_F32F16F16_SSILNSO_5MajorE0EL"
            "SQ_0ELNSO_7ScaleInE1ELSR_1EEEEEENS4_6LayoutINS5_IJSC_SC_SC_EEENS5_IJNSA_ILi0EEESW_SW_EEEEENS5_IJN"
            "S4_10UnderscoreESZ_SZ_EEEEENS4_13SM90_TMA_LOADENS4_14ComposedLayoutINS4_7SwizzleILi3ELi4ELi3EEENS"
            "4_18smem_ptr_flag_bitsILi16EEENSU_INS5_IJNSA_ILi8EEESH_EEENS5_IJSH_SC_EEEEEEEvNS4_8identityENS4_2"
            "3SM90_TMA_LOAD_MULTICASTES1C_vS1D_EENS_8epilogue10collective18CollectiveEpilogueINS1G_22Sm90TmaWa"
            "rpSpecializedILi4ELi2ELi16ELb0ELb1EEEJSI_NS5_IJSH_NSA_ILi32EEEEEEvSK_SJ_SK_NS1G_6fusion15FusionCa"
            "llbacksIS1K_NS1N_17LinearCombinationISJ_fvfLNS_15FloatRoundStyleE2EEESI_S1M_JEEES12_NS13_INS14_IL"
            "i2ELi4ELi3EEES17_NSU_INS5_IJS18_S1L_EEENS5_IJS1L_SC_EEEEEEENS4_17SM75_U32x4_LDSM_NENS4_14SM90_TMA"
            "_STOREES1X_NS4_17SM90_U32x4_STSM_NENS4_9Copy_AtomIJS20_SJ_EEEvEEENS1_19PersistentSchedulerEvEEEEv"
            "NT_6ParamsE"
        ),
        "cutlass3", (128, 128), 64,
        {"stages": 6, "cluster": "2x1", "scheduler": "persistent", "layout": "TN", "in_dtype": "fp16",
         "out_dtype": "fp16"},
    ),
    # TensorRT-LLM: transOut computes out^T, so its first number lies along torch's N
    ((
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_"
        "transOut_schedP2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f"
    ),
     "trtllm_gen", (16, 128), 256,
     {"stages": 3, "cluster": "1x1"}),
    # small and vector products: operand types from cuBLAS's templates
    ((
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<__nv_"
        "bfloat16 const>, X>(P)"
    ),
     "gemmsn", None, None, {"in_dtype": "bf16", "layout": "TN", "tensor_core": False}),
    ((
        "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 2, 4, false, true, "
        "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__half const>, X> >(P)"
    ),
     "gemv", None, None,
     {"in_dtype": "fp16"}),
    ("triton_tem_fused_addmm_native_layer_norm_5", "triton_template", None, None, {}),
    # attention
    ("fmha_cutlassB_bf16_notaligned_128x64_k96_sm80(PyTorchMemEffAttention::P)",
     "mem_efficient", (128, 64), None,
     {"kind": "attention", "direction": "backward"}),
    ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaFwdKernelTmaWarpspecialized<int> >(P)",
     "cutlass_fmha", None, None, {"kind": "attention", "direction": "forward"}),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_kernel0_0",
     "cudnn_sdpa", None, None, {"kind": "attention", "direction": "backward", "head_dim": 128}),
]  # fmt: skip

#: PyTorch's grouped product on a B200, as Kineto records it in 1,900 characters; cut after the epilogue's
#: strides and closed.
GROUPED = (
    "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm10INS_4gemm6kernel13GemmUniversalINS5_"
    "17GroupProblemShapeIN4cute5tupleIJiiiEEEEENS5_10collective13CollectiveMmaINS5_40MainloopSm100ArrayTmaUmma"
    "WarpSpecializedILi6ELi8ELi2ENSA_IJNS9_1CILi2EEENSG_ILi1EEESI_EEEEENSA_IJNSG_ILi256EEESL_NSG_ILi64EEEEEE"
    "NS_10bfloat16_tEPNSA_IJlSI_NSG_ILi0EEEEEESO_SR_NS9_8TiledMMAINS9_8MMA_AtomIJNS9_26SM100_MMA_F16BF16_2x1SM"
    "_SSISO_SO_fLi256ELi256ELNS9_4UMMA5MajorE0ELSW_0ELNSV_7ScaleInE0ELSX_0EEEEEEEEEENS_8epilogue10collective18"
    "CollectiveEpilogueINS10_31Sm100PtrArrayTmaWarpSpecializedILi4ELi2ELi32ELb0ELb0EEEJNSA_IJNSG_ILi128EEESL_"
    "SM_EEEvSR_SO_SR_EEEvvEEEEEEvNT_6ParamsE"
)  # fmt: skip


def fields(kernel: KernelName | None) -> dict[str, Any]:
    return {} if kernel is None else {k: v for k, v in dataclasses.asdict(kernel).items() if k != "name"}


@pytest.mark.parametrize(("name", "family", "tile", "tile_k", "more"), TABLE)
def test_a_name_says(name: str, family: str, tile: Tile, tile_k: int | None, more: dict[str, Any]) -> None:
    kernel = parse_kernel_name(name)
    assert kernel is not None
    assert (kernel.family, kernel.tile, kernel.tile_k) == (family, tile, tile_k)
    assert {field: getattr(kernel, field) for field in more} == more
    assert kernel.kind == more.get("kind", "gemm")


def test_a_mangled_name_says_what_its_demangled_one_does() -> None:
    kernel = parse_kernel_name(GROUPED)
    assert kernel is not None
    assert (kernel.family, kernel.tile, kernel.tile_k, kernel.cluster) == ("grouped", (128, 256), 64, "2x1")
    assert (kernel.layout, kernel.in_dtype, kernel.out_dtype, kernel.stages) == ("TN", "bf16", "bf16", 6)
    spelt = demangled(GROUPED)
    assert spelt is not None
    assert fields(parse_kernel_name(f"void {spelt}(Params)")) == fields(kernel)


def test_two_sms_share_a_tile_and_each_has_half_of_it() -> None:
    """The mainloop states 256x256, the epilogue one CTA's 128x256; without an epilogue the name decides."""
    spelt = demangled(GROUPED)
    assert spelt is not None and "cute::C<256>, cute::C<256>, cute::C<64>" in spelt
    headless = spelt.replace("CollectiveEpilogue", "SomeEpilogue")
    kernel = parse_kernel_name(headless)
    assert kernel is not None
    assert (kernel.tile_pair, kernel.tile, kernel.layout) == (
        (128, 256),
        None,
        None,
    )  # no stride of D, no order


@pytest.mark.parametrize("name", [row[0] for row in TABLE] + [GROUPED])
def test_a_name_cut_off_says_nothing_wrong(name: str) -> None:
    """Every prefix is unknown, or states less than the whole name: never a number cut in two."""
    whole = fields(parse_kernel_name(name))
    for end in range(len(name)):
        part = {k: v for k, v in fields(parse_kernel_name(name[:end])).items() if v is not None}
        assert part.items() <= whole.items(), name[:end]


@given(
    st.text(max_size=120) | st.from_regex(r"(nvjet|ampere|cutlass_80|sm90_xmma_gemm|Cijk)_[a-zA-Z0-9_]{0,60}")
)
@example("_Z" + "P" * 5000)
@example("_ZN" + "I" * 500)
@example("cutlass::GemmUniversal<CollectiveMma<" + "<" * 3000)
def test_any_text_is_parsed_or_refused(name: str) -> None:
    kernel = parse_kernel_name(name)
    assert kernel is None or kernel.kind in {"gemm", "gemm_helper", "attention", "attention_helper"}
    demangled(name)


@settings(max_examples=300)
@given(st.sampled_from([row[0] for row in TABLE] + [GROUPED]), st.data())
def test_a_damaged_name_gives_no_tile_that_is_not_in_it(name: str, data: st.DataObject) -> None:
    """Digits and letters lost from the middle: what is still stated is written there, and nothing fails."""
    start = data.draw(st.integers(0, len(name)))
    damaged = name[:start] + data.draw(st.sampled_from(["", "_", "x", "9", "<", "E"])) + name[start + 3 :]
    kernel = parse_kernel_name(damaged)
    if kernel is not None and kernel.tile_pair is not None:
        assert str(kernel.tile_pair[1]) in damaged


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        (
            "_ZN7cutlass7Kernel2I52cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4EEvNT_6ParamsE",
            "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_tn_align4>",
        ),
        (
            "_Z20magma_sgemmEx_kernelIfffLb1ELb0ELi6EEviii",
            "magma_sgemmEx_kernel<float, float, float, true, false, 6>",
        ),
        (
            "_ZN2ck12_GLOBAL__N_14gemmIDF16bPKtLm8ELin3EEEvv",
            "ck::(anonymous namespace)::gemm<std::bfloat16_t, unsigned short const*, 8ul, -3>",
        ),
        ("_ZN1a1bINS_1cENS0_IS1_EEEEvv", "a::b<a::c, a::b<a::c> >"),
        ("_ZSt4moveIiEvv", "std::move<int>"),
        ("_ZNK1a1bIiEEvv", "a::b<int>"),  # a method that changes nothing
        ("_ZNSt1aIiEEvv", "std::a<int>"),
        ("_ZN1aIKiVlOfRcEEvv", "a<int const, long volatile, float&&, char&>"),
        ("_ZN1a1bIDF16_DF16bDnEEvv", "a::b<_Float16, std::bfloat16_t, decltype(nullptr)>"),
        ("_ZN1a1bISt4pairIiSaIiEEEEvv", "a::b<std::pair<int, std::allocator<int> > >"),
        ("_ZN1aIu6__bf16S0_EEvv", "a<__bf16, __bf16>"),
        ("_ZN1aIPiS0_S_EEvv", "a<int*, int*, a>"),
        ("_ZN1aI1bI1cE1dS1_S0_EEvv", "a<b<c>, d, c, b>"),
        ("_ZN1aINS_1bIiEEEEvv", "a<a::b<int> >"),
        ("_ZN1a1bILj4ELx5ELy6EL1c7ELb0EEEvv", "a::b<4u, 5ll, 6ull, (c)7, false>"),
        ("_ZN1a1bIJifEEEvv", "a::b<int, float>"),
        ("_ZN1a1bIDzEEvv", None),  # no type of the ABI
        ("_ZNE1av", None),
        ("_ZNIiEvv", None),
        ("_ZN0aEvv", None),
        ("_ZN9aEvv", None),  # longer than what is there
        ("_ZN1a1bILi3vEEvv", None),
        ("_ZN1aIS?_EEvv", None),
        ("_ZN1aIT?_EEvv", None),
        ("_ZN1a1bIXadL_Z1cvEEEEvv", None),  # an expression
        ("_ZN1a1bIS9_EEvv", None),  # a substitution of nothing
        ("_ZN1a", None),
        ("_Z", None),
        ("ampere_sgemm_128x64_nn", None),
    ],
)  # fmt: skip
def test_demangled(name: str, spelt: str | None) -> None:
    """Spellings as c++filt gives them, without the function's parameters."""
    assert demangled(name) == spelt
