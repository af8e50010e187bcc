"""TL105: a micro-batch whose tokens spill into a nearly empty last wave, against its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import pct, plural, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, bound_of_row, name
from tracelens.rules.engine.candidate import Answer, Candidate, absent, could_not_run, not_applicable, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_dimensions, need_step_ms, not_known
from tracelens.rules.engine.rows import enough, gemms_of, is_packed, time_of
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import GAIN_FRAC, need_likely, savings, took_and_lost, try_values

#: Neighbours: within a quarter of the micro-batch, at least one and at most four on each side.
_LEAST, _MOST, _SHARE = 1, 4, 4


class WaveCliffs(Rule):
    """Tokens of a micro-batch that fill the last wave of tiles."""

    id = "TL105"
    slug = "wave-cliffs"
    title = "Micro-batch that fills the last wave of tiles"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the GEMMs with the tokens as M or N by what their last waves lose."""
        batch, sequence = _need_batch(facts)
        tokens, step_ms = batch * sequence, need_step_ms(facts)
        # Forward and the gradient of the input: the output has a row or column for each token.
        rows = [row for row in gemms_of(facts) if row.role != "wgrad" and tokens in (row.m, row.n)]
        if not rows:
            raise absent(
                f"No GEMM of the step has the {tokens} tokens of its micro-batch as a side of its output."
            )
        waves = {row.id: row.lost_ms.wave for row in rows if row.lost_ms.wave is not None}
        split = [row for row in rows if row.id in waves]
        lost = sum(waves.values())
        if not split or (lost < GAIN_FRAC * step_ms and not enough(split, rows)):
            raise _unsplit([row for row in rows if row not in split], tokens)
        saw = (
            f"micro_batch {batch} × sequence {sequence} is {tokens} tokens. The GEMMs with a row per token"
            f" {took_and_lost(time_of(split), lost, facts, to='last waves that do not fill the GPU')}."
        )
        if lost < GAIN_FRAC * step_ms:
            raise passed(saw)
        saw += f" Most in {_waves(max(split, key=lambda row: waves[row.id]))}."
        reach = min(max(_LEAST, batch // _SHARE), _MOST)
        near = [one for one in range(max(1, batch - reach), batch + reach + 1) if one != batch]
        trials, why = try_values(facts, "micro_batch", near)
        if not trials:
            raise could_not_run(f"{saw} Other micro-batches could not be simulated: {why}.")
        bounds = _bounds(facts, tokens)
        bound_ms = sum(bound.ms for bound in bounds)
        good = need_likely(trials, "micro_batch", "micro-batch", facts, bound_ms=bound_ms, saw=saw)
        # The surest, and of those that are about as sure the nearest, for memory's sake.
        sure = max(one.saving_ms.low for one in good) - GAIN_FRAC * step_ms
        close = [one for one in good if one.saving_ms.low >= sure]
        then = min(close, key=lambda one: (abs(one.value - batch), one.value)).value
        found = Candidate(
            title=f"Change micro_batch from {batch} to {then} for less time per token",
            saw=saw,
            change={"micro_batch": [batch, then]},
            fix=[f"- micro_batch = {batch}", f"+ micro_batch = {then}"],
            caveats=_caveats(batch, then),
            confidence="medium",
            effort="config",
            bounds=bounds,
            simulate={"micro_batch": then},
            evidence={"tried": savings(trials), "per_token": True},
        )
        return [found], ""


def _need_batch(facts: StepFacts) -> tuple[int, int]:
    """Micro-batch and sequence; raises ``Answer`` where the step has none to choose."""
    if not facts.trains:
        raise absent("No backward was recognised, and the batch of inference follows its requests.")
    if is_packed(facts):
        raise not_applicable(
            "Sequences are packed: the step has a number of tokens and no micro-batch to choose."
        )
    need_dimensions(facts)
    batch, sequence = facts.model.micro_batch, facts.model.sequence
    for known, what in ((batch, "micro-batch"), (sequence, "sequence length")):
        if known.value is None or known.value < 1:
            raise could_not_run(not_known(what, known))
    return batch.value or 1, sequence.value or 1


def _bounds(facts: StepFacts, tokens: int) -> list[Bound]:
    """All work on tokens, above the least time that the datasheet allows for it."""
    sizes = {tokens, facts.model.sequence.value}
    return [
        bound_of_row(row, gpu=facts.gpu, useful_frac=0.5 if row.kind == "attention" else 1.0)
        for row in facts.gemms
        if row.kind == "attention" or sizes & {row.m, row.n, row.k} - {None}
    ]


def _unsplit(rows: Sequence[GemmRow], tokens: int) -> Answer:
    """No GEMM whose last wave is known to cost anything: nothing lost, or nothing known."""
    what = f"the {plural(len(rows), 'GEMM row')} with {tokens} tokens"
    if any(row.tiles is None for row in rows):
        reasons = (row.lost_ms.why.get(part) for part in ("wave", "useful") for row in rows)
        why = next((text for text in reasons if text), "their tiles are not known")
        return could_not_run(f"What last waves cost {what} is not known: {why}.")
    return passed(f"Last waves cost {what} nothing: they are too small, or wait for memory, where SMs idle.")


def _waves(row: GemmRow) -> str:
    filled = f", {pct(row.wave_eff_frac)} of the SMs' time used" if row.wave_eff_frac is not None else ""
    waves = f" in {plural(row.waves, 'wave')}" if row.waves is not None else ""
    split = f" (K in {row.split_k} slices)" if (row.split_k or 1) > 1 else ""
    return name(row) + (f": {row.slices} tiles{split}{waves}{filled}" if row.slices is not None else "")


def _caveats(batch: int, then: int) -> list[str]:
    grows, share = then > batch, sig(100 * abs(then / batch - 1))
    step = "longer, with more tokens in it" if grows else "shorter, with fewer tokens in it"
    measure = ": see torch.cuda.max_memory_allocated() before you change it" if grows else ""
    small = "Part of the saving is the fixed cost of small kernels, spread over more tokens, and not waves."
    return [
        f"The saving is per token, as time of the present step; the changed step itself is {step}.",
        f"Activations take {share}% {'more' if grows else 'less'} memory{measure}.",
        "The global batch changes with it: choose the accumulation steps anew, or the learning rate.",
        *([small] if grows else []),
    ]
