"""What to change, and what a change does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tracelens.results.cost import Saving
from tracelens.results.estimates import Basis, Estimate, SavingOf
from tracelens.results.verified import Verified
from tracelens.words import Level

#: good: nothing else is sure to be faster; none: nothing is, and not all was searched or could be judged.
SearchState = Literal["found", "good", "none", "could_not_run"]
#: What a change asks for: a setting, code, or a new training.
Effort = Literal["config", "code", "retrain"]
CheckState = Literal["found", "passed", "not_applicable", "could_not_run"]
#: What becomes of a trained checkpoint.
Checkpoint = Literal["loads", "reshards", "pads", "converts", "scratch", "unknown"]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a change adds or, below zero, takes away. None: not known, and ``how`` says why."""

    delta: float | None
    frac: float | None  # of what there is now
    how: str  # the formula with numbers in it


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """Bytes of one GPU that a change adds: an estimate by the assumptions that ``how`` states."""

    delta: float | None  # states and activations; None where one of the two is not known
    states: float | None  # weights, gradients and the optimizer's states
    activations: float | None  # kept for the backward
    how: str


@dataclass(frozen=True, slots=True)
class Effects:
    """What a change takes and what it does besides saving time."""

    needs: str  # a setting, code, or a new training
    parameters: Amount  # weights of the whole model, in matrices
    flops: Amount  # of the step's products and attention, on this GPU
    memory: MemoryEffect
    checkpoint: Checkpoint
    checkpoint_how: str  # what has to be done with a trained checkpoint
    tokenizer: str
    undo: str  # how to go back


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """The change in the names of one framework; no lines where it has no such setting, and why."""

    framework: str  # "Hugging Face config.json"
    lines: list[str]  # "-" and "+" lines, as in a unified diff
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str  # "TL101"
    slug: str  # "pad-vocabulary"
    title: str
    components: list[str]
    severity: Level
    saving_ms: Estimate  # per step
    saving_frac: Estimate  # of the step time
    basis: Basis
    confidence: Level  # high only where the whole range is a saving
    effort: Effort
    saw: str  # what we saw
    why: str  # why it costs time
    how: str  # the formula with numbers in it, a line for each part of the sum
    evidence: dict[str, Any]
    change: dict[str, list[int | float | str]]  # parameter -> [from, to]
    fix: list[str]  # diff lines, "- vocab_size = 30522", "+ vocab_size = 30528"
    parameter_delta: int | None
    flops_delta: float | None
    caveats: list[str]
    gemms: list[str]  # GemmRow.id
    doc: str  # "docs/rules/TL101.md"
    effects: Effects | None = None
    diffs: list[ConfigDiff] = field(default_factory=list)  # ``fix`` as the usual frameworks spell it
    saving: Saving | None = None  # per 1000 steps of the whole job; None: no step, or only GPU work is saved
    verified: Verified | None = None  # what `tracelens verify` measured of it
    saving_of: SavingOf = "step"  # what saving_ms is of; gpu_work: the step gains 0 to its high end


@dataclass(frozen=True, slots=True)
class Check:
    rule: str
    slug: str
    state: CheckState
    why: str


@dataclass(frozen=True, slots=True)
class RowChange:
    """One GEMM or attention row before and after a change. Times are per step."""

    gemm: str  # GemmRow.id
    component: str
    role: str | None
    shape_now: str
    shape_then: str
    time_ms: float
    then_ms: Estimate
    how: str  # the arithmetic of one call


@dataclass(frozen=True, slots=True)
class Rest:
    """A component's kernels besides its products, before and after a change. Times are per step."""

    component: str
    phase: str
    scales_with: str  # what its bytes are proportional to, "b*s*h"
    time_ms: float
    then_ms: Estimate


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A changed step. ``saving_ms`` is time now minus time then, per step: below zero it is slower."""

    change: dict[str, list[int | str | None]]  # parameter -> [now, then], with what follows from the change
    saving_ms: Estimate  # all None where too much of what changes has no prediction; notes say why
    saving_frac: Estimate  # of the step
    step_ms: float | None
    then_ms: Estimate  # the step after the change
    parameters: list[int | None]  # of the model [now, then]; in matrices alone
    flops_frac: float | None  # growth of the operations of the step's products and attention
    tokens_frac: float  # growth of the tokens of a micro-batch: compare time per token where it is not 0
    rows: list[RowChange]  # those that change, by time
    rest: list[Rest]  # components whose byte-moving kernels change, by time
    unpredicted_ms: float  # per step: time of affected products without a formula or a prediction
    notes: list[str] = field(default_factory=list)
    verified: Verified | None = None  # what `tracelens verify` measured of it
    saving_of: SavingOf = "step"  # gpu_work: the step waits for the CPU, and gains 0 to the high end


@dataclass(frozen=True, slots=True)
class PickReason:
    """One kernel that a pick changes. ``saving_ms`` below zero: slower."""

    component: str
    role: str
    shape_now: str
    shape_then: str
    time_ms: float
    then_ms: float
    saving_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class ShapePick:
    """One change of a model's shape, predicted as a whole."""

    title: str
    change: dict[str, list[int | None]]
    saving_frac: Estimate  # of the time per token
    saving_ms: Estimate  # per micro-batch of the present size; per step where a step was analysed
    shape_gain_frac: float  # what is left of it without what fewer operations give
    parameters: int | None
    parameters_frac: float  # zero where the weights cannot be counted
    flops_frac: float
    memory_frac: float | None  # growth of the estimate of a GPU's memory
    effort: Effort
    effort_why: str
    reasons: list[PickReason]
    diff: list[str]
    verified: Verified | None = None  # what `tracelens verify` measured of it


@dataclass(frozen=True, slots=True)
class OtherHeads:
    """Another number of heads at the present hidden size. Below zero: slower."""

    heads: int
    head_dim: int
    saving_frac: Estimate


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A point of the Pareto front; its time is a mid estimate and no recommendation."""

    change: dict[str, list[int | None]]
    parameters_frac: float
    time_frac: float  # per token, of the present


@dataclass(frozen=True, slots=True)
class ShapeSearch:
    """The joint search for a faster shape of the same size, and what it came to."""

    state: SearchState
    verdict: str
    picks: list[ShapePick] = field(default_factory=list)  # best first; each surely faster
    unsure: ShapePick | None = None  # predicted faster, but the range reaches to slower: not recommended
    heads: list[OtherHeads] = field(default_factory=list)
    front: list[FrontPoint] = field(default_factory=list)  # most weights first
    tried: int = 0
    searched: list[str] = field(default_factory=list)
    not_searched: dict[str, str] = field(default_factory=dict)  # parameter -> why, and what would tell
    parameters_limit_frac: float = 0.0
    notes: list[str] = field(default_factory=list)
