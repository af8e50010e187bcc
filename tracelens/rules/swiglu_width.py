"""TL104: the width of a gated MLP, often 8h/3, against its neighbours of nearly the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens.numbers import listed, ms, percent, plural, round_up
from tracelens.results import GemmRow
from tracelens.rules.align_dimensions import (
    WIDER_MLP,
    Case,
    case_of,
    confidence_of,
    gated,
    mlp_parameters,
    saw_of,
    why_of,
)
from tracelens.rules.engine.dimensions import TARGET, Target, flops_growth
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.stakes import time_at_stake
from tracelens.rules.engine.trials import (
    Trial,
    in_words,
    nearly_best,
    savings,
    surely,
    try_values,
    without_a_model,
)
from tracelens.step.alignment import fp32_on_cuda_cores

#: Weights of the model stay within this share, and the width within the second.
_WEIGHTS_FRAC, _WIDTH_FRAC = 0.01, 0.03
#: Multiples that are searched, the first that has one near. 64 elements of bf16 are 128 bytes, the paper's
#: target (arXiv 2401.14489); 8 are the 16 bytes below which kernels fall back.
_GRIDS = (TARGET, 32, 16, 8)
#: Neighbours tried on each side; one simulation takes about a millisecond.
_EACH_SIDE = 6
_MLP = frozenset({"mlp.up", "mlp.gate", "mlp.down"})


@dataclass(frozen=True, slots=True)
class SwigluWidth:
    """The width of a gated MLP such that no neighbour of nearly its size is surely faster."""

    id: str = "TL104"
    slug: str = "swiglu-width"
    title: str = "Width of the gated MLP on the fast grid"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the products of a gated MLP by simulating the widths near theirs."""
        refusal = cannot_judge(facts) or _not_applicable(facts)
        if refusal is not None:
            return refusal
        width, case = _width(facts), case_of(facts, "ffn")
        trials, why = try_values(facts, "ffn", _near(facts, width))
        if not trials:
            return _unsimulated(self, facts, width, case, why)
        step_ms = facts.measured_step_ms or 0.0
        sure = [one for one in trials if surely(one.found.saving_ms, step_ms)]
        if not sure:
            return Outcome("passed", _passed(facts, width, case, trials, step_ms))
        close = nearly_best(sure, step_ms, bound_ms=float("inf"))
        # Growing first: an existing checkpoint can be padded, not cut. Then the nearest.
        best = min(close, key=lambda one: (one.value < width, abs(one.value - width)))
        proposal = _proposal(facts, width, best.value, case)
        proposal = replace(
            proposal,
            caveats=[*proposal.caveats, *_ties(best, close, step_ms)],
            evidence=proposal.evidence | {"tried": savings(trials)},
        )
        return decide(self, facts=facts, proposals=[proposal], passed="")


def _not_applicable(facts: StepFacts) -> Outcome | None:
    without = without_a_model(facts)
    if without is not None:
        return without
    rows = [row for row in facts.gemms if row.component in _MLP]
    if facts.model.experts.value is not None:
        return Outcome("not_applicable", "The MLP is split into experts, each with a width of its own.")
    if rows and all(row.n is None for row in rows):
        return Outcome(
            "could_not_run",
            f"None of the {plural(len(rows), 'MLP GEMM row')} has a shape: {for_shapes(rows)}.",
        )
    if not rows or not facts.model.ffn.value or facts.model.ffn.value < 1:
        parts = [one for one in facts.components if one.component.startswith("mlp.")]
        if parts:
            time = ms(sum(one.time_ms_per_step for one in parts))
            return Outcome(
                "could_not_run",
                f"The MLP takes {time} {facts.per_step}, and its width is in no GEMM that was recognised: a"
                " fused kernel has none.",
            )
        return absent("No MLP was recognised in the step.")
    if not gated(facts):
        return absent(
            "The MLP has no gate that was recognised, so its width is not the 8h/3 that this rule is about;"
            " TL102 judges whether it is on the 16-byte grid.",
        )
    if all(fp32_on_cuda_cores(row) for row in rows):
        return Outcome(
            "not_applicable", "The MLP runs in fp32 on CUDA cores: alignment is not what limits it."
        )
    return None


def _ranks(facts: StepFacts) -> int:
    return max(facts.model.tensor_parallel.value or 1, 1)


def _width(facts: StepFacts) -> int:
    """Of the whole model: ranks that split the layers hold a part each."""
    return (facts.model.ffn.value or 0) * _ranks(facts)


def _rows(facts: StepFacts) -> list[GemmRow]:
    local = facts.model.ffn.value or 0
    return [
        row for row in facts.gemms if row.component in _MLP and {local, 2 * local} & {row.m, row.n, row.k}
    ]


