"""TL106: key-value heads whose projections fit the GPU badly, and another number that fits better."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import ms, pct, percent, plural
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, name
from tracelens.rules.engine.candidate import Candidate, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_step_ms
from tracelens.rules.engine.rows import time_of
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import GAIN_FRAC, Trial, savings, surely, took_and_lost, try_values
from tracelens.rules.evidence.kv_heads import need_kv_rows, other_kv_heads, shape_gain_ms

_TO = "alignment, tiles and waves"


class KvHeads(Rule):
    """Key-value heads whose projections waste no more than another number's would."""

    id = "TL106"
    slug = "kv-heads"
    title = "Key-value heads whose projections fit the GPU"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the GEMMs that make queries, keys and values by what their shape loses."""
        rows = need_kv_rows(facts)
        judged = [row for row in rows if row.lost_ms.useful is not None]
        if not judged:
            reasons = (row.lost_ms.why.get("useful") for row in rows)
            why = next((text for text in reasons if text), "their time is not split into its causes")
            raise could_not_run(
                f"What their shape costs {plural(len(rows), 'GEMM row')} that make keys and values is not"
                f" known: {why}."
            )
        step_ms = need_step_ms(facts)
        little = sum(_lost(row) for row in judged) < GAIN_FRAC * step_ms
        saw = _saw(facts, judged, little)
        trials, why = try_values(facts, "kv_heads", other_kv_heads(facts))
        if little:
            raise passed(f"{saw}{_smaller_model(trials, step_ms)}")
        if not trials:
            raise could_not_run(f"{saw} Other numbers were not simulated: {why or 'none fits'}.")
        # Surely faster, and not for the work alone that it leaves out.
        sure = [one for one in trials if surely(one.saving_ms, step_ms)]
        good = [one for one in sure if shape_gain_ms(facts, one) >= GAIN_FRAC * step_ms]
        if not good:
            raise passed(f"{saw} No other number surely fits better.{_smaller_model(trials, step_ms)}")
        best = max(good, key=lambda one: one.saving_ms.mid)
        return [_candidate(facts, best.value, trials, judged, saw)], ""


def _lost(row: GemmRow) -> float:
    """To what its shape costs, ms per step; what is not known counts as nothing."""
    return sum(part for part in (row.lost_ms.alignment, row.lost_ms.tile, row.lost_ms.wave) if part)


def _saw(facts: StepFacts, rows: Sequence[GemmRow], little: bool) -> str:
    heads, kv_heads = facts.model.heads.value or 0, facts.model.kv_heads.value or 0
    ranks = facts.model.tensor_parallel.value or 1
    here = f" on each of {ranks} ranks" if ranks > 1 else ""
    lost = sum(_lost(row) for row in rows)
    text = (
        f"{plural(kv_heads, 'key-value head')} for {plural(heads, 'head')}{here}. The GEMMs that make keys"
        f" and values {took_and_lost(time_of(rows), lost, facts, to=_TO)}."
    )
    worst = max(rows, key=_lost)
    if not little and worst.tile_eff_frac is not None and worst.wave_eff_frac is not None:
        text += (
            f" Most in {name(worst)}: {pct(worst.tile_eff_frac)} of its tiles are output, and"
            f" {pct(worst.wave_eff_frac)} of the SMs' time is used."
        )
    if ranks > 1 and kv_heads == 1:
        text += (
            f" With fewer than {ranks} in the model, ranks hold copies; one rank's trace does not show it."
        )
    return text


def _smaller_model(trials: Sequence[Trial], step_ms: float) -> str:
    """What fewer would save by leaving out work, which is no matter of shape."""
    fewer = [one for one in trials if surely(one.saving_ms, step_ms)]
    if not fewer:
        return ""
    one = min(fewer, key=lambda trial: trial.value)
    return (
        f" Fewer would be a smaller model: with kv_heads = {one.value} the step is predicted to take"
        f" {percent(one.saving_ms.mid / step_ms)} less, for the work left out."
    )


def _candidate(
    facts: StepFacts, then: int, trials: Sequence[Trial], rows: Sequence[GemmRow], saw: str
) -> Candidate:
    now = (facts.model.kv_heads.value or 0) * max(facts.model.tensor_parallel.value or 1, 1)
    less = "Part of what the step gets faster is work left out. No more counts than the present shapes waste."
    return Candidate(
        title=f"Use {plural(then, 'key-value head')} instead of {now}",
        saw=saw,
        change={"kv_heads": [now, then]},
        fix=[f"- kv_heads = {now}", f"+ kv_heads = {then}"],
        caveats=[
            f"{facts.new_model}, and its accuracy has to be checked.",
            f"At inference the key-value cache is {then / now:.3g} times as large.",
            *([less] if then < now else []),
        ],
        confidence="medium",
        effort="retrain",
        bounds=[
            Bound(row, lost, f"{name(row)} loses {ms(lost)} {facts.per_step} to {_TO}.")
            for row in rows
            if (lost := _lost(row)) > 0
        ],
        simulate={"kv_heads": then},
        evidence={"tried": savings(trials)},
    )
