"""The two sentences at the top: what limits the step, said first, and what there is to gain from shapes."""

from __future__ import annotations

from tracelens.accounting.limits import LARGE, UNKNOWN, WORTH, Limits, StepPicture, byte_times, limits
from tracelens.numbers import ms, ms_range, pct
from tracelens.results import CommunicationRow, Estimate
from tracelens.results.waiting import step_bound
from tracelens.rules.engine.needs import unseen
from tracelens.words import TO_TRY, per_step

#: Idle for this share of the step, the GPU waits for the host above all.
_HOST = 0.30
#: Step times that differ by less are taken for the same.
_SAME = 0.03
#: Steps that differ by this factor are not told by their median alone.
_UNEVEN = 2.0
#: Below this share of the step, shapes are said to cost little.
_LITTLE = 0.01
#: A prediction whose low end is below this share of its middle is told with its range.
_WIDE = 0.40
#: Components named where the step is bound by memory.
_NAMED = 3
#: Of exposed communication: from here on it is said that small messages wait.
_NAMES_WAITING = 0.25
_PROFILED = 'Measured under the profiler, which slows the host; "tracelens capture" times steps without it.'
#: What hides a collective behind compute, by what it serves. Flags: megatron/training/arguments.py of
#: Megatron-LM; no_sync of DistributedDataParallel; prefetching of FullyShardedDataParallel and fully_shard.
_HIDES = {
    "data-parallel gradients": "send buckets of gradients while the backward still runs, and only in the last"
    " micro-batch of a step (DDP: no_sync before it)",
    "FSDP parameter gather": "prefetch the next layer's weights while this one computes (FSDP's forward and"
    " backward prefetch)",
    "FSDP gradient scatter": "scatter a layer's gradients while the backward of the next one computes (FSDP's"
    " backward prefetch)",
    "optimizer shards": "start each bucket during the backward, as soon as its gradients are there (Megatron:"
    " --overlap-grad-reduce and --overlap-param-gather)",
    "tensor parallel": "fewer tensor-parallel ranks, or products cut in pieces that overlap with it"
    " (Megatron: --tp-comm-overlap)",
    "expert all-to-all": "fewer expert-parallel ranks, or a shared expert that computes meanwhile",
    "pipeline": "more micro-batches per step, or an interleaved schedule",
    "loss or metric": "reduce it every few steps only",
}  # fmt: skip
#: A smaller message is sent in 0.1 ms at most, even at 1 GB/s: what it takes longer is waiting.
_SENDING_FROM = 2**16
_FIND_RANK = (
    'find the rank that the others wait for: in its own trace ("tracelens analyze TRACE", once per rank) this'
    " communication is shortest"
)
_MARK = "Call prof.step() after each step, or record with tracelens capture."


def verdict(seen: StepPicture) -> tuple[str, str]:
    """(verdict, detail). When shapes are not the problem it says so first."""
    said, detail = _verdict(seen)
    return said, _joined(_uneven(seen), detail)


def _uneven(seen: StepPicture) -> str:
    """That the steps differ so much that a median of them is of no step in particular."""
    steps = seen.summary.step_ms
    if not seen.marked or steps.low is None or steps.high is None or steps.high <= _UNEVEN * steps.low:
        return ""
    return (
        f"The {steps.n} recorded steps take {ms_range(steps.low, steps.high)}: what is said of their median"
        " is not true of each."
    )


