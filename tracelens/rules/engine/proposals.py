"""From what a rule proposes to findings and one check: bounds, severity, threshold and common sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracelens.numbers import listed, ms, percent, plural
from tracelens.results import Estimate, Finding, GemmRow, WhatIf
from tracelens.results.advice import Effort
from tracelens.rules.engine.effects import completed
from tracelens.rules.engine.facts import Outcome, Rule, StepFacts, absent
from tracelens.rules.engine.simulated import as_frac, derivation, pays, simulate, why_not, within
from tracelens.rules.engine.stakes import Stake
from tracelens.step.waiting import gpu_work_note
from tracelens.words import Level, severity

#: A saving or a bound below this share of the step is noise beside step-to-step variation: the check then
#: passes and says the figure.
WORTH_A_FINDING = 0.001
#: Rows whose arithmetic is written out; the rest is one sum in the text and in ``evidence``.
_ROWS_IN_FULL = 3
_PREDICTED = {
    "model": "A prediction without measurements of this GPU; the changed step was not run.",
    "calibrated": "A prediction with measurements of this GPU; the changed step was not run.",
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change, argued by a rule; ``stakes`` are the GEMM rows it touches."""

    title: str
    stakes: Sequence[Stake]
    confidence: Level
    effort: Effort
    saw: str
    why: str
    change: dict[str, list[int | float | str]]
    fix: list[str]
    caveats: list[str]
    how: str = ""  # what the rule's own arithmetic adds to the bound's
    evidence: dict[str, Any] = field(default_factory=dict)
    parameter_delta: int | None = None
    flops_delta: float | None = None  # of the named GEMMs, as a fraction
    simulate: Mapping[str, int] | None = None  # the change as ``what_if`` takes it
    effects: Mapping[str, Any] | None = None  # fields of ``Effects`` that the rule knows better
    bound_of: str = ""  # what the bound is, where it is not the time above the datasheet's floor
    more_bound_ms: float = 0.0  # at stake outside of its rows: messages, kernels that move bytes

    @property
    def bound_ms(self) -> float:
        """Time at stake per step over its rows and outside of them."""
        return sum(stake.bound_ms for stake in self.stakes) + self.more_bound_ms


def cannot_judge(facts: StepFacts) -> Outcome | None:
    """The reasons no rule can run on this step, or None."""
    if not facts.gemms:
        return absent("No GEMM and no attention kernel was recognised in the step.")
    if facts.measured_step_ms is None:
        return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
    if facts.gpu.vendor == "amd":
        return Outcome(
            "could_not_run",
            "The rule rests on measurements of NVIDIA GPUs; how AMD's kernels fall back is not known here.",
        )
    return None


def took(rows: Sequence[GemmRow], noun: str, facts: StepFacts) -> str:
    """How long ``rows`` run: "3 GEMM shapes took 1.20 ms per step (4.1% of all GPU time)"."""
    share = sum(row.frac for row in rows)
    part = f" ({percent(share)} of all GPU time)" if share > 0 else ""
    time = ms(sum(row.time_ms_per_step for row in rows))
    return f"{plural(len(rows), noun)} took {time} {facts.per_step}{part}"


@dataclass(frozen=True, slots=True)
class _Judged:
    """A proposal with its simulation; where there is none, ``open`` says why."""

    proposal: Proposal
    simulated: WhatIf | None
    open: str

    @property
    def refused(self) -> bool:
        """Is it predicted not to pay?"""
        return self.simulated is not None and not pays(self.simulated.saving_ms)

    @property
    def saving_ms(self) -> Estimate:
        """The prediction within the bound, or the bound."""
        bound = self.proposal.bound_ms
        return heuristic(bound) if self.simulated is None else within(self.simulated.saving_ms, bound)

    @property
    def size_ms(self) -> float:
        """What it is ranked by: the middle of the prediction, or the bound."""
        saving = self.saving_ms
        return (saving.mid if saving.mid is not None else saving.high) or 0.0


