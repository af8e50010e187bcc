"""Terminals: colour, width, dumb ones, none at all; a bar on long work, and only where somebody watches."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.kept import analyzed
from tests.synthetic import ModelSpec, Options, build
from tracelens.cli.progress import progress
from tracelens.results.json import to_json

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [str(ROOT / "sample_traces" / f"generated_gpt2_vocab{v}.json.gz") for v in (50257, 50304)]
SHAPE = ["--hidden", "768", "--heads", "12", "--layers", "2", "--vocab", "50257"]
COMMANDS = {
    "analyze": ["analyze", "before.json", "--no-html", "--fail-on", "mfu<1%"],
    "compare": ["compare", "before.json", "after.json"],
    "suggest": ["suggest", *SHAPE, "--gpu", "h100-sxm"],
    "gemm": ["gemm", "8192x50257x2560", "--gpu", "h100-sxm"],
    "gpus": ["gemm", "--gpu", "list"],
    "explain": ["explain", "TL101"],
    "metrics": ["analyze", "--list-metrics"],
}
#: One Python runs several commands, a mark behind each.
_EACH = """
import json, sys
from tracelens.__main__ import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["tracelens", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, arguments
    print("\\x1e", flush=True)
"""
_COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]+)m")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of the samples: what is shown is that of the traces, without a second for each analysis."""
    made = tmp_path_factory.mktemp("saved")
    for name, sample in zip(("before", "after"), SAMPLES, strict=True):
        (made / f"{name}.json").write_bytes(to_json(analyzed(Path(sample)).report))
    return made


def each(*names: str) -> list[str]:
    """Arguments of a Python that runs these commands."""
    return ["-c", _EACH, json.dumps([COMMANDS[name] for name in names])]


def parted(names: Iterable[str], shown: str) -> dict[str, str]:
    """What each of the commands showed."""
    return dict(zip(names, shown.split("\x1e\n")[:-1], strict=True))


def on_terminal(
    arguments: list[str], *, cwd: Path, errors_only: bool = False, columns: int = 90, **environment: str
) -> tuple[int, str]:
    """Run Python on a terminal of its own; what it shows. ``errors_only``: standard output goes to a pipe."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {
        n: v
        for n, v in os.environ.items()
        if n not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if errors_only else theirs,
        stderr=theirs,
        env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return process.wait(), shown.decode().replace("\r\n", "\n")


def test_a_terminal_gets_its_width_and_its_colours(folder: Path) -> None:
    code, all_shown = on_terminal(each(*COMMANDS), cwd=folder)
    assert code == 0, all_shown[-500:]
    for name, shown in parted(COMMANDS, all_shown).items():
        assert max(map(cell_len, _ESCAPE.sub("", shown).splitlines())) <= 90, name
        assert bool(_COLOUR.search(shown)) == (name not in ("explain", "metrics")), name


def test_no_color_and_a_dumb_terminal_are_respected(folder: Path) -> None:
    names = ("analyze", "compare", "suggest", "gemm")
    code, plain = on_terminal(each(*names), cwd=folder, NO_COLOR="1")
    assert code == 0 and not _COLOUR.search(plain) and len(parted(names, plain)) == len(names)
    code, shown = on_terminal(each(*names), cwd=folder, TERM="dumb")
    assert code == 0 and "\x1b" not in shown and len(parted(names, shown)) == len(names)


@pytest.mark.parametrize(("columns", "width"), [("50", 50), ("0", 90), ("wide", 90)])
def test_columns_is_respected_where_it_is_a_width(columns: str, width: int, folder: Path) -> None:
    names = ("analyze", "gemm")
    code, all_shown = on_terminal(each(*names), cwd=folder, COLUMNS=columns)
    assert code == 0 and "Traceback" not in all_shown, all_shown[-500:]
    for name, shown in parted(names, all_shown).items():
        assert max(cell_len(line) for line in _ESCAPE.sub("", shown).splitlines()) <= width, name


def test_a_pipe_gets_plain_text(folder: Path) -> None:
    kept = {n: v for n, v in os.environ.items() if n not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    done = subprocess.run(
        [sys.executable, *each(*COMMANDS)],
        cwd=folder,
        capture_output=True,
        env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
        check=False,
    )
    assert done.returncode == 0 and done.stderr == b"" and b"\x1b" not in done.stdout
    for name, text in parted(COMMANDS, done.stdout.decode()).items():
        # a page of a rule goes to a file as it is
        assert name == "explain" or max(cell_len(line) for line in text.splitlines()) <= 80, name


@pytest.mark.parametrize("name", ["compare", "gemm", "explain"])
def test_a_reader_that_goes_away_is_no_error(name: str, folder: Path) -> None:
    quoted = " ".join(f"'{part}'" for part in COMMANDS[name])
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m tracelens {quoted} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=folder,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 1


# the bar


def large(folder: Path) -> Path:
    """A trace that takes long to read: a small step, and much white space."""
    model = ModelSpec(hidden=128, heads=2, vocab=503, layers=1, sequence=64, micro_batch=1)
    path = folder / "large.json"
    path.write_text(build(model, Options(steps=1)).text().rstrip() + " " * (9 * 1024 * 1024))
    return path


def test_long_work_shows_a_bar_on_a_terminal_and_takes_it_away(tmp_path: Path) -> None:
    command = ["-m", "tracelens", "analyze", str(large(tmp_path)), "--no-html", "-q"]
    code, shown = on_terminal(command, cwd=tmp_path, errors_only=True)
    assert code == 0 and "analyzing" in shown and "attributing" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the line is empty again
    assert not _COLOUR.search(on_terminal(command, cwd=tmp_path, errors_only=True, NO_COLOR="1")[1])
    assert on_terminal(command, cwd=tmp_path, errors_only=True, TERM="dumb") == (0, "")
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_error_ends_the_bar_first(tmp_path: Path) -> None:
    path = large(tmp_path)
    command = ["-m", "tracelens", "analyze", str(path), "--steps", "90:95"]
    code, shown = on_terminal(command, cwd=tmp_path, errors_only=True)
    assert code == 2 and "\x1b[?25h" in shown  # the cursor is back
    assert _ESCAPE.sub("", shown).rstrip().splitlines()[-1].lstrip("\r").startswith("tracelens: ")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("long", "seconds", "shown"), [(False, 0.1, False), (False, 1.0, True), (True, 0.1, True)]
)
def test_only_work_that_takes_a_while_shows_a_bar(
    long: bool, seconds: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("tracelens.cli.progress.time.monotonic", lambda: clock[0])
    with progress("thinking", long=long) as heard:
        assert heard is not None
        for part in range(3):
            heard(part, 3, "\x1b]0;title\x07[red]x[/red]")
            clock[0] += seconds
    assert ("thinking" in stream.getvalue()) == shown
    assert "\x1b]0;" not in stream.getvalue() and ("[red]x" in stream.getvalue()) == shown


def test_nothing_hears_of_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("thinking", long=True) as heard:
        assert heard is None
    assert stream.getvalue() == ""
