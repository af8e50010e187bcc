"""What frameworks and kernel libraries call their operators, kernels and ranges: one table, each row sourced.

A row is (what it is, pattern, where the name comes from). Operators are matched whole and give a rule
(``names.op_rule``); kernels are searched and give a component (``names.kernel_component``). Names that one
model's script made up are not here.
"""

from __future__ import annotations

Row = tuple[str, str, str]

#: Kernels of DeepEP, "a communication library tailored for Mixture-of-Experts (MoE) and expert parallelism"
#: (its README): tokens to their experts and back, and the counts that go before.
EXPERT_EXCHANGES = r"\b(internode|intranode|internode_ll)::(\w*notify\w*|(dispatch|combine)(_ll)?|barrier)\b"

OPERATORS: tuple[Row, ...] = (
    (
        "communication",
        r"(vllm|sgl_kernel|trtllm)::\w*(all_?reduce|all_?gather|reduce_?scatter)\w*",
        (
            "vllm-project/vllm vllm/distributed/parallel_state.py, direct_register_custom_op; with the norm "
            "behind it: vllm/compilation/passes/fusion/allreduce_rms_fusion.py"
        ),
    ),
    ("communication", r"_C_custom_ar::\w+", "vllm-project/vllm csrc/torch_bindings.cpp"),
    (
        "communication",
        r"symm_mem::(multimem|one_shot|two_shot|low_contention)_\w+",
        "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp",
    ),
    (
        "core",
        r"vllm::unified_(mla_)?attention(_with_output)?",
        "vllm-project/vllm vllm/attention/layer.py, direct_register_custom_op",
    ),
    (
        "core",
        r"_vllm_fa[23]_C::(?!get_scheduler)\w+",
        "vllm-project/flash-attention csrc/common/registration.h",
    ),
    (  # what a library calls so is a fused attention; not what prepares it, and no linear attention
        "core",
        (
            r"(?!aten::|c10d)\w++::(?!\w*(cache|norm|rope|rotary|mask|metadata|plan|proj|bias|quant|index|gate))"
            r"(?!\w*(linear_att|gdn|kda|delta|lightning|mamba))\w*(flash(?!infer)|attention|attn|sdpa|mha|_mla)"
            r"\w*"
        ),
        (
            "pytorch-labs/segment-anything-fast flash_4.py (customflash), facebookresearch/xformers fmha, "
            "flashinfer-ai/flashinfer flashinfer/prefill.py, vllm-project/vllm csrc/torch_bindings.cpp, "
            "ROCm/aiter aiter/ops/mha.py"
        ),
    ),
    (
        "rope",
        r"(_C|vllm|sgl_kernel|flashinfer)::\w*(rotary|rope)\w*",
        "vllm-project/vllm csrc/torch_bindings.cpp; sgl-project/sglang sgl-kernel/csrc/common_extension.cc",
    ),
    (
        "cache",
        r"_C_cache_ops::\w+|vllm::unified_kv_cache_update",
        "vllm-project/vllm csrc/torch_bindings.cpp, vllm/model_executor/layers/attention/attention.py",
    ),
    (
        "norm",
        r"(sgl_kernel|flashinfer|vllm|trtllm)::\w*(rms|layer)_?norm\w*",
        "sgl-project/sglang sgl-kernel/csrc/common_extension.cc; flashinfer-ai/flashinfer flashinfer/norm.py",
    ),
    (
        "experts",
        r"_C::(cutlass_(w4a8_)?moe_mm|cutlass_fp4_group_mm|ggml_moe_a8\w*)|_moe_C::moe_wna16\w*",
        "vllm-project/vllm csrc/torch_bindings.cpp, csrc/moe/torch_bindings.cpp",
    ),
    (
        "experts",
        r"(vllm|sglang|flashinfer|trtllm)::\w*(fused_moe|fused_experts|_moe|moe_runner|moe_forward)(?!_lora)\w*",
        "vllm-project/vllm vllm/model_executor/layers/fused_moe/; flashinfer-ai/flashinfer fused_moe/",
    ),
    (
        "routes",
        (
            r"_moe_C::(topk_softmax|topk_sigmoid|grouped_topk)|sgl_kernel::(topk_softmax|topk_sigmoid|moe_fused_gate)"
            r"|(sgl_kernel|vllm)::dsv3_router_gemm|vllm::\w*grouped_topk"
        ),
        "vllm-project/vllm csrc/moe/torch_bindings.cpp; sgl-project/sglang csrc/common_extension.cc",
    ),
    (
        "sends",
        (
            r"_moe_C::((batched_|lora_)?moe_(lora_)?align_block_size|moe_(sum|permute|unpermute)|shuffle_rows)\w*"
            r"|_C::get_cutlass_\w*moe_mm_\w+"
            r"|sgl_kernel::(moe_align_block_size|prepare_moe_input|apply_shuffle_mul_sum)"
        ),
        "vllm-project/vllm csrc/moe/torch_bindings.cpp; sgl-project/sglang csrc/common_extension.cc",
    ),
    (
        "linear",
        (
            r"_C::(cutlass_scaled(_fp4|_sparse)?_mm\w*|(marlin|awq|gptq|allspark_w8a16)_gemm"
            r"|machete_mm|cutlass_w4a8_mm)"
            r"|vllm::\w*(scaled_mm|_gemm|gemm_)\w*|vllm::(matmul_\w+|padded_cutlass|apply_bnb_4bit)"
        ),
        "vllm-project/vllm csrc/torch_bindings.cpp, vllm/model_executor/layers/quantization/utils/",
    ),
    (
        "linear",
        (
            r"(sgl_kernel|flashinfer|trtllm)::\w*(scaled(_fp4)?_mm|_gemm|^mm_fp\d)\w*|flashinfer::mm_\w+"
            r"|bitsandbytes::(int8_\w*matmul\w*|gemv_4bit\w*)"
        ),
        "sgl-project/sglang csrc/common_extension.cc; bitsandbytes-foundation/bitsandbytes _ops.py",
    ),
    (
        "experts",
        r"torchao::\w*grouped_(gemm|mm)\w*",
        "pytorch/ao torchao/prototype/moe_training/ep/syncless/cutedsl_custom_op.py",
    ),
    (
        "embedding",
        r"fbgemm::(split|dense|ssd)_embedding_codegen_lookup_\w+",
        "pytorch/FBGEMM fbgemm_gpu/codegen/training/pt2/embedding_split_host_pt2_autograd_template.cpp",
    ),
    (
        "quantize",
        r"(_C|vllm|sgl_kernel|flashinfer|trtllm|bitsandbytes)::\w*quant\w*",
        "vllm-project/vllm csrc/torch_bindings.cpp: of what the next product takes",
    ),
    (  # a weight of four bits before its product, forward and backward: the product has its own operator
        "quantize",
        r"MatMul4Bit(Backward)?",
        "bitsandbytes-foundation/bitsandbytes bitsandbytes/autograd/_functions.py, torch.autograd.Function",
    ),
    (
        "rope",
        r"(Liger|Fast_|Slow_|Fused|Apply)(?=\w*+\Z)\w*?(Rotary|RoPE|Rope)\w*",
        (
            "linkedin/Liger-Kernel src/liger_kernel/ops/rope.py, unslothai/unsloth unsloth/kernels/, "
            "Dao-AILab/flash-attention flash_attn/layers/rotary.py, NVIDIA/TransformerEngine: their Functions"
        ),
    ),
    (
        "norm",
        r"Fast_(RMS_)?Layernorm(Backward)?",
        "unslothai/unsloth unsloth/kernels/rms_layernorm.py, layernorm.py, torch.autograd.Function",
    ),
    (
        "experts",
        r"_GroupedLinear(Backward)?",
        "NVIDIA/TransformerEngine transformer_engine/pytorch/module/grouped_linear.py",
    ),
    (
        "sends",
        r"_moe_(un)?permute_\w+|_moe_chunk_sort(Backward)?",
        "NVIDIA/TransformerEngine transformer_engine/pytorch/permutation.py, torch.autograd.Function",
    ),
    (
        "communication",
        r"Fused(Dispatch|Combine)(Backward)?",
        "NVIDIA/Megatron-LM megatron/core/transformer/moe/fused_a2a.py: DeepEP",
    ),
    (
        "core",
        r"FusedAttnFunc\w*|AttnFuncWithCP\w*",
        "NVIDIA/TransformerEngine transformer_engine/pytorch/attention/, torch.autograd.Function",
    ),
    ("core", r"flex_attention(_backward)?", "pytorch/pytorch torch/_higher_order_ops/flex_attention.py"),
    ("norm", r"_C::(fused_add_)?rms_norm\w*", "vllm-project/vllm csrc/torch_bindings.cpp"),
    (
        "activation",
        r"_C::((silu|gelu|gelu_tanh|fatrelu|swigluoai)_and_mul|mul_and_silu)\w*",
        "vllm-project/vllm csrc/torch_bindings.cpp",
    ),
    (
        "experts",
        r"vllm::(moe_forward(_shared)?|(in|out)place_fused_experts)",
        "vllm-project/vllm vllm/model_executor/layers/fused_moe/, direct_register_custom_op",
    ),
    (
        "scan",
        r"vllm::((plamo2_)?mamba_mixer2?|linear_attention|gdn_attention_core|kda_attention)",
        "vllm-project/vllm vllm/config/compilation.py, CompilationConfig._attention_ops",
    ),
    (
        "scan",
        r"(MambaSplitConv1dScanCombined|MambaChunkScanCombined|MambaInner|SelectiveScan)Fn(Backward)?",
        "state-spaces/mamba mamba_ssm/ops/, torch.autograd.Function",
    ),
)

