"""Traces packed with zstd: whole, in several frames as parallel packers write them, and cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest

from tests.said import Listener
from tracelens.kinds import kind_of
from tracelens.trace import read_trace

EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": f"aten::op{at % 7}", "pid": 1, "tid": 1, "ts": at * 10, "dur": 7}
    for at in range(4000)
]
WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}).encode()


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("cut", [None, 1000, len(WHOLE) // 2])
def test_zstd_gives_what_the_plain_file_gives(tmp_path: Path, cut: int | None) -> None:
    packed = zstd(WHOLE) if cut is None else zstd(WHOLE[:cut]) + zstd(WHOLE[cut:])
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(packed)
    assert kind_of(path) == "trace"
    trace = read_trace(path)
    assert trace.ops.ts_ns.tolist() == [at * 10_000 for at in range(4000)]
    assert not trace.partial and trace.warnings == []


def test_zstd_that_is_cut_off_keeps_what_comes_before(tmp_path: Path, said: Listener) -> None:
    path = tmp_path / "rank0.json.zst"
    packed = zstd(WHOLE[: len(WHOLE) // 2]) + zstd(WHOLE[len(WHOLE) // 2 :])
    path.write_bytes(packed[:-100])
    trace = read_trace(path)
    assert trace.partial
    said(trace.warnings[0].partition(" (")[0])  # behind it what the unpacker says
    assert 1500 < len(trace.ops) < 4000
