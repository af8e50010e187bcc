"""Whatever a trace holds, an analysis ends in a report that adds up, or in one clear error."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tracelens
from tests.synthetic import ModelSpec, Options, build
from tracelens.render.html import render_html
from tracelens.render.terminal import render_terminal
from tracelens.results.json import from_json, to_json

Events = list[dict[str, Any]]
ODD: list[Any] = [
    *(None, -1, 0, 1e18, "x", "", [], {}, [[]], [None], True, 1e-9, "12", -5.5, [[1, 2], [3]], 2**70),
    "nn.Module: X_1",
]
DEVICES: list[Any] = [[{"name": 5, "numSms": "x"}], [{}], "[{'name': 'NVIDIA A100-SXM4-40GB'}]", [3], None]
MODEL = ModelSpec(
    family="llama",
    hidden=256,
    heads=4,
    kv_heads=2,
    ffn=704,
    vocab=1003,
    layers=2,
    sequence=128,
    micro_batch=1,
)
WHOLE = json.loads(build(MODEL, Options(steps=2, attention="math", all_reduce=True)).text())


def _odd_arguments(events: Events, rnd: random.Random) -> Events:
    for event in rnd.sample(events, 200):
        if event.get("args"):
            event["args"][rnd.choice(list(event["args"]))] = rnd.choice(ODD)
    return events


def _odd_keys(events: Events, rnd: random.Random) -> Events:
    for event in rnd.sample(events, 200):
        key = rnd.choice(list(event))
        if rnd.random() < 0.5:
            del event[key]
        else:
            event[key] = rnd.choice(ODD)
    return events


def _missing(events: Events, rnd: random.Random) -> Events:
    kept = rnd.choice([0.1, 0.5, 0.9])
    return [event for event in events if rnd.random() < kept]


def _gpu_only(events: Events, rnd: random.Random) -> Events:
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def _shuffled(events: Events, rnd: random.Random) -> Events:
    rnd.shuffle(events)
    return events


def _a_handful(events: Events, rnd: random.Random) -> Events:
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return [*rnd.sample(events, rnd.randint(1, 12)), kernels[0]]


@pytest.mark.parametrize("seed", range(2))  # tests/fuzz changes and moves events so, too
@pytest.mark.parametrize(
    "change",
    [_odd_arguments, _odd_keys, _missing, _gpu_only, _shuffled, _a_handful],
    ids=lambda f: f.__name__,
)
def test_odd_events(tmp_path: Path, change: Callable[[Events, random.Random], Events], seed: int) -> None:
    document = json.loads(json.dumps(WHOLE))
    document["traceEvents"] = change(document["traceEvents"], random.Random(seed))
    check_report(tmp_path, document)


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_metadata(tmp_path: Path, value: Any) -> None:
    document = {key: value for key in WHOLE if key != "traceEvents"} | {"traceEvents": WHOLE["traceEvents"]}
    check_report(tmp_path, document)


@pytest.mark.parametrize("devices", DEVICES, ids=repr)
def test_odd_devices(tmp_path: Path, devices: Any) -> None:
    check_report(tmp_path, WHOLE | {"deviceProperties": devices})


def check_report(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    try:
        analysis = tracelens.analyze(path)
    except tracelens.InputError as error:
        assert "no GPU event" in str(error)
        return
    report = analysis.report
    assert sum(row.time_ns for row in report.components) == int(analysis.kernels["dur_ns"].sum())
    assert len(analysis.kernels) == report.trace.kernels
    assert len(analysis.gemms) == len(report.gemms)
    assert from_json(to_json(report)) == report
    assert "</html>" in render_html(report)
    written = io.StringIO()
    render_terminal(report, console=Console(file=written, width=80))
    unmarked = not report.summary.steps_marked
    assert ("recorded" if unmarked else "step time") in written.getvalue()
