"""tracelens's tables in the form that holistic-trace-analysis (HTA) works on.

One row per operator, launch, host range and GPU event; strings by code. What is done otherwise than in
HTA's own loader, and why:

* Times are whole nanoseconds from the first event on. HTA's doubles in microseconds would let its
  assertions fail on the last bit, and its rounding moves every event.
* A kernel finds its launch by our link, not by correlation: ids that repeat, and launches that another
  process wrote, confuse nothing. A launch without a kernel here has 0, as HTA has it.
* Streams of different GPUs that share a number are kept apart; no stream is -1, which HTA takes for the host.
* HTA tells computing, communication and copies by a kernel's name (``hta.common.types``). Where that
  differs from what the trace says (a copy's category) or from our attribution (DeepEP and NVSHMEM,
  kernels with "dma" or "Sync" in their name), the kernel gets a name that HTA reads rightly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracelens.attribution import Attribution
from tracelens.hta.library import HtaLibrary, quiet
from tracelens.trace import BoolArray, IntArray, Links, Trace, distinct_rows
from tracelens.words import COMPONENTS

RANK = 0  # HTA wants one; a trace is one rank's
#: A range around the step whose critical path is wanted. HTA takes every range whose name contains this.
WINDOW = "tracelens: one step"
#: HTA's critical path has a limit in microseconds built in (KERNEL_KERNEL_DELAY_THRESHOLD_US, 1500), so its
#: unit must be about one. In doubles of this one every sum and difference of whole ns is exact; in
#: microseconds the last bit lets a child end after its parent, and the graph gets cycles.
TICK_NS = 1024
_COMMUNICATION = COMPONENTS.index("communication")
_COPIES = ("gpu_memcpy", "gpu_memset")
#: HTA's classes, and names that it puts into them.
_KINDS = (("COMPUTATION", "kernel {}"), ("MEMORY", "Memcpy {}"), ("COMMUNICATION", "ncclKernel {}"))
_HOST, _GPU = 1, 0  # pid; HTA knows a GPU by pid 0
_FOLLOWED = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1, "iteration": -1}


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of one trace, for the GPU events that count."""

    frame: pd.DataFrame  # in HTA's columns, times in ns; index and column "index" from 1 on
    symbols: list[str]
    streams: list[tuple[int, int]]  # (device, stream) by HTA's stream number - 1
    origin_ns: int  # the trace's time of 0

    def analysis(self, hta: HtaLibrary, frame: pd.DataFrame | None = None) -> Any:
        """HTA's ``TraceAnalysis`` on these rows, or on others in the same columns."""
        with quiet():
            trace = hta.trace(trace_files={}, trace_dir=".")
            trace.traces = {RANK: (self.frame if frame is None else frame).copy()}
            trace.symbol_table.add_symbols(self.symbols)
            trace.meta_data = {RANK: {}}
            trace.is_parsed = True
            analysis = hta.analysis.__new__(hta.analysis)
            analysis.t = trace
        return analysis

    def without_overlap(self) -> pd.DataFrame:
        """The same rows with each stream's events cut where an earlier one of that stream still runs.

        Kernels of a CUDA graph or with programmatic launch overlap on one stream. HTA takes the gap to
        the event before, not to the latest end, and adds gaps below zero; now there is none.
        """
        frame = self.frame.copy()
        gpu = frame["stream"].to_numpy() > 0
        part = frame.loc[gpu].sort_values(["stream", "ts", "index"], kind="stable")
        reach = part.groupby("stream")["end"].cummax()
        before = reach.groupby(part["stream"]).shift(fill_value=0)
        start = np.maximum(part["ts"], before)
        frame.loc[part.index, "ts"] = start
        frame.loc[part.index, "end"] = np.maximum(part["end"], start)
        frame.loc[part.index, "dur"] = frame.loc[part.index, "end"] - start
        return frame

    def in_ticks(self, start_ns: int, end_ns: int) -> pd.DataFrame:
        """The same rows in ticks of ``TICK_NS``, with the range ``WINDOW`` around a stretch of host time."""
        start = start_ns - self.origin_ns
        row = dict.fromkeys(self.frame.columns, -1) | {
            "index": len(self.frame) + 1,
            "cat": self.symbols.index("user_annotation"),
            "name": self.symbols.index(WINDOW),
            "pid": _HOST,
            "tid": 0,
            "ts": start,
            "dur": end_ns - start_ns,
            "end": end_ns - self.origin_ns,
        }
        frame = pd.concat([pd.DataFrame(row, index=[row["index"]]), self.frame])
        frame[["ts", "dur", "end"]] = frame[["ts", "dur", "end"]] / TICK_NS
        return frame


