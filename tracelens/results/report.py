"""Everything together."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracelens.results.advice import Check, Finding, ShapeSearch, WhatIf
from tracelens.results.cost import JobCost
from tracelens.results.explorer import Explorer
from tracelens.results.gemm import GemmRow, GemmTime
from tracelens.results.identity import GpuInfo, ModelDims, ReferenceInfo, TraceInfo
from tracelens.results.layers import Layers
from tracelens.results.step import CommunicationRow, ComponentRow, Coverage, Lack, LeftOut, Step, Summary
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
    notes: list[str] = field(default_factory=list)  # method notes worth a line on the page
    communication: list[CommunicationRow] = field(default_factory=list)  # longest first
    recording: list[Lack] = field(default_factory=list)  # what the recording lacked, costliest first
    reference: ReferenceInfo | None = None  # the trace given with --reference
    gemm_time: GemmTime | None = None  # where the GEMM time of a step goes
    what_if: list[WhatIf] = field(default_factory=list)  # the scenarios asked for with --what-if
    waits: Waits = field(default_factory=Waits)
    cost: JobCost | None = None  # per 1000 steps of the whole job
    explorer: Explorer = field(default_factory=Explorer)  # step time against each hyper-parameter
    layers: Layers = field(default_factory=Layers)  # time by layer, and one layer kernel by kernel
    verification: Verification | None = None  # of `tracelens verify`, where it measured the findings
    shape_search: ShapeSearch | None = None  # a faster shape of the same size; None where nothing searched
    declared: dict[str, int] = field(
        default_factory=dict
    )  # sizes in the model's own configuration, where the capture wrote them
    left_out: list[LeftOut] = field(default_factory=list)  # steps in no figure: without GPU work, or cut
