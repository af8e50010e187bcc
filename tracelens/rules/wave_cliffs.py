"""TL105: a micro-batch whose tokens spill into a nearly empty last wave, against its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.numbers import pct, plural, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import enough
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide
from tracelens.rules.engine.stakes import Stake, name, time_at_stake
from tracelens.rules.engine.trials import (
    GAIN_FRAC,
    Trial,
    in_words,
    likely,
    not_known,
    savings,
    took_and_lost,
    try_values,
    without_a_model,
)

#: Neighbours: within a quarter of the micro-batch, at least one and at most four on each side.
_LEAST, _MOST, _SHARE = 1, 4, 4


@dataclass(frozen=True, slots=True)
class WaveCliffs:
    """Tokens of a micro-batch that fill the last wave of tiles."""

    id: str = "TL105"
    slug: str = "wave-cliffs"
    title: str = "Micro-batch that fills the last wave of tiles"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the products with the tokens as M or N by what their last waves lose."""
        refusal = cannot_judge(facts) or _not_applicable(facts)
        if refusal is not None:
            return refusal
        batch, tokens = facts.model.micro_batch.value or 1, _tokens(facts)
        rows = _rows(facts, tokens)
        if not rows:
            return absent(
                f"No GEMM of the step has the {tokens} tokens of its micro-batch as a side of its output.",
            )
        split = [row for row in rows if row.lost_ms.wave is not None]
        if not split:
            return _unsplit(rows, tokens)
        step_ms = facts.measured_step_ms or 0.0
        lost = sum(row.lost_ms.wave or 0.0 for row in split)
        saw = _saw(facts, split, lost, step_ms)
        if lost < GAIN_FRAC * step_ms:
            if not enough(split, rows):
                return _unsplit([row for row in rows if row not in split], tokens)
            return Outcome("passed", saw)
        trials, why = try_values(facts, "micro_batch", _near(batch))
        if not trials:
            return Outcome("could_not_run", f"{saw} Other micro-batches could not be simulated: {why}.")
        stakes = _stakes(facts, tokens)
        bound = sum(stake.bound_ms for stake in stakes)
        good = [one for one in trials if likely(one.found.saving_ms, step_ms, bound_ms=bound)]
        if not good:
            best = max(trials, key=lambda one: one.mid_ms)
            return Outcome(
                "passed",
                f"{saw} No other micro-batch near it is advised: {in_words('micro_batch', best, step_ms)}.",
            )
        # The surest, and of those that are about as sure the nearest, for memory's sake.
        sure = max(one.low_ms for one in good) - GAIN_FRAC * step_ms
        close = [one for one in good if one.low_ms >= sure]
        best = min(close, key=lambda one: (abs(one.value - batch), one.value))
        return decide(self, facts=facts, proposals=[_proposal(batch, best, trials, stakes, saw)], passed="")


def _not_applicable(facts: StepFacts) -> Outcome | None:
    model = facts.model
    if not facts.trains:
        return absent("No backward was recognised, and the batch of inference follows its requests.")
    if any((row.shape_note or "").startswith("packed") for row in facts.gemms):
        return Outcome(
            "not_applicable",
            "Sequences are packed: the step has a number of tokens and no micro-batch to choose.",
        )
    without = without_a_model(facts)
    if without is not None:
        return without
    for known, what in ((model.micro_batch, "micro-batch"), (model.sequence, "sequence length")):
        if known.value is None or known.value < 1:
            return absent(not_known(what, known))
    return None


def _tokens(facts: StepFacts) -> int:
    return (facts.model.micro_batch.value or 0) * (facts.model.sequence.value or 0)


def _rows(facts: StepFacts, tokens: int) -> list[GemmRow]:
    """Products whose output has a row or column for each token: forward and the gradient of the input."""
    return [
        row for row in facts.gemms if row.kind == "gemm" and row.role != "wgrad" and tokens in (row.m, row.n)
    ]


