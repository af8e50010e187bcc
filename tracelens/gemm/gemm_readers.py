"""What the matched parts of a GEMM kernel's name mean, one reader per family of ``gemm_rules``.

Sources, and how each was checked, stand at the reader. A reader is called on a name that matched whole: a
number at the end of a name that was cut off never gets here.
"""

from __future__ import annotations

import re

from tracelens.gemm.kernel_fields import (
    DTYPES,
    Fields,
    blas_tile,
    ints,
    optional,
    oriented_tile,
    row_major_tile,
    unordered_tile,
)

#: Element types as the libraries' own names write them.
TYPE = r"(?:bf16|tf32|fp16|f16|f32|fp32|f64|s8|u8|i8|s32|i32|e4m3|e5m2|int8)"

_NVJET_DTYPES = {"t": "bf16", "h": "fp16", "s": "fp32", "q": "fp8", "r": "fp8", "o": "fp4"}
#: Shapes of mma instructions; a legacy name without one is a CUDA-core kernel.
_MMA = {"884", "1688", "16816", "8816", "8832", "16832", "8864", "168128", "161616", "32816", "83216"}
#: The letter before the instruction is what it accumulates in.
_ACCUMULATOR = {"s": "fp32", "d": "fp64", "h": "fp16", "i": "int32"}
_CUDA_TYPES = {"float": "fp32", "double": "fp64", "__half": "fp16", "half": "fp16", "__nv_bfloat16": "bf16",
               "signed char": "int8"}  # fmt: skip
#: Words of an nvjet name after its beta that leave grid and schedule as they are, or say how they change.
_NVJET_WORDS = re.compile(r"coop[AB]|splitK|bias|algo\d+|[AB]vec\w+")


def nvjet(match: re.Match[str]) -> Fields:
    """nvjet_[smNN_]TYPES_AxB_KxSTAGES_CxC[f][_2cta]_{h,v}_BETA[_coop][_splitK][_bias]..._{opA}{opB}{N,T}.

    NVIDIA documents nothing of it (NVIDIA/TensorRT-LLM issue 1541). Read off launches with shapes, types
    and arguments: types A B, compute, D, or A B C compute D (e5m2 gradients with e4m3 weights: qrtst); tile
    of one CTA, also with _2cta (64x64 in 2cta on M=888, N=640 launches 10 * 14 CTAs on a B200); beta bz = 0
    (mm, bmm), bx = any (baddbmm with beta 3.29), badd = 1 (gradients added in place). sm120's have no cluster
    and state the warp's tile: nvjet_sm120_TYPES_mma_AxBxK_STAGES_WARP_tmaAB[_alignCD4]_BETA_{opA}{opB}{C}{D}.
    Words that are not known may change the schedule: split-K and scheduler are then unknown.
    """
    types, words = match["types"], [word for word in match["rest"].split("_") if word]
    known = all(_NVJET_WORDS.fullmatch(word) for word in words)
    hopper = match["sm"] == "90" or "coopA" in words or "coopB" in words
    in_dtypes = {_NVJET_DTYPES.get(types[0]), _NVJET_DTYPES.get(types[1] if len(types) == 5 else types[0])}
    in_dtype = in_dtypes.pop() if len(in_dtypes) == 1 else None
    pair = ints(match, "a", "b")
    cluster = match.groupdict().get("cluster")
    return {
        **(blas_tile(pair) if cluster is not None else unordered_tile(pair)),
        "tile_k": int(match["k"]),
        "stages": int(match["stages"]),
        "cluster": cluster,
        "split_k": "splitK" in words if known else None,
        # Hopper's nvjet grids never exceed the SM count; Blackwell's are not settled.
        "scheduler": "persistent" if hopper and known else None,
        "layout": match["layout"],
        "tensor_core": True,
        "in_dtype": in_dtype,
        "out_dtype": _NVJET_DTYPES.get(types[-1]),
        # Hopper has no fp32 tensor-core instruction but tf32; Blackwell also emulates fp32 with bf16.
        "math_dtype": in_dtype if in_dtype != "fp32" else "tf32" if hopper else None,
    }


