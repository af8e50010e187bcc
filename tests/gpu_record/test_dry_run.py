"""Every stage at toy size on the CPU: killed once, gone on with, and its traces held against their truth."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import worker
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.store import ROOT, read_result
from tests.cli import running
from tests.said import Listener

pytest.importorskip("torch")

#: The name of a range in a trace, and the products that stand for GEMM kernels.
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"}
DONE = re.compile(r"([\w-]+) \d+/\d+ (.+?): (?!failed)")

#: One stage of each kind: captures, GEMMs, attention, layers, overhead.
NEEDS_NOTHING = ("first_step", "gemm_unsure", "attention_sweep", "savings", "overhead")

PREDICTED = ("first_step", "gemm_unsure", "attention_sweep", "savings", "gemm_sweep", "layer_pairs")

#: As if they were not installed.
BLOCKED = """
import sys
sys.modules |= dict.fromkeys({names})
"""


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.gpu.collect",
            "--dry-run-cpu",
            "--results",
            str(out / "results"),
            *more,
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_all(process: subprocess.Popen[str]) -> None:
    """As a machine that goes away: the watchdog and its worker at once."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str], list[str]]]:
    """The folder of a whole dry run, and the items measured before and after a kill at a random one."""
    out = tmp_path_factory.mktemp("dry")
    kept = set((ROOT / "sample_traces").iterdir())
    process = start(out)
    assert process.stdout is not None
    before: list[str] = []
    stop = random.randint(1, 12)
    for line in process.stdout:
        if found := DONE.match(line):
            before.append(f"{found[1]} {found[2]}")
        if len(before) == stop:
            kill_all(process)
            break
    process.communicate()
    process = start(out)
    said, errors = process.communicate(timeout=3600)
    assert process.returncode == 0, said + errors
    after = [f"{found[1]} {found[2]}" for line in said.splitlines() if (found := DONE.match(line))]
    assert set((ROOT / "sample_traces").iterdir()) == kept
    yield out, before, after


def test_every_stage_is_done_and_says_that_it_is_a_dry_run(dry_run: tuple[Path, Any, Any]) -> None:
    folder = dry_run[0] / "results" / "cpu"
    assert {path.name for path in folder.iterdir()} == {f"{stage.name}.json" for stage in STAGES}
    for stage in STAGES:
        result = read_result(folder / f"{stage.name}.json")
        assert (result["dry_run"], result["gpu"], result["state"]) == (True, "cpu", "done")
        assert result["failed"] == {}
    for name in PREDICTED:
        said = read_result(folder / f"{name}.json")["predictions"]
        assert said and any(one.get("values") for one in said.values()), name


def test_what_was_measured_before_the_kill_is_not_measured_again(
    dry_run: tuple[Path, list[str], list[str]],
) -> None:
    _, before, after = dry_run
    assert before
    assert after
    assert not set(before) & set(after)


def test_a_kill_between_the_last_item_and_the_result_is_made_good(tmp_path: Path) -> None:
    process = start(tmp_path, "--only", "ceilings")
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(r"ceilings 4/4 ", line):
            kill_all(process)
            break
    process.communicate()
    again = start(tmp_path, "--only", "ceilings")
    said, errors = again.communicate(timeout=3600)
    assert again.returncode == 0, said + errors
    assert [path.name for path in (tmp_path / "results" / "cpu").iterdir()] == ["ceilings.json"]


def traces(out: Path) -> list[Path]:
    return sorted((out / "sample_traces").glob("*.json.gz"))


def test_each_trace_has_its_truth_and_is_small(dry_run: tuple[Path, Any, Any]) -> None:
    found = traces(dry_run[0])
    assert len(found) > 15
    for path in found:
        assert path.name.startswith("cpu_")
        assert path.stat().st_size < 4_000_000
        assert path.with_name(path.name.replace(".json.gz", ".truth.csv.gz")).stat().st_size < 100_000
        head = gzip.decompress(path.read_bytes())
        assert json.loads(head)["traceName"] == path.name


def test_each_product_has_the_module_that_a_synchronised_run_gives_it(dry_run: tuple[Path, Any, Any]) -> None:
    """Two ways to the same names: ranges by autograd's numbering, and windows by the graph's own edges."""
    from benchmarks.gpu import truth

    compared = 0
    for path in traces(dry_run[0]):
        how, kernels = truth.read(path.with_name(path.name.replace(".json.gz", ".truth.csv.gz")))
        assert how["trace"] == path.name
        expected = [(one.name, one.module) for one in kernels if one.name in PRODUCTS]
        parts = {one.part for one in kernels}
        assert parts >= {"forward", "loss", "backward", "grad_clip", "optimizer"}, path.name
        assert ("recompute" in parts) == ("checkpoint" in path.name)
        if how["granularity"] != "module":
            assert "compile" in path.name or "reduceoverhead" in path.name
            continue
        compared += len(expected)
        assert all(module for _, module in expected), path.name
        assert recorded(path, {one.module for one in kernels}) == expected, path.name
    assert compared > 200


