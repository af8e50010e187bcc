"""Kernels that compute no product: copies, casts, elementwise work, reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: copy: same type, same order of dimensions; transpose: another order; cast: another type; pad: into a larger
#: tensor.
OtherKind = Literal["copy", "transpose", "cast", "pad", "fill", "elementwise", "reduction", "other"]


@dataclass(frozen=True, slots=True)
class OtherRow:
    """Kernels of one component, phase, kind, operator and (for those that move data) tensor.

    ``kind``: copy (same type, same order of dimensions), transpose (another order), cast (another type), pad
    (into a larger tensor).
    """

    id: str  # "o1", "o2"... by time
    component: str
    phase: str
    kind: OtherKind
    op: str | None  # the outermost operator that only moves data, "aten::contiguous"; None = not known
    within: str | None  # the operator around that
    module: str | None  # path of the module without the numbers of its layers
    kernel: str  # of its longest kernel
    calls: int  # in the whole file
    calls_per_step: float
    time_ms_per_step: float
    layers: int  # distinct layers it runs in; 0 = not known
    dims: tuple[int, ...] | None = None  # of the tensor written, for kinds that move data
    dtype_from: str | None = None
    dtype_to: str | None = None
