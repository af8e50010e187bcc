"""A mixture of experts: how it runs, and what its GEMMs are predicted to take at other sizes."""

from __future__ import annotations

from typing import Any

from tracelens.numbers import count, percent, plural, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes, need_model
from tracelens.rules.engine.predictions import predicted
from tracelens.rules.engine.rows import took
from tracelens.step.experts import Mixture, mixture_of
from tracelens.step.predicted import NEAR_ERROR
from tracelens.step.stalls import call_us_of
from tracelens.step.uneven import sent_to_experts
from tracelens.step.work import tokens_of

_HOW = {
    "loop": "one after the other, each in GEMMs of its own",
    "batched": "together, in GEMMs of a batch of equal parts",
    "grouped": "together, in grouped GEMMs of unequal parts",
}


def need_mixture(facts: StepFacts) -> Mixture:
    """The experts of this rank, their rows known; raises ``Answer`` where there are none to judge."""
    batch, length = facts.model.micro_batch.value, facts.model.sequence.value
    tokens = batch * length if batch and length else tokens_of(facts.gemms)
    mixture = mixture_of(facts.gemms, facts.model, tokens=tokens)
    if mixture is not None and mixture.capacity is not None:
        return mixture
    rows = [row for row in facts.gemms if row.component == "moe.experts"]
    if not rows and sent_to_experts(facts.communication):  # needs no transformer around them
        raise could_not_run(
            "All-to-alls take tokens to experts, and no GEMM is known to be an expert's: record with"
            ' with_stack=True, or wrap the experts in record_function("experts").'
        )
    need_model(facts)
    if not rows:
        if not any(one.component.startswith("moe.") for one in facts.components):
            raise absent("No mixture of experts was recognised in the trace.")
        raise could_not_run(
            "A router or a dispatch of tokens was recognised, and no GEMM of experts behind it."
        )
    if not any(row.m is not None for row in rows):
        raise could_not_run(
            f"The step has a mixture of experts, and no GEMM of its experts has a shape: {for_shapes(rows)}."
            " Experts inside a fused Triton kernel have none either way."
        )
    raise could_not_run(
        f"{took(rows, facts)} in experts, and none of them shows how many rows an expert gets:"
        " every one takes all tokens, every row has weights of its own, or the hidden size is not known."
    )


def saw(facts: StepFacts, mixture: Mixture) -> str:
    """What a trace shows of it."""
    local = plural(mixture.local, "expert") if mixture.local else "The experts"
    text = f"{local} on this rank"
    if mixture.experts and mixture.local and mixture.experts != mixture.local:
        text += f", of {mixture.experts},"
    text += f" run {_HOW[mixture.how]}; {took(mixture.rows, facts)}."
    if mixture.capacity is None:
        return text
    text += f" An expert gets {count(mixture.capacity)} rows in a GEMM"
    if mixture.least is not None and mixture.most is not None and mixture.least != mixture.most:
        over = mixture.most / mixture.capacity - 1
        text += f" on average, from {mixture.least} to {mixture.most}: the fullest {percent(over)} above it"
    if mixture.top_k is not None:
        return f"{text}. Together that is {plural(mixture.top_k, 'row')} for each token."
    if mixture.rows_per_token is None:
        return f"{text}."
    return (
        f"{text}. Together that is {sig(mixture.rows_per_token)} rows for each token (capacity or uneven"
        " ranks)."
    )


def evidence(mixture: Mixture) -> dict[str, Any]:
    """The same as values."""
    return {
        "how": mixture.how,
        "experts": mixture.experts,
        "experts_here": mixture.local,
        "rows_per_expert": mixture.capacity,
        "least_rows": mixture.least,
        "most_rows": mixture.most,
        "rows_per_token": mixture.rows_per_token,
    }


def packings_us(facts: StepFacts, row: GemmRow, count: int) -> tuple[float, float] | None:
    """Predicted times of one of the row's GEMMs and of ``count`` of them together."""
    sizes = _even(row)
    alone = _predicted_us(facts, row, sizes) if sizes is not None else None
    together = _predicted_us(facts, row, (*sizes[:3], count)) if sizes is not None else None
    return None if alone is None or together is None else (alone, together)


def packed(facts: StepFacts, row: GemmRow, count: int) -> Bound:
    """What of the row's time tiles of ``count`` GEMMs together save, at most."""
    found = packings_us(facts, row, count)
    if found is None:
        return bound_of_row(row, gpu=facts.gpu, fewer_kernels=True)
    alone, together = found
    saved = max(0.0, 1 - together / (count * alone) * (1 - NEAR_ERROR))
    why = (
        f"({sig(together)} µs predicted for {count} GEMMs together, {sig(alone)} µs for one, and"
        f" {percent(NEAR_ERROR)} for how far ratios miss)"
    )
    return bound_of_row(row, gpu=facts.gpu, cap_frac=saved, cap_why=why, fewer_kernels=True)


def doubled(facts: StepFacts, row: GemmRow) -> Bound | None:
    """What twice its rows save of the row's time, for each row of tokens."""
    sizes = _even(row)
    if row.time_ms_per_step <= 0 or call_us_of(row) <= 0 or sizes is None:
        return None
    m, n, k, batch = sizes
    deep = row.role == "wgrad"
    now = _predicted_us(facts, row, sizes)
    then = _predicted_us(facts, row, (m if deep else 2 * m, n, 2 * k if deep else k, batch))
    if now is None or then is None:
        return None
    why = f"({sig(then)} µs predicted for twice the rows, {sig(now)} µs for these)"
    part = max(0.0, 1 - then / (2 * now))
    return bound_of_row(row, gpu=facts.gpu, cap_frac=part, cap_why=why, fewer_kernels=True)


def unfilled(facts: StepFacts, row: GemmRow) -> Bound | None:
    """What a grouped GEMM computes on tile rows that hold no token: half a tile of each group, in the mean.

    None where the groups share K (gradients of weights), or the kernel's name tells no tile.
    """
    found = row.groups
    if found is None or found.axis != "m" or not row.m or not row.tile_m:
        return None
    empty = found.number * (row.tile_m - 1) / 2
    why = f"(rows of tiles without a token: the last tile of each of {found.number} experts is half empty)"
    return bound_of_row(row, gpu=facts.gpu, cap_frac=empty / (row.m + empty), cap_why=why)


def _even(row: GemmRow) -> tuple[int, int, int, int] | None:
    """M, N, K and batch of the row; groups of unequal size as so many even ones."""
    if row.m is None or row.n is None or row.k is None:
        return None
    found = row.groups
    if found is None:
        return row.m, row.n, row.k, row.batch or 1
    letter, count = found.axis, found.number
    m, n, k = (-(-size // count) if name == letter else size
               for name, size in (("m", row.m), ("n", row.n), ("k", row.k)))  # fmt: skip
    return m, n, k, count


def _predicted_us(facts: StepFacts, row: GemmRow, sizes: tuple[int, int, int, int]) -> float | None:
    found = predicted(row, facts=facts, sizes=sizes)
    return None if isinstance(found, str) else found.time_us.mid
