"""Two reports side by side: did the step's time change, what changed, and where the time went."""

from __future__ import annotations

from tracelens import __version__
from tracelens import numbers as f
from tracelens.compare.changes import caveats, find_changes, main_dtype, not_comparable
from tracelens.compare.components import compare_components
from tracelens.compare.gemms import judged, match_gemms, noise, without_times
from tracelens.compare.outcomes import outcomes
from tracelens.compare.result import (
    SCHEMA_VERSION,
    Comparison,
    GemmChange,
    Noise,
    Side,
    StepChange,
    StepPart,
)
from tracelens.compare.spelling import arrow_ms, p_value, signed_ms, signed_pct
from tracelens.compare.steps import LEVEL, rank_test, shift, smallest_p
from tracelens.errors import UsageError
from tracelens.results import Report

_TEST = "Mann-Whitney on the steps' times, two-sided"


def compare_reports(before: Report, after: Report, *, across: bool = False) -> Comparison:
    """Compare two reports; ``across`` allows other GPUs, dtypes or world sizes and leaves times out then.

    Raises:
        UsageError: their times cannot be compared and ``across`` was not asked for.
    """
    why = not_comparable(before, after)
    if why and not across:
        raise UsageError(
            f"times cannot be compared: {' and '.join(why)}; --across compares shares of peak instead"
        )
    gemms = match_gemms(before, after)
    changes = find_changes(before, after)
    said = caveats(before, after, times=not why)
    if why:
        return Comparison(
            SCHEMA_VERSION, __version__, _side(before), _side(after), why,
            verdict="Times are not compared: " + " and ".join(why) + ".",
            detail=_shares(before, after), step=None, parts=[], noise=None, changes=changes, components=[],
            gemms=without_times(gemms), findings=outcomes(before, after, gemms, times=False),
            caveats=[*said, "a share of peak is of each GPU's own datasheet peak"],
        )  # fmt: skip
    gpu_ms = before.summary.gpu_ms_per_step
    found = noise(gemms, gpu_ms)
    gemms = judged(gemms, found, gpu_ms)
    components = compare_components(before, after, gemms, found)
    step = _step(before, after, found, same_work=not changes and _same_work(gemms))
    return Comparison(
        SCHEMA_VERSION, __version__, _side(before), _side(after), [],
        verdict=_verdict(step),
        detail=_detail(step, found, gemms),
        step=step,
        parts=_parts(before, after),
        noise=found,
        changes=changes,
        components=components,
        gemms=gemms,
        findings=outcomes(before, after, gemms),
        caveats=[*said, *_open(step, found)],
    )  # fmt: skip


def _side(report: Report) -> Side:
    trace, summary = report.trace, report.summary
    return Side(
        path=trace.path,
        sha256=trace.sha256,
        gpu=report.gpu.name,
        gpu_title=report.gpu.title,
        sms=report.gpu.sms,
        dtype=main_dtype(report.gemms),
        rank=trace.rank,
        world_size=trace.world_size,
        torch_version=trace.torch_version,
        cuda_version=trace.cuda_version,
        steps=[step.index for step in report.steps],
        step_source=summary.step_source,
        generated=trace.generated,
        partial=trace.partial,
        gpu_busy_frac=summary.gpu_busy_frac,
        gemm_frac=summary.gemm_frac,
        mfu_frac=summary.mfu_frac,
    )


def _step(before: Report, after: Report, found: Noise | None, *, same_work: bool) -> StepChange:
    a, b = ([step.duration_ms for step in one.steps] for one in (before, after))
    old, new = before.summary.step_ms, after.summary.step_ms
    diff = new.median - old.median
    frac = diff / old.median if old.median else None
    least = smallest_p(len(a), len(b))
    p = rank_test(a, b) if least < LEVEL else None
    same = before.trace.sha256 == after.trace.sha256 and before.steps == after.steps
    state, why = _state(p, frac, len(a), len(b), found, same_work=same_work)
    if same:
        state, why = "identical", "the same recording twice"
    left = shift(a, b)
    without = [one.summary.unprofiled.median_ms for one in (before, after)]
    return StepChange(
        state=state,
        before=old,
        after=new,
        diff_ms=diff,
        diff_frac=frac,
        p=p,
        smallest_p=least,
        test=_TEST,
        shift_low_ms=left.low,
        shift_high_ms=left.high,
        shift_level=left.level,
        unprofiled_before_ms=without[0],
        unprofiled_after_ms=without[1],
        unprofiled_diff_frac=without[1] / without[0] - 1 if without[0] and without[1] else None,
        why=why,
    )


