"""What a GPU said of a suggestion: times measured before and after the change, beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tracelens.results.estimates import Estimate

UNKNOWN = Estimate.unknown("measured")

WholeKind = Literal["layer", "logits", "step"]
RestsOn = Literal["layers", "products", ""]


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """One product or attention call, alone on the GPU, before and after a change."""

    component: str
    role: str | None
    gemm: str | None  # GemmRow.id
    shape_now: str
    shape_then: str
    calls_now: float  # per step
    calls_then: float
    trace_us: float | None  # one call in the trace, the mean of the row
    now_us: Estimate  # one call; low and high from the spread of its repeats
    then_us: Estimate
    saving_ms: Estimate  # per step
    kernels_now: list[str] = field(default_factory=list)  # in launch order
    kernels_then: list[str] = field(default_factory=list)
    why: str = ""  # why there is no time


@dataclass(frozen=True, slots=True)
class MeasuredWhole:
    """A layer, the logits with their loss, or a small training step, before and after a change."""

    what: WholeKind
    shape_now: str
    shape_then: str
    now_ms: Estimate  # one, forward and backward; low and high of the turns
    then_ms: Estimate
    saving_ms: Estimate  # of one; low and high of the turns
    calls_now: float | None  # per step; None where it is no part of the step's sum
    calls_then: float | None
    trace_ms: float | None = None  # the same kernels in the trace, where they are known
    note: str = ""
    why: str = ""  # why there is no time


@dataclass(frozen=True, slots=True)
class Verified:
    """One suggestion on a GPU. Times are per step, as in the finding."""

    state: Literal["measured", "not_measured"]
    why: str  # why not; "" where it was
    rests_on: RestsOn  # what saving_ms is made of
    saving_ms: Estimate
    saving_frac: Estimate  # of the step
    predicted_ms: Estimate  # what was predicted before
    predicted_frac: Estimate
    ratio: float | None  # measured over predicted; None on another GPU
    in_range: bool | None  # is it within the predicted range? None without one, and on another GPU
    replaces: bool  # the finding's saving is the measured one
    how: str  # the sum with its numbers
    products_ms: Estimate = UNKNOWN  # what products and attention alone save
    calls: list[MeasuredCall] = field(default_factory=list)
    wholes: list[MeasuredWhole] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)
    device: str = ""  # where it was measured
    date: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The run of ``tracelens verify`` that measured."""

    gpu: str  # key in gpus.toml, or "cpu" for a try of the program
    device: str
    same_gpu: bool  # False: the report is of another GPU, and its savings stay as predicted
    date: str
    command: str
    software: dict[str, Any]
    clocks: dict[str, Any]
    noise_frac: float | None  # one layer against itself: what differs where nothing does
    measured: int
    suggestions: int
    notes: list[str] = field(default_factory=list)