KERNELS: tuple[Row, ...] = (
    (
        "norm",
        r"\bgeneral(T5)?(Layer|Rms)Norm",
        "NVIDIA/FasterTransformer src/fastertransformer/kernels/layernorm_kernels.cu; RMS: alibaba/rtp-llm",
    ),
    (
        "attention.core",
        r"\bmasked_multihead_attention_kernel",
        "NVIDIA/FasterTransformer kernels/decoder_masked_multihead_attention/; TensorRT-LLM shares the name",
    ),
    (
        "attention.other",
        r"\b(add_fusedQKV_bias_transpose|transpose_4d_batch_major_[kv]_cache)",
        "NVIDIA/FasterTransformer src/fastertransformer/kernels/unfused_attention_kernels.cu",
    ),
    (
        "mlp.activation",
        r"\bfastertransformer::generic_activation",
        "NVIDIA/FasterTransformer src/fastertransformer/kernels/activation_kernels.cu",
    ),
    (
        "embedding",
        r"\bfastertransformer::(start_id_embedding|embedding_lookup)",
        "NVIDIA/FasterTransformer kernels/gpt_kernels.cu; alibaba/rtp-llm",
    ),
    (  # Triton kernels that write to other ranks' symmetric memory
        "communication",
        r"\b_\w{0,40}all_to_all_\w{0,40}kernel",
        "pytorch/ao torchao/prototype/moe_training/ep/syncless/token_dispatch.py, token_combine.py",
    ),
    (
        "moe.dispatch",
        r"\b_precompute_(push_write|combine)_offsets_kernel",
        "pytorch/ao torchao/prototype/moe_training/ep/syncless/token_dispatch.py, token_combine.py",
    ),
    (
        "embedding",
        r"\b(split|dense|ssd)_embedding_\w{0,40}codegen_(forward|backward|grad)",
        "pytorch/FBGEMM fbgemm_gpu/codegen/training/",
    ),
    (
        "communication",
        r"\b(multimem|one_shot|two_shot)_\w*all_(reduce|gather)\w*",
        "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu",
    ),
    (
        "communication",
        r"\bcross_device_reduce_[12]stage",
        "vllm-project/vllm csrc/custom_all_reduce.cuh; SGLang shares the name",
    ),
    (
        "communication",
        EXPERT_EXCHANGES,
        "deepseek-ai/DeepEP csrc/kernels/internode.cu, intranode.cu, internode_ll.cu; issue 348 for _ll",
    ),
    (
        "communication",
        r"\ballreduce_fusion_kernel|\b(one|two)ShotAllReduce|\bquickreduce::|\bmoereduce_allreduce",
        (
            "flashinfer-ai/flashinfer flashinfer/comm/trtllm_allreduce_fusion.cuh; NVIDIA/TensorRT-LLM "
            "cpp/tensorrt_llm/kernels/customAllReduceKernels.cu; vllm-project/vllm csrc/quickreduce/"
        ),
    ),
    ("moe.dispatch", r"\bget_dispatch_layout\b", "deepseek-ai/DeepEP csrc/kernels/layout.cu"),
    (
        "attention.core",
        r"\b_fwd_kernel_aligned|\b_fwd_(grouped_)?kernel_stage[12]|\bmerge_attn_states_kernel",
        (
            "pytorch-labs/segment-anything-fast flash_4.py; sgl-project/sglang layers/attention/triton_ops/; "
            "vllm-project/vllm csrc/attention/merge_attn_states.cu"
        ),
    ),
    (
        "attention.core",
        r"[Ff]lash_?[Mm][Ll][Aa]|mla_(decode|prefill|fwd|splitkv)|(decode|fwd|splitkv|sparse)_mla",
        "deepseek-ai/FlashMLA csrc/; vllm-project/vllm csrc/attention/mla/",
    ),
    (
        "attention.other",
        r"\b(reshape_and_cache|concat_and_cache_|set_mla_kv_buffer|store_kvcache)",
        "vllm-project/vllm csrc/cache_kernels.cu; sgl-project/sglang python/sglang/srt/mem_cache/",
    ),
    (  # batches of unequal rows, one for each expert
        "moe.experts",
        r"^bmm_(Mx)?(E2m1|E4m3|Bfloat16|Fp16)_|\bmoe::dev::activation::",
        "flashinfer-ai/flashinfer csrc/trtllm_batched_gemm_runner.cu; SemiAnalysisAI/InferenceX issue 863",
    ),
    (
        "moe.experts",
        r"\bfused_moe::run_global\b|MoeFCGemm",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/cutlass_extensions/; FlashInfer and vLLM share it",
    ),
    (
        "mlp.activation",
        r"\bsilu_(and|mul)_(mul_)?(cvt|quant|nvfp4)",
        "vllm-project/vllm csrc/quantization/fp4/activation_nvfp4_quant_fusion_kernels.cu",
    ),
    (
        "moe.dispatch",
        (
            r"\bmoe::dev::(permute|convertsf)::|\b(finalizeMoeRouting|expandInputRows)|BuildExpertMaps"
            r"|ExpertPrefixSum|\broutingIndices(Histogram|Offsets)"
        ),
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/; FlashInfer shares it",
    ),
    (
        "moe.router",
        r"\bmoe_fused_gate_kernel|\brouter_gemm_kernel",
        "sgl-project/sglang sgl-kernel/csrc/moe/moe_fused_gate.cu; vllm-project/vllm csrc/moe/",
    ),
    (
        "communication",
        r"\bk?userbuffers_\w+",
        "NVIDIA/TransformerEngine common/comm_gemm_overlap/userbuffers/userbuffers.cu",
    ),
    (
        "attention.core",
        r"fmhaSm\d+\w*Kernel|cutlass::fmha::kernel",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/trtllmGenKernels/fmha; NVIDIA/cutlass examples/77",
    ),
    (
        "attention.core",
        r"Batch(Prefill|Decode)With(Paged|Ragged)KVCache\w*Kernel|Single(Prefill|Decode)WithKVCacheKernel",
        "flashinfer-ai/flashinfer include/flashinfer/attention/prefill.cuh, decode.cuh",
    ),
    (
        "attention.core",
        r"\bpaged_attention_v[12]_kernel|\bkernel_unified_attention_[23]d|^reduce_segments$",
        "vllm-project/vllm csrc/attention/, vllm/attention/ops/triton_unified_attention.py",
    ),
    (
        "attention.core",
        r"\bflashinfer::(\w{1,30}::){0,2}(PrefillWithKVCacheKernel|BatchMLAPage\w{0,40}Kernel)",
        "flashinfer-ai/flashinfer include/flashinfer/attention/: hopper/prefill_sm90.cuh, mla_hopper.cuh",
    ),
    (
        "attention.core",
        r"cudnn_generated_\w{0,60}sdpa",
        "NVIDIA/cudnn-frontend open-source SDPA (issue 377): fort_native and oss kernels",
    ),
    (
        "attention.core",
        r"\bqk_int8?_sv_f(8|16)_attn_kernel",
        "thu-ml/SageAttention csrc/qattn/qk_int_sv_f16_cuda_sm80.cu, qk_int_sv_f8_cuda_sm89.cuh, ..._sm90.cu",
    ),
    (
        "attention.core",
        r"^sage_fwd(_mxfp4)?\b",
        "ROCm/aiter aiter/ops/triton/_triton_kernels/attention/fav3_sage_attention.py, ..._mxfp4.py",
    ),
    (
        "attention.other",
        r"^sage_quant_kernel\b",
        "ROCm/aiter aiter/ops/triton/_triton_kernels/attention/fav3_sage_attention.py: casts q, k and v",
    ),
    (
        "attention.rope",
        r"\bBatchQKApply\w{0,40}Rotary\w{0,60}Kernel",
        "flashinfer-ai/flashinfer include/flashinfer/pos_enc.cuh",
    ),
    (
        "moe.router",
        r"\bmoe::(topkGating|moeTopK)\b|^_topk_forward$",
        "vllm-project/vllm csrc/moe/topk_softmax_kernels.cu; triton-lang/triton triton_kernels/topk_details/",
    ),
    (
        "moe.dispatch",
        (
            r"^_fwd_kernel_ep_(scatter|gather)|^_combined_routing_\w+|^_sum_bitmatrix_\w+"
            r"|^_finalize_matmul(_scatter)?(_|$)|^_reduce_grouped(_|$)"
        ),
        (
            "sgl-project/sglang layers/moe/ep_moe/kernels.py, which vLLM shares; triton-lang/triton "
            "python/triton_kernels/triton_kernels/routing_details/, matmul_ogs_details/_finalize_matmul.py"
        ),
    ),
    (
        "moe.experts",
        r"^fused_moe_kernel_gptq_awq|\bmarlin_moe_wna16::Marlin|^_(p_)?matmul_ogs_",
        (
            "vllm-project/vllm vllm/model_executor/layers/fused_moe/, csrc/moe/marlin_moe_wna16/; "
            "triton-lang/triton python/triton_kernels/triton_kernels/matmul_ogs.py"
        ),
    ),
    (
        "optimizer",
        r"\bk(Precondition)?Optimizer(Static)?(8|32)bit\w*",
        "bitsandbytes-foundation/bitsandbytes csrc/kernels.cu",
    ),
    (  # GemmType: 0 is one GEMM, 4 a batch; the others are GEMMs of groups of rows
        "moe.experts",
        r"\bdeep_gemm::\w+<[^>]{0,300}\(deep_gemm::GemmType\)[1235]\b",
        "deepseek-ai/DeepGEMM deep_gemm/include/deep_gemm/common/types.hpp, impls/",
    ),
    (
        "moe.router",
        r"\bmoe::dev::routing::routing\w+::routing\w*(Main|Cluster|Cooperative|Block)\w*Kernel",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/trtllmGenKernels/blockScaleMoe; FlashInfer shares it",
    ),
    (
        "moe.dispatch",
        r"\bmoe::dev::finalize::finalize\w*Kernel",
        "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/trtllmGenKernels/blockScaleMoe; FlashInfer shares it",
    ),
    (
        "ssm.conv",
        r"causal_conv1d_(channellast_)?(fwd|bwd|update)_kernel",
        "Dao-AILab/causal-conv1d csrc/; vLLM's Triton kernels share the name",
    ),
    (
        "ssm.scan",
        r"\b_(chunk_(scan|state|cumsum)|state_passing|bmm_chunk)(_\w{1,30})?_(fwd|bwd)",
        "state-spaces/mamba mamba_ssm/ops/triton/ssd_*.py",
    ),
    (
        "ssm.scan",
        r"\b_selective_scan_update_kernel|\bselective_scan_(fwd|bwd)_kernel",
        "state-spaces/mamba mamba_ssm/ops/triton/selective_state_update.py, csrc/selective_scan/",
    ),
    (
        "ssm.scan",
        (
            r"\bchunk_(gated_delta_rule_)?(fwd|bwd)_kernel_(h|o|dv|dhu|dqkwg)|\brecompute_w_u_fwd_kernel"
            r"|\bfused_recurrent_\w{0,40}(fwd|bwd)_kernel"
        ),
        "fla-org/flash-linear-attention fla/ops/common/, fla/ops/gated_delta_rule/; vLLM has the same",
    ),
)