def tables(
    trace: Trace, links: Links, attribution: Attribution, hta: HtaLibrary, *, counted: BoolArray
) -> Tables:
    """Build the rows; of the GPU events only those in ``counted``."""
    kernels, ranges = trace.kernels, trace.ranges
    gpu = np.flatnonzero(counted)
    host = np.flatnonzero(~trace.symbols.where(lambda name: name == "gpu_user_annotation")[ranges.category])
    symbols = _Symbols([*trace.symbols])
    names = _names(trace, attribution, hta, gpu, symbols)
    op, runtime, annotation, _ = map(symbols.code, ("cpu_op", "cuda_runtime", "user_annotation", WINDOW))
    pairs = np.stack([kernels.device[gpu].astype(np.int64), kernels.stream[gpu]], axis=1)
    streams, stream = distinct_rows(pairs)
    stream = stream.astype(np.int64) + 1
    sizes = (len(trace.ops), len(trace.launches), len(host), len(gpu))
    parts = (
        (trace.ops, np.arange(len(trace.ops)), op),
        (trace.launches, np.arange(len(trace.launches)), runtime),
        (ranges, host, annotation),
    )
    ts = np.concatenate([*(table.ts_ns[rows] for table, rows, _ in parts), kernels.ts_ns[gpu]])
    dur = np.concatenate([*(table.dur_ns[rows] for table, rows, _ in parts), kernels.dur_ns[gpu]])
    origin = int(ts.min())
    on_host = sum(sizes[:3])
    correlation, index_correlation = _correlations(links, gpu, sizes)
    index = np.arange(1, len(ts) + 1)
    frame = pd.DataFrame(
        {
            "index": index,
            "cat": np.concatenate(
                [*(np.full(len(rows), code) for _, rows, code in parts), kernels.category[gpu]]
            ),
            "name": np.concatenate([*(table.name[rows] for table, rows, _ in parts), names]),
            "pid": np.repeat([_HOST, _GPU], [on_host, len(gpu)]),
            "tid": np.concatenate([*(table.thread[rows] + 1 for table, rows, _ in parts), stream]),
            "ts": ts - origin,
            "dur": dur,
            "stream": np.concatenate([np.full(on_host, -1), stream]),
            "correlation": correlation,
            "index_correlation": index_correlation,
            "end": ts - origin + dur,
        }
        | _FOLLOWED,
        index=pd.Index(index),
    )
    return Tables(frame, symbols.texts, [(int(a), int(b)) for a, b in streams.tolist()], origin)


def _correlations(links: Links, gpu: IntArray, sizes: tuple[int, ...]) -> tuple[IntArray, IntArray]:
    """HTA's two columns: an id that launch and kernel share, and the other one's row (0: not here)."""
    ops, launches, ranges, _ = sizes
    correlation = np.full(sum(sizes), -1, np.int64)
    partner = np.full(sum(sizes), -1, np.int64)
    launch = links.kernel_launch[gpu].astype(np.int64)
    linked = np.flatnonzero(launch >= 0)
    first = ops + launches + ranges
    correlation[ops : ops + launches] = np.arange(launches)
    partner[ops : ops + launches] = 0
    partner[first:] = 0
    correlation[first + linked] = launch[linked]
    partner[first + linked] = ops + launch[linked] + 1
    partner[ops + launch[linked]] = first + linked + 1
    return correlation, partner


class _Symbols:
    """The trace's strings and what is added to them; each stands there once, as HTA needs it."""

    def __init__(self, texts: list[str]):
        self.texts = texts
        self._codes = {text: code for code, text in enumerate(texts)}

    def code(self, text: str) -> int:
        if text not in self._codes:
            self._codes[text] = len(self.texts)
            self.texts.append(text)
        return self._codes[text]


def _names(
    trace: Trace, attribution: Attribution, hta: HtaLibrary, gpu: IntArray, symbols: _Symbols
) -> IntArray:
    """A name per GPU event that HTA classes rightly: its own wherever that does."""
    copies = trace.symbols.where(lambda text: text in _COPIES)[trace.kernels.category[gpu]]
    kind = np.where(copies, 1, np.where(attribution.component[gpu] == _COMMUNICATION, 2, 0))
    pairs, which = np.unique(
        np.stack([trace.kernels.name[gpu].astype(np.int64), kind]), axis=1, return_inverse=True
    )
    out = pairs[0].copy()
    for at, (name, sort) in enumerate(pairs.T.tolist()):
        wanted, spelled = _KINDS[sort]
        if hta.kernel_type(trace.symbols[name]) != wanted:
            out[at] = symbols.code(spelled.format(name))
    given: IntArray = out[which.reshape(-1)]
    return given
