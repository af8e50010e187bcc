"""A run keeps what it measured, whatever ends it, and never puts it where it does not belong."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.measure.fakes import HASTY, FakeDevice
from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import read_measurements, user_file, write_measurements
from tracelens.measure import run as module
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.devices import CpuDevice
from tracelens.measure.facts import DeviceFacts, parse_clocks
from tracelens.measure.journal import Journal, key_of
from tracelens.measure.run import Result, Settings, run, target_file

GEMMS = [GemmCase("x", 32 + 8 * index, 32, 32) for index in range(10)]
ATTENTION = [AttentionCase("x", 1, 2, 16 + index, 8) for index in range(4)]
GROUPED = replace(HASTY, profile_every=2)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path / "calibration"))
    return tmp_path


def settings(folder: Path, **changes: Any) -> Settings:
    usual = Settings(GEMMS, ATTENTION, minutes=1, out=folder / "cpu.json", options=GROUPED)
    return replace(usual, **changes)


def measured(result: Result) -> list[str]:
    rows = [*result.measurements.gemms, *result.measurements.attention]
    return sorted(str(key_of(row)) for row in rows)  # type: ignore[arg-type]


ALL = sorted(str(key_of(case)) for case in [*GEMMS, *ATTENTION])  # type: ignore[arg-type]


def test_everything_is_measured_and_written_once(tmp_path: Path) -> None:
    heard: list[tuple[int, int, str]] = []
    result = run(settings(tmp_path), device=CpuDevice(), progress=lambda *told: heard.append(told))
    assert measured(result) == ALL
    assert read_measurements(result.path) == result.measurements
    assert [done for done, _, _ in heard] == list(range(1, 15))
    assert {total for _, total, _ in heard} == {14}
    assert (result.left, result.resumed, result.stopped) == (0, 0, None)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["cpu.journal.jsonl", "cpu.json"]


def test_a_cpu_says_so_in_its_file(tmp_path: Path, said: Listener) -> None:
    made = run(settings(tmp_path), device=CpuDevice()).measurements
    assert made.gpu == "cpu" and made.device["kind"] == "cpu"
    assert made.clocks["sm_mhz_before"] is None and "CPU" in made.clocks["why_before"]
    assert made.bandwidth_gbps is not None and made.launch_floor_us is not None
    assert made.call_gap_us is None
    said(made.method)


def test_time_that_is_up_keeps_what_there_is_and_the_next_run_goes_on(tmp_path: Path) -> None:
    slow = FakeDevice([1e6 / 32])  # a warm-up, two batches: some 0.1 s a case, and the limits before
    first = run(settings(tmp_path, minutes=0.02), device=slow)
    assert 0 < len(measured(first)) < len(ALL)
    assert first.left == len(ALL) - len(measured(first))
    assert read_measurements(first.path) == first.measurements
    second = run(settings(tmp_path), device=CpuDevice())
    assert second.resumed == len(measured(first))
    assert measured(second) == ALL and second.left == 0


def test_no_time_at_all_writes_nothing(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        run(settings(tmp_path, minutes=1e-9), device=CpuDevice())
    said(error.value)
    assert not (tmp_path / "cpu.json").exists()


def test_an_interrupt_keeps_what_there_is(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, name: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    first = run(settings(tmp_path), device=CpuDevice(), progress=interrupt)
    assert first.stopped == "interrupted"
    assert 0 < len(measured(first)) < 5
    assert read_measurements(first.path) == first.measurements
    assert measured(run(settings(tmp_path), device=CpuDevice())) == ALL


def test_a_gpu_that_fails_keeps_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, error = torch.mm, "CUDA error: an illegal memory access was encountered"

    def failing(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        if a.shape[0] == GEMMS[5].m:
            raise RuntimeError(f"{error}\nCompile with ...")
        return real(a, b, out=out)

    monkeypatch.setattr(torch, "mm", failing)
    result = run(settings(tmp_path), device=CpuDevice())
    assert result.stopped == error
    assert 0 < len(measured(result)) < len(ALL) and result.left > 0


CHILD = """
import sys, torch
from pathlib import Path
from tests.measure.test_run import ATTENTION, GEMMS, GROUPED
from tracelens.measure.devices import CpuDevice
from tracelens.measure.run import Settings, run
torch.set_num_threads(1)
def heard(done, total, name):
    if done > 5:
        print("ready", flush=True)
        sys.stdin.read()  # until it is killed