def xmma(match: re.Match[str]) -> Fields:
    """smNN_xmma_gemm_{A}{D}_{math}{accumulate}_{epilogue}_{opA}{opB}_{D}_tilesizeAxBxK_..._kernel.

    Types as calls show them: bf16bf16 gives bf16, f32f32_tf32f32 is fp32 in and out on tf32 cores; bf16f32
    and e4m3bf16 follow. sm80 kernels split K through grid z and do not say so. sm90 kernels state the
    clusters they have (cgasize2x1x1); those that state none launch 30, 98 or 126 CTAs: no clusters of 4.
    """
    types, rest, sm = match["types"], match["rest"], int(match["sm"])
    pair = ints(match, "a", "b")
    tensor_core = (
        True
        if "_warpgroupsize" in rest or re.search(r"_tensor\d", rest)
        else False
        if "_ffma" in rest
        else None
    )
    operands = re.match(rf"({TYPE})({TYPE})_", types + "_")
    in_dtype = DTYPES[operands[1]] if operands else None
    stated = re.search(r"_cgasize(\d+)x(\d+)x1(?=_)", rest)
    cluster = f"{stated[1]}x{stated[2]}" if stated else "1x1" if sm == 90 and "_cgasize" not in rest else None
    aligned = re.search(r"_aligna(\d+)_", rest)
    split_k: bool | None = None
    if re.search(r"split_?k|segment_k_on", rest, re.IGNORECASE):
        split_k = True
    elif "segment_k_off" in rest:
        split_k = False
    return {
        **(row_major_tile(pair) if sm < 100 else unordered_tile(pair)),
        "tile_k": int(match["k"]),
        "stages": optional(match, "stages"),
        "cluster": cluster,
        "split_k": split_k,
        "scheduler": "persistent" if sm == 90 else None,
        "alignment_elements": int(aligned[1]) if aligned else None,
        "layout": match["layout"].upper(),
        "tensor_core": tensor_core,
        "in_dtype": "fp32" if in_dtype == "tf32" else in_dtype,
        "out_dtype": DTYPES[operands[2]] if operands else None,
        "math_dtype": "tf32" if "tf32" in types else in_dtype if tensor_core is not None else None,
    }


def cutlass2(match: re.Match[str]) -> Fields:
    """cutlass_80_tensorop_{D}_s16816gemm_{A}_MxN_KxSTAGES_{opA}{opB}_alignN, CUTLASS's own library names.

    D stands in front where it is not the accumulator's type, A behind where it is not either
    (python/cutlass_library/gemm_operation.py, extended_name): s16816gemm_bf16 takes bf16 and gives fp32, as
    PyTorch's calls of it do before a split-K reduction. With neither, A is the accumulator's: s1688gemm takes
    fp32 and multiplies in tf32.
    """
    tensor_core = match["core"] != "simt"
    accumulator = _ACCUMULATOR.get(match["op"])
    if match["a_type"] is not None:
        in_dtype: str | None = DTYPES[match["a_type"]]
    else:
        # fp32 operands multiply in tf32, whose instruction is 16x8x8; anything else would be a guess.
        plain = accumulator != "fp32" or not tensor_core or match["mma"] == "1688"
        in_dtype = accumulator if plain else None
    if in_dtype == "tf32":
        in_dtype = "fp32"
    out_dtype = DTYPES[match["d_type"]] if match["d_type"] else accumulator
    return {
        **blas_tile(ints(match, "a", "b")),
        "tile_k": optional(match, "k"),
        "stages": optional(match, "stages"),
        "alignment_elements": int(match["align"]),
        "layout": match["layout"].upper(),
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "out_dtype": "fp32" if out_dtype == "tf32" else out_dtype,
        "math_dtype": "tf32" if tensor_core and in_dtype == "fp32" else in_dtype,
    }


#: A row-major operand is the transposed column-major one.
_OTHERWISE = str.maketrans("nt", "tn")


