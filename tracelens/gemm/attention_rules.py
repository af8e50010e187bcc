"""The table of attention kernel names: fused kernels that do scores, softmax and values in one."""

from __future__ import annotations

import re

from tracelens.gemm.kernel_fields import DTYPES, Fields, NameRule, ints, nothing, row_major_tile, rule


def _flash2(match: re.Match[str]) -> Fields:
    traits = re.search(r"Flash_(?:fwd|bwd)_kernel_traits<(\d+), (\d+), (\d+),", match.string)
    dtype = re.search(r"cutlass::(bfloat16_t|half_t)", match.string)
    tile = [int(traits[at]) for at in (2, 3, 1)] if traits else []
    return _flash(tile, DTYPES[dtype[1]] if dtype else None, backward=match["direction"] == "bwd")


def _flash(tile: list[int], dtype: str | None, *, backward: bool) -> Fields:
    """``tile``: rows, columns and the head dimension, where they are known."""
    return {
        **(row_major_tile((tile[0], tile[1])) if tile else {}),
        "head_dim": tile[2] if tile else None,
        "tensor_core": True,
        "in_dtype": dtype,
        "math_dtype": dtype,
        "direction": "backward" if backward else "forward",
    }


def _flash3(match: re.Match[str]) -> Fields:
    name = match.string
    tile = re.search(
        r"CollectiveMainloop\w+<[\d, ]*cute::tuple<[^(]*?>, "
        r"cute::tuple<cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)> ?>",
        name,
    )
    dtype = re.search(r"cutlass::(bfloat16_t|half_t|float_e4m3_t)", name)
    in_dtype = "fp8" if dtype and "e4m3" in dtype[1] else DTYPES[dtype[1]] if dtype else None
    return _flash([int(size) for size in tile.groups()] if tile else [], in_dtype, backward="Bwd" in match[0])


def _mem_efficient(match: re.Match[str]) -> Fields:
    in_dtype = DTYPES[match["type"]]
    return {
        **row_major_tile(ints(match, "a", "b")),
        # fp32 inputs may run on CUDA cores or as split tf32 products: the name does not say.
        "tensor_core": None if in_dtype == "fp32" else True,
        "in_dtype": in_dtype,
        "math_dtype": None if in_dtype == "fp32" else in_dtype,
        "direction": "forward" if match["way"] == "F" else "backward",
    }


def _cudnn_sdpa(match: re.Match[str]) -> Fields:
    way = re.search(r"_([fb])prop_", match.string)
    # Hopper's end in rows, columns and the head dimension that they compute, as calls of each width show
    head = re.search(r"_sm90_\w{0,60}_\d+x\d+x(\d+)_\d+x\d+x\d+", match.string)
    return {
        "tensor_core": True,
        "head_dim": int(head[1]) if head else None,
        "direction": {"f": "forward", "b": "backward"}[way[1]] if way else None,
    }


def _fmha(match: re.Match[str]) -> Fields:
    return {"tensor_core": True, "direction": "backward" if "dgrad" in match[0] else "forward"}


def _stated(match: re.Match[str]) -> Fields:
    backward = re.search(r"[Bb]wd|[Bb]ackward|bprop|dkdv|dk_dv", match.string)
    return {"direction": "backward" if backward else "forward"}