def _stakes(facts: StepFacts, tokens: int) -> list[Stake]:
    """All work on tokens, above the least time that the datasheet allows for it."""
    sizes = {tokens, facts.model.sequence.value}
    return [
        time_at_stake(row, gpu=facts.gpu, useful_frac=0.5 if row.kind == "attention" else 1.0)
        for row in facts.gemms
        if row.kind == "attention" or sizes & {row.m, row.n, row.k} - {None}
    ]


def _unsplit(rows: Sequence[GemmRow], tokens: int) -> Outcome:
    """No product whose last wave is known to cost anything: nothing lost, or nothing known."""
    what = f"the {plural(len(rows), 'GEMM row')} with {tokens} tokens"
    if any(row.tiles is None for row in rows):
        reasons = (row.lost_ms.why.get(part) for part in ("wave", "useful") for row in rows)
        why = next((text for text in reasons if text), "their tiles are not known")
        return Outcome("could_not_run", f"What last waves cost {what} is not known: {why}.")
    return Outcome(
        "passed", f"Last waves cost {what} nothing: they are too small, or wait for memory, where SMs idle."
    )


def _near(batch: int) -> list[int]:
    reach = min(max(_LEAST, batch // _SHARE), _MOST)
    return [one for one in range(max(1, batch - reach), batch + reach + 1) if one != batch]


def _saw(facts: StepFacts, rows: Sequence[GemmRow], lost: float, step_ms: float) -> str:
    batch, sequence = facts.model.micro_batch.value, facts.model.sequence.value
    time = sum(row.time_ms_per_step for row in rows)
    text = (
        f"micro_batch {batch} × sequence {sequence} is {_tokens(facts)} tokens. The products with a row per"
        f" token {took_and_lost(time, lost, facts, to='last waves that do not fill the GPU')}."
    )
    worst = max(rows, key=lambda row: row.lost_ms.wave or 0.0)
    return text if lost < GAIN_FRAC * step_ms else f"{text} Most in {_waves(worst)}."


def _waves(row: GemmRow) -> str:
    filled = f", {pct(row.wave_eff_frac)} of the SMs' time used" if row.wave_eff_frac is not None else ""
    waves = f" in {plural(row.waves, 'wave')}" if row.waves is not None else ""
    tiles = f": {row.tiles} tiles{waves}{filled}" if row.tiles is not None else ""
    return f"{name(row)}{tiles}"


def _proposal(
    batch: int, best: Trial, trials: Sequence[Trial], stakes: Sequence[Stake], saw: str
) -> Proposal:
    return Proposal(
        title=f"Change micro_batch from {batch} to {best.value} for less time per token",
        stakes=stakes,
        confidence="medium",
        effort="config",
        saw=saw,
        why=(
            "A GPU computes the tiles of a product in waves, one tile on each SM at a time, and a last wave"
            " with few tiles takes as long as a full one. The number of tiles grows with the tokens: just"
            " above a whole number of waves the time jumps while the tokens hardly grow (arXiv 2401.14489)."
        ),
        change={"micro_batch": [batch, best.value]},
        fix=[f"- micro_batch = {batch}", f"+ micro_batch = {best.value}"],
        caveats=_caveats(batch, best.value),
        evidence={"tried": savings(trials), "per_token": True},
        simulate={"micro_batch": best.value},
    )


def _caveats(batch: int, then: int) -> list[str]:
    grows = then > batch
    share = sig(100 * abs(then / batch - 1))
    step = "longer, with more tokens in it" if grows else "shorter, with fewer tokens in it"
    memory = (
        f"Activations take {share}% more memory: see torch.cuda.max_memory_allocated() before you change it."
        if grows
        else f"Activations take {share}% less memory."
    )
    caveats = [
        f"The saving is per token, as time of the present step; the changed step itself is {step}.",
        memory,
        "The global batch changes with it: choose the accumulation steps anew, or the learning rate.",
    ]
    if grows:
        caveats.append(
            "Part of the saving is the fixed cost of small kernels, spread over more tokens, and not waves."
        )
    return caveats