def _near(facts: StepFacts, width: int) -> list[int]:
    """Multiples near ``width`` that ranks divide and that keep the weights, on the coarsest grid with any."""
    for grid in _GRIDS:
        step = grid * _ranks(facts)
        below = range((width - 1) // step * step, 0, -step)[:_EACH_SIDE]
        above = range(width // step * step + step, 2 * width, step)[:_EACH_SIDE]
        found = [one for one in (*below, *above) if _keeps_weights(facts, width, one)]
        if found or width % step == 0:
            return sorted(found)
    return []


def _keeps_weights(facts: StepFacts, width: int, other: int) -> bool:
    far = abs(other / width - 1)
    now = facts.step.now if facts.step is not None else None
    weights = now.parameters if now is not None else None
    if now is None or not weights:
        return far <= _WEIGHTS_FRAC
    grown = (replace(now, ffn=other).parameters or weights) / weights - 1
    return far <= _WIDTH_FRAC and abs(grown) <= _WEIGHTS_FRAC


def _unsimulated(rule: SwigluWidth, facts: StepFacts, width: int, case: Case | None, why: str) -> Outcome:
    """Off the 16-byte grid there is a bound; on the 128-byte grid nothing to say; between them, not known."""
    local = width // _ranks(facts)
    if case is not None:
        then = round_up(local, TARGET) * _ranks(facts)
        return decide(rule, facts=facts, proposals=[_proposal(facts, width, then, case)], passed="")
    if local % TARGET == 0 or not why:
        return Outcome(
            "passed",
            f"ffn is {_said(facts, width)}, {_grid(local)}. Neighbours were not simulated{_because(why)}.",
        )
    return Outcome(
        "could_not_run",
        f"ffn is {_said(facts, width)}, {_grid(local)}, and whether a width near it is faster is not"
        f" predicted{_because(why)}.",
    )


def _because(why: str) -> str:
    return f": {why}" if why else ": none is near enough in size"


def _said(facts: StepFacts, width: int) -> str:
    ranks = _ranks(facts)
    return str(width) if ranks == 1 else f"{width} ({width // ranks} on each of {ranks} ranks)"


def _grid(local: int) -> str:
    found = next((grid for grid in _GRIDS if local % grid == 0), None)
    return f"a multiple of {found}" if found is not None else "no multiple of 8"


def _passed(facts: StepFacts, width: int, case: Case | None, trials: Sequence[Trial], step_ms: float) -> str:
    best = max(trials, key=lambda one: one.mid_ms)
    seen = "" if case is None else f" {saw_of(facts, case)}"
    return (
        f"ffn is {_said(facts, width)}, {_grid(width // _ranks(facts))}.{seen} None of"
        f" {plural(len(trials), 'width')} near it is surely faster by 1% of the step; the best,"
        f" {in_words('ffn', best, step_ms)}."
    )


def _proposal(facts: StepFacts, width: int, then: int, case: Case | None) -> Proposal:
    """The change; ``case``: the products that the present width keeps off the 16-byte grid."""
    rows, ranks = _rows(facts), _ranks(facts)
    goal = Target("ffn", width // ranks, then // ranks)
    return Proposal(
        title=f"Change ffn from {width} to {then}",
        stakes=[
            time_at_stake(row, gpu=facts.gpu, same_kernels=True)
            for row in (rows if case is None else _both(rows, case))
        ],
        confidence="medium" if case is None else confidence_of(case),
        effort="retrain",
        saw=_saw(facts, width, rows) if case is None else saw_of(facts, case),
        why=_WHY if case is None else f"{why_of(case)} {_MEASURED}",
        change={"ffn": [width, then]},
        fix=[f"- ffn = {width}", f"+ ffn = {then}"],
        caveats=[_changes_model(facts, width, then)],
        evidence={"ffn_per_rank": [width // ranks, then // ranks]},
        parameter_delta=_parameters(facts, goal),
        flops_delta=flops_growth(rows, goal=goal, sizes=frozenset({goal.now})),
        simulate={"ffn": then},
    )


_MEASURED = (
    "Measured on an H100 at hidden 4096 (stas00/ml-engineering): 272.7 TFLOP/s with a width of 10922, 395.6"
    " with 10848, 398.4 with 10944, 395.0 with 11008."
)
_WHY = (
    "Tiles have fixed sizes and the last wave of them takes as long as a full one, so time grows in steps"
    " with the width: just above a step the last tiles cost more than they compute."
)


def _both(rows: Sequence[GemmRow], case: Case) -> list[GemmRow]:
    return list({row.id: row for row in (*case.rows, *rows)}.values())


def _saw(facts: StepFacts, width: int, rows: Sequence[GemmRow]) -> str:
    local = width // _ranks(facts)
    return f"ffn is {_said(facts, width)}, {_grid(local)}. {took(rows, 'GEMM shape', facts)} with it."


def _changes_model(facts: StepFacts, width: int, then: int) -> str:
    if then > width:
        return f"{facts.new_model}. {WIDER_MLP}"
    return (
        f"{facts.new_model}, and a checkpoint cannot be cut. Part of the"
        f" saving is work left out: the MLP gets {percent(1 - then / width)} narrower."
    )


def _parameters(facts: StepFacts, goal: Target) -> int | None:
    """Where the simulation cannot count them: of this rank's slice times the ranks."""
    if facts.step is not None and facts.step.now.parameters is not None:
        return None
    local = mlp_parameters(facts, goal)
    return local * _ranks(facts) if local is not None else None


def _ties(best: Trial, close: Sequence[Trial], step_ms: float) -> list[str]:
    """Which others the model does not tell from the best."""
    others = [one for one in close if one.value != best.value]
    if not others:
        return []
    spread = max(one.mid_ms for one in close) - min(one.mid_ms for one in close)
    text = (
        f"{listed([str(one.value) for one in others])} {'are' if len(others) > 1 else 'is'} predicted within"
        f" {percent(spread / step_ms)} of the step of it, which the model does not resolve: take the one that"
        " suits the model."
    )
    return [text]
