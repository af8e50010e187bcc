"""What an analysis says: plain frozen values, the same in Python, in ``--json`` and on the page.

The JSON schema that the package publishes is generated from these classes, so a field documented
here is a field of the contract. Units are suffixes (``_ns``, ``_ms``, ``_frac`` in 0..1, ``_tflops``).
``None`` always means "not known"; the reason stands beside it or in ``checks``/``coverage``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A range and where it comes from. ``mid`` is None where only bounds are known."""

    low: float | None
    mid: float | None
    high: float | None
    basis: str  # measured | calibrated | model | heuristic


@dataclass(frozen=True, slots=True)
class Known:
    """A value with the evidence it was read from."""

    value: int | None
    source: str  # e.g. "shape of aten::addmm in 12 layers", or why it is not known


@dataclass(frozen=True, slots=True)
class TraceInfo:
    path: str  # file name only, never a directory
    sha256: str
    bytes: int  # size of the file as given (compressed if it was)
    events: int  # every event read, of every category
    kernels: int  # GPU events: kernels, copies, fills
    rank: int | None
    world_size: int | None
    torch_version: str | None
    cuda_version: str | None
    device: str | None  # device name as the trace states it
    span_ms: float  # first to last event
    generated: bool  # True for a simulated trace; said on the page
    partial: bool  # True when part of the file could not be read
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """The GPU the figures are judged against; peaks are dense."""

    name: str  # key in gpus.toml, "h100-sxm"; "unknown" when not in the table
    title: str
    vendor: str
    sms: int | None
    sms_source: str  # "trace" | "table" | "unknown"
    peak_tflops: dict[str, float]  # dtype -> datasheet dense peak; absent = unknown
    ceiling_tflops: dict[str, float]  # dtype -> best matmul anyone measured; absent = unknown
    bandwidth_gbps: float | None
    matched_by: str  # "--gpu" | "device name" | "none"
    sources: dict[str, str] = field(default_factory=dict)  # "peak.bf16", "bandwidth_gbps" -> document, date
    l2_mb: float | None = None
    measured_tflops: dict[str, float] = field(default_factory=dict)  # best matmul of `tracelens bench` here
    measured_bandwidth_gbps: float | None = None
    gemm_floor_us: float = 3.0  # what a GEMM kernel takes however little it computes


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Model dimensions, each with its source; ``transformer`` False when none was seen."""

    transformer: bool
    hidden: Known
    heads: Known
    kv_heads: Known
    head_dim: Known
    ffn: Known
    vocab: Known
    layers: Known
    sequence: Known
    micro_batch: Known
    tensor_parallel: Known
    experts: Known


@dataclass(frozen=True, slots=True)
class Step:
    index: int  # the N of ProfilerStep#N, or 0 when the whole trace is taken as one step
    start_ns: int
    duration_ms: float
    gpu_busy_frac: float


@dataclass(frozen=True, slots=True)
class StepTime:
    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class UnprofiledSteps:
    """Steps of the same run that the capture timed without the profiler, right before and after the window.

    They stand beside the profiled step; no other figure of the report is scaled by them.
    """

    before_ms: StepTime | None = None
    after_ms: StepTime | None = None
    median_ms: float | None = None  # of all of them
    clock: str | None = None  # cuda_events | perf_counter
    profiler_frac: float | None = None  # of the profiled step: 1 - median_ms / step_ms.median
    drift_frac: float | None = None  # after_ms.median / before_ms.median - 1: the run's own change of speed
    mfu_frac: float | None = None  # the FLOPs of a profiled step over median_ms
    why: str | None = "this report does not hold it"  # why some of it is not known


@dataclass(frozen=True, slots=True)
class Summary:
    step_ms: StepTime  # with the profiler running, which makes it longer
    gpu_ms_per_step: float  # sum of GPU event times per step; overlapping streams count twice
    gpu_busy_frac: float
    idle_ms: float  # per step: no GPU event of any kind running
    exposed_communication_ms: float  # per step: only communication running
    gemm_frac: float  # share of all GPU event time spent in GEMM and attention kernels
    mfu_frac: float | None
    mfu_dtype: str | None  # the type whose dense peak it is measured against
    mfu_why: str | None  # why mfu_frac is not known
    achieved_tflops: float | None  # GEMM + attention FLOPs of a step / step time
    shape_waste_ms: Estimate | None  # per step; None until a rule has something at stake
    verdict: str  # one sentence
    verdict_detail: str  # one or two sentences below it
    step_source: str  # how steps were found: "ProfilerStep ranges" | "whole trace"
    unprofiled: UnprofiledSteps = field(default_factory=UnprofiledSteps)


@dataclass(frozen=True, slots=True)
class Unattributed:
    reason: str  # what evidence is missing
    remedy: str  # how to get it
    time_ms: float
    kernels: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of all GPU event time in the file; nothing is renormalized."""

    component_frac: float
    module_frac: float
    shape_frac: float  # of GEMM and attention time: every size known
    tile_frac: float  # of GEMM time: tile known from the kernel's name
    by_evidence: dict[str, float]
    unattributed: list[Unattributed]
    no_launch_frac: float  # kernels whose launch is not in the file
    no_launch_kernels: int
    shape_bounded_frac: float = 0.0  # of GEMM and attention time: ranges of M and N, or packed sequences
    shape_unknown_frac: float = 0.0  # the rest; the three add to one
    lent_frac: float = 0.0  # component known from an identical kernel, of another step or of the reference
    lent_kernels: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceInfo:
    """A second trace of the same job, and what it lent. Shares of all GPU event time in the file."""

    path: str  # file name only
    sha256: str
    matched_frac: float  # kernels with a twin in the reference
    matched_kernels: int
    lent_frac: float  # kernels whose component came from the reference
    lent_kernels: int
    lent_calls: int  # GEMM and attention calls whose operator or shape came from the reference


