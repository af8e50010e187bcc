"""TL109: experts that are run one by one, get few rows each, or do not divide over their ranks."""

from __future__ import annotations

from tracelens.numbers import percent
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import calls_of, time_of
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.mixtures import doubled, evidence, need_mixture, packed, packings_us, saw
from tracelens.step.alignment import misfit_of
from tracelens.step.experts import Mixture

#: Twice the rows for each expert have to save this share of the experts' time per row to be worth a word.
_WORTH_FRAC = 0.1


class Experts(Rule):
    """Experts in one grouped product, with rows enough to fill the GPU, divided evenly."""

    id = "TL109"
    slug = "experts"
    title = "Experts grouped, filled and divided evenly"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the GEMMs of the experts."""
        mixture = need_mixture(facts)
        found = _grouped(facts, mixture), _fuller(facts, mixture), _divided(facts, mixture)
        candidates = [one for one in found if one is not None]
        return candidates, "" if candidates else f"{saw(facts, mixture)}{_other_rules(mixture)}"


def _other_rules(mixture: Mixture) -> str:
    """What other rules say of these rows."""
    off = sum(1 for row in mixture.rows if misfit_of(row) is not None)
    return f" TL102 names {off} of these GEMMs for alignment." if off else ""


def _grouped(facts: StepFacts, mixture: Mixture) -> Candidate | None:
    """One grouped product where each expert has its own: the bound is what packing their tiles gives."""
    count = mixture.local or 0
    if mixture.how != "loop" or count < 2 or mixture.every_token:  # TL123's, in one grouped product, too
        return None
    number = calls_of(mixture.rows)
    uneven = ", of other sizes in each" if len(mixture.rows) > number else ""
    calls = f"That is {number:,.0f} GEMMs {facts.per_step}{uneven}."
    predicted = any(packings_us(facts, row, count) is not None for row in mixture.rows)
    return Candidate(
        title=f"Run the {count} experts in one grouped GEMM, not in {count}",
        saw=f"{saw(facts, mixture)} {calls}{_other_rules(mixture)}",
        why="one by one",
        change={"expert_products": ["one for each", "grouped"]},
        fix=[
            "- for expert, rows in zip(experts, parts): out = expert(rows)",
            "+ out = torch.nn.functional.grouped_mm(rows, weights, offs=offsets)",
        ],
        caveats=[
            # docs.pytorch.org (grouped_mm), transformers' experts interface, Megatron's arguments.
            (
                "torch.nn.functional.grouped_mm takes bf16 with weights stacked by expert and tokens sorted"
                " by expert; transformers: experts_implementation='grouped_mm', Megatron: --moe-grouped-gemm."
            )
        ],
        counts="kernels",
        confidence="medium",
        effort="code",
        bounds=[packed(facts, row, count) for row in mixture.rows],
        bound_of=(
            "of the experts' GEMMs what one GEMM of all of them is predicted to save, and no more than"
            " lies above the datasheet's floor"
            if predicted
            else ""
        ),
        how=f"One GEMM of {count} experts against {count} in turn, both predicted at these shapes."
        if predicted
        else "",
        evidence=evidence(mixture),
        parameter_delta=0,
        flops_delta=0.0,
    )


def _fuller(facts: StepFacts, mixture: Mixture) -> Candidate | None:
    """Twice the rows for each expert, where that is predicted to cost clearly less than twice the time."""
    if mixture.how == "loop" and (mixture.local or 0) > 1:
        return None  # one grouped product first: it packs the same tiles
    bounds = [bound for row in mixture.rows if (bound := doubled(facts, row)) is not None]
    worth = _WORTH_FRAC * time_of([bound.row for bound in bounds])
    if not bounds or sum(bound.ms for bound in bounds) < worth:
        return None
    capacity, ranks = round(mixture.capacity or 0), facts.model.expert_parallel.value
    more_ranks = (
        f" So do twice the expert-parallel ranks ({ranks} now), each with half of the experts; what they send"
        " then is not predicted."
    )
    return Candidate(
        title=f"Give each expert {2 * capacity:,} rows instead of {capacity:,}",
        saw=f"{saw(facts, mixture)}{_other_rules(mixture)}",
        change={"capacity": [capacity, 2 * capacity]},
        fix=[f"- {capacity:,} rows for each expert", f"+ {2 * capacity:,} rows for each expert"],
        caveats=[
            f"Twice the micro-batch does it, with the memory that takes.{more_ranks if ranks else ''}",
            "A larger capacity factor alone does not: it adds rows of padding.",
        ],
        confidence="medium",
        effort="config",
        bounds=bounds,
        bound_of="of the experts' time for each row what twice the rows are predicted to save",
        how="Half the time predicted for twice the rows, against the time for these.",
        evidence=evidence(mixture),
        parameter_delta=0,
    )


def _divided(facts: StepFacts, mixture: Mixture) -> Candidate | None:
    """Experts that their ranks do not divide: the others wait for the rank with one more."""
    experts, ranks = mixture.experts, facts.model.expert_parallel.value
    if not experts or not ranks or ranks < 2 or experts % ranks == 0:
        return None
    most, mean = -(-experts // ranks), experts / ranks
    share, then = 1 - mean / most, most * ranks
    how = "{} ({}): " + f"{percent(share)} of its time."
    return Candidate(
        title=f"{ranks} expert-parallel ranks do not divide {experts} experts: use {then} or other ranks",
        saw=saw(facts, mixture),
        why="uneven ranks",
        change={"experts": [experts, then]},
        fix=[f"- experts = {experts}", f"+ experts = {then}"],
        caveats=["Another number of experts is another model; another number of ranks is not."],
        confidence="medium",
        effort="retrain",
        bounds=[
            Bound(row, share * row.time_ms_per_step, how.format(row.component, row.id))
            for row in mixture.rows
        ],
        bound_of="what the rank with the most experts computes above the mean",
        how=f"{most} experts on the fullest rank and {mean:.4g} on average: 1 - {mean:.4g}/{most} ="
        f" {percent(share)}.",
        evidence=evidence(mixture) | {"imbalance_frac": most / mean - 1},
    )
