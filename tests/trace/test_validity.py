"""PyTorch's six rules for traces: our counts are those of its own validator, on traces that break each."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trace.tools import document, kernel, launch, need_shared, op, read
from tracelens.trace import read_trace
from tracelens.trace.validity import check_rules

RECORD = {"name": "cudaEventRecord"}
ENGINE = "autograd::engine::evaluate_function: "
COMPLETE = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8}


def sync(kind: str, *, ts: float, stream: int = 7, **args: Any) -> dict[str, Any]:
    args = {"cuda_sync_kind": kind, "stream": stream, "device": 0} | args
    return {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": 7, "ts": ts, "dur": 1, "args": args}


def wait(record: int, *, ts: float, kind: str = "Stream Wait Event") -> dict[str, Any]:
    return sync(kind, ts=ts, wait_on_cuda_event_record_corr_id=record)


def called(external: int, *, ts: float, **extra: Any) -> dict[str, Any]:
    return launch(external, ts=ts, args={"External id": external, "correlation": external}, **extra)


def ran(external: int, *, ts: float, dur: float = 5) -> dict[str, Any]:
    event = kernel(ts=ts, dur=dur)
    event["args"] |= {"External id": external}
    return event


def backward(name: str, number: int) -> dict[str, Any]:
    return op(ENGINE + name, **{"Sequence number": number})


BROKEN: dict[str, tuple[list[dict[str, Any]], tuple[int, int]]] = {
    "gpu-kernel-causality": (
        [called(1, ts=5), called(1, ts=20), ran(1, ts=4), ran(1, ts=30), called(2, ts=5), ran(2, ts=5)],
        (2, 1),
    ),
    "stream-wait-corr-id": (
        [called(3, ts=1, **RECORD), wait(-1, ts=9), sync("Event Sync", ts=9), wait(3, ts=9)],
        (3, 2),
    ),
    "stream-sync-overlap": (
        [
            *(kernel(ts=ts, dur=dur) for ts, dur in ((1, 9), (4, 6), (5, 0), (5, 9), (20, 1))),
            kernel(ts=1, dur=9, stream=8),
            sync("Stream Sync", ts=5),
            sync("Stream Sync", ts=14),
            sync("Context Sync", ts=5),
        ],
        (2, 2),
    ),
    "stream-wait-in-past": (
        [
            called(3, ts=1, **RECORD),
            called(4, ts=50, **RECORD),
            *(wait(of, ts=9) for of in (3, 4, 5)),
            wait(5, ts=9, kind="Event Sync"),
        ],
        (3, 2),
    ),
    "nccl-metadata": (
        [
            op("record_param_comms", **COMPLETE, **{"Group size": 2}),
            op("record_param_comms", **COMPLETE),
            op("record_param_comms"),
        ],
        (3, 2),
    ),
    "backward-sequence": (
        [*(backward(name, 7) for name in ("MulBackward0", "AddBackward0", "MulBackward0")),
         backward("MulBackward0", 8), backward("MulBackward0", 0), backward("AddBackward0", 0)],
        (2, 1),
    ),
}  # fmt: skip


def pytorchs(path: Path) -> list[int]:
    """How often PyTorch's validator finds each rule broken; its file is loaded without importing torch."""
    torch = importlib.util.find_spec("torch")
    file = Path(str(torch and torch.origin)).parent / "profiler" / "_trace_validator.py"
    if not file.is_file():
        pytest.skip("no torch with a trace validator (2.13) is installed")
    name = "pytorchs_trace_validator"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [len(rule(module._load_events(str(path)))) for rule in module._RULES]


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_rule_is_counted(tmp_path: Path, code: str) -> None:
    events, expected = BROKEN[code]
    found = {rule.code: (rule.checked, rule.broken) for rule in check_rules(read(tmp_path, document(events)))}
    assert found[code] == expected


def test_the_counts_are_those_of_pytorchs_own_validator(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for events, _ in BROKEN.values():
        path.write_text(json.dumps({"traceEvents": events}))
        assert [rule.broken for rule in check_rules(read_trace(path))] == pytorchs(path)


@pytest.mark.parametrize("name", ["d11", "d3_", "d6"])
def test_so_they_are_of_real_traces(name: str) -> None:
    path = need_shared(name)
    assert [rule.broken for rule in check_rules(read_trace(path))] == pytorchs(path)
