"""What frameworks and kernel libraries call their operators, kernels and ranges: one table, each row sourced.

A row is (what it is, pattern, where the name comes from). Operators are matched whole and give a rule
(``names.op_rule``); kernels are searched and give a component (``names.kernel_component``). Names that one
model's script made up are not here.
"""

from __future__ import annotations

Row = tuple[str, str, str]

OPERATORS: tuple[Row, ...] = (
    (
        "communication",
        r"vllm::(all_reduce|all_gather|reduce_scatter)",
        "vllm-project/vllm vllm/distributed/parallel_state.py, direct_register_custom_op",
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
    ("core", r"_vllm_fa[23]_C::\w+", "vllm-project/flash-attention csrc/common/registration.h"),
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
    ("topk", r"_moe_C::(topk_softmax|grouped_topk)", "vllm-project/vllm csrc/moe/torch_bindings.cpp"),
    (
        "dispatch",
        r"_moe_C::(moe_(align_block_size|sum|permute|unpermute)|shuffle_rows)\w*",
        "vllm-project/vllm csrc/moe/torch_bindings.cpp",
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
        r"\b(internode|intranode|internode_ll)::(\w*notify\w*|dispatch|combine|barrier)\b",
        "deepseek-ai/DeepEP csrc/kernels/internode.cu, intranode.cu, internode_ll.cu",
    ),
    ("moe.dispatch", r"\bget_dispatch_layout\b", "deepseek-ai/DeepEP csrc/kernels/layout.cu"),
    (
        "communication",
        r"\buserbuffers_\w+",
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
        r"\bpaged_attention_v[12]_kernel|\bkernel_unified_attention_[23]d",
        "vllm-project/vllm csrc/attention/, vllm/attention/ops/triton_unified_attention.py",
    ),
    (  # GemmType: 0 is one GEMM, 1 and 2 are GEMMs of groups of rows
        "moe.experts",
        r"\bdeep_gemm::\w+<[^>]{0,300}\(deep_gemm::GemmType\)[12]\b",
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
        r"\bchunk_(gated_delta_rule_)?(fwd|bwd)_kernel_(h|o|dv|dhu|dqkwg)|\brecompute_w_u_fwd_kernel",
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
