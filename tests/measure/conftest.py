"""A GPU that checks what is asked of it, for whoever asks by the fixture's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.measure.driver import Driver, install
from tracelens.measure import operands
from tracelens.measure.attention import SDP


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Driver]:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path / "calibration"))
    monkeypatch.setattr(operands, "_ROUND_BYTES", 1 << 12)
    monkeypatch.setitem(SDP, "cudnn", SDP["flash"])  # a CPU has one fused kernel
    torch.set_num_threads(1)
    with install(monkeypatch) as found:
        yield found
