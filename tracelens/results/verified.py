"""What a GPU said of a suggestion: times measured before and after the change, beside what was predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tracelens.results.described import says
from tracelens.results.estimates import Estimate

UNKNOWN = Estimate.unknown("measured")

WholeKind = Literal["layer", "logits", "step"]
RestsOn = Literal["layers", "products", ""]
ReasonCode = Literal[
    # of a change
    "nothing_changes", "names_no_size", "no_size", "not_whole_model", "no_call_changes",
    # of a layer or a small model
    "no_layer", "no_transformer", "experts", "sizes_unknown", "no_mlp", "layer_dtype", "no_backward",
    "no_wgrad", "micro_batches_unknown", "no_attention", "other_attention", "kv_heads_over_ranks",
    "kv_heads_over_heads", "no_logits", "sharded_model", "two_stacks", "attention_bias",
    # of a call
    "rows_without_sizes", "dtype", "sizes_unknown_then", "unequal_groups", "packed_lengths", "no_backend",
    # why layers do not stand for the trace's
    "single_products", "ranks_exchange", "present_type", "other_products",
    # what a saving lacks or takes for granted
    "plain_layers", "gemms_alone", "outside", "casts", "sizes_without_formula", "memory_grows", "per_token",
    "kv_heads_once", "causal_assumed", "configured_assumed", "layers_apart", "no_whole_layer", "no_step",
    "unlike_trace", "cpu_gaps", "parts_alone",
    # of a run
    "left_out", "later", "nothing_measured", "toy_cpu", "other_gpu", "noisy",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why there is no time, or what a time leaves out: programs go by ``code``, the page has the words."""

    code: ReasonCode
    values: Annotated[dict[str, str | int | float], says("what its words name")] = field(default_factory=dict)
    cause: Annotated[Reason | str, says("what it follows from")] = ""


#: A text is PyTorch's own, or of an earlier version; "" is none.
Why = Reason | str


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """One product or attention call, alone on the GPU, before and after a change."""

    component: str
    role: str | None
    gemm: Annotated[str | None, says("GemmRow.id")]
    shape_now: str
    shape_then: str
    calls_now: Annotated[float, says("per step")]
    calls_then: float
    trace_us: Annotated[float | None, says("one call in the trace, the mean of the row")]
    now_us: Annotated[Estimate, says("one call; low and high from the spread of its repeats")]
    then_us: Estimate
    saving_ms: Annotated[Estimate, says("per step")]
    kernels_now: Annotated[list[str], says("in launch order")] = field(default_factory=list)
    kernels_then: list[str] = field(default_factory=list)
    why: Annotated[Why, says("why there is no time")] = ""


@dataclass(frozen=True, slots=True)
class MeasuredWhole:
    """A layer, the logits with their loss, or a small training step, before and after a change."""

    what: WholeKind
    shape_now: str
    shape_then: str
    now_ms: Annotated[Estimate, says("one, forward and backward; low and high of the turns")]
    then_ms: Estimate
    saving_ms: Annotated[Estimate, says("of one; low and high of the turns")]
    calls_now: Annotated[float | None, says("per step; None where it is no part of the step's sum")]
    calls_then: float | None
    trace_ms: Annotated[float | None, says("the same kernels in the trace, where they are known")] = None
    note: Why = ""
    why: Annotated[Why, says("why there is no time")] = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """One suggestion on a GPU. Times are per step, as in the finding."""

    state: Literal["measured", "not_measured"]
    why: Annotated[Why, says('why not; "" where it was')]
    rests_on: Annotated[RestsOn, says("what saving_ms is made of")]
    saving_ms: Estimate
    saving_frac: Annotated[Estimate, says("of the step")]
    predicted_ms: Annotated[Estimate, says("what was predicted before")]
    predicted_frac: Estimate
    ratio: Annotated[float | None, says("measured over predicted; None on another GPU")]
    in_range: Annotated[
        bool | None, says("is it within the predicted range? None without one, and on another GPU")
    ]
    replaces: Annotated[bool, says("the finding's saving is the measured one")]
    products_ms: Annotated[Estimate, says("what GEMMs and attention alone save")] = UNKNOWN
    calls: list[MeasuredCall] = field(default_factory=list)
    wholes: list[MeasuredWhole] = field(default_factory=list)
    not_covered: list[Why] = field(default_factory=list)
    device: Annotated[str, says("where it was measured")] = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The run of ``tracelens verify`` that measured."""

    gpu: Annotated[str, says('key in gpus.toml, or "cpu" for a try of the program')]
    device: str
    same_gpu: Annotated[bool, says("False: the report is of another GPU, and its savings stay as predicted")]
    date: str
    command: str
    software: dict[str, Any]
    clocks: dict[str, Any]
    noise_frac: Annotated[float | None, says("one layer against itself: what differs where nothing does")]
    measured: int
    suggestions: int
    notes: list[Why] = field(default_factory=list)
