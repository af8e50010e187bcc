"""TL109: experts that are run one by one, get few rows each, or do not divide over their ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracelens.numbers import percent, plural, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes, no_model
from tracelens.rules.engine.products import predicted
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.stakes import Stake, time_at_stake
from tracelens.step.alignment import misfit_of
from tracelens.step.experts import Mixture, mixture_of
from tracelens.step.predicted import NEAR_ERROR
from tracelens.step.stalls import call_us_of
from tracelens.step.work import groups_of, tokens_of

#: Twice the rows for each expert have to save this share of the experts' time per row to be worth a word.
_WORTH_FRAC = 0.1
#: How far predicted ratios of such shapes miss (see docs/what-if.md).
_NEAR = NEAR_ERROR


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts in one grouped product, with rows enough to fill the GPU, divided evenly."""

    id: str = "TL109"
    slug: str = "experts"
    title: str = "Experts grouped, filled and divided evenly"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the products of the experts."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        mixture = _mixture(facts)
        if mixture is None or mixture.capacity is None:
            return _without_experts(facts)
        proposals = [
            one
            for one in (_grouped(facts, mixture), _fuller(facts, mixture), _divided(facts, mixture))
            if one is not None
        ]
        return decide(
            self, facts=facts, proposals=proposals, passed=f"{_saw(facts, mixture)}{_other_rules(mixture)}"
        )


def _mixture(facts: StepFacts) -> Mixture | None:
    batch, length = facts.model.micro_batch.value, facts.model.sequence.value
    tokens = batch * length if batch and length else tokens_of(facts.gemms)
    return mixture_of(facts.gemms, facts.model, tokens=tokens)


def _without_experts(facts: StepFacts) -> Outcome:
    without = no_model(facts)
    if without is not None:
        return without
    rows = [row for row in facts.gemms if row.component == "moe.experts"]
    mixed = bool(rows) or any(one.component.startswith("moe.") for one in facts.components)
    if not mixed:
        return absent("No mixture of experts was recognised in the trace.")
    if not rows:
        return Outcome(
            "could_not_run",
            "A router or a dispatch of tokens was recognised, and no GEMM of experts behind it.",
        )
    if not any(row.m is not None for row in rows):
        return Outcome(
            "could_not_run",
            f"The step has a mixture of experts, and none of its {plural(len(rows), 'product row')} has a"
            f" shape: {for_shapes(rows)}. Experts inside a fused Triton kernel have none either"
            " way.",
        )
    return Outcome(
        "could_not_run",
        f"{took(rows, 'product shape', facts)} in experts, and none of them shows how many rows an"
        " expert gets: every one takes all tokens, or the hidden size is not known.",
    )


#: docs.pytorch.org (torch.nn.functional.grouped_mm), transformers' experts interface, Megatron's arguments.
_GROUPED_MM = (
    "torch.nn.functional.grouped_mm takes bf16 with weights stacked by expert and tokens sorted by expert;"
    " transformers has experts_implementation='grouped_mm', Megatron --moe-grouped-gemm."
)
_HOW = {
    "loop": "one after the other, each in products of its own",
    "batched": "together, in products of a batch of equal parts",
    "grouped": "together, in grouped products of unequal parts",
}


def _saw(facts: StepFacts, mixture: Mixture) -> str:
    local = plural(mixture.local, "expert") if mixture.local else "The experts"
    text = f"{local} on this rank"
    if mixture.experts and mixture.local and mixture.experts != mixture.local:
        text += f", of {mixture.experts},"
    text += f" run {_HOW[mixture.how]}; {took(mixture.rows, 'product shape', facts)}."
    rows = f" An expert gets {sig(mixture.capacity or 0.0, 4)} rows in a product"
    if mixture.least is not None and mixture.most is not None and mixture.least != mixture.most:
        over = mixture.most / (mixture.capacity or 1.0) - 1
        rows += f" in the mean, from {mixture.least} to {mixture.most}: the fullest {percent(over)} above it"
    text += f"{rows}."
    if mixture.top_k is not None:
        text += f" Together that is {plural(mixture.top_k, 'row')} for each token."
    elif mixture.rows_per_token is not None:
        text += (
            f" Together that is {sig(mixture.rows_per_token)} rows for each token (capacity or uneven ranks)."
        )
    return text


