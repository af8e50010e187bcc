"""The table of GEMM kernel names, and of the names that look like GEMMs and are none.

Order matters: kernels that only mention a GEMM (fused pointwise and reduction kernels carry the names
of the operators around them) are refused first (``NOT_GEMM``), then attention is looked for, then
convolutions are refused (they run as implicit GEMMs, with a GEMM's words in their names), then the
families below, strict patterns before loose ones.
"""

from __future__ import annotations

import re

from tracelens.gemm.kernel_fields import (
    DTYPES,
    Fields,
    Rule,
    blas_tile,
    ints,
    nothing,
    optional,
    row_major_tile,
    rule,
    unordered_tile,
)

_NVJET_DTYPES = {"t": "bf16", "h": "fp16", "s": "fp32", "q": "fp8", "r": "fp8"}
_TYPE = r"(?:bf16|tf32|fp16|f16|f32|fp32|f64|s8|u8|s32|e4m3|e5m2)"
#: Shapes of mma instructions; a legacy name without one is a CUDA-core kernel.
_MMA = {"884", "1688", "16816", "8816", "8832", "16832", "8864", "168128", "161616", "32816", "83216"}


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


def _nvjet(match: re.Match[str]) -> Fields:
    types, rest = match["types"], match["rest"].split("_")
    hopper = match["sm"] == "90" or "coopA" in rest or "coopB" in rest
    in_dtypes = {_NVJET_DTYPES.get(types[0]), _NVJET_DTYPES.get(types[1] if len(types) == 5 else types[0])}
    in_dtype = in_dtypes.pop() if len(in_dtypes) == 1 else None
    return {
        **blas_tile(ints(match, "a", "b")),
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
    pair = ints(match, "a", "b")
    tensor_core = (
        True
        if "_warpgroupsize" in rest or re.search(r"_tensor\d", rest)
        else False
        if "_ffma" in rest
        else None
    )
    first = re.match(_TYPE, types)
    in_dtype = DTYPES[first[0]] if first else None
    cluster = re.search(r"_cgasize(\d+)x(\d+)x", rest)
    split_k: bool | None = None
    if re.search(r"split_?k|segment_k_on", rest, re.IGNORECASE):
        split_k = True
    elif "segment_k_off" in rest:
        split_k = False
    return {
        **(row_major_tile(pair) if sm < 90 else unordered_tile(pair)),
        "tile_k": int(match["k"]),
        "stages": optional(match, "stages"),
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
    stated = [DTYPES[name] for name in re.findall(_TYPE, match["types"] or "")]
    plain = {"s": "fp32", "d": "fp64", "h": "fp16"}.get(match["op"])
    # Without a type, s1688gemm takes fp32 and multiplies in tf32; d884gemm is fp64, h16816gemm fp16.
    in_dtype = stated[0] if stated else plain
    math_dtype = "tf32" if tensor_core and in_dtype == "fp32" else in_dtype
    return {
        **blas_tile(ints(match, "a", "b")),
        "tile_k": optional(match, "k"),
        "stages": optional(match, "stages"),
        "alignment_elements": int(match["align"]),
        "layout": match["layout"].upper(),
        "tensor_core": tensor_core,
        "in_dtype": "fp32" if in_dtype == "tf32" else in_dtype,
        "out_dtype": "fp32" if match["out"] == "tf32" else DTYPES.get(match["out"] or ""),
        "math_dtype": math_dtype,
    }


def _cutlass3(match: re.Match[str]) -> Fields:
    types = match["types"].split("_")
    layout, rest = match["layout"], match["rest"]
    # The third letter is the output's: n = column-major, a BLAS call; t = row-major, called as written.
    swapped = layout[2] == "n"
    pair = ints(match, "a", "b")
    in_dtype = DTYPES.get(types[0])
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
        "out_dtype": DTYPES.get(types[-1]),
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
    in_dtype = DTYPES.get(match["type"] or "")
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
    """DeepGEMM: sm90_fp8_gemm_1d2d_impl<MajorSFB, M, N, K, groups, BLOCK_M, BLOCK_N, BLOCK_K, ...>."""
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


def tensor(match: re.Match[str]) -> Fields:
    return {"tensor_core": True}


def _trtllm(match: re.Match[str]) -> Fields:
    return {**unordered_tile(ints(match, "a", "b")), "tile_k": int(match["k"]), "tensor_core": True}


def _tensile(match: re.Match[str]) -> Fields:
    letters = {"Ailk": "N", "Alik": "T", "Bljk": "N", "Bjlk": "T"}
    tile = re.search(r"_MT(\d+)x(\d+)x(\d+)_", match.string)
    dtype = {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["type"])
    return {
        # Macro tiles are split over K and streamed (GSU, SK) in ways no name or grid told so far: only the
        # numbers as written are given.
        "tile_pair": (int(tile[1]), int(tile[2])) if tile else None,
        "tile_k": int(tile[3]) if tile else None,
        "layout": letters[match["a"]] + letters[match["b"]],
        "tensor_core": True if re.search(r"_MI\d+x\d+x\d+", match.string) else None,
        "in_dtype": dtype,
    }


GEMM_RULES: tuple[Rule, ...] = (
    rule("gemm_helper", "splitk_reduce", r"splitKreduce_kernel", nothing),
    rule("gemm_helper", "cublas_epilogue", r"epilogue::impl::globalKernel<.*cublasLtEpilogue_t", nothing),
    rule("gemm_helper", "cublas_dot", r"reduce_1Block_kernel.*cublasGemv", nothing),
    rule("gemm", "cublas_dot", r"(?<![A-Za-z_])dot_kernel.*cublasDotParams", _simt),
    rule(
        "gemm",
        "nvjet",
        r"^nvjet_(?:sm(?P<sm>\d+)_)?(?P<types>[a-z]{3}|[a-z]{5})_(?P<a>\d+)x(?P<b>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
        r"_(?P<cluster>\d+x\d+)f?_(?P<rest>\w+)_(?P<layout>[NT]{2})[NT]$",
        _nvjet,
    ),
    rule("gemm", "nvjet", r"^nvjet_", tensor),
    rule(
        "gemm",
        "sm{sm}_xmma",
        rf"\bsm(?P<sm>\d+)_xmma_gemm_(?P<types>{_TYPE}[a-z0-9_]*?)_(?P<layout>[nt]{{2}})_[nt]"
        r"_tilesize(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)(?:_stage(?P<stages>\d+))?(?P<rest>\w*)",
        _xmma,
    ),
    rule("gemm", "sm{sm}_xmma", r"\bsm(?P<sm>\d+)_xmma_gemm_", nothing),
    rule(
        "gemm",
        "cutlass3",
        rf"cutlass3x_sm\d+_(?P<core>tensorop|simt)_[a-z_]*gemm_(?P<types>{_TYPE}(?:_{_TYPE})*)"
        r"_(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)_(?P<cluster>\d+x\d+)x\d+_(?P<stages>\d+)_(?P<layout>[nt]{3})"
        r"_align(?P<align>\d+)(?P<rest>\w*)",
        _cutlass3,
    ),
    rule("gemm", "cutlass3", r"cutlass3x_sm\d+_\w*gemm", nothing),
    rule(
        "gemm",
        "cutlass2",
        rf"cutlass_\d+_(?P<core>(?:wmma_)?tensorop|simt)_(?P<types>(?:{_TYPE}_)*)"
        rf"(?P<op>[a-z])\d*gemm(?:_relu|_gelu)?(?:_(?P<out>{_TYPE}))?_(?P<a>\d+)x(?P<b>\d+)"
        r"(?:_(?P<k>\d+)x(?P<stages>\d+))?_(?P<layout>[nt]{2})_align(?P<align>\d+)",
        _cutlass2,
    ),
    rule("gemm", "cutlass2", r"cutlass_\d+_(?:wmma_)?(?:tensorop|simt)_\w*gemm", nothing),
    rule("gemm", "deepgemm", r"deep_gemm::(?P<name>\w*gemm\w*)<(?P<args>[^>]*)", _deep_gemm),
    rule(
        "gemm_helper",
        "grouped",
        r"prepare_grouped_gemm_data|set_grouped_gemm_args_kernel|grouped_gemm::cuda::utils::"
        r"|kernel_cutlass_prepare_kernel\w*_gmm",
        nothing,
    ),
    rule("gemm", "grouped", r"cutlass.*(?:GroupProblemShape|GroupedBlockScaledGemm|GemmGrouped)", tensor),
    rule("gemm", "cutlass3", r"cutlass.*GemmUniversal", nothing),
    rule("gemm", "cute_dsl", r"^kernel_cutlass_kernel_\w*Gemm", nothing),
    rule("gemm", "trtllm_gen", r"^(?:bmm|gemm)_\w+?_t(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)u?\d*_", _trtllm),
    rule(
        "gemm",
        "legacy",
        rf"^(?:kepler|maxwell|volta|turing|ampere|hopper)_(?:(?P<type>{_TYPE})_)?(?P<op>[a-z]+)(?P<mma>\d*)gemm(?=_)",
        _legacy,
    ),
    rule("gemm", "legacy", r"^(?:kepler|maxwell|volta|turing|ampere|hopper)_\w*gemm", nothing),
    rule("gemm", "gemmsn", r"gemmSN_(?P<layout>[NT]{2})_kernel", _gemmsn),
    rule("gemm", "gemmk1", r"gemmk1_kernel", _simt),
    rule("gemm", "gemv", r"(?<![A-Za-z_])gemv\w*kernel|internal::gemvx::kernel", _simt),
    rule("gemm", "magma", r"magma_sgemmEx_kernel", _sgemm),
    rule("gemm", "legacy", r"\bsgemm_largek_lds64", _sgemm),
    rule(
        "gemm",
        "triton_template",
        # Inductor's templates, in a compiled graph and, by the template's own name, while it tunes them
        # (torch/_inductor/kernel/{mm,bmm,mm_plus_mm,mm_grouped}.py). Tile and types are only in the
        # launching CPU event's kwargs. A template whose fused name lists no product is not told apart from
        # a convolution: triton_tem_fused_mul_9.
        r"^triton_tem_fused(?=_)(?!\w*convolution)\w*_(?:addmm|baddbmm|bmm|mm)(?=_|$)"
        r"|^triton_(?:mm|bmm|mm_plus_mm|mm_persistent(?:_tma)?|scaled_mm_device_tma_\w+"
        r"|blackwell_ws_persistent_device_tma|(?:scaled_)?grouped_mm)(?:_\d+)?$",
        nothing,
    ),
    # Muon's X X^T and b A + c A A^T, see user_kernels.
    rule("gemm", "triton_symmetric", r"^(?:XXT|XTX|ba_plus_cAA)_kernel$", nothing),
    rule("gemm", "triton_moe", r"^fused_moe_kernel(?:_gptq_awq)?\b", nothing),
    rule(
        "gemm",
        "triton_grouped",
        r"^_?(?:kernel_)?(?:cg_)?group(?:ed)?_(?:gemm|matmul)\w*(?:kernel|forward|backward)",
        nothing,
    ),
    rule(
        "gemm",
        # By their authors' names: the Triton tutorials, triton_kernels, vLLM, DeepSeek-V3, modded-nanogpt.
        "triton_user",
        r"^_?(?:p_)?matmul_(?:kernel|ogs)|^_?w8a8_(?:triton_)?block_(?:scaled|fp8)_(?:mm|matmul)"
        r"|^_?fp8_gemm\w*kernel|^_?scaled_mm_kernel|^linear_relu_square_kernel$|^awq_gemm_kernel",
        nothing,
    ),
    # Weights of 4 or 8 bits, unpacked inside the product.
    rule("gemm", "marlin", r"\bmarlin\w*::(?:\w+::)*Marlin\w*|\bMarlin(?:_24)?<", tensor),
    rule(
        "gemm",
        "quantized",
        r"gemm_half_q_half\w*_kernel|gemm_forward_4bit_cuda|gemm_4bit_inference",
        nothing,
    ),
    rule("gemm", "ck", r"\bck::kernel_\w*gemm|\bck_tile::\w*Gemm\w*Kernel", nothing),
    rule(
        "gemm",
        "tensile",
        r"^(?:Custom_)?Cijk_(?P<a>Ailk|Alik)_(?P<b>Bljk|Bjlk)_(?P<type>[A-Z])",
        _tensile,
    ),
)
