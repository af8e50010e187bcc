"""The training goes on whatever happens to the capture, and one line says what happened."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracelens
from tests.capture.recorded import SCRIPTS, capture, load, steps
from tests.said import Listener

NANOGPT = SCRIPTS / "nanogpt.py"
pytestmark = pytest.mark.filterwarnings("default")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "traces").iterdir())


def script(folder: Path, at: int, what: str, before: str = "") -> str:
    """A training script in which ``what`` happens after the backward of step ``at``."""
    (folder / "script.py").write_text(
        f"import os, signal, sys, torch\n{before}\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(16):\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        f"    if step == {at}:\n"
        f"        {what}\n"
        "    optimizer.step()\n"
        "print('trained')\n"
    )
    return "script.py"


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("raise RuntimeError('as asked')", 1, "RuntimeError"),
        ("os.kill(os.getpid(), signal.SIGINT)", -2, "KeyboardInterrupt"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, "SIGTERM"),
        ("sys.exit(3)", 3, "the training ended in the window"),
    ],
    ids=["crash", "ctrl-c", "sigterm", "exit"],
)
def test_an_end_in_the_window_writes_what_was_recorded(
    tmp_path: Path, what: str, code: int, says: str
) -> None:
    done = capture(script(tmp_path, 6, what), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert files(tmp_path) == ["rank0.json.gz"]
    trace = load(tmp_path / "traces" / "rank0.json.gz")
    window = trace["tracelens"]["window"]
    assert (window["complete"], window["steps"], window["asked"]) == (False, 1, 2)
    assert says in window["ended"]
    assert says in done.stderr
    assert steps(trace) == ["ProfilerStep#5", "ProfilerStep#6"]


def test_too_few_steps_are_told_plainly(tmp_path: Path, said: Listener) -> None:
    done = capture(NANOGPT, "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0
    said([line for line in done.stderr.splitlines() if "no trace: " in line])
    assert files(tmp_path) == []


@pytest.mark.parametrize(("ran", "active"), [(2, 0), (3, 1), (4, 2)])
def test_the_shorter_window_that_is_named_fits_the_script(tmp_path: Path, ran: int, active: int) -> None:
    """As many steps as were asked for, where the script ran so many; none is named where nothing fits."""
    done = capture(NANOGPT, "--steps", str(ran), cwd=tmp_path)
    named = re.findall(r"--\w+ \d+", done.stderr)
    if not active:
        assert named == []
        return
    window = tuple(" ".join(named).split())
    assert window[-2:] == ("--active", str(active))
    capture(NANOGPT, "--steps", str(ran), cwd=tmp_path, options=window)
    assert files(tmp_path) == ["rank0.json.gz"]


def test_passes_that_are_taken_for_steps_are_called_so(tmp_path: Path, said: Listener) -> None:
    """18 of a script that updates its weights by itself: the last three are steps."""
    (tmp_path / "own.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\n"
        "for step in range(18):\n    model(torch.randn(4, 8)).sum().backward()\n"
    )
    done = capture("own.py", cwd=tmp_path)
    (line,) = (line for line in done.stderr.splitlines() if "no trace: " in line)
    assert "ran 3" in line and "backward" in line
    said(line)


def test_the_parent_of_a_script_with_too_few_steps_says_no_other_reason(tmp_path: Path) -> None:
    call = f"subprocess.run([sys.executable, {str(NANOGPT)!r}, '--steps', '3'], check=True)"
    (tmp_path / "start.py").write_text(f"import subprocess, sys\n{call}\n")
    done = capture("start.py", cwd=tmp_path)
    assert [
        line for line in done.stderr.splitlines() if "no trace" in line and "the script ran 3" not in line
    ] == []
    assert "the script ran 3" in done.stderr
    assert list((tmp_path / "traces").glob("*")) == []


@pytest.mark.parametrize(
    "what",
    ["sys.exit(3)", "raise KeyError", "own = torch.profiler.profile(); own.start(); own.stop()"],
    ids=["exit", "crash", "own-profiler"],
)
def test_a_warm_up_alone_is_no_trace(tmp_path: Path, what: str, said: Listener) -> None:
    kept = tmp_path / "traces" / "rank0.json.gz"
    kept.parent.mkdir()
    kept.write_bytes(b"of an earlier run")
    done = capture(script(tmp_path, 4, what), cwd=tmp_path)
    said([line for line in done.stderr.splitlines() if "no trace: " in line])
    assert files(tmp_path) == ["rank0.json.gz"]
    assert kept.read_bytes() == b"of an earlier run"


def test_a_script_that_marks_its_steps_is_not_said_to_have_no_trace(tmp_path: Path) -> None:
    (tmp_path / "marks.py").write_text(
        "import torch, tracelens\n"
        "model = torch.nn.Linear(8, 8)\n"
        "with tracelens.capture(model, out='elsewhere', wait=1, warmup=0, active=1) as marks:\n"
        "    for step in range(3):\n"
        "        model(torch.randn(4, 8)).sum().backward()\n"
        "        marks.step()\n"
    )
    done = capture("marks.py", cwd=tmp_path)
    assert (tmp_path / "elsewhere" / "rank0.json.gz").exists()
    assert "no trace" not in done.stderr


def test_a_script_that_does_not_train_is_told_plainly(tmp_path: Path, said: Listener) -> None:
    (tmp_path / "idle.py").write_text("import torch\n")
    said([line for line in capture("idle.py", cwd=tmp_path).stderr.splitlines() if "no trace" in line])
    (tmp_path / "idle.py").write_text("raise ValueError")
    said([line for line in capture("idle.py", cwd=tmp_path).stderr.splitlines() if "no trace" in line])
    (tmp_path / "idle.py").write_text("")
    said([line for line in capture("idle.py", cwd=tmp_path).stderr.splitlines() if "no trace" in line])


def test_a_full_disk_costs_the_trace_and_not_the_training(tmp_path: Path) -> None:
    # files over 16 kB cannot be written from here on: the profiler's C++ does not notice, we do
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))"
    done = capture(script(tmp_path, 2, full), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "is the disk full?" in done.stderr
    assert files(tmp_path) == []


def test_a_folder_that_goes_away_costs_the_trace_and_not_the_training(tmp_path: Path) -> None:
    gone = "import shutil; shutil.rmtree('traces'); open('traces', 'w').close()"
    done = capture(script(tmp_path, 2, gone), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "cannot write in" in done.stderr


def test_the_scripts_own_profiler_wins(tmp_path: Path) -> None:
    own = (
        "own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); own.start(); "
        "model(torch.ones(1, 8)); own.stop(); print('own', len(own.events()) > 0)"
    )
    done = capture(script(tmp_path, 6, own), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "own True" in done.stdout
    assert "profiler of its own" in done.stderr
    assert load(tmp_path / "traces" / "rank0.json.gz")["tracelens"]["window"]["steps"] == 1


def test_workers_made_by_fork_leave_the_recording_alone(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(
        "import torch\n"
        "data = torch.utils.data.TensorDataset(torch.randn(64, 8))\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for epoch in range(16):\n"  # new workers in every step, so also in the window
        "    for (x,) in torch.utils.data.DataLoader(data, batch_size=64, num_workers=2):\n"
        "        model(x).sum().backward()\n"
        "        optimizer.step()\n"
    )
    done = capture("forks.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tracelens:") == 2  # no CUDA; the trace
    assert files(tmp_path) == ["rank0.json.gz"]


def test_ranks_made_by_multiprocessing_are_reached(tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(
        "import os, torch\n"
        "def work(rank):\n"
        "    os.environ['RANK'] = str(rank)\n"
        "    model = torch.nn.Linear(8, 8)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(8):\n"  # the file is written at the process' end
        "        model(torch.randn(4, 8)).sum().backward()\n"
        "        optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(work, nprocs=2)\n"
    )
    done = capture("spawns.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["rank0.json.gz", "rank1.json.gz"]


@pytest.mark.parametrize("where", ["start", "step", "stop", "export"])
def test_a_failure_of_the_profiler_is_one_line(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tracelens.capture import recorder

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUPTI is not there")

    monkeypatch.setattr(recorder.Recorder, where, fail)
    model = nn.Linear(8, 8)
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    with tracelens.capture(model, out=tmp_path, wait=1, warmup=1, active=1) as marks:
        for _ in range(8):
            model(torch.randn(2, 8)).sum().backward()
            marks.step()
    said = capsys.readouterr().err
    assert said.count("tracelens:") == 2  # no CUDA; the failure
    assert "the training goes on" in said
    assert "CUPTI is not there" in said
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]
    assert not model._forward_hooks
    assert os.listdir(tmp_path) == []
    assert not torch._C._autograd._profiler_enabled()


def test_scaler_skips_are_steps(tmp_path: Path) -> None:
    infinite = "scaler = torch.amp.GradScaler('cpu', init_scale=2.0)"
    (tmp_path / "scales.py").write_text(
        "import torch\n"
        f"{infinite}\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(16):\n"
        "    loss = model(torch.randn(4, 8)).sum() * (float('inf') if step == 6 else 1.0)\n"
        "    scaler.scale(loss).backward()\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
        "    optimizer.zero_grad()\n"
    )
    done = capture("scales.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    window = load(tmp_path / "traces" / "rank0.json.gz")["tracelens"]["window"]
    assert window["skipped_steps"] == [6]
    assert window["backward_passes"] == [1, 1]
