"""What the CPU is in for most of the time in which the GPU is idle."""

from __future__ import annotations

import re

import numpy as np

from tracelens.accounting.steps import StepTimes
from tracelens.trace import IntArray, Links, Trace, look_up
from tracelens.trace.spans import covered, merged

#: Of the idle time.
_MOST = 0.5
#: Of its share of idle time: what holds more of the launches idles as the rest of the step does.
_LAUNCHES = 0.8
_LONGEST = 60  # letters of a name
#: Python frames of C functions and of torch.compile, its graphs and files named by a hash, and the step.
_UNTOLD = re.compile(
    r"<built-in |## Call Compiled|Torch-Compiled Region|CompiledFunction|ProfilerStep#"
    r"|.*(?:torch/(?:_(?:inductor|dynamo|functorch)|autograd)/|torch/_tensor\.py|/c[a-z2-7]{40,}\.py\()"
)
_FOLDERS = re.compile(r"^(?:[^(]*/)(?=[^/(]*\.py\()")  # of a Python frame: folder/file.py(31): function


def idle_in(trace: Trace, links: Links, times: StepTimes) -> tuple[str | None, float | None]:
    """The shortest range, else operator, else Python function that holds most idle time, and ms per step.

    Looked at are threads that launch kernels. What holds as much of the launches as of the idle time is a
    step, or a model, and tells nothing.
    """
    gaps, rows = _gaps(trace, times), links.kernel_launch[links.kernel_launch >= 0]
    when = np.sort(look_up(trace.launches.ts_ns, rows))
    idle_ns = int((gaps[1] - gaps[0]).sum()) if times.marked else 0
    untold = trace.symbols.where(_UNTOLD.match)
    for table in (trace.ranges, trace.ops, trace.frames) if idle_ns else ():
        found: list[tuple[int, str, int]] = []
        at = np.isin(table.thread, trace.launches.thread[rows]) & ~untold[table.name]
        begin, end, name = table.ts_ns[at], table.ts_ns[at] + table.dur_ns[at], table.name[at]
        most = np.bincount(name, weights=covered(*gaps, begin, end), minlength=1)
        for code in np.flatnonzero(most >= _MOST * idle_ns).tolist():
            spans = merged(begin[name == code], end[name == code])
            inside = int(covered(*spans, *gaps).sum())
            launches = int(np.diff(np.searchsorted(when, np.stack(spans)), axis=0).sum())
            if inside >= _MOST * idle_ns and launches * idle_ns <= _LAUNCHES * inside * len(when):
                found.append((int((spans[1] - spans[0]).sum()), trace.symbols[code], inside))
        if found:
            _, text, inside = min(found)
            return _FOLDERS.sub("", text)[:_LONGEST], inside / 1e6 / times.count
    return None, None


def _gaps(trace: Trace, times: StepTimes) -> tuple[IntArray, IntArray]:
    """When no GPU event runs in the steps; what is outside of them counts as busy."""
    kernels, first, last = trace.kernels, times.start_ns[:1], times.end_ns[-1:]
    begin, end = merged(
        np.concatenate([kernels.ts_ns, times.end_ns[:-1], last]),
        np.concatenate([kernels.ts_ns + kernels.dur_ns, times.start_ns[1:], last]),
    )
    starts, ends = np.maximum(np.append(first, end[:-1]), first), np.minimum(begin, last)
    return starts[ends > starts], ends[ends > starts]
