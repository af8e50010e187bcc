"""Everything together, with the parts that stand nowhere else: layers, kernels of no GEMM, the explorer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results import words
from tracelens.results.advice import Check, Finding, ShapeSearch, WhatIf
from tracelens.results.described import same_length, says
from tracelens.results.estimates import Basis, JobCost, SavingOf
from tracelens.results.gemm import GemmRow, GemmTime
from tracelens.results.identity import GpuInfo, ModelDims, ReferenceInfo, TraceInfo, ValidityRule
from tracelens.results.step import (
    Clock,
    CommunicationRow,
    ComponentRow,
    Coverage,
    Lack,
    LeftOut,
    Step,
    Summary,
)
from tracelens.results.verified import Verification
from tracelens.results.waits import Waits


@dataclass(frozen=True, slots=True)
class LayerRow:
    """GPU time of one component and phase, per step; the layers and the rest are all of it."""

    component: str
    phase: str
    time_ms: Annotated[list[float], says("by layer, in the order of Layers.layers")]
    rest_ms: Annotated[float, says("in no layer, or in one that is not known")]


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One pass of a layer: its GPU events, and all others that begin in its time. Columns, by beginning."""

    phase: Annotated[Literal["forward", "backward"], says("backward: with what it recomputes")]
    begins_ms: Annotated[float, says("after the step's beginning")]
    length_us: float
    busy_frac: Annotated[float, says("of the length, some GPU event runs")]
    start_us: Annotated[list[float], says("after the pass's beginning")]
    duration_us: list[float]
    component: list[str]
    name: Annotated[list[int], says("index into LayerTimeline.names")]
    stream: list[int]
    layer: Annotated[list[int], says("-1: none, or not known")]
    left_out: Annotated[int, says("events after those listed")] = 0

    def __post_init__(self) -> None:
        same_length(
            start_us=self.start_us,
            duration_us=self.duration_us,
            component=self.component,
            name=self.name,
            stream=self.stream,
            layer=self.layer,
        )


@dataclass(frozen=True, slots=True)
class LayerTimeline:
    """A middle layer of the step of median length."""

    layer: int
    step: Annotated[int, says("the N of ProfilerStep#N")]
    names: Annotated[list[str], says("of kernels")]
    passes: list[LayerPass]

    def __post_init__(self) -> None:
        if any(not 0 <= at < len(self.names) for one in self.passes for at in one.name):
            raise ValueError("name is no index into names")


@dataclass(frozen=True, slots=True)
class Layers:
    """GPU time per step by layer, component and phase. Every GPU event of the steps is in one cell."""

    layers: list[int] = field(default_factory=list)
    rows: list[LayerRow] = field(default_factory=list)
    timeline: LayerTimeline | None = None
    why: Annotated[str | None, says("why no layer is known")] = words.NOT_HELD

    def __post_init__(self) -> None:
        for row in self.rows:
            same_length(layers=self.layers, time_ms=row.time_ms)


@dataclass(frozen=True, slots=True)
class Suggested:
    """A value that a finding proposes."""

    value: int
    rule: Annotated[str, says('"TL101"')]


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted step time against one hyper-parameter, the others as they are. Columns, by value.

    At ``now`` it is the measured median step. Where the tokens of a step change with the parameter
    (``per_token``), the time is that of as many tokens as the step has now.
    """

    parameter: str
    now: int
    per_token: bool
    values: list[int]
    low_ms: list[float | None]
    mid_ms: Annotated[list[float | None], says("None: no prediction for this value")]
    high_ms: list[float | None]
    alignment_bytes: Annotated[
        list[int],
        says("of rows of so many elements, at most 128; empty where the parameter is no length of a row"),
    ] = field(default_factory=list)
    suggested: list[Suggested] = field(default_factory=list)
    follows: Annotated[str, says("what changes with it")] = ""
    basis: Annotated[Basis, says("of the times away from now")] = "model"
    notes: list[str] = field(default_factory=list)
    why: Annotated[str | None, says("why there is no curve; the columns are empty then")] = None
    saving_of: Annotated[
        SavingOf, says("gpu_work: the times are of the GPU's work, without its idle time")
    ] = "step"

    def __post_init__(self) -> None:
        same_length(values=self.values, low_ms=self.low_ms, mid_ms=self.mid_ms, high_ms=self.high_ms)
        if self.alignment_bytes:
            same_length(values=self.values, alignment_bytes=self.alignment_bytes)
        if self.values and not {self.now, *(one.value for one in self.suggested)} <= {*self.values}:
            raise ValueError("now or a suggested value is none of values")
        if self.why is None and all(time is None for time in self.mid_ms):
            raise ValueError("a curve without times has no reason")


@dataclass(frozen=True, slots=True)
class Explorer:
    """One curve for each hyper-parameter that the step's formulas know."""

    curves: list[Curve] = field(default_factory=list)
    why: Annotated[str | None, says("why there is none")] = words.NOT_HELD


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
    notes: Annotated[list[str], says("method notes worth a line on the page")] = field(default_factory=list)
    communication: Annotated[list[CommunicationRow], says("longest first")] = field(default_factory=list)
    recording: Annotated[list[Lack], says("what the recording lacked, costliest first")] = field(
        default_factory=list
    )
    reference: Annotated[ReferenceInfo | None, says("the trace given with --reference")] = None
    gemm_time: Annotated[GemmTime | None, says("where the GEMM time of a step goes")] = None
    what_if: Annotated[list[WhatIf], says("the scenarios asked for with --what-if")] = field(
        default_factory=list
    )
    waits: Waits = field(default_factory=Waits)
    cost: Annotated[JobCost | None, says("per 1000 steps of the whole job")] = None
    explorer: Annotated[Explorer, says("step time against each hyper-parameter")] = field(
        default_factory=Explorer
    )
    layers: Annotated[Layers, says("time by layer, and one layer kernel by kernel")] = field(
        default_factory=Layers
    )
    verification: Annotated[
        Verification | None, says("of `tracelens verify`, where it measured the findings")
    ] = None
    shape_search: Annotated[
        ShapeSearch | None, says("a faster shape of the same size; None where nothing searched")
    ] = None
    declared: Annotated[
        dict[str, int], says("sizes in the model's own configuration, where the capture wrote them")
    ] = field(default_factory=dict)
    left_out: Annotated[list[LeftOut], says("steps in no figure: without GPU work, or cut")] = field(
        default_factory=list
    )
    clock: Annotated[Clock | None, says("the pace of the steps; None = no two of them compare")] = None
    trace_rules: Annotated[
        list[ValidityRule], says("PyTorch's own rules for traces, those that apply to this one")
    ] = field(default_factory=list)
    other_kernels: Annotated[
        list[OtherKernel], says("longest first; those below 0.01 % of the GPU time are left out")
    ] = field(default_factory=list)
