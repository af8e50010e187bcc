"""Files made to fill the memory or the stack: what is whole in them is kept, and what is not is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import tracelens
from tests.said import Listener
from tests.trace.tools import kernel, names, read
from tracelens.errors import InputError
from tracelens.trace import read_trace
from tracelens.trace.door import LONGEST_NAME

KERNEL = json.dumps(kernel()).encode()
DEEP = 50_000


def test_a_packed_sea_of_spaces(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[%b,%b%b]}' % (KERNEL, b" " * (24 << 20), KERNEL), 1))
    trace = read_trace(path)
    assert len(trace.kernels) == 2
    assert path.stat().st_size < 200_000 < trace.source.json_bytes


@pytest.mark.parametrize(
    "event",
    [
        b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"args":{"Input Dims":%b}}' % (b"[" * DEEP + b"]" * DEEP),
        b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"args":%b1%b}' % (b'{"a":' * DEEP, b"}" * DEEP),
    ],
)  # fmt: skip
def test_depth_costs_no_neighbour(tmp_path: Path, event: bytes) -> None:
    data = b'{"traceEvents":[%b,%b,%b]}' % (KERNEL, event, json.dumps(kernel(ts=20)).encode())
    trace = read(tmp_path, data)
    assert len(trace.kernels) == 2
    assert tracelens.analyze(tmp_path / "trace.json").report.trace.kernels == 2


def test_deep_metadata_is_said(tmp_path: Path, said: Listener) -> None:
    trace = read(tmp_path, b'{"m":%b,"traceEvents":[%b]}' % (b"[" * DEEP + b"]" * DEEP, KERNEL))
    assert len(trace.kernels) == 1
    assert trace.metadata == {}
    said(trace.warnings)


def test_a_name_of_megabytes_is_cut(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel("x" * 5_000_000), kernel("b")]})
    trace = read(tmp_path, text)
    assert [len(name) for name in names(trace, trace.kernels)] == [LONGEST_NAME, 1]
    assert len(trace.door.warning()) == 1


def test_a_file_without_end_before_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    monkeypatch.setattr("tracelens.trace.reader._HEAD_LIMIT", 1 << 20)
    with pytest.raises(InputError) as error:
        read(tmp_path, gzip.compress(b'{"a":"' + b"x" * (3 << 20)), name="head.json.gz")
    said(error.value)
