"""The saving a rule states: the step simulated with the rule's change, within the rule's own bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.errors import UsageError
from tracelens.numbers import ms, ms_range, plural, sig
from tracelens.results import Estimate, Span, WhatIf
from tracelens.rules.engine.facts import StepFacts
from tracelens.step.per_token import affected_ms, growth_frac, moved_then_ms, per_token
from tracelens.step.whatif import what_if
from tracelens.step.whatif_notes import Told

#: Every saving says what a step that waits makes of it, and the rule says more of parameters.
_TOLD: tuple[Told, ...] = ("parameters", "waits")


def simulate(facts: StepFacts, changes: Mapping[str, int] | None) -> WhatIf | str:
    """The step with ``changes``, or why it cannot be simulated.

    Where a change adds or drops samples, the saving is per token, as milliseconds of the present step.
    """
    if not changes:
        return "the change is not one of a model parameter that can be simulated"
    if facts.step is None:
        return "the step cannot be simulated"
    try:
        found = what_if(facts.step, changes, told=_TOLD)
    except UsageError as error:
        return error.cause
    if found.refused is not None:
        return found.refused.text
    if not found.rows:
        return "no GEMM of the step is known to change with it"
    return per_token(found)


def pays(saving: Estimate) -> bool:
    """Is it faster, and no range that reaches as far into slower as the saving into faster?"""
    return saving.mid is not None and saving.low is not None and -saving.low < saving.mid


def why_not(saving: Span, change: WhatIf | str, whole: str) -> str:
    """Why a predicted change is not advised, as a sentence without its full stop; ``change`` or its name."""
    mid = saving.mid
    name, per = change, ""
    if not isinstance(change, str):
        name = ", ".join(
            f"{name} = {then}" for name, (_, then) in change.change.items() if name != "kv_heads"
        )
        per = " per token" if growth_frac(change.change) else ""
    if mid == 0:
        return f"{name} is predicted to change nothing"
    if mid < 0:
        return f"{name} is predicted to make the step {ms(-mid)} slower{per}"
    return (
        f"{name} is predicted to save {ms(mid)} of the {whole}{per}, but anything from {ms(-saving.low)}"
        f" slower to {ms(saving.high)} faster is possible"
    )


def derivation(found: WhatIf, bound_ms: float, *, rows_in_full: int) -> list[str]:
    """The arithmetic of a simulated change, as sentences."""
    saving = found.saving_ms
    parts = ["The step, simulated with the change."]
    for row in found.rows[:rows_in_full]:
        name = " ".join(word for word in (row.component, row.role) if word)
        parts.append(f"{name} ({row.gemm}): {row.how}; {ms(row.time_ms)} becomes {ms(row.then_ms.mid)}.")
    others = found.rows[rows_in_full:]
    if others:
        change = sum(row.time_ms - row.then_ms.mid for row in others)
        parts.append(f"{plural(len(others), 'more row')} in the same way: {_signed(change)}.")
    bytes_ms = sum(one.time_ms - one.then_ms.mid for one in found.rest)
    if found.rest:
        parts.append(f"Kernels that move bytes scale with them: {_signed(bytes_ms)}.")
    growth = growth_frac(found.change)
    if growth:
        parts.append(
            f"All that changes takes {ms(affected_ms(found))} now and {ms(moved_then_ms(found))} then, with"
            f" {sig(1 + growth, 4)} times the tokens: per token the difference is {ms(affected_ms(found))} -"
            f" {ms(moved_then_ms(found))} / {sig(1 + growth, 4)}."
        )
    parts.append(f"Together {ms(saving.mid)}, range {ms_range(saving.low, saving.high)}.")
    if saving.high is not None and saving.high > bound_ms:
        parts.append(f"No more than {ms(bound_ms)} counts: the most that these rows can give back.")
    return parts


def _signed(saving_ms: float) -> str:
    if abs(saving_ms) < 1e-6:
        return "no change"
    return f"{ms(saving_ms)} saved" if saving_ms > 0 else f"{ms(-saving_ms)} added"


def together(facts: StepFacts, changes: Sequence[Mapping[str, int] | None]) -> WhatIf | None:
    """All changes in one simulation; None where one of them cannot be, or two contradict each other."""
    merged: dict[str, int] = {}
    for one in changes:
        if not one or any(merged.get(name, value) != value for name, value in one.items()):
            return None
        merged |= one
    found = simulate(facts, merged)
    return None if isinstance(found, str) else found