#: Ranges whose whole text says what they enclose, read before it is taken apart as a name. Megatron-LM,
#: TransformerEngine and DeepSpeed mark their parts by NVTX, which a Kineto trace does not hold.
RANGES: tuple[Row, ...] = (
    (
        "communication",
        r"FSDP::(all_gather|pre_forward|post_forward|pre_backward|post_backward|root_|\w+_prefetch)",
        "pytorch/pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, _fsdp_state.py",
    ),
    (
        "communication",
        r"FullyShardedDataParallel\.(_(pre|post)_\w+|rate_limiter)",
        "pytorch/pytorch torch/distributed/fsdp/_runtime_utils.py",
    ),
)

#: Ranges around a whole model or step, beside those of the profiler, the compiler and the data loader: what
#: they enclose is any part of it.
AROUND_THE_MODEL: tuple[tuple[str, str], ...] = (
    (
        r"(Distributed|FullySharded)?DataParallel\.forward$",
        "pytorch/pytorch torch/nn/parallel/distributed.py, data_parallel.py, torch/distributed/fsdp/",
    ),
    (r"(Forward|Backward) \d+$|PP:", "pytorch/pytorch torch/distributed/pipelining/schedules.py"),
    (r"graph_\d+_inductor_wrapper_call$", "pytorch/pytorch torch/_inductor/codegen/wrapper.py"),
    (r"TORCHDYNAMO$|\w+ \(dynamo_timed\)$", "pytorch/pytorch torch/_dynamo/profiler.py, utils.py"),
    (
        r"\[pl\]\[profile\]",
        "Lightning-AI/pytorch-lightning src/lightning/pytorch/profilers/pytorch.py",
    ),
    (r"gpu_model_runner: ", "vllm-project/vllm vllm/v1/worker/gpu_model_runner.py"),
    (
        r"FSDP::(cast_forward_(in|out)puts|inputs_to_device)",
        "pytorch/pytorch torch/distributed/fsdp/_fully_shard/_fsdp_state.py",
    ),
)

#: How a range says the module's name among other things: the name is the group.
MODULE_IN_RANGE: tuple[tuple[str, str], ...] = (
    (
        r"\[pl\]\[module\][\w.]+: ([\w.]+)$",
        "Lightning-AI/pytorch-lightning src/lightning/pytorch/profilers/pytorch.py, RegisterRecordFunction",
    ),
)


def patterns_of(rows: tuple[Row, ...], what: str) -> list[str]:
    """The patterns of the rows that are ``what``."""
    return [pattern for kind, pattern, _ in rows if kind == what]
