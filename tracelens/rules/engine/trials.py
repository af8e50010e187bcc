"""Several values of one parameter, each simulated, and which of them is worth a finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracelens.numbers import ms, percent
from tracelens.results import Span, WhatIf
from tracelens.rules.engine.candidate import passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_step_ms
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.simulated import simulate
from tracelens.step.per_token import growth_frac

#: How far a range can reach into slower, as a share of the saving, where trying a change is cheap.
_LITTLE = 0.25
#: A gain below this share of the step is within what two runs of one model differ by.
GAIN_FRAC = 0.01


@dataclass(frozen=True, slots=True)
class Trial:
    """One value and the step simulated with it."""

    value: int
    found: WhatIf
    saving_ms: Span  # below zero where it is slower


def try_values(facts: StepFacts, name: str, values: Iterable[int]) -> tuple[list[Trial], str]:
    """A trial for each value that can be simulated, and why the first of the others cannot."""
    trials: list[Trial] = []
    why = ""
    for value in values:
        found = simulate(facts, {name: value})
        if isinstance(found, str):
            why = why or found
        elif (saving := found.saving_ms.known) is not None:
            trials.append(Trial(value, found, saving))
    return trials, why


def surely(saving: Span, step_ms: float) -> bool:
    """Faster over the whole range, and in the middle by what two runs do not differ by."""
    return saving.low > 0 and saving.mid >= GAIN_FRAC * step_ms


def likely(saving: Span, step_ms: float, *, bound_ms: float) -> bool:
    """Worth trying where trying is cheap: the range, within ``bound_ms``, hardly reaches into slower."""
    held = saving.clamp(high=bound_ms)
    return held.mid >= GAIN_FRAC * step_ms and held.low >= -_LITTLE * held.mid


def need_likely(
    trials: Sequence[Trial], name: str, noun: str, facts: StepFacts, *, bound_ms: float, saw: str
) -> list[Trial]:
    """Those worth trying; raises ``Answer`` where none is."""
    step_ms = need_step_ms(facts)
    good = [one for one in trials if likely(one.saving_ms, step_ms, bound_ms=bound_ms)]
    if good:
        return good
    best = max(trials, key=lambda one: one.saving_ms.mid)
    raise passed(f"{saw} No other {noun} near it is advised: {in_words(name, best, step_ms)}.")


def nearly_best(trials: Sequence[Trial], step_ms: float, *, bound_ms: float) -> list[Trial]:
    """Those that the model does not tell from the best: within 1 % of the step, no more than the bound."""
    top = max((min(one.saving_ms.mid, bound_ms) for one in trials), default=0.0)
    return [one for one in trials if min(one.saving_ms.mid, bound_ms) >= top - GAIN_FRAC * step_ms]


def in_words(name: str, trial: Trial, step_ms: float) -> str:
    """``ffn = 10944 is predicted to save 0.29% of the step, between 3.4% slower and 3.73% faster``."""
    low, mid, high = trial.saving_ms.low, trial.saving_ms.mid, trial.saving_ms.high
    what = "of the time per token" if growth_frac(trial.found.change) else "of the step"
    verb = "save" if mid > 0 else "add"
    moves = f"{verb} {percent(abs(mid) / step_ms)} {what}" if mid else "change nothing"
    return (
        f"{name} = {trial.value} is predicted to {moves},"
        f" between {_side(low / step_ms)} and {_side(high / step_ms)}"
    )


def _side(frac: float) -> str:
    return f"{percent(abs(frac))} {'slower' if frac < 0 else 'faster'}" if frac else "no change"


def took_and_lost(time_ms: float, loss_ms: float, facts: StepFacts, *, to: str) -> str:
    """``take 12.0 ms per step and lose 1.20 ms (3% of the step) to ...``."""
    if loss_ms <= 0:
        return f"take {ms(time_ms)} {facts.per_step} and are not known to lose anything to {to}"
    return f"take {ms(time_ms)} {facts.per_step} and lose {ms(loss_ms)} ({of_step(loss_ms, facts)}) to {to}"


def savings(trials: Sequence[Trial]) -> Mapping[str, list[float | None]]:
    """value -> [low, mid, high] in ms per step, for the evidence."""
    return {str(one.value): [one.saving_ms.low, one.saving_ms.mid, one.saving_ms.high] for one in trials}
