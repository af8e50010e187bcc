"""The GPU that is taken where none is named: one measured here, or one that is said to be assumed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracelens.hardware.default import default_gpu, measured_gpus


def test_without_measurements_the_default_says_that_it_is_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path / "none"))
    gpu, why = default_gpu()
    assert gpu.name == "h100-sxm" and "assumed" in why
    assert measured_gpus() == set()


def test_the_gpu_measured_last_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    for at, name in enumerate(("h200", "a100-sxm-40gb", "no-such-gpu")):
        path = tmp_path / f"{name}.json.gz"
        path.write_bytes(b"")
        os.utime(path, (1e9 + at, 1e9 + at))
    gpu, why = default_gpu()
    assert gpu.name == "a100-sxm-40gb" and "measured" in why
    assert measured_gpus() == {"h200", "a100-sxm-40gb"}
