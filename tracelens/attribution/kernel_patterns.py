"""What kernel libraries call their GPU kernels: the component that a name states, each row sourced.

Names that one model's script made up are not here; ``kernels.kernel_component`` reads the tables.
"""

from __future__ import annotations

from tracelens.attribution.patterns import Row

#: Kernels of DeepEP, "a communication library tailored for Mixture-of-Experts (MoE) and expert parallelism"
#: (its README): tokens to their experts and back, and the counts that go before.
EXPERT_EXCHANGES = r"\b(internode|intranode|internode_ll)::(\w*notify\w*|(dispatch|combine)(_ll)?|barrier)\b"

#: Component, a pattern that is searched in the whole name, where the name comes from.
KERNELS: tuple[Row, ...] = (
    (
        "norm",
        r"\bgeneral(T5)?(Layer|Rms)Norm",
        "NVIDIA/FasterTransformer src/fastertransformer/kernels/layernorm_kernels.cu; RMS: alibaba/rtp-llm",
    ),
    (
        "attention.other",
        r"\b(add_fusedQKV_bias_transpose|transpose_4d_batch_major_[kv]_cache)",
        "NVIDIA/FasterTransformer src/fastertransformer/kernels/unfused_attention_kernels.cu",
    ),
    (
        "attention.other",
        r"\bkernel_cutlass_kernel_cudnndeepseek_sparse_attentionindexer_",
        "NVIDIA/cudnn-frontend python/cudnn/deepseek_sparse_attention/indexer_forward",
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
        "attention.rope",
        r"\bfused_rope_(store_)?kernel",
        "sgl-project/sglang python/sglang/jit_kernel/csrc/elementwise/rope.cuh",
    ),
    (
        "norm",
        r"\bfused_qknorm_(?!rope)",
        "sgl-project/sglang python/sglang/jit_kernel/csrc/elementwise/qknorm.cuh",
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
)

#: Component, then the functions that prove it, each matched whole: the name of a Triton kernel, or the
#: C++ function without namespaces and template arguments. Left out: what ``kernels`` knows by a word
#: (layer_norm, rms_norm, entropy), and on purpose names that several kinds of kernel bear (_fwd_kernel,
#: unary_kernel, L2NormFunctor, a softmax without a mask).
FUNCTIONS: tuple[tuple[str, ...], ...] = (
    # linkedin/Liger-Kernel src/liger_kernel/ops/:
    # group_norm.py, poly_norm.py, dyt.py, rope.py, llama4_rope.py, qwen2vl_mrope.py, swiglu.py, geglu.py,
    # relu_squared.py, vocab_parallel_cross_entropy.py, kl_div.py, jsd.py, tvd.py,
    # grpo_loss.py, utils.py (element_mul_kernel scales the loss's gradient), experimental/embedding.py,
    # mlp.py (projections and SwiGLU in one kernel), fused_moe_kernels.py
    ("norm", r"_(group|poly)_norm_(forward|backward)_kernel|_dyt_(fwd|bwd)_kernel"),
    ("attention.rope", r"_triton_rope|_triton_qwen2vl_mrope|_llama4_rope_kernel|_rope_kernel"),
    (
        "mlp.activation",
        r"_swiglu_(fused_gate_up_)?(forward|backward)_kernel(_tiled)?",
        r"_geglu_(tanh_|exact_)?(forward|backward)_kernel|_relu_squared_(forward|backward)_kernel",
    ),
    (
        "loss",
        r"liger_vocab_parallel_ce_(forward|backward)_kernel|element_mul_kernel",
        r"_kldiv_kernel_(forward|backward)|_jsd_kernel|_tv_distance_kernel",
        r"_grpo_loss_(fwd|bwd)_kernel(_seq)?|_selective_log_softmax_kernel",
    ),
    ("embedding", r"embedding_(forward_)?kernel"),
    ("mlp.other", r"_swiglu_kernel_(forward|backward)(_inference|_dGU|_dI)?"),
    ("moe.experts", r"_fused_(up_proj_swiglu|down_proj)_kernel|_moe_bwd_(down_proj|dW\d|dX_expanded)_kernel"),
    ("moe.dispatch", r"_moe_router_(histogram|prefix_sum|scatter)_kernel|_token_gather_weighted_sum_kernel"),
    # unslothai/unsloth unsloth/kernels/: rope_embedding.py, swiglu.py, geglu.py, moe/grouped_gemm/kernels/
    ("attention.rope", r"_rope_embedding(_QK)?"),
    ("mlp.activation", r"_fg_kernel|_DWf_DW_dfg_kernel|_(exact|approx)_(forward|backward)_kernel"),
    ("moe.experts", r"_grouped_gemm_(forward|dX|dW)_kernel"),
    # Dao-AILab/flash-attention flash_attn/ops/triton/rotary.py;
    # csrc/layer_norm/ln_*_kernels.cuh, which apex has too (apex/contrib/csrc/layer_norm)
    ("norm", r"ln_(parallel_residual_)?(fwd|bwd|bwd_finalize)_kernel"),
    ("attention.rope", r"_?rotary_kernel"),
    # fla-org/flash-linear-attention fla/modules/, fla/ops/: attention by a softmax; recurrences in chunks
    ("norm", r"l2norm_(fwd|bwd)_kernel1?"),
    ("mlp.activation", r"(swi|pow|sigmoid)glu_(fwd|fwdbwd)_kernel"),
    ("loss", r"logsumexp_fwd_kernel|kl_div_kernel|grpo_(fwd|bwd)_kernel"),
    (
        "attention.core",
        r"parallel_(attn|nsa|path|wall_attn|parallax|deltaformer)_(compression_)?(fwd|bwd)_\w+",
    ),
    ("ssm.conv", r"causal_conv1d_states_fwd_kernel"),
    (
        "ssm.scan",
        r"_?(fused_)?(chunk|chunkwise|parallel)_(\w+_)?(fwd|bwd)_\w+",
        r"fused_recurrent_(\w+_)?(fwd|bwd|\w*ward)_kernel\w*",
        r"prepare_(precond_)?wy_repr_\w+|recompute_w_u_fwd_\w+|wu_fwd_kernel|solve_tril_\w+",
        r"merge_16x16_to_\w+_inverse_kernel|chunk_(local|global)_cumsum_\w+|(gdn|kda)_gate_\w+",
        r"fused_beta_sigmoid_(fwd|bwd)_kernel|(pre_process|merge)_(fwd|bwd)_\w*kernel\w*",
    ),
    # ROCm/aotriton tritonsrc/: PyTorch's flash attention on AMD
    # NVIDIA/TransformerEngine transformer_engine/common/: normalization/, fused_rope/fused_rope.cu,
    # fused_softmax/ (apex csrc/megatron/ has the same), util/vectorized_pointwise.h,
    # triton/cross_entropy.py, fused_router/, permutation/permutation.cu, triton/permutation.py
    ("norm", r"ln_(fwd|bwd|bwd_finalize)_(tuned|general)_kernel"),
    ("attention.rope", r"fused_(qkv_)?rope_(thd_linear_grid_)?(forward|backward)_kernel"),
    ("attention.softmax", r"scaled_(\w+_)?masked_softmax_warp_(forward|backward)(_new)?"),
    ("attention.softmax", r"scaled_softmax_warp_forward"),
    ("mlp.activation", r"d?gated_act_kernel"),
    ("mlp.activation", r"scaled_(gated|unary)_(forward|backward)_kernel"),
    ("dropout", r"dropout_kernel_fwd_(f16|fp8)|apply_dropout_mask"),
    ("attention.other", r"thd_\w+_kernel|transpose_to_bhsd_\w+|convert_(thd_to_bshd|bshd_to_thd)_kernel"),
    ("attention.other", r"(reindex|copy_to)_kv_cache_kernel"),
    ("moe.experts", r"grouped_bias_add_kernel|_grouped_dbias_kernel|setup_grouped_gemm_kernel"),
    ("residual", r"_mhc_\w+"),  # manifold-constrained hyper-connections, of Liger-Kernel, too
    ("loss", r"online_softmax_kernel"),
    ("moe.router", r"fused_(moe_aux_loss|score_for_moe_aux_loss|topk_with_score_function)_\w+"),
    ("moe.router", r"fused_topk_(forward_simple|backward_selected_indices)_kernel"),
    (
        "moe.dispatch",
        r"moe_(un)?permute_(kernel|row_map)|_(un)?permute_kernel|_unpermute_bwd_with_merging_probs_kernel",
        r"_row_id_map_pass_\d_kernel|_sort_chunks_by_map_kernel|_make_chunk_sort_map_kernel",
    ),
    # NVIDIA/apex csrc/layer_norm_cuda_kernel.cu, csrc/megatron/fused_rotary_positional_embedding.h,
    # apex/contrib/csrc/xentropy/xentropy_kernel.cu, apex/contrib/csrc/optimizers/
    ("norm", r"cuComputeGradInput|cuComputePartGradGammaBeta"),
    ("attention.rope", r"fused_rope_(2d_|cached_|thd_)?(forward|backward)"),
    ("loss", r"cunn_SoftMaxXEntropy(Forward|Backward)"),
    ("optimizer", r"(reversible_)?adam_cuda_kernel"),
    # NVIDIA/Megatron-LM megatron/core/fusions/: fused_mla_yarn_rope_apply.py (rotary_* in older ones),
    # fused_indices_converter.py, fused_pad_routing_map.py; megatron/core/inference/moe/
    ("attention.rope", r"_mla_rope_(fwd|bwd)_(inplace|kv_split)_kernel|rotary_(fwd|bwd)_(q|kv)_kernel"),
    (
        "moe.dispatch",
        r"_indices_to_multihot_kernel|_multihot_to_indices_kernel|_pad_routing_map_kernel",
        r"_(un)?permute_tokens(_in_expert_order)?_kernel|_init_permutation_map_kernel",
    ),
    # vllm-project/vllm csrc/: pos_encoding_kernels.cu, activation_kernels.cu,
    # moe/topk_softmax_kernels.cu, moe/moe_align_sum_kernels.cu; FlashInfer and SGLang share the names
    ("attention.rope", r"(batched_)?rotary_embedding_kernel"),
    ("mlp.activation", r"act_and_mul_kernel|_?(silu|gelu|gelu_tanh|swiglu)_and_mul\w*"),
    ("moe.router", r"topkGatingSoftmax|topk_softmax|grouped_topk_fused_kernel"),
    (
        "moe.dispatch",
        r"moe_align_block_size(_\w+)?_kernel|moe_sum_kernel|count_and_sort_expert_tokens_kernel",
    ),
    ("moe.experts", r"fused_moe_kernel"),
    # facebookresearch/xformers xformers/ops/_triton/rope_padded_kernels.py
    ("attention.rope", r"_rope_padded_kernel"),
    # pytorch/torchtitan torchtitan/models/moe/kernels.py
    ("moe.dispatch", r"_fill_indices_kernel"),
    # KellerJordan/modded-nanogpt triton_kernels.py: Muon's Newton-Schulz products X X^T, X^T X and
    # b A + c A A; one kernel for relu(x W)^2 and for its gradient
    ("optimizer", r"XXT_kernel|XTX_kernel|ba_plus_cAA_kernel"),
    ("mlp.other", r"linear_relu_square_kernel"),
)
