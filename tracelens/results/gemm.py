"""The products of a step: their shapes, their kernels, and where their time goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

#: How the counted FLOPs stand to those that were done. at_most: a buffer's rows or masked scores are counted
#: too; above_peak: their rate would be more than the GPU can do, so they are not known, nor is any rate.
WorkKnown = Literal["exact", "at_most", "above_peak", "unknown"]

#: What a kernel is by its name; a helper runs beside a product or an attention (a split-K reduction).
KernelKind = Literal["gemm", "gemm_helper", "attention", "attention_helper"]


@dataclass(frozen=True, slots=True)
class Lost:
    """Where a GEMM's time per step goes (ms), as ``tracelens.gemm.lost`` defines it.

    useful + alignment + tile + wave + memory + other = ``time_ms_per_step``, None counting as nothing.
    useful None: not judged, and neither is any part.
    """

    alignment: float | None = None
    tile: float | None = None
    wave: float | None = None
    memory: float | None = None
    other: float | None = None
    useful: float | None = None  # FLOP at the dense datasheet peak
    ceiling: float | None = None  # of other: what the best matmul measured on this GPU loses, too
    helpers: float | None = None  # of other: kernels beside the product, a split-K reduction
    why: dict[str, str] = field(default_factory=dict)  # part -> why it is None, cut or only a bound


@dataclass(frozen=True, slots=True)
class GemmTime:
    """The GEMM time of a step (ms) by where it goes: the sums of ``GemmRow.lost_ms``. Without attention.

    useful + alignment + tile + wave + memory + other + not_judged = total.
    """

    total: float
    useful: float
    alignment: float
    tile: float
    wave: float
    memory: float
    other: float
    not_judged: float
    ceiling: float  # of other, as in Lost
    helpers: float  # of other
    small: float  # of other, without those two: GEMMs that a kernel's fixed cost takes most of
    untold: dict[str, float]  # cause -> time of rows in which it has no figure, though not too small
    judged_frac: dict[str, float]  # cause -> share of GEMM time in which it has a figure
    not_judged_why: list[str]  # reasons, the one with most time first
    attention: float  # fused attention per step: in no part
    at_least: list[str]  # causes of which a row knows a lower bound only; the rest of them is in other


@dataclass(frozen=True, slots=True)
class Term:
    """One line of a derivation, which a reader can redo by hand."""

    name: str
    formula: str  # with its numbers in it; "" where the value is read, not computed
    value: float | None
    unit: str
    why: str  # what it means or where it comes from


@dataclass(frozen=True, slots=True)
class GemmRow:
    """GEMMs (and fused attention) of one component, shape and kernel. out[M,N] = a[M,K] @ b[K,N]."""

    id: str  # stable within the report: "g1", "g2"... by time
    kind: str  # gemm | attention
    component: str
    components: list[str]
    role: str | None
    phase: str
    layers: str | None  # "0-11", or None
    calls: int  # in the whole file
    calls_per_step: float
    time_ms: float  # whole file
    time_ms_per_step: float
    frac: float  # of the GPU time of the analysed steps
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    shape_note: str | None  # for attention: "b=8 h=12 s=1024 d=64", or why M, N, K are unknown
    dtype: str | None
    math_dtype: str | None  # the type whose peak it is judged against: "tf32" for fp32 on tensor cores
    out_dtype: str | None
    layout: str | None
    m_expr: str | None
    n_expr: str | None
    k_expr: str | None
    op: str | None
    kernel: str
    kernel_family: str
    tile_m: int | None
    tile_n: int | None
    tile_k: int | None
    cluster: str | None
    split_k: int | None
    scheduler: str | None
    tiles: int | None
    waves: int | None
    tile_eff_frac: float | None
    wave_eff_frac: float | None
    alignment_bytes: dict[str, int | None]
    tensor_core: str | None  # used | eligible_unused | ineligible
    flops: float | None  # per call
    tflops: float | None
    peak_frac: float | None
    ceiling_frac: float | None
    bytes: float | None  # per call, each operand once
    intensity: float | None  # FLOP per byte
    bound: str | None  # compute | memory | latency
    lost_ms: Lost
    findings: list[str]
    candidates: list[str] = field(default_factory=list)  # unattributed: it is one of these, untold which
    # exact | bounded (packed attention, the two ranges below, or rows of a buffer) | unknown
    shape_known: str = "unknown"
    m_range: tuple[int, int] | None = None  # [low, high] of M by the kernel's tiles and grid, where m is null
    n_range: tuple[int, int] | None = None
    padded_from: dict[str, int] = field(default_factory=dict)  # what the model asked for, {"n": 50257}
    lent_calls: int = 0  # of its calls: operator or shape known from the identical call they repeat
    helper_ms: float = 0.0  # of time_ms: kernels beside the product itself
    leading: dict[str, int] = field(default_factory=dict)  # leading dimension of a, b, c in elements
    leading_source: str | None = None  # strides | kernel name | assumed contiguous
    ctas_per_sm: int | None = None  # CTAs that fit on one SM at once; None = the trace does not say
    alignment_frac: float | None = None  # throughput at its worst alignment over that at 128 bytes
    alignment_basis: str | None = None  # what that rests on
    work_known: WorkKnown = "unknown"  # how flops, and the rates made of them, stand to what was done
    work_why: str | None = None  # why they are no more than a bound, or not known
    median_us: float | None = None  # of its calls in the file, all kernels of a call
    slowest_us: float | None = None  # the longest of its calls
    stalls: int = 0  # of its calls: those of over 3 times the median, which the shape does not explain
    stall_ms: float = 0.0  # of time_ms: what those took beyond the median
    stall_ms_per_step: float = 0.0  # the same of time_ms_per_step
    kernel_kind: KernelKind | None = None  # what the kernel is by its name; None = a name that does not say
    kernel_dtype: str | None = None  # of the operands, by the kernel's name
    kernel_layout: str | None = None  # by the kernel's name
    kernel_tensor_core: bool | None = None  # does it use tensor cores, by its name?
    kernel_alignment: int | None = None  # elements of its loads, by its name: align8, ldg8
    kernel_head_dim: int | None = None  # of an attention kernel: the head dimension it is compiled for


def main_dtype(rows: Iterable[GemmRow]) -> str | None:
    """The type that most time of these rows is computed in; None where it is unknown of most."""
    times: dict[str | None, float] = {}
    for row in rows:
        dtype = row.math_dtype or row.dtype
        times[dtype] = times.get(dtype, 0.0) + row.time_ms_per_step
    return max(times, key=lambda dtype: times[dtype], default=None)
