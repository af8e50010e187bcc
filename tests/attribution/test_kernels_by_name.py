# ruff: noqa: E501  (kernel names are longer than a line)
"""The component that a GPU kernel's own name states: kernels of ATen, of libraries, of none."""

from __future__ import annotations

import pytest

from tracelens import words
from tracelens.attribution.kernels import kernel_component

FUNCTIONS = {
    "_rms_norm_forward_kernel": "norm",
    "_block_rms_norm_backward_kernel": "norm",
    "_swiglu_forward_kernel": "mlp.activation",
    "_geglu_tanh_backward_kernel": "mlp.activation",
    "_triton_rope": "attention.rope",
    "liger_cross_entropy_kernel": "loss",
    "element_mul_kernel": "loss",
    "_rms_layernorm_forward": "norm",
    "_rope_embedding_0d1d2d3de": "attention.rope",
    "_DWf_DW_dfg_kernel": "mlp.activation",
    "_grouped_gemm_dW_kernel": "moe.experts",
    "rotary_kernel": "attention.rope",
    "_layer_norm_fwd_1pass_kernel": "norm",
    "cross_entropy_bwd_kernel": "loss",
    "void layer_norm::ln_bwd_finalize_kernel<layer_norm::Kernel_traits<float> >(layer_norm::BwdParams)": (
        "norm"
    ),
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<int>(Params)": "norm",
    "void transformer_engine::fused_rope::fused_rope_backward_kernel<float>(float const*)": (
        "attention.rope"
    ),
    "void (anonymous namespace)::scaled_upper_triang_masked_softmax_warp_forward<c10::Half>(c10::Half*)": (
        "attention.softmax"
    ),
    "void transformer_engine::dgated_act_kernel<8, true>(float const*)": "mlp.activation",
    "void transformer_engine::unary_kernel<8, true, float, &(float transformer_engine::gelu<float>(float))>()": (
        "mlp.activation"
    ),
    "void transformer_engine::unary_kernel<8, true, float, &(float transformer_engine::identity(float))>()": "",
    "void cuApplyRMSNorm<float, float, float>(float*)": "norm",
    "void cuComputePartGradGammaBeta<float, float, float>(float const*)": "norm",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float>(long)": (
        "optimizer"
    ),
    "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*>(long)": "",
    "void vllm::act_and_mul_kernel<c10::BFloat16, &(vllm::silu_kernel)>(c10::BFloat16*)": "mlp.activation",
    "void vllm::moe::topkGatingSoftmax<8, 64, 4, 16>(float const*)": "moe.router",
    "void vllm::moe::moe_align_block_size_kernel<int>(int*)": "moe.dispatch",
    "_permute_kernel": "moe.dispatch",
    "_silu_and_mul_post_quant_kernel": "mlp.activation",
    "_rotary_kernel": "attention.rope",
    "embedding_kernel": "embedding",
    "_fill_indices_kernel": "moe.dispatch",
    "_mla_rope_bwd_inplace_kernel": "attention.rope",
    "XXT_kernel": "optimizer",
    "ba_plus_cAA_kernel": "optimizer",
    "attn_fwd": "attention.core",
    "parallel_nsa_compression_bwd_kernel_dkv": "attention.core",
    "chunk_kda_fwd_kernel_inter_solve_fused": "ssm.scan",
    "_parallel_rebased_bwd_dq": "ssm.scan",
    "fused_recurrent_rwkv4_backward_kernel": "ssm.scan",
    "prepare_wy_repr_bwd_kernel": "ssm.scan",
    "chunk_local_cumsum_scalar_kernel": "ssm.scan",
    "l2norm_fwd_kernel1": "norm",
    "swiglu_fwdbwd_kernel": "mlp.activation",
    "_mhc_post_res_fwd_kernel": "residual",
    "void transformer_engine::scaled_gated_forward_kernel<float>(float const*)": "mlp.activation",
    "void thd_out_correction_kernel<float>(float*)": "attention.other",
    "_layer_norm_fwd_quant_kernel": "norm",
    "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16EEvPT_PKS3_i": "mlp.activation",
    "_ZN4vllm11silu_kernelI18act_and_mul_kernelEEvPT_": "",  # in what is given to it
    # names that many kinds of kernel bear
    "_fwd_kernel": "",
    "swish_fwd_kernel": "",
    "softmax_warp_forward": "",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)": "",
    "triton_per_fused__fused_rms_norm_add_3": "",
}


@pytest.mark.parametrize(("name", "expected"), FUNCTIONS.items())
def test_functions_of_libraries(name: str, expected: str) -> None:
    component = kernel_component(name)
    assert (component or "") == expected
    assert component is None or component in words.COMPONENTS


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>", "attention.core"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)", "attention.core"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "norm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", None),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", None),
        ("triton_poi_fused_layer_norm_mul_0", None),
        ("void at::native::elementwise_kernel<128, 2>", None),
    ],
)
def test_component_of_a_kernel(name: str, component: str | None) -> None:
    assert kernel_component(name) == component


