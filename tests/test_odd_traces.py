"""Whatever a trace holds, an analysis ends in a report that adds up, or in one clear error."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tracelens
from tests.synthetic import ModelSpec, Options, build
from tracelens.render.html import render_html
from tracelens.render.terminal import render_terminal
from tracelens.results.json import from_json, to_json

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
