"""The attention kernels: which head dimensions they are built for, their blocks, and how fast they run.

Shapes of blocks are read off the sources (flash-attention at 0251105, August 2026; torch's copies agree):
``HEADDIM_SWITCH`` in csrc/flash_attn/src/static_switch.h and ``run_mha_{fwd,bwd}_hdim*`` in the launch
templates beside it for FlashAttention-2, hopper/tile_size.h and hopper/flash_bwd_launch_template.h for
FlashAttention-3, the names of torch's kernels for the memory-efficient ones. cuDNN is closed; what is said
of it is marked. How fast a kernel runs is in ``attention_rates``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.errors import InputError
from tracelens.hardware import Gpu

#: What can be asked for, and other names of the same (those that kernel names give among them).
BACKENDS = ("flash", "flash3", "flash4", "cudnn", "efficient", "math")
_ALIASES = {"flash2": "flash", "cudnn_sdpa": "cudnn", "mem_efficient": "efficient", "unfused": "math"}

#: Head dimensions a kernel is built for; a smaller one is padded with zeros that are multiplied too.
_HEAD_DIMS = {
    "flash": (32, 64, 96, 128, 192, 256),
    "flash3": (64, 96, 128, 192, 256),
    # ``head_dim_padded`` in flash_attn/cute/flash_fwd_sm100.py: to multiples of 16.
    "flash4": (16, 32, 48, 64, 80, 96, 112, 128, 192, 256),
    # Not documented. The kernels' names on an H100 (benchmarks/gpu/results/h100-sxm, cuDNN 9.19), and their
    # times: all head dimensions of a step take the same.
    "cudnn": (64, 128, 192, 256),
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, chosen: the shape of its blocks and what fits on an SM."""

    backend: str
    backward: bool
    head_dim: int  # that it computes with
    block_q: int
    block_k: int
    ctas_per_sm: int
    longest_first: bool  # hands out the long tiles of a causal mask first
    source: str


def backend_name(name: str) -> str:
    """The backend's name as this module writes it; ``InputError`` for one it does not know.

    >>> backend_name("mem_efficient"), backend_name("cudnn")
    ('efficient', 'cudnn')
    """
    known = _ALIASES.get(name, name)
    if known not in BACKENDS:
        raise InputError(f"attention backend {name!r} is none of {', '.join(BACKENDS)}")
    return known


