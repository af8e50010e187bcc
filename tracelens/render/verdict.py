"""The two sentences at the top: what limits the step, said first, and what there is to gain from shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tracelens.accounting.limits import (
    EXPOSED,
    LARGE,
    LITTLE,
    UNKNOWN,
    WORTH,
    Limits,
    StepPicture,
    byte_times,
    limits,
    picture_of,
    updates_only,
)
from tracelens.numbers import capital, listed, ms, ms_range, pct
from tracelens.render.costs import new_model
from tracelens.render.groups import outside_parts
from tracelens.render.remedies import FIND_CPU, FIND_RANK, LAUNCH_LESS, SHORTEN, fusing
from tracelens.render.step_times import SAME
from tracelens.results import Coverage, Estimate, Finding, Report, Unattributed
from tracelens.results.waits import step_bound
from tracelens.rules.engine.needs import unseen
from tracelens.sums import summed
from tracelens.words import TO_TRY, per_step

if TYPE_CHECKING:
    from tracelens.analysis import Analysis

#: Idle for this share of the step, the step is called CPU-bound.
_HOST = 0.30
#: Steps that differ by this factor are not told by their median alone.
_UNEVEN = 2.0
_WAITED = {
    "compile": "for torch.compile", "break": "at graph breaks", "data": "for the DataLoader",
    "workers": "for the DataLoader", "pageable": "for pageable copies",
    "fetch": "while the CPU fetches results",
}  # fmt: skip
#: While these run the GPU is not idle.
_COPIES = frozenset({"pageable", "fetch"})
#: One cause of idle time is told with it from this share of it on.
_MOST = 0.5
#: A prediction whose low end is below this share of its middle is told with its range.
_WIDE = 0.40
#: Components named where the step is bound by memory.
_NAMED = 3
_SHARES = (
    (0.9995, "All of it"),
    (0.95, "Nearly all of it"),
    (0.5, "Most of it"),
    (0.0, "The largest part of it"),
)
_MORE = ", more than any shape change would save."
#: Said once: a card that stands below the verdict leaves it out.
PROFILED = "The profiler slows the CPU: tracelens capture also times steps without it."
_FORWARDS_PROFILED = "The profiler slows the CPU: time the steps without it, too."
_MARK = f"{TO_TRY} call prof.step() after each step, or record with tracelens capture."
_MARK_FORWARDS = f"{TO_TRY} call prof.step() after each step."
_SERVED = f"{TO_TRY} profile through start_profile of a current vLLM or SGLang, which marks each batch."
_WHOLE = f"{TO_TRY} the whole file, or a new recording of fewer, whole steps."


def with_verdict(report: Report) -> Report:
    """The report with its verdict in words; one that was saved keeps its own."""
    if report.summary.verdict or report.summary.verdict_detail:
        return report
    said, to_try, detail = verdict(picture_of(report))
    summary = replace(report.summary, verdict=said, verdict_to_try=to_try, verdict_detail=detail)
    return replace(report, summary=summary)


def told(analysis: Analysis) -> Analysis:
    """The analysis with its verdict in words."""
    return replace(analysis, report=with_verdict(analysis.report))


class Verdict(NamedTuple):
    """What limits the step, what to try against it, and what else is to be known."""

    said: str
    to_try: str
    detail: str


def verdict(seen: StepPicture) -> Verdict:
    """When shapes are not the problem it says so first."""
    said, to_try, detail = _verdict(seen)
    return Verdict(said, to_try, _joined(detail, _uneven(seen)))


def _uneven(seen: StepPicture) -> str:
    """That the steps differ so much that a median of them is of no step in particular."""
    steps = seen.summary.step_ms
    if not seen.marked or steps.low is None or steps.high is None or steps.high <= _UNEVEN * steps.low:
        return ""
    return (
        f"The {steps.n} recorded steps take {ms_range(steps.low, steps.high)}: their median does not describe"
        " each of them."
    )


def _verdict(seen: StepPicture) -> Verdict:
    found = limits(seen)
    shapes, others = _shapes(seen, found), _others(seen, found)
    head, rest = _not_judged(seen)
    remark = _joined(head, rest)
    if remark:
        shapes = shapes if seen.findings else ""
    idle = seen.summary.gpu_busy_frac < 1 - LARGE
    if idle and not seen.marked:
        mark = _SERVED if seen.served else _MARK if seen.trains else _MARK_FORWARDS
        return Verdict(_unmarked(seen), _WHOLE if seen.cut else mark, _joined(remark, shapes))
    if idle and (why := _profiler(seen)) is not None:
        return Verdict(why, "", _joined(remark, shapes, others))
    first = _first(seen, found, alone=bool(remark))
    if first is not None:
        return Verdict(first.said, first.to_try, _joined(first.detail, others, remark, shapes))
    if remark and not shapes:
        return Verdict(head, "", _joined(rest, others))
    return Verdict(shapes, "", _joined(remark, others) or _busy(seen))


def _first(seen: StepPicture, found: Limits, *, alone: bool) -> Verdict | None:
    """What limits the step more than shapes do; None where nothing does."""
    if len(found.told) > 1:
        return _both(seen, found)
    if found.first == "idle":
        return _idle(seen, found, alone=alone)
    if found.first == "exposed":
        return _communication(seen, alone=alone)
    return _memory(seen, found) if found.first == "memory" else None


def _does(covered: Coverage) -> str:
    """What the GPU does in a step that is no transformer's."""
    parts = outside_parts(covered, ("other", "unattributed"), _NAMED)
    told = f"By operator: {listed(parts)} of GPU time." if parts else "GPU time is shown by phase."
    return f"{told} --kernels FILE lists each kernel with its operator."