@pytest.mark.parametrize(
    ("component", "name"),
    [
        ("communication", "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)"),
        ("communication", "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 2>(vllm::RankData*)"),
        ("communication", "void internode::dispatch<false, 8>(int4*)"),
        ("communication", "void deep_ep::intranode::cached_notify_combine<8>(void**)"),
        ("communication", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
        ("moe.dispatch", "void layout::get_dispatch_layout<256>(long const*)"),
        ("attention.core", "fmhaSm100aKernel_QkvBfloat16OBfloat16H128PagedKvCausalVarSeqQ128Kv128"),
        ("attention.core", "void flashinfer::BatchPrefillWithPagedKVCacheKernel<1>(int)"),
        ("attention.core", "kernel_unified_attention_2d"),
        ("attention.core", "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelIiEEEEvT0_"),
        ("norm", "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdIiEEEEvT0_"),
        (
            "attention.core",
            "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64>>(int)",
        ),
        (
            "moe.experts",
            "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, true, (deep_gemm::GemmType)1>(int*)",
        ),
        (None, "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, true, (deep_gemm::GemmType)0>(int*)"),
        ("moe.router", "void moe::dev::routing::routingDeepSeek::routingMainKernel<int>(int)"),
        ("moe.dispatch", "void moe::dev::finalize::finalizeKernelVecLoad<int>(int)"),
        ("ssm.conv", "void causal_conv1d_channellast_fwd_kernel<int>(ConvParamsBase)"),
        ("ssm.scan", "_chunk_scan_chunk_state_bwd_dx_kernel"),
        ("ssm.scan", "_state_passing_fwd_kernel"),
        ("ssm.scan", "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128> >(SSMParamsBase)"),
        ("ssm.scan", "chunk_gated_delta_rule_fwd_kernel_h_blockdim64"),
        ("communication", "void dpsk::ep::internode::dispatch_ll<3, 9>(int)"),
        (
            "communication",
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>(int)",
        ),
        ("attention.core", "_fwd_kernel_aligned_0d1d2d3d45d6de"),
        ("attention.other", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(int)"),
        ("moe.experts", "bmm_E2m1_E2m1E2m1_Fp32_bA16_bB16_bC16_t128x8x512_s5_swiGlu_dynB_sm100f"),
        ("moe.experts", "bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_t128x16x256_sm100f"),
        ("moe.dispatch", "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<int>(int)"),
        ("moe.router", "void moe_fused_gate_kernel<float, 256>(int)"),
        ("communication", "_mxfp8_all_to_all_expert_major_kernel"),
        ("communication", "_combine_all_to_all_kernel"),
        ("moe.dispatch", "_precompute_push_write_offsets_kernel"),
        ("embedding", "void split_embedding_codegen_forward_unweighted_kernel<float, float, long>(int)"),
        ("loss", "fused_softcapped_entropy_fwd_kernel"),
        ("moe.router", "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>(float const*)"),
        ("moe.router", "_topk_forward"),
        ("moe.dispatch", "_combined_routing_compute"),
        ("moe.dispatch", "_finalize_matmul_scatter_bf16"),
        ("attention.core", "reduce_segments"),
        (None, "reduce_segments_of_a_graph"),
        ("attention.core", "void qk_int_sv_f8_attn_kernel<128u, 64u, 32u, 64u, 128u, (DataType)1>(int)"),
        ("attention.core", "sage_fwd"),
        ("attention.other", "sage_quant_kernel"),
        (
            "attention.other",
            "kernel_cutlass_kernel_cudnndeepseek_sparse_attentionindexer_forwardindexer_fwd_sm100IndexerFo",
        ),
        ("moe.dispatch", "_fwd_kernel_ep_scatter_2"),
        ("moe.experts", "fused_moe_kernel_gptq_awq"),
        ("moe.experts", "_p_matmul_ogs_NTN_bf16xbf16xmxfp4_128x256x64_swiglu"),
        ("moe.experts", "void marlin_moe_wna16::Marlin<1125899906909960l, 256, 1, 8, 8, false>(int4 const*)"),
        ("optimizer", "void kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>(float*)"),
        ("attention.core", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x128"),
        (
            "attention.core",
            "cudnn_generated_oss_sdpa_sm100_flash_fprop_f16_knob_7_128x128x64_4x1x1_kernel0_0",
        ),
        ("attention.core", "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100"),
        ("attention.core", "void flashinfer::mla::BatchMLAPagedAttentionKernel<int>(int)"),
        ("attention.core", "void flashinfer::PrefillWithKVCacheKernel<int>(int)"),
        ("attention.rope", "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true>(int)"),
        ("attention.rope", "void (anonymous namespace)::fused_rope_store_kernel<true, 128l, true>(int)"),
        ("norm", "void (anonymous namespace)::fused_qknorm_warp<128l, true, __nv_bfloat16>(int)"),
        ("ssm.scan", "fused_recurrent_gated_delta_rule_fwd_kernel"),
        (None, "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*, unsigned char*)"),
        (None, "_topk_stage1_kernel"),
        (None, "chunk_rows_kernel"),
        (None, "void cub::DeviceReduceKernel<int>(int)"),
        (None, "dispatch_rows_kernel"),
    ],
)
def test_kernels_of_libraries(component: str | None, name: str) -> None:
    assert kernel_component(name) == component
