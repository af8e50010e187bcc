"""Disks, folders and streams that fail: outputs appear whole or not at all, and the exit code is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from tests.cli.running import run
from tests.trace.tools import small_trace
from tracelens import assistant, files
from tracelens.cli import cli
from tracelens.errors import InputError, TracelensError, UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("faults") / "trace.json"
    path.write_text(small_trace().text())
    return path


@pytest.fixture(scope="module")
def report(trace: Path) -> Path:
    path = trace.with_name("report.json")
    assert run("analyze", trace, "--no-html", "-q", "--json", path).returncode == 0
    return path


OUTPUTS = {
    "-o": "x.html", "--json": "x.json", "--markdown": "x.md", "--kernels": "x.csv", "--perfetto": "x.json",
    "--summary": "x.summary",
}  # fmt: skip


@pytest.mark.parametrize("option", OUTPUTS)
def test_a_folder_that_is_gone_is_said_before_the_analysis(tmp_path: Path, trace: Path, option: str) -> None:
    with mock.patch("tracelens.analysis.read_trace", side_effect=AssertionError("analysed")):
        done = run("analyze", trace, option, tmp_path / "gone" / OUTPUTS[option], cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["analyze", "compare", "job"])
def test_a_folder_that_cannot_be_written_is_said_before(tmp_path: Path, trace: Path, command: str) -> None:
    arguments = {"analyze": [trace], "compare": [trace, trace], "job": [trace, trace]}[command]
    refused = OSError(30, "Read-only file system")
    with (
        mock.patch.object(Path, "touch", side_effect=refused),  # root writes everywhere
        mock.patch("tracelens.analysis.read_trace", side_effect=AssertionError("analysed")),
    ):
        name = "compare" if command == "compare" else "analyze"
        done = run(name, *arguments, "-o", tmp_path / "x.html")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "Read-only" in done.stderr


@pytest.mark.parametrize("option", ["-o", "--json", "--markdown", "--perfetto", "--summary"])
def test_an_output_never_replaces_its_input(tmp_path: Path, trace: Path, option: str) -> None:
    copy, link = tmp_path / "t.json", tmp_path / "link.json"
    copy.write_bytes(trace.read_bytes())
    link.symlink_to(copy)
    for output in (copy, link, tmp_path / "." / "t.json"):
        done = run("analyze", copy, option, output, *([] if option == "-o" else ["--no-html"]))
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert copy.read_bytes() == trace.read_bytes()


def test_nor_another_output_nor_a_report_that_is_shown_again(tmp_path: Path, report: Path) -> None:
    before = report.read_bytes()
    for command in (
        ("analyze", report, "--no-html", "--json", report),
        ("compare", report, report, "--json", report),
        ("analyze", report, "--json", tmp_path / "x", "--markdown", tmp_path / "x", "--no-html"),
        ("merge", report, "--json", report),
    ):
        assert run(*command).returncode == 2
    assert report.read_bytes() == before
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, report: Path) -> None:
    old = tmp_path / "page.html"
    old.write_text("old")

    def full(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    with mock.patch.object(Path, "write_bytes", full):
        done = run("analyze", report, "-o", old)
    assert (done.returncode, "No space left" in done.stderr) == (2, True)
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert old.read_text() == "old"


def test_two_runs_on_one_file_give_the_one_or_the_other(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    with files.atomic(target) as one, files.atomic(target) as other:
        assert one != other
        one.write_text("one" * 10_000)
        other.write_text("other")
    assert target.read_text() == "one" * 10_000
    with pytest.raises(KeyboardInterrupt), files.atomic(target) as third:
        third.write_text("third")
        raise KeyboardInterrupt
    assert target.read_text() == "one" * 10_000
    assert [one.name for one in tmp_path.iterdir()] == ["out.json"]


def test_a_place_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    files.check_place(tmp_path / "new")
    files.check_place(os.devnull)
    assert list(tmp_path.iterdir()) == []
    for place in (tmp_path, tmp_path / "gone" / "x", tmp_path / ("x" * 300)):
        with pytest.raises(UsageError):
            files.check_place(place)


def shell(line: str, report: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command as a shell runs it, with an environment of its own and no HOME."""
    own = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "T": f"{sys.executable} -m tracelens"}
    return subprocess.run(
        ["sh", "-c", line], env=own | {"R": str(report)} | environment, cwd=report.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="of Linux")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("$T analyze $R --no-html --json - >/dev/full", 2),
        ("$T analyze $R --no-html --json closed.json >&-", 0),
        ("$T analyze absent.json 2>&-", 3),
        ("$T analyze $R --no-html --fail-on 'gpu_busy<200%' 2>/dev/full", 1),
    ],
)
def test_a_stream_that_fails_ends_in_one_line_and_the_true_code(report: Path, line: str, code: int) -> None:
    done = shell(line, report)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) <= 1
    assert "Traceback" not in done.stderr


def test_without_home_and_in_the_c_locale(report: Path) -> None:
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell("$T analyze $R -v -o page.html", report, **plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert "µ" in report.with_name("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_leaves_no_half_file(
    tmp_path: Path, report: Path, sent: signal.Signals, code: int
) -> None:
    page = tmp_path / "page.html"
    page.write_text("old")
    slow = (  # the file is begun, and then the disk takes its time
        "import pathlib, time, sys; from tracelens.cli import main; w = pathlib.Path.write_bytes\n"
        "def slow(path, data): w(path, data[:99]); print('begun', flush=True); time.sleep(60)\n"
        "pathlib.Path.write_bytes = slow\n"
        f"sys.argv = ['tracelens', 'analyze', {str(report)!r}, '-o', {str(page)!r}]; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(sent)
    process.communicate()
    assert process.returncode == code
    assert page.read_text() == "old"
    left = [one.name for one in tmp_path.iterdir() if one != page]
    assert all(name.startswith(".page.") for name in left)  # a dead process removes nothing
    assert sent == signal.SIGKILL or not left


def test_ctrl_c_while_it_is_being_imported_is_one_line() -> None:
    early = (
        "import runpy, signal, sys\n"
        "class Ends:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'click': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Ends); sys.argv = ['tracelens', '--version']\n"
        "runpy.run_module('tracelens', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", early], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    "command",
    ["analyze LONG", "analyze LONG LONG", "analyze LONG --no-html --json x.json", "compare LONG LONG",
     "merge LONG", "suggest LONG --gpu h100-sxm", "doctor LONG", "history LONG", "open LONG"],
)  # fmt: skip
def test_a_name_longer_than_any_file_has_is_one_line(command: str) -> None:
    """To ask whether it is a folder is an error of its own, as below a folder that may not be entered."""
    found = CliRunner().invoke(cli, command.replace("LONG", f"{'x' * 300}/{'y' * 5000}.json").split())
    assert isinstance(found.exception, TracelensError) and "\n" not in str(found.exception)


def test_an_assistants_name_longer_than_any_file_has_is_no_file() -> None:
    with pytest.raises(InputError, match="no such file"):
        assistant.analyze("x" * 5000)
