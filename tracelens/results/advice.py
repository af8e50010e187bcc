"""What to change, and what a change does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tracelens.results.described import Refusal, says
from tracelens.results.estimates import Basis, Estimate, Saving, SavingOf, Span
from tracelens.results.verified import Verified
from tracelens.words import Level

#: good: nothing else is sure to be faster; none: nothing is, and not all was searched or could be judged.
SearchState = Literal["found", "good", "none", "could_not_run"]
#: What a change asks for: a setting, code, or a new training.
Effort = Literal["config", "code", "retrain"]
#: What a saving is of: all that the change does, its GEMMs, or its kernels without the launches it spares.
SavingCounts = Literal["all", "gemms", "kernels"]
CheckState = Literal["found", "passed", "not_applicable", "could_not_run"]
#: What becomes of a trained checkpoint.
Checkpoint = Literal["loads", "reshards", "pads", "converts", "scratch", "unknown"]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a change adds or, below zero, takes away. None: not known, and ``how`` says why."""

    delta: float | None
    frac: Annotated[float | None, says("of what there is now")]
    how: Annotated[str, says("the formula with numbers in it")]


@dataclass(frozen=True, slots=True)
class MemoryEffect:
    """Bytes of one GPU that a change adds: an estimate by the assumptions that ``how`` states."""

    delta: Annotated[float | None, says("states and activations; None where one of the two is not known")]
    states: Annotated[float | None, says("weights, gradients and the optimizer's states")]
    activations: Annotated[float | None, says("kept for the backward")]
    how: str


@dataclass(frozen=True, slots=True)
class Effects:
    """What a change takes and what it does besides saving time."""

    needs: Annotated[str, says("a setting, code, or a new training")]
    parameters: Annotated[Amount, says("weights of the whole model, in matrices")]
    flops: Annotated[Amount, says("of the step's GEMMs and attention, on this GPU")]
    memory: MemoryEffect
    checkpoint: Checkpoint
    checkpoint_how: Annotated[str, says("what has to be done with a trained checkpoint")]
    tokenizer: str
    undo: Annotated[str, says("how to go back")]


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """The change in the names of one framework; no lines where it has no such setting, and why."""

    framework: Annotated[str, says('"Hugging Face config.json"')]
    lines: Annotated[list[str], says('"-" and "+" lines, as in a unified diff')]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    rule: Annotated[str, says('"TL101"')]
    slug: Annotated[str, says('"pad-vocabulary"')]
    title: Annotated[str, says("what to do, and behind a colon what was seen")]
    components: list[str]
    severity: Level
    saving_ms: Annotated[Estimate, says("per step")]
    saving_frac: Annotated[Estimate, says("of the step time")]
    basis: Basis
    confidence: Annotated[Level, says("high only where the whole range is a saving")]
    effort: Effort
    saw: Annotated[str, says("what we saw")]
    why: Annotated[str, says("why it costs time")]
    how: Annotated[str, says("the formula with numbers in it, a line for each part of the sum")]
    evidence: dict[str, Any]
    change: Annotated[dict[str, list[int | float | str]], says("parameter -> [from, to]")]
    fix: Annotated[list[str], says('diff lines, "- vocab_size = 30522", "+ vocab_size = 30528"')]
    parameter_delta: int | None
    flops_delta: float | None
    caveats: Annotated[list[str], says("besides what saving_ms, its basis and verified say by themselves")]
    gemms: Annotated[list[str], says("GemmRow.id")]
    doc: Annotated[str, says('"docs/rules/TL101.md"')]
    effects: Effects | None = None
    diffs: Annotated[list[ConfigDiff], says("``fix`` as the usual frameworks spell it")] = field(
        default_factory=list
    )
    saving: Annotated[
        Saving | None, says("per 1000 steps of the whole job; None: no step, or only GPU work is saved")
    ] = None
    verified: Annotated[Verified | None, says("what `tracelens verify` measured of it")] = None
    saving_of: Annotated[
        SavingOf,
        says("what saving_ms is of; gpu_work: the step gains 0 to its high end; wait: the GPU waits for it"),
    ] = "step"
    counts: Annotated[
        SavingCounts,
        says(
            "gemms, kernels: what other kernels gain, or launches that it spares, are in no figure or bound"
        ),
    ] = "all"

    @property
    def action(self) -> str:
        """The title without what was seen."""
        return self.title.partition(": ")[0]


@dataclass(frozen=True, slots=True)
class Check:
    rule: str
    slug: str
    state: CheckState
    why: str