def _joined(*sentences: str) -> str:
    return " ".join(one for one in sentences if one)


def _not_judged(seen: StepPicture) -> tuple[str, str]:
    """What of kernels and shapes cannot be judged, and what that leaves out; "" where all can."""
    covered, found = seen.coverage, seen.model.found
    open_ = "" if covered.complete else unseen(covered)
    if found == "parts":
        said = "Parts of a transformer were recognised, but not the whole of one."
        open_ = open_ and unseen(covered, what="the rest")
        return said, _joined(open_, "Checks that need the whole model are left out.")
    if found == "none" and updates_only(seen.components):
        return "Only the work of an optimizer was recorded: no forward and no backward.", ""
    if found == "none":
        open_ = "" if covered.no_attention else unseen(covered, frac=covered.attention_open_frac)
        said = (
            "This is not a transformer: it has no attention."
            if covered.complete
            else "No attention was recognised."
        )
        return said, _joined(open_, _does(covered))
    if seen.gpu.vendor == "amd":
        said = "This is an AMD GPU: its tensor-core and tile rules are not judged."
        return said, "Times, components and shapes are shown; MFU and peaks are not."
    if covered.unattributed_frac > UNKNOWN:
        main = main_unattributed(covered)
        why = f"Main reason: {main.reason}. Fix: {main.remedy}." if main else ""
        return f"{covered.unattributed_frac:.0%} of the GPU time could not be attributed to a component.", why
    return "", ""


def main_unattributed(covered: Coverage) -> Unattributed | None:
    """The largest part without a component, where they are so much that the verdict says why."""
    return covered.unattributed[0] if covered.unattributed and covered.unattributed_frac > UNKNOWN else None


def _both(seen: StepPicture, found: Limits) -> Verdict:
    """Idle time and exposed communication, where both are large: the rest is what the GPU computes."""
    exposed_ms, idle, whole_ms = seen.summary.exposed_communication_ms, seen.summary.idle_ms, seen.mean_ms
    rest_ms = whole_ms - exposed_ms - idle
    said = [
        (exposed_ms, f"{_exposed(seen)} {{}}", _hiding(seen)),
        (idle, "the GPU waits for the CPU {}", f"{_for_idle(seen, found)} per step"),
    ]
    (first_ms, first, try_first), (second_ms, second, then_try) = sorted(said, reverse=True)
    first = first.format(_mean_part(seen, first_ms))
    second = second.format(f"{pct(second_ms / whole_ms)} ({ms(second_ms)})")
    least = "at most" if seen.summary.communication_is_bound else "the other"
    to_try = f"{TO_TRY} {try_first}; {then_try}."
    return Verdict(
        f"{capital(first)}, {second}; it computes in {least} {pct(rest_ms / whole_ms)} ({ms(rest_ms)}).",
        to_try,
        "A rank whose CPU launches late also makes the others wait in their collectives.",
    )