def _other_rules(mixture: Mixture) -> str:
    """What other rules say of these rows."""
    off = sum(1 for row in mixture.rows if misfit_of(row) is not None)
    return f" TL102 names {plural(off, 'row')} of them for their alignment." if off else ""


# --- one after the other ------------------------------------------------------------------------------


def _grouped(facts: StepFacts, mixture: Mixture) -> Proposal | None:
    """One grouped product where each expert has its own: the bound is what packing their tiles gives."""
    if mixture.how != "loop" or (mixture.local or 0) < 2:
        return None
    count = mixture.local or 2
    stakes = [_packed(facts, row, count) for row in mixture.rows]
    calls = sum(row.calls_per_step for row in mixture.rows)
    return Proposal(
        title=f"Run the {count} experts in one grouped product, not in {count}",
        stakes=stakes,
        bound_of=(
            "of the experts' products what one product of all of them is predicted to save, and no more than"
            " lies above the datasheet's floor"
        ),
        confidence="medium",
        effort="code",
        saw=f"{_saw(facts, mixture)} That is {calls:.0f} products {facts.per_step}.{_other_rules(mixture)}",
        why=(
            "Each product fills the GPU by itself: its last wave leaves SMs idle, and so does a product that"
            " is smaller than a wave. In a grouped product the next expert's tiles take those SMs, and one"
            " launch does the work of many."
        ),
        how=f"One product of {count} experts against {count} in turn, both predicted at these shapes.",
        change={"expert_products": ["one for each", "grouped"]},
        fix=[
            "- for expert, rows in zip(experts, parts): out = expert(rows)",
            "+ out = torch.nn.functional.grouped_mm(rows, weights, offs=offsets)",
        ],
        caveats=[
            _GROUPED_MM,
            "Fewer launches are not in the bound: where the step waits for the host they can save more.",
        ],
        evidence=_evidence(mixture),
        parameter_delta=0,
        flops_delta=0.0,
    )  # fmt: skip


def _packed(facts: StepFacts, row: GemmRow, count: int) -> Stake:
    """What of the row's time tiles of ``count`` products together save, at most."""
    sizes = _even(row)
    if sizes is None:
        return time_at_stake(row, gpu=facts.gpu)
    alone = _predicted_us(facts, row, sizes)
    together = _predicted_us(facts, row, (*sizes[:3], count))
    if alone is None or together is None:
        return time_at_stake(row, gpu=facts.gpu)
    saved = max(0.0, 1 - together / (count * alone) * (1 - _NEAR))
    why = (
        f"({sig(together)} µs predicted for {count} products together, {sig(alone)} µs for one, and"
        f" {percent(_NEAR)} for how far ratios miss)"
    )
    return time_at_stake(row, gpu=facts.gpu, cap_frac=saved, cap_why=why)


