"""``analyze --perfetto`` and ``open`` as a user meets them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.said import Listener

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"
PORT = 9001


def port_is_free() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return False
    return True


def test_analyze_writes_it_beside_the_other_outputs(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--no-html", "--perfetto", "p.json.gz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "p.json.gz" in done.stdout
    original = json.loads(gzip.decompress(SAMPLE.read_bytes()))["traceEvents"]
    events = json.loads(gzip.decompress((tmp_path / "p.json.gz").read_bytes()))["traceEvents"]
    assert events[-len(original) :] == original
    assert {"tracelens: component (stream 7)", "tracelens: findings (stream 7)"} <= {
        e["args"]["name"] for e in events if e["name"] == "thread_name"
    }


@pytest.mark.parametrize(
    ("trace", "out", "said"),
    [
        ("-", "p.json", "--perfetto reads the trace a second time, which standard input and pipes"),
        (SAMPLE, "p.pftrace", "cannot tell the format of p.pftrace: end it in .json or .json.gz"),
        (SAMPLE, "no/folder/p.json", "cannot write no/folder/p.json"),
        (SAMPLE, SAMPLE, "would replace the trace itself"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tmp_path: Path, trace: str | Path, out: str | Path, said: str
) -> None:
    stdin = SAMPLE.read_bytes() if trace == "-" else None
    before = SAMPLE.stat().st_mtime_ns
    done = run("analyze", trace, "--no-html", "-q", "--perfetto", out, cwd=tmp_path, stdin=stdin)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert SAMPLE.stat().st_mtime_ns == before


def test_a_named_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = run("analyze", "pipe", "--perfetto", "p.json", cwd=tmp_path)
    assert (done.returncode, "save it to a file" in done.stderr) == (2, True)


def test_a_cut_off_trace_says_that_the_file_is_partial(tmp_path: Path) -> None:
    packed = SAMPLE.read_bytes()
    (tmp_path / "\x1b[31mcut.json.gz").write_bytes(packed[: len(packed) * 9 // 10])
    done = run(
        "analyze", "\x1b[31mcut.json.gz", "--no-html", "-q", "--perfetto", "\x1b[31mp.json", cwd=tmp_path
    )
    assert done.returncode == 0
    assert "p.json: partial: it holds the " in done.stderr
    assert "\x1b" not in done.stderr
    assert json.loads((tmp_path / "\x1b[31mp.json").read_text())["traceEvents"]


def opened(folder: Path) -> subprocess.Popen[bytes]:
    """`tracelens open`, where nothing uses its port."""
    if not port_is_free():
        pytest.skip("something uses port 9001 here")
    command = [sys.executable, "-m", "tracelens", "open", "--no-browser", str(SAMPLE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)


def test_open_serves_the_file_once_and_ends(tmp_path: Path) -> None:
    with opened(tmp_path) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert url.startswith("https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/")
        taken = run("open", "--no-browser", SAMPLE, cwd=tmp_path)
        assert taken.returncode == 2
        assert taken.stderr.startswith("tracelens: port 9001 is taken")
        assert taken.stderr.count("\n") == 1
        with urllib.request.urlopen(url.partition("url=")[2], timeout=600) as answer:
            assert answer.read() == SAMPLE.read_bytes()
        process.communicate(timeout=3600)
    assert process.returncode == 0


def test_open_ends_with_control_c(tmp_path: Path) -> None:
    with opened(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=3600)
    assert process.returncode == 130
    assert b"Traceback" not in error
    assert port_is_free()


def test_open_says_what_is_missing(tmp_path: Path, said: Listener) -> None:
    done = run("open", "--no-browser", "absent.json", cwd=tmp_path)
    assert done.returncode == 3
    said(done.stderr)