def decide(rule: Rule, *, facts: StepFacts, proposals: Sequence[Proposal], passed: str) -> Outcome:
    """Turn proposals into findings, or into a passed check that says why there is none.

    ``passed`` is the sentence for a step without any proposal. A change that is predicted to make the step
    slower, or as likely slower as faster, is no finding.
    """
    step_ms = facts.measured_step_ms
    if step_ms is None:
        return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
    if not proposals:
        return Outcome("passed", passed)
    judged = [_judge(facts, one) for one in proposals]
    worth = [one for one in judged if not one.refused and one.size_ms >= WORTH_A_FINDING * step_ms]
    left = [one for one in judged if one not in worth]
    if not worth:
        return Outcome("passed", " ".join(_passed(facts, one, step_ms) for one in left))
    bounds: dict[str, float] = {}
    for one in worth:
        for stake in one.proposal.stakes:
            bounds[stake.row.id] = max(bounds.get(stake.row.id, 0.0), stake.bound_ms)
        if one.proposal.more_bound_ms:
            bounds[f"{rule.id} outside of rows"] = one.proposal.more_bound_ms
    findings = tuple(_finding(rule, one, facts=facts, step_ms=step_ms) for one in worth)
    changes = tuple(one.proposal.simulate if one.simulated is not None else None for one in worth)
    return Outcome("found", _found(facts, worth, left, bounds, step_ms), findings, bounds, changes)


def _judge(facts: StepFacts, proposal: Proposal) -> _Judged:
    found = simulate(facts, proposal.simulate)
    return _Judged(proposal, None, found) if isinstance(found, str) else _Judged(proposal, found, "")


def _found(
    facts: StepFacts,
    worth: Sequence[_Judged],
    left: Sequence[_Judged],
    bounds: Mapping[str, float],
    step_ms: float,
) -> str:
    total = min(sum(bounds.values()), step_ms)
    why = f"{plural(len(worth), 'finding')}: {ms(total)} of the {ms(step_ms)} {facts.whole} at stake."
    saving = [ms(one.saving_ms.mid) for one in worth if one.saving_ms.mid is not None]
    if saving:
        why += f" Predicted to save {listed(saving)}."
    refused = [one for one in left if one.refused and one.simulated is not None]
    small = len(left) - len(refused)
    if small:
        why += (
            f" {plural(small, 'smaller one')} below {percent(WORTH_A_FINDING)} of the {facts.whole} left out."
        )
    for one in refused:
        if one.simulated is not None:
            why += f" Not advised: {why_not(one.simulated)}."
    return why


def _passed(facts: StepFacts, one: _Judged, step_ms: float) -> str:
    """Why a proposal is no finding."""
    if one.simulated is not None and one.refused:
        return f"{one.proposal.saw} Not advised: {why_not(one.simulated)}."
    what = "The predicted saving is" if one.simulated is not None else "At stake is"
    return (
        f"{one.proposal.saw} {what} {ms(one.size_ms)} of the {ms(step_ms)} {facts.whole}"
        f" ({percent(one.size_ms / step_ms)}), below the {percent(WORTH_A_FINDING)} that makes a finding."
    )


def heuristic(high: float) -> Estimate:
    """A bound: nothing between 0 and ``high`` is claimed."""
    return Estimate(low=0.0, mid=None, high=high, basis="heuristic")


def _finding(rule: Rule, judged: _Judged, *, facts: StepFacts, step_ms: float) -> Finding:
    one, simulated = judged.proposal, judged.simulated
    stakes = sorted(one.stakes, key=lambda stake: -stake.bound_ms)
    # Rows on parallel streams can add to more than the step.
    saving = within(judged.saving_ms, step_ms)
    share = as_frac(saving, step_ms)
    frac = (share.mid if share.mid is not None else share.high) or 0.0
    rows = [{"gemm": stake.row.id, "time_ms": stake.row.time_ms_per_step, "bound_ms": stake.bound_ms}
            for stake in stakes]  # fmt: skip
    evidence = one.evidence | {"rows": rows}
    if simulated is not None:
        evidence |= {"bound_ms": min(one.bound_ms, step_ms), "simulated": dict(one.simulate or {})}
        how = "\n".join(derivation(simulated, min(one.bound_ms, step_ms), rows_in_full=_ROWS_IN_FULL))
    else:
        how = _how(one, stakes, facts=facts, high=saving.high or 0.0, step_ms=step_ms)
    finding = Finding(
        rule=rule.id,
        slug=rule.slug,
        title=one.title,
        components=list(dict.fromkeys(stake.row.component for stake in stakes)),
        severity=severity(frac, facts.saving_of),
        saving_ms=saving,
        saving_frac=share,
        basis=saving.basis,
        confidence=sure(one.confidence, saving),
        effort=one.effort,
        saw=one.saw,
        why=one.why,
        how=how,
        evidence=evidence,
        change=one.change,
        fix=one.fix,
        parameter_delta=_parameter_delta(one, simulated),
        flops_delta=one.flops_delta,
        caveats=[*one.caveats, *_common_caveats(facts, judged)],
        gemms=[stake.row.id for stake in stakes],
        doc=f"docs/rules/{rule.id}.md",
        saving_of=facts.saving_of,
    )
    return completed(finding, facts, simulate=one.simulate, override=one.effects)


