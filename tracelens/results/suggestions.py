"""What ``tracelens suggest`` says: plain frozen values, the same in Python and in its ``--json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracelens.results.advice import FrontPoint, OtherHeads, ShapePick
from tracelens.results.estimates import Estimate

FORMAT_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Size:
    value: int | None
    source: str


@dataclass(frozen=True, slots=True)
class ComponentTime:
    """One component of the present step, forward and backward."""

    component: str
    time_ms: Estimate
    frac: float  # of the sum
    tflops: float | None  # of its products and attention, over their time
    shapes: list[str]  # of its products, forward


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What ``tracelens suggest`` says."""

    format_version: str
    model: str
    sizes: dict[str, Size]
    gpu: str
    gpu_title: str
    dtype: str
    basis: str  # calibrated | model
    parameters: int | None  # weights in matrices
    step_ms: Estimate  # forward and backward of one micro-batch; the measured step of a trace
    tflops: float | None
    memory_gb: float | None  # estimate, of one GPU
    components: list[ComponentTime]  # longest first
    verdict: str
    picks: list[ShapePick]
    unsure: ShapePick | None  # predicted faster, but what it adds reaches to slower: not recommended
    heads: list[OtherHeads]
    front: list[FrontPoint]
    tried: int
    searched: list[str]
    parameters_limit_frac: float
    not_included: list[str]
    notes: list[str] = field(default_factory=list)
    source: str = "config"  # config | trace | report: whether the step is planned or was measured
    not_searched: dict[str, str] = field(default_factory=dict)  # parameter -> why, and what would tell
    causal: bool | None = None  # the mask that attention was predicted with; None where a step was measured
    fused_qkv: bool | None = None  # one product for query, key and value
    fused_gate: bool | None = None  # gate and up in one product; None without a gate

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Where a notebook shows text: the verdict, for the rest is long."""
        printer.text(f"<Suggestions: {self.verdict}>")