def _for_idle(seen: StepPicture, found: Limits, *, named: bool = False) -> str:
    """What to try, and the most it saves; batches and compilations are waited for whatever the launches.

    What the CPU is in meanwhile has been ``named`` before. These waits are measured under the profiler: of
    idle time without it they are no known part.
    """
    timed = seen.summary.unprofiled.median_ms is not None
    idle_ms = found.idle_ms if timed else seen.summary.idle_ms
    if seen.launches_wait and seen.summary.idle_in_ms is not None:
        most_ms = min(seen.summary.idle_in_ms, idle_ms)
        return f"{SHORTEN.format('that' if named else f'`{seen.summary.idle_in}`')}, at most {ms(most_ms)}"
    if seen.launches_wait or timed:
        return f"{FIND_CPU if seen.launches_wait else LAUNCH_LESS}, at most {ms(idle_ms)}"
    others = sum(one.evidence["wait_ms"] for one in seen.waits if one.evidence["kind"] not in _COPIES)
    return f"{LAUNCH_LESS}, at most {ms(max(0.0, idle_ms - others))}"


def _hiding(seen: StepPicture) -> str:
    """What there is to try against exposed communication, and what it saves at most."""
    to_try, most_ms = "overlap communication with compute,", seen.hideable_ms
    if seen.waits_for_rank:
        to_try = f"{FIND_RANK} (about {ms(seen.waiting_ms)}) and overlap the rest: together"
        most_ms = seen.summary.exposed_communication_ms
    if seen.summary.communication_is_bound:
        return f"{to_try} at most the {ms(most_ms)} {per_step(seen.marked)} that were recognised"
    return f"{to_try} at most {ms(most_ms)} {per_step(seen.marked)}"


def _communication(seen: StepPicture, *, alone: bool) -> Verdict:
    """Exposed communication, and what there is to try; ``alone`` where shapes are not judged."""
    exposed_ms = seen.summary.exposed_communication_ms
    said = f"{_exposed(seen)} {_mean_part(seen, exposed_ms)}"
    if seen.exposed_frac < LARGE:  # most of the step is compute, which the saving is no part of
        computes = max(0.0, seen.summary.gpu_busy_frac - seen.exposed_frac)
        most = "at most " * seen.summary.communication_is_bound
        said = f"{_exposed(seen)} {_mean_part(seen, exposed_ms, of='it')}"
        said = f"the GPU computes {most}{pct(computes)} of the step; {said}"
    head = f"{capital(said)}{_more(seen, alone=alone)}"
    return Verdict(head, f"{TO_TRY} {_hiding(seen)}.", _main_collective(seen, exposed_ms))


def _more(seen: StepPicture, *, alone: bool) -> str:
    """That no shape is worth as much, said only where every check of shapes could look."""
    return "." if alone or any(one.state == "could_not_run" for one in seen.checks) else _MORE


def _main_collective(seen: StepPicture, exposed_ms: float) -> str:
    """What most of the exposed communication is, "" where none of it is known."""
    times = summed((row.kind, row.exposed_ms_per_step) for row in seen.communication)
    main = max(times, key=lambda one: times[one], default="")
    if not main or not times[main]:
        return ""
    share = next(said for least, said in _SHARES if times[main] >= least * exposed_ms)
    return f"{share} is {main} ({ms(times[main])}, including the wait for the slowest rank)."


def _exposed(seen: StepPicture) -> str:
    least = " at least" if seen.summary.communication_is_bound else ""
    return f"exposed communication takes{least}"


