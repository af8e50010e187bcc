"""TL110: a sequence length that part-fills attention's blocks, or keeps its operands off the 16-byte grid."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import plural, round_up
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Candidate, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_step_ms
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import GAIN_FRAC, Trial, nearly_best, need_likely, savings, try_values
from tracelens.rules.evidence.dimensions import Target, flops_growth
from tracelens.rules.evidence.lengths import BLOCK, bounds_of, near, need_length, saw_of
from tracelens.rules.evidence.misfits import Case, case_of


class OddSequence(Rule):
    """Sequence length that fills attention's blocks and keeps its operands on the 16-byte grid."""

    id = "TL110"
    slug = "odd-sequence"
    title = "Sequence length that fills attention's blocks"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge attention and the GEMMs with a row for each token by simulating other lengths."""
        case = case_of(facts, "sequence")
        length = need_length(facts, case)
        if length % BLOCK == 0:
            raise passed(f"The sequence, {length}, is a multiple of {BLOCK}: it fills attention's blocks.")
        bounds = bounds_of(facts, length, case)
        if not bounds:
            raise passed(
                f"The sequence is {length}; no attention and no GEMM of the step is known to lose by it."
            )
        step_ms, bound_ms = need_step_ms(facts), sum(bound.ms for bound in bounds)
        saw = saw_of(facts, length, bound_ms) if case is None else case.saw(facts)
        if case is None and bound_ms < GAIN_FRAC * step_ms:
            raise passed(saw)
        trials, why = try_values(facts, "sequence", near(length))
        if not trials:
            if case is None:  # what blocks and tiles lose is too little to act on unseen
                raise could_not_run(f"{saw} Other lengths: {why}.")
            narrow = [bound for bound in bounds if any(bound.row.id == row.id for row in case.rows)]
            return [_candidate(length, round_up(length, 64), case, narrow, saw, ())], ""
        good = need_likely(trials, "sequence", "length", facts, bound_ms=bound_ms, saw=saw)
        # Padding keeps every token; where the model tells no difference, the smaller change.
        close = nearly_best(good, step_ms, bound_ms=bound_ms)
        then = min(close, key=lambda one: (one.value < length, abs(one.value - length))).value
        return [_candidate(length, then, case, bounds, saw, trials)], ""


def _candidate(
    length: int, then: int, case: Case | None, bounds: Sequence[Bound], saw: str, trials: Sequence[Trial]
) -> Candidate:
    rows, goal = [bound.row for bound in bounds], Target("sequence", length, then)
    return Candidate(
        title=f"{'Pad' if then > length else 'Cut'} sequence from {length} to {then}",
        saw=saw,
        why="" if case is None else "off the 16-byte grid",
        change={"sequence": [length, then]},
        fix=[f"- sequence = {length}", f"+ sequence = {then}"],
        caveats=_caveats(length, then),
        confidence="medium" if case is None else case.confidence,
        effort="config",
        bounds=bounds,
        simulate={"sequence": then},
        evidence={"tried": savings(trials), "per_token": then < length},
        flops_delta=flops_growth(rows, goal=goal, sizes=frozenset({length})) if case is not None else None,
    )


def _caveats(length: int, then: int) -> list[str]:
    if then < length:
        falls = "falls" if length - then == 1 else "fall"
        return [
            (
                f"{plural(length - then, 'position')} of each sample {falls} away; the saving is per token"
                " that stays."
            ),
            "A model with a class token or fixed positions cannot be cut.",
        ]
    return [
        "Padded positions count as nothing in the saving; mask them in attention and in the loss.",
        (
            "A sequence of variable length: pad each batch to a multiple of 64, or pack sequences. Where real"
            " tokens can fill the new length, more is gained."
        ),
    ]
