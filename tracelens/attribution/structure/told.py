"""What names of PyTorch's kernels tell of operands, where a recording has no shapes and types."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracelens.trace import Trace, look_up

#: A sum with a number, or with what is spread over it; copies to another layout, or to fewer bits.
SUMS, COPIES = ("number", "spread"), ("layout", "narrow")
TOLD = ("", *SUMS, *COPIES)
#: The other operand is a number (ATen/native/cuda/BinaryInternal.h, Loops.cuh).
_BY_NUMBER = re.compile(r"CUDAFunctorOn(Self|Other)_add")
#: Neither operand is as the other is in memory (ATen/native/cuda/CUDALoops.cuh).
_SPREAD = re.compile(r"[: ]elementwise_kernel<.*CUDAFunctor_add")
#: Of the type that they make, or, in a kernel for one such type, take (ATen/native/cuda/Copy.cu).
_COPIED = re.compile(r"(direct|b?float16)_copy_kernel_cuda\(.*?\{lambda\(([\w:]+)\)#1\}")
_FEW_BITS = ("c10::Half", "c10::BFloat16")


def told_by_kernels(trace: Trace, kernel: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Per kernel given what its name tells, as a place in ``TOLD``; 0 is nothing."""
    codes, which = np.unique(look_up(trace.kernels.name, kernel), return_inverse=True)
    told = [TOLD.index(_told(trace.symbols[code]) if code >= 0 else "") for code in codes.tolist()]
    return np.array(told, np.int64)[which]


def _told(name: str) -> str:
    if _BY_NUMBER.search(name):
        return "number"
    if _SPREAD.search(name):
        return "spread"
    if (copied := _COPIED.search(name)) is None:
        return "layout" if name.startswith("Memcpy DtoD") else ""
    which, of = copied.groups()
    if which != "direct":
        return "narrow" if of == "float" else ""
    casts = "LoadWithCast" in name or "gpu_kernel_impl<" in name
    return ("narrow" if of in _FEW_BITS else "") if casts else "layout"
