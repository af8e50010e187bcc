"""What the CPU is in for most of the time in which the GPU is idle."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracelens.accounting.steps import StepTimes
from tracelens.results import IdleIn
from tracelens.results.step import IdleKind
from tracelens.trace import Links, Trace, look_up
from tracelens.trace.spans import covered, merged
from tracelens.trace.tables import Frames, Ops, Ranges

IntArray = npt.NDArray[np.int64]
_Spans = tuple[IntArray, IntArray]  # begins, ends

#: Of the idle time.
_MOST = 0.5
#: Of its share of idle time: a range that holds more of the launches idles as the rest of the step does.
_LAUNCHES = 0.8
_LONGEST = 60  # letters of a name
#: Python frames of C functions, and torch.compile's graphs, whose names (a hash) nobody knows.
_UNTOLD = re.compile(r"<built-in |## Call Compiled|Torch-Compiled Region|CompiledFunction")
_FOLDERS = re.compile(r"^(?:[^(]*/)(?=[^/(]*\.py\()")  # of a Python frame: folder/file.py(31): function


def idle_in(trace: Trace, links: Links, times: StepTimes) -> IdleIn | None:
    """The shortest range, else operator, else Python function that holds most of the idle time; None: none.

    Looked at are threads that launch kernels. What holds as much of the launches as of the idle time is a
    step, or a model, and tells nothing.
    """
    gaps, rows = _gaps(trace, times), links.kernel_launch[links.kernel_launch >= 0]
    when = np.sort(look_up(trace.launches.ts_ns, rows))
    idle_ns = int((gaps[1] - gaps[0]).sum())
    if not idle_ns or not len(rows):
        return None
    threads = np.unique(trace.launches.thread[rows])
    untold = trace.symbols.where(_UNTOLD.match)
    tables: tuple[tuple[IdleKind, Ranges | Ops | Frames], ...] = (
        ("range", trace.ranges), ("operator", trace.ops), ("function", trace.frames),
    )  # fmt: skip
    for kind, table in tables:
        found: list[tuple[int, str, int]] = []
        at = np.flatnonzero(np.isin(table.thread, threads) & ~untold[table.name])
        begin, end, name = table.ts_ns[at], table.ts_ns[at] + table.dur_ns[at], table.name[at]
        least = np.bincount(name, weights=covered(*gaps, begin, end)) if len(at) else np.zeros(0)
        for code in np.flatnonzero(least >= _MOST * idle_ns).tolist():
            spans = merged(begin[name == code], end[name == code])
            inside = int(covered(*spans, *gaps).sum())
            launches = int(np.diff(np.searchsorted(when, np.stack(spans)), axis=0).sum())
            if inside >= _MOST * idle_ns and launches / len(when) <= _LAUNCHES * inside / idle_ns:
                found.append((int((spans[1] - spans[0]).sum()), trace.symbols[code], inside))
        if found:
            _, text, inside = min(found)
            return IdleIn(kind, _FOLDERS.sub("", text)[:_LONGEST], inside / 1e6 / times.count)
    return None


def _gaps(trace: Trace, times: StepTimes) -> _Spans:
    """When no GPU event runs in the steps; what is outside of them counts as busy."""
    kernels = trace.kernels
    begin = np.concatenate([kernels.ts_ns, times.end_ns[:-1]])
    end = np.concatenate([kernels.ts_ns + kernels.dur_ns, times.start_ns[1:]])
    first, last = times.start_ns[:1], times.end_ns[-1:]
    begin, end = merged(np.concatenate([begin, last]), np.concatenate([end, last]))
    starts, ends = np.maximum(np.append(first, end[:-1]), first), np.minimum(begin, last)
    return starts[ends > starts], ends[ends > starts]
