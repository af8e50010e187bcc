"""`tracelens bench` on a command line: where there is no torch, no GPU, and on the CPU for a try."""

from __future__ import annotations

import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from tests.cli import running
from tests.cli.running import one_line
from tracelens.hardware.measurements import read_measurements

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, folder: Path, without: tuple[str, ...] = ()) -> CompletedProcess[str]:
    """``without``: modules that cannot be imported, in a Python of its own."""
    calibration = str(folder / "calibration")
    if without:
        return running.run_without(without, "bench", *arguments, TRACELENS_CALIBRATION=calibration)
    return running.run("bench", *arguments, TRACELENS_CALIBRATION=calibration)


def test_without_torch_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    line = one_line(run(folder=tmp_path, without=("torch",)), code=2)
    assert "pip install torch" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, which this would measure")
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    assert "no NVIDIA GPU" in one_line(run(folder=tmp_path), code=2)
    assert not (tmp_path / "calibration").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--out", "x.txt"), "end it in .json"),
        (("--dtypes", "int4"), "choose among bf16"),
        (("--dtypes", ","), "choose among bf16"),
        (("--cpu-dry-run",), "calibrates no GPU"),
    ],
)
def test_wrong_use_is_one_line(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in one_line(run(*arguments, folder=tmp_path), code=2)


def test_a_dry_run_where_the_reader_is_not_installed(tmp_path: Path) -> None:
    out = tmp_path / "cpu.json.gz"
    arguments = ("--cpu-dry-run", "--out", str(out))
    done = run(*arguments, folder=tmp_path, without=("msgspec", "isal", "pandas", "pyarrow", "jinja2"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("CPU, a test of the program")
    assert lines[-1] == f"written to {out}"
    assert any(re.match(r"  1 not measured: .* batched fp8", line) for line in lines)
    made = read_measurements(out)
    assert made.gpu == "cpu"
    assert made.command.split()[2:] == ["--minutes", "5", "--dtypes", "bf16,fp16,fp8,tf32", "--cpu-dry-run"]
    assert {row.layout for row in made.gemms} == {"TN", "NN", "NT"}
    assert {row.direction for row in made.attention} == {"forward", "backward"}
    assert not (tmp_path / "calibration").exists()


def test_help_says_where_the_file_goes_and_hides_the_dry_run(tmp_path: Path) -> None:
    done = run("--help", folder=tmp_path, without=("torch",))
    assert done.returncode == 0
    assert "TRACELENS_CALIBRATION" in done.stdout and "--cpu-dry-run" not in done.stdout
