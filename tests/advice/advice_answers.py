"""What a rule, or its evidence, ends in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.said import Listener
from tracelens.results import Check, Estimate, Finding, WhatIf
from tracelens.rules.engine.candidate import Answer, Candidate
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import Trial


def outcome_of(call: Any, *given: Any) -> Outcome:
    """The outcome that the call ends in."""
    with pytest.raises(Answer) as found:
        call(*given)
    return found.value.outcome


def answer(call: Any, *given: Any) -> tuple[str, bool, str]:
    """The same as state, whether nothing is there to judge, and why."""
    outcome = outcome_of(call, *given)
    return outcome.state, outcome.absent, outcome.why


def only(rule: Rule, step: StepFacts) -> Candidate:
    """The one candidate of a rule."""
    (candidate,), _ = rule.look(step)
    return candidate


def saved(one: WhatIf) -> tuple[float, float, float]:
    """Least, middle and most that a change saves."""
    saving = one.saving_ms
    assert saving.low is not None and saving.mid is not None and saving.high is not None, one.notes
    return saving.low, saving.mid, saving.high


def trial_of(name: str, change: tuple[int, int], mid: float, low: float = 0.5) -> Trial:
    """What another value of a dimension was predicted to save."""
    found: Any = SimpleNamespace(saving_ms=Estimate(low, mid, mid + 1.0, "model"), change={name: [*change]})
    return Trial(change[1], found, found.saving_ms.known)


def only_finding(outcome: Outcome) -> Finding:
    """The one finding of a check."""
    assert outcome.state == "found", outcome.why
    (finding,) = outcome.findings
    return finding


def says_why(outcome: Outcome | Check, state: str, said: Listener) -> None:
    """A check ends so, and says why."""
    assert outcome.state == state, outcome.why
    said(outcome.why)
