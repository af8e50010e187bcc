"""What the CPU is in while the GPU waits: compiling, graph breaks, fetching a batch; copies that hold it."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracelens.accounting.steps import StepTimes
from tracelens.results import HostWait
from tracelens.results.step import HostWork
from tracelens.trace import IntArray, Links, Trace, look_up
from tracelens.trace.nesting import covered, merged

_Spans = tuple[IntArray, IntArray]  # begins, ends

#: ``torch/_dynamo/utils.py`` opens a range for each stage of a compilation, "entire_frame_compile
#: (dynamo_timed)"; ``torch/utils/data/dataloader.py`` one for each batch, whose name says whether
#: worker processes fetch it.
_RANGES: dict[HostWork, re.Pattern[str]] = {
    "compile": re.compile(r"\(dynamo_timed\)$|^entire_(?:frame|backward)_compile"),
    "data": re.compile(r"^enumerate\(DataLoader\)#(?!.*MultiProcessing).*\.__next__$"),
    "workers": re.compile(r"^enumerate\(DataLoader\)#.*MultiProcessing.*\.__next__$"),
}
#: ``torch/_dynamo`` opens one for each frame that it runs compiled. What stands within another and in none
#: of its graphs (a custom operator's own) is reached by a graph break: without one Dynamo compiles it
#: as a part of the other.
_REGION = re.compile(r"^Torch-Compiled Region")
#: The calls of compiled graphs in them, by ``torch/_inductor/output_code.py`` and AOTAutograd.
_GRAPH = re.compile(r"^## Call CompiledFxGraph|^CompiledFunction$")
_COPIES: dict[HostWork, re.Pattern[str]] = {
    "pageable": re.compile(r"Memcpy HtoD \(Pageable"),
    "fetch": re.compile(r"Memcpy DtoH \(Device -> Pageable"),
}


def host_waits(trace: Trace, links: Links, times: StepTimes) -> list[HostWait]:
    """Per kind of work the ms per step in which nothing else runs on the GPU; kinds that are there only.

    Ranges on the CPU count where no GPU event runs, copies from or to pageable memory where no kernel does.
    Behind a copy to it the GPU has nothing queued: until its next event counts too, but for those ranges,
    and no more than the CPU waits for the copy: what it does afterwards comes earlier by that at most.
    """
    kernels, windows = trace.kernels, (times.start_ns, times.end_ns)
    begin, end = kernels.ts_ns, kernels.ts_ns + kernels.dur_ns
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[kernels.category]
    work = {kind: _ranges(trace, pattern) for kind, pattern in _RANGES.items()} | {"break": _breaks(trace)}
    found = [_wait(kind, spans, (begin, end), windows) for kind, spans in work.items()]
    computes = (begin[is_kernel], end[is_kernel])
    for kind, pattern in _COPIES.items():
        copies = trace.symbols.where(pattern.match)[kernels.name]
        spans, busy = (begin[copies], end[copies]), computes
        if kind == "fetch":
            launch, then = links.kernel_launch[copies], _next(begin, spans[1])
            waited = spans[1] - look_up(trace.launches.ts_ns, launch)
            spans = spans[0], np.where(launch < 0, then, np.minimum(then, spans[0] + waited))
            busy = _together(computes, *work.values())
        found.append(_wait(kind, spans, busy, windows))
    return [one for one in found if one is not None]


def _next(begin: IntArray, after: IntArray) -> IntArray:
    """When the first event from each time on begins; that time itself behind the last one."""
    begin = np.sort(begin)
    place = np.searchsorted(begin, after)
    return np.where(place < len(begin), begin[np.minimum(place, len(begin) - 1)], after)


def _together(*spans: _Spans) -> _Spans:
    return np.concatenate([begin for begin, _ in spans]), np.concatenate([end for _, end in spans])


def _ranges(trace: Trace, pattern: re.Pattern[str]) -> _Spans:
    """Named ranges and operators of the CPU."""
    named = trace.symbols.where(pattern.search)
    shadow = trace.symbols.where(lambda text: text.startswith("gpu_"))
    of_ranges = named[trace.ranges.name] & ~shadow[trace.ranges.category]
    of_ops = named[trace.ops.name]
    begin = np.concatenate([trace.ranges.ts_ns[of_ranges], trace.ops.ts_ns[of_ops]])
    dur = np.concatenate([trace.ranges.dur_ns[of_ranges], trace.ops.dur_ns[of_ops]])
    return begin, begin + dur


def _breaks(trace: Trace) -> _Spans:
    """From the compiled graph before each graph break to the compiled code that goes on after it."""
    ops, region = trace.ops, trace.symbols.where(_REGION.search)[trace.ops.name]
    graphs = _ranges(trace, _GRAPH)
    done = np.sort(graphs[1])
    spans: list[tuple[int, int]] = []
    for thread in np.unique(ops.thread[region]).tolist():
        at = np.flatnonzero(region & (ops.thread == thread))
        begin, end = ops.ts_ns[at], ops.ts_ns[at] + ops.dur_ns[at]
        order = np.lexsort((-end, begin))
        outer: list[tuple[int, int]] = []
        for start, stop in zip(begin[order].tolist(), end[order].tolist(), strict=True):
            while outer and outer[-1][1] <= start:
                outer.pop()
            if outer and not bool(((graphs[0] <= start) & (start < graphs[1])).any()):
                before = int(np.searchsorted(done, start, side="right"))
                last = int(done[before - 1]) if before else outer[-1][0]
                spans.append((max(last, outer[-1][0]), start))
            outer.append((start, stop))
    found = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _wait(kind: HostWork, work: _Spans, busy: _Spans, windows: _Spans) -> HostWait | None:
    """The time of the work in the windows in which nothing is busy, each moment once."""
    steps = len(windows[0])
    inside = covered(*windows, *work) > 0
    if not steps or not inside.any():
        return None
    alone = covered(*_together(work, busy), *windows) - covered(*busy, *windows)
    return HostWait(kind, int(alone.sum()) / 1e6 / steps, _outermost(work, inside) / steps)


def _outermost(work: _Spans, inside: npt.NDArray[np.bool_]) -> int:
    """How many of these spans lie in no other: a compilation has stages within stages."""
    begin, end = work[0][inside], work[1][inside]
    order = np.lexsort((-end, begin))
    reach = np.maximum.accumulate(end[order])
    return int(1 + (begin[order][1:] >= reach[:-1]).sum())


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
