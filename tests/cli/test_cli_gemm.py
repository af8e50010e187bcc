"""``tracelens gemm`` as a user meets it: no trace, no GPU, no torch, under a second."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cli.running import run as run_here
from tests.cli.running import run_each_without, run_without
from tests.effort import unit
from tests.gemm.test_predict_calibration import measurements, truth
from tracelens.hardware.measurements import write_measurements

ROOT = Path(__file__).resolve().parents[2]
#: Never needed for one product; pandas and torch alone take longer than all else.
HEAVY = ("torch", "pandas", "pyarrow", "jinja2", "isal", "transformers")


def run(*arguments: str, calibration: Path | str = "/nowhere", **env: str) -> CompletedProcess[str]:
    here = {"COLUMNS": "80", "TRACELENS_CALIBRATION": str(calibration), **env}
    return run_without(HEAVY, "gemm", *arguments, **here)


def run_each(calls: Sequence[tuple[str, ...]]) -> list[CompletedProcess[str]]:
    commands = [("gemm", *arguments) for arguments in calls]
    return run_each_without(HEAVY, commands, COLUMNS="80", TRACELENS_CALIBRATION="/nowhere")


def test_every_spelling_gives_the_same() -> None:
    spellings = [
        ("8192x50257x2560",), ("8192,50257,2560",), ("8192", "50257", "2560"), ("8192, 50257,", "2560"),
        ("1@8192x50257x2560",), ("8192x50257x2560", "--batch", "1"),
        ("8192x50257x2560", "--layout", "forward"),
    ]  # fmt: skip
    for done in run_each([(*arguments, "--gpu", "h100-sxm") for arguments in spellings]):
        assert done.returncode == 0 and done.stderr == "", done.args
        assert done.stdout.startswith("out[8192,50257] = a[8192,2560] @ b[2560,50257]  bf16, TN (forward)\n")
        assert "N = 50304  " in done.stdout and "\x1b" not in done.stdout


def test_an_answer_takes_about_a_second_of_a_processor_at_most() -> None:
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    seconds = []
    for _ in range(2):
        before = used()
        assert run("8192x50257x2560", "--gpu", "h100-sxm", "--vary", "m,n,k").returncode == 0
        seconds.append(used() - before)
    assert min(seconds) < 12 * unit()


def test_wrong_use_is_one_line_and_exit_code_2() -> None:
    wrong = [
        ((), "give M, N and K of out[M,N]"),
        (("12x34",), "cannot read '12x34'"),
        (("axbxc",), "cannot read 'axbxc'"),
        (("1x1x1", "1"), "cannot read '1x1x1 1'"),
        (("0x8x8",), "M = 0"),
        (("8x8x99999999999999",), "K = 99999999999999"),
        (("2@8x8x8", "--batch", "3"), "give one of them"),
        (("8x8x8", "--batch", "-3"), "--batch '-3': give a whole number"),
        (("8x8x8", "--gpu", "h10"), "did you mean h100-sxm, h100-sxm-96gb, h100-pcie, h100-nvl"),
        (("8x8x8", "--gpu", "mi300x"), "only NVIDIA's are known"),
        (("8x8x8", "--gpu", "\x1b[31mx\u202e"), "--gpu list shows all"),
        (("8x8x8", "--dtype", "bf17"), "unknown element type 'bf17'"),
        (("8x8x8", "--out-dtype", "?"), "unknown element type '?'"),
        (("8x8x8", "--layout", "sideways"), "unknown layout 'sideways'"),
        (("8x8x8", "--vary", "q"), "one or more of m, n, k"),
        (("8x8x8", "--vary", ""), "one or more of m, n, k"),
        (("8x8x8", "--span", "9"), "e.g. --span 1024:4096"),
        (("8x8x8", "--span", "9:12"), "must hold N = 8"),
        (("8x8x8; rm -rf", "--json"), "cannot read '8x8x8; rm -rf'"),
        (("9" * 5000,), "cannot read '999"),
    ]
    for done, (arguments, says) in zip(run_each([one for one, _ in wrong]), wrong, strict=True):
        assert done.returncode == 2 and done.stdout == "", arguments
        (line,) = done.stderr.splitlines()
        assert line.startswith("tracelens: ") and says in line
        assert line.isprintable() and len(line) < 900


def test_without_a_gpu_the_answer_says_for_which_it_is() -> None:
    done = run("4096x4096x4096")
    assert "NVIDIA H100 SXM5" in done.stdout and "assumed: no --gpu was given" in done.stdout
    assert "assumed" not in run("4096x4096x4096", "--gpu", "h100-sxm").stdout
    data = json.loads(run("4096x4096x4096", "--json").stdout)
    assert data["gpu"]["name"] == "h100-sxm" and "assumed" in data["gpu"]["why"]


def test_measurements_of_this_user_are_found_and_used(tmp_path: Path) -> None:
    write_measurements(measurements(truth(120)), tmp_path / "h200.json.gz")
    done = run("4096x4160x4096", calibration=tmp_path)
    assert "NVIDIA H200" in done.stdout and "`tracelens bench` measured last" in done.stdout
    assert "calibrated: fitted to 120 measurements" in done.stdout
    data = json.loads(run("4096x4160x4096", "--json", calibration=tmp_path).stdout)
    assert data["time_us"]["basis"] == "calibrated"
    fp8 = " ".join(run("4096x4160x4096", "--dtype", "fp8", calibration=tmp_path).stdout.split())
    assert "model: " in fp8 and "hold too few fp8 GEMMs" in fp8
    listed = run("--gpu", "list", calibration=tmp_path).stdout
    assert [line.split()[0] for line in listed.splitlines() if "measured" in line] == ["h200"]


def test_damaged_measurements_are_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "h200.json.gz").write_bytes(b"\x1f\x8bno")
    done = run("8x8x8", calibration=tmp_path)
    assert done.returncode == 3 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "h200.json.gz" in line


def test_json_is_the_only_thing_on_standard_output() -> None:
    done = run("96@1024x1024x64", "--layout", "wgrad", "--dtype", "fp16", "--vary", "n,k", "--json")
    data = json.loads(done.stdout)
    assert (data["m"], data["n"], data["k"], data["batch"]) == (1024, 1024, 64, 96)
    assert (data["layout"], data["dtype"]) == ("NT", "fp16")
    assert [around["dimension"] for around in data["around"]] == ["n", "k"]


def test_the_derivation_ends_with_the_time() -> None:
    done = run("8192x8192x8192", "--gpu", "h100-sxm", "--explain")
    assert "How the time is derived" in done.stdout and "time = " in done.stdout
    assert "--explain shows" not in done.stdout


def test_an_ascii_terminal_and_an_unknown_gpu_are_served() -> None:
    done = run("2304x1600x4096", "--gpu", "a100-sxm-40gb", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and done.stdout.isascii() and "###" in done.stdout
    done = run("4096x4096x4096", "--gpu", "t4")
    assert done.returncode == 0 and "no bf16" in done.stdout and "time unknown" in done.stdout


def test_json_goes_to_a_file_or_to_standard_output(tmp_path: Path) -> None:
    answers = [run("64x64x64", *asked).stdout for asked in (["--json", "-"], ["--json"])]
    assert answers[0] == answers[1] and json.loads(answers[0])["m"] == 64
    done = run("64x64x64", "--json", str(tmp_path / "gemm.json"))
    assert (tmp_path / "gemm.json").read_text(encoding="utf-8") == answers[0]
    assert "64" in done.stdout and not done.stdout.startswith("{")


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m tracelens gemm 64x64x64 --json | head -1",
        shell=True, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "{\n" and "Traceback" not in done.stderr


def test_experts_print_time_load_padding_and_what_would_change_it() -> None:
    done = run("--experts", "256", "--top-k", "8", "--ep", "8", "--load", "power-law:1.2", "32768x7168x2048",
               "--gpu", "h100-sxm", "--dtype", "fp8-block", "--row-multiple", "128")  # fmt: skip
    assert done.returncode == 0 and done.stderr == "" and max(map(len, done.stdout.splitlines())) <= 80
    for word in ("top-8 of 256 experts", "rows ", "per expert ", "imbalance ", "padding ", "up ", "down ",
                 "balanced load", "EP 16", "top-7"):  # fmt: skip
        assert word in done.stdout


def test_experts_as_json_are_the_values_of_python() -> None:
    import msgspec

    import tracelens
    from tracelens.results.experts import ExpertsJson

    asked = ("--experts", "8", "--top-k", "2", "8192x4096x14336", "--gpu", "h100-sxm")
    data = json.loads(run(*asked, "--json").stdout)
    found = tracelens.experts(8192, 4096, 14336, experts=8, top_k=2, gpu="h100-sxm")
    assert msgspec.convert(data, ExpertsJson).prediction == found
    assert [one["change"] for one in data["changes"]][-1] == {"top_k": [2, 3]}


@pytest.mark.parametrize("experts", [(), ("--experts", "8", "--top-k", "2")])
def test_scaled_blocks_are_spelled_either_way(experts: tuple[str, ...]) -> None:
    asked = ("gemm", "8192x4096x14336", *experts, "--gpu", "h100-sxm", "--dtype")
    one, other = (run_here(*asked, dtype) for dtype in ("fp8-block", "fp8_block"))
    assert one.returncode == 0 and "fp8-block" in one.stdout and one.stdout == other.stdout


def test_scaled_blocks_are_spelled_either_way_in_python() -> None:
    import tracelens

    both, sizes = ("fp8-block", "fp8_block"), (8192, 4096, 14336)
    gemms = [tracelens.gemm(*sizes, gpu="h100", dtype=dtype) for dtype in both]
    layers = [tracelens.experts(*sizes, experts=8, top_k=2, gpu="h100", dtype=dtype) for dtype in both]
    assert gemms[0] == gemms[1] and layers[0] == layers[1] and gemms[0].dtype == layers[0].dtype


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("8x8x8", "--experts", "8"), "--experts needs --top-k"),
        (("8x8x8", "--experts", "8", "--top-k", "9"), "cannot choose 9 of 8"),
        (
            ("8x8x8", "--experts", "8", "--top-k", "2", "--ep", "3"),
            "8 experts cannot be spread evenly over 3",
        ),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--load", "some"), "unknown load 'some'"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--dtype", "int8"), "unknown element type 'int8'"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--batch", "3"), "--batch is of one GEMM"),
        (("3@8x8x8", "--experts", "8", "--top-k", "2"), "--batch is of one GEMM"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--layout", "dgrad"), "--layout is of one GEMM"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--vary", "k"), "--vary is of one GEMM"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--span", "1:9"), "--span is of one GEMM"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--explain"), "--explain is of one GEMM"),
        (("8x8x8", "--experts", "8", "--top-k", "2", "--out-dtype", "fp32"), "--out-dtype is of one GEMM"),
        (("8x8x8", "--ep", "2"), "--ep is of experts"),
        (("8x8x8", "--backward"), "are of experts"),
    ],
)
def test_wrong_experts_are_one_line_and_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    done = run_here("gemm", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert says in line
