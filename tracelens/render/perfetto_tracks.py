"""The tracks that tracelens adds to a trace: component, layer, phase and findings of every GPU stream.

Chrome's JSON draws one track per (pid, tid), and slices of a track must not cross: each device gets a
process of its own and each stream its own tracks, more of them where the stream's events overlap.
Perfetto gives colours by name and leaves ``cname`` out (google/perfetto issue 624); chrome://tracing
takes it, from the reserved names of catapult's ``tracing/base/color_scheme.html``. Sort indexes are
taken by both (Perfetto since its pull request 3273, October 2025).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.attribution import Attribution, Calls
from tracelens.attribution.words import REASONS
from tracelens.results import Finding, GemmRow, Report
from tracelens.trace import Links, Trace
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

_Rows = npt.NDArray[np.int64]

#: Numbers that no process and no CUDA stream has, and that fit the 32 bits Perfetto reads.
_FIRST_PID = 2_060_000_000
_FIRST_TID = 2_061_000_000
#: Kineto sorts GPUs behind every process, from 5,000,000 on (newer ones from 16,777,216); no process of
#: Linux has a number this high (at most 4,194,304).
_SORT_BEFORE_GPUS = 4_900_000
_MOST_LANES = 32
_TRACKS = ("component", "layer", "phase", "findings")

_COLOURS = {
    "attention": "thread_state_runnable",
    "mlp": "thread_state_running",
    "moe": "olive",
    "ssm": "rail_load",
    "embedding": "thread_state_iowait",
    "logits": "thread_state_iowait",
    "loss": "thread_state_iowait",
    "norm": "thread_state_unknown",
    "residual": "thread_state_unknown",
    "dropout": "thread_state_unknown",
    "optimizer": "thread_state_uninterruptible",
    "grad_clip": "thread_state_uninterruptible",
    "communication": "detailed_memory_dump",
    "memory": "background_memory_dump",
    "other": "generic_work",
    "unattributed": "grey",
}
_PHASE_COLOURS = {
    "forward": "thread_state_runnable",
    "backward": "thread_state_running",
    "recompute": "yellow",
    "optimizer": "thread_state_uninterruptible",
    "other": "grey",
}
_SEVERITY_COLOURS = {"high": "terrible", "medium": "bad", "low": "yellow"}


@dataclass(frozen=True, slots=True)
class _Lane:
    """Events of one stream of which no two overlap, in order."""

    pid: int
    stream: int
    number: int  # 0 is the stream's own; the others hold what overlaps it
    rows: list[int]


class Tracks:
    """The added events of one analysis, as JSON."""

    def __init__(
        self, report: Report, trace: Trace, links: Links, attribution: Attribution, calls: Calls
    ) -> None:
        self._report, self._trace, self._attribution = report, trace, attribution
        self._ts, self._dur = trace.kernels.ts_ns.tolist(), trace.kernels.dur_ns.tolist()
        self._facts = _Facts(report, trace, links, attribution, calls)
        self._by_gemm = _findings_by_gemm(report)
        phase, step = attribution.phase.tolist(), attribution.step.tolist()
        self._phase_keys = list(zip(phase, step, strict=True))
        self._layer_keys = list(zip(attribution.layer.tolist(), phase, step, strict=True))
        self._tid = _free(_FIRST_TID, trace)
        self.left_out = 0  # GPU events that overlap too many others of their stream

    def events(self) -> Iterator[bytes]:
        """Names first, then the slices of each track in order of time."""
        devices = self._trace.kernels.device
        first_pid = _free(_FIRST_PID, self._trace)
        for at, device in enumerate(np.unique(devices).tolist()):
            pid = first_pid + at
            yield from self._process(pid, device)
            for lane in self._lanes(pid, np.flatnonzero(devices == device)):
                yield from self._lane(lane)

    def _process(self, pid: int, device: int) -> Iterator[bytes]:
        gpu = f"GPU {device}" if device >= 0 else "GPU"
        yield _named("process_name", pid, name=f"tracelens: {gpu}")
        label = f"{gpu}, annotated"
        if self._trace.partial:
            label += "; partial: the trace is damaged or cut off"
        yield _named("process_labels", pid, labels=label)
        yield _named("process_sort_index", pid, sort_index=_SORT_BEFORE_GPUS + max(device, 0))

    def _lanes(self, pid: int, rows: _Rows) -> Iterator[_Lane]:
        streams = self._trace.kernels.stream[rows]
        for stream in np.unique(streams).tolist():
            own = rows[streams == stream]
            order = np.lexsort((self._trace.kernels.dur_ns[own], self._trace.kernels.ts_ns[own]))
            lanes: list[list[int]] = []
            ends: list[int] = []
            for row in own[order].tolist():
                start = self._ts[row]
                number = next((at for at, end in enumerate(ends) if end <= start), len(lanes))
                if number == _MOST_LANES:
                    self.left_out += 1
                    continue
                if number == len(lanes):
                    lanes.append([])
                    ends.append(start)
                lanes[number].append(row)
                ends[number] = start + self._dur[row]
            for number, members in enumerate(lanes):
                yield _Lane(pid, stream, number, members)

    def _lane(self, lane: _Lane) -> Iterator[bytes]:
        makers = (self._components, self._layers, self._phases, self._findings)
        for kind, maker in zip(_TRACKS, makers, strict=True):
            tid = self._tid
            slices = maker(lane, tid)
            first = next(slices, None)
            if first is None:  # no layer, no finding on this stream: no empty track
                continue
            self._tid += 1
            stream = f"stream {lane.stream}" if lane.stream >= 0 else "stream unknown"
            more = f", overlapping {lane.number}" if lane.number else ""
            yield _named("thread_name", lane.pid, tid, name=f"tracelens: {kind} ({stream}{more})")
            yield _named("thread_sort_index", lane.pid, tid, sort_index=tid - _FIRST_TID)
            yield first
            yield from slices

    def _components(self, lane: _Lane, tid: int) -> Iterator[bytes]:
        codes = self._attribution.component
        for row in lane.rows:
            name = COMPONENTS[codes[row]]
            colour = _COLOURS[name.partition(".")[0]]
            yield self._slice(lane.pid, tid, row, row, name, colour, self._facts.of(row))

    def _layers(self, lane: _Lane, tid: int) -> Iterator[bytes]:
        a = self._attribution
        for _, together in groupby(lane.rows, self._layer_keys.__getitem__):
            run = [*together]
            layer, phase = int(a.layer[run[0]]), PHASES[a.phase[run[0]]]
            if layer >= 0:
                args = self._run_args(run) | {"layer": layer, "phase": phase}
                yield self._slice(
                    lane.pid, tid, run[0], run[-1], f"layer {layer}", _PHASE_COLOURS[phase], _json(args)
                )

    def _phases(self, lane: _Lane, tid: int) -> Iterator[bytes]:
        a = self._attribution
        for _, together in groupby(lane.rows, self._phase_keys.__getitem__):
            run = [*together]
            phase = PHASES[a.phase[run[0]]]
            args = _json(self._run_args(run) | {"phase": phase})
            yield self._slice(lane.pid, tid, run[0], run[-1], phase, _PHASE_COLOURS[phase], args)

    def _findings(self, lane: _Lane, tid: int) -> Iterator[bytes]:
        for row in lane.rows:
            gemm = self._facts.gemm(row)
            for finding in self._by_gemm.get(gemm.id, ()) if gemm else ():
                name = f"{finding.rule} {finding.title}"
                colour = _SEVERITY_COLOURS.get(finding.severity, "grey")
                yield self._slice(lane.pid, tid, row, row, name, colour, _finding_args(finding, gemm))

    def _run_args(self, run: list[int]) -> dict[str, Any]:
        """What a run of GPU events comes to; it holds the idle time between them, its GPU time does not."""
        step = self._facts.step(run[0])
        args: dict[str, Any] = {
            "gpu_events": len(run),
            "gpu_time_us": sum(self._dur[row] for row in run) / 1e3,
        }
        return args if step is None else args | {"step": step}

    def _slice(self, pid: int, tid: int, first: int, last: int, name: str, colour: str, args: str) -> bytes:
        """A slice from the start of one GPU event to the end of another (or the same) of its lane."""
        start = self._ts[first]
        stop = self._ts[last] + self._dur[last]
        return (
            f'{{"ph":"X","cat":"tracelens","name":{_json(name)},"pid":{pid},"tid":{tid},'
            f'"ts":{_us(start)},"dur":{_us(stop - start)},"cname":"{colour}","args":{args}}}'
        ).encode("ascii")


class _Facts:
    """What is known of a GPU event, as the arguments of its slice."""

    def __init__(
        self, report: Report, trace: Trace, links: Links, attribution: Attribution, calls: Calls
    ) -> None:
        self._trace, self._links, self._attribution = trace, links, attribution
        self._rows = report.gemms
        self._row = calls.row_of_kernel.tolist()
        self._reasons = [why for why, _ in REASONS.values()]

    def gemm(self, row: int) -> GemmRow | None:
        """The row of the GEMM table that the event is counted in, if any."""
        return self._rows[self._row[row]] if self._row[row] >= 0 else None

    def step(self, row: int) -> int | None:
        """N of its ProfilerStep#N; None outside every step, and where none is marked."""
        position = int(self._attribution.step[row])
        steps = self._links.steps
        return steps.index[position] if steps.marked and position >= 0 else None

    def of(self, row: int) -> str:
        """Arguments as JSON, without what is not known."""
        a, trace = self._attribution, self._trace
        op = int(self._links.kernel_op[row])
        reason, layer, module = int(a.reason[row]), int(a.layer[row]), int(a.module[row])
        args: dict[str, Any] = {
            "evidence": EVIDENCE[a.evidence[row]],
            "components": " + ".join(a.components[int(a.fused[row])]),
            "one of": " | ".join(a.components[int(a.candidates[row])]),
            "why unattributed": self._reasons[reason] if reason >= 0 else None,
            "phase": PHASES[a.phase[row]],
            "step": self.step(row),
            "layer": layer if layer >= 0 else None,
            "module": a.modules[module] if module >= 0 else None,
            "op": trace.symbols[int(trace.ops.name[op])] if op >= 0 else None,
            "correlation": int(trace.kernels.correlation[row]),
        }
        gemm = self.gemm(row)
        if args["correlation"] < 0:
            del args["correlation"]
        known = {name: value for name, value in args.items() if value is not None and value != ""}
        return _json(known | (_gemm_args(gemm) if gemm else {}))