@dataclass(frozen=True, slots=True)
class ComponentRow:
    component: str
    phase: str
    time_ms: float  # whole file
    time_ns: int  # exact: these add up to all GPU event time
    frac: float  # of all GPU event time
    kernels: int
    flops: float | None  # of its GEMM and attention calls whose shape is known; None without any
    tflops: float | None  # over the time of those calls


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
    small: float  # of other, without those two: GEMMs so small that the fixed cost of a kernel rules
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
    frac: float  # of all GPU event time
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
    shape_known: str = "unknown"  # exact | bounded (packed attention, or the two ranges below) | unknown
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


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """GPU events of one collective, group and purpose. exposed + hidden = time, exactly.

    Exposed: no compute kernel runs on the device meanwhile (copies and fills hide nothing). The time of a
    collective holds the wait for its slowest rank, so its bandwidths are no less than shown.
    """

    collective: str  # all_reduce | reduce_scatter | ... | packing | other (words.COLLECTIVES)
    group: str | None  # description of the process group, else its name
    group_size: int | None  # ranks
    purpose: str  # words.PURPOSES
    evidence: str  # words.EVIDENCE
    why: str  # what the purpose rests on, or why it is unknown
    phase: str
    dtype: str | None
    calls: int  # GPU events in the whole file
    calls_per_step: float
    bytes_per_call: float | None  # mean; of the larger of a rank's input and output
    time_ms: float  # whole file
    exposed_ms: float
    hidden_ms: float
    time_ms_per_step: float
    exposed_ms_per_step: float
    hidden_ms_per_step: float
    algorithm_gbps: float | None  # GB/s: bytes over time
    bus_gbps: float | None  # GB/s: nccl-tests' bus bandwidth, comparable with the link's speed


@dataclass(frozen=True, slots=True)
class Lack:
    """Something the recording does not hold, what that costs the analysis, and what would give it."""

    code: str  # stable: "no-shapes"
    title: str
    effect: str  # what is lost
    remedy: str  # the flag or line that gives it
    severity: str  # high | medium | low
    share: float | None  # of GPU time it touches, 0..1; None where that has no meaning


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str  # "TL101"
    slug: str  # "pad-vocabulary"
    title: str
    components: list[str]
    severity: str  # high | medium | low
    saving_ms: Estimate  # per step
    saving_frac: Estimate  # of the step time
    basis: str
    confidence: str  # high | medium | low
    effort: str  # config | code | retrain
    saw: str  # what we saw
    why: str  # why it costs time
    how: str  # the formula with numbers in it
    evidence: dict[str, Any]
    change: dict[str, list[int | float | str]]  # parameter -> [from, to]
    fix: list[str]  # diff lines, "- vocab_size = 30522", "+ vocab_size = 30528"
    parameter_delta: int | None
    flops_delta: float | None
    caveats: list[str]
    gemms: list[str]  # GemmRow.id
    doc: str  # "docs/rules/TL101.md"