def _even(row: GemmRow) -> tuple[int, int, int, int] | None:
    """M, N, K and batch of the row; groups of unequal size as so many even ones."""
    if row.m is None or row.n is None or row.k is None:
        return None
    found = groups_of(row)
    if found is None:
        return row.m, row.n, row.k, row.batch or 1
    letter, count = found
    m, n, k = (-(-size // count) if name == letter else size
               for name, size in (("m", row.m), ("n", row.n), ("k", row.k)))  # fmt: skip
    return m, n, k, count


def _predicted_us(facts: StepFacts, row: GemmRow, sizes: tuple[int, int, int, int]) -> float | None:
    found = predicted(row, facts=facts, sizes=sizes)
    return None if isinstance(found, str) else found.time_us.mid


# --- few rows -----------------------------------------------------------------------------------------


def _fuller(facts: StepFacts, mixture: Mixture) -> Proposal | None:
    """Twice the rows for each expert, where that is predicted to cost clearly less than twice the time."""
    if mixture.how == "loop" and (mixture.local or 0) > 1:
        return None  # one grouped product first: it packs the same tiles
    stakes = [stake for row in mixture.rows if (stake := _doubled(facts, row)) is not None]
    time = sum(stake.row.time_ms_per_step for stake in stakes)
    saved = sum(stake.bound_ms for stake in stakes)
    if not stakes or saved < _WORTH_FRAC * time:
        return None
    capacity = round(mixture.capacity or 0)
    ranks = facts.model.expert_parallel.value
    change: dict[str, list[int | float | str]] = {"capacity": [capacity, 2 * capacity]}
    return Proposal(
        title=f"Give each expert {2 * capacity} rows instead of {capacity}",
        stakes=stakes,
        bound_of="of the experts' time for each row what twice the rows are predicted to save",
        confidence="medium",
        effort="config",
        saw=f"{_saw(facts, mixture)}{_other_rules(mixture)}",
        why=(
            f"A product with {capacity} rows reads each expert's whole weights for them: about {capacity}"
            " FLOP for every byte of bf16 weights, where a GPU of this kind needs hundreds to be busy"
            " computing. Tiles taller than the rows are computed in full as well."
        ),
        how="Half the time predicted for twice the rows, against the time for these.",
        change=change,
        fix=[f"- {capacity} rows for each expert", f"+ {2 * capacity} rows for each expert"],
        caveats=[
            _ways(ranks),
            "A larger capacity factor alone does not: it adds rows of padding.",
        ],
        evidence=_evidence(mixture),
        parameter_delta=0,
    )  # fmt: skip


def _ways(ranks: int | None) -> str:
    text = "Twice the micro-batch does it, with the memory that takes."
    if ranks:
        text += (
            f" So do twice the expert-parallel ranks ({ranks} now), each with half of the experts; what they"
            " send then is not predicted."
        )
    return text


def _doubled(facts: StepFacts, row: GemmRow) -> Stake | None:
    """What twice its rows save of the row's time, for each row of tokens."""
    if row.calls_per_step <= 0 or row.time_ms_per_step <= 0 or call_us_of(row) <= 0:
        return None
    sizes = _even(row)
    if sizes is None:
        return None
    m, n, k, batch = sizes
    deep = row.role == "wgrad"
    now = _predicted_us(facts, row, sizes)
    then = _predicted_us(facts, row, (m if deep else 2 * m, n, 2 * k if deep else k, batch))
    if now is None or then is None:
        return None
    saved = max(0.0, 1 - then / (2 * now))
    why = f"({sig(then)} µs predicted for twice the rows, {sig(now)} µs for these)"
    return time_at_stake(row, gpu=facts.gpu, cap_frac=saved, cap_why=why)


# --- ranks --------------------------------------------------------------------------------------------


def _divided(facts: StepFacts, mixture: Mixture) -> Proposal | None:
    """Experts that their ranks do not divide: the rank with one more sets the pace."""
    experts, ranks = mixture.experts, facts.model.expert_parallel.value
    if not experts or not ranks or ranks < 2 or experts % ranks == 0:
        return None
    most, mean = -(-experts // ranks), experts / ranks
    share = 1 - mean / most
    stakes = [_beyond_mean(row, share) for row in mixture.rows]
    then = most * ranks
    return Proposal(
        title=f"{ranks} expert-parallel ranks do not divide {experts} experts: use {then} or other ranks",
        stakes=stakes,
        bound_of="what the rank with the most experts computes above the mean",
        confidence="medium",
        effort="retrain",
        saw=_saw(facts, mixture),
        why="Every rank waits for the one with the most experts, twice in each layer.",
        how=f"{most} experts on the fullest rank and {mean:.4g} in the mean: 1 - {mean:.4g}/{most} ="
        f" {percent(share)}.",
        change={"experts": [experts, then]},
        fix=[f"- experts = {experts}", f"+ experts = {then}"],
        caveats=["Another number of experts is another model; another number of ranks is not."],
        evidence=_evidence(mixture) | {"imbalance_frac": most / mean - 1},
    )


def _beyond_mean(row: GemmRow, share: float) -> Stake:
    bound = share * row.time_ms_per_step
    return Stake(row, bound, f"{row.component} ({row.id}): {percent(share)} of its time.")


def _evidence(mixture: Mixture) -> dict[str, Any]:
    return {
        "how": mixture.how,
        "experts": mixture.experts,
        "experts_here": mixture.local,
        "rows_per_expert": mixture.capacity,
        "least_rows": mixture.least,
        "most_rows": mixture.most,
        "rows_per_token": mixture.rows_per_token,
    }
