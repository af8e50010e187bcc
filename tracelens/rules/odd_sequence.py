"""TL110: a sequence length that part-fills attention's blocks, or keeps its operands off the 16-byte grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.numbers import ms, percent, plural, round_up
from tracelens.results import GemmRow
from tracelens.rules.align_dimensions import Case, case_of, confidence_of, saw_of, why_of
from tracelens.rules.engine.dimensions import Target, flops_growth
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.stakes import Stake, name, time_at_stake
from tracelens.rules.engine.trials import (
    GAIN_FRAC,
    Trial,
    in_words,
    likely,
    nearly_best,
    not_known,
    savings,
    try_values,
    without_a_model,
)

#: Queries and keys of one block of fused attention, at the most common sizes (``attention_kernels``).
BLOCK = 128
#: Padded to a multiple of these (8 elements of bf16 are 16 bytes), by at most an eighth.
_PADS, _LONGER = (8, 16, 64, BLOCK), 0.125
#: Cut to a multiple of these, by at most this share: positions that are left out teach nothing.
_CUTS, _SHORTER = (64, BLOCK), 0.03
_NOTE_S = re.compile(r"(?<![a-z])s=(\d{1,9})(?![\w.])")


@dataclass(frozen=True, slots=True)
class OddSequence:
    """Sequence length that fills attention's blocks and keeps its operands on the 16-byte grid."""

    id: str = "TL110"
    slug: str = "odd-sequence"
    title: str = "Sequence length that fills attention's blocks"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge attention and the products with a row for each token by simulating other lengths."""
        refusal = cannot_judge(facts) or _not_applicable(facts)
        if refusal is not None:
            return refusal
        length, case = facts.model.sequence.value or 1, case_of(facts, "sequence")
        stakes = _stakes(facts, length, case)
        if length % BLOCK == 0 or not stakes:
            return Outcome("passed", _fits(length))
        step_ms = facts.measured_step_ms or 0.0
        bound = sum(stake.bound_ms for stake in stakes)
        saw = _saw(facts, length, case, bound, step_ms)
        if case is None and bound < GAIN_FRAC * step_ms:
            return Outcome("passed", saw)
        trials, why = try_values(facts, "sequence", _near(length))
        if not trials:
            return _unsimulated(self, facts, length, case, stakes, f"{saw} Other lengths: {why}.")
        good = [one for one in trials if likely(one.found.saving_ms, step_ms, bound_ms=bound)]
        if not good:
            best = max(trials, key=lambda one: one.mid_ms)
            return Outcome(
                "passed", f"{saw} No other length near it is advised: {in_words('sequence', best, step_ms)}."
            )
        # Padding keeps every token; where the model tells no difference, the smaller change.
        close = nearly_best(good, step_ms, bound_ms=bound)
        best = min(close, key=lambda one: (one.value < length, abs(one.value - length)))
        proposal = _proposal(facts, length, best.value, case, stakes, saw, trials)
        return decide(self, facts=facts, proposals=[proposal], passed="")


def _not_applicable(facts: StepFacts) -> Outcome | None:
    packed = any((row.shape_note or "").startswith("packed") for row in facts.gemms)
    if packed and case_of(facts, "sequence") is None:
        return Outcome("not_applicable", "Sequences are packed: their lengths are in no trace.")
    without = without_a_model(facts)
    if without is not None:
        return without
    if facts.model.sequence.value is None or facts.model.sequence.value < 1:
        return absent(not_known("sequence length", facts.model.sequence))
    return None


def _fits(length: int) -> str:
    if length % BLOCK == 0:
        return f"The sequence, {length}, is a multiple of {BLOCK}: it fills attention's blocks."
    return f"The sequence is {length}; no attention and no product of the step is known to lose by it."


def _near(length: int) -> list[int]:
    longer = {round_up(length, step) for step in _PADS}
    shorter = {length // step * step for step in _CUTS}
    return sorted(
        {one for one in longer if length < one <= length * (1 + _LONGER)}
        | {one for one in shorter if length * (1 - _SHORTER) <= one < length}
    )


def _stakes(facts: StepFacts, length: int, case: Case | None) -> list[Stake]:
    """What the length can cost: narrow loads, part-filled blocks, and tiles beyond the last token."""
    found = {row.id: time_at_stake(row, gpu=facts.gpu) for row in (case.rows if case is not None else ())}
    for stake in (*_blocks(facts, length), *_edges(facts, length)):
        found.setdefault(stake.row.id, stake)
    return [stake for stake in found.values() if stake.bound_ms > 0]


def _blocks(facts: StepFacts, length: int) -> list[Stake]:
    """Fused attention over this length: no more of its time than the scores outside of it."""
    outside = 1 - (length / round_up(length, BLOCK)) ** 2
    why = f"(1 - ({length}/{round_up(length, BLOCK)})^2: the scores of its blocks that no position has)"
    return [
        time_at_stake(row, gpu=facts.gpu, useful_frac=0.5, cap_frac=outside, cap_why=why)
        for row in _fused(facts, length)
        if outside > 0
    ]


def _fused(facts: StepFacts, length: int) -> list[GemmRow]:
    return [
        row
        for row in facts.gemms
        if row.kind == "attention"
        and (note := _NOTE_S.search(row.shape_note or "")) is not None
        and int(note[1]) == length
    ]


def _edges(facts: StepFacts, length: int) -> list[Stake]:
    """Products with a row for each token: the part of their tiles that is no output."""
    tokens = (facts.model.micro_batch.value or 1) * length
    return [
        Stake(
            row,
            row.lost_ms.tile,
            f"{name(row)} loses {ms(row.lost_ms.tile)} {facts.per_step} to part-filled tiles.",
        )
        for row in facts.gemms
        if row.kind == "gemm" and row.role != "wgrad" and row.m == tokens and row.lost_ms.tile
    ]


def _unsimulated(
    rule: OddSequence, facts: StepFacts, length: int, case: Case | None, stakes: Sequence[Stake], saw: str
) -> Outcome:
    """Off the 16-byte grid there is a bound; what blocks and tiles lose is too little to act on unseen."""
    if case is None:
        return Outcome("could_not_run", saw)
    narrow = [stake for stake in stakes if any(stake.row.id == row.id for row in case.rows)]
    then = round_up(length, 64)
    proposal = _proposal(facts, length, then, case, narrow, saw_of(facts, case), ())
    return decide(rule, facts=facts, proposals=[proposal], passed="")


def _saw(facts: StepFacts, length: int, case: Case | None, bound: float, step_ms: float) -> str:
    if case is not None:
        return saw_of(facts, case)
    fused = _fused(facts, length)
    blocks = round_up(length, BLOCK) // BLOCK
    text = f"The sequence is {length}: {plural(blocks, 'block')} of {BLOCK} hold {blocks * BLOCK} positions."
    if fused:
        text += f" {took(fused, 'fused attention row', facts)}."
    share = percent(bound / step_ms)
    return f"{text} Part-filled blocks and tiles cost {ms(bound)} at most ({share} of the {facts.whole})."


def _proposal(
    facts: StepFacts,
    length: int,
    then: int,
    case: Case | None,
    stakes: Sequence[Stake],
    saw: str,
    trials: Sequence[Trial],
) -> Proposal:
    rows = [stake.row for stake in stakes]
    goal = Target("sequence", length, then)
    return Proposal(
        title=f"{'Pad' if then > length else 'Cut'} sequence from {length} to {then}",
        stakes=stakes,
        confidence="medium" if case is None else confidence_of(case),
        effort="config",
        saw=saw,
        why=_WHY if case is None else why_of(case),
        change={"sequence": [length, then]},
        fix=[f"- sequence = {length}", f"+ sequence = {then}"],
        caveats=_caveats(length, then),
        evidence={"tried": savings(trials), "per_token": then < length},
        flops_delta=flops_growth(rows, goal=goal, sizes=frozenset({length})) if case is not None else None,
        simulate={"sequence": then},
    )


_WHY = (
    "Fused attention computes scores in blocks of 64 or 128 queries and keys, and products in tiles as large."
    " A length just above a multiple pays for a whole further row and column of them."
)


def _caveats(length: int, then: int) -> list[str]:
    if then < length:
        dropped = plural(length - then, "position")
        falls = "falls" if length - then == 1 else "fall"
        saving = f"{dropped} of each sample {falls} away; the saving is per token that stays."
        return [saving, "A model with a class token or fixed positions cannot be cut."]
    variable = (
        "A sequence of variable length: pad each batch to a multiple of 64, or pack sequences. Where real"
        " tokens can fill the new length, more is gained."
    )
    return [
        "Padded positions count as nothing in the saving; mask them in attention and in the loss.",
        variable,
    ]
