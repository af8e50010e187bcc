"""Two reports side by side: did the step's time change, what changed, and where the time went."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.comparison.causes import find_causes
from tracelens.comparison.changes import caveats, find_changes, not_comparable
from tracelens.comparison.components import compare_components
from tracelens.comparison.gemms import judged, match_gemms, noise, without_times
from tracelens.comparison.moves import find_moves
from tracelens.comparison.outcomes import foretold, outcomes
from tracelens.comparison.spelling import arrow_ms, arrow_pct, signed_pct
from tracelens.comparison.step_change import left_open, p_in_words, step_change, step_verdict
from tracelens.errors import InputError, UsageError
from tracelens.results import Report, main_dtype
from tracelens.results.comparison import SCHEMA_VERSION, Comparison, Noise, Side, StepChange, StepPart
from tracelens.version import __version__

ONE_RUN = "one run on each side: how much runs differ among themselves is not in the test"


def compare_reports(before: Report, after: Report, *, across: bool = False) -> Comparison:
    """Compare two reports; ``across`` allows other GPUs, dtypes or world sizes and leaves times out then.

    Raises:
        InputError: one has no step, which no analysis writes.
        UsageError: their times cannot be compared and ``across`` was not asked for.
    """
    for one in (before, after):
        if not one.steps:
            raise InputError(f"the report of {one.trace.path[:80]!r} has no step: analyze the trace again")
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
            SCHEMA_VERSION, __version__, _side(before, times=False), _side(after, times=False), why,
            verdict="Times are not compared: " + " and ".join(why) + ".",
            detail=_shares(before, after), step=None, parts=[], noise=None, changes=changes, components=[],
            gemms=without_times(gemms), findings=outcomes(before, after, gemms, times=False),
            caveats=[*said, "a share of peak is of each GPU's own datasheet peak"],
            reasons=[_shares(before, after)],
        )  # fmt: skip
    gpu_ms = before.summary.gpu_ms_per_step
    found = noise(gemms, gpu_ms)
    gemms = judged(gemms, found, gpu_ms)
    components = compare_components(before, after, gemms, found)
    step = _step(before, after)
    findings = outcomes(before, after, gemms)
    generated = before.trace.generated or after.trace.generated
    marked = before.summary.steps_marked and after.summary.steps_marked
    reasons = [*foretold(findings, generated=generated, marked=marked), *_reasons(step, found)]
    return Comparison(
        SCHEMA_VERSION, __version__, _side(before), _side(after), [],
        verdict=step_verdict(step, name="step" if marked else "recording"),
        detail=" ".join(reasons),
        step=step,
        parts=_parts(before, after),
        noise=found,
        changes=changes,
        components=components,
        gemms=gemms,
        findings=findings,
        caveats=[*said, *_open(step, found)],
        reasons=reasons,
        moves=find_moves(components, gemms, noise=found, gpu_ms=gpu_ms),
        causes=find_causes(before, after, gemms, noise=found, step=step),
    )  # fmt: skip


def _side(report: Report, *, times: bool = True) -> Side:
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
        steps_ms=[step.duration_ms for step in report.steps] if times else [],
        mfu_why=summary.mfu_why,
        gemm_frac_is_bound=summary.gemm_frac_is_bound,
        communication_is_bound=summary.communication_is_bound,
        mfu_is_bound=summary.mfu_is_bound,
        steps_marked=summary.steps_marked,
    )


def _step(before: Report, after: Report) -> StepChange:
    without = [one.summary.unprofiled.median_ms for one in (before, after)]
    return step_change(
        [step.duration_ms for step in before.steps],
        [step.duration_ms for step in after.steps],
        medians=(before.summary.step_ms, after.summary.step_ms),
        identical=before.trace.sha256 == after.trace.sha256 and before.steps == after.steps,
        unprofiled_ms=(without[0], without[1]),
    )


def _parts(before: Report, after: Report) -> list[StepPart]:
    a, b = before.summary, after.summary
    return [
        StepPart("idle", a.idle_ms, b.idle_ms),
        StepPart("exposed communication", a.exposed_communication_ms, b.exposed_communication_ms),
        StepPart("sum of GPU time", a.gpu_ms_per_step, b.gpu_ms_per_step),
        StepPart("GEMMs and attention", _gemm_ms(before), _gemm_ms(after)),
    ]


def _gemm_ms(report: Report) -> float:
    return sum(row.time_ms_per_step for row in report.gemms)


def _reasons(step: StepChange, found: Noise | None) -> list[str]:
    """Why to believe the verdict: the test, the control."""
    if step.state == "identical":
        return []
    parts = [said for said in (p_in_words(step),) if said]
    if found is not None:
        parts.append(control(found))
    without = (step.unprofiled_before_ms, step.unprofiled_after_ms)
    if without[0] is not None and without[1] is not None:
        times = arrow_ms(without[0], without[1])
        parts.append(f"Without the profiler: {times}, {signed_pct(step.unprofiled_diff_frac)} (not tested).")
    return parts


def control(found: Noise) -> str:
    """What the GEMMs did that the change did not touch."""
    return (
        f"As a control, GEMMs that did the same work on both sides ({f.pct(found.share_frac)} of the GPU "
        f"time) changed by {signed_pct(found.mid_frac)}."
    )


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


def _shares(before: Report, after: Report) -> str:
    a, b = before.summary, after.summary
    gemms = arrow_pct(a.gemm_frac, b.gemm_frac, least=(a.gemm_frac_is_bound, b.gemm_frac_is_bound))
    parts = [
        f"MFU {arrow_pct(a.mfu_frac, b.mfu_frac, least=(a.mfu_is_bound, b.mfu_is_bound))}",
        f"GPU busy {arrow_pct(a.gpu_busy_frac, b.gpu_busy_frac)}",
        f"in GEMMs and attention {gemms}",
    ]
    return "; ".join(parts) + "."