def padded_head_dim(backend: str, head_dim: int, *, backward: bool = False) -> int | None:
    """The head dimension the kernel computes with; None where it has no kernel for it.

    >>> [padded_head_dim("flash", d) for d in (16, 72, 80, 100, 128, 144, 257)]
    [32, 96, 96, 128, 128, 192, None]
    >>> padded_head_dim("flash3", 32), padded_head_dim("efficient", 72, backward=True)
    (64, 96)
    """
    if backend == "math":
        return head_dim
    if backend == "efficient":
        sizes = (32, 64, 96, 128) if backward else (64, 128)
        step = 64 if backward else 128
        return next((size for size in sizes if head_dim <= size), -(-head_dim // step) * step)
    return next((size for size in _HEAD_DIMS[backend] if head_dim <= size), None)


def attention_kernel(
    backend: str, *, head_dim: int, gpu: Gpu, causal: bool, windowed: bool, backward: bool, dtype: str
) -> Kernel:
    """The kernel a backend runs; ``InputError`` says why there is none."""
    capability = gpu.compute_capability
    if capability is None:
        raise InputError(f"which attention kernels run on {gpu.title} is not known")
    padded = padded_head_dim(backend, head_dim, backward=backward)
    _check(backend, capability, dtype, backward)
    if padded is None:
        raise InputError(
            f"{backend} attention has no kernel for head dimensions above {max(_HEAD_DIMS[backend])}"
        )
    if backend == "flash":
        block_q, block_k, ctas = _flash2_blocks(padded, capability, causal, backward)
        source = "flash-attention csrc/flash_attn/src/flash_*_launch_template.h"
    elif backend == "flash3":
        block_q, block_k = _flash3_blocks(padded, causal, windowed, backward, fp8=dtype == "fp8")
        ctas, source = 1, "flash-attention hopper/tile_size.h, flash_bwd_launch_template.h"
    elif backend == "efficient":
        block_q, block_k = _efficient_blocks(padded, backward)
        ctas, source = 2, "names of torch's fmha_cutlass kernels"
    else:
        # Two tiles of 128 queries share a CTA on Blackwell (flash_attn/cute, q_stage = 2); cuDNN: assumed.
        block_q, block_k = (256 if capability >= (10, 0) and not backward else 128), 128
        if backend == "cudnn" and backward and capability[0] == 9:
            block_q = block_k = 64  # the kernels' names
        ctas = 1
        source = "flash-attention flash_attn/cute" if backend == "flash4" else "assumed: cuDNN is closed"
    # FlashAttention-3 forward: LPT in hopper/flash_fwd_launch_template.h.
    longest_first = backend != "flash" and backend != "efficient" and not backward
    return Kernel(backend, backward, padded, block_q, block_k, ctas, longest_first, source)


def _check(backend: str, capability: tuple[int, int], dtype: str, backward: bool) -> None:
    """``InputError`` where the backend has nothing for the type, or for this GPU."""
    half = dtype in ("fp16", "bf16")
    fp8_forward = backend == "flash3" and dtype == "fp8" and not backward
    if backend == "efficient":
        bad_dtype = dtype not in ("fp16", "bf16", "fp32") or (dtype == "bf16" and capability < (8, 0))
    else:
        bad_dtype = not half and not fp8_forward
    if bad_dtype:
        what = f"{backend} attention {'backward' if backward else 'forward'}"
        raise InputError(
            f"{what} has no kernel for {dtype} at compute capability {capability[0]}.{capability[1]}"
        )
    first = {"flash": (8, 0), "cudnn": (8, 0), "flash3": (9, 0), "flash4": (9, 0), "efficient": (5, 0)}
    if capability < first[backend]:
        needed, here = (".".join(map(str, one)) for one in (first[backend], capability))
        raise InputError(f"{backend} attention needs compute capability {needed}, this GPU has {here}")
    if backend == "flash3" and capability[0] != 9:
        raise InputError("FlashAttention-3 runs on Hopper only (compute capability 9.0)")


def _flash2_blocks(
    head_dim: int, capability: tuple[int, int], causal: bool, backward: bool
) -> tuple[int, int, int]:
    """(queries, keys, CTAs per SM): registers allow two CTAs of 4 warps at 255 registers, one of 8."""
    small_memory = capability in ((8, 6), (8, 9)) or capability >= (12, 0)  # 99 KB per block
    if backward:
        keys = {32: 128, 64: 128, 96: 128, 128: 128, 192: 64, 256: 64}
        queries = {32: 128, 64: 128, 96: 64, 128: 64, 192: 64, 256: 64}
        if small_memory:
            keys |= {128: 64, 256: 32}
            queries |= {64: 64}
        return queries[head_dim], keys[head_dim], 1
    if head_dim <= 64:
        return 128, 128, 2
    if head_dim <= 128:
        if capability[0] == 8 and capability[1] > 0:
            if causal:
                return 64, 64, 2
            return 128, 64 if head_dim == 96 else 32, 2
        return 128, 64, 2
    if head_dim == 192:
        return 128, 64, 1
    return (128, 64, 1) if capability == (8, 0) else (64, 64, 1 if small_memory else 2)


def _flash3_blocks(
    head_dim: int, causal: bool, windowed: bool, backward: bool, *, fp8: bool
) -> tuple[int, int]:
    masked = causal or windowed
    if backward:
        wide = 64 if masked else 80
        return {64: (128, 128), 96: (64, 128), 128: (wide, 128), 192: (64, 96), 256: (64, 80)}[head_dim]
    if fp8:
        blocks = {64: (192, 160), 96: (192, 128), 128: (128, 224), 192: (128, 160), 256: (128, 128)}
        return (128, 64) if windowed and head_dim == 256 else blocks[head_dim]
    return {
        64: (192, 128 if masked else 192),
        96: (192, 128 if windowed else 144),
        128: (128, 128 if masked else 176),
        192: (128, 96 if windowed else 112),
        256: (128, 64 if windowed else 80),
    }[head_dim]


def _efficient_blocks(head_dim: int, backward: bool) -> tuple[int, int]:
    if backward:
        return (128, 64) if 64 < head_dim <= 128 else (64, 64)
    return (64, 64) if head_dim <= 64 else (64, 128) if head_dim <= 128 else (32, 128)
