"""What an analysis says: plain frozen values, the same in Python, in ``--json`` and on the page.

The JSON schema that the package publishes is generated from these classes, so a field documented
here is a field of the contract. Units are suffixes (``_ns``, ``_ms``, ``_frac`` in 0..1, ``_tflops``).
``None`` always means "not known"; the reason stands beside it or in ``checks``/``coverage``.
"""

from tracelens.results.advice import (
    Amount,
    Check,
    ConfigDiff,
    Effects,
    Finding,
    FrontPoint,
    MemoryEffect,
    OtherHeads,
    PickReason,
    Rest,
    RowChange,
    SearchState,
    ShapePick,
    ShapeSearch,
    WhatIf,
)
from tracelens.results.described import Refusal
from tracelens.results.estimates import (
    Basis,
    Estimate,
    JobCost,
    Known,
    Price,
    Saving,
    SavingOf,
    Span,
    StepBound,
    total,
    weakest,
)
from tracelens.results.gemm import Beside, GemmRow, GemmTime, KernelKind, Lost, Term, WorkKnown, main_dtype
from tracelens.results.identity import Found, GpuInfo, ModelDims, ReferenceInfo, TraceInfo
from tracelens.results.report import (
    Curve,
    Explorer,
    LayerPass,
    LayerRow,
    Layers,
    LayerTimeline,
    OtherKernel,
    OtherRow,
    Report,
    Suggested,
)
from tracelens.results.step import (
    Clock,
    CommunicationRow,
    ComponentRow,
    Coverage,
    HostWait,
    Lack,
    LeftOut,
    NotWhole,
    Outside,
    PaddedBatch,
    Step,
    StepPace,
    StepTime,
    Summary,
    Unattributed,
    UnprofiledSteps,
)
from tracelens.results.verified import MeasuredCall, MeasuredWhole, Verification, Verified
from tracelens.results.waits import IdleCause, PathPart, QueueLength, Waits

#: Of ``--json``.
SCHEMA_VERSION = "1.1"

__all__ = [
    "SCHEMA_VERSION", "Basis", "Estimate", "total", "weakest", "Known", "SavingOf", "Span", "StepBound",
    "TraceInfo", "GpuInfo", "ModelDims", "Found", "ReferenceInfo", "Step", "StepTime", "UnprofiledSteps",
    "Summary", "Unattributed", "Coverage", "ComponentRow", "CommunicationRow", "Lack", "LeftOut",
    "NotWhole", "OtherKernel", "OtherRow", "Outside", "Lost", "GemmTime", "Term", "Beside", "Clock",
    "HostWait", "PaddedBatch", "StepPace", "GemmRow", "KernelKind", "WorkKnown", "main_dtype", "Finding",
    "Effects", "Amount", "MemoryEffect", "ConfigDiff", "Price", "Saving", "JobCost", "Check", "RowChange",
    "Rest", "WhatIf", "Suggested", "Curve", "Explorer", "LayerRow", "LayerPass", "LayerTimeline",
    "Layers", "PickReason", "ShapePick", "OtherHeads", "FrontPoint", "SearchState", "ShapeSearch",
    "IdleCause", "QueueLength", "PathPart", "Waits", "MeasuredCall", "MeasuredWhole", "Verified",
    "Verification", "Refusal", "Report",
]  # fmt: skip