def _gemm_args(row: GemmRow) -> dict[str, Any]:
    """The shape as PyTorch sees it, out[M,N] = a[M,K] @ b[K,N]."""
    args: dict[str, Any] = {"gemm": row.id, "role": row.role, "dtype": row.dtype, "layout": row.layout}
    if row.m is not None and row.n is not None and row.k is not None:
        args["shape"] = f"M={row.m} N={row.n} K={row.k}"
        args["batch"] = row.batch if row.batch != 1 else None
    else:
        args["shape"] = row.shape_note
    return {name: value for name, value in args.items() if value is not None}


def _finding_args(finding: Finding, gemm: GemmRow | None) -> str:
    saving = finding.saving_ms
    return _json(
        {
            "rule": finding.rule,
            "title": finding.title,
            "saving of the whole finding, ms": {
                "of": finding.saving_of,
                "low": saving.low,
                "mid": saving.mid,
                "high": saving.high,
                "basis": saving.basis,
            },
            "severity": finding.severity,
            "confidence": finding.confidence,
            "fix": "\n".join(finding.fix),
            **(_gemm_args(gemm) if gemm else {}),
        }
    )


def _findings_by_gemm(report: Report) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in report.findings:
        for gemm in dict.fromkeys(finding.gemms):
            found.setdefault(gemm, []).append(finding)
    return found


def _free(first: int, trace: Trace) -> int:
    """``first``, or behind the numbers of that range that the trace itself uses."""
    used = [number for pair in (*trace.threads, *trace.thread_names) for number in pair]
    taken = [n for n in used if isinstance(n, int) and first <= n < first + 1_000_000]
    return max(taken) + 1 if taken else first


def _named(kind: str, pid: int, tid: int = 0, **args: Any) -> bytes:
    event = {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
    return _json(event).encode("ascii")


def _us(ns: int) -> str:
    """Microseconds with every nanosecond: a float of epoch time holds quarters of a microsecond only.

    >>> _us(1_700_000_000_000_000_001), _us(-5)
    ('1700000000000000.001', '-0.005')
    """
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


@cache
def _encoder() -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _json(value: Any) -> str:
    """ASCII only: whatever a name holds, it is text in the file."""
    return _encoder().encode(value)