def _idle(seen: StepPicture, found: Limits, *, alone: bool) -> Verdict:
    """Idle time, and what there is to try; ``alone`` where shapes are not judged."""
    without_ms = seen.summary.unprofiled.median_ms
    if without_ms is None:
        part, idle_ms = _mean_part(seen, seen.summary.idle_ms), seen.summary.idle_ms
    else:
        part, idle_ms = _part(found.idle_ms, without_ms, "a step without the profiler"), found.idle_ms
    of = "that" if without_ms is None else f"the {ms(seen.summary.idle_ms)} under the profiler"
    wait = max(seen.waits, key=lambda one: one.evidence["wait_ms"], default=None)
    if wait is not None and wait.evidence["wait_ms"] >= _MOST * seen.summary.idle_ms:
        wait_ms, fix = wait.evidence["wait_ms"], lower(wait.action)
        return Verdict(
            f"The GPU is idle {part}: it waits {_WAITED[wait.evidence['kind']]} for {ms(wait_ms)} of {of}.",
            f"{TO_TRY} {fix}, at most {ms(min(wait_ms, idle_ms))} {per_step(seen.marked)}.",
            "",
        )
    to_try = f"{TO_TRY} {_for_idle(seen, found, named=True)} per step."
    doing = "."
    if seen.summary.idle_in is not None:
        doing = f"; for {ms(seen.summary.idle_in_ms)} of {of} the CPU is in `{seen.summary.idle_in}`."
    if found.idle_ms < _HOST * (without_ms or found.step_ms):
        more = _more(seen, alone=alone).removesuffix(".")
        return Verdict(f"The GPU is idle {part}{more}{doing}", to_try, "")
    shapes = "" if alone else ", not limited by GEMM shapes"
    profiled = profiled_steps(seen) if without_ms is None else ""
    return Verdict(f"The step is CPU-bound{shapes}: the GPU is idle {part}{doing}", to_try, profiled)


def profiled_steps(seen: StepPicture) -> str:
    """What the profiler does to the steps, and what times them without it."""
    return PROFILED if seen.trains else _FORWARDS_PROFILED


def _mean_part(seen: StepPicture, mean_ms: float, of: str = "the step") -> str:
    """The share that a mean over the steps has in them; where mean and median differ, it says which it is."""
    said = _part(mean_ms, seen.mean_ms, of)
    same = ms(seen.mean_ms) == ms(seen.summary.step_ms.median)
    return said if same else said.removesuffix(")") + " on average)"


def _part(time_ms: float, whole_ms: float, of: str) -> str:
    """``23.3% of the step (10.2 of 43.6 ms)``."""
    part, whole = ms(time_ms), ms(whole_ms)
    if part.rpartition(" ")[2] == whole.rpartition(" ")[2]:
        part = part.rpartition(" ")[0]
    return f"{pct(time_ms / whole_ms)} of {of} ({part} of {whole})"


def _without(seen: StepPicture) -> str:
    summary = seen.summary
    work_ms = summary.gpu_busy_frac * summary.step_ms.median
    return (
        f"a step takes {ms(summary.unprofiled.median_ms)} without it; the GPU works {ms(work_ms)} of a"
        " profiled one"
    )


def _profiler(seen: StepPicture) -> str | None:
    """Idle time that only the profiler makes, where that is known; None elsewhere."""
    summary = seen.summary
    unprofiled_ms, busy = summary.unprofiled.median_ms, summary.gpu_busy_frac
    if unprofiled_ms is None or busy >= 1 - LARGE:
        return None
    work_ms = busy * summary.step_ms.median
    idle = f"The GPU is idle {pct(1 - busy)} of the profiled step"
    if work_ms > (1 + SAME) * unprofiled_ms:
        return f"{idle}, but the steps without the profiler did other work: {_without(seen)}."
    if work_ms > (1 - LARGE) * unprofiled_ms:
        return f"{idle}, and the profiler causes it: {_without(seen)}."
    return None


