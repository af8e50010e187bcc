"""Run every rule on a step and put the answers in order."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.advice.facts import Advice, Rule, StepFacts
from tracelens.advice.proposals import heuristic
from tracelens.advice.rules import RULES
from tracelens.results import Check, Finding


def advise(facts: StepFacts, *, rules: Sequence[Rule] = RULES) -> Advice:
    """Findings by time at stake, largest first, and exactly one check per rule in the rules' order.

    ``at_stake_ms`` is per step. Findings overlap where they name the same GEMM, so it counts each GEMM
    row once, with the largest bound any rule gave it; it is never the sum of the findings.
    """
    findings: list[Finding] = []
    checks: list[Check] = []
    bounds: dict[str, float] = {}
    for rule in rules:
        outcome = rule.check(facts)
        checks.append(Check(rule=rule.id, slug=rule.slug, state=outcome.state, why=outcome.why))
        findings += outcome.findings
        for row, bound in outcome.bounds_ms.items():
            bounds[row] = max(bounds.get(row, 0.0), bound)
    findings.sort(key=lambda finding: -(finding.saving_ms.high or 0.0))
    if not findings:
        return Advice(findings=[], checks=checks, at_stake_ms=None)
    total = sum(bounds.values())
    step_ms = facts.measured_step_ms
    return Advice(findings, checks, heuristic(min(total, step_ms) if step_ms is not None else total))
