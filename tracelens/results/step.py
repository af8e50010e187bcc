"""The step as a whole: its times, its five numbers, and what of it is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from tracelens.results import words
from tracelens.results.described import says
from tracelens.results.estimates import Estimate, SavingOf, StepBound
from tracelens.words import Collective, Evidence, Level, Purpose

#: Why a ProfilerStep range is no step to measure.
NotWhole = Literal["no_gpu_work", "not_in_file", "cut_at_start", "cut_at_end", "events_lost"]
#: What unprofiled steps were timed with.
StepClock = Literal["cuda_events", "perf_counter"]
STEP_CLOCKS: tuple[StepClock, ...] = get_args(StepClock)
LimitedBy = Literal["idle", "exposed", "memory", "shapes", ""]

#: Of GPU time that could not be told apart: no more, and what was not seen is not there.
_SEEN = 0.05


@dataclass(frozen=True, slots=True)
class Step:
    index: Annotated[int, says("the N of ProfilerStep#N; where other ranges or none mark steps, from 0 on")]
    start_ns: int
    duration_ms: float
    gpu_busy_frac: float
    lacks: Annotated[
        NotWhole | None, says("what it is not whole by; kept where no step of the trace is whole")
    ] = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A ProfilerStep range that is in no figure of the report."""

    index: Annotated[int, says("the N of ProfilerStep#N")]
    reason: Annotated[NotWhole, says("cut: at the start or end of the trace")]
    start_ns: Annotated[int, says("of the range, on the CPU's clock")]
    duration_ms: float


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
    median_ms: Annotated[float | None, says("of all of them")] = None
    clock: StepClock | None = None
    profiler_frac: Annotated[float | None, says("of the profiled step: 1 - median_ms / step_ms.median")] = (
        None
    )
    drift_frac: Annotated[
        float | None, says("after_ms.median / before_ms.median - 1: the run's own change of speed")
    ] = None
    mfu_frac: Annotated[float | None, says("the FLOPs of a profiled step over median_ms")] = None
    why: Annotated[str | None, says("why some of it is not known")] = words.NOT_HELD
    times_ms: Annotated[list[float], says("of each of them, in order")] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summary:
    step_ms: Annotated[StepTime, says("with the profiler running, which makes it longer")]
    gpu_ms_per_step: Annotated[
        float, says("sum of GPU event times per step; overlapping streams count twice")
    ]
    gpu_busy_frac: float
    idle_ms: Annotated[float, says("per step: no GPU event of any kind running")]
    exposed_communication_ms: Annotated[float, says("per step: only communication running")]
    gemm_frac: Annotated[
        float, says("share of the steps' GPU time spent in kernels known to be GEMM or attention")
    ]
    mfu_frac: float | None
    mfu_dtype: Annotated[str | None, says("the type of most of its FLOPs")]
    mfu_why: Annotated[
        str | None, says("why mfu_frac is not known, what it leaves out, or what it counts too much of")
    ]
    achieved_tflops: Annotated[
        float | None, says("GEMM + attention FLOPs of the model, nothing counted twice / step time")
    ]
    shape_waste_ms: Annotated[Estimate | None, says("per step; None until a rule has something at stake")]
    verdict: Annotated[str, says("one sentence")]
    verdict_detail: Annotated[str, says("what else is to be known, in one or two sentences")]
    step_source: Annotated[str, says("how steps were found, in words")]
    unprofiled: UnprofiledSteps = field(default_factory=UnprofiledSteps)
    verdict_to_try: Annotated[str, says("what to try against it, in one sentence")] = ""
    limited_by: Annotated[LimitedBy, says('by the rule of the verdict; "" = not judged')] = ""
    step_bound: Annotated[StepBound, says("what the step waits for, by its idle time")] = "gpu"
    saving_of: Annotated[
        SavingOf, says("what shape_waste_ms is of; gpu_work: the step gains 0 to its high end")
    ] = "step"
    steps_marked: Annotated[
        bool, says("False: no step is marked, or none whole, so nothing is known per step")
    ] = True
    gemm_frac_is_bound: Annotated[
        bool, says("gemm_frac is a lower bound: too much GPU time could not be told apart")
    ] = False
    communication_is_bound: Annotated[bool, says("so is the time of communication, exposed or not")] = False
    shape_open_ms: Annotated[
        float, says("at most, beside a predicted shape_waste_ms: findings without a prediction")
    ] = 0.0
    mfu_is_bound: Annotated[
        bool, says("mfu_frac and achieved_tflops are lower bounds, also the MFU unprofiled")
    ] = False
    mfu_types: Annotated[
        dict[str, float], says("type -> share of the FLOPs that are measured against its dense peak")
    ] = field(default_factory=dict)
    mfu_peak_tflops: Annotated[float | None, says("of all of them: 1 / sum(share / peak)")] = None
    idle_in: Annotated[
        str | None, says("range, operator or function that the CPU is in for at least half of idle_ms")
    ] = None
    idle_in_ms: Annotated[float | None, says("of idle_ms")] = None


