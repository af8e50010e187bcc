"""What a comparison says: plain frozen values, the same in Python and in ``tracelens compare --json``.

Differences are after minus before: a negative time is a saving. ``None`` means "not known" or, where times
are not compared, "not said"; the reason stands in ``why``, ``not_compared`` or ``caveats``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tracelens.results.described import says
from tracelens.results.estimates import Estimate, SavingOf
from tracelens.results.gemm import GemmKind
from tracelens.results.step import StepTime
from tracelens.words import per_step

SCHEMA_VERSION = "1.1"

#: What the step's time did. ``no_change``: a difference of practical size is excluded; ``inconclusive``: one
#: is not excluded, and the test sees none; ``too_few_steps``: no test can; ``identical``: one trace twice.
StepState = Literal["faster", "slower", "no_change", "inconclusive", "too_few_steps", "identical"]

#: Where a difference of the step comes from. ``gemms_alike``: GEMMs of the same shape and kernel that all
#: changed by the same factor; ``gemms_beside``: what other streams took of them;
#: ``gemms_single``: what single ones of them changed beyond that;
#: ``gemm_shapes``: GEMMs of another shape or kernel, or on one side only; ``other_kernels``: GPU time of
#: neither GEMMs nor communication; ``overlap``: compute kernels that run beside one another more or less;
#: ``across_pairs``: pairs of files change by another time than the whole they are of; ``mean_to_median``:
#: parts are means over the steps, the step's difference is of medians.
CauseCode = Literal[
    "idle", "exposed_communication", "gemms_alike", "gemms_single", "gemms_beside", "gemm_shapes",
    "other_kernels", "overlap", "across_pairs", "mean_to_median",
]  # fmt: skip

#: What became of a GEMM. moved: the same work, counted elsewhere after (``moved_to``); regrouped: several of
#: a place that cannot be paired one by one, together on both sides; shape_unknown: on one side
#: at least; with nothing in ``differs`` the kernel is the same.
GemmState = Literal[
    "same_shape", "shape_changed", "shape_unknown", "only_before", "only_after", "moved", "regrouped"
]
#: What is not the same of two GEMMs of a place.
GemmAspect = Literal["size", "dtype", "layout", "kernel", "calls"]
#: What became of a finding.
OutcomeState = Literal["acted_on", "changed_otherwise", "still_there", "gone", "cannot_tell"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two reports: what it is of, and its shares, which compare across GPUs."""

    path: Annotated[str, says("file name of the trace")]
    sha256: str
    gpu: Annotated[str, says('key of the GPU table, or "unknown"')]
    gpu_title: str
    sms: int | None
    dtype: Annotated[str | None, says("in which most GEMM time is computed; None = unknown")]
    rank: int | None
    world_size: int | None
    torch_version: str | None
    cuda_version: str | None
    steps: Annotated[list[int], says("numbers of the steps")]
    step_source: str
    generated: bool
    partial: bool
    gpu_busy_frac: float
    gemm_frac: float
    mfu_frac: float | None
    steps_ms: Annotated[list[float], says("of ``steps``; empty where times are not compared")] = field(
        default_factory=list
    )
    mfu_why: Annotated[
        str | None, says("why mfu_frac is not known, what it leaves out, or what it counts too much of")
    ] = None
    gemm_frac_is_bound: Annotated[bool, says("a lower bound, as in the report")] = False
    communication_is_bound: bool = False
    mfu_is_bound: bool = False
    steps_marked: Annotated[
        bool, says("False: the whole trace taken as one step, so nothing is known per step")
    ] = True


@dataclass(frozen=True, slots=True)
class StepKind:
    """The short, or the long, steps of two sides that both take turns in one pattern."""

    before: StepTime
    after: StepTime


