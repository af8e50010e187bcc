"""What ``tracelens suggest`` says: plain frozen values, the same in Python and in its ``--json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tracelens.results.advice import FrontPoint, OtherHeads, ShapePick
from tracelens.results.described import says
from tracelens.results.estimates import Basis, Estimate

FORMAT_VERSION = "1.0"

SuggestedFrom = Literal["config", "trace", "report"]


@dataclass(frozen=True, slots=True)
class Size:
    value: int | None
    source: str
    assumed: Annotated[bool, says("nothing in the input says it")] = False


@dataclass(frozen=True, slots=True)
class ComponentTime:
    """One component of the present step, forward and backward."""

    component: str
    time_ms: Estimate
    frac: Annotated[float, says("of the sum")]
    tflops: Annotated[float | None, says("of its products and attention, over their time")]
    shapes: Annotated[list[str], says("of its products, forward")]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What ``tracelens suggest`` says."""

    format_version: str
    model: str
    sizes: dict[str, Size]
    gpu: str
    gpu_title: str
    dtype: str
    basis: Basis
    parameters: Annotated[int | None, says("weights in matrices")]
    step_ms: Annotated[
        Estimate, says("forward and backward of one micro-batch; the measured step of a trace")
    ]
    tflops: float | None
    memory_gb: Annotated[float | None, says("estimate, of one GPU")]
    components: Annotated[list[ComponentTime], says("longest first")]
    verdict: str
    picks: list[ShapePick]
    unsure: Annotated[
        ShapePick | None, says("predicted faster, but what it adds reaches to slower: not recommended")
    ]
    heads: list[OtherHeads]
    front: list[FrontPoint]
    tried: int
    searched: list[str]
    parameters_limit_frac: float
    not_included: list[str]
    notes: list[str] = field(default_factory=list)
    source: Annotated[SuggestedFrom, says("whether the step is planned or was measured")] = "config"
    not_searched: Annotated[dict[str, str], says("parameter -> why, and what would tell")] = field(
        default_factory=dict
    )
    causal: Annotated[
        bool | None, says("the mask that attention was predicted with; None where a step was measured")
    ] = None
    fused_qkv: Annotated[bool | None, says("one product for query, key and value")] = None
    fused_gate: Annotated[bool | None, says("gate and up in one product; None without a gate")] = None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Where a notebook shows text: the verdict, for the rest is long."""
        printer.text(f"<Suggestions: {self.verdict}>")
