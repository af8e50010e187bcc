"""Measurement files: written whole or not at all, read back as written, refused with a reason."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.hardware.measurements import (
    AttentionMeasurement,
    GemmMeasurement,
    Measurements,
    find_measurements,
    read_measurements,
    user_file,
    write_measurements,
)

GEMM = GemmMeasurement(
    "wave", 2304, 1536, 4096, 1, "bf16", "bf16", "TN", 50.0, 0.01, ("nvjet", "reduce"), (12, 9, 1)
)
ATTENTION = AttentionMeasurement(
    "head_dim", 4, 32, 8, 2048, 2048, 80, "bf16", True, "backward", "flash", 900.0, None, ("flash_bwd",)
)


def made(**changes: object) -> Measurements:
    fields: dict[str, object] = {
        "gpu": "h200", "device": {"name": "NVIDIA H200", "sms": 132}, "software": {}, "clocks": {},
        "date": "2026-11-21", "command": "test", "method": "made up", "gemms": (GEMM, GEMM),
        "attention": (ATTENTION,), "bandwidth_gbps": 4300.0, "notes": ("a note",),
    }  # fmt: skip
    return Measurements(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_read_back_as_written(tmp_path: Path, name: str) -> None:
    write_measurements(made(), tmp_path / name)
    assert asdict(read_measurements(tmp_path / name)) == asdict(made())
    assert [one.name for one in tmp_path.iterdir()] == [name]  # nothing left beside it


def test_throughput_counts_two_operations_per_multiply_add() -> None:
    assert GEMM.tflops == pytest.approx(2 * 2304 * 1536 * 4096 / 50e-6 / 1e12)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not json", "cannot be read"),
        ("{}", "no file of"),
        ('{"schema": "tracelens.measurements/1", "gpu": "h200"}', "damaged"),
    ],
)
def test_what_is_no_measurement_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=says):
        read_measurements(tmp_path / "x.json")


def test_a_row_without_a_time_is_refused(tmp_path: Path) -> None:
    write_measurements(made(), tmp_path / "x.json")
    raw = json.loads((tmp_path / "x.json").read_text())
    raw["gemms"]["rows"][0][raw["gemms"]["columns"].index("time_us")] = 0
    (tmp_path / "x.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match="damaged"):
        read_measurements(tmp_path / "x.json")


def test_the_users_own_measurements_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    assert find_measurements("no-such-gpu") is None
    write_measurements(made(gpu="x"), user_file("x"))
    assert find_measurements("x", sms=132) == made(gpu="x")
    assert find_measurements("x", sms=66) is None  # a slice of the device is another device


def test_predictions_see_kernels_without_the_gap_between_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    short = replace(GEMM, time_us=2.0)
    write_measurements(made(gemms=(GEMM, short), call_gap_us=1.5, launch_floor_us=4.0), user_file("x"))
    found = find_measurements("x")
    assert found is not None
    assert [one.time_us for one in found.gemms] == [48.5, 1.0]  # half is left of the shortest
    assert (found.attention[0].time_us, found.launch_floor_us, found.call_gap_us) == (898.5, 2.5, None)
    assert "1.5 us" in found.notes[-1]
