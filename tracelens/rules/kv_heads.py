"""TL106: key-value heads whose projections fit the GPU badly, and another number that fits better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.config.hyper import changed
from tracelens.numbers import ms, pct, percent, plural
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide
from tracelens.rules.engine.stakes import Stake, name
from tracelens.rules.engine.trials import (
    GAIN_FRAC,
    Trial,
    lost_ms,
    not_known,
    savings,
    surely,
    took_and_lost,
    try_values,
    without_a_model,
)

#: Other numbers of key-value heads that are tried: from a quarter to four times the present one.
_REACH = 4


@dataclass(frozen=True, slots=True)
class KvHeads:
    """Key-value heads whose projections waste no more than another number's would."""

    id: str = "TL106"
    slug: str = "kv-heads"
    title: str = "Key-value heads whose projections fit the GPU"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the products that make queries, keys and values by what their shape loses."""
        refusal = cannot_judge(facts) or _not_applicable(facts)
        if refusal is not None:
            return refusal
        rows = _rows(facts)
        if not rows:
            return absent("No GEMM of the step is known to make keys and values.")
        judged = [row for row in rows if row.lost_ms.useful is not None]
        if not judged:
            return Outcome(
                "could_not_run",
                f"What their shape costs {plural(len(rows), 'GEMM row')} that make keys and values is not"
                f" known: {_reason(rows)}.",
            )
        step_ms = facts.measured_step_ms or 0.0
        lost = sum(_lost(row) for row in judged)
        saw = _saw(facts, judged, lost, step_ms)
        trials, why = try_values(facts, "kv_heads", others(facts))
        if lost < GAIN_FRAC * step_ms:
            return Outcome("passed", f"{saw}{_smaller_model(trials, step_ms)}")
        if not trials:
            return Outcome("could_not_run", f"{saw} Other numbers were not simulated: {why or 'none fits'}.")
        good = [one for one in trials if _fits_better(facts, one, step_ms)]
        if not good:
            return Outcome(
                "passed", f"{saw} No other number surely fits better.{_smaller_model(trials, step_ms)}"
            )
        best = max(good, key=lambda one: one.mid_ms)
        return decide(self, facts=facts, proposals=[_proposal(facts, best, trials, judged, saw)], passed="")


def _not_applicable(facts: StepFacts) -> Outcome | None:
    model = facts.model
    without = without_a_model(facts)
    if without is not None:
        return without
    shown = [row for row in facts.gemms if row.kind == "attention" or row.component.startswith("attention.")]
    if not shown:
        return absent("No attention was recognised in the step.")
    if model.kv_heads.value is not None and model.kv_heads.value > 0 and (model.heads.value or 0) > 0:
        return None
    if not any(row.kind == "attention" for row in shown):
        return Outcome(
            "could_not_run",
            "Attention is not fused, and separate score products do not show how many heads share a key: use"
            " scaled_dot_product_attention to have it judged.",
        )
    return Outcome("could_not_run", not_known("number of key-value heads", model.kv_heads))


def _rows(facts: StepFacts) -> list[GemmRow]:
    """Products with keys or values in their output; with shared heads, q's own are told by their width."""
    model = facts.model
    heads, kv_heads, size = model.heads.value or 0, model.kv_heads.value or 0, model.head_dim.value or 0
    queries = heads * size if kv_heads != heads and size else None
    rows = [row for row in facts.gemms if row.component == "attention.qkv" and row.kind == "gemm"]
    return [
        row
        for row in rows
        if row.n is not None and (queries is None or queries not in _outputs(row) or 2 * kv_heads == heads)
    ]


def _outputs(row: GemmRow) -> tuple[int | None, ...]:
    """The side that heads make: N forward, K of the input's gradient, M of the weight's."""
    return {"forward": (row.n,), "dgrad": (row.k,), "wgrad": (row.m,)}.get(
        row.role or "", (row.m, row.n, row.k)
    )


def _lost(row: GemmRow) -> float:
    return lost_ms((row.lost_ms.alignment, row.lost_ms.tile, row.lost_ms.wave))


def _reason(rows: Sequence[GemmRow]) -> str:
    found = next((why for row in rows if (why := row.lost_ms.why.get("useful"))), None)
    return found or "their time is not split into its causes"


