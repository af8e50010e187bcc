"""What the step's time did, and what a test over the steps says of it."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.compare.result import Noise, StepChange
from tracelens.compare.spelling import NOT_YOURS, arrow_ms, p_said, signed_pct, span_ms
from tracelens.compare.steps import LEVEL, rank_test, shift, smallest_p
from tracelens.results import StepTime

#: Of the step: a difference of this size should not be able to hide in a test.
_COARSE = 0.02


def step_change(
    before: Sequence[float],
    after: Sequence[float],
    *,
    medians: tuple[StepTime, StepTime],
    noise: Noise | None,
    same_work: bool,
    identical: bool,
    unprofiled_ms: tuple[float | None, float | None] = (None, None),
    what: str = "steps",
) -> StepChange:
    """Judge the step's time from times in ms on both sides, at least one on each.

    ``noise``: how GEMMs with the same work differ; with ``same_work`` a difference within it is the GPU's
    clock or the run, not the change. ``what`` the times are of ("steps", "runs"), for the sentences.
    """
    old, new = medians
    diff = new.median - old.median
    frac = diff / old.median if old.median else None
    least = smallest_p(len(before), len(after))
    p = rank_test(before, after) if least < LEVEL else None
    state, why = _state(p, frac, f"{len(before)} and {len(after)} {what}", noise if same_work else None)
    if identical:
        state, why = "identical", "the same recording twice"
    left = shift(before, after)
    without = unprofiled_ms
    return StepChange(
        state=state,
        before=old,
        after=new,
        diff_ms=diff,
        diff_frac=frac,
        p=p,
        smallest_p=least,
        test=f"Mann-Whitney on the times of {what}, two-sided" if what != "steps" else _TEST,
        shift_low_ms=left.low,
        shift_high_ms=left.high,
        shift_level=left.level,
        unprofiled_before_ms=without[0],
        unprofiled_after_ms=without[1],
        unprofiled_diff_frac=without[1] / without[0] - 1 if without[0] and without[1] else None,
        why=why,
    )


_TEST = "Mann-Whitney on the steps' times, two-sided"


def _state(p: float | None, frac: float | None, counted: str, noise: Noise | None) -> tuple[str, str]:
    if p is None:
        return "too_few_steps", f"{counted} are too few for a test: record 4 on each side at least"
    if p >= LEVEL or not frac:
        return "no_measurable_change", f"{counted} differ by no more than they do among themselves"
    if noise is not None and noise.low_frac <= frac <= noise.high_frac:
        return "pace", f"GEMMs that did the same work changed by as much: {NOT_YOURS}"
    return ("faster" if frac < 0 else "slower"), f"{counted} differ by more than they do among themselves"


def step_verdict(step: StepChange, *, name: str = "step", what: str = "steps") -> str:
    """Say it in one sentence."""
    times = arrow_ms(step.before.median, step.after.median)
    if step.state == "identical":
        return f"No measurable change: the same recording twice ({name} {f.ms(step.before.median)})."
    share = signed_pct(step.diff_frac)
    if step.state == "too_few_steps":
        few = f"{step.before.n} and {step.after.n} {what} are too few for a test, 4 on each side would do"
        return f"{name.capitalize()} {times}, {share}: {few}."
    said = {
        "no_measurable_change": "No measurable change",
        "pace": "No change beyond clock speed and run-to-run variation",
    }.get(step.state, step.state.capitalize())
    return f"{said}: {name} {times}, {share} ({p_said(step.p)})."


def p_in_words(step: StepChange, what: str = "steps") -> str:
    """Say what the p of the verdict is; "" where there is none.

    For p = 0.0286: "p = 0.029: if nothing had changed, steps would differ at least this much in 2.9% of
    cases by chance; less than 5% counts as a change."
    """
    if step.p is None or step.state == "identical":
        return ""
    often = "fewer than 0.1%" if step.p < 0.001 else f"{f.sig(100 * step.p, 2)}%"
    return (
        f"{p_said(step.p)}: if nothing had changed, {what} would differ at least this much in {often} of "
        f"cases by chance; less than {LEVEL:.0%} counts as a change."
    )


def left_open(step: StepChange, what: str = "steps") -> str:
    """Say which differences the test does not exclude."""
    interval = span_ms(step.shift_low_ms, step.shift_high_ms)
    why = f": {level_why(step, what)}" if level_why(step, what) else ""
    return f"the {what} leave open a difference from {interval} ({step.shift_level:.0%} interval{why})"


def too_coarse(step: StepChange) -> str:
    """Say what change so few steps would not show; "" where a change was seen or little is left open."""
    widest = max(abs(step.shift_low_ms), abs(step.shift_high_ms))
    if step.state != "no_measurable_change" or widest < _COARSE * step.before.median:
        return ""
    interval = span_ms(step.shift_low_ms, step.shift_high_ms)
    return f"Anything from {interval} can hide in so few steps: record more of them to see a smaller change."


def level_why(step: StepChange, what: str = "steps") -> str:
    """Why the interval's level is an odd one; "" where it is the usual one."""
    if f"{step.shift_level:.0%}" == f"{1 - LEVEL:.0%}":
        return ""
    return f"an exact test of so few {what} has no level nearer to {1 - LEVEL:.0%} from above"


__all__ = ["left_open", "level_why", "p_in_words", "step_change", "step_verdict"]
