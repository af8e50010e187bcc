"""Everything together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tracelens.results.advice import Check, Finding, ShapeSearch, WhatIf
from tracelens.results.cost import JobCost
from tracelens.results.described import says
from tracelens.results.explorer import Explorer
from tracelens.results.gemm import GemmRow, GemmTime
from tracelens.results.identity import GpuInfo, ModelDims, ReferenceInfo, TraceInfo, ValidityRule
from tracelens.results.layers import Layers
from tracelens.results.others import OtherKernel
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
