"""From what a rule proposes to findings and one check: bounds, severity, threshold and common sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tracelens.advice.facts import Outcome, Rule, StepFacts
from tracelens.advice.numbers import percent, plural
from tracelens.advice.stakes import Stake
from tracelens.numbers import ms
from tracelens.results import Estimate, Finding, GemmRow

#: A bound below this share of the step is noise beside step-to-step variation: the check then passes
#: and says the figure.
WORTH_A_FINDING = 0.001
#: Severity by the bound's share of the step.
HIGH, MEDIUM = 0.03, 0.01
#: Rows whose arithmetic is written out; the rest is one sum in the text and in ``evidence``.
_ROWS_IN_FULL = 3
#: Below this busy share the step waits for the host, and a shorter kernel leaves a longer gap.
_BUSY = 0.9


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change, argued by a rule; ``stakes`` are the GEMM rows it touches."""

    title: str
    stakes: Sequence[Stake]
    confidence: str  # high | medium | low
    effort: str  # config | code | retrain
    saw: str
    why: str
    change: dict[str, list[int | float | str]]
    fix: list[str]
    caveats: list[str]
    how: str = ""  # what the rule's own arithmetic adds to the bound's
    evidence: dict[str, Any] = field(default_factory=dict)
    parameter_delta: int | None = None
    flops_delta: float | None = None  # of the named GEMMs, as a fraction

    @property
    def bound_ms(self) -> float:
        """Time at stake per step over its rows."""
        return sum(stake.bound_ms for stake in self.stakes)


def cannot_judge(facts: StepFacts) -> Outcome | None:
    """The reasons no rule can run on this step, or None."""
    if not facts.gemms:
        return Outcome("not_applicable", "The step has no GEMM and no attention kernel.")
    if facts.measured_step_ms is None:
        return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
    if facts.gpu.vendor == "amd":
        return Outcome(
            "could_not_run",
            "The rule rests on measurements of NVIDIA GPUs; how AMD's kernels fall back is not known here.",
        )
    return None


def took(rows: Sequence[GemmRow], noun: str) -> str:
    """How long ``rows`` run: "3 GEMM shapes took 1.20 ms per step (4.1% of all GPU time)"."""
    share = sum(row.frac for row in rows)
    part = f" ({percent(share)} of all GPU time)" if share > 0 else ""
    return f"{plural(len(rows), noun)} took {ms(sum(row.time_ms_per_step for row in rows))} per step{part}"


def decide(rule: Rule, *, facts: StepFacts, proposals: Sequence[Proposal], passed: str) -> Outcome:
    """Turn proposals into findings, or into a passed check that says how little was at stake.

    ``passed`` is the sentence for a step without any proposal.
    """
    step_ms = facts.measured_step_ms
    if step_ms is None:
        return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
    if not proposals:
        return Outcome("passed", passed)
    worth = [one for one in proposals if one.bound_ms >= WORTH_A_FINDING * step_ms]
    small = [one for one in proposals if one.bound_ms < WORTH_A_FINDING * step_ms]
    if not worth:
        largest = max(small, key=lambda one: one.bound_ms)
        return Outcome(
            "passed",
            f"{largest.saw} At stake is {ms(largest.bound_ms)} of the {ms(step_ms)} step"
            f" ({percent(largest.bound_ms / step_ms)}), below the {percent(WORTH_A_FINDING)} that makes"
            " a finding.",
        )
    bounds: dict[str, float] = {}
    for one in worth:
        for stake in one.stakes:
            bounds[stake.row.id] = max(bounds.get(stake.row.id, 0.0), stake.bound_ms)
    total = min(sum(bounds.values()), step_ms)
    why = f"{plural(len(worth), 'finding')}: {ms(total)} of the {ms(step_ms)} step at stake."
    if small:
        why += f" {plural(len(small), 'smaller one')} below {percent(WORTH_A_FINDING)} of the step left out."
    findings = tuple(_finding(rule, one, facts=facts, step_ms=step_ms) for one in worth)
    return Outcome("found", why, findings, bounds)


def heuristic(high: float) -> Estimate:
    """A bound: nothing between 0 and ``high`` is claimed."""
    return Estimate(low=0.0, mid=None, high=high, basis="heuristic")


def _finding(rule: Rule, one: Proposal, *, facts: StepFacts, step_ms: float) -> Finding:
    stakes = sorted(one.stakes, key=lambda stake: -stake.bound_ms)
    high = min(one.bound_ms, step_ms)  # rows on parallel streams can add to more than the step
    frac = high / step_ms
    rows = [{"gemm": stake.row.id, "time_ms": stake.row.time_ms_per_step, "bound_ms": stake.bound_ms}
            for stake in stakes]  # fmt: skip
    return Finding(
        rule=rule.id,
        slug=rule.slug,
        title=one.title,
        components=list(dict.fromkeys(stake.row.component for stake in stakes)),
        severity="high" if frac >= HIGH else "medium" if frac >= MEDIUM else "low",
        saving_ms=heuristic(high),
        saving_frac=heuristic(frac),
        basis="heuristic",
        confidence=one.confidence,
        effort=one.effort,
        saw=one.saw,
        why=one.why,
        how=_how(one, stakes, facts=facts, high=high, step_ms=step_ms),
        evidence=one.evidence | {"rows": rows},
        change=one.change,
        fix=one.fix,
        parameter_delta=one.parameter_delta,
        flops_delta=one.flops_delta,
        caveats=[*one.caveats, *_common_caveats(facts)],
        gemms=[stake.row.id for stake in stakes],
        doc=f"docs/rules/{rule.id}.md",
    )


def _how(one: Proposal, stakes: Sequence[Stake], *, facts: StepFacts, high: float, step_ms: float) -> str:
    title = facts.gpu.title
    known = bool(facts.gpu.peak_tflops) or facts.gpu.bandwidth_gbps is not None
    floor = (
        f"the least time that the datasheet of the {title} (dense peak, memory bandwidth) allows"
        if known
        else "nothing, for neither peak nor bandwidth of this GPU is known"
    )
    parts = [f"A bound and not a prediction: the time in the trace minus {floor}."]
    parts += [one.how] if one.how else []
    parts += [stake.how for stake in stakes[:_ROWS_IN_FULL]]
    rest = stakes[_ROWS_IN_FULL:]
    if rest:
        parts.append(
            f"{plural(len(rest), 'more row')} by the same formula:"
            f" {ms(sum(stake.bound_ms for stake in rest))}."
        )
    parts.append(f"Together {ms(high)} of the {ms(step_ms)} step = {percent(high / step_ms)}.")
    return " ".join(parts)


def _common_caveats(facts: StepFacts) -> list[str]:
    not_known = (
        "Not known yet: the speed of the new shape on this GPU. Nothing here measured or predicted it;"
        " the saving lies between zero and the bound."
    )
    caveats = [not_known]
    busy = facts.gpu_busy_frac
    if busy is not None and busy < _BUSY:
        caveats.append(
            f"The GPU is busy {percent(busy)} of the step. Where the step waits for the host, a shorter"
            " kernel leaves a longer gap and not a shorter step."
        )
    ranks = facts.model.tensor_parallel.value
    if ranks is not None and ranks > 1:
        caveats.append(
            f"The model is split over {ranks} tensor-parallel ranks: the rule holds for the slice that each"
            f" rank computes, so the whole dimension has to be {ranks} times such a multiple."
        )
    return caveats