def _verdict(seen: StepPicture) -> tuple[str, str]:
    found = limits(seen)
    shapes, others = _shapes(seen, found), _others(seen, found)
    head, rest = _not_judged(seen)
    remark = _joined(head, rest)
    if remark:
        shapes = shapes if seen.findings else ""
    idle = seen.summary.gpu_busy_frac < 1 - LARGE
    if idle and not seen.marked:
        return _unmarked(seen), _joined(remark, shapes, _MARK)
    if idle and (why := _profiler(seen)) is not None:
        return why, _joined(remark, shapes, others)
    if found.first in ("idle", "exposed"):
        said, more = _wait(seen, found)
        far = found.first == "idle" and found.idle_ms >= _HOST * found.step_ms
        end = ": the host sets the pace, not the shapes." if far else ": more than shapes cost."
        return f"{said[:1].upper()}{said[1:]}{'.' if remark else end}", _joined(
            _launches(seen, found) if far else "", more, remark, shapes, others
        )
    if found.first == "memory":
        return _memory(seen, found), _joined(remark, shapes, others)
    if remark and not shapes:
        return head, _joined(rest, others)
    return shapes, _joined(remark, others) or _busy(seen)


def _joined(*sentences: str) -> str:
    return " ".join(one for one in sentences if one)


def _not_judged(seen: StepPicture) -> tuple[str, str]:
    """What of kernels and shapes cannot be judged, and what that leaves out; "" where all can."""
    covered, found = seen.coverage, seen.model.found
    open_ = "" if covered.complete else unseen(covered)
    if found == "parts":
        said = "Parts of a transformer were recognised, but not the whole of one."
        open_ = open_ and unseen(covered, what="the rest")
        return said, _joined(open_, "The model's dimensions, and what is judged by them, are left out.")
    if found == "none":
        open_ = "" if covered.no_attention else unseen(covered, frac=covered.attention_open_frac)
        said = (
            "This is no transformer: it has no attention."
            if covered.complete
            else "No attention was recognised."
        )
        return said, _joined(open_, "GPU time is shown by phase and by the names of operators and kernels.")
    if seen.gpu.vendor == "amd":
        said = "This is an AMD GPU, whose tensor-core and tile rules are not judged."
        return said, "Times, components and shapes are shown all the same; MFU, peaks and changes are not."
    if covered.unattributed_frac > UNKNOWN:
        main = covered.unattributed[0] if covered.unattributed else None
        why = f"Main reason: {main.reason}. To mend it: {main.remedy}." if main else ""
        return f"{covered.unattributed_frac:.0%} of the GPU time could not be attributed to a component.", why
    return "", ""


def _wait(seen: StepPicture, found: Limits) -> tuple[str, str]:
    """What the step waits for, as the middle of a sentence, and what there is to add."""
    if found.first == "idle":
        without_ms = seen.summary.unprofiled.median_ms
        if without_ms is None:
            return f"the GPU is idle {_idle_part(seen)}", _PROFILED
        part = _part(found.idle_ms, without_ms, "a step without the profiler")
        return f"the GPU is idle {part}", f"Not only under the profiler: {_without(seen)}."
    exposed_ms = seen.summary.exposed_communication_ms
    said = f"{_exposed(seen)} {_mean_part(seen, exposed_ms)}"
    times: dict[tuple[str, str], float] = {}
    for row in seen.communication:
        one = row.collective, row.purpose
        times[one] = times.get(one, 0.0) + row.exposed_ms_per_step
    main = max(times, key=lambda one: times[one], default=None)
    if main is None or not times[main]:
        return said, ""
    collective, purpose = main
    name = collective + (f" for {purpose}" if purpose != "unknown" else "")
    share = "Most of" if times[main] > exposed_ms / 2 else "The largest part of"
    size = f"{ms(times[main])}, the wait for the slowest rank included"
    waiting_ms = sum(row.exposed_ms_per_step for row in seen.communication if _only_waits(row))
    small = ""
    if waiting_ms >= _NAMES_WAITING * exposed_ms:
        part = f"{ms(waiting_ms)} of the {ms(exposed_ms)}"
        small = f"{part} is in messages below 64 kB, which wait more than they send."
    hides = [_HIDES[purpose]] if purpose in _HIDES else []
    tries = [_FIND_RANK, *hides] if small else [*hides, _FIND_RANK]
    most = f"at most {ms(exposed_ms)} {per_step(seen.marked)}"
    most += " of what was recognised" if seen.summary.communication_is_bound else ""
    to_try = f"{TO_TRY} {'; then '.join(tries)}: {most}."
    return said, _joined(f"{share} that communication is {name} ({size}).", small, to_try)


