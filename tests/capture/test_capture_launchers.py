"""``tracelens capture -- LAUNCHER SCRIPT``: the ranks are reached, and what a launcher ends still writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.capture.recorded import ROOT, SCRIPTS, WINDOW, capture, gemm_owners, load

LAUNCHER, PARALLEL = SCRIPTS / "launcher.py", SCRIPTS / "parallel.py"
BOTH = ["rank0.json.gz", "rank1.json.gz"]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "traces").iterdir())


def trains(folder: Path, at: int, what: str) -> Path:
    """Ranks that know nothing of each other; ``what`` happens after the backward of step ``at``."""
    script = folder / "script.py"
    script.write_text(
        "import os, signal, sys, time, torch\n"
        "rank = int(os.environ['RANK'])\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(40):\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        f"    if step == {at}:\n"
        f"        {what}\n"
        "    optimizer.step()\n"
        # the others have recorded before one of them fails
        "    open(f'{rank}-{step}', 'w').close()\n"
    )
    return script


def test_a_launcher_like_deepspeeds_gives_a_file_per_rank(tmp_path: Path) -> None:
    done = capture(LAUNCHER, PARALLEL, "ddp", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == BOTH
    for rank, name in enumerate(BOTH):
        trace = load(tmp_path / "traces" / name)
        assert trace["tracelens"]["parallel"]["rank"] == rank
        owners = gemm_owners(trace)
        assert owners and not any(owner == "?" for _, owner, _ in owners)
    assert done.stderr.count("2 of 2 steps") == 2  # nothing of the launchers' own processes


@pytest.mark.parametrize(("at", "steps"), [(6, 1), (9, 2)], ids=["in-the-window", "behind-the-window"])
def test_ranks_that_the_launcher_ends_write_what_was_recorded(tmp_path: Path, at: int, steps: int) -> None:
    """One rank fails: the launcher sends SIGTERM to the other."""
    fails = (
        f"if rank == 0: time.sleep(60)\n"
        f"        while not os.path.exists('0-{at - 1}'): time.sleep(0.01)\n"
        f"        time.sleep(0.3); sys.exit(3)"
    )
    done = capture(LAUNCHER, trains(tmp_path, at, fails), cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert files(tmp_path) == BOTH
    for name in BOTH:
        assert load(tmp_path / "traces" / name)["tracelens"]["window"]["steps"] == steps


@pytest.mark.parametrize("how", ["launcher", "torchrun"])
def test_ctrl_c_reaches_launcher_and_ranks_and_all_of_them_write(tmp_path: Path, how: str) -> None:
    """The terminal signals the whole group, and launchers signal their ranks once more."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    launcher = [str(LAUNCHER)] if how == "launcher" else torchrun
    waits = (
        "import os; os.write(1, b'waits\\n')  # in one piece: two ranks write at once\n"
        "        while True: time.sleep(0.01)"
    )  # fmt: skip
    script = str(trains(tmp_path, 6, waits))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-m", "tracelens", "capture", *WINDOW, "--", *launcher, script],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "waits\n"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=3600)
    assert process.returncode != 0
    assert files(tmp_path) == BOTH, said
    for name in BOTH:
        window = load(tmp_path / "traces" / name)["tracelens"]["window"]
        assert (window["steps"], window["complete"]) == (1, False)
        assert any(word in window["ended"] for word in ("KeyboardInterrupt", "SIGTERM"))
    assert "atexit callback" not in said


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_around_accelerate_launch_of_two_processes(tmp_path: Path) -> None:
    """Its own torchrun, within its process."""
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    options = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = capture(*launcher, *options, "--main_process_port", "0", PARALLEL, "ddp", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == BOTH