def cutlass3(match: re.Match[str]) -> Fields:
    """cutlass3x_sm90_tensorop_gemm_{A}_{B}_{acc}_{C}_{D}_MxNxK_CxCx1_STAGES_{layouts A B D}_alignN_...

    NVIDIA/cutlass, media/docs/cpp/profiler.md. The third layout is the output's: n = column-major, a BLAS
    call; t = row-major, called as written. With _2sm two SMs share the tile, each half of its M
    (SM100 MMA atoms named 2x1SM); tiles are of one CTA here.
    """
    types, words = match["types"].split("_"), match["rest"].split("_")
    layout = match["layout"]
    first, second = ints(match, "a", "b")
    pair = (first // 2, second) if "2sm" in words else (first, second)
    swapped = layout[2] == "n"
    in_dtype = DTYPES.get(types[0]) or _scaled(types[0])
    tensor_core = match["core"].endswith("tensorop")
    letters = layout[:2] if swapped else layout[1::-1].translate(_OTHERWISE)
    return {
        **oriented_tile(pair, column_major=swapped),
        "tile_k": int(match["k"]),
        "stages": int(match["stages"]) or None,  # 0 = chosen by the builder
        "cluster": match["cluster"],
        "scheduler": "stream_k" if re.search("stream_?k", match["rest"]) else None,
        "alignment_elements": int(match["align"]),
        "layout": letters.upper(),
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "out_dtype": DTYPES.get(types[-1]),
        "math_dtype": "tf32" if tensor_core and in_dtype == "fp32" else in_dtype,
    }


def _scaled(text: str) -> str | None:
    """Operand of a block-scaled product: ue8m0xe4m3 is scale x element."""
    element = text.split("x")[-1] if "x" in text else ""
    return {"e4m3": "fp8", "e5m2": "fp8", "f8": "fp8", "f4": "fp4", "e2m1": "fp4"}.get(element)


def legacy(match: re.Match[str]) -> Fields:
    """ampere_{D}_s16816gemm_{A}_AxB[_slicedSxS]_ldgN[_relu][_f2f]_stages_KxSTAGES_{opA}{opB}.

    Types as in CUTLASS's names, which came from here: ampere_s16816gemm_bf16 takes bf16 and gives fp32.
    """
    rest, op, mma = match["rest"], match["op"], match["mma"]
    stages = re.search(r"_stages_(\d+)x(\d+)(?=_|$)", rest)
    loaded = re.search(r"_ldg(\d+)(?=_|$)", rest)
    tensor_core = True if mma in _MMA else False if not mma else None
    accumulator = _ACCUMULATOR.get(op)
    stated = DTYPES.get(match["a_type"] or "")
    in_dtype = "fp32" if stated == "tf32" else stated
    if in_dtype is None and (not mma or op in "dh"):
        in_dtype = accumulator  # s884gemm and s1688gemm without a type take fp16 or tf32: not told
    out = DTYPES.get(match["d_type"] or "") or accumulator
    return {
        **blas_tile(ints(match, "a", "b")),
        "tile_k": int(stages[1]) if stages else None,
        "stages": int(stages[2]) if stages else None,
        "split_k": True if "splitK" in rest else None,
        "alignment_elements": int(loaded[1]) if loaded else None,
        "layout": match["layout"].upper(),
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "out_dtype": "fp32" if out == "tf32" else out,
        "math_dtype": ("tf32" if stated == "tf32" else in_dtype) if tensor_core is not None else None,
    }


def trtllm_gen(match: re.Match[str]) -> Fields:
    """bmm_..._tMxNxK[uU]_sSTAGES_..._cgaXxYxZ_..._{opA}{opB}_transOut_..., TensorRT-LLM's and FlashInfer's.

    transOut computes out^T, weights first: t128x16x256 is 128 output features by 16 tokens
    (BatchedGemmOptions.h, mTransposeMmaOutput). u2 is an unrolled loop over K.
    """
    words = match["rest"].split("_")
    stages = [int(word[1:]) for word in words if re.fullmatch(r"s\d+", word)]
    cluster = re.search(r"_cga(\d+)x(\d+)x1_", match["rest"])
    return {
        **oriented_tile(ints(match, "a", "b"), column_major="transOut" in words),
        "tile_k": int(match["k"]),
        "stages": stages[0] if len(stages) == 1 else None,
        "cluster": f"{cluster[1]}x{cluster[2]}" if cluster else None,
        "tensor_core": True,
    }


def tensile(match: re.Match[str]) -> Fields:
    """Cijk_Alik_Bljk_..._MT128x96x64_...: AMD's rocBLAS and hipBLASLt."""
    letters = {"Ailk": "N", "Alik": "T", "Bljk": "N", "Bjlk": "T"}
    tile = re.search(r"_MT(\d+)x(\d+)x(\d+)_", match.string)
    dtype = {"B": "bf16", "H": "fp16", "S": "fp32", "D": "fp64"}.get(match["type"])
    return {
        # Macro tiles are split over K and streamed (GSU, SK) in ways no name or grid told so far: only the
        # numbers as written are given.
        "tile_pair": (int(tile[1]), int(tile[2])) if tile else None,
        "tile_k": int(tile[3]) if tile else None,
        "layout": letters[match["a"]] + letters[match["b"]],
        "tensor_core": True if re.search(r"_MI\d+x\d+x\d+_", match.string) else None,
        "in_dtype": dtype,
    }


def simt(match: re.Match[str]) -> Fields:
    """Products with vectors and other small ones: CUDA cores, the operands' type from cuBLAS's templates."""
    element = re.search(r"cublasGemvTensor\w*<([\w ]+?)(?: const)?>", match.string)
    in_dtype = _CUDA_TYPES.get(element[1]) if element else None
    return {"tensor_core": False, "in_dtype": in_dtype, "math_dtype": in_dtype}


def sgemm(match: re.Match[str]) -> Fields:
    return {"tensor_core": False, "in_dtype": "fp32", "math_dtype": "fp32"}


def gemmsn(match: re.Match[str]) -> Fields:
    return {**simt(match), "layout": match["layout"]}


def tensor(match: re.Match[str]) -> Fields:
    return {"tensor_core": True}
