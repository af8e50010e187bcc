"""GEMMs that users wrote in Triton, by name: what they compute from the operator's Input Dims.

Inductor records a user's Triton kernel as an operator named after it with a number, ``XXT_kernel_0``,
whose Input Dims are the kernel's arguments in order. An entry here needs the kernel's source to cite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.gemm.tensors import Dims, dims_at

_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class SymmetricProduct:
    """out[size, size] = a a^T or a^T a, ``batch`` times, reduced over ``k``; ``out`` is argument 1."""

    size: int
    k: int
    batch: int
    transposed: bool  # a^T a


def _rows(a: Dims, out: Dims) -> SymmetricProduct | None:
    return _symmetric(a, out, size=a[-2], k=a[-1], transposed=False)


def _columns(a: Dims, out: Dims) -> SymmetricProduct | None:
    return _symmetric(a, out, size=a[-1], k=a[-2], transposed=True)


def _square(a: Dims, out: Dims) -> SymmetricProduct | None:
    return _rows(a, out) if a[-1] == a[-2] else None


def _symmetric(a: Dims, out: Dims, *, size: int, k: int, transposed: bool) -> SymmetricProduct | None:
    if out[-2:] != (size, size) or a[:-2] != out[:-2]:
        return None
    return SymmetricProduct(size, k, a[0] if len(a) == 3 else 1, transposed)


#: KellerJordan/modded-nanogpt (MIT), triton_kernels.py and train_gpt.py since September 2025: Muon's
#: orthogonalization by Newton-Schulz or Polar Express. XXT: C = A A^T; XTX: C = A^T A; ba_plus_cAA:
#: C = beta A + alpha A A^T for a square, symmetric A. Each of them returns early from the tiles beyond the
#: diagonal and writes the others twice, mirrored. Arguments: A, C (both of rank 2 or 3), sizes, strides.
_SYMMETRIC: dict[str, Callable[[Dims, Dims], SymmetricProduct | None]] = {
    "XXT_kernel": _rows,
    "XTX_kernel": _columns,
    "ba_plus_cAA_kernel": _square,
}


def user_kernel(op: str) -> str | None:
    """The table's name of a user's Triton operator, or None.

    >>> user_kernel("ba_plus_cAA_kernel_4"), user_kernel("XXT_kernel"), user_kernel("aten::mm")
    ('ba_plus_cAA_kernel', 'XXT_kernel', None)
    """
    name = op if op in _SYMMETRIC else _NUMBER.sub("", op)
    return name if name in _SYMMETRIC else None


def symmetric_product(kernel: str, dims: Sequence[Any]) -> SymmetricProduct | None:
    """What one of the kernels computes, or None where the dims are not those of its source.

    >>> symmetric_product("XXT_kernel", [[8, 768, 3072], [8, 768, 768], [], []])
    SymmetricProduct(size=768, k=3072, batch=8, transposed=False)
    """
    a, out = dims_at(dims, 0), dims_at(dims, 1)
    if a is None or out is None or len(a) not in (2, 3) or len(a) != len(out):
        return None
    return _SYMMETRIC[kernel](a, out)
