"""The steps of a recording: by PyTorch's profiler, the engine that serves, a range that says so, updates."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.trace.tables import IntArray, Trace

_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")
#: One batch: vllm v1/worker/gpu_worker.py, annotate_profile; sglang managers/scheduler_profiler_mixin.py.
_SERVED = re.compile(r"^(execute(_\d+)?_context_\d+\(|step\[\w+ bs=\d)")
#: The same before they marked any, where Python's frames are recorded (``with_stack``).
_SERVES = re.compile(
    r"^.*\b(vllm/(v1/)?worker/(gpu_worker|worker_base)\.py\(\d+\): execute_model"
    r"|sglang/srt/managers/tp_worker\.py\(\d+\): forward_batch_generation)$"
)
#: ``train_step``, ``training_step 3``, ``iteration_7``; no step of an optimizer (``CustomAdam.step``).
_NAMED = re.compile(r"(?i)^(?!.*optim)(\w{1,60}[ _-])?(step|iter(ation)?)([ _.:#-]*\d+)?$")
#: Any range that comes again with as many launches, ``model_inference``; no layer, no part of one, and no
#: graph of torch.compile, unit of FSDP or collective, which can be a layer's.
_REPEATED = re.compile(
    r"(?i)^(?!.*(layer|block|stage|att|mlp|ffn|feed|expert|head|embed|norm|micro|optim|compiled|fsdp|sharded|nccl))."
)
_WITHIN = re.compile(r"\(.*?\)|\[.*?\]|\d+")
_ALL = 0.95  # of the launches: what holds fewer is a part of a step
_UNLIKE = 0.05  # of the launches of the step that has most: the same work, but for a metric now and then
_UPDATE = "Optimizer.step#"  # torch.optim: the end of a step, so a range before it is of a micro-batch


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of the recording, in order. One pseudo-step over everything when none is marked."""

    index: list[int]
    start_ns: IntArray
    end_ns: IntArray
    marked: bool
    by: str = ""  # the range that marks the first one, where it is not the profiler's own


def find_steps(trace: Trace, host: npt.NDArray[np.integer], launched_ns: IntArray) -> Steps:
    """The steps that ranges of ``host`` mark; ``launched_ns``: when the kernels were launched."""
    ranges = trace.ranges
    names = [trace.symbols[int(ranges.name[row])] for row in host]
    begin = ranges.ts_ns[host].astype(np.int64)
    end = begin + ranges.dur_ns[host]
    own = {int(match[1]): at for at, name in enumerate(names) if (match := _STEP.match(name))}
    if own:
        number, rows = zip(*sorted(own.items(), key=lambda item: (begin[item[1]], end[item[1]])), strict=True)
        return Steps([*number], begin[[*rows]], end[[*rows]], True)
    if (found := _loop(names, begin, end, launched_ns, _SERVED) or _served(trace, launched_ns)) is not None:
        return found
    for pattern in (_NAMED, _REPEATED):
        if (found := _loop(names, begin, end, launched_ns, pattern)) is not None:
            return found
    tables = [table for table in (trace.kernels, trace.ops, trace.launches) if len(table)]
    first = min((int(table.ts_ns.min()) for table in tables), default=0)
    if (found := _by_updates(names, np.where(end > begin, end, -1), launched_ns, first)) is not None:
        return found
    # not the calls behind: as it stops, the profiler itself waits for the GPU (kineto: cudaDeviceSynchronize)
    work = [table for table in (trace.kernels, trace.ops) if len(table)] or tables
    last = max((int((table.ts_ns + table.dur_ns).max()) for table in work), default=0)
    return Steps([0], np.array([first], np.int64), np.array([last], np.int64), False)


def _served(trace: Trace, launched_ns: IntArray) -> Steps | None:
    """The batches of an engine by the frames of its own function for one."""
    frames, serves = trace.frames, trace.symbols.where(_SERVES.match)
    rows = np.flatnonzero(serves[frames.name])
    names = [trace.symbols[int(code)] for code in frames.name[rows]]
    begin = frames.ts_ns[rows].astype(np.int64)
    return _loop(names, begin, begin + frames.dur_ns[rows], launched_ns, _SERVES)


def _loop(
    names: list[str],
    begin: IntArray,
    end: IntArray,
    launched_ns: IntArray,
    pattern: re.Pattern[str],
) -> Steps | None:
    """The ranges of one name, but for numbers, that follow each other and hold the launches.

    Of several such names the one whose ranges hold most: others are parts of these. A server samples behind
    each of its batches: that is of the batch.
    """
    alike: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(names):
        if pattern.match(name):
            alike[name if pattern is _REPEATED else _WITHIN.sub("", name)].append(at)
    launched = np.sort(launched_ns)
    update = np.array([name.startswith(_UPDATE) for name in names], np.bool_)
    found: list[tuple[tuple[bool, int, int], Steps]] = []
    for rows in alike.values():
        row = np.array(rows)[np.argsort(begin[rows], kind="stable")]
        held = np.diff(np.searchsorted(launched, np.stack([begin[row], end[row]])), axis=0)[0]
        row, held = row[held > 0], held[held > 0]
        start, stop = begin[row], end[row]
        if not len(row) or (start[1:] < stop[:-1]).any():
            continue
        if pattern is _REPEATED and (len(row) < 2 or np.ptp(held) > 0):
            continue
        if pattern in (_SERVED, _SERVES):
            stop = np.append(start[1:], max(stop[-1], launched[-1] + 1))
        elif held.sum() < _ALL * len(launched) or _mostly_outside(begin[update], start, stop):
            continue
        steps = Steps([*range(len(row))], start, stop, True, names[int(row[0])])
        found.append(((len(row) > 1, int(held.sum()), len(row)), steps))
    return max(found, key=lambda one: one[0])[1] if found else None


def _by_updates(names: list[str], end: IntArray, launched_ns: IntArray, first: int) -> Steps | None:
    """From the end of one update of the weights to the end of the next, where as much is launched in each.

    Updates of one optimizer; of several that have as many, the last of each step. What comes ``first`` is a
    step too where it launches what they do.
    """
    updates: dict[str, list[int]] = defaultdict(list)
    for name, at in zip(names, end.tolist(), strict=True):
        if name.startswith(_UPDATE) and at >= 0:  # one in which the recording ends has no end
            updates[name].append(at)
    if len({len(ends) for ends in updates.values()}) != 1:
        return None
    name = max(updates, key=lambda one: max(updates[one]))
    bounds = np.array([first, *sorted(updates[name])], np.int64)
    held = np.diff(np.searchsorted(np.sort(launched_ns), bounds))
    most = held[1:].max(initial=0)
    alike = np.abs(held - most) <= _UNLIKE * most
    since = 0 if alike[0] else 1
    if len(held) - since < 2 or not alike[since:].all():
        return None
    return Steps([*range(len(held) - since)], bounds[since:-1], bounds[since + 1 :], True, name)


def _mostly_outside(when: IntArray, start: IntArray, stop: IntArray) -> bool:
    """Are more of these times outside of the ranges than in one of them?"""
    at = np.searchsorted(start, when, side="right") - 1
    inside = (at >= 0) & (when < stop[at])
    return bool(2 * inside.sum() < len(when))