def _exposed(seen: StepPicture) -> str:
    least = " at least" if seen.summary.communication_is_bound else ""
    return f"communication that no compute hides takes{least}"


def _only_waits(row: CommunicationRow) -> bool:
    return row.bytes_per_call is not None and row.bytes_per_call < _SENDING_FROM


def _idle_part(seen: StepPicture) -> str:
    """The idle share of the steps."""
    return _mean_part(seen, seen.summary.idle_ms)


def _mean_part(seen: StepPicture, mean_ms: float) -> str:
    """The share that a mean over the steps has in them; where mean and median differ, it says which it is."""
    whole_ms, median_ms = seen.mean_ms, seen.summary.step_ms.median
    if abs(whole_ms - median_ms) <= _SAME * whole_ms:
        return _part(mean_ms / whole_ms * median_ms, median_ms, "the step")
    return _part(mean_ms, whole_ms, "the step").removesuffix(")") + " on average)"


def _launches(seen: StepPicture, found: Limits) -> str:
    """What helps where the GPU waits for the host above all, and what there is to win by it at most."""
    # the mean where steps differ: the idle time that the sentence above is about
    idle_ms = seen.summary.idle_ms if seen.summary.unprofiled.median_ms is None else found.idle_ms
    return (
        f'{TO_TRY} torch.compile(mode="reduce-overhead") (CUDA graphs), at most {ms(idle_ms)} a step, or a'
        " larger batch."
    )


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
    if work_ms > (1 + _SAME) * unprofiled_ms:
        return f"{idle}, but the steps without the profiler are others: {_without(seen)}."
    if work_ms > (1 - LARGE) * unprofiled_ms:
        return f"{idle}, and the profiler is the reason: {_without(seen)}."
    return None


def _memory(seen: StepPicture, found: Limits) -> str:
    """The step is bound by memory: by what, in ms."""
    times = sorted(byte_times(seen), key=lambda one: -one[1])
    largest = ", ".join(f"{name} {ms(time)}" for name, time in times[:_NAMED] if time > 0)
    part = f"{pct(found.memory_ms / found.gpu_ms)} of the GPU's {ms(found.gpu_ms)} {per_step(seen.marked)}"
    if found.slow_ms > found.bytes_ms:
        return (
            "The step is bound by memory and by the fixed cost of kernels, not by shapes: products too small"
            f" or too thin for the tensor cores ({ms(found.slow_ms)}) and kernels that move bytes"
            f" ({ms(found.bytes_ms)}) take {part}."
        )
    return f"The step is memory-bound: kernels that move bytes take {part}, most in {largest}."


def _others(seen: StepPicture, found: Limits) -> str:
    """What else is worth naming beside what comes first."""
    said = []
    if found.first != "idle" and found.idle_ms >= WORTH * found.step_ms and _profiler(seen) is None:
        said.append(f"the GPU is idle {pct(found.idle_ms / found.step_ms)} of the step")
    if found.first != "exposed" and found.exposed_ms >= WORTH * found.step_ms:
        part = pct(found.exposed_ms / found.step_ms)
        said.append(f"{_exposed(seen)} {part} of the step")
    waits = (
        found.first in ("idle", "exposed") and max(found.idle_ms, found.exposed_ms) >= LARGE * found.step_ms
    )
    if found.first != "memory" and not waits and found.memory_ms > found.gpu_ms / 2:
        part = pct(found.memory_ms / found.gpu_ms)
        said.append(f"kernels bound by memory or by their own fixed cost take {part} of the GPU's time")
    return f"Also, {' and '.join(said)}." if said else ""


