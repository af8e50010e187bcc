"""Which steps are none to measure: without GPU work, or cut by the beginning or the end of the trace.

A kernel that runs in a step's range and has no launch in the trace proves nothing: the CPU runs ahead, so it
is mostly the step before that still runs (in the nanoGPT traces that the README of the shared traces names,
the first step launches exactly the kernels of a later one, beside up to 1,041 of those). What proves a cut
is the step's own launches, in order, beside those of the other steps: a step that lacks the first of them,
and does the rest alike, lost its beginning; one that lacks the last lost its end. Where steps differ
otherwise, or there is nothing to compare with, a step counts as whole. A step that launches kernels which are
not in the trace has lost them (the profiler's buffers ran full), unless a graph was captured. Of a file that
ends early nothing is behind what its last events hold: the last step with GPU work is cut, and so is each of
which launches have lost a kernel, or GEMMs their launch: a file is not ordered by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tracelens.gemm import ATTENTION_OPS, GEMM_OPS
from tracelens.results import NotWhole
from tracelens.trace import BoolArray, IntArray, Links, Trace
from tracelens.trace.tables import MISSING

_ALIKE = 0.95  # of the kernels, place by place: the same work, but for an autotuned kernel or two
_MISSING = 0.01  # of a step's GPU time or launches: less is no cut that a figure shows
_LAUNCHES = 0.99  # of a call's events have a kernel: a call that launches one
#: Of a step without any GPU work in the trace.
NOTHING: tuple[NotWhole, ...] = ("no_gpu_work", "not_in_file")
_TELLING = 8  # kernels in a row that look like the missing ones


def not_whole(trace: Trace, links: Links, *, owned: BoolArray, early: IntArray) -> list[NotWhole | None]:
    """Per step why it is no whole one, None where it is.

    ``owned``: per step, does a kernel without a launch run in it that belongs to none before? ``early``:
    rows of the kernels without a launch that run before the first step's own, in order.
    """
    steps = links.steps
    if not steps.marked:
        return [None]
    count = len(steps.index)
    linked = np.flatnonzero(links.kernel_node >= 0)
    launched_at = links.ts_ns[links.kernel_node[linked]]
    order = np.lexsort((trace.kernels.ts_ns[linked], launched_at))
    of = links.kernel_step[linked[order]]
    own = [linked[order][of == at] for at in range(count)]
    begins = np.searchsorted(np.sort(trace.launches.ts_ns), np.stack([steps.start_ns, steps.end_ns]))
    calls = begins[1] > begins[0]  # some call to the driver, if only one without a kernel in the trace
    reasons: list[NotWhole | None] = [
        None if len(own[at]) or (owned[at] and (calls[at] or not len(linked))) else "no_gpu_work"
        for at in range(count)
    ]
    for at in _without_kernels(trace, links):
        reasons[at] = "cut_at_end"
    outside = launched_at[order][of < 0]
    if not (outside < steps.start_ns[0]).any() and _cut(trace, own[0], own[1:], early):
        reasons[0] = "cut_at_start"
    if not (outside >= steps.end_ns[-1]).any() and _cut(
        trace, own[-1][::-1], [one[::-1] for one in own[:-1]]
    ):
        reasons[-1] = "cut_at_end"
    for at in _with_lost_kernels(trace, links):
        reasons[at] = reasons[at] or "events_lost"
    if trace.truncated:
        last = max((at for at in range(count) if reasons[at] != "no_gpu_work"), default=-1)
        reasons[last + 1 :] = ["not_in_file"] * (count - last - 1)
        lost = {last, *_without_some_kernel(trace, links), *_without_some_launch(trace, links)}
        for at in lost & set(range(last + 1)):
            reasons[at] = "cut_at_end"
    return reasons


def _with_lost_kernels(trace: Trace, links: Links) -> list[int]:
    """Steps of which too many launches have lost their kernel; none where a graph was captured."""
    launches = trace.launches
    if trace.symbols.where(lambda name: "BeginCapture" in name or "GraphLaunch" in name)[launches.name].any():
        return []
    size = len(links.steps.index)
    at = _step_of(links, launches.ts_ns)
    at[launches.ts_ns >= np.append(links.steps.end_ns, 0)[at]] = -1  # between steps, and behind them
    every, lost = (
        np.bincount(at[rows] + 1, minlength=size + 1)[1:]
        for rows in (_kernel_launches(trace), _lost_launches(trace, links))
    )
    return np.flatnonzero(lost > _MISSING * every).tolist()


def _kernel_launches(trace: Trace) -> BoolArray:
    return trace.symbols.where(lambda name: "LaunchKernel" in name)[trace.launches.name]


def _lost_launches(trace: Trace, links: Links) -> BoolArray:
    """Per launch of a kernel: is that not in the trace? In whole files only captured graphs have such.

    Processes put together in one file number their launches alike: one of that number has not lost its own.
    """
    lost = _kernel_launches(trace)
    lost[links.kernel_launch[links.kernel_launch >= 0]] = False
    found = trace.kernels.correlation
    lost[np.isin(trace.launches.correlation, found[found != MISSING])] = False
    return lost


def _without_some_kernel(trace: Trace, links: Links) -> list[int]:
    """Steps with a launch whose kernel is not in the trace."""
    return _steps_of(links, trace.launches.ts_ns[_lost_launches(trace, links)])


def _without_some_launch(trace: Trace, links: Links) -> list[int]:
    """Steps with a GEMM or an attention that launches nothing, as none does in a whole file."""
    ops, launches = trace.ops, trace.launches
    wanted = trace.symbols.where(lambda name: name.partition(".")[0] in GEMM_OPS | ATTENTION_OPS)[ops.name]
    lost = np.zeros(len(ops), np.bool_)
    for thread in np.unique(ops.thread[wanted]).tolist():
        made = np.sort(launches.ts_ns[launches.thread == thread])
        mine = np.flatnonzero(wanted & (ops.thread == thread))
        first = np.searchsorted(made, ops.ts_ns[mine])
        lost[mine] = first == np.searchsorted(made, ops.ts_ns[mine] + ops.dur_ns[mine], side="right")
    return _steps_of(links, ops.ts_ns[lost])


def _steps_of(links: Links, when_ns: IntArray) -> list[int]:
    """Steps in which, or behind which, something of these times is."""
    return sorted(set(_step_of(links, when_ns).tolist()) - {-1})


def _step_of(links: Links, when_ns: IntArray) -> IntArray:
    """Of each time the step that began last; -1 before the first."""
    return np.searchsorted(links.steps.start_ns, when_ns, side="right") - 1


def _cut(trace: Trace, own: IntArray, others: Sequence[IntArray], early: IntArray | None = None) -> bool:
    """Does a step lack the first of the kernels that the others launch, and else does what they do?

    Two others must say so, and none do just what it does: one micro-batch without the optimizer is the
    beginning of one with it. One other is enough where the missing kernels ran ``early``.
    """
    others = [one for one in others if len(one)]
    name, dur = trace.kernels.name, trace.kernels.dur_ns

    def lack(other: IntArray) -> int:
        """How many of the other's first kernels this step lacks; 0 where it is not the rest of that step."""
        missing = len(other) - len(own)
        rest, first = other[max(0, missing) :], other[: max(0, missing)]
        if missing < 0 or (name[rest] == name[own]).mean() < _ALIKE:
            return 0
        start = min(missing, len(own))
        # fewer micro-batches, not a cut
        begins_alike = bool((name[other[:start]] == name[own[:start]]).all())
        return 0 if begins_alike or dur[first].sum() < _MISSING * dur[other].sum() else missing

    if not len(own):
        return False
    if any(len(one) == len(own) and (name[one] == name[own]).mean() >= _ALIKE for one in others):
        return False
    lacks = [lack(other) for other in others]
    if sum(map(bool, lacks)) > 1:
        return True
    if early is None:
        return False
    for other, missing in zip(others, lacks, strict=True):
        seen = min(missing, len(early))
        if seen >= min(missing, _TELLING) > 0:
            ran, wanted = (
                Counter(name[early[-seen:]].tolist()),
                Counter(name[other[missing - seen : missing]].tolist()),
            )
            if (ran & wanted).total() >= _ALIKE * seen:
                return True
    return False


def _without_kernels(trace: Trace, links: Links) -> list[int]:
    """Steps at the end whose launches are in the trace and the kernels of the last of them are not."""
    launches, steps = trace.launches, links.steps
    made = np.zeros(len(launches), np.bool_)
    made[links.kernel_launch[links.kernel_launch >= 0]] = True
    if not made.any():
        return []
    last = int(launches.ts_ns[made].max())
    before = launches.ts_ns <= last
    size = int(launches.name.max()) + 1
    total, with_kernel = (
        np.bincount(launches.name[mask], minlength=size) for mask in (before, before & made)
    )
    launching = (with_kernel > 0) & (with_kernel >= _LAUNCHES * total)
    calls = launching[launches.name]
    found = []
    for at, (start, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        mine = calls & (launches.ts_ns >= start) & (launches.ts_ns < end)
        if (mine & ~before).sum() > _MISSING * mine.sum():
            found.append(at)
    return found
