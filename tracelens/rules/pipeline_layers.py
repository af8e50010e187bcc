"""TL108: pipeline stages of unequal work, for every stage waits for the longest."""

from __future__ import annotations

from tracelens.numbers import ms, percent, sig
from tracelens.rules.engine.candidate import Candidate, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.stages import Stage, need_stage


class PipelineLayers(Rule):
    """Stages of equal work: layers that divide, embedding and logits counted in."""

    id = "TL108"
    slug = "pipeline-layers"
    title = "Pipeline stages of equal work"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge this rank's stage against the mean of all."""
        stage = need_stage(facts)
        candidates = [one for one in (_uneven(stage), _heavy_end(stage)) if one is not None]
        if not candidates and stage.whole is None:
            raise could_not_run(
                f"{stage.saw} How many layers the whole model has is not in this trace, so whether they"
                " divide is not known: record with `tracelens capture`, which writes down the configuration."
            )
        divide = f"{stage.saw} {stage.whole} layers divide over {stage.stages} stages."
        return candidates, "" if candidates else divide


def _uneven(stage: Stage) -> Candidate | None:
    """Layers that the stages do not divide."""
    whole, mean, longest = stage.whole, stage.mean, stage.longest
    if whole is None or mean is None or longest is None or longest <= mean:
        return None
    over, imbalance = longest - mean, longest / mean - 1
    then = -(-whole // stage.stages) * stage.stages
    bounds, elsewhere = stage.bounds(over)
    return Candidate(
        title=f"{stage.stages} pipeline stages do not divide {whole} layers: even them out",
        saw=(
            f"{stage.saw} Dealt out, the longest stage has {longest} and the mean is {mean:.4g}:"
            f" {longest}/{mean:.4g} - 1 = {percent(imbalance)} more."
        ),
        change={"layers": [whole, then]},
        fix=[f"- layers = {whole}", f"+ layers = {then}"],
        caveats=[
            _other_ways(whole, stage.stages),
            (
                "Interleaved stages (several pieces of layers to a rank) even out a part with the layers"
                " kept, and send more messages."
            ),
        ],
        confidence="medium",
        effort="retrain",
        bounds=bounds,
        elsewhere_ms=elsewhere,
        bound_of="what the longest stage takes above the mean of all",
        how=f"{longest} - {mean:.4g} = {over:.4g} layers of {ms(stage.layer_ms)} each. {stage.filling_how}",
        evidence={
            "layers": whole,
            "stages": stage.stages,
            "layers_here": stage.here,
            "imbalance_frac": imbalance,
        },
    )


def _other_ways(whole: int, stages: int) -> str:
    below = whole // stages * stages
    others = f"{below} or {below + stages}" if below else str(below + stages)
    divisors = [count for count in range(2, 2 * stages) if whole % count == 0]
    near = [*[one for one in divisors if one < stages][-1:], *[one for one in divisors if one > stages][:1]]
    divide = f" {' or '.join(str(one) for one in near)} stages divide the {whole} there are." if near else ""
    return f"Another number of layers is another model: {whole} becomes {others}.{divide}"


def _heavy_end(stage: Stage) -> Candidate | None:
    """A last or first stage with as many layers as the others, and logits or the embedding on top.

    Some of its layers go to the other stages: as many as make the longest of all as short as can be.
    """
    if (stage.mean is not None and stage.here < stage.mean) or stage.stages < 2:
        return None  # it has fewer layers already
    paces = stage.paces
    best = paces.index(min(paces))
    won, left = paces[0] - paces[best], stage.here - best
    if won <= 0:
        return None
    end, counted = ("last", "loss") if stage.last_ms >= stage.first_ms else ("first", "embedding")
    bounds, elsewhere = stage.bounds(won)
    return Candidate(
        title=f"Give the {end} pipeline stage {left} layers and not {stage.here}: it has more to do",
        saw=f"{stage.saw} That is the work of {sig(stage.extra)} more layers than the others have.",
        why="the first or last stage",
        change={f"{end}_stage_layers": [stage.here, left]},
        fix=[f"- {end} stage: {stage.here} layers", f"+ {end} stage: {left} layers"],
        caveats=[
            (
                "The other stages are taken to have as many layers as this one and nothing else: look at a"
                " trace of one of them."
            ),
            # megatron/training/arguments.py, torchtitan's parallelism configuration
            (
                f"Megatron: --decoder-{end}-pipeline-num-layers or --account-for-{counted}-in-pipeline-split;"
                f" torchtitan: pipeline_parallel_{end}_stage_less_layers."
            ),
        ],
        confidence="medium" if stage.whole else "low",
        effort="config",
        bounds=bounds,
        elsewhere_ms=elsewhere,
        bound_of="what this stage takes longer than the longest one once layers have moved",
        how=(
            f"The longest stage takes {sig(paces[0])} layers now and {sig(paces[best])} with {left} layers"
            f" here and {best} more on the other {stage.stages - 1}: {sig(won)} layers of"
            f" {ms(stage.layer_ms)} each. {stage.filling_how}"
        ),
        evidence={
            "stages": stage.stages,
            "layers_here": stage.here,
            "extra_layers": stage.extra,
            "moved": best,
        },
        parameter_delta=0,
        flops_delta=0.0,
    )
