"""What a capture says, and when; scripts of a few steps; ``--stop``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.capture.recorded import load
from tests.said import Listener
from tracelens.capture import session as room
from tracelens.capture.options import Options
from tracelens.capture.session import Session

pytestmark = pytest.mark.filterwarnings("default")


def train(steps: int, **options: object) -> Session:
    """A loop under an automatic session, as ``tracelens capture`` starts it; closed at its end."""
    session = Session(Options(**options))  # type: ignore[arg-type]
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.start()
    try:
        for _ in range(steps):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
    finally:
        session.close()
    return session


def test_the_default_window_fits_a_script_of_12_steps(tmp_path: Path) -> None:
    train(12, out=str(tmp_path))
    window = load(tmp_path / "rank0.json.gz")["tracelens"]["window"]
    assert (window["complete"], window["steps"], window["first_step"]) == (True, 3, 7)


def test_without_cuda_that_is_said_after_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(1, out=str(tmp_path))
    first, *_ = capsys.readouterr().err.splitlines()
    assert "does not use CUDA" in first


@pytest.mark.parametrize(
    ("world", "ranks", "command"),
    [(1, None, "rank0.json.gz"), (8, None, "."), (8, (0,), "rank0.json.gz")],
    ids=["one", "all of a job", "one of a job"],
)
def test_the_next_command_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    world: int,
    ranks: tuple[int, ...] | None,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(room, "on_gpu", lambda: True)
    monkeypatch.setattr(room, "rank_and_world", lambda: (0, world))
    train(3, out=str(tmp_path), wait=1, warmup=0, active=1, ranks=ranks)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"tracelens: next: tracelens analyze {command}"


def test_a_profiler_of_the_scripts_own_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Listener
) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        train(4, out=str(tmp_path), wait=1, warmup=0, active=1)
    lines = capsys.readouterr().err.splitlines()
    assert sum("profiler of its own" in line for line in lines) == 1
    said([line for line in lines if "no trace: " in line])
    assert not list(tmp_path.glob("*.gz"))


@pytest.mark.parametrize("ranks", [None, (1,)], ids=["records", "waits for those that record"])
def test_stop_ends_the_training_after_the_window(tmp_path: Path, ranks: tuple[int, ...] | None) -> None:
    with pytest.raises(SystemExit) as end:
        train(40, out=str(tmp_path), wait=1, warmup=0, active=1, stop=True, ranks=ranks)
    assert end.value.code == 0
    assert len(list(tmp_path.glob("*.gz"))) == (ranks is None)


def test_stop_ends_a_training_whose_capture_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("CUPTI is not there")

    monkeypatch.setattr("tracelens.capture.recorder.Recorder.start", fail)
    with pytest.raises(SystemExit) as end:
        train(40, out=str(tmp_path), wait=1, warmup=0, active=1, stop=True)
    assert end.value.code == 1


def test_seeds_are_recorded(tmp_path: Path) -> None:
    torch.manual_seed(1234)
    train(3, out=str(tmp_path), wait=1, warmup=0, active=1)
    assert load(tmp_path / "rank0.json.gz")["tracelens"]["seeds"] == {"torch": 1234}
