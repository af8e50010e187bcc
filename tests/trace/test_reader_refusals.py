"""Input that is no trace gets one clear InputError that names the file and says what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.trace.tools import contents, document, kernel, read
from tracelens.errors import InputError
from tracelens.trace import read_trace

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\b\6\0\0\0"
WHOLE = document([kernel()]).encode()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("trace.json", WHOLE)
    return buffer.getvalue()


REFUSED = {
    "empty": (b"", "is empty: nothing to analyze"),
    "white space": (b" \n\t\r\n" * 100, "is empty: nothing to analyze"),
    "byte order mark alone": (b"\xef\xbb\xbf", "is empty: nothing to analyze"),
    "png": (PNG, "holds no JSON"),
    "text": (b"hello, world", "holds no JSON"),
    "html": (b"<!doctype html><html>404</html>", "holds no JSON"),
    "zeros": (bytes(100_000), "holds no JSON"),
    "json text": (b'"traceEvents"', "holds no JSON"),
    "json null": (b"null", "holds no JSON"),
    "json number": (b"12", "holds no JSON"),
    "utf-16": (WHOLE.decode().encode("utf-16"), "holds no JSON"),
    "object without events": (b'{"a": 1, "b": [1, 2]}', "is JSON without traceEvents"),
    "a saved report": (b'{"schema_version": "1.1", "findings": []}', "give the trace"),
    "events are no list": (b'{"traceEvents": null}', "is JSON without traceEvents"),
    "events are an object": (b'{"traceEvents": {"a": 1}}', "is JSON without traceEvents"),
    "metadata cut off": (b'{"schemaVersion": 1, "deviceProperties": [{"id": 0', "ends or breaks before"),
    "not quite json": (b'{"schemaVersion": oops}', "ends or breaks before"),
    "objects all the way down": (b'{"a":' * 100_000, "ends or breaks before"),
    "sqlite": (b"SQLite format 3\x00" + bytes(100), "is an SQLite database"),
    "pickle": (pickle.dumps({"segments": [], "device_traces": []}), "is a Python pickle"),
    "old pickle": (pickle.dumps({"segments": []}, protocol=2), "is a Python pickle"),
    "zip": (zipped(), "is a zip archive: unzip it first"),
    "zstd of rubbish": (b"\x28\xb5\x2f\xfd" + bytes(range(40)), "zstd data is damaged"),
    "xz": (lzma.compress(WHOLE), "unpack it with xz -d first"),
    "bzip2": (bz2.compress(WHOLE), "unpack it with bzip2 -d first"),
    "gzip of nothing": (gzip.compress(b""), "is empty"),
    "gzip of text": (gzip.compress(b"hello"), "holds no JSON"),
    "gzip, first bytes only": (gzip.compress(WHOLE)[:2], "the gzip data is cut off"),
    "gzip, header only": (gzip.compress(WHOLE)[:10], "the gzip data is cut off"),
    "gzip of rubbish": (b"\x1f\x8b" + bytes(range(200)), "gzip data is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.bin"])
def test_refused_with_one_line_that_names_the_file(tmp_path: Path, case: str, name: str) -> None:
    data, message = REFUSED[case]
    with pytest.raises(InputError) as refusal:
        read(tmp_path, data, name=name)
    text = str(refusal.value)
    assert message in text
    assert text.startswith(name)
    assert "\n" not in text
    assert str(tmp_path) not in text
    assert refusal.value.exit_code == 3


@pytest.mark.parametrize("size", [1, 3, 7, 100])
@pytest.mark.parametrize("case", REFUSED)
def test_the_refusal_does_not_hang_on_how_the_bytes_come(
    tmp_path: Path, case: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, message = REFUSED[case]
    monkeypatch.setattr("tracelens.trace.source.BLOCK", size)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", size)
    with pytest.raises(InputError) as refusal:
        read(tmp_path, data[:5000])
    assert message in str(refusal.value)


def test_places_that_are_no_files(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "absent.json", "no such file: "),
        (tmp_path, "is a folder: give one trace file"),
        (tmp_path / "a\0b.json", "no such file: "),
        (tmp_path / ("x" * 5000), "cannot read "),
    ):
        with pytest.raises(InputError) as refusal:
            read_trace(path)
        assert message in str(refusal.value)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_bytes(WHOLE)
    path.chmod(0)
    with pytest.raises(InputError, match="cannot read"):
        read_trace(path)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"args":', '{"traceEvents": [', "[[],"])
@pytest.mark.parametrize("depth", [3_000, 100_000])
def test_deep_nesting_ends_in_a_partial_trace_or_a_refusal(tmp_path: Path, opening: str, depth: int) -> None:
    for text in (opening * depth, '{"traceEvents": [' + json.dumps(kernel()) + "," + opening * depth):
        try:
            trace = read(tmp_path, text)
        except InputError:
            continue
        assert trace.partial
        assert len(trace.kernels) <= 1


def test_deep_nesting_inside_one_event_does_not_cost_the_others(tmp_path: Path) -> None:
    deep = "[" * 50_000 + "]" * 50_000
    text = document([kernel("a"), kernel("deep", grid="DEEP"), kernel("b")]).replace('"DEEP"', deep)
    trace = read(tmp_path, text)
    kept = [trace.symbols[int(code)] for code in trace.kernels.name]
    assert [name for name in kept if name != "deep"] == ["a", "b"]
    assert trace.partial == ("deep" not in kept)


def test_repeated_openings_of_a_name_do_not_take_forever(tmp_path: Path) -> None:
    """The mending of names must not look through the whole text once per name."""
    trace = read(tmp_path, '{"traceEvents": [{' + '"name": "' * 20_000)
    assert trace.partial
    assert trace.events == 0


def test_random_bytes_are_a_trace_or_a_refusal(tmp_path: Path) -> None:
    source = random.Random(5)
    for prefix in (b"", b"{", b"[", b'{"traceEvents": [', b"\x1f\x8b\x08\0", WHOLE[:-3]):
        for size in (1, 10, 1000, 50_000):
            try:
                trace = read(tmp_path, prefix + source.randbytes(size))
            except InputError:
                continue
            assert trace.partial or trace.warnings or not trace.events


# --- standard input and pipes ----------------------------------------------------------------------

READ_STDIN = """
import sys
from tracelens.trace import read_trace
trace = read_trace("-")
print(trace.source.name, len(trace.kernels), trace.partial)
"""


@pytest.mark.parametrize("data", [WHOLE, gzip.compress(WHOLE)], ids=["plain", "gzip"])
def test_standard_input(data: bytes) -> None:
    done = subprocess.run([sys.executable, "-c", READ_STDIN], input=data, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["<stdin>", "1", "False"]


def test_standard_input_stays_open_and_gives_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.BytesIO(WHOLE)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    assert contents(read_trace("-")) == contents(read(tmp_path, WHOLE))
    assert not stream.closed


@pytest.mark.parametrize("damage", [0, 40])
def test_damaged_gzip_on_standard_input_is_partial(monkeypatch: pytest.MonkeyPatch, damage: int) -> None:
    packed = bytearray(gzip.compress(document([kernel(f"k{i}") for i in range(5000)]).encode(), mtime=0))
    if damage:
        packed[len(packed) // 2 : len(packed) // 2 + damage] = bytes(damage)
    else:
        del packed[len(packed) // 2 :]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(packed))))
    trace = read_trace("-")
    assert trace.partial
    assert len(trace.kernels) < 5000
    assert any("gzip" in warning for warning in trace.warnings)


WRITE_SLOWLY = """
import sys
data = sys.stdin.buffer.read()
with open(sys.argv[1], "wb", 0) as pipe:
    for at in range(len(data)):
        pipe.write(data[at : at + 1])
"""


def test_a_pipe_that_gives_a_few_bytes_at_a_time(tmp_path: Path) -> None:
    """What ``tracelens analyze <(...)`` opens: reads return what is there, not what was asked for."""
    for data in (b"\xef\xbb\xbf" + WHOLE, gzip.compress(WHOLE)):
        fifo = tmp_path / f"fifo{len(data)}"
        os.mkfifo(fifo)
        command = [sys.executable, "-c", WRITE_SLOWLY, str(fifo)]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert writer.stdin is not None
        writer.stdin.write(data)
        writer.stdin.close()
        assert len(read_trace(fifo).kernels) == 1
        assert writer.wait() == 0
