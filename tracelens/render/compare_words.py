"""The sentences of a comparison: its verdict, why to believe it, and what the traces leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracelens import numbers as f
from tracelens.comparison.spelling import arrow_ms, arrow_pct, p_said, signed_ms, signed_pct, span_ms
from tracelens.comparison.step_change import PRACTICAL
from tracelens.comparison.steps import LEVEL
from tracelens.results.comparison import Comparison, FindingOutcome, Noise, StepChange, StepPart
from tracelens.words import per_step

ONE_RUN = "one run on each side: how much runs differ among themselves is not in the test"
OWN_PEAK = "a share of peak is of each GPU's own datasheet peak"


def told(found: Comparison) -> Comparison:
    """The comparison of two reports in words."""
    if found.step is None:
        shares = _shares(found)
        return replace(
            found, verdict=not_compared(found.not_compared), detail=shares,
            reasons=[shares], caveats=[*found.caveats, OWN_PEAK],
        )  # fmt: skip
    generated = found.before.generated or found.after.generated
    reasons = [
        *foretold(found.findings, generated=generated, marked=found.steps_marked),
        *_tested(found.step, found.noise, computing_ms(found.step, found.parts)),
    ]
    return replace(
        found,
        verdict=step_verdict(found.step, name="step" if found.steps_marked else "recording"),
        detail=" ".join(reasons),
        reasons=reasons,
        caveats=[*found.caveats, *_open(found.step, found.noise)],
    )


def not_compared(why: Sequence[str]) -> str:
    """Why times are not compared."""
    return f"Times are not compared: {' and '.join(why)}."


def _shares(found: Comparison) -> str:
    a, b = found.before, found.after
    gemms = arrow_pct(a.gemm_frac, b.gemm_frac, least=(a.gemm_frac_is_bound, b.gemm_frac_is_bound))
    parts = [
        f"MFU {arrow_pct(a.mfu_frac, b.mfu_frac, least=(a.mfu_is_bound, b.mfu_is_bound))}",
        f"GPU busy {arrow_pct(a.gpu_busy_frac, b.gpu_busy_frac)}",
        f"in GEMMs and attention {gemms}",
    ]
    return "; ".join(parts) + "."


def _tested(step: StepChange, found: Noise | None, computing: float) -> list[str]:
    """Why to believe the verdict: the test, the control."""
    if step.state == "identical":
        return []
    what = "steps without the profiler" if step.unprofiled_steps else "steps"
    parts = [said for said in (p_in_words(step, what), kinds_in_words(step)) if said]
    if found is not None:
        parts.append(control(found, step, computing))
    without = (step.unprofiled_before_ms, step.unprofiled_after_ms)
    if without[0] is not None and without[1] is not None:
        times = arrow_ms(without[0], without[1])
        sides = "{} and {} steps".format(*step.unprofiled_steps) if step.unprofiled_steps else "not tested"
        parts.append(f"Without the profiler: {times}, {signed_pct(step.unprofiled_diff_frac)} ({sides}).")
    return parts


def computing_ms(step: StepChange | None, parts: Sequence[StepPart]) -> float:
    """Of the step before, what follows the pace of the GPU."""
    others = sum(one.before_ms for one in parts if one.name in ("idle", "exposed communication"))
    return 0.0 if step is None else max(0.0, step.before.median - others)


def control(found: Noise, step: StepChange | None, computing: float) -> str:
    """What the GEMMs did that the change did not touch, and whether their pace explains the step's change.

    ``computing``: ms of the step before that follow it.
    """
    said = (
        f"As a control, GEMMs that did the same work on both sides ({f.pct(found.share_frac)} of the GPU "
        f"time) changed by {signed_pct(found.mid_frac)} at the median"
    )
    if step is not None and step.diff_ms and 0.75 < found.mid_frac * computing / step.diff_ms < 1.25:
        return f"{said}, as the step did: the pace of the GPU can be all of it."
    return f"{said}."


def _open(step: StepChange, found: Noise | None) -> list[str]:
    """What the two recordings leave open."""
    if step.state == "identical":
        return []
    said = []
    if step.p is not None and step.state != "inconclusive":  # else it stands in the verdict
        said.append(left_open(step))
    if found is None:
        said.append(
            "too few GEMMs did the same work on both sides to tell a change from run-to-run variation"
        )
    said.append(ONE_RUN)
    return said


def step_verdict(step: StepChange, *, name: str = "step", what: str = "steps") -> str:
    """Say direction, size and certainty in one sentence."""
    if step.state == "identical":
        return f"Identical: the same trace twice ({name} {f.ms(step.before.median)})."
    seen = f"{name} {arrow_ms(step.before.median, step.after.median)}, {signed_pct(step.diff_frac)}"
    if step.state == "too_few_steps":
        few = f"{step.before.n} and {step.after.n} {what} are too few for a test, record 4 on each side"
        return f"Inconclusive: {seen}; {few}."
    if step.state == "no_change":
        return f"No measurable change: {seen} ({_p(step)}); more than {PRACTICAL:.0%} is excluded."
    if step.state == "inconclusive":
        return f"Inconclusive: {seen} ({p_said(step.p)}); {interval(step)}."
    return f"{step.state.capitalize()}: {seen} ({_p(step)})."


def tested_without(step: StepChange) -> str:
    """Say that the test is of the steps without the profiler, and not of those the medians are of."""
    return "" if step.unprofiled_steps is None else " without the profiler"


def _p(step: StepChange) -> str:
    return p_said(step.p) + tested_without(step)


def interval(step: StepChange) -> str:
    """Say between what the difference lies."""
    span = span_ms(step.shift_low_ms, step.shift_high_ms)
    return f"{step.shift_level:.0%} interval{tested_without(step)} {span}"


def p_in_words(step: StepChange, what: str = "steps") -> str:
    """Say what the p of the verdict is; "" where there is none.

    For p = 0.0286: "p = 0.029: if nothing had changed, steps would differ at least this much in 2.9% of
    cases by chance. Below 5% it is called a change."
    """
    if step.p is None or step.state == "identical":
        return ""
    often = "fewer than 0.1%" if step.p < 0.001 else f"{f.sig(100 * step.p, 2)}%"
    return (
        f"{p_said(step.p)}: if nothing had changed, {what} would differ at least this much in {often} of "
        f"cases by chance. Below {LEVEL:.0%} it is called a change."
    )


def kinds_in_words(step: StepChange) -> str:
    """Say what short and long steps did, each for themselves; "" where steps do not take turns."""
    if not step.kinds:
        return ""
    short, long = (arrow_ms(one.before.median, one.after.median) for one in step.kinds)
    how = (
        "the test compares short with short and long with long"
        if step.by_kind
        else "the test mixes them, as each kind has too few: record 6 steps on each side, 3 of each kind"
    )
    turns = f"short ones {short}, long ones {long}; the step is their mean"
    return f"Short and long steps take turns: {turns}; {how}."


def left_open(step: StepChange, what: str = "steps") -> str:
    """Say which differences the test does not exclude."""
    span = span_ms(step.shift_low_ms, step.shift_high_ms)
    why = f": {level_why(step, what)}" if level_why(step, what) else ""
    of = f"{what}{tested_without(step)}"
    return f"the {of} leave open a difference from {span} ({step.shift_level:.0%} interval{why})"


def level_why(step: StepChange, what: str = "steps") -> str:
    """Why the interval's level is an odd one; "" where it is the usual one."""
    if f"{step.shift_level:.0%}" == f"{1 - LEVEL:.0%}":
        return ""
    return f"so few {what} allow no interval of exactly {1 - LEVEL:.0%}"


