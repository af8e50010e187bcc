"""Which attention kernel torch picks, by the rules of its own dispatcher.

``scaled_dot_product_attention`` tries backends in an order and takes the first whose checks pass:
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, read at 001f694 (2026). cuDNN comes first on
compute capability 9.x and 10.x with cuDNN above 9.15.0, which wheels carry from torch 2.11 on; torch 2.9
had it first too (pull 162073), 2.10 asks for a newer cuDNN than its wheels bring (issue 169849), 2.5.0 had
it first and 2.5.1 took it back (pull 138522). Otherwise flash, then memory-efficient, then math.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from tracelens.errors import InputError
from tracelens.gemm.predict.words import attention as words
from tracelens.hardware import Gpu

CUDNN_MAX_HEAD_DIM = 128  # above needs a cuDNN after 9.22, which no wheel is known to carry
#: Releases of torch to 2.11 ask for cuDNN 9.10 and Hopper only; 2.11 ran all to 256 on an H100
#: (benchmarks/gpu/results/h100-sxm/attention_sweep.json).
_CUDNN_MAX_ON_HOPPER = 256
_FLASH_MAX_HEAD_DIM = 256
#: Queries and values of DeepSeek's latent attention, which cuDNN takes from 9.11 on.
_LATENT_HEADS = (192, 128)
#: GPUs whose SMs have 99 KB of shared memory: no flash backward for head dimensions in (192, 224].
_SMALL_MEMORY = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))


class LikelyBackend(NamedTuple):
    """The backend that torch's dispatcher takes when nothing forces another, and why."""

    name: str
    why: str


def likely_backend(
    *,
    head_dim: int,
    dtype: str,
    gpu: Gpu,
    value_dim: int | None = None,
    causal: bool = False,
    lengths: tuple[int | None, int | None] = (None, None),
    training: bool = True,
    torch_version: str | None = None,
) -> LikelyBackend:
    """What ``scaled_dot_product_attention`` runs without a mask tensor; a recent torch when not told.

    ``value_dim``: of values narrower than ``head_dim``; ``lengths``: of queries and keys. A mask tensor rules
    out flash. flash_attn called as a library is not torch's choice: pass its backend to
    ``predict_attention``.

    >>> from tracelens.hardware import find_gpu
    >>> h100, a100 = (find_gpu(None, override=name) for name in ("h100-sxm", "a100-sxm-80gb"))
    >>> likely_backend(head_dim=128, dtype="bf16", gpu=h100).name
    'cudnn'
    >>> likely_backend(head_dim=128, dtype="bf16", gpu=h100, torch_version="2.6.0").name
    'flash'
    >>> likely_backend(head_dim=128, dtype="fp32", gpu=a100).name
    'efficient'
    """
    capability = gpu.compute_capability
    if gpu.vendor != "nvidia" or capability is None:
        raise InputError(f"which attention kernel torch picks on {gpu.title} is not known")
    half = dtype == "fp16" or (dtype == "bf16" and capability >= (8, 0))
    seq_q, seq_k = lengths
    square = seq_q == seq_k or not causal
    step = math.gcd(head_dim, value_dim or head_dim)  # both are multiples of it
    if half and capability >= (8, 0):
        first, widest = _cudnn_first(capability, torch_version), _cudnn_widest(capability, torch_version)
        if (head_dim, value_dim) == _LATENT_HEADS:
            widest = max(widest, head_dim)
        if first is not None and head_dim <= widest and step % 8 == 0 and seq_k != 1:
            return LikelyBackend("cudnn", first)
        small = training and capability in _SMALL_MEMORY and 192 < head_dim <= 224
        alike = value_dim in (None, head_dim)
        if head_dim <= _FLASH_MAX_HEAD_DIM and square and alike and not small:
            why = words.flash_after_cudnn(widest) if first is not None else words.FLASH_FIRST
            return LikelyBackend("flash", why)
    alignment = _efficient_alignment(capability, half=dtype in ("fp16", "bf16"))
    if (half or dtype == "fp32") and step % alignment == 0:
        of_flash = half and capability >= (8, 0)
        why = words.efficient_after_flash(
            dtype=None if of_flash else dtype,
            unequal=of_flash and not square,
            narrow_values=of_flash and value_dim not in (None, head_dim),
            widest=_FLASH_MAX_HEAD_DIM if head_dim > _FLASH_MAX_HEAD_DIM else None,
        )
        return LikelyBackend("efficient", why)
    return LikelyBackend("math", words.none_fused(dtype, head_dim))


def _cudnn_widest(capability: tuple[int, int], torch_version: str | None) -> int:
    """The widest heads that torch gives cuDNN."""
    known = re.match(r"2\.(9|11)\b", torch_version or "")
    return _CUDNN_MAX_ON_HOPPER if known and capability == (9, 0) else CUDNN_MAX_HEAD_DIM


def _cudnn_first(capability: tuple[int, int], torch_version: str | None) -> str | None:
    """Why cuDNN is tried first, or None where it is not."""
    if capability not in ((9, 0), (10, 0), (10, 3)):
        return None
    if torch_version is None:
        return words.CUDNN_FIRST_IN_RECENT_TORCH
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", torch_version)
    if found is None:
        raise InputError(f"torch version {torch_version!r} is none")
    version = (int(found[1]), int(found[2]), int(found[3] or 0))
    if version >= (2, 11, 0):
        return words.CUDNN_FIRST_FROM_2_11
    if (2, 9, 0) <= version < (2, 10, 0) and capability[1] == 0:
        return words.CUDNN_FIRST_IN_2_9
    if version == (2, 5, 0) and capability[0] == 9:
        return words.CUDNN_FIRST_IN_2_5
    return None


def _efficient_alignment(capability: tuple[int, int], *, half: bool) -> int:
    """``minimum_gemm_alignment`` of sdp_utils.cpp, in elements."""
    if half and capability >= (7, 0):  # tensor cores
        return 8
    return 4 if capability >= (8, 0) else 1
