"""Run every rule on a step and put the answers in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.advice.effects import completed
from tracelens.advice.facts import Advice, Rule, StepFacts
from tracelens.advice.proposals import heuristic
from tracelens.advice.rules import RULES
from tracelens.advice.simulated import pays, together, within
from tracelens.results import Check, Estimate, Finding


def advise(facts: StepFacts, *, rules: Sequence[Rule] = RULES) -> Advice:
    """Findings by saving (the bound where there is no prediction), largest first, and one check per rule.

    ``at_stake_ms`` is per step, of all findings together. Savings overlap, so it is never their sum: where
    every finding's change can be simulated, the step is simulated with all of them at once. Elsewhere it is
    a bound that counts each GEMM row once, with the largest bound any rule gave it.
    """
    found: list[tuple[Finding, Mapping[str, int] | None]] = []
    checks: list[Check] = []
    bounds: dict[str, float] = {}
    for rule in rules:
        outcome = rule.check(facts)
        checks.append(Check(rule=rule.id, slug=rule.slug, state=outcome.state, why=outcome.why))
        changes = outcome.changes or (None,) * len(outcome.findings)
        found += [
            (completed(one, facts, simulate=change), change)
            for one, change in zip(outcome.findings, changes, strict=True)
        ]
        for row, bound in outcome.bounds_ms.items():
            bounds[row] = max(bounds.get(row, 0.0), bound)
    if not found:
        return Advice(findings=[], checks=checks, at_stake_ms=None)
    found.sort(key=lambda one: -_size(one[0].saving_ms))
    total = sum(bounds.values())
    step_ms = facts.measured_step_ms
    bound = min(total, step_ms) if step_ms is not None else total
    return Advice([one for one, _ in found], checks, _at_stake(facts, [one for _, one in found], bound))


def _size(saving: Estimate) -> float:
    return (saving.mid if saving.mid is not None else saving.high) or 0.0


def _at_stake(facts: StepFacts, changes: Sequence[Mapping[str, int] | None], bound_ms: float) -> Estimate:
    joint = together(facts, changes)
    if joint is None or not pays(joint.saving_ms):
        return heuristic(bound_ms)
    return within(joint.saving_ms, bound_ms)
