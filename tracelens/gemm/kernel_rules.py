"""The table of kernel-name patterns: which names are GEMM or attention kernels, and what they state.

Order matters: kernels that only mention a GEMM (fused pointwise and reduction kernels carry the names
of the operators around them) are refused first, then attention, then convolutions are refused (they
run as implicit GEMMs, with a GEMM's words in their names), then the GEMM families.

Tile order. BLAS kernels compute torch's row-major out[M,N] as the column-major out^T[N,M], so the first
number of their tile lies along torch's N (PyTorch, aten/src/ATen/native/cuda/cuBlasCommonArgs.h). The
swap happens in ``blas_tile`` and nowhere else. Checked on launch grids of public traces:

- nvjet: 144x128 on M=888, N=2880 launches ceil(2880/144) * ceil(888/128) = 20*7 = 140 CTAs.
- cutlass2: 256x128 on M=141, N=30522 launches ceil(30522/256) * ceil(141/128), folded by the swizzle.
- legacy: ampere_sgemm_128x64 on M=1024, N=1536 launches (1536/128, 1024/64) = (12, 16).
- sm80_xmma is the other way round: 256x128 on M=512, N=25088 launches (512/256, 25088/128) = (2, 196).
- sm90_xmma launches a persistent grid that proves neither order, so its order stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

Pair = tuple[int, int]


class Fields(TypedDict, total=False):
    """What a rule read from a name; the rest of ``KernelName`` stays None."""

    tile_m: int | None
    tile_n: int | None
    tile_k: int | None
    tile_pair: Pair | None
    stages: int | None
    cluster: str | None
    split_k: bool | None
    scheduler: str | None
    alignment_elements: int | None
    layout: str | None
    tensor_core: bool | None
    in_dtype: str | None
    out_dtype: str | None
    math_dtype: str | None
    direction: str | None
    head_dim: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """``family`` may name groups of the pattern: "sm{sm}_xmma"."""

    kind: str  # gemm | gemm_helper | attention | attention_helper
    family: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Fields]


_DTYPES = {
    "f16": "fp16", "fp16": "fp16", "half_t": "fp16", "bf16": "bf16", "bfloat16_t": "bf16", "tf32": "tf32",
    "f32": "fp32", "fp32": "fp32", "float": "fp32", "f64": "fp64", "e4m3": "fp8", "e5m2": "fp8",
    "s8": "int8", "i8": "int8", "u8": "uint8", "s32": "int32",
}  # fmt: skip
_NVJET_DTYPES = {"t": "bf16", "h": "fp16", "s": "fp32", "q": "fp8", "r": "fp8"}
_TYPE = r"(?:bf16|tf32|fp16|f16|f32|fp32|f64|s8|u8|s32|e4m3|e5m2)"
#: Shapes of mma instructions; a legacy name without one is a CUDA-core kernel.
_MMA = {"884", "1688", "16816", "8816", "8832", "16832", "8864", "168128", "161616", "32816", "83216"}


def blas_tile(pair: Pair) -> Fields:
    """Tile of a column-major (BLAS) kernel in torch's row-major orientation: the one place that swaps."""
    return {"tile_m": pair[1], "tile_n": pair[0], "tile_pair": pair}


def row_major_tile(pair: Pair) -> Fields:
    """Tile of a kernel whose first number already lies along torch's M."""
    return {"tile_m": pair[0], "tile_n": pair[1], "tile_pair": pair}


def unordered_tile(pair: Pair) -> Fields:
    """Tile of a family whose order is not known: told only where it cannot matter."""
    side = pair[0] if pair[0] == pair[1] else None
    return {"tile_m": side, "tile_n": side, "tile_pair": pair}


def _ints(match: re.Match[str], first: str, second: str) -> Pair:
    return int(match[first]), int(match[second])


def _optional(match: re.Match[str], group: str) -> int | None:
    return int(match[group]) if match[group] is not None else None