def others(facts: StepFacts) -> list[int]:
    """Numbers of the whole model that divide its heads and that its ranks divide."""
    ranks = max(facts.model.tensor_parallel.value or 1, 1)
    heads, now = (facts.model.heads.value or 0) * ranks, (facts.model.kv_heads.value or 0) * ranks
    return [
        one
        for one in range(max(1, -(-now // _REACH)), min(heads, now * _REACH) + 1)
        if one != now and heads % one == 0 and one % ranks == 0
    ]


def _fits_better(facts: StepFacts, trial: Trial, step_ms: float) -> bool:
    """Surely faster, and not for the work alone that it leaves out."""
    return surely(trial.found.saving_ms, step_ms) and _shape_gain_ms(facts, trial) >= GAIN_FRAC * step_ms


def _shape_gain_ms(facts: StepFacts, trial: Trial) -> float:
    """How much less time the products take then than their operations at the present speed would."""
    if facts.step is None:
        return 0.0
    now = facts.step.now
    then = changed(now, {"kv_heads": trial.value})
    work: dict[str, tuple[float, float]] = {}
    for product in facts.step.work.products:
        before, after = product.sizes(now), product.sizes(then)
        if before is not None and after is not None:
            old, new = work.get(product.row.id, (0.0, 0.0))
            work[product.row.id] = (
                old + product.weight * math.prod(before),
                new + product.weight * math.prod(after),
            )
    gain = 0.0
    for row in trial.found.rows:
        if row.component == "attention.qkv" and row.gemm in work:
            old, new = work[row.gemm]
            gain += row.time_ms * new / old - (row.then_ms.mid or 0.0)
    return gain


def _saw(facts: StepFacts, rows: Sequence[GemmRow], lost: float, step_ms: float) -> str:
    heads, kv_heads = facts.model.heads.value, facts.model.kv_heads.value
    ranks = facts.model.tensor_parallel.value or 1
    time = sum(row.time_ms_per_step for row in rows)
    here = f" on each of {ranks} ranks" if ranks > 1 else ""
    text = (
        f"{plural(kv_heads or 0, 'key-value head')} for {plural(heads or 0, 'head')}{here}."
        " The products that make keys and values"
        f" {took_and_lost(time, lost, facts, to='alignment, tiles and waves')}."
    )
    worst = max(rows, key=_lost)
    if lost >= GAIN_FRAC * step_ms and worst.tile_eff_frac is not None and worst.wave_eff_frac is not None:
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
    fewer = [one for one in trials if surely(one.found.saving_ms, step_ms)]
    if not fewer:
        return ""
    one = min(fewer, key=lambda trial: trial.value)
    return (
        f" Fewer would be a smaller model: with kv_heads = {one.value} the step is predicted to take"
        f" {percent(one.mid_ms / step_ms)} less, for the work left out."
    )


def _proposal(
    facts: StepFacts, best: Trial, trials: Sequence[Trial], rows: Sequence[GemmRow], saw: str
) -> Proposal:
    ranks = max(facts.model.tensor_parallel.value or 1, 1)
    now = (facts.model.kv_heads.value or 0) * ranks
    return Proposal(
        title=f"Use {plural(best.value, 'key-value head')} instead of {now}",
        stakes=[
            Stake(
                row,
                _lost(row),
                f"{name(row)} loses {ms(_lost(row))} {facts.per_step} to alignment, tiles and waves.",
            )
            for row in rows
            if _lost(row) > 0
        ],
        confidence="medium",
        effort="retrain",
        saw=saw,
        why=(
            "Products are computed in tiles of fixed size, one on each SM at a time. Too narrow an output"
            " leaves parts of the tiles empty, and a last wave with few tiles takes as long as a full one."
            " The number of key-value heads sets the width of these products."
        ),
        change={"kv_heads": [now, best.value]},
        fix=[f"- kv_heads = {now}", f"+ kv_heads = {best.value}"],
        caveats=_caveats(facts, now, best.value),
        evidence={"tried": savings(trials)},
        simulate={"kv_heads": best.value},
    )


def _caveats(facts: StepFacts, now: int, then: int) -> list[str]:
    caveats = [
        f"{facts.new_model}, and its accuracy has to be checked.",
        f"At inference the key-value cache is {then / now:.3g} times as large.",
    ]
    if then < now:
        caveats.append(
            "Part of what the step gets faster is work left out. No more counts than the present shapes"
            " waste."
        )
    return caveats