@dataclass(frozen=True, slots=True)
class Unattributed:
    reason: Annotated[str, says("what evidence is missing")]
    remedy: Annotated[str, says("how to get it")]
    time_ms: Annotated[float, says("of all analysed steps together")]
    kernels: int


@dataclass(frozen=True, slots=True)
class Outside:
    """A kind of work in no part of a transformer."""

    component: Annotated[str, says('"other" or "unattributed"')]
    what: Annotated[
        str,
        says(
            '"GEMM", "attention", an operator of PyTorch ("convolution": forward and backward, of each'
            ' library), "compiled kernel", "other operator" (of another library) or "no operator"'
        ),
    ]
    frac: Annotated[float, says("of GPU time")]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of the GPU time of the analysed steps; nothing is renormalized."""

    component_frac: Annotated[float, says("in a part of the step; neither unattributed nor ``other``")]
    module_frac: float
    shape_frac: Annotated[float, says("of GEMM and attention time: every size known")]
    tile_frac: Annotated[float, says("of GEMM time: tile known from the kernel's name")]
    by_evidence: dict[Evidence, float]
    unattributed: list[Unattributed]
    no_launch_frac: Annotated[float, says("of the file's GPU time: kernels whose launch is not in it")]
    no_launch_kernels: Annotated[int, says("whole file")]
    shape_bounded_frac: Annotated[
        float, says("of GEMM and attention time: ranges of M and N, or packed sequences")
    ] = 0.0
    shape_unknown_frac: Annotated[float, says("the rest; the three add to one")] = 0.0
    lent_frac: Annotated[
        float, says("component known from an identical kernel, of another step or of the reference")
    ] = 0.0
    lent_kernels: int = 0
    other_frac: Annotated[float, says("named by its module, and no known part of the step")] = 0.0
    opaque_frac: Annotated[
        float, says("of that: kernels whose operators do not say that they are no attention")
    ] = 0.0
    attention_open_frac: Annotated[
        float | None, says("what can be attention: the same, of unattributed time as well")
    ] = None
    outside: Annotated[
        list[Outside], says("what ``other`` and unattributed time is, from 1% of GPU time on, longest first")
    ] = field(default_factory=list)

    @property
    def unattributed_frac(self) -> float:
        """GPU time of which nothing says what it is part of."""
        return max(0.0, 1 - self.component_frac - self.other_frac)

    @property
    def unseen_frac(self) -> float:
        """GPU time that can be a part of a transformer, or communication, that was not recognised."""
        return self.unattributed_frac + self.opaque_frac

    @property
    def no_attention(self) -> bool:
        """Was so much told apart that attention which was not seen is not there?"""
        open_ = self.attention_open_frac
        return (self.unseen_frac if open_ is None else open_) <= _SEEN

    @property
    def complete(self) -> bool:
        """Was so much told apart that what was not seen is not there?"""
        return self.unseen_frac <= _SEEN


@dataclass(frozen=True, slots=True)
class ComponentRow:
    component: str
    phase: str
    time_ms: Annotated[float, says("whole file")]
    time_ns: Annotated[int, says("exact: these add up to all GPU event time")]
    frac: Annotated[float, says("of the GPU time of the analysed steps")]
    kernels: Annotated[int, says("whole file")]
    flops: Annotated[
        float | None, says("of its GEMM and attention calls whose work is known; None without any")
    ]
    tflops: Annotated[float | None, says("over the time of those calls")]
    time_ms_per_step: Annotated[
        float, says("of the analysed steps alone: a file also holds work before and between them")
    ]
    kernels_per_step: float


@dataclass(frozen=True, slots=True)
class CommunicationRow:
    """GPU events of one collective, group and purpose. exposed + hidden = time, exactly.

    Exposed: no compute kernel runs on the device meanwhile (copies and fills hide nothing). The time of a
    collective holds the wait for its slowest rank, so its bandwidths are no less than shown.
    """

    collective: Collective
    group: Annotated[str | None, says("description of the process group, else its name")]
    group_size: Annotated[int | None, says("ranks")]
    purpose: Purpose
    evidence: Evidence
    why: Annotated[str, says("what the purpose rests on, or why it is unknown")]
    phase: str
    dtype: str | None
    calls: Annotated[int, says("GPU events in the whole file")]
    calls_per_step: float
    bytes_per_call: Annotated[float | None, says("mean; of the larger of a rank's input and output")]
    time_ms: Annotated[float, says("whole file")]
    exposed_ms: float
    hidden_ms: float
    time_ms_per_step: float
    exposed_ms_per_step: float
    hidden_ms_per_step: float
    algorithm_gbps: Annotated[float | None, says("GB/s: bytes over time")]
    bus_gbps: Annotated[
        float | None, says("GB/s: nccl-tests' bus bandwidth, comparable with the link's speed")
    ]
    best_bus_gbps: Annotated[
        float | None, says("GB/s: bus bandwidth of the call that is fastest for its size, so waits least")
    ] = None
    in_line_ms_per_step: Annotated[
        float, says("of exposed_ms_per_step: on the stream that computes most, so that nothing can hide it")
    ] = 0.0
    unaligned_ms_per_step: Annotated[
        float, says("of exposed_ms_per_step: large messages whose share of a rank is no multiple of 16 bytes")
    ] = 0.0
    unaligned_bytes: Annotated[int | None, says("such a share, of the call that is exposed longest")] = None
    uneven_frac: Annotated[
        float | None, says("of an all-to-all with a size for each rank: the largest over the mean, less one")
    ] = None

    @property
    def kind(self) -> str:
        """The collective with what it serves, where that is known."""
        return self.collective if self.purpose == "unknown" else f"{self.collective} for {self.purpose}"


#: compile: torch.compile; break: between the parts of a model that graph breaks divide; data: the DataLoader
#: in the loop's process; workers: in processes of its own; pageable: copies from pageable
#: memory; fetch: copies to it.
HostWork = Literal["compile", "break", "data", "workers", "pageable", "fetch"]


@dataclass(frozen=True, slots=True)
class HostWait:
    """Work of the CPU, or a copy, that the GPU waits for in a step."""

    kind: HostWork
    ms_per_step: float
    calls_per_step: float


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Batches of one number of rows that operators pad, and the tokens in them in the mean."""

    rows: int
    tokens: float