run(Settings(GEMMS, ATTENTION, 1, Path(sys.argv[1]), options=GROUPED), device=CpuDevice(), progress=heard)
"""


def test_a_kill_loses_the_last_group_only(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "cpu.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
    assert not (tmp_path / "cpu.json").exists()
    with (tmp_path / "cpu.journal.jsonl").open("a") as journal:
        journal.write('{"gemm": {"sweep": "x", "m": 3')  # a line that the kill cut off
    heard: list[int] = []
    result = run(settings(tmp_path), device=CpuDevice(), progress=lambda *told: heard.append(told[1]))
    assert result.resumed == 5  # the sixth waited for the name of its kernel
    assert set(heard) == {len(ALL) - 5}
    assert measured(result) == ALL


@pytest.mark.parametrize("kept", ["cpu.journal.jsonl", "cpu.json"])
def test_what_was_measured_holds(tmp_path: Path, kept: str) -> None:
    """Either of the two files is enough, and nothing is measured twice."""
    first = run(settings(tmp_path), device=CpuDevice())
    for path in tmp_path.glob("cpu.*"):
        if path.name != kept:
            path.unlink()
    again = run(settings(tmp_path, gemms=GEMMS[:2]), device=CpuDevice())
    assert (again.tried, again.resumed) == (0, 2 + len(ATTENTION))
    assert (again.measurements.gemms, again.measurements.attention) == (
        first.measurements.gemms,
        first.measurements.attention,
    )
    assert again.previous is None


@pytest.mark.parametrize("why", ["other software", "other method", "fresh", "damaged"])
def test_a_file_that_no_longer_holds_is_moved_aside(tmp_path: Path, why: str) -> None:
    first = run(settings(tmp_path), device=CpuDevice())
    (tmp_path / "cpu.journal.jsonl").unlink()
    if why == "other software":
        other = dict(first.measurements.software) | {"cublas": "1.2.3"}
        write_measurements(replace(first.measurements, software=other), first.path)
    elif why == "other method":
        write_measurements(replace(first.measurements, method_version=0), first.path)
    elif why == "damaged":
        first.path.write_text("{")
    before = first.path.read_bytes()
    again = run(settings(tmp_path, gemms=GEMMS[:2], attention=[], fresh=why == "fresh"), device=CpuDevice())
    assert len(read_measurements(again.path).gemms) == 2
    assert again.previous == tmp_path / "cpu.previous.json"
    assert again.previous.read_bytes() == before


def test_refusals_are_counted_by_reason(tmp_path: Path, said: Listener) -> None:
    refused = [GemmCase("x", 16, 16, size, batch=2, dtype="fp8") for size in (16, 32)]
    result = run(settings(tmp_path, gemms=[*GEMMS, *refused]), device=CpuDevice())
    (note,) = result.measurements.notes
    assert result.left == 0
    said(note)


class _Cuda(FakeDevice):
    """Takes itself for a GPU."""

    def __init__(self) -> None:
        super().__init__([1.0], kind="cuda")


def facts_of(name: str, sms: int) -> DeviceFacts:
    return DeviceFacts(find_gpu(name, properties={"numSms": sms}), {"name": name, "sms": sms}, {})


def test_where_measurements_go(tmp_path: Path, said: Listener) -> None:
    def where(device: FakeDevice | CpuDevice, facts: DeviceFacts, out: Path | None = None) -> Path:
        return target_file(settings(tmp_path, out=out), device=device, facts=facts)

    h200, part = facts_of("NVIDIA H200", 132), facts_of("NVIDIA H200", 60)
    assert where(_Cuda(), h200) == user_file("h200")
    assert where(_Cuda(), h200, tmp_path / "mine.json") == tmp_path / "mine.json"
    assert where(_Cuda(), part, tmp_path / "mine.json") == tmp_path / "mine.json"
    with pytest.raises(UsageError) as error:
        where(_Cuda(), part)
    said(error.value)
    with pytest.raises(UsageError) as error:
        where(_Cuda(), facts_of("NVIDIA Unheard-of", 100))
    said(error.value)


@pytest.mark.parametrize("out", [None, "h200.json.gz", "sub/../h200.json.gz"])
def test_what_a_cpu_measured_calibrates_no_gpu(tmp_path: Path, out: str | None, said: Listener) -> None:
    folder = user_file("h200").parent
    (folder / "sub").mkdir(parents=True)
    with pytest.raises(UsageError) as error:
        run(settings(tmp_path, out=folder / out if out is not None else None), device=CpuDevice())
    said(error.value)
    assert not list(folder.glob("*.gz"))


def test_clocks_that_cannot_be_read_are_none() -> None:
    assert parse_clocks("1755, 1980, 3201, 41, 612.50\n") == [1755.0, 1980.0, 3201.0, 41.0, 612.5]
    assert parse_clocks("[N/A], 1980") == [None, 1980.0, None, None, None]
    assert parse_clocks("") == [None] * 5


def test_kernel_names_that_are_missing_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    device = CpuDevice()
    made = run(settings(tmp_path), device=device)
    journal = Journal(None, {})
    for row in made.measurements.gemms:
        journal.add(row)
    assert module._notes(journal, device) == ()  # a CPU has no kernels to name
    said(module._notes(journal, _Cuda())[0])
