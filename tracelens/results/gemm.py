"""The products of a step: their shapes, their kernels, and where their time goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Literal

from tracelens.results.described import says
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.sums import summed

#: How the counted FLOPs stand to those that were done. at_most: a buffer's rows or masked scores are counted
#: too; above_peak: their rate would be more than the GPU can do, so they are not known, nor is any rate.
WorkKnown = Literal["exact", "at_most", "above_peak", "unknown"]
#: bounded: packed attention, ranges of M and N, or the rows of a buffer.
ShapeKnown = Literal["exact", "bounded", "unknown"]
GemmKind = Literal["gemm", "attention"]
#: Why no loss is told apart: it is faster than its ceiling, or a kernel's fixed cost takes most of its time.
Unsplit = Literal["faster", "too_small"]
#: A dimension of out[M,N] = a[M,K] @ b[K,N].
Axis = Literal["m", "n", "k"]
#: What a kernel's time goes by.
Bound = Literal["compute", "memory", "latency"]
TensorCore = Literal["used", "eligible_unused", "ineligible"]
#: What tells the leading dimensions.
LeadingSource = Literal["strides", "kernel name", "assumed contiguous"]

#: What a kernel is by its name; a helper runs beside a product or an attention (a split-K reduction).
KernelKind = Literal["gemm", "gemm_helper", "attention", "attention_helper"]


@dataclass(frozen=True, slots=True)
class Lost:
    """Where a GEMM's time per step goes (ms), as ``tracelens.gemm.lost`` defines it.

    useful + overlap + clock + alignment + tile + wave + memory + other = ``time_ms_per_step``, None counting
    as nothing. useful None: not judged, and neither is any part.
    """

    alignment: float | None = None
    tile: float | None = None
    wave: float | None = None
    memory: float | None = None
    other: float | None = None
    useful: Annotated[float | None, says("FLOP at the dense datasheet peak")] = None
    overlap: Annotated[
        float | None, says("what calls took beyond those that ran beside nothing: ``GemmRow.beside``")
    ] = None
    clock: Annotated[
        float | None,
        says("what calls took beyond those of the fastest step, where all shapes did: Report.clock"),
    ] = None
    ceiling: Annotated[
        float | None, says("of other: what the best matmul measured on this GPU loses, too")
    ] = None
    helpers: Annotated[float | None, says("of other: kernels beside the GEMM, a split-K reduction")] = None
    why: Annotated[dict[str, str], says("part -> why it is None, cut or only a bound")] = field(
        default_factory=dict
    )
    unsplit: Annotated[Unsplit | None, says("why no loss is told apart")] = None
    at_least: Annotated[list[str], says("parts that are lower bounds, the rest of them in other")] = field(
        default_factory=list
    )


@dataclass(frozen=True, slots=True)
class GemmTime:
    """The GEMM time of a step (ms) by where it goes: the sums of ``GemmRow.lost_ms``. Without attention.

    useful + overlap + clock + alignment + tile + wave + memory + other + not_judged = total.
    """

    total: float
    useful: float
    alignment: float
    tile: float
    wave: float
    memory: float
    other: float
    not_judged: float
    ceiling: Annotated[float, says("of other, as in Lost")]
    helpers: Annotated[float, says("of other")]
    small: Annotated[
        float, says("of other, without those two: GEMMs that a kernel's fixed cost takes most of")
    ]
    untold: Annotated[
        dict[str, float], says("cause -> time of rows in which it has no figure, though not too small")
    ]
    judged_frac: Annotated[dict[str, float], says("cause -> share of GEMM time in which it has a figure")]
    not_judged_why: Annotated[list[str], says("reasons, the one with most time first")]
    attention: Annotated[float, says("fused attention per step: in no part")]
    at_least: Annotated[
        list[str], says("causes of which a row knows a lower bound only; the rest of them is in other")
    ]
    overlap: float = 0.0
    clock: float = 0.0


@dataclass(frozen=True, slots=True)
class Beside:
    """What other streams did while the calls of a row ran, in the whole file, and what it cost them.

    A call is undisturbed where that is at most 1 % of its time.
    """

    communication_ms: Annotated[float, says("of time_ms: beside a collective")]
    others_ms: Annotated[float, says("of time_ms: beside other kernels or copies, and no collective")]
    collectives: Annotated[dict[str, float], says("collective -> ms of the main kernels beside it")]
    ctas: Annotated[
        int | None, says("CTAs of the collectives that they ran beside longest: SMs that those hold")
    ]
    disturbed_calls: int
    disturbed_us: Annotated[float, says("median of those")]
    alone_us: Annotated[
        float | None,
        says("median of undisturbed calls of the same shape and kernel, or by shares of time; None = untold"),
    ]
    excess_ms: Annotated[float | None, says("of time_ms: what they took beyond alone_us; None = not known")]
    excess_ms_per_step: Annotated[float | None, says("the same of time_ms_per_step")]


@dataclass(frozen=True, slots=True)
class Term:
    """One line of a derivation, which a reader can redo by hand."""

    name: str
    formula: Annotated[str, says('with its numbers in it; "" where the value is read, not computed')]
    value: float | None
    unit: str
    why: Annotated[str, says("what it means or where it comes from")]


@dataclass(frozen=True, slots=True)
class GemmRow:
    """GEMMs (and fused attention) of one component, shape and kernel. out[M,N] = a[M,K] @ b[K,N]."""

    id: Annotated[str, says('stable within the report: "g1", "g2"... by time')]
    kind: GemmKind
    component: str
    components: list[str]
    role: str | None
    phase: str
    layers: Annotated[str | None, says('"0-11", or None')]
    calls: Annotated[int, says("in the whole file")]
    calls_per_step: float
    time_ms: Annotated[float, says("whole file", least=0)]
    time_ms_per_step: float
    frac: Annotated[float, says("of the GPU time of the analysed steps")]
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    shape_note: Annotated[str | None, says('in words: "b=8 h=12 s=1024 d=64", or why M, N, K are unknown')]
    dtype: str | None
    math_dtype: Annotated[
        str | None, says('the type whose peak it is judged against: "tf32" for fp32 on tensor cores')
    ]
    out_dtype: str | None
    layout: str | None
    m_expr: str | None
    n_expr: str | None
    k_expr: str | None
    op: str | None
    kernel: str
    kernel_family: str
    tile_m: Annotated[int, says("of a CTA", least=1)] | None
    tile_n: Annotated[int, says("of a CTA", least=1)] | None
    tile_k: Annotated[int, says("of a CTA", least=1)] | None
    cluster: Annotated[str, says('CTAs: "2x1"', pattern=r"^[1-9]\d{0,2}(x[1-9]\d{0,2}){1,2}$")] | None
    split_k: int | None
    scheduler: str | None
    tiles: int | None
    waves: int | None
    tile_eff_frac: float | None
    wave_eff_frac: float | None
    alignment_bytes: dict[str, int | None]
    tensor_core: TensorCore | None
    flops: Annotated[float | None, says("per call")]
    tflops: float | None
    peak_frac: float | None
    ceiling_frac: float | None
    bytes: Annotated[float | None, says("per call, each operand once")]
    intensity: Annotated[float | None, says("FLOP per byte")]
    bound: Bound | None
    lost_ms: Lost
    findings: list[str]
    candidates: Annotated[list[str], says("unattributed: it is one of these, untold which")] = field(
        default_factory=list
    )
    shape_known: ShapeKnown = "unknown"
    m_range: Annotated[
        tuple[int, int] | None, says("[low, high] of M by the kernel's tiles and grid, where m is null")
    ] = None
    n_range: tuple[int, int] | None = None
    padded_from: Annotated[dict[str, int], says('what the model asked for, {"n": 50257}')] = field(
        default_factory=dict
    )
    lent_calls: Annotated[
        int, says("of its calls: operator or shape known from the identical call they repeat")
    ] = 0
    helper_ms: Annotated[float, says("of time_ms: kernels beside the GEMM itself")] = 0.0
    leading: Annotated[dict[str, int], says("leading dimension of a, b, c in elements")] = field(
        default_factory=dict
    )
    leading_source: LeadingSource | None = None
    ctas_per_sm: Annotated[
        int | None, says("CTAs that fit on one SM at once; None = the trace does not say")
    ] = None
    alignment_frac: Annotated[
        float | None, says("throughput at its worst alignment over that at 128 bytes")
    ] = None
    alignment_basis: Annotated[str | None, says("what that rests on")] = None
    alignment_at_most: Annotated[bool, says("it is no more than a bound")] = False
    work_known: Annotated[
        WorkKnown, says("how flops, and the rates made of them, stand to what was done")
    ] = "unknown"
    work_why: Annotated[str | None, says("why they are no more than a bound, or not known")] = None
    median_us: Annotated[float | None, says("of its calls in the file, all kernels of a call")] = None
    slowest_us: Annotated[float | None, says("the longest of its calls")] = None
    stalls: Annotated[
        int, says("of its calls: those of over 3 times the median, which the shape does not explain")
    ] = 0
    stall_ms: Annotated[float, says("of time_ms: what those took beyond the median", least=0)] = 0.0
    stall_ms_per_step: Annotated[float, says("the same of time_ms_per_step", least=0)] = 0.0
    beside: Annotated[Beside | None, says("None = its calls ran beside nothing")] = None
    overlap_ms_per_step: Annotated[
        float, says("of time_ms_per_step: what ran beside its calls took; 0 where that is not known")
    ] = 0.0
    clock_ms_per_step: Annotated[
        float, says("of time_ms_per_step: what slow steps took beyond the fastest")
    ] = 0.0
    kernel_kind: Annotated[
        KernelKind | None, says("what the kernel is by its name; None = a name that does not say")
    ] = None
    kernel_dtype: Annotated[str | None, says("of the operands, by the kernel's name")] = None
    kernel_layout: Annotated[str | None, says("by the kernel's name")] = None
    kernel_tensor_core: Annotated[bool | None, says("does it use tensor cores, by its name?")] = None
    kernel_alignment: Annotated[int | None, says("elements of its loads, by its name: align8, ldg8")] = None
    kernel_head_dim: Annotated[
        int | None, says("of an attention kernel: the head dimension it is compiled for")
    ] = None
    attention: Annotated[
        AttentionDims | None, says("sizes of its attention calls, as far as the trace shows them")
    ] = None
    groups: Annotated[Groups | None, says("of unequal size, that one call holds")] = None

    @property
    def slices(self) -> int | None:
        """What waves are counted of: tiles, or with a split K the slices of each."""
        return None if self.tiles is None else self.tiles * (self.split_k or 1)

    @property
    def cluster_size(self) -> int:
        """CTAs of a cluster; 1 where it has none."""
        return prod(int(side) for side in (self.cluster or "1").split("x"))


def main_dtype(rows: Iterable[GemmRow]) -> str | None:
    """The type that most time of these rows is computed in; None where it is unknown of most."""
    times = summed((row.math_dtype or row.dtype, row.time_ms_per_step) for row in rows)
    return max(times, key=lambda dtype: times[dtype], default=None)
