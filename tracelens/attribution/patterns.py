"""What frameworks call their operators and ranges: one table, each row sourced.

A row is (what it is, pattern, where the name comes from). Operators are matched whole and give a rule
(``names.op_rule``). Names that one model's script made up are not here.
"""

from __future__ import annotations

Row = tuple[str, str, str]

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
    (r"\[pl\]\[profile\]", "Lightning-AI/pytorch-lightning src/lightning/pytorch/profilers/pytorch.py"),
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
