"""TL104: the width of a gated MLP, often 8h/3, against its neighbours of nearly the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracelens.numbers import listed, percent, plural, round_up
from tracelens.rules.engine.bounds import bound_of_row
from tracelens.rules.engine.candidate import Candidate, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_step_ms
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import Trial, in_words, nearly_best, savings, surely, try_values
from tracelens.rules.evidence.dimensions import TARGET, Target, flops_growth
from tracelens.rules.evidence.misfits import WIDER_MLP, Case, case_of
from tracelens.rules.evidence.widths import GatedMlp, need_gated_mlp


class SwigluWidth(Rule):
    """The width of a gated MLP such that no neighbour of nearly its size is surely faster."""

    id = "TL104"
    slug = "swiglu-width"
    title = "Width of the gated MLP on the fast grid"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the GEMMs of a gated MLP by simulating the widths near theirs."""
        mlp = need_gated_mlp(facts)
        case = case_of(facts, "ffn")
        trials, why = try_values(facts, "ffn", mlp.near(facts))
        if not trials:
            return [_unsimulated(facts, mlp, case, why)], ""
        step_ms = need_step_ms(facts)
        sure = [one for one in trials if surely(one.saving_ms, step_ms)]
        if not sure:
            best = max(trials, key=lambda one: one.saving_ms.mid)
            seen = "" if case is None else f" {case.saw(facts)}"
            raise passed(
                f"ffn is {mlp.text}.{seen} None of {plural(len(trials), 'width')} near it is surely faster by"
                f" 1% of the step; at best, {in_words('ffn', best, step_ms)}."
            )
        close = nearly_best(sure, step_ms, bound_ms=float("inf"))
        # Growing first: an existing checkpoint can be padded, not cut. Then the nearest.
        best = min(close, key=lambda one: (one.value < mlp.width, abs(one.value - mlp.width)))
        found = _candidate(facts, mlp, best.value, case)
        ties, tried = _ties(best, close, step_ms), {"tried": savings(trials)}
        return [replace(found, caveats=[*found.caveats, *ties], evidence={**found.evidence, **tried})], ""


def _unsimulated(facts: StepFacts, mlp: GatedMlp, case: Case | None, why: str) -> Candidate:
    """Off the 16-byte grid there is a bound; on the 128-byte grid nothing to say; between them, not known."""
    if case is not None:
        return _candidate(facts, mlp, round_up(mlp.local, TARGET) * mlp.ranks, case)
    because = f": {why}" if why else ": none is near enough in size"
    if mlp.local % TARGET == 0 or not why:
        raise passed(f"ffn is {mlp.text}. Neighbours were not simulated{because}.")
    raise could_not_run(
        f"ffn is {mlp.text}, and whether a width near it is faster is not predicted{because}."
    )


def _candidate(facts: StepFacts, mlp: GatedMlp, then: int, case: Case | None) -> Candidate:
    """The change; ``case``: the GEMMs that the present width keeps off the 16-byte grid."""
    rows = {row.id: row for row in (*(case.rows if case is not None else ()), *mlp.rows)}.values()
    goal = Target("ffn", mlp.local, then // mlp.ranks)
    return Candidate(
        title=f"Change ffn from {mlp.width} to {then}",
        saw=case.saw(facts) if case is not None else f"ffn is {mlp.text}. {took(mlp.rows, facts)} with it.",
        why="" if case is None else "off the 16-byte grid",
        change={"ffn": [mlp.width, then]},
        fix=[f"- ffn = {mlp.width}", f"+ ffn = {then}"],
        caveats=[_changes_model(facts, mlp.width, then)],
        confidence="medium" if case is None else case.confidence,
        effort="retrain",
        bounds=[bound_of_row(row, gpu=facts.gpu) for row in rows],
        simulate={"ffn": then},
        evidence={"ffn_per_rank": [mlp.local, then // mlp.ranks]},
        parameter_delta=mlp.parameters(facts, goal),
        shared="yes",
        flops_delta=flops_growth(mlp.rows, goal=goal, sizes=frozenset({goal.now})),
    )


def _changes_model(facts: StepFacts, width: int, then: int) -> str:
    if then > width:
        return WIDER_MLP
    return (
        f"{facts.new_model}, and a checkpoint cannot be cut. Part of the saving is work left out: the MLP"
        f" gets {percent(1 - then / width)} narrower."
    )


def _ties(best: Trial, close: Sequence[Trial], step_ms: float) -> list[str]:
    """Which others the model does not tell from the best."""
    others = [str(one.value) for one in close if one.value != best.value]
    if not others:
        return []
    spread = max(one.saving_ms.mid for one in close) - min(one.saving_ms.mid for one in close)
    return [
        (
            f"With {listed(others)} the step is predicted to differ by at most {percent(spread / step_ms)}"
            f" from that with {best.value}, less than the prediction resolves: take the one that suits the"
            " model."
        )
    ]
