"""Two reports side by side: did the step's time change, what changed, and where the time went."""

from __future__ import annotations

from tracelens.comparison import words
from tracelens.comparison.causes import find_causes
from tracelens.comparison.changes import caveats, find_changes, not_comparable
from tracelens.comparison.gemms import differ, match_gemms, without_times
from tracelens.comparison.moves import find_moves
from tracelens.comparison.one_place import PerStep, places
from tracelens.comparison.same_work import SMALL, as_all, beyond, diffs_ms, judged, noise, other_work
from tracelens.comparison.step_change import mixed_otherwise, step_change
from tracelens.errors import InputError, UsageError
from tracelens.results import Estimate, Finding, Known, Report, main_dtype
from tracelens.results.comparison import (
    SCHEMA_VERSION,
    Comparison,
    ComponentChange,
    FindingOutcome,
    GemmChange,
    Noise,
    OutcomeState,
    Side,
    StepChange,
    StepPart,
)
from tracelens.version import __version__


def compare_reports(before: Report, after: Report, *, across: bool = False) -> Comparison:
    """Compare two reports; ``across`` allows other GPUs, dtypes or world sizes and leaves times out then.

    Its sentences are ``render.compare_words.told``'s.

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
            verdict="", detail="", step=None, parts=[], noise=None, changes=changes, components=[],
            gemms=without_times(gemms), findings=outcomes(before, after, gemms, times=False), caveats=said,
        )  # fmt: skip
    gpu_ms = before.summary.gpu_ms_per_step
    found = noise(gemms, gpu_ms)
    gemms = judged(gemms, found, gpu_ms)
    components = compare_components(before, after, gemms, found)
    *_, placed = places(before, after)
    both = zip(("before", "after"), placed, strict=True)
    said += [words.placed(side, ms) for side, ms in both if ms > SMALL * gpu_ms]
    step = _step(before, after)
    if mixed_otherwise(step):
        changes = [one for one in changes if one.kind != "communication"]
        short = step.kinds[0]
        said = [*said, words.mixed((short.before.n, short.after.n), (step.before.n, step.after.n))]
    return Comparison(
        SCHEMA_VERSION, __version__, _side(before), _side(after), [],
        verdict="",
        detail="",
        step=step,
        parts=_parts(before, after),
        noise=found,
        changes=changes,
        components=components,
        gemms=gemms,
        findings=outcomes(before, after, gemms),
        caveats=said,
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
    alone = [one.summary.unprofiled for one in (before, after)]
    alike = alone[0].clock is not None and alone[0].clock == alone[1].clock
    return step_change(
        [step.duration_ms for step in before.steps],
        [step.duration_ms for step in after.steps],
        medians=(before.summary.step_ms, after.summary.step_ms),
        identical=before.trace.sha256 == after.trace.sha256 and before.steps == after.steps,
        unprofiled_ms=(alone[0].median_ms, alone[1].median_ms),
        unprofiled=(alone[0].times_ms, alone[1].times_ms) if alike else ((), ()),
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


def compare_components(
    before: Report, after: Report, gemms: list[GemmChange], noise: Noise | None
) -> list[ComponentChange]:
    """Compare every component and phase, the largest difference first."""
    old, new, _ = places(before, after)
    gpu_ms = before.summary.gpu_ms_per_step
    changed = {(one.component, one.phase) for one in gemms if one.beyond_noise and other_work(one)}
    rows = []
    for key in {**old, **new}:
        a, b = old.get(key, PerStep()), new.get(key, PerStep())
        diff, frac = b.ms - a.ms, b.ms / a.ms - 1 if a.ms and b.ms else None
        why, new_work = words.SAME_KERNELS, False
        if key in changed:
            why, new_work = words.OTHER_GEMMS, True
        elif differ(a.kernels, b.kernels):
            why, new_work = _other_kernels(a.kernels, b.kernels), True
        told = beyond(diff, frac, noise=noise, gpu_ms=gpu_ms, other_work=new_work)
        if key[0] == "communication" and not new_work and told is not False:
            told, why = None, words.WAIT
        elif told is None:
            why = words.TOO_FEW_GEMMS
        alike = told is True and not new_work and as_all(frac, noise)
        if alike and noise is not None:
            why = words.as_all_gemms(noise.mid_frac)
        rows.append(ComponentChange(*key, a.ms, b.ms, diff, frac, a.kernels, b.kernels, told, why, alike))
    return sorted(rows, key=lambda row: -abs(row.diff_ms))


def _other_kernels(before: float, after: float) -> str:
    if not before or not after:
        return words.ONLY_AFTER if after else words.ONLY_BEFORE
    return words.kernels(after / before - 1)


#: The word of a finding's change -> field of ModelDims.
_FIELDS = {"vocab_size": "vocab", "micro_batch": "micro_batch", "batch": "micro_batch"}


def outcomes(
    before: Report, after: Report, gemms: list[GemmChange], *, times: bool = True
) -> list[FindingOutcome]:
    """Say of each finding whether it was acted on and whether the saving came, where times compare."""
    found = []
    for one in before.findings:
        state, why = _state(one, after, gemms)
        done = state in ("acted_on", "changed_otherwise")
        measured = _measured(one, gemms) if done and times else None
        agrees = _agrees(one.saving_ms, measured) if state == "acted_on" and measured is not None else None
        found.append(
            FindingOutcome(
                one.rule, one.title, one.change, state, one.saving_ms, measured, agrees, why, one.saving_of
            )
        )
    return found


def _state(one: Finding, after: Report, gemms: list[GemmChange]) -> tuple[OutcomeState, str]:
    seen = [_now(name, values, one, after, gemms) for name, values in one.change.items()]
    proposed = [value == values[1] for value, values in zip(seen, one.change.values(), strict=True)]
    if one.change and all(proposed):
        return "acted_on", ""
    for (name, values), value in zip(one.change.items(), seen, strict=True):
        # a part of a change is another change
        if value is not None and (value not in values or (any(proposed) and value != values[1])):
            return "changed_otherwise", words.set_otherwise(name, value, values[1])
    if any(_same(one, other) for other in after.findings):
        return "still_there", ""
    looked = [check.state != "could_not_run" for check in after.checks if check.rule == one.rule]
    if not seen and any(looked):
        return "gone", ""
    if looked and not any(looked):
        return "cannot_tell", words.NOT_LOOKED
    if None in seen or not seen:
        return "cannot_tell", words.NOT_SHOWN
    return "gone", words.NOT_FOUND_UNCHANGED


def _same(one: Finding, other: Finding) -> bool:
    """Do both ask for the same? Findings of one rule that change no parameter differ in kind (TL122)."""
    kinds = one.evidence.get("kind"), other.evidence.get("kind")
    return (one.rule, one.change, kinds[0]) == (other.rule, other.change, kinds[1])


def _now(
    name: str, values: list[int | float | str], one: Finding, after: Report, gemms: list[GemmChange]
) -> int | float | str | None:
    """The parameter's value in the report after, as its model or the finding's own GEMMs show it."""
    field = _FIELDS.get(name, name)
    known = getattr(after.model, field, None)
    if isinstance(known, Known):
        return known.value
    for change in _own(one, gemms):
        for letter in ("m", "n", "k"):
            if change.before and change.after and getattr(change.before, letter) == values[0]:
                now: int | None = getattr(change.after, letter)
                return now
    return None


def _own(one: Finding, gemms: list[GemmChange]) -> list[GemmChange]:
    ids = set(one.gemms)
    return [change for change in gemms if change.before is not None and ids & set(change.before.ids)]


def _measured(one: Finding, gemms: list[GemmChange]) -> float | None:
    """What the finding's GEMMs take less per step; None when one of them has no counterpart."""
    own = _own(one, gemms)
    diffs = diffs_ms(one for one in own if one.after is not None)
    if not own or len(diffs) < len(own):
        return None
    ids = set(one.gemms)
    if any(one.state == "regrouped" and one.before and not set(one.before.ids) <= ids for one in own):
        return None  # others are in the same row
    return -sum(diffs)


def _agrees(predicted: Estimate, measured: float) -> str | None:
    if predicted.high is None:
        return None
    if predicted.mid is None:
        return "within the bound" if measured <= predicted.high else "more than the bound"
    if predicted.low is not None and measured < predicted.low:
        return "less than predicted"
    return "more than predicted" if measured > predicted.high else "as predicted"
