"""A trace that holds events twice: what is counted of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.said import Listener
from tests.trace.tools import GPU_CATEGORIES, small_trace
from tracelens.analysis import analyze_trace
from tracelens.diagnosis import diagnose
from tracelens.trace import read_trace

PLAIN = small_trace(steps=3)


def _read(folder: Path, more: list[dict[str, Any]]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(json.loads(PLAIN.text()) | {"traceEvents": [*PLAIN.events, *more]}))
    return path


@pytest.mark.parametrize("share", [1, 3])
def test_an_event_that_is_listed_again_counts_once(share: int, tmp_path: Path, said: Listener) -> None:
    again = [one for one in PLAIN.events if one.get("cat") in GPU_CATEGORIES][::share]
    plain = analyze_trace(read_trace(_read(tmp_path, []))).report
    path = _read(tmp_path, again)
    report = analyze_trace(read_trace(path)).report
    for name in ("step_ms", "gpu_ms_per_step", "gpu_busy_frac", "achieved_tflops", "shape_waste_ms"):
        assert getattr(report.summary, name) == getattr(plain.summary, name), name
    assert report.components == plain.components
    assert report.recording == plain.recording
    assert len(report.trace.warnings) == 1
    said(report.trace.warnings)
    assert [one.code for one in diagnose(path).checks] == [
        one.code for one in diagnose(_read(tmp_path, [])).checks
    ]
