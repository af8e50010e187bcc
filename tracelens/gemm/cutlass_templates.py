"""CUTLASS and DeepGEMM kernels that carry their parameters as C++ template arguments.

CUTLASS 3 (include/cutlass/gemm/collective/collective_mma_decl.hpp and, in epilogue/collective,
collective_epilogue.hpp)::

    CollectiveMma<DispatchPolicy, TileShape_MNK, ElementA, StrideA, ElementB, StrideB, TiledMma, ...>
    CollectiveEpilogue<DispatchPolicy, CtaTile_MNK, ..., ElementC, StrideC, ElementD, StrideD, ...>

StrideA is of A[M, K], StrideB of B[N, K], StrideD of D[M, N]; the dimension of stride C<1> is contiguous. On
sm100, TileShape_MNK is that of the MMA, which two SMs share where the instruction's name has 2x1SM; the
epilogue's tile is one CTA's: PyTorch's grouped product states 256x256x64 there and 128x256x64 here.

CUTLASS 2 (gemm/threadblock/mma_multistage.h, mma_pipelined.h): the first argument is GemmShape<M, N, K> of
the CTA, and the kernel's output is row-major; device::Gemm turns a column-major one around first.
"""

from __future__ import annotations

import re
from typing import Literal

from tracelens.gemm.kernel_fields import Fields, Pair, oriented_tile, row_major_tile

_INTEGER = re.compile(r"(?:\([\w: ]+\))?(\d+)[ul]*")
_SIZE = re.compile(r"cute::C<(?:\(int\))?(\d+)>")
#: A stride known at run time only stands as its type.
_DYNAMIC = re.compile(r"cute::tuple<(?:cute::C<1>, )?(?:long|int)\b")
_ELEMENTS = {
    "cutlass::half_t": "fp16", "cutlass::bfloat16_t": "bf16", "cutlass::float_e4m3_t": "fp8",
    "cutlass::float_e5m2_t": "fp8", "cutlass::tfloat32_t": "fp32", "float": "fp32", "double": "fp64",
    "signed char": "int8", "int": "int32", "__half": "fp16", "__nv_bfloat16": "bf16", "__nv_fp8_e4m3": "fp8",
    "__nv_fp8_e5m2": "fp8",
}  # fmt: skip
_SCALED = re.compile(r"cutlass\w*::(?:mx|nv)_float(\d)_t<|cute::tuple<cutlass\w*::float_e(\d)m\d_t, ")

#: Where DeepGEMM's templates keep BLOCK_M (BLOCK_N and BLOCK_K follow it) and the stages, per kernel and
#: number of arguments, which tells its versions apart: every definition in deep_gemm/include/deep_gemm/ from
#: February 2025 to June 2026. One count of fp8_gemm_kernel, 12, had two meanings within a day: the stages or
#: the threads that copy stand eighth. Out is row-major [M, N].
_DEEP_GEMM: dict[str, dict[int, tuple[int, int]]] = {
    "fp8_gemm_kernel": {11: (2, 6), 13: (2, 7), 14: (2, 8)},
    "fp8_wgrad_gemm_kernel": {11: (2, 5)},
    "sm90_bf16_gemm_impl": {16: (4, 8), 17: (4, 8), 21: (6, 12)},
    "sm90_fp8_gemm_1d1d_impl": {15: (4, 7), 17: (4, 9)},
    "sm90_fp8_gemm_1d2d_impl": {15: (4, 8), 16: (4, 8), 17: (4, 8), 19: (5, 11), 20: (5, 11)},
    "sm90_tf32_hc_prenorm_gemm_impl": {10: (2, 7)},
    "sm100_bf16_gemm_impl": {22: (5, 12), 23: (5, 12), 25: (5, 12)},
    "sm100_fp8_gemm_1d1d_impl": {21: (5, 12), 22: (5, 12), 26: (7, 14)},
    "sm100_fp8_gemm_1d2d_impl": {20: (5, 12), 21: (5, 12), 22: (5, 12)},
    "sm100_fp8_fp4_gemm_1d1d_impl": {27: (7, 14), 29: (8, 15)},
    "sm100_tf32_hc_prenorm_gemm_impl": {10: (2, 7)},
}

_TMA_THREADS = 128


