"""The operators that can stand in the name of a kernel of torch.compile, by what their presence says.

Inductor builds a kernel's name from the names of the operators whose nodes it fused
(``get_fused_kernel_name`` in torch/_inductor/utils.py): an ATen name without its overload, or the name
of a higher-order operator. The names are listed here instead of read from torch: the analysis does not
import torch. Checked against the operators torch 2.13 registers (``torch._C._dispatch_get_all_op_names``).
"""

from __future__ import annotations

from typing import Final


def _ops(text: str) -> frozenset[str]:
    return frozenset(text.split())


NORM: Final = _ops("""
    layer_norm native_layer_norm rms_norm _fused_rms_norm group_norm native_group_norm instance_norm
    batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_elemt batch_norm_stats
    _batch_norm_with_update _batch_norm_no_update _batch_norm_with_update_functional
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
""")
NORM_BACKWARD: Final = _ops("""
    native_layer_norm_backward _fused_rms_norm_backward native_group_norm_backward batch_norm_backward
    native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward
    layer_norm_backward rms_norm_backward group_norm_backward
    batch_norm_backward_elemt batch_norm_backward_reduce
""")
SOFTMAX: Final = _ops("softmax _softmax _safe_softmax _masked_softmax")
SOFTMAX_BACKWARD: Final = _ops("softmax_backward _softmax_backward_data _masked_softmax_backward")
LOG_SOFTMAX: Final = _ops("log_softmax _log_softmax cross_entropy cross_entropy_loss cross_entropy_loss2d")
LOG_SOFTMAX_BACKWARD: Final = _ops("_log_softmax_backward_data log_softmax_backward cross_entropy_backward")
#: The second half of a cross entropy. It leaks into other kernels through constants they share.
NLL: Final = _ops("nll_loss nll_loss_forward nll_loss2d_forward nll_loss_nd")
NLL_BACKWARD: Final = _ops("nll_loss_backward nll_loss2d_backward")
OTHER_LOSS: Final = _ops("""
    mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy ctc_loss _ctc_loss
    binary_cross_entropy_with_logits cosine_embedding_loss soft_margin_loss margin_ranking_loss
""")
OTHER_LOSS_BACKWARD: Final = _ops("""
    mse_loss_backward smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward
    soft_margin_loss_backward _ctc_loss_backward
""")
EMBEDDING: Final = _ops("embedding embedding_bag _embedding_bag _embedding_bag_forward_only")
EMBEDDING_BACKWARD: Final = _ops("""
    embedding_backward embedding_dense_backward embedding_sparse_backward _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward
""")
DROPOUT: Final = _ops("dropout native_dropout feature_dropout alpha_dropout _fused_dropout")
DROPOUT_BACKWARD: Final = _ops("native_dropout_backward dropout_backward _masked_scale")
ACTIVATION: Final = _ops("""
    gelu silu mish relu relu6 leaky_relu elu celu selu glu hardswish hardsigmoid hardtanh prelu
    _prelu_kernel rrelu_with_noise threshold
""")
ACTIVATION_BACKWARD: Final = _ops("""
    gelu_backward silu_backward mish_backward threshold_backward leaky_relu_backward elu_backward
    glu_backward hardswish_backward hardsigmoid_backward hardtanh_backward _prelu_kernel_backward
    rrelu_with_noise_backward relu_backward
""")
#: Nonlinear, but as often a gate, a soft cap or a router as an activation.
NONLINEAR: Final = _ops("sigmoid tanh softplus log_sigmoid log_sigmoid_forward hardshrink softshrink erf")
NONLINEAR_BACKWARD: Final = _ops("sigmoid_backward tanh_backward softplus_backward log_sigmoid_backward")
ATTENTION: Final = _ops("""
    scaled_dot_product_attention _fused_sdp_choice _scaled_dot_product_attention_math
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward
    _flash_attention_forward _flash_attention_backward _cudnn_attention_forward
    _cudnn_attention_backward _efficient_attention_forward _efficient_attention_backward
    flex_attention flex_attention_backward flex_decoding
    _flash_attn_forward _flash_attn_backward _flash_attn_varlen_forward _flash_attn_varlen_backward
    flash_attn_func flash_attn_varlen_func
""")
MATMUL: Final = _ops("mm addmm bmm baddbmm addbmm mv addmv matmul linear linear_backward")
#: Matrix products whose operands a pointwise kernel prepares (casts to FP8, packs by expert).
PREPARED_MATMUL: Final = _ops("""
    _scaled_mm _scaled_mm_v2 _scaled_grouped_mm _scaled_grouped_mm_v2 scaled_grouped_mm _grouped_mm
    _int_mm _addmm_activation _weight_int4pack_mm _weight_int8pack_mm
""")
CONVOLUTION: Final = _ops("""
    convolution convolution_backward _convolution cudnn_convolution conv1d conv2d conv3d
    depthwise_conv1d convolution2d convolution3d convolution2d_bwd_weight convolution2d_bwd_input
""")
CAST: Final = _ops("_to_copy to convert_element_type type_as float half bfloat16 _cast_Float _cast_Half")
#: Move or rename elements, compute nothing.
LAYOUT: Final = _ops("""
    alias as_strided as_strided_scatter broadcast_in_dim broadcast_to cat chunk clone concat concatenate
    constant_pad_nd contiguous detach diagonal expand expand_as flatten flip getitem movedim narrow pad
    permute repeat reshape _reshape_alias roll select select_backward select_scatter slice slice_backward
    slice_scatter split split_with_sizes squeeze stack swapaxes t tile transpose unbind unflatten unfold
    unfold_backward unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view view_as view_as_real
    _unsafe_view view_as_complex _reshape_copy _reshape_from_tensor repeat_interleave tensor_split hstack
    vstack im2col col2im moveaxis T mT
""")
#: Those that take halves of a row, or its even and odd elements.
HALVES: Final = _ops("slice split split_with_sizes chunk unbind select narrow getitem unsafe_split")
PAD: Final = _ops("constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d")
OPTIMIZER: Final = _ops("""
    _fused_adam _fused_adamw _fused_sgd _fused_adagrad _foreach_add _foreach_addcdiv _foreach_addcmul
    _foreach_copy _foreach_div _foreach_lerp _foreach_maximum _foreach_minimum _foreach_mul _foreach_neg
    _foreach_pow _foreach_reciprocal _foreach_rsqrt _foreach_sign _foreach_sqrt _foreach_sub
    _foreach_clone _foreach_abs _foreach_exp _foreach_max _foreach_clamp_max _foreach_clamp_min
    _foreach_zero
""")
CLIP: Final = _ops("_foreach_norm clip_grad_norm_")
VECTOR_NORM: Final = _ops("linalg_vector_norm linalg_norm norm renorm linalg_matrix_norm frobenius_norm")
#: Used by routers of experts; the first line by little else in training.
ROUTER: Final = _ops("topk one_hot histc bincount")
ROUTER_HELPERS: Final = _ops("sort argsort scatter scatter_add scatter_reduce cumsum searchsorted bucketize")
RANDOM: Final = _ops("""
    rand rand_like randn randn_like randint randint_like randperm bernoulli multinomial normal
    normal_functional uniform exponential random geometric cauchy log_normal poisson philox_rand
    philox_seed_like inductor_random inductor_randint inductor_seed inductor_seeds inductor_lookup_seed
    rng_prims inductor_rand_eager_offset inductor_rand_eager_offsets graphsafe_run_with_rng_state
""")
ROTATION: Final = _ops("polar view_as_complex view_as_real complex _conj conj")
SUM: Final = _ops("sum sum_to_size")
#: The rest: arithmetic, comparisons, reductions, indexing, factories; proof of nothing alone.
REST: Final = _ops("""
    abs acos acosh add addcdiv addcmul addr all amax amin aminmax any arange argmax argmin asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    cdist ceil clamp clamp_max clamp_min clip copy copysign cos cosh cross cummax cummin cumprod diag
    diag_embed diff div dot einsum empty empty_like empty_strided eq equal erfc erfinv exp exp2 expm1 eye
    fill floor floor_divide fma fmax fmin fmod frac frexp full full_like gather gather_backward ge gt
    hypot index index_add index_copy index_fill index_put index_reduce index_select
    index_select_backward iota isfinite isin isinf isnan item kthvalue le lerp linspace log log10 log1p
    log2 logaddexp logcumsumexp logical_and logical_not logical_or logical_xor logit logspace logsumexp
    logsumexp_backward lt masked_fill masked_scatter masked_scatter_backward masked_select max maximum
    mean median min minimum mul multiply nan_to_num nanmean nansum ne neg new_empty new_full
    new_ones new_zeros nonzero ones ones_like outer pow prod put reciprocal remainder resize round
    rot90 rsqrt rsub scalar_tensor sgn sign signbit sin sinc sinh special_log_softmax special_softmax
    sqrt square std std_mean sub take take_along_dim tan trace tril tril_indices triu triu_indices
    true_divide trunc unique_consecutive var var_mean where xlogy zero zeros zeros_like
    lift_fresh lift_fresh_copy
    _assert_async _local_scalar_dense _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _index_put_impl avg_pool2d adaptive_avg_pool2d
    _adaptive_avg_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward
    upsample_bilinear2d upsample_nearest2d upsample_bicubic2d grid_sampler_2d pixel_shuffle
    prepare_softmax_online _fused_moving_avg_obs_fq_helper fake_quantize_per_tensor_affine
    quantize_per_tensor dequantize fft_fft _fft_r2c _fft_c2r _fft_c2c
    iadd imul isub itruediv truediv floordiv getattr invoke_subgraph cond while_loop
    auto_functionalized auto_functionalized_v2 triton_kernel_wrapper_mutation
    triton_kernel_wrapper_functional inductor_force_stride_order
    wait_tensor all_reduce all_gather_into_tensor reduce_scatter_tensor all_to_all_single
""")