def sure(cause: Level, saving: Estimate) -> Level:
    """How far to trust a saving: no more than its cause, and not highly where its range begins at nothing."""
    if (saving.low or 0.0) < 0:
        return "low"
    return "medium" if cause == "high" and (saving.mid is None or not saving.low) else cause


def _parameter_delta(one: Proposal, simulated: WhatIf | None) -> int | None:
    """The rule's own count, or the simulated model's."""
    if one.parameter_delta is not None or simulated is None:
        return one.parameter_delta
    now, then = simulated.parameters
    return then - now if now is not None and then is not None else None


def _how(one: Proposal, stakes: Sequence[Stake], *, facts: StepFacts, high: float, step_ms: float) -> str:
    title = facts.gpu.title
    known = bool(facts.gpu.peak_tflops) or facts.gpu.bandwidth_gbps is not None
    floor = (
        f"the least time that the datasheet of the {title} (dense peak, memory bandwidth) allows"
        if known
        else "nothing, for neither peak nor bandwidth of this GPU is known"
    )
    bound_of = one.bound_of or f"the time in the trace minus {floor}"
    parts = [f"A bound and not a prediction: {bound_of}."]
    parts += [one.how] if one.how else []
    parts += [stake.how for stake in stakes[:_ROWS_IN_FULL]]
    if one.more_bound_ms:
        parts.append(f"Outside of these rows: {ms(one.more_bound_ms)}.")
    rest = stakes[_ROWS_IN_FULL:]
    if rest:
        parts.append(
            f"{plural(len(rest), 'more row')} by the same formula:"
            f" {ms(sum(stake.bound_ms for stake in rest))}."
        )
    parts.append(f"Together {ms(high)} of the {ms(step_ms)} {facts.whole} = {percent(high / step_ms)}.")
    return "\n".join(parts)


def _common_caveats(facts: StepFacts, judged: _Judged) -> list[str]:
    caveats = []
    if judged.simulated is None and judged.proposal.bound_of:
        caveats.append("The saving lies between zero and the bound; the changed step was not simulated.")
    elif judged.simulated is None:
        caveats.append(
            "Not known yet: the speed of the new shape on this GPU, so the saving lies between zero and the"
            f" bound. It is not predicted: {judged.open}."
        )
    else:
        caveats.append(_PREDICTED[judged.saving_ms.basis])
        if (judged.saving_ms.low or 0.0) < 0:
            caveats.append("The low end of the range is below zero: measure before you decide.")
        said = {gpu_work_note(facts.gpu_busy_frac or 0.0)}  # below; of parameters the rule says more
        notes = [
            note for note in judged.simulated.notes if note not in said and not note.startswith("parameters:")
        ]
        caveats += [f"{note[:1].upper()}{note[1:]}." for note in notes]
    caveats += facts.waiting_caveats
    ranks = facts.model.tensor_parallel.value
    about_ranks = {"tensor_parallel", "vocab_parallel"} & judged.proposal.change.keys()
    if ranks is not None and ranks > 1 and not about_ranks:
        caveats.append(
            f"The model is split over {ranks} tensor-parallel ranks: the rule holds for the slice that each"
            f" rank computes, so the whole dimension has to be {ranks} times such a multiple."
        )
    return caveats