@dataclass(frozen=True, slots=True)
class StepPace:
    """How fast the GPU computes in one step."""

    step: Annotated[int, says("the N of ProfilerStep#N")]
    pace: Annotated[float, says("time of the same calls over that in the fastest step")]
    slow: Annotated[bool, says("all shapes alike are slower, by at least 3 %")]
    sm_mhz: Annotated[float | None, says("median of the trace's samples; null where it has none")] = None
    power_w: Annotated[float | None, says("the same of the GPU's power")] = None


@dataclass(frozen=True, slots=True)
class Clock:
    """Do the same GEMMs take the same time in every step? A lower clock slows all shapes by one factor."""

    steps: list[StepPace]
    lost_ms_per_step: Annotated[float, says("GEMMs and attention: what slow steps took beyond the fastest")]
    least_ms_per_step: Annotated[float | None, says("at least, as surely as the paces are known")] = None
    most_ms_per_step: float | None = None


@dataclass(frozen=True, slots=True)
class Lack:
    """Something the recording does not hold, what that costs the analysis, and what would give it."""

    code: Annotated[str, says('stable: "no-shapes"')]
    title: str
    effect: Annotated[str, says("what is lost")]
    remedy: Annotated[str, says("the flag or line that gives it")]
    severity: Level
    share: Annotated[
        float | None, says("of the file's GPU time it touches, 0..1; None where that has no meaning")
    ]
