"""What the step's time did, and what a test over the steps says of it."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.comparison.spelling import arrow_ms, p_said, signed_pct, span_ms
from tracelens.comparison.steps import LEVEL, Shift, rank_test, shift, smallest_p
from tracelens.results import StepTime
from tracelens.results.comparison import StepChange, StepState

#: Of the step: what is smaller has no practical size. No change is claimed only where more is excluded.
PRACTICAL = 0.02


def step_change(
    before: Sequence[float],
    after: Sequence[float],
    *,
    medians: tuple[StepTime, StepTime],
    identical: bool,
    unprofiled_ms: tuple[float | None, float | None] = (None, None),
    what: str = "steps",
) -> StepChange:
    """Judge the step's time from times in ms on both sides, at least one on each.

    ``what`` the times are of ("steps", "runs"), for the sentences.
    """
    old, new = medians
    diff = new.median - old.median
    frac = diff / old.median if old.median else None
    least = smallest_p(len(before), len(after))
    p = rank_test(before, after) if least < LEVEL else None
    left = shift(before, after)
    state: StepState = "identical" if identical else _state(p, diff, left, PRACTICAL * old.median)
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
        why=_WHY[state].format(
            counted=f"{len(before)} and {len(after)} {what}", practical=f"{PRACTICAL:.0%}"
        ),
    )


_TEST = "Mann-Whitney on the steps' times, two-sided"
_MORE = "{counted} differ by more than they do among themselves"
_WHY: dict[StepState, str] = {
    "faster": _MORE,
    "slower": _MORE,
    "no_change": "{counted} exclude a difference of more than {practical}",
    "inconclusive": "{counted} neither show a difference nor exclude one of more than {practical}",
    "too_few_steps": "{counted} are too few for a test: record 4 on each side at least",
    "identical": "the same trace twice",
}


def _state(p: float | None, diff: float, left: Shift, practical_ms: float) -> StepState:
    """Seen is a difference that the test sees and whose interval lies on the side of the medians'."""
    if p is None:
        return "too_few_steps"
    if p < LEVEL and ((diff < 0 and left.high <= 0) or (diff > 0 and left.low >= 0)):
        return "faster" if diff < 0 else "slower"
    return "no_change" if max(-left.low, left.high, abs(diff)) <= practical_ms else "inconclusive"


def step_verdict(step: StepChange, *, name: str = "step", what: str = "steps") -> str:
    """Say direction, size and certainty in one sentence."""
    if step.state == "identical":
        return f"Identical: the same trace twice ({name} {f.ms(step.before.median)})."
    seen = f"{name} {arrow_ms(step.before.median, step.after.median)}, {signed_pct(step.diff_frac)}"
    if step.state == "too_few_steps":
        few = f"{step.before.n} and {step.after.n} {what} are too few for a test, record 4 on each side"
        return f"Inconclusive: {seen}; {few}."
    if step.state == "no_change":
        return f"No measurable change: {seen} ({p_said(step.p)}); more than {PRACTICAL:.0%} is excluded."
    if step.state == "inconclusive":
        return f"Inconclusive: {seen} ({p_said(step.p)}); {interval(step)}."
    return f"{step.state.capitalize()}: {seen} ({p_said(step.p)})."


def interval(step: StepChange) -> str:
    """Say between what the difference lies."""
    return f"{step.shift_level:.0%} interval {span_ms(step.shift_low_ms, step.shift_high_ms)}"


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
    span = span_ms(step.shift_low_ms, step.shift_high_ms)
    why = f": {level_why(step, what)}" if level_why(step, what) else ""
    return f"the {what} leave open a difference from {span} ({step.shift_level:.0%} interval{why})"


def level_why(step: StepChange, what: str = "steps") -> str:
    """Why the interval's level is an odd one; "" where it is the usual one."""
    if f"{step.shift_level:.0%}" == f"{1 - LEVEL:.0%}":
        return ""
    return f"an exact test of so few {what} has no level nearer to {1 - LEVEL:.0%} from above"
