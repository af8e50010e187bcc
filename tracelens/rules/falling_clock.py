"""TL121: steps in which every shape runs slower than in the fastest one."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import integers, ms, ms_range, pct, plural, sig
from tracelens.results import StepPace
from tracelens.rules.engine.candidate import Candidate, not_applicable, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import GAIN_FRAC


class FallingClock(Rule):
    """GPU pace that holds over the steps."""

    id = "TL121"
    slug = "falling-clock"
    title = "A GPU that computes at one pace in all steps"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare the pace of the steps."""
        clock = facts.clock
        if clock is None:
            raise not_applicable("No two steps have GEMMs of the same shapes to compare the GPU's pace by.")
        slow = [step for step in clock.steps if step.slow]
        fastest = min(clock.steps, key=lambda step: step.pace)
        most = max(slow or clock.steps, key=lambda step: step.pace)
        if not slow:
            raise passed(
                f"GEMMs of one shape take {pct(most.pace / fastest.pace - 1)} longer in the slowest of"
                f" {plural(len(clock.steps), 'step')} than in the fastest: no falling clock."
                f"{_sampled(clock.steps)}"
            )
        lost = clock.lost_ms_per_step
        most_lost = clock.most_ms_per_step if clock.most_ms_per_step is not None else lost
        found = Candidate(
            name="one clock in all steps",
            title=(
                f"Hold the GPU's clock: the same GEMMs take {pct(most.pace - 1)} longer in step {most.step}"
                f" than in step {fastest.step}"
            ),
            saw=(
                f"GEMMs of all shapes alike take longer in {_named(slow)} (of {len(clock.steps)})"
                f" than in step {fastest.step}, by {pct(most.pace - 1)} at most: {ms(lost)} {facts.per_step}"
                f" ({of_step(lost, facts)}; {ms_range(clock.least_ms_per_step, most_lost)}: healthy steps"
                f" differ by 2.4%, too).{_sampled([fastest, most])}"
            ),
            fix=["# while it runs: nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE"],
            caveats=[*_doubts(fastest, most), "Kernels besides GEMMs and attention are not counted."],
            confidence="medium",
            effort="config",
            gemms=[row for row in facts.gemms if row.clock_ms_per_step > 0],
            elsewhere_ms=most_lost,
            bound_of=("what GEMMs and attention take at most beyond the fastest step, where all shapes do"),
            evidence={
                "paces": [{"step": step.step, "pace": step.pace, "slow": step.slow} for step in clock.steps]
            },
            parameter_delta=0,
            least=GAIN_FRAC,
        )
        return [found], ""


def _named(steps: Sequence[StepPace]) -> str:
    numbers = integers([step.step for step in steps], dash="–")
    return f"{'step' if len(steps) == 1 else 'steps'} {numbers}"


def _sampled(steps: Sequence[StepPace]) -> str:
    """What the trace's samples say of clock and power in these steps, as a sentence; "" without any."""
    fields = (
        ("SM clock", "MHz", [one.sm_mhz for one in steps]),
        ("power", "W", [one.power_w for one in steps]),
    )
    parts = []
    for name, unit, values in fields:
        known = [value for value in values if value is not None]
        if known:
            low, high = sig(min(known), 4), sig(max(known), 4)
            parts.append(f"{name} {low} {unit}" if low == high else f"{name} {low} to {high} {unit}")
    return f" Samples in the trace: {', '.join(parts)}." if parts else ""


def _doubts(fast: StepPace, slow: StepPace) -> list[str]:
    """Whether it is the clock: its samples say so, or are missing."""
    if fast.sm_mhz is None or slow.sm_mhz is None:
        return ["This trace has no clock: another process on the GPU would slow all shapes alike, too."]
    if fast.sm_mhz / slow.sm_mhz - 1 < (slow.pace - 1) / 2:
        return ["The sampled clock is not as much lower: look for another process on the GPU first."]
    return []