@dataclass(frozen=True, slots=True)
class StepChange:
    """The step's time on both sides and what a test over the steps says of the difference."""

    state: StepState
    before: Annotated[StepTime, says("median: with ``kinds``, of each kind in its share of the steps")]
    after: StepTime
    diff_ms: Annotated[float, says("of the medians")]
    diff_frac: float | None
    p: Annotated[float | None, says("two-sided; None with too few steps")]
    smallest_p: Annotated[float, says("what the test could say at best with so few steps")]
    test: str
    shift_low_ms: Annotated[float, says("the difference lies between these with probability shift_level")]
    shift_high_ms: float
    shift_level: float
    unprofiled_before_ms: Annotated[float | None, says("median of the steps timed without the profiler")]
    unprofiled_after_ms: float | None
    unprofiled_diff_frac: float | None
    why: str
    kinds: Annotated[
        list[StepKind], says("short steps, then long ones, where both sides alternate; empty: they do not")
    ] = field(default_factory=list)
    by_kind: Annotated[bool, says("the test compares each step with its own kind only")] = False
    unprofiled_steps: Annotated[
        tuple[int, int] | None,
        says("so many steps timed without the profiler are what is tested: too few were recorded with it"),
    ] = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A part of the step's difference; the causes add up to it. GPU time counts as it lengthens the step."""

    code: CauseCode
    diff_ms: float
    frac: Annotated[float | None, says("gemms_alike: the factor that they share, less 1")] = None


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the step, per step: idle, exposed communication (``Summary``), GEMMs. Not tested."""

    name: str
    before_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True)
class Noise:
    """How the times of GEMMs of the same shape and kernel differ per call.

    Between ``low_frac`` and ``high_frac`` they changed alike: by ``mid_frac``, but for their noise.
    """

    rows: int
    share_frac: Annotated[float, says("of the GPU time before")]
    mid_frac: Annotated[float, says("median difference per call")]
    low_frac: float
    high_frac: float


@dataclass(frozen=True, slots=True)
class SetupChange:
    """Something that is not the same, known without comparing a time."""

    kind: Literal["model", "communication", "kernels", "software"]
    name: str
    before: str
    after: str
    said: Annotated[str, says("one sentence")]


@dataclass(frozen=True, slots=True)
class GemmSide:
    """The GEMMs of one component, role, phase and shape on one side. out[M,N] = a[M,K] @ b[K,N]."""

    ids: Annotated[list[str], says("rows of the report")]
    layers: list[str]
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    shape_note: str | None
    dtype: str | None
    layout: str | None
    kernels: list[str]
    calls_per_step: float
    time_ms_per_step: Annotated[float | None, says("None where times are not compared")]
    peak_frac: float | None
    taken_ms_per_step: Annotated[
        float | None, says("of the time, what other streams took; None = not known")
    ] = 0.0
    peak_is_bound: Annotated[bool, says("no more than that: more work is counted than was done")] = False


@dataclass(frozen=True, slots=True)
class GemmChange:
    state: GemmState
    kind: GemmKind
    component: str
    role: str | None
    phase: str
    before: GemmSide | None
    after: GemmSide | None
    changed: Annotated[list[str], says('"n 50257 -> 50304", "dtype ...", "kernel ...", "calls ..."')]
    diff_ms: float | None
    diff_frac: float | None
    beyond_noise: Annotated[bool | None, says("None = cannot be told")]
    moved_to: Annotated[list[str], says('component, role or "", phase: where it counts after')] = field(
        default_factory=list
    )
    alike: Annotated[
        bool, says("the same work, changed by more than noise, and as all GEMMs of the same work did")
    ] = False
    differs: Annotated[list[GemmAspect], says("what is not the same; ``changed`` says from what to what")] = (
        field(default_factory=list)
    )


@dataclass(frozen=True, slots=True)
class ComponentChange:
    """GPU time of a component and phase per step."""

    component: str
    phase: str
    before_ms: float
    after_ms: float
    diff_ms: float
    diff_frac: Annotated[float | None, says("None where it is on one side only")]
    before_kernels: Annotated[float, says("per step")]
    after_kernels: float
    beyond_noise: bool | None
    why: Annotated[str, says("what the judgement rests on")]
    alike: Annotated[bool, says("changed by more than noise, and as all GEMMs of the same work did")] = False


@dataclass(frozen=True, slots=True)
class Move:
    """Rows whose work is counted in one of them before and in another after: neither a saving nor a loss."""

    parts: Annotated[list[list[str]], says("component and phase of every row that it is in")]
    net: Annotated[
        ComponentChange, says('of all of them; named for reading: "communication", "optimizer → backward"')
    ]


@dataclass(frozen=True, slots=True)
class FindingOutcome:
    """A finding of the report before: was it acted on, and did the saving come?"""

    rule: str
    title: str
    change: dict[str, list[int | float | str]]
    state: OutcomeState
    predicted_ms: Annotated[Estimate, says("mid None: a bound, not a prediction")]
    measured_ms: Annotated[
        float | None, says("what its GEMMs take less per step; None unless the change was made")
    ]
    agrees: Annotated[
        str | None, says("as predicted | less than predicted | more than predicted | within the bound | ...")
    ]
    why: str
    saving_of: Annotated[SavingOf, says("what predicted_ms is of; measured_ms is always of the GEMMs")] = (
        "step"
    )


class TwoSides:
    """What a comparison of two files and one of two folders both are."""

    __slots__ = ()
    before: Any
    after: Any
    verdict: str

    @property
    def steps_marked(self) -> bool:
        """Are figures per step on both sides?"""
        return bool(self.before.steps_marked and self.after.steps_marked)

    @property
    def per_step(self) -> str:
        """What times and counts are of, behind them."""
        return per_step(self.steps_marked)

    def __repr__(self) -> str:
        """The verdict, for the rest is long."""
        return f"<{type(self).__name__.removeprefix('Shown')}: {self.verdict}>"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(TwoSides):
    """Two reports side by side."""

    schema_version: str
    tool_version: str
    before: Side
    after: Side
    not_compared: Annotated[list[str], says("why times are not compared; empty where they are")]
    verdict: str
    detail: Annotated[str, says('one or two sentences below it; "" where there is nothing to add')]
    step: StepChange | None
    parts: list[StepPart]
    noise: Noise | None
    changes: Annotated[list[SetupChange], says("the model first")]
    components: Annotated[
        list[ComponentChange], says("largest difference first; empty where times are not compared")
    ]
    gemms: list[GemmChange]
    findings: list[FindingOutcome]
    caveats: list[str]
    reasons: Annotated[list[str], says("why to believe the verdict; ``detail`` is all of them")] = field(
        default_factory=list
    )
    moves: Annotated[list[Move], says("to be read in place of their rows of ``components``")] = field(
        default_factory=list
    )
    causes: Annotated[list[Cause], says("largest first; they add up to ``step.diff_ms``")] = field(
        default_factory=list
    )
