"""From candidates to findings and one check: bounds, simulation, threshold, severity, common words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens.numbers import capital, listed, ms, ms_range, percent, plural
from tracelens.results import Estimate, Finding, Span, WhatIf
from tracelens.rules.engine.candidate import Candidate, Named
from tracelens.rules.engine.effects import completed
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.pages import why
from tracelens.rules.engine.simulated import derivation, pays, simulate, why_not
from tracelens.rules.engine.trials import GAIN_FRAC
from tracelens.words import Level, severity

#: Rows whose arithmetic is written out; the rest is one sum in the text and in ``evidence``.
ROWS_IN_FULL = 3


@dataclass(frozen=True, slots=True)
class _Judged:
    """A candidate with what it saves."""

    one: Candidate
    bound_ms: float  # within the step
    predicted: Span | None = None  # what it saves, within its bound; None = only that is known
    refused: str = ""  # why it is predicted not to pay; "" = it pays, or only a bound is known
    simulated: WhatIf | None = None
    open: str = ""  # why it was not simulated

    @property
    def saving_ms(self) -> Estimate:
        one = self.predicted
        return heuristic(self.bound_ms) if one is None else Estimate(one.low, one.mid, one.high, one.basis)

    @property
    def size_ms(self) -> float:
        """What it is ranked by: the middle of the prediction, or the bound."""
        return self.bound_ms if self.predicted is None else self.predicted.mid

    @property
    def least(self) -> float:
        """The share of the step that makes a finding: what two runs differ by, where it can be slower."""
        can_slow = self.predicted is not None and self.predicted.low < 0
        return max(self.one.least, GAIN_FRAC) if can_slow else self.one.least


def conclude(rule: Named, *, facts: StepFacts, candidates: Sequence[Candidate], passed: str) -> Outcome:
    """Findings, or a passed check that says why there is none.

    ``passed`` is said where no candidate is worth a finding. A change that is predicted to make the step
    slower, or as likely slower as faster, is no finding.
    """
    step_ms = facts.mean_ms if rule.of_waits and facts.mean_ms else facts.measured_step_ms
    if step_ms is None:
        return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
    judged = [_judge(facts, one, step_ms) for one in candidates]
    worth = [one for one in judged if not one.refused and one.size_ms >= one.least * step_ms]
    left = [one for one in judged if one not in worth]
    if not worth:
        small = [one for one in left if passed and not one.refused and not one.predicted]
        many = small if len(small) > 1 and len({one.least for one in small}) == 1 else []
        said = [
            passed,
            *(
                f"{'' if passed else f'{one.one.saw} '}{_left(rule, one, facts, step_ms)}"
                for one in left
                if one not in many
            ),
            _small(many, step_ms) if many else "",
        ]
        return Outcome("passed", " ".join(text for text in said if text))
    bounds: dict[str, float] = {}
    for one in (each.one for each in worth):
        can_go = {bound.row.id: bound.ms for bound in one.bounds} | dict(one.kernels)
        if one.elsewhere_ms:
            can_go[f"{rule.id} outside of rows"] = one.elsewhere_ms
        for row, bound in can_go.items():
            bounds[row] = max(bounds.get(row, 0.0), bound)
    findings = tuple(_finding(rule, one, facts=facts, step_ms=step_ms) for one in worth)
    changes = tuple(one.one.simulate if one.simulated is not None else None for one in worth)
    return Outcome("found", _found(facts, worth, left, bounds, step_ms), findings, bounds, changes)


def _judge(facts: StepFacts, one: Candidate, step_ms: float) -> _Judged:
    bound = min(one.bound_ms, step_ms)
    if one.saving is not None and (saving := one.saving.known) is not None:
        saving = saving.clamp(high=bound)
        if facts.saving_of == "gpu_work":
            saving = replace(saving, low=min(saving.low, 0.0))
        return _Judged(one, bound, saving, "" if pays(saving) else why_not(saving, one.name, facts.whole))
    found = simulate(facts, one.simulate)
    if isinstance(found, str):
        return _Judged(one, bound, open=found)
    saving = found.saving_ms.known
    refused = "" if saving is None or pays(saving) else why_not(saving, found, facts.whole)
    return _Judged(one, bound, saving and saving.clamp(high=bound), refused, simulated=found)


def heuristic(high: float) -> Estimate:
    """A bound: nothing between 0 and ``high`` is claimed."""
    return Estimate(low=0.0, mid=None, high=high, basis="heuristic")


# --- the check ---------------------------------------------------------------------------------------


def _found(
    facts: StepFacts,
    worth: Sequence[_Judged],
    left: Sequence[_Judged],
    bounds: Mapping[str, float],
    step_ms: float,
) -> str:
    total = min(sum(bounds.values()), step_ms)
    said = f"{plural(len(worth), 'finding')}: {ms(total)} of the {ms(step_ms)} {facts.whole} at stake."
    saving = [ms(one.size_ms) for one in worth if one.predicted]
    if saving:
        said += f" Predicted to save {listed(saving)}."
    small = [one for one in left if not one.refused]
    if small:
        least = percent(max(one.least for one in small))
        said += f" {plural(len(small), 'smaller one')} below {least} of the {facts.whole} left out."
    return said + "".join(f" {_not_advised(one)}" for one in left if one.refused)


def _not_advised(judged: _Judged) -> str:
    return f"Not advised: {judged.refused}."


def _small(many: Sequence[_Judged], step_ms: float) -> str:
    """Several candidates that are too small for a finding, in one sentence."""
    named = [f"{one.one.name} {ms(one.size_ms)} ({percent(one.size_ms / step_ms)})" for one in many]
    return f"Below the {percent(many[0].least)} that makes a finding, each at most: {listed(named)}."


def _left(rule: Named, judged: _Judged, facts: StepFacts, step_ms: float) -> str:
    """Why a candidate is no finding, as a sentence."""
    if judged.refused:
        return _not_advised(judged)
    if rule.of_waits:  # what was seen is what would be saved
        return f"It is below the {percent(judged.least)} that makes a finding."
    what = capital(judged.one.name) or "The change"
    saves = "is predicted to save" if judged.predicted else "would save at most"
    share, least = percent(judged.size_ms / step_ms), percent(judged.least)
    return (
        f"{what} {saves} {ms(judged.size_ms)} of the {ms(step_ms)} {facts.whole}"
        f" ({share}), {'just ' if share == least else ''}below the {least} that makes a finding."
    )


# --- a finding ---------------------------------------------------------------------------------------


def _finding(rule: Named, judged: _Judged, *, facts: StepFacts, step_ms: float) -> Finding:
    one, saving = judged.one, judged.saving_ms
    share = saving.over(step_ms)
    rows = [*one.gemms] or [bound.row for bound in sorted(one.bounds, key=lambda bound: -bound.ms)]
    finding = Finding(
        rule=rule.id,
        slug=rule.slug,
        title=one.title,
        components=list(dict.fromkeys(one.components or [row.component for row in rows])),
        severity="low"
        if one.effort == "retrain" and facts.only_runs
        else severity(judged.size_ms / step_ms, "step" if rule.of_waits else facts.saving_of),
        saving_ms=saving,
        saving_frac=share,
        basis=saving.basis,
        confidence=_sure(one.confidence, judged.predicted),
        effort=one.effort,
        saw=one.saw,
        why=why(rule.id, one.why),
        how="\n".join(_how(judged, facts, step_ms)),
        evidence=_evidence(judged, step_ms),
        change={name: list(values) for name, values in one.change.items()},
        fix=list(one.fix),
        parameter_delta=_parameter_delta(judged),
        flops_delta=one.flops_delta,
        caveats=[*one.caveats, *_common_caveats(facts, judged)],
        gemms=[row.id for row in rows],
        doc=f"docs/rules/{rule.id}.md",
        saving_of="wait" if rule.of_waits else facts.saving_of,
        counts=one.counts,
    )
    return completed(finding, facts, simulate=one.simulate, override=one.effects)


def _evidence(judged: _Judged, step_ms: float) -> dict[str, object]:
    one = judged.one
    rows: list[tuple[float, dict[str, object]]] = [
        (bound.ms, {"gemm": bound.row.id, "time_ms": bound.row.time_ms_per_step, "bound_ms": bound.ms})
        for bound in one.bounds
    ]
    rows += [(bound, {"row": name, "bound_ms": bound}) for name, bound in one.kernels.items()]
    rows.sort(key=lambda pair: -pair[0])
    found = {**one.evidence, "rows": [row for _, row in rows], "bound_ms": min(one.bound_ms, step_ms)}
    return found | ({"simulated": dict(one.simulate or {})} if judged.simulated is not None else {})


def _sure(cause: Level, saving: Span | None) -> Level:
    """How far to trust a saving: no more than its cause, and not highly where its range begins at nothing."""
    if saving is not None and saving.low < 0:
        return "low"
    return "medium" if cause == "high" and (saving is None or not saving.low) else cause


def _parameter_delta(judged: _Judged) -> int | None:
    """The rule's own count, or the simulated model's."""
    if judged.one.parameter_delta is not None or judged.simulated is None:
        return judged.one.parameter_delta
    now, then = judged.simulated.parameters
    return then - now if now is not None and then is not None else None


def _how(judged: _Judged, facts: StepFacts, step_ms: float) -> list[str]:
    """The arithmetic, a line for each part of the sum."""
    one, saving = judged.one, judged.saving_ms
    bound = min(one.bound_ms, step_ms)
    if judged.simulated is not None:
        return derivation(judged.simulated, bound, rows_in_full=ROWS_IN_FULL)
    if one.saving is None or judged.predicted is None:
        return _bound_lines(one, facts, bound, step_ms)
    lines = [one.how if one.how[:1].isupper() else f"By row: {one.how}"]
    if one.saving.high is not None and one.saving.high > bound * (1 + 1e-9):
        lines.append(f"No more than {ms(bound)} counts: what the rows take above their floor.")
    waits = facts.saving_of == "gpu_work" and saving.low == 0
    low = ": from nothing, as the step waits for the CPU" if waits else ""
    return [*lines, f"Together {ms(saving.mid)}, range {ms_range(saving.low, saving.high)}{low}."]


def _bound_lines(one: Candidate, facts: StepFacts, bound: float, step_ms: float) -> list[str]:
    named = facts.gpu.name != "unknown"
    whose = f"the datasheet of the {facts.gpu.title}" if named else "the GPU's datasheet"
    known = bool(facts.gpu.peak_tflops) or facts.gpu.bandwidth_gbps is not None
    floor = (
        f"the least time that {whose} (dense peak, memory bandwidth) allows"
        if known
        else "what kernels take at least, for neither peak nor bandwidth of this GPU is known"
    )
    bounds = sorted(one.bounds, key=lambda bound: -bound.ms)
    rest = bounds[ROWS_IN_FULL:]
    capped = f"{ms(one.bound_ms)}, of which no more than the {facts.whole} counts: "
    most = capped if one.bound_ms > bound else ""
    more = f"{plural(len(rest), 'more row')} by the same formula: {ms(sum(bound.ms for bound in rest))}."
    lines = [
        f"A bound and not a prediction: {one.bound_of or f'the time in the trace minus {floor}'}.",
        one.how,
        *(bound.how for bound in bounds[:ROWS_IN_FULL]),
        f"Outside of these rows: {ms(one.elsewhere_ms)}." if one.elsewhere_ms else "",
        more if rest and rest[0].how else "",
        f"Together {most}{ms(bound)} of the {ms(step_ms)} {facts.whole} = {percent(bound / step_ms)}.",
    ]
    return [line for line in lines if line]


def _common_caveats(facts: StepFacts, judged: _Judged) -> list[str]:
    """What is known of this change besides what its saving, basis and measurement say by themselves."""
    caveats = []
    if not judged.predicted and judged.one.simulate is not None:
        caveats.append(f"It is not predicted: {judged.open}.")
    if judged.simulated is not None:
        caveats += [f"{note[:1].upper()}{note[1:]}." for note in judged.simulated.notes]
    ranks = facts.model.tensor_parallel.value or 1
    if ranks > 1 and judged.one.shared == "yes":
        caveats.append(
            f"The model is split over {ranks} tensor-parallel ranks: the rule holds for the slice that each"
            f" rank computes, so the whole dimension has to be {ranks} times such a multiple."
        )
    if ranks > 1 and judged.one.shared == "perhaps":
        caveats.append(
            f"The model is split over {ranks} tensor-parallel ranks: where they split this dimension, the"
            f" whole of it has to be {ranks} times such a multiple."
        )
    return caveats
