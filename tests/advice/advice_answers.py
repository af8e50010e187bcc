"""What a rule, or its evidence, ends in."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.rules.engine.candidate import Answer, Candidate
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.rule import Rule


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