def _nvjet(match: re.Match[str]) -> Fields:
    types, rest = match["types"], match["rest"].split("_")
    hopper = match["sm"] == "90" or "coopA" in rest or "coopB" in rest
    in_dtypes = {_NVJET_DTYPES.get(types[0]), _NVJET_DTYPES.get(types[1] if len(types) == 5 else types[0])}
    in_dtype = in_dtypes.pop() if len(in_dtypes) == 1 else None
    return {
        **blas_tile(_ints(match, "a", "b")),
        "tile_k": int(match["k"]),
        "stages": int(match["stages"]),
        "cluster": match["cluster"],
        "split_k": "splitK" in rest,
        # Hopper's nvjet grids never exceed the SM count; Blackwell's are not settled.
        "scheduler": "persistent" if hopper else None,
        "layout": match["layout"],
        "tensor_core": True,
        "in_dtype": in_dtype,
        "out_dtype": _NVJET_DTYPES.get(types[-1]),
        # Hopper has no fp32 tensor-core instruction but tf32; Blackwell also emulates fp32 with bf16.
        "math_dtype": in_dtype if in_dtype != "fp32" else "tf32" if hopper else None,
    }


def _xmma(match: re.Match[str]) -> Fields:
    types, rest, sm = match["types"], match["rest"], int(match["sm"])
    pair = _ints(match, "a", "b")
    tensor_core = (
        True
        if "_warpgroupsize" in rest or re.search(r"_tensor\d", rest)
        else False
        if "_ffma" in rest
        else None
    )
    first = re.match(_TYPE, types)
    in_dtype = _DTYPES[first[0]] if first else None
    cluster = re.search(r"_cgasize(\d+)x(\d+)x", rest)
    split_k: bool | None = None
    if re.search(r"split_?k|segment_k_on", rest, re.IGNORECASE):
        split_k = True
    elif "segment_k_off" in rest:
        split_k = False
    return {
        **(row_major_tile(pair) if sm < 90 else unordered_tile(pair)),
        "tile_k": int(match["k"]),
        "stages": _optional(match, "stages"),
        "cluster": f"{cluster[1]}x{cluster[2]}" if cluster else None,
        "split_k": split_k,  # sm80 kernels split through grid z and do not say so
        "scheduler": "persistent" if sm == 90 else None,
        "layout": match["layout"].upper(),
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "math_dtype": "tf32" if "tf32" in types else in_dtype if tensor_core is not None else None,
    }


def _cutlass2(match: re.Match[str]) -> Fields:
    tensor_core = match["core"] != "simt"
    stated = [_DTYPES[name] for name in re.findall(_TYPE, match["types"] or "")]
    plain = {"s": "fp32", "d": "fp64", "h": "fp16"}.get(match["op"])
    # Without a type, s1688gemm takes fp32 and multiplies in tf32; d884gemm is fp64, h16816gemm fp16.
    in_dtype = stated[0] if stated else plain
    math_dtype = "tf32" if tensor_core and in_dtype == "fp32" else in_dtype
    return {
        **blas_tile(_ints(match, "a", "b")),
        "tile_k": _optional(match, "k"),
        "stages": _optional(match, "stages"),
        "alignment_elements": int(match["align"]),
        "layout": match["layout"].upper(),
        "tensor_core": tensor_core,
        "in_dtype": "fp32" if in_dtype == "tf32" else in_dtype,
        "out_dtype": "fp32" if match["out"] == "tf32" else _DTYPES.get(match["out"] or ""),
        "math_dtype": math_dtype,
    }