def _state(
    p: float | None, frac: float | None, a: int, b: int, found: Noise | None, *, same_work: bool
) -> tuple[str, str]:
    if p is None:
        return "too_few_steps", f"{a} and {b} steps are too few for a test: record 4 on each side at least"
    if p >= LEVEL or not frac:
        return "no_measurable_change", f"{a} and {b} steps differ by no more than steps among themselves do"
    if same_work and found is not None and found.low_frac <= frac <= found.high_frac:
        return "pace", "GEMMs that did the same work changed by as much: the GPU's pace, not the work"
    return ("faster" if frac < 0 else "slower"), f"{a} and {b} steps, tested by rank"


def _same_work(gemms: list[GemmChange]) -> bool:
    return not any(one.state != "same_shape" or one.changed for one in gemms if one.beyond_noise is not False)


def _parts(before: Report, after: Report) -> list[StepPart]:
    a, b = before.summary, after.summary
    return [
        StepPart("idle", a.idle_ms, b.idle_ms),
        StepPart("exposed communication", a.exposed_communication_ms, b.exposed_communication_ms),
        StepPart("sum of GPU time", a.gpu_ms_per_step, b.gpu_ms_per_step),
    ]


def _verdict(step: StepChange) -> str:
    times = arrow_ms(step.before.median, step.after.median)
    if step.state == "identical":
        return f"No measurable change: the same recording twice (step {f.ms(step.before.median)})."
    share = signed_pct(step.diff_frac)
    if step.state == "too_few_steps":
        few = f"{step.before.n} and {step.after.n} steps are too few for a test"
        return f"Step {times}, {share}: {few}."
    if step.p is not None and step.state == "no_measurable_change":
        return f"No measurable change: step {times}, {share} (p = {p_value(step.p)})."
    if step.state == "pace":
        return f"No change beyond the GPU's own pace: step {times}, {share} (p = {p_value(step.p)})."
    return f"Step {times}, {share} (p = {p_value(step.p)})."


def _detail(step: StepChange, found: Noise | None, gemms: list[GemmChange]) -> str:
    if step.state == "identical":
        return ""
    parts = []
    if found is not None:
        parts.append(
            f"GEMMs that did the same work ({f.pct(found.share_frac)} of the GPU time) changed by "
            f"{signed_pct(found.mid_frac)}: the GPU's own pace."
        )
    changed = [one for one in gemms if one.state != "same_shape" and one.beyond_noise]
    if changed:
        total = sum(one.diff_ms or 0.0 for one in changed)
        parts.append(f"GEMMs of another shape take {signed_ms(total)} per step.")
    without = (step.unprofiled_before_ms, step.unprofiled_after_ms)
    if without[0] is not None and without[1] is not None:
        times = arrow_ms(without[0], without[1])
        parts.append(f"Without the profiler: {times}, {signed_pct(step.unprofiled_diff_frac)} (not tested).")
    return " ".join(parts)


def _open(step: StepChange, found: Noise | None) -> list[str]:
    """What the two recordings leave open."""
    if step.state == "identical":
        return []
    said = []
    if step.p is not None:
        said.append(
            f"the steps leave open a difference from {signed_ms(step.shift_low_ms)} to "
            f"{signed_ms(step.shift_high_ms)} ({step.shift_level:.0%} interval)"
        )
    if found is None:
        said.append("too few GEMMs did the same work to say what the GPU's own pace did")
    said.append("one run on each side: how much runs differ among themselves is not in the test")
    return said


def _shares(before: Report, after: Report) -> str:
    def change(title: str, old: float | None, new: float | None) -> str:
        return f"{title} {f.pct(old)} → {f.pct(new)}"

    a, b = before.summary, after.summary
    parts = [
        change("MFU", a.mfu_frac, b.mfu_frac),
        change("GPU busy", a.gpu_busy_frac, b.gpu_busy_frac),
        change("in GEMMs and attention", a.gemm_frac, b.gemm_frac),
    ]
    return "; ".join(parts) + "."
