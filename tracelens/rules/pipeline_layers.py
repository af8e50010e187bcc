"""TL108: pipeline stages of unequal work, for every stage waits for the longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.numbers import ms, percent, plural, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.missing import no_model
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide
from tracelens.rules.engine.stakes import Stake, name
from tracelens.step.present import micro_batches_of

#: Work of a stage outside of layers.
_LAST = frozenset({"logits", "loss"})
_FIRST = frozenset({"embedding"})
_NO_STAGE = frozenset({"communication", "optimizer", "grad_clip", "memory", "other", "unattributed"})


@dataclass(frozen=True, slots=True)
class _Stage:
    """This rank's stage. Times are per step."""

    stages: int
    here: int  # layers on this rank
    whole: int | None  # layers of the model, where its configuration is in the trace
    layers_ms: float
    first_ms: float  # of the embedding
    last_ms: float  # of logits and loss

    @property
    def layer_ms(self) -> float:
        return self.layers_ms / self.here

    @property
    def mean(self) -> float | None:
        """Layers of a stage were all alike."""
        return self.whole / self.stages if self.whole else None

    @property
    def longest(self) -> int | None:
        """Layers of the longest stage, as they are dealt out evenly; this rank's where it has more."""
        return max(-(-self.whole // self.stages), self.here) if self.whole else None

    @property
    def extra(self) -> float:
        """Work outside of layers, in layers."""
        return (self.first_ms + self.last_ms) / self.layer_ms


@dataclass(frozen=True, slots=True)
class PipelineLayers:
    """Stages of equal work: layers that divide, embedding and logits counted in."""

    id: str = "TL108"
    slug: str = "pipeline-layers"
    title: str = "Pipeline stages of equal work"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge this rank's stage against the mean of all."""
        refusal = cannot_judge(facts) or _no_pipeline(facts)
        if refusal is not None:
            return refusal
        stage = _stage(facts)
        if stage is None:
            return Outcome(
                "could_not_run",
                f"Layers are spread over {facts.model.pipeline_parallel.value} pipeline stages, and how many"
                f" this rank runs, or how long they take, is not known: {facts.model.layers.source}.",
            )
        proposals = [one for one in (_uneven(facts, stage), _heavy_end(facts, stage)) if one is not None]
        if not proposals and stage.whole is None:
            return Outcome(
                "could_not_run",
                f"{_saw(stage)} How many layers the whole model has is not in this trace, so whether"
                " they divide is not known: record with `tracelens capture`, which writes down the"
                " configuration.",
            )
        return decide(self, facts=facts, proposals=proposals, passed=_passed(stage))


def _no_pipeline(facts: StepFacts) -> Outcome | None:
    without = no_model(facts)
    if without is not None:
        return without
    known = facts.model.pipeline_parallel
    if known.value == 1:
        return Outcome("not_applicable", f"No pipeline: {known.source}.")
    if known.value is None:
        return Outcome(
            "could_not_run",
            f"Whether layers are spread over pipeline stages is not known ({known.source}): name the process"
            " groups (DeviceMesh with mesh_dim_names), or record with `tracelens capture`.",
        )
    return None


def _stage(facts: StepFacts) -> _Stage | None:
    stages, here = facts.model.pipeline_parallel.value, facts.model.layers.value
    if facts.step is None or not stages or not here:
        return None
    times = [(component, time) for component, _, time, _ in facts.step.components]
    outside = _LAST | _FIRST | _NO_STAGE
    layers = sum(time for component, time in times if component not in outside)
    if layers <= 0:
        return None
    whole = facts.declared.get("layers")
    return _Stage(
        stages=stages,
        here=here,
        whole=whole if whole is not None and whole >= here else None,
        layers_ms=layers,
        first_ms=sum(time for component, time in times if component in _FIRST),
        last_ms=sum(time for component, time in times if component in _LAST),
    )


def _saw(stage: _Stage) -> str:
    of = f" of {stage.whole}" if stage.whole else ""
    text = (
        f"This rank runs {plural(stage.here, 'layer')}{of}, one of {stage.stages} pipeline stages:"
        f" {ms(stage.layers_ms)} per step, {ms(stage.layer_ms)} a layer."
    )
    if stage.last_ms > 0:
        text += f" Logits and loss, which only the last stage has, take {ms(stage.last_ms)}"
        text += f" = {sig(stage.last_ms / stage.layer_ms)} layers."
    if stage.first_ms > 0:
        text += f" The embedding takes {ms(stage.first_ms)} = {sig(stage.first_ms / stage.layer_ms)} layers."
    return text


def _passed(stage: _Stage) -> str:
    return f"{_saw(stage)} {stage.whole} layers divide over {stage.stages} stages."


def _filling(facts: StepFacts, stage: _Stage) -> tuple[float, str]:
    """How much longer than its micro-batches a pipeline is, and the arithmetic; the most where not known."""
    count = micro_batches_of(facts.gemms, facts.model.layers.value)
    more = stage.stages - 1
    if count is None:
        return float(stage.stages), (
            f"Filling and draining the pipeline takes {more} micro-batches more than a step has (GPipe and"
            " 1F1B, arXiv 2104.04473); how many that are is not known, so one is taken, the most that it can"
            " cost."
        )
    return 1 + more / count, (
        f"Filling and draining the pipeline takes {more} micro-batches beside the {count} of a step (GPipe"
        f" and 1F1B, arXiv 2104.04473): × (1 + {more}/{count})."
    )


def _rows(facts: StepFacts) -> list[GemmRow]:
    outside = _LAST | _FIRST | _NO_STAGE
    return [row for row in facts.gemms if row.component not in outside and row.time_ms_per_step > 0]


def _stakes(rows: Sequence[GemmRow], share: float) -> list[Stake]:
    """Each row's part of what the longest stage takes too long."""
    stakes = []
    for row in rows:
        bound = share * row.time_ms_per_step
        text = f"{name(row)}: {ms(row.time_ms_per_step)} × {sig(share)} = {ms(bound)}."
        stakes.append(Stake(row, bound, text))
    return stakes


def _beside(stage: _Stage, rows: Sequence[GemmRow]) -> float:
    """Time of the stage's layers outside of products and attention."""
    return max(0.0, stage.layers_ms - sum(row.time_ms_per_step for row in rows))


def _uneven(facts: StepFacts, stage: _Stage) -> Proposal | None:
    """Layers that the stages do not divide."""
    if stage.whole is None or stage.mean is None or stage.longest is None or stage.longest <= stage.mean:
        return None
    filling, filling_how = _filling(facts, stage)
    over = stage.longest - stage.mean
    share = over / stage.here * filling
    rows = _rows(facts)
    interleaved = (
        "Interleaved stages (several pieces of layers to a rank) even out a part with the layers kept, and"
        " send more messages."
    )
    imbalance = stage.longest / stage.mean - 1
    then = -(-stage.whole // stage.stages) * stage.stages
    return Proposal(
        title=f"{stage.stages} pipeline stages do not divide {stage.whole} layers: even them out",
        stakes=_stakes(rows, share),
        more_bound_ms=share * _beside(stage, rows),
        bound_of="what the longest stage takes above the mean of all",
        confidence="medium",
        effort="retrain",
        saw=(
            f"{_saw(stage)} Dealt out, the longest stage has {stage.longest} and the mean is"
            f" {stage.mean:.4g}: {stage.longest}/{stage.mean:.4g} - 1 = {percent(imbalance)} more."
        ),
        why=(
            "A pipeline moves at the pace of its longest stage: in every micro-batch the others wait for it."
        ),
        how=(
            f"{stage.longest} - {stage.mean:.4g} = {over:.4g} layers of {ms(stage.layer_ms)} each."
            f" {filling_how}"
        ),
        change={"layers": [stage.whole, then]},
        fix=[f"- layers = {stage.whole}", f"+ layers = {then}"],
        caveats=[
            _other_ways(stage),
            interleaved,
        ],
        evidence={
            "layers": stage.whole,
            "stages": stage.stages,
            "layers_here": stage.here,
            "imbalance_frac": imbalance,
        },
    )


def _other_ways(stage: _Stage) -> str:
    whole = stage.whole or 0
    below = whole // stage.stages * stage.stages
    text = f"Another number of layers is another model: {whole} becomes "
    text += f"{below} or {below + stage.stages}." if below else f"{below + stage.stages}."
    divisors = [count for count in range(2, 2 * stage.stages) if whole % count == 0]
    near = [
        *[one for one in divisors if one < stage.stages][-1:],
        *[one for one in divisors if one > stage.stages][:1],
    ]
    if near:
        text += f" {' or '.join(str(one) for one in near)} stages divide the {whole} there are."
    return text


def _heavy_end(facts: StepFacts, stage: _Stage) -> Proposal | None:
    """A last or first stage with as many layers as the others, and logits or the embedding on top.

    Some of its layers go to the other stages: as many as make the longest of all as short as can be.
    """
    if stage.here < (stage.mean or 0.0) or stage.stages < 2:
        return None  # it has fewer layers already
    paces = [_pace(stage, moved) for moved in range(stage.here)]
    best = paces.index(min(paces))
    won = paces[0] - paces[best]
    if won <= 0:
        return None
    filling, filling_how = _filling(facts, stage)
    share = won / stage.here * filling
    rows = _rows(facts)
    end = "last" if stage.last_ms >= stage.first_ms else "first"
    taken = (
        "The other stages are taken to have as many layers as this one and nothing else: look at a trace of"
        " one of them."
    )
    left = stage.here - best
    return Proposal(
        title=f"Give the {end} pipeline stage {left} layers and not {stage.here}: it has more to do",
        stakes=_stakes(rows, share),
        more_bound_ms=share * _beside(stage, rows),
        bound_of="what this stage takes longer than the longest one once layers have moved",
        confidence="medium" if stage.whole else "low",
        effort="config",
        saw=_saw(stage),
        why=(
            f"A pipeline moves at the pace of its longest stage. This one has {stage.here} layers, and the"
            f" work of {sig(stage.extra)} more outside of them; the others wait for it in every micro-batch."
        ),
        how=(
            f"The longest stage takes {sig(paces[0])} layers now and {sig(paces[best])} with {left} layers"
            f" here and {best} more on the other {stage.stages - 1}: {sig(won)} layers of"
            f" {ms(stage.layer_ms)} each. {filling_how}"
        ),
        change={f"{end}_stage_layers": [stage.here, left]},
        fix=[f"- {end} stage: {stage.here} layers", f"+ {end} stage: {left} layers"],
        caveats=[
            taken,
            _settings(end),
        ],
        evidence={
            "stages": stage.stages,
            "layers_here": stage.here,
            "extra_layers": stage.extra,
            "moved": best,
        },
        parameter_delta=0,
        flops_delta=0.0,
    )


def _settings(end: str) -> str:
    """Where frameworks set it: megatron/training/arguments.py, torchtitan's parallelism configuration."""
    counted = "loss" if end == "last" else "embedding"
    return (
        f"Megatron: --decoder-{end}-pipeline-num-layers or --account-for-{counted}-in-pipeline-split;"
        f" torchtitan: pipeline_parallel_{end}_stage_less_layers."
    )


def _pace(stage: _Stage, moved: int) -> float:
    """The longest stage in layers, with ``moved`` layers of this one on the others as evenly as they go."""
    others = stage.here + -(-moved // (stage.stages - 1))
    return max(float(others), stage.here - moved + stage.extra)