#: What became of a prediction, to be read after "measured ...:".
AGREES = {
    "as predicted": "inside the range",
    "less than predicted": "less saved than predicted",
    "more than predicted": "more saved than predicted",
    "within the bound": "within the bound",
    "more than the bound": "more than the bound",
}
_FORETOLD = 3  # findings named above all else


def against(one: FindingOutcome, *, generated: bool = False, marked: bool = True) -> str:
    """Predicted against measured, in one clause; "" where the saving was not measured.

    ``generated``: a trace was made by a program, so nothing in it was measured. ``marked``: both traces mark
    their steps.
    """
    if one.measured_ms is None:
        return ""
    low, mid, high = one.predicted_ms.low, one.predicted_ms.mid, one.predicted_ms.high
    work = " of GPU work" if one.saving_of == "gpu_work" else ""
    if mid is not None and low is not None and high is not None:
        said = f"predicted {signed_ms(-mid)}{work} {per_step(marked)} ({span_ms(-high, -low)})"
    elif high is not None:
        said = f"at most {f.ms(high)}{work} {per_step(marked)} at stake (a bound, no prediction)"
    else:
        said = "nothing was predicted"
    agrees = f": {AGREES.get(one.agrees, one.agrees)}" if one.agrees else ""
    found = signed_ms(-one.measured_ms)
    seen = f"got {found} in its GEMMs (generated traces)"
    if not generated:
        seen = f"measured {found} in its GEMMs"
    return f"{said}, {seen}{agrees}"


def told_above(findings: list[FindingOutcome]) -> list[FindingOutcome]:
    """The findings that were acted on and whose saving was measured, told before all else."""
    return [one for one in findings if one.state == "acted_on" and one.measured_ms is not None][:_FORETOLD]


def foretold(findings: list[FindingOutcome], *, generated: bool = False, marked: bool = True) -> list[str]:
    """A sentence for each of these; the others are with the findings of before."""
    return [
        f"{f.capital(against(one, generated=generated, marked=marked))} ({one.rule} {one.title})."
        for one in told_above(findings)
    ]
