"""Run every rule on a step and put the answers in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelens.results import Check, Estimate, Finding, Span, total
from tracelens.rules.catalog import RULES
from tracelens.rules.engine.conclude import heuristic
from tracelens.rules.engine.facts import Advice, Outcome, StepFacts
from tracelens.rules.engine.needs import judged_part, unseen
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.simulated import pays, together
from tracelens.step.stalls import stalled, to_judge, untold_alone


def advise(facts: StepFacts, *, rules: Sequence[Rule] = RULES) -> Advice:
    """Findings by saving (the bound where there is no prediction), largest first, and one check per rule.

    ``at_stake_ms`` is per step, of all findings together. Savings overlap, so it is never their sum: the
    step is simulated with all changes of the model at once, and what a rule predicts by itself is added
    where it touches other rows. Findings without a prediction are not in it; what they have at stake is
    ``open_ms``. Without any prediction it is a bound that counts each row once, with the largest bound any
    rule gave it.
    """
    # what was queued before the steps, and never in them, is not theirs
    facts = replace(facts, gemms=[to_judge(row) for row in facts.gemms if row.time_ms_per_step > 0])
    stalls = {row.id: stalled(row) for row in facts.gemms if row.stalls}
    company = {row.id for row in facts.gemms if untold_alone(row)}
    found: list[tuple[Finding, Mapping[str, int] | None]] = []
    checks: list[Check] = []
    bounds: dict[str, float] = {}
    for rule in rules:
        outcome = rule.check(facts)
        checks.append(_check(rule, outcome, facts))
        changes = outcome.changes or (None,) * len(outcome.findings)
        found += [
            (_with_stalls(_with_company(one, company), stalls), change)
            for one, change in zip(outcome.findings, changes, strict=True)
        ]
        for row, bound in () if rule.of_waits else outcome.bounds_ms.items():
            bounds[row] = max(bounds.get(row, 0.0), bound)
    if not found:
        return Advice(findings=[], checks=checks, at_stake_ms=None)
    found.sort(key=lambda one: -(one[0].saving_ms.size or 0.0))
    findings = [one for one, _ in found]
    found = [one for one in found if one[0].saving_of != "wait"]
    if not found:
        return Advice(findings, checks, at_stake_ms=None)
    step_ms = facts.measured_step_ms
    total = sum(bounds.values())
    bound = min(total, step_ms) if step_ms is not None else total
    return Advice(findings, checks, *_at_stake(facts, found, bounds, bound))


def _with_stalls(finding: Finding, stalls: Mapping[str, str]) -> Finding:
    """The finding with what calls of its rows took beyond the others: no part of its saving."""
    rows = [row for row in finding.gemms if row in stalls]
    said = [f"{row}: {stalls[row]}. What a stall takes beyond the others is not counted." for row in rows]
    return replace(finding, caveats=[*finding.caveats, *said]) if said else finding


def _with_company(finding: Finding, rows: set[str]) -> Finding:
    """The finding with the rows whose time holds what communication beside them took, which is not known."""
    named = [row for row in finding.gemms if row in rows]
    if not named:
        return finding
    said = (
        f"{', '.join(named)}: calls ran beside communication, and too few beside nothing to take off what"
        " that cost: that part of their time does not go with this change."
    )
    return replace(finding, caveats=[*finding.caveats, said])


def _check(rule: Rule, outcome: Outcome, facts: StepFacts) -> Check:
    """What became of a rule; "not seen" means "not there", and "passed" all, only where all was seen."""
    covered = facts.coverage
    if outcome.absent and covered is not None:
        seen = covered.no_attention if outcome.attention else covered.complete
        frac = covered.attention_open_frac if outcome.attention else None
        if not seen:
            return Check(rule.id, rule.slug, "could_not_run", f"{outcome.why} {unseen(covered, frac=frac)}")
    if outcome.state == "passed" and covered is not None and not covered.complete:
        return Check(rule.id, rule.slug, outcome.state, f"{outcome.why} {judged_part(covered)}")
    return Check(rule.id, rule.slug, outcome.state, outcome.why)


def _at_stake(
    facts: StepFacts,
    found: Sequence[tuple[Finding, Mapping[str, int] | None]],
    bounds: Mapping[str, float],
    bound_ms: float,
) -> tuple[Estimate, float]:
    """What all findings save together, and what those without a prediction have at stake beside that.

    Changes of the model are simulated at once, for no more than each has at stake, and what rules predict
    for other rows is added. Of a rule's own prediction counts the share that its rows have which no other
    finding counts already. Where rows would count in both, the model's changes come first or last, whichever
    saves more. Without any prediction the bound is all.
    """
    changes = [change for _, change in found if change]
    joint = together(facts, changes) if changes else None
    if changes and (joint is None or not pays(joint.saving_ms)):
        return heuristic(bound_ms), 0.0
    simulated: dict[str, float | None] = {}
    for finding, change in found:
        if change:
            simulated |= _rows(finding)
    alone = [(saving, _rows(one)) for one, change in found if not change and (saving := one.saving_ms.known)]
    most_ms = sum(one.saving_ms.high for one, change in found if change and one.saving_ms.high is not None)
    joined = joint.saving_ms.known if joint is not None else None
    model = [(joined.clamp(high=most_ms), simulated)] if joined is not None else []
    parts, covered = max(
        (_apart(model + alone), _apart(alone + model)), key=lambda one: sum(part.mid for part in one[0])
    )
    if not parts:
        return heuristic(bound_ms), 0.0
    mid_ms = min(sum(part.mid for part in parts), bound_ms)
    added = total(parts)
    # each can be done without the rest, so together they save at most no less than the most of any
    most = [saving.high for one, _ in found if (saving := one.saving_ms.known)]
    added = replace(added, high=max([added.high or 0.0, *most])).clamp(high=bound_ms)
    return added, min(_open_ms(found, bounds, covered), bound_ms - mid_ms)


def _rows(finding: Finding) -> dict[str, float | None]:
    """The rows it touches, products and kernels that are none, with what each has at stake (None: untold)."""
    found: dict[str, float | None] = dict.fromkeys(finding.gemms)
    for row in finding.evidence.get("rows", ()):
        name = row.get("row") or row.get("gemm")
        if name is not None:
            found[name] = row.get("bound_ms")
    return found


def _apart(parts: Sequence[tuple[Span, Mapping[str, float | None]]]) -> tuple[list[Span], set[str]]:
    """Of these, in this order, what each has in rows of none before it; and all their rows."""
    taken: list[Span] = []
    covered: set[str] = set()
    for saving, rows in parts:
        shared = covered & rows.keys()
        told = {row: bound for row, bound in rows.items() if bound is not None}
        whole, share = sum(told.values()), 1.0
        if shared:
            apart = whole and shared <= told.keys()
            share = 1 - sum(told[row] for row in shared) / whole if apart else 0.0
        if share > 0:
            taken.append(saving * share)
            covered |= rows.keys()
    return taken, covered


def _open_ms(
    found: Sequence[tuple[Finding, Mapping[str, int] | None]], bounds: Mapping[str, float], covered: set[str]
) -> float:
    """What findings without a prediction have at stake in rows that no prediction counts."""
    unknown = [finding for finding, _ in found if finding.saving_ms.mid is None]
    beside = sum(one.saving_ms.high for one in unknown if one.saving_ms.high and not _rows(one))
    rows = {row for finding in unknown for row in _rows(finding)} - covered
    return beside + sum(bounds.get(row, 0.0) for row in sorted(rows))