def arguments(text: str, template: str) -> list[str] | None:
    """Template arguments of the first ``template<`` in ``text``; None where it is absent or cut off.

    >>> arguments("f<g<1, h<2> >, 3>(int)", "f")
    ['g<1, h<2> >', '3']
    """
    found = re.search(rf"(?<!\w){re.escape(template)}<", text)
    if found is None:
        return None
    parts, depth, start = [], 0, found.end()
    for at in range(found.end(), len(text)):
        letter = text[at]
        if letter in "<([{":
            depth += 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
        elif letter in ">)]}":
            if depth == 0:
                return [*parts, text[start:at].strip()]
            depth -= 1
    return None


def cutlass3(match: re.Match[str]) -> Fields:
    """GemmUniversal<ProblemShape, CollectiveMma<...>, CollectiveEpilogue<...>, ...>."""
    text = match.string
    main, epilogue = arguments(text, "CollectiveMma"), arguments(text, "CollectiveEpilogue")
    tensor_core = True if main and re.search(r"GMMA|UMMA|SM100_MMA|SM120|MMA_Atom<cute::SM\d", text) else None
    if main is None or len(main) < 6:
        return {}
    mma, stride_a, stride_b = _sizes(main[1]), main[3], main[5]
    cta = _cta_tile(mma, main[6] if len(main) > 6 else "", epilogue)
    if mma is None or cta is None:
        return {"tensor_core": tensor_core, **_element(main[2])}
    out, out_stride = _output(epilogue)
    column_major = None if out_stride is None else _contiguous(out_stride) == 0
    policy = main[0]
    stages = re.search(r"<(?:\(int\))?(\d+)(?=[,>])", policy)
    cluster = _cluster(policy)
    return {
        **oriented_tile(cta, column_major=column_major),
        "tile_k": mma[2],
        "stages": int(stages[1]) if stages else None,
        "cluster": cluster,
        "scheduler": _scheduler(text),
        "layout": _layout(stride_a, stride_b, column_major=column_major),
        "tensor_core": tensor_core,
        **_element(main[2]),
        "out_dtype": out,
    }


def cutlass2(match: re.Match[str]) -> Fields:
    """kernel::Gemm...<threadblock::Mma{Multistage,Pipelined,...}<GemmShape<M, N, K>, ...>, ...>."""
    text = match.string
    for template in ("MmaMultistage", "MmaPipelined", "MmaSingleStage"):
        args = arguments(text, f"threadblock::{template}")
        if args is not None:
            break
    else:
        return {}
    shape = re.fullmatch(r"cutlass\w*::gemm::GemmShape<(.*)>", args[0])
    sizes = [_integer(part) for part in shape[1].split(",")] if shape else []
    if len(sizes) != 3 or None in sizes:
        return {}
    m, n, k = (size or 0 for size in sizes)
    whole = ", ".join(args)
    element = re.search(
        r"PredicatedTile(?:Access)?Iterator\w*<cutlass\w*::MatrixShape<[^<>]*>, ([\w: ]+),", whole
    )
    in_dtype = _ELEMENTS.get(element[1]) if element else None
    stages = [int(found[1]) for arg in args[1:] if (found := re.fullmatch(r"(?:\(int\))?(\d+)", arg))]
    tensor_core = True if "MmaTensorOp" in whole else False if "MmaSimt" in whole else None
    return {
        **row_major_tile((m, n)),
        "tile_k": k,
        "stages": stages[0] if len(stages) == 1 else 2 if template == "MmaPipelined" else None,
        "tensor_core": tensor_core,
        "in_dtype": in_dtype,
        "math_dtype": in_dtype
        if in_dtype != "fp32"
        else None
        if tensor_core is None
        else "tf32"
        if tensor_core
        else "fp32",
    }


def deep_gemm(match: re.Match[str]) -> Fields:
    """DeepGEMM: sm90_fp8_gemm_1d2d_impl<MajorSFB, M, N, K, groups, BLOCK_M, BLOCK_N, BLOCK_K, ...>."""
    name = match["name"]
    args = arguments(match.string, name) or []
    dtype = "fp8" if "fp8" in name else "bf16" if "bf16" in name else None
    if "fp4" in name and args.count("cutlass::float_e4m3_t") != 2:
        dtype = None  # one operand of 8 and one of 4 bits, or not stated
    fields: Fields = {"tensor_core": True, "in_dtype": dtype, "math_dtype": dtype}
    places = _DEEP_GEMM.get(name, {}).get(len(args))
    if (name, len(args)) == ("fp8_gemm_kernel", 12) and _integer(args[7]) == _TMA_THREADS:
        places = 2, 6
    if places is None:
        return fields
    block, stages = places
    m, n, k = (_integer(arg) for arg in args[block : block + 3])
    if m is None or n is None or k is None:
        return fields
    return {
        **fields,
        **row_major_tile((m, n)),
        "tile_k": k,
        "stages": _integer(args[stages]),
        # One CTA per SM walks the tiles; the hyper-connection's small product launches one per tile.
        "scheduler": None if "hc_prenorm" in name else "persistent",
        **_compiled_sizes(name, [_integer(arg) or None for arg in args[:block]]),
    }


