# ruff: noqa: E501  (kernel names are longer than a line)
"""Names of torch.compile's kernels: how their list splits, and what it proves."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.gemm.inductor import parse_fused, split_ops
from tracelens.gemm.inductor_ops import VOCABULARY

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
TRACES = sorted((SHARED / "traces").glob("**/*.json.gz"))
SEEN = SHARED / "facts" / "kernel_names_seen.tsv"


def ops(text: str) -> tuple[str, ...]:
    parsed = parse_fused(text)
    assert parsed is not None
    return parsed.ops


def tags(text: str) -> set[str]:
    parsed = parse_fused(text)
    assert parsed is not None
    return set(parsed.tags)


# --- splitting -------------------------------------------------------------------------------------

SPLITS = {
    # names that hold underscores themselves, after names that do not
    "triton_poi_fused__unsafe_view_pow_relu_9": "_unsafe_view pow relu",
    "triton_per_fused_add_addmm_native_dropout_native_layer_norm_native_layer_norm_backward_transpose_"
    "unsqueeze_view_8": "add addmm native_dropout native_layer_norm native_layer_norm_backward transpose "
    "unsqueeze view",
    "triton_red_fused__fused_rms_norm__fused_rms_norm_backward__unsafe_view_add_cat_mul_neg_select_backward_"
    "slice_split_unsqueeze_view_11": "_fused_rms_norm _fused_rms_norm_backward _unsafe_view add cat mul neg "
    "select_backward slice split unsqueeze view",
    # select beside select_backward; unique, so never select select backward
    "triton_per_fused_mul_select_select_backward_sum_view_10": "mul select select_backward sum view",
    # in place: the underscore of copy_ stands before the separator
    "triton_poi_fused__to_copy_clamp_min_copy__div_lerp_mean_mul_pow_rsqrt_sqrt_2": "_to_copy clamp_min "
    "copy_ div lerp mean mul pow rsqrt sqrt",
    "triton_poi_fused__scaled_mm__to_copy_clone_div_lift_fresh_permute_0": "_scaled_mm _to_copy clone div "
    "lift_fresh permute",
    "triton_red_fused__log_softmax_div_mul_prepare_softmax_online_sigmoid_view_31": "_log_softmax div mul "
    "prepare_softmax_online sigmoid view",
    "triton_poi_fused_native_dropout_backward_view_1": "native_dropout_backward view",
    "triton_for_fused__foreach_addcdiv__foreach_sqrt_0": "_foreach_addcdiv _foreach_sqrt",
    # Triton 2 wrote the arguments' properties behind the name
    "triton_poi_fused__scaled_dot_product_flash_attention_2_0d1d2d3d4de": "_scaled_dot_product_flash_attention",
    "triton_tem_fused_addmm_6_0d1d2d3d": "addmm",
    # nothing fused that has a name, no category, another language, AOTInductor's model, ROCm
    "triton_poi_fused_0": "",
    "triton_fused_add_native_layer_norm_5": "add native_layer_norm",
    "cpp_fused_add_mul_3": "add mul",
    "model_triton_poi_fused_add_mul_3": "add mul",
    "triton_poi_fused_add_mul_3.kd": "add mul",
    # descriptive_names = "inductor_node": graph order, numbered; "torch": backward without underscore
    "triton_poi_fused_mul_3_add_1_mul_12_5": "mul add mul",
    "triton_per_fused_gelubackward_layer_normbackward_2": "gelubackward layer_normbackward",
}


@pytest.mark.parametrize(("name", "expected"), SPLITS.items())
def test_split(name: str, expected: str) -> None:
    assert " ".join(ops(name)) == expected
    parsed = parse_fused(name)
    assert parsed is not None
    assert parsed.unknown == ()


def test_unknown_operators_are_kept_whole() -> None:
    parsed = parse_fused("triton_poi_fused__to_copy_add_cat_fmha_v3_fwd_mul_neg_stack_unbind_view_13")
    assert parsed is not None
    assert parsed.unknown == ("fmha_v3_fwd",)
    assert parsed.ops == ("_to_copy", "add", "cat", "mul", "neg", "stack", "unbind", "view")
    # mm is in the vocabulary, but the rest of the name would stand out of order behind it
    loss = parse_fused("triton_red_fused__log_softmax_backward_data_div_mm_backward_mul_view_0")
    assert loss is not None
    assert loss.unknown == ("mm_backward",)
    assert "mm" not in loss.ops
    cut = parse_fused("triton_poi_fused_add_cat_native_layer_nor_4")
    assert cut is not None
    assert cut.unknown == ("native_layer_nor",)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "triton",
        "triton_matmul_kernel",
        "_rms_norm_forward_kernel",
        "create_flashinfer_kv_indices_triton",
        "void at::native::vectorized_elementwise_kernel<4>",
        "fused_add_3",
        "triton_poi_fused",
        "my_fused_kernel_0",
    ],
)
def test_not_inductors(name: str) -> None:
    assert parse_fused(name) is None


KINDS = {
    "triton_poi_fused_add_0": "pointwise",
    "triton_per_fused_sum_0": "persistent_reduction",
    "triton_red_fused_sum_0": "reduction",
    "triton_tem_fused_mm_0": "template",
    "triton_mm": "template",
    "triton_flex_attention_backward": "template",
    "triton_for_fused_add_0": "foreach",
    "triton_spl_fused_cumsum_0": "split_scan",
    "triton_unk_fused_add_0": "unknown",
    "triton_fused_add_0": "unknown",
    "triton__0d1d2d3de": "unknown",
    "triton_": "unknown",
    "triton_poi__7": "pointwise",
}


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_kind(name: str, kind: str) -> None:
    parsed = parse_fused(name)
    assert parsed is not None
    assert parsed.kind == kind


@given(st.lists(st.sampled_from(sorted(VOCABULARY)), min_size=1, max_size=14, unique=True).map(sorted))
@settings(max_examples=150)
def test_a_list_of_operators_comes_back_whole(names: list[str]) -> None:
    text = "_".join(names)
    pieces = split_ops(text)
    assert "_".join(piece for piece, _ in pieces) == text
    assert all(is_op for _, is_op in pieces)
    assert len(pieces) <= len(names)  # clamp and min read as clamp_min, never the other way


@given(st.text("abcdmw_0123", min_size=1, max_size=40))
@settings(max_examples=150)
def test_no_character_is_lost(text: str) -> None:
    assert "_".join(piece for piece, _ in split_ops(text)) == text


def test_the_longest_names_are_quick() -> None:
    text = "_".join(f"op{number}" for number in range(400))
    assert split_ops(text) == ((text, False),)


# --- tags ------------------------------------------------------------------------------------------

TAGS = {
    # seen in the profiles of a GPT with RMSNorm, squared ReLU, gated attention and Muon
    "triton_poi_fused__unsafe_view_pow_relu_9": "activation",
    "triton_poi_fused__unsafe_view_mul_nll_loss_forward_pow_relu_threshold_backward_view_5": "activation_backward",
    "triton_per_fused__fused_rms_norm__unsafe_view_add_12": "add norm",
    "triton_per_fused__fused_rms_norm__fused_rms_norm_backward_add_view_7": "add norm norm_backward",
    "triton_red_fused__fused_rms_norm__unsafe_view_add_cat_mul_neg_slice_split_unsqueeze_view_3": "add norm rope",
    # neg is a subtraction's gradient here; slices of a gate are no halves
    "triton_red_fused__fused_rms_norm__fused_rms_norm_backward_add_mul_neg_select_slice_slice_backward_view_19": (
        "add norm norm_backward"
    ),
    "triton_poi_fused__unsafe_view_mul_sigmoid_view_6": "gate",
    "triton_per_fused__flash_attn_backward__unsafe_view_mul_sigmoid_sigmoid_backward_sum_view_10": (
        "attention gate_backward sum"
    ),
    "triton_red_fused__log_softmax_div_mul_prepare_softmax_online_sigmoid_view_40": "gate loss",
    "triton_red_fused__log_softmax__log_softmax_backward_data_div_mm_backward_mul_nll_loss_backward_"
    "nll_loss_forward_sigmoid_backward_view_0": "gate_backward loss_backward",
    "triton_poi_fused__to_copy_permute_t_4": "cast layout",
    "triton_poi_fused__to_copy_div_0": "",
    "triton_poi_fused__to_copy_clamp_min_copy__div_lerp_mean_mul_pow_rsqrt_sqrt_3": "optimizer",
    "triton_poi_fused__to_copy_add_copy__div_gt_mul_sqrt_0": "add optimizer",
    "triton_poi_fused_add_copy__div_mul_0": "add",
    "triton_red_fused__to_copy_linalg_vector_norm_0": "vector_norm",
    "triton_poi_fused_add_mul_4": "add",
    "triton_poi_fused_embedding_0": "embedding",
    "triton_poi_fused_add_embedding_dense_backward_select_backward_view_46": "add embedding_backward",
    # of a compiled encoder with dropout
    "triton_per_fused_add_addmm_native_dropout_native_layer_norm_native_layer_norm_backward_transpose_view_11": (
        "add bias dropout norm norm_backward"
    ),
    "triton_per_fused_add_clone_native_dropout_backward_native_layer_norm_backward_transpose_view_7": (
        "add dropout_backward norm_backward"
    ),
    "triton_poi_fused_gelu_gelu_backward_view_4": "activation_backward",
    "triton_per_fused_native_dropout_backward_sum_view_3": "dropout_backward sum",
    "triton_poi_fused_clone_permute_7": "layout",
    "triton_poi_fused_addmm_gelu_view_17": "activation bias",
    # templates; a fused scale can be all that is left of an integer product's name
    "triton_tem_fused_addmm_5": "gemm",
    "triton_tem_fused_mul_9": "gemm",
    "triton_tem_fused_convolution_0": "",
    "triton_tem_fused_flex_attention_3": "attention",
    "triton_mm": "gemm",
    # lists that torch 2.13 gives for models that spell their parts out
    "triton_per_fused__to_copy__unsafe_view_add_mean_mul_pow_rsqrt_1": "add norm",
    "triton_per_fused__to_copy_add_div_expand_mul_pow_sum_view_1": "add norm_backward sum",
    "triton_poi_fused__softmax_backward_data_div_masked_fill_threshold_backward_view_1": "softmax_backward",
    "triton_poi_fused__unsafe_view_add_cat_clone_mul_neg_slice_slice_backward_transpose_view_1": "add rope",
    "triton_poi_fused__to_copy_clone_transpose_view_view_as_complex_1": "cast layout rope",
    "triton_poi_fused__to_copy_arange_cat_div_eq_exp_mul_neg_ones_tril_unsqueeze_0": "",
    "triton_poi_fused_add_cat_mul_split_sub_transpose_view_1": "add rope",
    "triton_poi_fused_add_mul_pow_tanh_view_1": "activation add",
    "triton_poi_fused_add_mul_pow_tanh_tanh_backward_view_1": "activation_backward add",
    "triton_poi_fused__unsafe_view_add_div_erf_mul_1": "activation add",
    "triton_poi_fused__unsafe_view_add_div_erf_exp_mul_neg_pow_view_1": "activation_backward add",
    "triton_poi_fused__unsafe_view_mul_silu_silu_backward_view_1": "activation_backward",
    "triton_poi_fused__softmax_clone_permute_scatter_unsqueeze_zeros_like_0": "router softmax",
    "triton_red_fused__log_softmax__log_softmax_backward_data_div_expand_neg_new_zeros_scatter_add_0": (
        "loss_backward"
    ),
    "triton_red_fused__log_softmax_gather_mean_neg_zeros_0": "loss",
    "triton_poi_fused_add_addcdiv_copy__div_fma_lerp_mul_neg_pow_reciprocal_rsub_sqrt_0": "add optimizer",
    "triton_for_fused__foreach_add__foreach_addcdiv__foreach_addcmul__foreach_sqrt_copy__full_like_0": "optimizer",
    "triton_per_fused_add_clamp_copy__linalg_vector_norm_mul_reciprocal_stack_0": "add clip",
    "triton_for_fused__foreach_mul_add_clamp_copy__linalg_vector_norm_mul_reciprocal_stack_0": "add clip",
    "triton_poi_fused_nll_loss_forward_0": "loss",
    "triton_poi_fused_constant_pad_nd_0": "layout pad",
    "triton_poi_fused_inductor_random_0": "random",
    # two of the operators that deal rows out to experts; one alone is in losses and masks, too
    "triton_per_fused_argsort_cumsum_0": "router",
    "triton_spl_fused_cumsum_0": "",
    "triton_per_fused_topk_0": "router",
    "triton_poi_fused_gather_sigmoid_0": "router",
    "triton_per_fused_amax_div_exp_sub_sum_0": "softmax sum",
    "triton_per_fused_mean_mul_rsqrt_0": "norm",
    "triton_per_fused_rsqrt_sub_var_mean_0": "norm",
    "triton_red_fused__to_copy_mean_pow_transpose_view_0": "norm",
    "triton_per_fused_add_mean_pow_view_0": "add norm",
    "triton_red_fused_mean_pow_sub_0": "",  # a loss
    "triton_poi_fused_mean_pow_view_0": "",
    # sines of timesteps are of exponentials; rotary ones are not
    "triton_poi_fused_cos_exp_mul_sin_0": "",
    "triton_poi_fused_cos_mul_sin_0": "rope",
    "triton_poi_fused_cos_0": "",
    "triton_poi_fused_threshold_backward_0": "activation_backward",
    "triton_poi_fused_nll_loss_backward_0": "loss_backward",
    "triton__0d1d2d3de": "",
}


@pytest.mark.parametrize(("name", "expected"), TAGS.items())
def test_tags(name: str, expected: str) -> None:
    assert " ".join(sorted(tags(name))) == expected


def test_a_gemm_in_the_list_of_another_kernel_is_no_gemm() -> None:
    for category in ("poi", "per", "red"):
        assert "gemm" not in tags(f"triton_{category}_fused_add_addmm_native_layer_norm_view_8")
    assert "bias" not in tags("triton_tem_fused_addmm_gelu_view_8")


# --- real profiles ---------------------------------------------------------------------------------


def _names(path: Path) -> set[str]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return set(re.findall(r"(?<![\w:])triton_(?:poi|per|red|tem|for|spl|unk|_0d)\w*", text))


@pytest.mark.skipif(not TRACES or not SEEN.exists(), reason="the shared traces are not here")
def test_every_name_of_real_profiles_splits() -> None:
    one_per_job = [path for path in TRACES if "rank" not in path.name or path.name.startswith("rank0")]
    names = set().union(*map(_names, [*one_per_job, SEEN]))
    assert len(names) > 250
    unknown: set[str] = set()
    for name in names:
        parsed = parse_fused(name)
        assert parsed is not None, name
        unknown.update(parsed.unknown)
    # custom operators of the models: an attention library's and a fused loss's
    assert unknown == {"aiter_sage_attn", "fmha_v3_fwd", "mm_backward"}