def _memory(seen: StepPicture, found: Limits) -> Verdict:
    """The step is bound by memory: by what, in ms, and what there is to try."""
    times = sorted(byte_times(seen), key=lambda one: -one[1])
    named = [(name, time) for name, time in times[:_NAMED] if time > 0]
    largest = ", ".join(f"{name} {ms(time)}" for name, time in named)
    part = f"{pct(found.memory_ms / found.gpu_ms)} of the GPU's {ms(found.gpu_ms)} {per_step(seen.marked)}"
    if found.slow_ms > found.bytes_ms:
        said = (
            "The step is bound by memory and by the fixed cost of kernels, not by shapes: GEMMs too small"
            f" or too thin for the tensor cores ({ms(found.slow_ms)}) and kernels that move bytes"
            f" ({ms(found.bytes_ms)}) take {part}."
        )
        return Verdict(said, "", "")
    fused = fusing([name for name, _ in named], seen.checks)
    to_try = f"{TO_TRY} {fused}; the saving is not predicted." if fused else ""
    said = f"The step is memory-bound: kernels that move bytes take {part}, most in {largest}."
    if len(named) == 1:
        (name, time_ms) = named[0]
        part = f"{pct(time_ms / found.gpu_ms)} of GPU time ({ms(time_ms)} of {ms(found.gpu_ms)}"
        said = f"{name} takes {part} {per_step(seen.marked)}) in kernels that move bytes, not in GEMMs."
    return Verdict(said, to_try, "")


def _others(seen: StepPicture, found: Limits) -> str:
    """What else is worth naming beside what comes first."""
    said = []
    without_ms = seen.summary.unprofiled.median_ms
    idle = found.idle_ms / (without_ms or found.step_ms or 1)
    if "idle" not in found.told and idle > WORTH and _profiler(seen) is None:
        of = "the step" if without_ms is None else "a step without the profiler"
        said.append(f"the GPU is idle {pct(idle)} of {of}")
    if "exposed" not in found.told and found.exposed_ms > EXPOSED * found.step_ms:
        part = pct(found.exposed_ms / found.step_ms)
        said.append(f"{_exposed(seen)} {part} of the step")
    waits = (
        found.first in ("idle", "exposed") and max(found.idle_ms, found.exposed_ms) >= LARGE * found.step_ms
    )
    if found.first != "memory" and not waits and found.memory_ms > found.gpu_ms / 2:
        part = pct(found.memory_ms / found.gpu_ms)
        said.append(f"kernels bound by memory or by their fixed cost take {part} of GPU time")
    for one in seen.waits:
        wait_ms = one.evidence["wait_ms"]
        if found.told == ("idle",) and wait_ms >= _MOST * seen.summary.idle_ms:
            continue  # said first
        said.append(
            f"the GPU waits {_WAITED[one.evidence['kind']]} for {ms(wait_ms)} {per_step(seen.marked)}"
        )
    for padding in seen.padding if len(seen.findings) > 1 else ():  # alone, it is the change that is named
        most_ms = ms(padding.saving_ms.high)
        said.append(f"tokens of padding take at most {most_ms} of GEMMs {per_step(seen.marked)}")
    return f"Also, {listed(said)}." if said else ""


def _busy(seen: StepPicture) -> str:
    whole = "step" if seen.marked else "trace"
    busy = pct(seen.summary.gpu_busy_frac)
    return f"The GPU is busy {busy} of the {whole}, so the time is in its kernels."


def _unmarked(seen: StepPicture) -> str:
    """A trace without step ranges also holds what comes before and after, and of a step that is cut some is
    not there: its idle time says nothing.
    """
    whole_ms = seen.summary.step_ms.median
    work_ms, exposed_ms = seen.summary.gpu_busy_frac * whole_ms, seen.summary.exposed_communication_ms
    waits = ""
    if exposed_ms >= LARGE * work_ms > 0:
        waits = f", {ms(exposed_ms)} of them ({pct(exposed_ms / work_ms)}) in exposed communication"
    state = "whole" if seen.cut else "marked"
    return (
        f"No step is {state} in this trace, so what limits one is not known: the GPU works"
        f" {ms(work_ms)} of the {ms(whole_ms)} recorded{waits}."
    )


