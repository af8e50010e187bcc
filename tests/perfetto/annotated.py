"""Write an annotated trace and hold it against the rules of Chrome's trace format."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tracelens.analysis import Analysis, analyze
from tracelens.render.perfetto import Annotated, write_perfetto
from tracelens.words import COMPONENTS, PHASES

Event = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """An annotated file, read back."""

    analysis: Analysis
    result: Annotated
    document: Any
    events: list[Event]

    @property
    def added(self) -> list[Event]:
        return self.events[: self.result.added]

    @property
    def original(self) -> list[Event]:
        return self.events[self.result.added :]

    @property
    def track_names(self) -> dict[tuple[int, int], str]:
        return {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in self.added
            if event["name"] == "thread_name"
        }

    def slices(self, kind: str) -> list[Event]:
        """The added slices of the tracks of a kind: "component", "layer", "phase" or "findings"."""
        names = self.track_names
        return [
            event
            for event in self.added
            if event["ph"] == "X" and names[event["pid"], event["tid"]].startswith(f"tracelens: {kind} ")
        ]


def load(path: Path) -> Any:
    """The document, with every number's digits."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    return json.loads(data, parse_float=Decimal)


def events_of(document: Any) -> list[Event]:
    events = document if isinstance(document, list) else document["traceEvents"]
    assert isinstance(events, list)
    return events


def annotate(trace: Path, out: Path, *, device: int | None = None) -> Written:
    """Analyze, write all of it, read back, and check what must hold of every such file."""
    return annotated(analyze(trace, device=device), out)


def annotated(analysis: Analysis, out: Path) -> Written:
    """The same of what has been analyzed."""
    result = write_perfetto(analysis, out, keep_metadata=True)
    document = load(out)
    written = Written(analysis, result, document, events_of(document))
    assert len(written.events) == result.events + result.added
    _check_tracks(written)
    _check_components(written)
    _check_runs(written)
    _check_findings(written)
    return written


def _ns(us: Any) -> int:
    return int(Decimal(us) * 1000)


def span(event: Event) -> tuple[int, int]:
    return _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])


def kernel_spans(analysis: Analysis) -> dict[tuple[int, int], list[int]]:
    """GPU events by (start, end) in ns."""
    assert analysis.trace is not None
    kernels = analysis.trace.kernels
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (start, length) in enumerate(zip(kernels.ts_ns.tolist(), kernels.dur_ns.tolist(), strict=True)):
        found[start, start + length].append(row)
    return found


def _check_tracks(written: Written) -> None:
    """Every slice is on a named, sorted track that the trace does not use, and no two slices cross."""
    named = written.track_names
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in written.added:
        assert event["ph"] in ("M", "X")
        if event["ph"] == "X":
            assert set(event) >= {"name", "cat", "pid", "tid", "ts", "dur", "args", "cname"}
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(span(event))
    assert set(tracks) == set(named)
    assert len(set(named.values())) == len(named) or len({pid for pid, _ in named}) > 1
    assert len({tid for _, tid in named}) == len(named)  # Perfetto names threads by their tid alone
    taken = {event.get(key) for event in written.original for key in ("pid", "tid")}
    assert not taken & {number for track in named for number in track}
    for slices in tracks.values():
        assert slices == sorted(slices)
        open_until: list[int] = []
        for start, end in slices:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)
    sorted_by = [e for e in written.added if e["name"] == "thread_sort_index"]
    assert {(e["pid"], e["tid"]) for e in sorted_by} == set(named)
    assert len({e["args"]["sort_index"] for e in sorted_by}) == len(named)


def _check_components(written: Written) -> None:
    """One slice for each GPU event, with its times and its component."""
    attribution = written.analysis.attribution
    assert attribution is not None
    want: dict[tuple[tuple[int, int], str], int] = defaultdict(int)
    for where, rows in kernel_spans(written.analysis).items():
        for row in rows:
            want[where, COMPONENTS[attribution.component[row]]] += 1
    got: dict[tuple[tuple[int, int], str], int] = defaultdict(int)
    for event in written.slices("component"):
        got[span(event), event["name"]] += 1
    assert got == want


def _check_runs(written: Written) -> None:
    """A run begins and ends with GPU events of its phase or layer, and the runs count them all once."""
    attribution = written.analysis.attribution
    assert attribution is not None
    spans = kernel_spans(written.analysis)
    starts, ends = {start for start, _ in spans}, {end for _, end in spans}
    phases = written.slices("phase")
    layers = written.slices("layer")
    for event in (*phases, *layers):
        start, end = span(event)
        assert start in starts
        assert end in ends
    assert sum(event["args"]["gpu_events"] for event in phases) == len(attribution.phase)
    assert sum(event["args"]["gpu_events"] for event in layers) == int((attribution.layer >= 0).sum())
    assert {event["name"] for event in phases} == {PHASES[code] for code in attribution.phase}
    assert {event["args"]["layer"] for event in layers} == set(attribution.layer.tolist()) - {-1}


def _check_findings(written: Written) -> None:
    """Each finding lies on the GPU events of its GEMMs: as many, and as long, as its rows count."""
    report = written.analysis.report
    rows = {row.id: row for row in report.gemms}
    spans = kernel_spans(written.analysis)
    slices = written.slices("findings")
    assert all(span(event) in spans for event in slices)
    for finding in report.findings:
        own = [e for e in slices if e["args"]["rule"] == finding.rule and e["args"]["title"] == finding.title]
        time_us = sum(Decimal(event["dur"]) for event in own)
        want_us = sum(rows[gemm].time_ms for gemm in finding.gemms) * 1e3
        assert abs(float(time_us) - want_us) < 1e-2 + 1e-9 * want_us
        assert {event["args"]["gemm"] for event in own} == set(finding.gemms)