@dataclass(frozen=True, slots=True)
class Check:
    rule: str
    slug: str
    state: str  # found | passed | not_applicable | could_not_run
    why: str


@dataclass(frozen=True, slots=True)
class RowChange:
    """One GEMM or attention row before and after a change. Times are per step."""

    gemm: str  # GemmRow.id
    component: str
    role: str | None
    shape_now: str
    shape_then: str
    time_ms: float
    then_ms: Estimate
    how: str  # the arithmetic of one call


@dataclass(frozen=True, slots=True)
class Rest:
    """A component's kernels besides its products, before and after a change. Times are per step."""

    component: str
    phase: str
    scales_with: str  # what its bytes are proportional to, "b*s*h"
    time_ms: float
    then_ms: Estimate


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A changed step. ``saving_ms`` is time now minus time then, per step: below zero it is slower."""

    change: dict[str, list[int | None]]  # parameter -> [now, then], with what follows from the change
    saving_ms: Estimate  # all None where too much of what changes has no prediction; notes say why
    saving_frac: Estimate  # of the step
    step_ms: float | None
    then_ms: Estimate  # the step after the change
    parameters: list[int | None]  # of the model [now, then]; in matrices alone
    flops_frac: float | None  # growth of the operations of the step's products and attention
    tokens_frac: float  # growth of the tokens of a micro-batch: compare time per token where it is not 0
    rows: list[RowChange]  # those that change, by time
    rest: list[Rest]  # components whose byte-moving kernels change, by time
    unpredicted_ms: float  # per step: time of affected products without a formula or a prediction
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IdleCause:
    """Idle time of one stream by what the next kernel waited for; another stream can work meanwhile."""

    device: int
    stream: int
    cause: str  # host_wait: not launched yet | kernel_wait: queued, gap below 30 us | other
    ms_per_step: float
    frac: float  # of this stream's idle time


@dataclass(frozen=True, slots=True)
class QueueLength:
    """GPU events of one stream launched and not begun, seen at every launch and every beginning."""

    device: int
    stream: int
    launches: int  # in the analysed steps
    mean: float
    median: float
    highest: int


@dataclass(frozen=True, slots=True)
class PathPart:
    """Time on the critical path of one step, by what bounds it."""

    bound_by: str  # cpu_bound | gpu_compute_bound | gpu_kernel_launch_overhead | ...
    time_ms: float
    frac: float  # of the path


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the step waits, as holistic-trace-analysis finds it in this trace's own tables (``--waits``).

    From the first to the last GPU event of the analysed steps, per step: idle + compute + non_compute.
    """

    tool: str | None = None  # with its version
    idle_ms: float | None = None  # no GPU event runs
    compute_ms: float | None = None  # some computing kernel runs
    non_compute_ms: float | None = None  # only copies or communication run
    overlap_frac: float | None = None  # of communication time, some computing kernel runs beside it
    idle: list[IdleCause] = field(default_factory=list)  # longest first
    queue: list[QueueLength] = field(default_factory=list)
    queued_frac: float | None = None  # of the GPU events, those in ``queue``
    path: list[PathPart] = field(default_factory=list)  # longest first; they add up to the path's length
    path_step: int | None = None  # the N of its ProfilerStep#N: the step of median length
    path_of_ms: float | None = None  # that step's length
    blocked_ms: float | None = None  # of that step, host calls that wait: no length on the path
    missing: dict[str, str] = field(default_factory=dict)  # temporal | idle | queue | path -> why
    why: str | None = "not asked for"  # why there is nothing at all


@dataclass(frozen=True, slots=True)
class Report:
    """Everything an analysis found, without the trace."""

    schema_version: str
    tool_version: str
    trace: TraceInfo
    gpu: GpuInfo
    model: ModelDims
    steps: list[Step]
    summary: Summary
    coverage: Coverage
    components: list[ComponentRow]
    gemms: list[GemmRow]
    findings: list[Finding]
    checks: list[Check]
    notes: list[str] = field(default_factory=list)  # method notes worth a line on the page
    communication: list[CommunicationRow] = field(default_factory=list)  # longest first
    recording: list[Lack] = field(default_factory=list)  # what the recording lacked, costliest first
    reference: ReferenceInfo | None = None  # the trace given with --reference
    gemm_time: GemmTime | None = None  # where the GEMM time of a step goes
    what_if: list[WhatIf] = field(default_factory=list)  # the scenarios asked for with --what-if
    waits: Waits = field(default_factory=Waits)