def _compiled_sizes(name: str, before: list[int | None]) -> Fields:
    """M, N and K, which stand before BLOCK_M: sm90's ``_impl`` have kNumGroups between, fp8_gemm_kernel takes
    M at run time and the weight's gradient K. 0 is what a launch sets."""
    if "hc_prenorm" in name:
        return {}
    if len(before) == 2:
        before = [*before, None] if "wgrad" in name else [None, *before]
    m, n, k = before[-4:-1] if name.startswith("sm90_") else before[-3:]
    return {"sizes": (m, n, k)}


def _integer(text: str) -> int | None:
    found = _INTEGER.fullmatch(text.strip())
    return int(found[1]) if found else None


def _sizes(text: str) -> tuple[int, int, int] | None:
    """cute::tuple<cute::C<128>, cute::C<256>, cute::C<64> >; K may be nested (cute::tuple of one)."""
    args = arguments(text, "cute::tuple") if text.startswith("cute::tuple<") else None
    found = [int(size[1]) for arg in args or [] for size in _SIZE.finditer(arg)]
    return (found[0], found[1], found[2]) if len(found) == 3 else None


def _cta_tile(mma: tuple[int, int, int] | None, atom: str, epilogue: list[str] | None) -> Pair | None:
    """The CTA's (M, N): the epilogue's where it states one, else the MMA's, halved where two SMs share it."""
    stated = _sizes(epilogue[1]) if epilogue and len(epilogue) > 1 else None
    if stated is not None:
        return stated[0], stated[1]
    if mma is None:
        return None
    return (mma[0] // 2, mma[1]) if "_2x1SM_" in atom else (mma[0], mma[1])


def _output(epilogue: list[str] | None) -> tuple[str | None, str | None]:
    """(element, stride) of D: the last pair of arguments that ends with a stride."""
    args = epilogue or []
    for at in range(len(args) - 1, 0, -1):
        if _DYNAMIC.match(args[at]) and _contiguous(args[at]) is not None:
            return _ELEMENTS.get(args[at - 1]), args[at]
    return None, None


def _contiguous(stride: str) -> int | None:
    """Which dimension has stride 1: 0 or 1."""
    args = arguments(stride, "cute::tuple") or []
    ones = [at for at, arg in enumerate(args[:2]) if (size := _SIZE.fullmatch(arg)) and size[1] == "1"]
    return ones[0] if len(ones) == 1 else None


def _layout(stride_a: str, stride_b: str, *, column_major: bool | None) -> str | None:
    """cuBLAS's letters in torch's view: b as W^T (K contiguous) is T, a with K contiguous is N."""
    k_first, k_second = _contiguous(stride_a), _contiguous(stride_b)
    if k_first is None or k_second is None or column_major is None:
        return None
    b, a = (k_first, k_second) if column_major else (k_second, k_first)
    return ("T" if b == 1 else "N") + ("N" if a == 1 else "T")


def _cluster(policy: str) -> str | None:
    for shape in re.finditer(r"cute::tuple<(cute::C<[^>]*>, cute::C<[^>]*>, cute::C<[^>]*>) ?>", policy):
        first, second, third = (int(size[1]) for size in _SIZE.finditer(shape[1]))
        return f"{first}x{second}" if third == 1 else None
    return None


def _scheduler(text: str) -> Literal["persistent", "stream_k"] | None:
    if "StreamK" in text:
        return "stream_k"
    persistent = re.search(r"KernelTma\w*WarpSpecialized(?:Cooperative|Pingpong)|PersistentScheduler\b", text)
    return "persistent" if persistent and "Sm90" in text else None


def _element(text: str) -> Fields:
    """Type of the operands and of the multiplier."""
    if (scaled := _SCALED.match(text)) is not None:
        eight = scaled[1] == "8" or scaled[2] in ("4", "5")
        return {"in_dtype": "fp8", "math_dtype": "fp8"} if eight else {}
    dtype = _ELEMENTS.get(text)
    return {"in_dtype": dtype, "math_dtype": "tf32" if dtype == "fp32" else dtype}