def _cutlass3(match: re.Match[str]) -> Fields:
    types = match["types"].split("_")
    layout, rest = match["layout"], match["rest"]
    # The third letter is the output's: n = column-major, a BLAS call; t = row-major, called as written.
    swapped = layout[2] == "n"
    pair = _ints(match, "a", "b")
    in_dtype = _DTYPES.get(types[0])
    tensor_core = match["core"] == "tensorop"
    return {
        **(blas_tile(pair) if swapped else row_major_tile(pair)),
        "tile_k": int(match["k"]),
        "stages": int(match["stages"]) or None,  # 0 = chosen by the builder
        "cluster": match["cluster"],
        "scheduler": "stream_k" if re.search("stream_?k", rest) else None,
        "alignment_elements": int(match["align"]),
        "layout": layout[:2].upper() if swapped else None,
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "out_dtype": _DTYPES.get(types[-1]),
        "math_dtype": "tf32" if tensor_core and in_dtype == "fp32" else in_dtype,
    }


def _legacy(match: re.Match[str]) -> Fields:
    name = match.string
    tile = re.search(r"gemm(?:_[a-z]+\d+)?_(\d+)x(\d+)(?=_|$)", name)
    stages = re.search(r"_stages_(\d+)x(\d+)", name)
    layout = re.search(r"_([nt]{2})(?:_v\d+)?$", name)
    op, mma = match["op"], match["mma"]
    tensor_core = True if mma in _MMA else False if not mma else None
    plain = {"s": "fp32", "d": "fp64", "h": "fp16"}.get(op)
    in_dtype = _DTYPES.get(match["type"] or "")
    if in_dtype is None and (not mma or op in "dh"):
        in_dtype = plain  # s884gemm/s1688gemm without a type take fp16 or tf32: not told
    return {
        **(blas_tile((int(tile[1]), int(tile[2]))) if tile else {}),
        "tile_k": int(stages[1]) if stages else None,
        "stages": int(stages[2]) if stages else None,
        "split_k": True if "splitK" in name else None,
        "layout": layout[1].upper() if layout else None,
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "math_dtype": in_dtype if tensor_core is not None else None,
    }


def _deep_gemm(match: re.Match[str]) -> Fields:
    """sm90_fp8_gemm_1d2d_impl<MajorSFB, M, N, K, groups, BLOCK_M, BLOCK_N, BLOCK_K, ...> (deepseek-ai/DeepGEMM)."""
    fields: Fields = {"tensor_core": True, "in_dtype": "fp8" if "fp8" in match["name"] else None}
    fields["math_dtype"] = fields["in_dtype"]
    if match["name"].endswith("1d2d_impl"):
        numbers = [re.fullmatch(r"(?:\([\w :]+\))?(\d+)u?", arg.strip()) for arg in match["args"].split(",")]
        blocks = [int(number[1]) for number in numbers[5:8] if number]
        if len(blocks) == 3:
            fields.update(row_major_tile((blocks[0], blocks[1])))
            fields["tile_k"] = blocks[2]
    return fields


def _simt(match: re.Match[str]) -> Fields:
    return {"tensor_core": False}


def _sgemm(match: re.Match[str]) -> Fields:
    return {"tensor_core": False, "in_dtype": "fp32", "math_dtype": "fp32"}


def _gemmsn(match: re.Match[str]) -> Fields:
    return {"tensor_core": False, "layout": match["layout"]}


def _tensor(match: re.Match[str]) -> Fields:
    return {"tensor_core": True}


def _nothing(match: re.Match[str]) -> Fields:
    return {}


def _triton(match: re.Match[str]) -> Fields:
    return {}  # tile and types are only in the launching CPU event's kwargs


def _trtllm(match: re.Match[str]) -> Fields:
    return {**unordered_tile(_ints(match, "a", "b")), "tile_k": int(match["k"]), "tensor_core": True}


def _tensile(match: re.Match[str]) -> Fields:
    letters = {"Ailk": "N", "Alik": "T", "Bljk": "N", "Bjlk": "T"}
    tile = re.search(r"_MT(\d+)x(\d+)x(\d+)_", match.string)
    dtype = {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["type"])
    return {
        **(unordered_tile((int(tile[1]), int(tile[2]))) if tile else {}),
        "tile_k": int(tile[3]) if tile else None,
        "layout": letters[match["a"]] + letters[match["b"]],
        "tensor_core": True if re.search(r"_MI\d+x\d+x\d+", match.string) else None,
        "in_dtype": dtype,
    }