def _busy(seen: StepPicture) -> str:
    whole = "step" if seen.marked else "recording"
    busy = pct(seen.summary.gpu_busy_frac)
    return f"The GPU is busy {busy} of the {whole}, so its kernels are where the time is."


def _unmarked(seen: StepPicture) -> str:
    """A trace without step ranges also holds what comes before and after: its idle time says nothing."""
    whole_ms = seen.summary.step_ms.median
    work_ms, exposed_ms = seen.summary.gpu_busy_frac * whole_ms, seen.summary.exposed_communication_ms
    waits = ""
    if exposed_ms >= LARGE * work_ms > 0:
        waits = (
            f", {ms(exposed_ms)} of them ({pct(exposed_ms / work_ms)}) in communication that no compute hides"
        )
    return (
        "No step is marked in this trace, so what limits one is not known: the GPU works"
        f" {ms(work_ms)} of the {ms(whole_ms)} recorded{waits}."
    )


def _shapes(seen: StepPicture, found: Limits) -> str:
    """What the findings save, together and without a sum; a prediction and a bound are never one figure."""
    stake, findings = seen.at_stake, seen.findings
    if findings and stake is not None and stake.high is not None and found.step_ms > 0:
        bound = stake.mid is None
        told = [one for one in findings if bound or one.saving_ms.mid is not None] or list(findings)
        count, open_ = len(told), len(findings) - len(told)
        title = " and ".join(_lower(one.title) for one in told[: 2 if count == 2 else 1])
        title += " first" if count > 2 else ""
        changes = "1 change" if count == 1 else f"{count} changes"
        step = f"each {ms(found.step_ms)} step" if seen.marked else f"the {ms(found.step_ms)} recorded"
        time_ms = stake.high if stake.mid is None else stake.mid
        time = f"{'at most' if bound else 'about'} {ms(time_ms)} of {step}"
        share = pct(time_ms / found.step_ms) + ("" if bound else f", predicted{_spread(stake)}")
        rest = f"at most {ms(seen.open_ms)}" if seen.open_ms else "in rows already counted"
        more = f" {open_} more, not predicted: {rest}." if open_ else ""
        waits = step_bound(seen.summary)
        if waits != "gpu":  # a shorter kernel leaves a longer gap
            does = "shortens" if count == 1 else "together shorten"
            why = "as it waits for the CPU" if waits == "cpu" else "as none is marked"
            return (
                f"{changes} {does} the GPU's work by {time} ({share}); what the step gains is not known,"
                f" {why}: {title}.{more}"
            )
        if time_ms < _LITTLE * found.step_ms:
            does = "is worth little here" if count == 1 else "are worth little here"
        elif bound:
            does, time = "has" if count == 1 else "have", f"{time} at stake"
        else:
            does = "saves" if count == 1 else "together save"
        comma = "," if "little" in does else ""
        return f"{changes} {does}{comma} {time} ({share}): {title}.{more}"
    states = [check.state for check in seen.checks]
    passed, open_ = states.count("passed"), states.count("could_not_run")
    if not passed:
        return "No check could run on this trace."
    many = f"{passed} check{'' if passed == 1 else 's'} passed"
    if open_ > passed:
        return f"Little of it could be judged: {open_} of {len(seen.checks)} checks could not run, {many}."
    rest = f", {open_} could not run" if open_ else ""
    return f"No change was found that saves time: {many}{rest}."


def _spread(stake: Estimate) -> str:
    """The range of a prediction so wide that its middle alone would mislead."""
    if stake.low is None or stake.mid is None or stake.low > _WIDE * stake.mid:
        return ""
    return f", range {ms_range(stake.low, stake.high)}"


def _lower(title: str) -> str:
    """A title inside a sentence; one that begins with a name stays, and a colon becomes brackets."""
    first = title[:1].lower() if title[1:2].islower() else title[:1]
    what, _, more = title[1:].rstrip(".").partition(": ")
    return first + what + (f" ({more})" if more else "")
