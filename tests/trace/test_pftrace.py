"""Perfetto's protobuf reads as the JSON of the same window.

``made_up.pftrace`` and ``made_up.json`` are two exports of one window by PyTorch 2.14.1 (its wheel, on a
CPU): ``merge_trace_window_into_chrome_trace`` of ``torch/profiler/_cupti/monitor_trace.py``. Every event in
it is made up; nothing was measured.
"""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.trace.tools import contents, read
from tracelens.api import analyze
from tracelens.errors import InputError
from tracelens.results.json import to_json
from tracelens.trace import Trace, read_trace
from tracelens.trace.protobuf import varint
from tracelens.trace.tables import LaunchConfig

HERE = Path(__file__).parent
PFTRACE, JSON = HERE / "made_up.pftrace", HERE / "made_up.json"
RAW = gzip.decompress(PFTRACE.read_bytes())


def told(trace: Trace) -> dict[str, list[str]]:
    """The tables, without the shared memory: the file has only its dynamic part."""
    found = contents(trace)
    kernels = [[_unshared(value) for value in row] for row in found["kernels"]]
    return {
        table: [repr(list(row)) for row in rows] for table, rows in (found | {"kernels": kernels}).items()
    }


def _unshared(value: Any) -> Any:
    return replace(value, shared_memory=None) if isinstance(value, LaunchConfig) else value


WHOLE = told(read_trace(PFTRACE))


def packet(body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([10, len(body)]) + body


def places() -> list[tuple[int, int]]:
    """Where each packet begins and ends."""
    found, at = [], 0
    while at < len(RAW):
        length, begin = varint(RAW, at + 1)
        found.append((at, begin + length))
        at = begin + length
    return found


HEAD = RAW[: places()[6][1]]  # clocks, threads and names


def is_part(trace: Trace) -> bool:
    return all(set(rows) <= set(WHOLE[table]) for table, rows in told(trace).items())


def test_it_reads_as_the_json_of_the_same_window() -> None:
    trace, same = read_trace(PFTRACE), read_trace(JSON)
    assert told(trace) == told(same)
    assert [table for table, rows in WHOLE.items() if not rows] == ["flows"]
    assert trace.warnings == [] and not trace.truncated and not trace.damage
    assert trace.counters.value.tolist() == same.counters.value.tolist() != []
    assert trace.counters.ts_ns.tolist() == same.counters.ts_ns.tolist()
    assert trace.metadata["baseTimeNanoseconds"] == same.metadata["baseTimeNanoseconds"]
    assert trace.thread_names[(100, 101)] == "thread 101 (made up)"


def test_the_analysis_is_the_same() -> None:
    found, same = (
        msgspec.json.decode(to_json(analyze(path, gpu="h100-sxm").report)) for path in (PFTRACE, JSON)
    )
    assert found.pop("trace") != same.pop("trace")  # their names and sizes
    assert found == same


@pytest.mark.parametrize("name", ["trace.json", "trace.bin", "trace.pftrace"])
@pytest.mark.parametrize("packed", [True, False])
def test_it_is_told_by_its_content(tmp_path: Path, name: str, packed: bool) -> None:
    assert told(read(tmp_path, PFTRACE.read_bytes() if packed else RAW, name=name, processes=2)) == WHOLE


@pytest.mark.parametrize("size", [1, 7, 100])
def test_it_does_not_hang_on_how_the_bytes_come(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.trace.source.BLOCK", size)
    monkeypatch.setattr("tracelens.trace.pftrace._PIECE", size)
    monkeypatch.setattr("tracelens.trace.pftrace._PACKED_TOGETHER", 2)
    assert told(read(tmp_path, RAW)) == WHOLE


def test_json_that_begins_with_a_new_line_is_json(tmp_path: Path) -> None:
    for before in (b"\n", b"\n\n", b"\n\t\t", b"\n    ", b"\n\r\n" * 200):
        assert told(read(tmp_path, before + JSON.read_bytes())) == WHOLE


@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_off_file_gives_what_is_whole_and_says_so(tmp_path: Path, packed: bool) -> None:
    data = PFTRACE.read_bytes() if packed else RAW
    ends = {end for _, end in places()}
    some = 0
    for size in range(1, len(data), 17):
        try:
            trace = read(tmp_path, data[:size])
        except InputError as refusal:
            assert "\n" not in str(refusal)
            continue
        some += 1
        assert is_part(trace)
        assert trace.truncated or size in ends  # between two packets nothing tells that more should follow
        assert len(trace.warnings) == 1 or size in ends
    assert some > 20


def test_a_flipped_byte_breaks_nothing(tmp_path: Path) -> None:
    rng = random.Random(4)
    for _ in range(300):
        data = bytearray(RAW)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read(tmp_path, bytes(data))
        except InputError as refusal:
            assert "\n" not in str(refusal)


def test_a_lost_packet_never_gives_a_range_the_end_of_another(tmp_path: Path) -> None:
    refused = 0
    for begin, end in places()[7:]:
        try:
            assert is_part(read(tmp_path, RAW[:begin] + RAW[end:]))
        except InputError:
            refused += 1
    assert 0 < refused < 30


EMPTY = packet(b"\x50\x01\x68\x01")
CUT = "is cut off or damaged before the first whole event"
REFUSED = {
    "another program's range": (packet(b"\x50\x05\x5a\x04\x48\x01\x58\x01"), "of another program"),
    "another program's kernel": (packet(b"\x50\x02\xaa\x03\x02\x08\x01"), "of another program"),
    "no events": (EMPTY, "without a whole event"),
    "a huge packet": (EMPTY + b"\x0a\xff\xff\xff\xff\x7f" + bytes(99), CUT),
    "a number without an end": (EMPTY + b"\x0a" + b"\xff" * 50, CUT),
    "an end alone": (HEAD + packet(b"\x40\x05\x50\x01\x5a\x04\x48\x02\x58\x02"), CUT),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_one_line_that_names_the_file(tmp_path: Path, case: str) -> None:
    data, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as refusal:
        read(tmp_path, data, name="trace.pftrace")
    assert str(refusal.value).startswith("trace.pftrace")
    assert "\n" not in str(refusal.value)


def test_lists_within_lists_are_refused_before_python_gives_up(tmp_path: Path) -> None:
    inner = b"\x20\x01"
    for _ in range(40):
        inner = b"\x62" + bytes([len(inner)]) + inner
    event = b"\x48\x01\x58\x02\x50\x01\x22" + bytes([len(inner)]) + inner
    body = b"\x40\x05\x50\x01\x5a" + bytes([len(event)]) + event
    with pytest.raises(InputError, match=CUT):
        read(tmp_path, HEAD + packet(body))