def recorded(path: Path, modules: set[str]) -> list[tuple[str, str]]:
    """(operator, innermost range) of each product of the trace's first step, in order of time."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    whole = [event for event in events if event.get("ph") == "X"]
    step = next(event for event in whole if str(event["name"]).startswith("ProfilerStep#"))

    def holds(outer: Any, inner: Any, thread: bool = True) -> bool:
        return (
            (outer["tid"] == inner["tid"] or not thread)
            and outer["ts"] <= inner["ts"]
            and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
        )

    mine = [event for event in whole if holds(step, event, thread=False)]
    ranges = [event for event in mine if event["name"] in modules and event["name"]]
    found = []
    products = [one for one in mine if one["name"] in PRODUCTS]
    for product in sorted(products, key=lambda one: one["ts"]):
        if any(holds(other, product) for other in products if other is not product):
            continue  # a CPU's fp8 product runs another one inside
        owners = [one for one in ranges if holds(one, product)]
        owner = max(owners, key=lambda one: one["ts"])["name"] if owners else ""
        found.append((product["name"], owner))
    return found


def test_analyze_says_in_one_line_that_a_cpu_trace_has_no_gpu_work(dry_run: tuple[Path, Any, Any]) -> None:
    for path in traces(dry_run[0])[::6]:
        done = running.run("analyze", path)
        assert done.returncode == 3
        assert done.stderr.startswith("tracelens: ")
        assert "Traceback" not in done.stderr


def test_a_dry_run_never_writes_among_real_results(
    capsys: pytest.CaptureFixture[str], said: Listener
) -> None:
    elsewhere = ["--results", str(ROOT / "elsewhere")]
    for where in (
        ["--results", str(worker.RESULTS)],
        ["--results", str(worker.RESULTS / "h200")],
        ["--results", str(ROOT / "results")],  # beside it would be sample_traces
        [*elsewhere, "--traces", str(worker.TRACES)],
    ):
        with pytest.raises(SystemExit) as left:
            worker.main(["--dry-run-cpu", *where])
        assert left.value.code == 2
        said(capsys.readouterr().err.splitlines()[-1])


def test_wrong_use_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, why in (
        (["--only", "nothing"], "no stage 'nothing'; there are first_step"),
        (["--minutes", "-1"], "a positive number of minutes"),
        (["--gpu", "h200"], "--gpu goes with --plan"),
    ):
        with pytest.raises(SystemExit) as left:
            worker.main(arguments)
        assert left.value.code == 2
        assert why.split(";")[0] in capsys.readouterr().err


def run(program: str) -> None:
    """In a Python of its own, without complaints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs_where_only_torch_is_installed(tmp_path: Path) -> None:
    """Neither the reader's libraries nor numpy: without that one, only the predictions are left out."""
    absent = ("msgspec", "isal", "click", "jinja2", "rich", "pandas", "pyarrow", "numpy")
    program = f"""{BLOCKED.format(names=absent)}
import benchmarks.gpu.worker
import tracelens, tracelens.capture.manual
assert not [name for name in sys.modules if name.startswith(("tracelens.trace", "tracelens.analysis"))]
only = [word for name in {NEEDS_NOTHING} for word in ("--only", name)]
sys.exit(benchmarks.gpu.worker.main(["--dry-run-cpu", *only, "--results", {str(tmp_path / "results")!r}]))
"""
    run(program)
    for name in NEEDS_NOTHING:
        result = read_result(tmp_path / "results" / "cpu" / f"{name}.json")
        assert result["state"] == "done"
        assert all("numpy" in one["why"] for one in result["predictions"].values())


def test_the_capture_command_works_without_the_readers_libraries(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(12):\n"
        "    model(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    # click is on the GPU machine; msgspec and isal are not
    program = BLOCKED.format(names=("msgspec", "isal")) + (
        "from tracelens.cli import main\n"
        f"sys.argv = ['tracelens', 'capture', '--out', {str(tmp_path / 'out')!r}, '--wait', '2', "
        f"'--warmup', '1', '--active', '2', '--', {str(script)!r}]\n"
        "main()\n"
    )
    run(program)
    assert (tmp_path / "out" / "rank0.json.gz").exists()
