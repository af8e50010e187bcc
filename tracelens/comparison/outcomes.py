"""The findings of the report before, against what the report after measured."""

from __future__ import annotations

from tracelens.comparison import words
from tracelens.comparison.same_work import diffs_ms
from tracelens.results import Estimate, Finding, Known, Report
from tracelens.results.comparison import FindingOutcome, GemmChange, OutcomeState

#: The word of a finding's change -> field of ModelDims.
_FIELDS = {"vocab_size": "vocab", "micro_batch": "micro_batch", "batch": "micro_batch"}


def outcomes(
    before: Report, after: Report, gemms: list[GemmChange], *, times: bool = True
) -> list[FindingOutcome]:
    """Say of each finding whether it was acted on and whether the saving came, where times compare."""
    found = []
    for one in before.findings:
        state, why = _state(one, after, gemms)
        done = state in ("acted_on", "changed_otherwise")
        measured = _measured(one, gemms) if done and times else None
        agrees = _agrees(one.saving_ms, measured) if state == "acted_on" and measured is not None else None
        found.append(
            FindingOutcome(
                one.rule, one.title, one.change, state, one.saving_ms, measured, agrees, why, one.saving_of
            )
        )
    return found


def _state(one: Finding, after: Report, gemms: list[GemmChange]) -> tuple[OutcomeState, str]:
    seen = [_now(name, values, one, after, gemms) for name, values in one.change.items()]
    proposed = [value == values[1] for value, values in zip(seen, one.change.values(), strict=True)]
    if one.change and all(proposed):
        return "acted_on", ""
    for (name, values), value in zip(one.change.items(), seen, strict=True):
        # a part of a change is another change
        if value is not None and (value not in values or (any(proposed) and value != values[1])):
            return "changed_otherwise", words.set_otherwise(name, value, values[1])
    if any(_same(one, other) for other in after.findings):
        return "still_there", ""
    looked = [check.state != "could_not_run" for check in after.checks if check.rule == one.rule]
    if not seen and any(looked):
        return "gone", ""
    if looked and not any(looked):
        return "cannot_tell", words.NOT_LOOKED
    if None in seen or not seen:
        return "cannot_tell", words.NOT_SHOWN
    return "gone", words.NOT_FOUND_UNCHANGED


def _same(one: Finding, other: Finding) -> bool:
    """Do both ask for the same? Findings of one rule that change no parameter differ in kind (TL122)."""
    kinds = one.evidence.get("kind"), other.evidence.get("kind")
    return (one.rule, one.change, kinds[0]) == (other.rule, other.change, kinds[1])


def _now(
    name: str, values: list[int | float | str], one: Finding, after: Report, gemms: list[GemmChange]
) -> int | float | str | None:
    """The parameter's value in the report after, as its model or the finding's own GEMMs show it."""
    field = _FIELDS.get(name, name)
    known = getattr(after.model, field, None)
    if isinstance(known, Known):
        return known.value
    for change in _own(one, gemms):
        for letter in ("m", "n", "k"):
            if change.before and change.after and getattr(change.before, letter) == values[0]:
                now: int | None = getattr(change.after, letter)
                return now
    return None


def _own(one: Finding, gemms: list[GemmChange]) -> list[GemmChange]:
    ids = set(one.gemms)
    return [change for change in gemms if change.before is not None and ids & set(change.before.ids)]


def _measured(one: Finding, gemms: list[GemmChange]) -> float | None:
    """What the finding's GEMMs take less per step; None when one of them has no counterpart."""
    own = _own(one, gemms)
    diffs = diffs_ms(one for one in own if one.after is not None)
    if not own or len(diffs) < len(own):
        return None
    ids = set(one.gemms)
    if any(one.state == "regrouped" and one.before and not set(one.before.ids) <= ids for one in own):
        return None  # others are in the same row
    return -sum(diffs)


def _agrees(predicted: Estimate, measured: float) -> str | None:
    if predicted.high is None:
        return None
    if predicted.mid is None:
        return "within the bound" if measured <= predicted.high else "more than the bound"
    if predicted.low is not None and measured < predicted.low:
        return "less than predicted"
    return "more than predicted" if measured > predicted.high else "as predicted"
