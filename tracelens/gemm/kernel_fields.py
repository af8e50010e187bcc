"""Common parts of the kernel-name tables: the fields a rule can read, and the orientation of tiles.

Tile order. BLAS kernels compute torch's row-major out[M,N] as the column-major out^T[N,M], so the first
number of their tile lies along torch's N (PyTorch, aten/src/ATen/native/cuda/cuBlasCommonArgs.h). The
swap happens in ``blas_tile`` and nowhere else. Checked on launch grids of public traces:

- nvjet: 144x128 on M=888, N=2880 launches ceil(2880/144) * ceil(888/128) = 20*7 = 140 CTAs.
- cutlass2: 256x128 on M=141, N=30522 launches ceil(30522/256) * ceil(141/128), folded by the swizzle.
- legacy: ampere_sgemm_128x64 on M=1024, N=1536 launches (1536/128, 1024/64) = (12, 16).
- nvjet's clusters lie the same way: 128x128 in clusters of 2x4 on M=2304, N=768 launches 6 * 20 = 120 CTAs,
  the 18 tiles along M rounded up to whole clusters of 4.
- tensile (rocBLAS, hipBLASLt): not checked, so its order stays unknown.
- trtllm_gen: the first number is the weight's output features where the name says transOut, which lie along
  torch's N; BatchedGemmOptions.h of TensorRT-LLM (mTransposeMmaOutput: shape [N, M]).
- sm80_xmma is the other way round: 256x128 on M=512, N=25088 launches (512/256, 25088/128) = (2, 196), and
  all three non-square launches seen read so without a swizzle. (Swapped, each would need a swizzle of its
  own; every size seen is a multiple of the tile, so the total count cannot tell the two apart.)
- sm90_xmma, from the same generator, reads like sm80_xmma: its grid is padded by a heuristic, but wherever
  the tiles fit on the GPU at once it is a multiple of the tiles along the first number: 30 = 3*10 (64x64 on
  M=141) and 98 = 7*14 (128x128 on M=788) show that axis to be M, 98 = 7*14 (128x64 on M=788, N=768) and
  126 = 21*6 (256x128 on M=5184, N=768) then fit M first and not N first (13 and 6, 41 and 3).
- sm100_xmma and sm120's nvjet: no launch with shapes seen, so their order is unknown.
- Kernels called through templates state the strides of their output, see ``cutlass_templates``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict

from tracelens.results import KernelKind

Pair = tuple[int, int]
Sizes = tuple[int | None, int | None, int | None]


class Fields(TypedDict, total=False):
    """What a rule read from a name; the rest of ``KernelName`` stays None."""

    tile_m: int | None
    tile_n: int | None
    tile_k: int | None
    tile_pair: Pair | None
    stages: int | None
    cluster: str | None
    split_k: bool | None
    scheduler: Literal["persistent", "stream_k"] | None
    alignment_elements: int | None
    layout: str | None
    tensor_core: bool | None
    in_dtype: str | None
    out_dtype: str | None
    math_dtype: str | None
    direction: str | None
    head_dim: int | None
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class NameRule:
    """``family`` may name groups of the pattern: "sm{sm}_xmma"."""

    kind: KernelKind
    family: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], Fields]


DTYPES = {
    "f16": "fp16", "fp16": "fp16", "half_t": "fp16", "bf16": "bf16", "bfloat16_t": "bf16", "tf32": "tf32",
    "f32": "fp32", "fp32": "fp32", "float": "fp32", "f64": "fp64", "e4m3": "fp8", "e5m2": "fp8",
    "s8": "int8", "i8": "int8", "int8": "int8", "u8": "uint8", "s32": "int32", "i32": "int32",
}  # fmt: skip


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


def oriented_tile(pair: Pair, *, column_major: bool | None) -> Fields:
    """Tile of a kernel that states how its output lies in memory; None = it does not."""
    if column_major is None:
        return unordered_tile(pair)
    return blas_tile(pair) if column_major else row_major_tile(pair)


def ints(match: re.Match[str], first: str, second: str) -> Pair:
    return int(match[first]), int(match[second])


def optional(match: re.Match[str], group: str) -> int | None:
    return int(match[group]) if match[group] is not None else None


def nothing(match: re.Match[str]) -> Fields:
    """For names that say no more than their family."""
    return {}


def rule(kind: KernelKind, family: str, pattern: str, read: Callable[[re.Match[str]], Fields]) -> NameRule:
    return NameRule(kind, family, re.compile(pattern), read)