@dataclass(frozen=True, slots=True)
class RowChange:
    """One GEMM or attention row before and after a change. Times are per step."""

    gemm: Annotated[str, says("GemmRow.id")]
    component: str
    role: str | None
    shape_now: str
    shape_then: str
    time_ms: float
    then_ms: Span
    how: Annotated[str, says("the arithmetic of one call")]


@dataclass(frozen=True, slots=True)
class Rest:
    """A component's kernels besides its products, before and after a change. Times are per step."""

    component: str
    phase: str
    scales_with: Annotated[str, says('what its bytes are proportional to, "b*s*h"')]
    time_ms: float
    then_ms: Span


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A changed step. ``saving_ms`` is time now minus time then, per step: below zero it is slower."""

    change: Annotated[
        dict[str, list[int | str | None]], says("parameter -> [now, then], with what follows from the change")
    ]
    saving_ms: Annotated[
        Estimate, says("all None where too much of what changes has no prediction; notes say why")
    ]
    saving_frac: Annotated[Estimate, says("of the step")]
    step_ms: float | None
    then_ms: Annotated[Estimate, says("the step after the change")]
    parameters: Annotated[list[int | None], says("of the model [now, then]; in matrices alone")]
    flops_frac: Annotated[float | None, says("growth of the operations of the step's GEMMs and attention")]
    tokens_frac: Annotated[
        float, says("growth of the tokens of a micro-batch: compare time per token where it is not 0")
    ]
    rows: Annotated[list[RowChange], says("those that change, by time")]
    rest: Annotated[list[Rest], says("components whose byte-moving kernels change, by time")]
    unpredicted_ms: Annotated[
        float, says("per step: time of affected GEMMs without a formula or a prediction")
    ]
    notes: list[str] = field(default_factory=list)
    verified: Annotated[Verified | None, says("what `tracelens verify` measured of it")] = None
    saving_of: Annotated[
        SavingOf, says("gpu_work: the step waits for the CPU, and gains 0 to the high end")
    ] = "step"
    refused: Annotated[Refusal | None, says("why no saving is given")] = None


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
    saving_frac: Annotated[Estimate, says("of the time per token")]
    saving_ms: Annotated[
        Estimate, says("per micro-batch of the present size; per step where a step was analysed")
    ]
    shape_gain_frac: Annotated[float, says("what is left of it without what fewer operations give")]
    parameters: int | None
    parameters_frac: Annotated[float, says("zero where the weights cannot be counted")]
    flops_frac: float
    memory_frac: Annotated[float | None, says("growth of the estimate of a GPU's memory")]
    effort: Effort
    effort_why: str
    reasons: list[PickReason]
    diff: list[str]
    verified: Annotated[Verified | None, says("what `tracelens verify` measured of it")] = None
    unsure_over: Annotated[
        dict[str, list[int | None]] | None,
        says("of ``unsure``: the smaller change that it is not surely better than; {}: the present shape"),
    ] = None


@dataclass(frozen=True, slots=True)
class OtherHeads:
    """Another number of heads at the present hidden size. Below zero: slower."""

    heads: int
    head_dim: int
    saving_frac: Estimate
    parameters_frac: Annotated[
        float, says("growth of the weights: fewer KV heads than heads stay as many, of another size")
    ] = 0.0


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A point of the Pareto front; its time is a mid estimate and no recommendation."""

    change: dict[str, list[int | None]]
    parameters_frac: float
    time_frac: Annotated[float, says("per token, of the present")]


@dataclass(frozen=True, slots=True)
class ShapeSearch:
    """The joint search for a faster shape of the same size, and what it came to."""

    state: SearchState
    verdict: str
    picks: Annotated[list[ShapePick], says("best first; each surely faster")] = field(default_factory=list)
    unsure: Annotated[
        ShapePick | None, says("predicted faster, but not surely, see ``unsure_over``: not recommended")
    ] = None
    heads: list[OtherHeads] = field(default_factory=list)
    front: Annotated[list[FrontPoint], says("most weights first")] = field(default_factory=list)
    tried: int = 0
    searched: list[str] = field(default_factory=list)
    not_searched: Annotated[dict[str, str], says("parameter -> why, and what would tell")] = field(
        default_factory=dict
    )
    parameters_limit_frac: float = 0.0
    notes: list[str] = field(default_factory=list)
    kept_degree: Annotated[int, says("tensor-parallel ranks that all heads tried divide over")] = 1
