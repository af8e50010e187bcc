"""Helpers of the trace tests: write a trace, read it, and see its tables as plain values."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.synthetic import ModelSpec, Options, Synthetic, build
from tracelens.trace import Trace, read_trace
from tracelens.trace.columns import TABLE_OF_CATEGORY
from tracelens.trace.tables import Table

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
GPU_CATEGORIES = {category for category, table in TABLE_OF_CATEGORY.items() if table == "kernels"}
TABLES = ("ops", "kernels", "launches", "ranges", "frames", "flows", "syncs")


def small_trace(**options: Any) -> Synthetic:
    """A recording of one step with everything in it."""
    model = ModelSpec(hidden=128, heads=2, layers=1, vocab=512, sequence=64, micro_batch=2)
    return build(model, Options(**({"steps": 1, "ranges": True, "prelaunched": 2} | options)))


def shared_traces() -> list[Path]:
    """The real traces beside the repository; an empty list where there are none."""
    return sorted(SHARED.rglob("*.json.gz"))


def need_shared(name: str) -> Path:
    """One real trace by the beginning of its name; skips the test where it is absent."""
    found = [path for path in shared_traces() if path.name.startswith(name)]
    if not found:
        pytest.skip(f"{name} is not beside the repository")
    return found[0]


def read(folder: Path, text: str | bytes, *, name: str = "trace.json", processes: int | None = None) -> Trace:
    """Write ``text`` as a file and read it."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_trace(path, processes=processes)


def document(events: list[Any], **top: Any) -> str:
    """A whole trace file in the plainest layout."""
    return json.dumps({"schemaVersion": 1, **top, "traceEvents": events})


def event(
    category: str, name: str, *, ts: Any, dur: Any, pid: Any = 9, tid: Any = 1, args: dict[str, Any]
) -> dict[str, Any]:
    where = {"pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
    return {"ph": "X", "cat": category, "name": name, **where}


def kernel(name: str = "k", *, ts: Any = 10, dur: Any = 5, **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": 1} | args
    return event("kernel", name, ts=ts, dur=dur, pid=0, tid=7, args=args)


def op(name: str = "aten::mm", *, ts: Any = 1, dur: Any = 5, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return event("cpu_op", name, ts=ts, dur=dur, tid=tid, args=args)


def launch(correlation: int = 1, *, ts: Any = 2, dur: Any = 1, tid: Any = 1, **extra: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": tid}
    return event | {"ts": ts, "dur": dur, "args": {"correlation": correlation}} | extra


def names(trace: Trace, table: Table) -> list[str]:
    column = getattr(table, "name")  # noqa: B009  every table but Flows has one
    return [trace.symbols[int(code)] for code in column]


def contents(trace: Trace) -> dict[str, list[tuple[Any, ...]]]:
    """All tables with their codes decoded: equal for equal traces, whatever the codes."""
    return {table: _rows(trace, getattr(trace, table)) for table in TABLES}


def _rows(trace: Trace, table: Table) -> list[tuple[Any, ...]]:
    columns: list[list[Any]] = []
    for field in fields(table):
        values = getattr(table, field.name).tolist()
        match field.name:
            case "name" | "category" | "label":
                values = [trace.symbols[code] for code in values]
            case "thread":
                values = [trace.threads[code] for code in values]
            case "inputs":
                values = [trace.details.inputs(code) for code in values]
            case "launch":
                values = [trace.details.config(code) for code in values]
            case "collective":
                values = [trace.details.collective(code) for code in values]
        columns.append(values)
    return list(zip(*columns, strict=True))


def gpu_events(events: list[Any]) -> list[dict[str, Any]]:
    return [
        e for e in events if isinstance(e, dict) and e.get("ph") == "X" and e.get("cat") in GPU_CATEGORIES
    ]
