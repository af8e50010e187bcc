"""Reports to verify, and a machine that has the GPU they are of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kept import analyzed
from tests.measure.verify import rig
from tracelens.measure.facts import DeviceFacts
from tracelens.measure.verify import Done, Source, read_source, verify
from tracelens.results import Report
from tracelens.results.json import to_json

SAMPLE = Path(__file__).resolve().parents[3] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"
WHAT_IFS = ("heads=10", "layers=10", "ffn=5000", "micro_batch=16")

Verify = Callable[..., Done]


def _of_sizes(report: Report) -> Report:
    """With the findings that name a size, which alone can be run again."""
    return replace(report, findings=[one for one in report.findings if one.change])


@pytest.fixture(scope="session")
def report_bytes() -> bytes:
    """GPT-2 large with 12 layers, an odd vocabulary, and some scenarios."""
    return to_json(_of_sizes(analyzed(SAMPLE, what_ifs=WHAT_IFS, shape_search=False).report))


@pytest.fixture(scope="session")
def searched_bytes() -> bytes:
    """The same step with what the shape search picked."""
    return to_json(_of_sizes(analyzed(SAMPLE).report))


@pytest.fixture
def report(report_bytes: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_bytes(report_bytes)
    return path


@pytest.fixture
def raw(report_bytes: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report_bytes)
    return found


@pytest.fixture
def source(report: Path) -> Source:
    return read_source(report)


@pytest.fixture
def verify_on(monkeypatch: pytest.MonkeyPatch) -> Verify:
    """``verify`` on a machine with a GPU of our choice, by the law of ``rig``."""

    def run(source: Source, *, on: DeviceFacts | None = None, **how: Any) -> Done:
        monkeypatch.setattr("tracelens.measure.verify.run.device_facts", lambda device: on or rig.gpu())
        monkeypatch.setattr("tracelens.measure.verify.run.read_clocks", lambda device: {"sm_mhz": 1900.0})
        return verify(source, **{"device": rig.cuda(), "meter": rig.Meter(), **how})

    return run
