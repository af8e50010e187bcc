"""Kineto's file layout, as libkineto/src/output_json.cpp writes it since torch 2.11: one key a line.

Order in the file: process and thread names, ops of the autograd thread, ops of the main thread,
Python frames, GPU activity beside its launches, GPU annotations, the span, two markers. fwdbwd
arrows follow their op, ac2g arrows their activity.
"""

from __future__ import annotations

import json
from typing import Any

from tests.synthetic.recorder import AUTOGRAD, COMPUTE_STREAM, MAIN, PID, START_NS, Recorder
from tests.synthetic.spec import Event, Options, Synthetic

BASE_NS = 1_790_857_026_000_000_000
GENERATED_BY = "tests/synthetic"


def header(options: Options) -> dict[str, Any]:
    """Top-level keys of an H100 recording, with two more that say it is simulated."""
    device = {
        "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028634624, "computeMajor": 9,
        "computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536, "warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132,
        "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448,
        "sharedMemPerMultiprocessor": 233472,
    }  # fmt: skip
    top: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [device]}
    top |= {"generated": True, "generated_by": GENERATED_BY}
    top |= {"cuda_runtime_version": 13000, "cuda_driver_version": 13000, "cupti_version": 130001}
    if options.module_frames:
        top["with_stack"] = 1
    if options.shapes:
        top["record_shapes"] = 1
    if options.all_reduce:
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8,
                 "ranks": list(range(8))}  # fmt: skip
        top["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": 8, "pg_count": 1,
                                  "pg_config": [group], "nccl_version": "2.27.5"}  # fmt: skip
    top["trace_id"] = "5E17A3C09D4B4F21A6D80C3B7F92E164"
    return top | {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}


def in_file_order(rec: Recorder) -> list[Event]:
    """Every event of the recording where Kineto would put it, event indices and arrow ids filled in."""
    host = [*sorted(rec.ops[AUTOGRAD], key=lambda e: e.ts), *rec.ops[MAIN], *rec.python]
    for index, event in enumerate(host):
        event.args["Ev Idx"] = index
    arrows: dict[int, int] = {}
    for event in host:
        if event.flow is not None:
            phase, sequence, category = event.flow
            event.flow = (phase, arrows.setdefault(sequence, len(arrows) + 1), category)
    device = [*rec.activity, *rec.gpu_annotations()]
    end = max(e.ts + e.dur for e in [*host, *device])
    return [*_names(rec), *host, *device, *_closing(end)]


def _meta(name: str, pid: int | str, tid: int, key: str, value: int | str) -> Event:
    return Event("M", "", name, pid, tid, START_NS, 0, {key: value})


def _names(rec: Recorder) -> list[Event]:
    rows = []
    for pid, label, order in ((PID, "CPU", PID), (0, "GPU 0", 5_000_000)):
        rows += [
            _meta("process_name", pid, 0, "name", "python"),
            _meta("process_labels", pid, 0, "labels", label),
            _meta("process_sort_index", pid, 0, "sort_index", order),
        ]
    threads = [
        (PID, MAIN, f"thread {MAIN} (python)", MAIN),
        (PID, AUTOGRAD, f"thread {AUTOGRAD} (pt_autograd_0)", AUTOGRAD),
    ]
    threads += [(0, s, f"stream {s} ", s) for s in sorted({COMPUTE_STREAM, *rec.stream_free})]
    for pid, tid, name, order in threads:
        rows += [
            _meta("thread_name", pid, tid, "name", name),
            _meta("thread_sort_index", pid, tid, "sort_index", order),
        ]
    return rows


def _closing(end: int) -> list[Event]:
    start = START_NS - 40_000
    return [
        Event(
            "X",
            "Trace",
            "PyTorch Profiler (0)",
            "Spans",
            "PyTorch Profiler",
            start,
            end - start,
            {"Op count": 0},
        ),
        Event("M", "", "process_sort_index", "Spans", 0, start, 0, {"sort_index": 536870912}),
        Event("i", "", "Iteration Start: PyTorch Profiler", "Traces", "Trace PyTorch Profiler", start, 0),
        Event("i", "", "Record Window End", "", "", end + 30_000, 0),
    ]


def micros(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def _fragment(args: dict[str, Any]) -> str:
    """The args line: no blank after the comma behind External id, one after every other."""
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in args.items()]
    if parts and parts[0].startswith('"External id"') and len(parts) > 1:
        return parts[0] + "," + ", ".join(parts[1:])
    return ", ".join(parts)


def event_text(event: Event) -> str:
    """One event, and its arrow if it has one, each ended by a comma."""
    name, pid, tid = json.dumps(event.name), json.dumps(event.pid), json.dumps(event.tid)
    args = _fragment(event.args)
    ts = micros(event.ts)
    place = f'"pid": {pid},\n    "tid": {tid},\n    "ts": {ts}'
    if event.ph == "M":
        body = f'"name": {name},\n    "ts": {ts},\n    "pid": {pid},\n    "tid": {tid}'
        body += f',\n    "args": {{\n      {args}\n    }}'
    elif event.ph == "i":  # Kineto leaves the lines of an absent category and of absent args empty
        body = f'\n    "s": "g",\n    "name": {name},\n    {place}\n    '
    else:
        body = (
            f'"cat": "{event.cat}",\n    "name": {name},\n    {place},\n    "dur": {micros(event.dur)}\n    '
        )
        body += f',\n    "args": {{\n      {args}\n    }}'
    text = f'\n  {{\n    "ph": "{event.ph}",\n    {body}\n  }},'
    if event.flow is not None:
        phase, number, category = event.flow
        binding = ', "bp": "e"' if phase == "f" else ""
        named = f'"cat": "{category}",\n    "name": "{category}"\n    {binding}'
        body = f'"id": {number},\n    {place},\n    {named}'
        text += f'\n  {{\n    "ph": "{phase}",\n    {body}\n  }},'
    return text


def opening(top: dict[str, Any]) -> str:
    """The file up to the first event."""
    device = _device(top["deviceProperties"][0])
    lines = [f' {{\n    "schemaVersion": 1,\n    "deviceProperties": [\n    {device}\n    ],\n    ']
    last = ("displayTimeUnit", "baseTimeNanoseconds")
    first = ("schemaVersion", "deviceProperties")
    lines += [f'\n      "{k}": {json.dumps(v)},' for k, v in top.items() if k not in (*first, *last)]
    lines += [f'\n    "{k}": {json.dumps(top[k])},' for k in last]
    return "".join(lines) + '\n    "traceEvents": [\n    '


def _device(device: dict[str, Any]) -> str:
    inner = ",\n      ".join(f'"{k}": {json.dumps(v)}' for k, v in device.items())
    return "{\n      " + inner + "\n    }"


def closing(name: str) -> str:
    return f'\n  ],"traceName": {json.dumps(name)} }}'


def document(trace: Synthetic) -> str:
    """The whole file."""
    events = "".join(event_text(e) for e in trace.records)
    return opening(trace.header) + events.removesuffix(",") + closing("trace.json")


def as_dicts(records: list[Event]) -> list[dict[str, Any]]:
    """The events as a JSON reader would give them."""
    loaded: list[dict[str, Any]] = json.loads(
        "[" + "".join(event_text(e) for e in records).removesuffix(",") + "]"
    )
    return loaded