#: ``name=`` of the TritonTemplates in torch/_inductor/kernel/ and fx_passes/b2b_gemm.py; a template that
#: is still being tuned bears this name alone (``triton_mm``)
TEMPLATES: Final = _ops("""
    mm mm_persistent_tma mm_persistent bmm mm_plus_mm grouped_mm scaled_grouped_mm b2b_gemm_left
    b2b_gemm_right scaled_mm_device_tma_epilogue_scaling scaled_mm_device_tma_main_loop_scaling
    blackwell_ws_persistent_device_tma depthwise_conv1d convolution2d convolution3d
    convolution2d_bwd_weight convolution2d_bwd_input flex_attention flex_attention_backward flex_decoding
""")

VOCABULARY: Final = frozenset().union(
    NORM, NORM_BACKWARD, SOFTMAX, SOFTMAX_BACKWARD, LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, NLL, NLL_BACKWARD,
    OTHER_LOSS, OTHER_LOSS_BACKWARD, EMBEDDING, EMBEDDING_BACKWARD, DROPOUT, DROPOUT_BACKWARD, ACTIVATION,
    ACTIVATION_BACKWARD, NONLINEAR, NONLINEAR_BACKWARD, ATTENTION, MATMUL, PREPARED_MATMUL, CONVOLUTION,
    CAST, LAYOUT, PAD, OPTIMIZER, CLIP, VECTOR_NORM, ROUTER, ROUTER_HELPERS, RANDOM, ROTATION, SUM, REST,
)  # fmt: skip
