"""Kernels that compute no product: copies, casts, elementwise work, reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tracelens.results.described import says

#: copy: same type, same order of dimensions; transpose: another order; cast: another type; pad: into a larger
#: tensor.
OtherKind = Literal["copy", "transpose", "cast", "pad", "fill", "elementwise", "reduction", "other"]


@dataclass(frozen=True, slots=True)
class OtherRow:
    """Kernels of one component, phase, kind, operator and (for those that move data) tensor.

    ``kind``: copy (same type, same order of dimensions), transpose (another order), cast (another type), pad
    (into a larger tensor).
    """

    id: Annotated[str, says('"o1", "o2"... by time')]
    component: str
    phase: str
    kind: OtherKind
    op: Annotated[
        str | None, says('the outermost operator that only moves data, "aten::contiguous"; None = not known')
    ]
    within: Annotated[str | None, says("the operator around that")]
    module: Annotated[str | None, says("path of the module without the numbers of its layers")]
    kernel: Annotated[str, says("of its longest kernel")]
    calls: Annotated[int, says("in the whole file")]
    calls_per_step: float
    time_ms_per_step: float
    layers: Annotated[int, says("distinct layers it runs in; 0 = not known")]
    dims: Annotated[tuple[int, ...] | None, says("of the tensor written, for kinds that move data")] = None
    dtype_from: str | None = None
    dtype_to: str | None = None


@dataclass(frozen=True, slots=True)
class OtherKernel:
    """Kernels of one name in one component and phase, of no GEMM or attention call, per step."""

    component: str
    phase: str
    kernel: str
    calls_per_step: float
    time_ms_per_step: float
    calls_where_it_runs: Annotated[float, says("per step that has any of them")]
