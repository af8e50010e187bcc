"""From what a rule claims by its own arithmetic to findings and one check.

For changes that are no hyper-parameter of the model, so that ``what_if`` cannot simulate them: another
precision, one product in place of three, a copy that falls away. Thresholds and refusals are those of
``proposals``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracelens.numbers import listed, ms, ms_range, percent, plural
from tracelens.results import Estimate, Finding
from tracelens.results.advice import Effort
from tracelens.rules.engine.facts import Outcome, Rule, StepFacts
from tracelens.rules.engine.proposals import WORTH_A_FINDING
from tracelens.rules.engine.simulated import as_frac, pays, within
from tracelens.words import Level, severity


@dataclass(frozen=True, slots=True)
class Claim:
    """One change and what it saves per step; ``saving.mid`` None = only a bound is known."""

    name: str  # the change inside a sentence: "one product for q, k and v"
    title: str
    components: Sequence[str]
    bounds: Mapping[str, float]  # GEMM rows (and other rows) it touches -> ms per step at stake
    gemms: Sequence[str]  # of them the GEMM rows
    saving: Estimate
    confidence: Level
    effort: Effort
    saw: str
    why: str
    how: str  # the arithmetic with its numbers
    fix: Sequence[str]
    caveats: Sequence[str]
    change: Mapping[str, list[int | float | str]] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    flops_delta: float | None = None
    parameter_delta: int | None = 0  # None where the change adds weights: counted with the effects
    least: float = WORTH_A_FINDING  # share of the step below which it is no finding

    @property
    def predicted(self) -> bool:
        """Is there a prediction, and not only a bound?"""
        return self.saving.mid is not None

    @property
    def size_ms(self) -> float:
        """What it is ranked by: the middle of the prediction, or the bound."""
        return (self.saving.mid if self.saving.mid is not None else self.saving.high) or 0.0


def settle(rule: Rule, *, facts: StepFacts, claims: Sequence[Claim], passed: str) -> Outcome:
    """Turn claims into findings, or into a passed check that says why there is none.

    ``passed`` is the sentence for a step without any claim; it also opens the answer where no claim is worth
    a finding. A change predicted to make the step slower, or as likely slower as faster, is none.
    """
    step_ms = facts.measured_step_ms
    if step_ms is None:
        return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
    judged = [_settled(one, facts, step_ms) for one in claims]
    worth = [one for one in judged if not _refused(one) and one.size_ms >= one.least * step_ms]
    left = [one for one in judged if one not in worth]
    if not worth:
        return Outcome("passed", " ".join([passed, *(_left(one, facts, step_ms) for one in left)]).strip())
    bounds: dict[str, float] = {}
    for one in worth:
        for row, bound in one.bounds.items():
            bounds[row] = max(bounds.get(row, 0.0), bound)
    said = [(f"{plural(len(worth), 'finding')}: {ms(min(sum(bounds.values()), step_ms))} of the"
            f" {ms(step_ms)} {facts.whole} at stake.")]  # fmt: skip
    savings = [ms(one.saving.mid) for one in worth if one.predicted]
    said += [f"Predicted to save {listed(savings)}."] if savings else []
    said += [_left(one, facts, step_ms) for one in left]
    findings = tuple(_finding(rule, one, facts=facts, step_ms=step_ms) for one in worth)
    return Outcome("found", " ".join(said), findings, bounds, tuple(None for _ in worth))


def _settled(one: Claim, facts: StepFacts, step_ms: float) -> Claim:
    """The claim within its bound and the step; where the step waits for the CPU it can come to nothing."""
    bound = min(sum(one.bounds.values()), step_ms)
    saving, how = within(one.saving, bound), one.how
    if one.predicted and facts.saving_of == "gpu_work" and saving.low is not None:
        saving = replace(saving, low=min(saving.low, 0.0))
    if one.predicted and (one.saving.high or 0.0) > bound * (1 + 1e-9):
        how += f" No more than {ms(bound)} counts: what the rows take above their floor."
    return replace(one, saving=saving, how=how)


def _refused(one: Claim) -> bool:
    return one.predicted and not pays(one.saving)


def _left(one: Claim, facts: StepFacts, step_ms: float) -> str:
    """Why a claim is no finding, as a sentence."""
    saving = one.saving
    mid = saving.mid
    if mid is None or not _refused(one):
        what = "is predicted to save" if mid is not None else "has at stake"
        share = percent(one.size_ms / step_ms)
        return (
            f"{_upper(one.name)} {what} {ms(one.size_ms)} of the {ms(step_ms)} {facts.whole} ({share}), below"
            f" the {percent(one.least)} that makes a finding."
        )
    if mid <= 0:
        much = "is predicted to change nothing" if mid == 0 else (
            f"is predicted to make the step {ms(-mid)} slower"
        )  # fmt: skip
        return f"Not advised: {one.name} {much}."
    return (
        f"Not advised: {one.name} is predicted to save {ms(mid)} of the {facts.whole}, but the range, from"
        f" {ms(-(saving.low or 0.0))} slower to {ms(saving.high)} faster, leaves open which of the two."
    )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _finding(rule: Rule, one: Claim, *, facts: StepFacts, step_ms: float) -> Finding:
    saving = one.saving
    share = as_frac(saving, step_ms)
    frac = (share.mid if share.mid is not None else share.high) or 0.0
    bound = min(sum(one.bounds.values()), step_ms)
    return Finding(
        rule=rule.id,
        slug=rule.slug,
        title=one.title,
        components=list(dict.fromkeys(one.components)),
        severity=severity(frac, facts.saving_of),
        saving_ms=saving,
        saving_frac=share,
        basis=saving.basis,
        confidence=one.confidence,
        effort=one.effort,
        saw=one.saw,
        why=one.why,
        how=_how(one, facts, step_ms),
        evidence={**one.evidence, "rows": _rows(one), "bound_ms": bound},
        change={name: list(values) for name, values in one.change.items()},
        fix=list(one.fix),
        parameter_delta=one.parameter_delta,
        flops_delta=one.flops_delta,
        caveats=[*one.caveats, *_common_caveats(facts, one)],
        gemms=list(one.gemms),
        doc=f"docs/rules/{rule.id}.md",
        saving_of=facts.saving_of,
    )


def _rows(one: Claim) -> list[dict[str, object]]:
    """What each row has at stake, the most first."""
    ordered = sorted(one.bounds.items(), key=lambda item: -item[1])
    return [{"gemm" if row in one.gemms else "row": row, "bound_ms": bound} for row, bound in ordered]


def _how(one: Claim, facts: StepFacts, step_ms: float) -> str:
    saving = one.saving
    if saving.mid is None:
        return (
            f"A bound and not a prediction.\n{one.how}\nTogether {ms(saving.high)} of the {ms(step_ms)}"
            f" {facts.whole} = {percent((saving.high or 0.0) / step_ms)}."
        )
    low = (
        ": from nothing, as the step waits for the CPU"
        if facts.saving_of == "gpu_work" and saving.low == 0
        else ""
    )
    return (
        f"Predicted, not measured.\n{one.how}\nTogether {ms(saving.mid)}, range"
        f" {ms_range(saving.low, saving.high)}{low}."
    )


def _common_caveats(facts: StepFacts, one: Claim) -> list[str]:
    caveats = []
    if one.saving.mid is None:
        caveats.append(
            "Not known yet: how much of it falls away, so the saving lies between zero and the bound."
        )
    else:
        with_what = "" if one.saving.basis == "calibrated" else "out"
        caveats.append(
            f"A prediction with{with_what} measurements of this GPU; the changed step was not run."
        )
        if (one.saving.low or 0.0) < 0:
            caveats.append("The low end of the range is below zero: measure before you decide.")
    return [*caveats, *facts.waiting_caveats]


def total(parts: Sequence[Estimate]) -> Estimate:
    """Estimates whose errors share their cause: ends add to ends. The weakest basis names the sum.

    >>> total([Estimate(1.0, 2.0, 3.0, "calibrated"), Estimate(0.0, 1.0, 1.5, "model")])
    Estimate(low=1.0, mid=3.0, high=4.5, basis='model')
    """
    low, mid, high = (sum(getattr(part, end) or 0.0 for part in parts) for end in ("low", "mid", "high"))
    sure = {part.basis for part in parts} == {"calibrated"}
    return Estimate(low, mid, high, "calibrated" if sure else "model")