ATTENTION_RULES: tuple[NameRule, ...] = (
    rule("attention_helper", "flash3", r"flash::FlashAttn(?:Bwd(?:Pre|Post)process|FwdCombine)", _stated),
    rule("attention_helper", "flash3", r"flash::prepare_varlen_num_blocks_kernel", nothing),
    rule("attention", "flash3", r"\bFlashAttn(?:Fwd|Bwd)(?:Sm\d|<)", _flash3),
    rule("attention", "flash3", r"(?P<direction>)flash::compute_attn_ws<", _flash2),
    rule("attention_helper", "flash4", r"FlashAttention\w{0,99}(?:Preprocess|Postprocess|Combine)", _stated),
    rule("attention", "flash4", r"FlashAttention(?:Forward|Backward)Sm\d+", _stated),
    rule(
        "attention_helper",
        "flash2",
        r"(?<![a-z_])flash_(?:fwd|bwd)_\w{0,99}(?:combine|dot_do_o|convert_d|clear_d)",
        _stated,
    ),
    rule(
        "attention",
        "flash2",
        # flash_{fwd,bwd}_launch_template.h; ROCm's build names files' functions, flash_fwd_hdim64_bf16_sm80.
        r"(?<![a-z_])flash_(?P<direction>fwd|bwd)_(?:(?:splitkv_(?:mla_)?)?kernel|(?:split_)?hdim\d|dq_dk_dv_loop_)",
        _flash2,
    ),
    rule(
        "attention",
        "mem_efficient",
        r"fmha_cutlass(?P<way>F|B)_(?P<type>bf16|f16|f32)_(?:aligned|notaligned)_(?P<a>\d+)x(?P<b>\d+)_\w{0,99}sm\d",
        _mem_efficient,
    ),
    rule(
        "attention_helper",
        "cudnn_sdpa",
        r"cudnn::fusion::compute_dot_do_o|cudnn\w{0,99}sdpa\w{0,99}convert",
        nothing,
    ),
    rule("attention", "cudnn_sdpa", r"cudnn_generated_\w{0,99}sdpa", _cudnn_sdpa),
    # NVIDIA/cutlass, examples/77_blackwell_fmha and 88_hopper_fmha, as FBGEMM and vLLM build them.
    rule("attention", "cutlass_fmha", r"cutlass\w{0,40}::fmha::kernel::\w{0,99}Fmha", _stated),
    rule("attention", "trtllm_fmha", r"^fmhaSm\d+\w*Kernel|^fmha_v2_\w+", _stated),
    # flashinfer-ai/flashinfer include/flashinfer/attention/: prefill.cuh, decode.cuh, hopper/, mla*.cuh
    rule(
        "attention",
        "flashinfer",
        r"flashinfer::(?:\w{1,30}::){0,2}(?:\w{0,40}(?:Prefill|Decode)With|BatchMLAPage)|\b(?:Batch|Single)(?:Prefill|Decode)With",
        _stated,
    ),
    # deepseek-ai/FlashMLA csrc/; vllm-project/vllm csrc/attention/mla/
    rule(
        "attention",
        "flash_mla",
        r"[Ff]lash_?[Mm][Ll][Aa]|mla_(?:decode|prefill|fwd|splitkv)|(?:decode|fwd|splitkv|sparse)_mla",
        _stated,
    ),
    # vllm-project/vllm csrc/attention/, csrc/rocm/attention.cu
    rule("attention_helper", "vllm", r"\bpaged_attention_(?:v2|ll4mi)_reduce_kernel", _stated),
    rule("attention", "vllm", r"\bpaged_attention_(?:v[12]|ll4mi_QKV_mfma\d+)_kernel", _stated),
    # thu-ml/SageAttention csrc/qattn/; ROCm/aiter aiter/ops/triton/_triton_kernels/attention/fav3_sage*.py
    rule("attention", "sage", r"\bqk_int8?_sv_f(?:8|16)_attn_kernel|^sage_fwd(?:_mxfp4)?\b", _stated),
    # NVIDIA/FasterTransformer kernels/decoder_masked_multihead_attention/; TensorRT-LLM shares the name
    rule("attention", "masked_multihead", r"\bmasked_multihead_attention_kernel", _stated),
    rule("attention", "flex", r"^triton_(?:tem_fused\w*_)?flex_(?:attention|decoding)", _stated),
    # The Triton tutorial's; vllm-project/vllm vllm/attention/ops/, csrc/attention/merge_attn_states.cu;
    # sgl-project/sglang layers/attention/triton_ops/; pytorch-labs/segment-anything-fast flash_4.py
    rule(
        "attention_helper",
        "triton_attention",
        r"^_attn_bwd_preprocess\b|\b_fwd_kernel_stage2|^reduce_segments$|\bmerge_attn_states_kernel",
        _stated,
    ),
    rule(
        "attention",
        "triton_attention",
        r"^_attn_(?:fwd|bwd)\b|\b_fwd_(?:kernel_aligned|(?:grouped_)?kernel_stage1)|\bkernel_unified_attention_[23]d",
        _stated,
    ),
    rule("attention", "fmha", r"^fmha_(?:fprop|dgrad)_\w+", _fmha),
    rule("attention_helper", "aotriton", r"^bwd_preprocess", _stated),
    rule("attention", "aotriton", r"^(?:attn_fwd|bwd_kernel_(?:dk_dv|dq|fuse))\b", _stated),
    rule("attention", "aiter", r"^aiter::fmha_(?:fwd|bwd)", _stated),
    rule("attention", "ck_fmha", r"\bck_tile::\w{0,99}Fmha(?:Fwd|Bwd|Batch)\w{0,99}Kernel", _stated),
)