def _flash2(match: re.Match[str]) -> Fields:
    backward = match["direction"] == "bwd"
    traits = re.search(r"Flash_(?:fwd|bwd)_kernel_traits<(\d+), (\d+), (\d+),", match.string)
    dtype = re.search(r"cutlass::(bfloat16_t|half_t)", match.string)
    in_dtype = _DTYPES[dtype[1]] if dtype else None
    return {
        **(row_major_tile((int(traits[2]), int(traits[3]))) if traits else {}),
        "head_dim": int(traits[1]) if traits else None,
        "tensor_core": True,
        "in_dtype": in_dtype,
        "math_dtype": in_dtype,
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
    in_dtype = "fp8" if dtype and "e4m3" in dtype[1] else _DTYPES[dtype[1]] if dtype else None
    return {
        **(row_major_tile((int(tile[1]), int(tile[2]))) if tile else {}),
        "head_dim": int(tile[3]) if tile else None,
        "tensor_core": True,
        "in_dtype": in_dtype,
        "math_dtype": in_dtype,
        "direction": "backward" if "Bwd" in match[0] else "forward",
    }


def _mem_efficient(match: re.Match[str]) -> Fields:
    in_dtype = _DTYPES[match["type"]]
    return {
        **row_major_tile(_ints(match, "a", "b")),
        # fp32 inputs may run on CUDA cores or as split tf32 products: the name does not say.
        "tensor_core": None if in_dtype == "fp32" else True,
        "in_dtype": in_dtype,
        "math_dtype": None if in_dtype == "fp32" else in_dtype,
        "direction": "forward" if match["way"] == "F" else "backward",
    }


def _cudnn_sdpa(match: re.Match[str]) -> Fields:
    return {"tensor_core": True, "direction": "backward" if "bprop" in match.string else "forward"}


def _direction(match: re.Match[str]) -> Fields:
    backward = re.search(r"[Bb]wd|[Bb]ackward|bprop|dkdv|dk_dv", match.string)
    return {"direction": "backward" if backward else "forward"}


def _rule(kind: str, family: str, pattern: str, read: Callable[[re.Match[str]], Fields]) -> Rule:
    return Rule(kind, family, re.compile(pattern), read)


#: Never a GEMM, whatever operators the name lists: generated pointwise and reduction kernels, ATen's own
#: elementwise and reduction kernels, collectives, copies. Anchored: a GEMM may mention any of these words
#: in its template arguments or, as triton_tem_fused_addmm_native_layer_norm_3 does, in its epilogue.
NOT_GEMM = re.compile(
    r"^triton_(?:poi|per|red|for|split_scan|mix)_|^triton__\d|^(?:nccl|rccl|Memcpy|Memset)"
    r"|^(?:void )?(?:\(anonymous namespace\)::)?(?:at::native|fbgemm_gpu|at_cuda_detail::cub|cub|thrust)::"
)
#: Convolutions run as implicit GEMMs; they are not matrix products of the model and are not judged here.
CONVOLUTION = re.compile(
    r"implicit_gemm|convol|[fdw]grad|fprop|_conv\d?_|_conv_|conv_fwd|conv_bwd|cudnn|igemm_(?:fwd|bwd|wrw)"
    r"|[Ww]inograd|miopen",
)

ATTENTION_RULES: tuple[Rule, ...] = (
    _rule("attention_helper", "flash3", r"flash::FlashAttn(?:Bwd(?:Pre|Post)process|FwdCombine)", _direction),
    _rule("attention_helper", "flash3", r"flash::prepare_varlen_num_blocks_kernel", _nothing),
    _rule("attention", "flash3", r"\bFlashAttn(?:Fwd|Bwd)Sm\d+", _flash3),
    _rule("attention", "flash3", r"(?P<direction>)flash::compute_attn_ws<", _flash2),
    _rule("attention_helper", "flash4", r"FlashAttention\w*(?:Preprocess|Postprocess|Combine)", _direction),
    _rule("attention", "flash4", r"FlashAttention(?:Forward|Backward)Sm\d+", _direction),
    _rule(
        "attention_helper",
        "flash2",
        r"(?<![a-z_])flash_(?:fwd|bwd)_\w*(?:combine|dot_do_o|convert_d|clear_d)",
        _direction,
    ),
    _rule("attention", "flash2", r"(?<![a-z_])flash_(?P<direction>fwd|bwd)_\w*", _flash2),
    _rule(
        "attention",
        "mem_efficient",
        r"fmha_cutlass(?P<way>F|B)_(?P<type>bf16|f16|f32)_(?:aligned|notaligned)_(?P<a>\d+)x(?P<b>\d+)",
        _mem_efficient,
    ),
    _rule("attention_helper", "cudnn_sdpa", r"cudnn::fusion::compute_dot_do_o|cudnn\w*sdpa\w*convert", _nothing),
    _rule("attention", "cudnn_sdpa", r"cudnn_generated_\w*sdpa", _cudnn_sdpa),
    _rule("attention", "trtllm_fmha", r"^fmhaSm\d+\w*Kernel|^fmha_v2_\w+", _direction),
    _rule("attention", "flashinfer", r"flashinfer::\w*(?:Prefill|Decode)With", _direction),
    _rule("attention", "flex", r"^triton_tem_fused\w*_flex_(?:attention|decoding)", _direction),
    _rule("attention_helper", "aotriton", r"^bwd_preprocess", _direction),
    _rule("attention", "aotriton", r"^(?:attn_fwd|bwd_kernel_(?:dk_dv|dq|fuse))\b", _direction),
    _rule("attention", "aiter", r"^aiter::fmha_(?:fwd|bwd)", _direction),
    _rule("attention", "ck_fmha", r"\bck_tile::\w*Fmha(?:Fwd|Bwd)\w*Kernel", _direction),
)

GEMM_RULES: tuple[Rule, ...] = (
    _rule("gemm_helper", "splitk_reduce", r"splitKreduce_kernel", _nothing),
    _rule("gemm_helper", "cublas_epilogue", r"epilogue::impl::globalKernel<.*cublasLtEpilogue_t", _nothing),
    _rule("gemm_helper", "cublas_dot", r"reduce_1Block_kernel.*cublasGemv", _nothing),
    _rule("gemm", "cublas_dot", r"(?<![A-Za-z_])dot_kernel.*cublasDotParams", _simt),
    _rule(
        "gemm",
        "nvjet",
        r"^nvjet_(?:sm(?P<sm>\d+)_)?(?P<types>[a-z]{3}|[a-z]{5})_(?P<a>\d+)x(?P<b>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
        r"_(?P<cluster>\d+x\d+)f?_(?P<rest>\w+)_(?P<layout>[NT]{2})[NT]$",
        _nvjet,
    ),
    _rule("gemm", "nvjet", r"^nvjet_", _tensor),
    _rule(
        "gemm",
        "sm{sm}_xmma",
        rf"\bsm(?P<sm>\d+)_xmma_gemm_(?P<types>{_TYPE}[a-z0-9_]*?)_(?P<layout>[nt]{{2}})_[nt]"
        r"_tilesize(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)(?:_stage(?P<stages>\d+))?(?P<rest>\w*)",
        _xmma,
    ),
    _rule("gemm", "sm{sm}_xmma", r"\bsm(?P<sm>\d+)_xmma_gemm_", _nothing),
    _rule(
        "gemm",
        "cutlass3",
        rf"cutlass3x_sm\d+_(?P<core>tensorop|simt)_[a-z_]*gemm_(?P<types>{_TYPE}(?:_{_TYPE})*)"
        r"_(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)_(?P<cluster>\d+x\d+)x\d+_(?P<stages>\d+)_(?P<layout>[nt]{3})"
        r"_align(?P<align>\d+)(?P<rest>\w*)",
        _cutlass3,
    ),
    _rule("gemm", "cutlass3", r"cutlass3x_sm\d+_\w*gemm", _nothing),
    _rule(
        "gemm",
        "cutlass2",
        rf"cutlass_\d+_(?P<core>(?:wmma_)?tensorop|simt)_(?P<types>(?:{_TYPE}_)*)"
        rf"(?P<op>[a-z])\d*gemm(?:_relu|_gelu)?(?:_(?P<out>{_TYPE}))?_(?P<a>\d+)x(?P<b>\d+)"
        r"(?:_(?P<k>\d+)x(?P<stages>\d+))?_(?P<layout>[nt]{2})_align(?P<align>\d+)",
        _cutlass2,
    ),
    _rule("gemm", "cutlass2", r"cutlass_\d+_(?:wmma_)?(?:tensorop|simt)_\w*gemm", _nothing),
    _rule("gemm", "deepgemm", r"deep_gemm::(?P<name>\w*gemm\w*)<(?P<args>[^>]*)", _deep_gemm),
    _rule(
        "gemm_helper",
        "grouped",
        r"prepare_grouped_gemm_data|set_grouped_gemm_args_kernel|grouped_gemm::cuda::utils::"
        r"|kernel_cutlass_prepare_kernel\w*_gmm",
        _nothing,
    ),
    _rule("gemm", "grouped", r"cutlass.*(?:GroupProblemShape|GroupedBlockScaledGemm|GemmGrouped)", _tensor),
    _rule("gemm", "cutlass3", r"cutlass.*GemmUniversal", _nothing),
    _rule("gemm", "cute_dsl", r"^kernel_cutlass_kernel_\w*Gemm", _nothing),
    _rule("gemm", "trtllm_gen", r"^(?:bmm|gemm)_\w+?_t(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)u?\d*_", _trtllm),
    _rule(
        "gemm",
        "legacy",
        rf"^(?:kepler|maxwell|volta|turing|ampere|hopper)_(?:(?P<type>{_TYPE})_)?(?P<op>[a-z]+)(?P<mma>\d*)gemm(?=_)",
        _legacy,
    ),
    _rule("gemm", "legacy", r"^(?:kepler|maxwell|volta|turing|ampere|hopper)_\w*gemm", _nothing),
    _rule("gemm", "gemmsn", r"gemmSN_(?P<layout>[NT]{2})_kernel", _gemmsn),
    _rule("gemm", "gemmk1", r"gemmk1_kernel", _simt),
    _rule("gemm", "gemv", r"(?<![A-Za-z_])gemv\w*kernel|internal::gemvx::kernel", _simt),
    _rule("gemm", "magma", r"magma_sgemmEx_kernel", _sgemm),
    _rule("gemm", "legacy", r"\bsgemm_largek_lds64", _sgemm),
    _rule(
        "gemm",
        "triton_template",
        r"^triton_tem_fused(?=_)(?!\w*convolution)\w*_(?:addmm|baddbmm|bmm|mm)(?=_|$)",
        _triton,
    ),
    _rule("gemm", "triton_moe", r"^fused_moe_kernel\b", _triton),
    _rule("gemm", "ck", r"\bck::kernel_\w*gemm|\bck_tile::\w*Gemm\w*Kernel", _nothing),
    _rule(
        "gemm",
        "tensile",
        r"^(?:Custom_)?Cijk_(?P<a>Ailk|Alik)_(?P<b>Bljk|Bjlk)_(?P<type>[A-Z])",
        _tensile,
    ),
)