def _shapes(seen: StepPicture, found: Limits) -> str:
    """What the findings save, together and without a sum; a prediction and a bound are never one figure."""
    stake, findings = seen.at_stake, seen.findings
    if findings and stake is not None and stake.high is not None and found.step_ms > 0:
        bound = stake.mid is None
        told = [one for one in findings if bound or one.saving_ms.mid is not None] or list(findings)
        count, open_ = len(told), len(findings) - len(told)
        title = " and ".join(lower(titled(one)) for one in told[: 2 if count == 2 else 1])
        title += " first" if count > 2 else ""
        what = "fix" if _time_ms(stake) < LITTLE * found.step_ms else "change"
        changes = f"1 {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('x') else 's'}"
        step = f"each {ms(found.step_ms)} step" if seen.marked else f"the {ms(found.step_ms)} recorded"
        time_ms = _time_ms(stake)
        time = f"{'at most' if bound else 'about'} {ms(time_ms)}"
        share = pct(time_ms / found.step_ms) + ("" if bound else f", predicted{_spread(stake)}")
        rest = f"at most {ms(seen.open_ms)}" if seen.open_ms else "in rows already counted"
        more = f" {open_} more, not predicted: {rest}." if open_ else ""
        of = "of"
        if any(one.counts == "gemms" for one in told):
            if count == 1:
                of = "in the GEMMs of"
            else:
                more = f" What kernels besides GEMMs gain is not counted.{more}"
        waits = step_bound(seen.summary)
        how = "" if bound else ", predicted"
        if waits == "cpu" and any(one.counts == "kernels" for one in told):
            does = "takes" if count == 1 else "together take"
            return (
                f"{changes} {does} {time} ({pct(time_ms / found.step_ms)}{how}) of GPU work off {step}, and"
                f" the launches that are spared are not counted: {title}.{more}"
            )
        if waits == "cpu":  # a shorter kernel leaves a longer gap
            does = "shortens" if count == 1 else "together shorten"
            share = f"at most {pct(stake.high / found.step_ms)}{how}; nothing while it waits for the CPU"
            return f"{changes} {does} {step} by 0 to {ms(stake.high)} ({share}): {title}.{more}"
        if waits == "unknown":
            does = "cuts" if count == 1 else "together cut"
            gains = f"what a step gains is not known, as none is {'whole' if seen.cut else 'marked'}"
            share = f"{pct(time_ms / found.step_ms)}{how}"
            return f"{changes} {does} GPU work by {time} {of} {step} ({share}); {gains}: {title}.{more}"
        if round(time_ms / found.step_ms, 3) < LITTLE:  # as the share is written beside it
            time = f"{'together ' if count > 1 else ''}{time}"
            return f"Shapes are worth less than 1% of the step: {changes}, {time} ({share}): {title}.{more}"
        does = "saves" if count == 1 else "together save"
        return f"{changes} {does} {time} {of} {step} ({share}): {title}.{more}"
    states = [check.state for check in seen.checks]
    passed, open_ = states.count("passed"), states.count("could_not_run")
    if not passed:
        return "No check could run on this trace."
    many = f"{passed} check{'' if passed == 1 else 's'} passed"
    if open_ > passed:
        more = f". To judge more, {seen.to_judge}" if seen.to_judge else ""
        return f"Little could be judged: {open_} of {len(seen.checks)} checks could not run, {many}{more}."
    rest = f", {open_} could not run" if open_ else ""
    return f"No change was found that saves time: {many}{rest}."


def _time_ms(stake: Estimate) -> float:
    """The middle of a prediction, or else its bound."""
    return stake.size or 0.0


def _spread(stake: Estimate) -> str:
    """The range of a prediction so wide that its middle alone would mislead."""
    if stake.low is None or stake.mid is None or stake.low > _WIDE * stake.mid:
        return ""
    return f", range {ms_range(stake.low, stake.high)}"


def titled(finding: Finding) -> str:
    """Its title; of a change that trained weights do not survive as they are, with that."""
    if finding.effort != "retrain":
        return finding.title
    takes = "a new model to train" if new_model(finding) else "pad the checkpoint"
    return finding.title + (f"; {takes}" if ": " in finding.title else f" ({takes})")


def lower(title: str) -> str:
    """A title inside a sentence; one that begins with a name stays, and a colon becomes brackets."""
    first = title[:1].lower() if title[1:2].islower() else title[:1]
    what, _, more = title[1:].rstrip(".").partition(": ")
    return first + what + (f" ({more})" if more else "")
