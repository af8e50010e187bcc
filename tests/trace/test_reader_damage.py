"""A damaged or cut off file gives every event that is whole, and says what is missing and where."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.said import Listener
from tests.trace.tools import contents, document, gpu_events, kernel, names, read, small_trace
from tracelens.errors import InputError
from tracelens.trace import Trace
from tracelens.trace.door import LONGEST_NAME


@cache
def sample() -> tuple[str, list[int], list[dict[str, Any]]]:
    """A file of about 1 MB, the offset behind each of its events, and the events."""
    text = small_trace(steps=4).text()
    assert text.isascii()
    at = text.index('"traceEvents": [') + len('"traceEvents": [')
    decoder = json.JSONDecoder()
    ends: list[int] = []
    events: list[dict[str, Any]] = []
    while True:
        at += _blanks(text, at)
        if text[at] == "]":
            return text, ends, events
        event, at = decoder.raw_decode(text, at)
        ends.append(at)
        events.append(event)


def _blanks(text: str, at: int) -> int:
    match = re.compile(r"[\s,]*").match(text, at)
    return len(match[0]) if match else 0


def whole_before(offset: int) -> int:
    return sum(end <= offset for end in sample()[1])


def event_names(trace: Trace) -> list[str]:
    return [name for table in (trace.ops, trace.kernels, trace.launches) for name in names(trace, table)]


def cuts(count: int, seed: int) -> list[int]:
    text, ends, _ = sample()
    near = [end + step for end in ends[9 :: len(ends) // 6] for step in (-1, 0, 1, 2)]
    source = random.Random(seed)
    return near + [source.randrange(ends[0], len(text) - 20) for _ in range(count)]


def unnumbered(warning: str) -> str:
    """Where the damage is depends on the file and on how it was packed."""
    return re.sub(r"\d[\d,]*", "N", warning)


def test_the_sample_is_large_enough_for_several_chunks() -> None:
    text, ends, events = sample()
    assert len(text) > 1_000_000
    assert len(events) == len(ends) > 1500
    assert gpu_events(events)


@pytest.mark.parametrize("cut", cuts(20, seed=1))
def test_a_cut_off_file_keeps_every_whole_event(tmp_path: Path, cut: int, said: Listener) -> None:
    text, ends, _ = sample()
    trace = read(tmp_path, text[:cut])
    kept = whole_before(cut)
    assert trace.events == kept
    assert trace.partial
    assert trace.truncated
    assert f" {cut:,} " in trace.warnings[0] and f" {kept:,} " in trace.warnings[0]
    said(unnumbered(trace.warnings[0]))
    assert trace.metadata["deviceProperties"][0]["numSms"] == 132
    shorter = read(tmp_path, text[: ends[kept - 1]] + "]}")
    assert shorter.warnings == []
    assert contents(trace) == contents(shorter)


def test_a_file_cut_before_its_first_event_says_so(tmp_path: Path, said: Listener) -> None:
    text, _, _ = sample()
    start = text.index('"traceEvents": [')
    for cut in (2, 10, start // 2, start, start + 13):
        with pytest.raises(InputError) as error:
            read(tmp_path, text[:cut])
        said(str(error.value).replace(str(tmp_path), ""))
    trace = read(tmp_path, text[: start + 40])
    assert (trace.events, trace.truncated) == (0, True)


def test_a_file_cut_in_the_metadata_behind_the_events_keeps_all_events(
    tmp_path: Path, said: Listener
) -> None:
    text, ends, _ = sample()
    trace = read(tmp_path, text[:-8])
    assert trace.events == len(ends)
    said(trace.warnings)


@pytest.mark.parametrize("cut", [0.02, 0.1, 0.33, 0.5, 0.77, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("level", [1, 6, 9])
def test_cut_off_gzip_keeps_nearly_all_that_came_before(
    tmp_path: Path, cut: float, level: int, said: Listener
) -> None:
    """Deflate gives bytes as it goes: what is lost is the block that is being decoded, not the file."""
    text, _, events = sample()
    packed = gzip.compress(text.encode(), level, mtime=0)
    at = int(len(packed) * cut)
    trace = read(tmp_path, packed[:at], name="trace.json.gz")
    assert trace.partial
    said([unnumbered(warning) for warning in trace.warnings])
    assert trace.source.bytes == at
    assert event_names(trace) == table_names(events[: trace.events])
    possible = len(partly_unpacked(packed[:at]))
    assert trace.source.json_bytes >= possible - 64
    assert trace.events >= whole_before(possible - 64)


def partly_unpacked(packed: bytes) -> bytes:
    """All that zlib, the reference, gets out of the beginning of a gzip file."""
    return zlib.decompressobj(31).decompress(packed)


def table_names(events: list[dict[str, Any]]) -> list[str]:
    """The names of events in the order of ``event_names``."""
    groups: list[set[str]] = [
        {"cpu_op"},
        {"kernel", "gpu_memcpy", "gpu_memset"},
        {"cuda_runtime", "cuda_driver"},
    ]
    return [e["name"] for group in groups for e in events if e.get("cat") in group]


@pytest.mark.parametrize("where", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("level", [1, 6])
def test_a_damaged_gzip_keeps_what_stands_before_the_damage(
    tmp_path: Path, where: float, level: int, said: Listener
) -> None:
    text, _, events = sample()
    packed = bytearray(gzip.compress(text.encode(), level, mtime=0))
    at = int(len(packed) * where)
    sound = len(partly_unpacked(bytes(packed[:at])))
    packed[at : at + 60] = bytes(60)
    trace = read(tmp_path, bytes(packed), name="trace.json.gz")
    assert trace.partial
    said(unnumbered(trace.warnings[0]).partition(" (")[0])  # behind it what the unpacker says
    kept = whole_before(sound - 1024)
    assert trace.events >= kept > 0
    assert trace.source.bytes == len(packed)
    kernels = [e["name"] for e in gpu_events(events[:kept])]
    assert names(trace, trace.kernels)[: len(kernels)] == kernels


def test_a_wrong_checksum_is_told_and_costs_no_event(tmp_path: Path) -> None:
    text, ends, _ = sample()
    packed = bytearray(gzip.compress(text.encode(), mtime=0))
    packed[-6] ^= 0xFF
    trace = read(tmp_path, bytes(packed))
    assert trace.partial
    assert trace.events == len(ends)


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    text, ends, _ = sample()
    parts = [text[at : at + 70_000].encode() for at in range(0, len(text), 70_000)]
    trace = read(tmp_path, b"".join(map(gzip.compress, parts)))
    assert (trace.events, trace.warnings) == (len(ends), [])
    trace = read(tmp_path, b"".join(gzip.compress(part) for part in (b"", *parts, b"")))
    assert (trace.events, trace.warnings) == (len(ends), [])


@pytest.mark.parametrize("garbage", [b"\0", bytes(512), b"garbage" * 1000, b"\x1e\x8b\x08"])
def test_bytes_behind_the_gzip_data_are_ignored_and_told(
    tmp_path: Path, garbage: bytes, said: Listener
) -> None:
    text, ends, _ = sample()
    trace = read(tmp_path, gzip.compress(text.encode()) + garbage)
    assert trace.events == len(ends)
    assert not trace.partial
    said(trace.warnings)


# --- damage inside plain JSON ----------------------------------------------------------------------


def damaged(text: str, at: int, rubbish: str) -> str:
    return text[:at] + rubbish + text[at + len(rubbish) :]


def broken(text: str, index: int) -> str:
    """The text with the opening brace of one event overwritten."""
    at = text.index("{", sample()[1][index - 1])
    return damaged(text, at, "@")


RUBBISH = ["\0" * 40, "}}]]" * 5, '"' * 7, "{[" * 9, "@", "\\", "x" * 3000, '"a": [1, ', '},{"ph": "X"},{']


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("where", [0.05, 0.31, 0.62, 0.93])
def test_damage_costs_the_events_it_touches_and_no_other(
    tmp_path: Path, rubbish: str, where: float, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    monkeypatch.setattr("tracelens.trace.source.BLOCK", 100_000)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", 100_000)
    text, ends, events = sample()
    at = int(len(text) * where)
    trace = read(tmp_path, damaged(text, at, rubbish))
    first, last = whole_before(at), whole_before(at + len(rubbish))
    if rubbish in ("@", "\\"):  # one letter can hit a name, and then nothing is lost
        assert trace.events >= len(events) - 1
    untouched = events[:first] + events[last + 2 :]
    found = set(contents_keys(trace))
    missing = [e for e in untouched if key_of(e) and key_of(e) not in found]
    assert missing == []
    if trace.events < len(events):
        assert trace.partial
        said(unnumbered(trace.warnings[-1]))
        offset = trace.damage[0].offset
        assert (ends[first - 1] if first else 0) - 5 <= offset <= at + len(rubbish)


def key_of(event: dict[str, Any]) -> tuple[str, int] | None:
    known = event["ph"] == "X" and event["cat"] in ("cpu_op", "kernel", "cuda_runtime", "user_annotation")
    return (event["name"], round(event["ts"] * 1000)) if known else None


def contents_keys(trace: Trace) -> list[tuple[str, int]]:
    tables = (trace.ops, trace.kernels, trace.launches, trace.ranges)
    return [
        (trace.symbols[name], ts)
        for table in tables
        for name, ts in zip(table.name.tolist(), table.ts_ns.tolist(), strict=True)
    ]


def test_many_damaged_places_cost_their_events_only(tmp_path: Path) -> None:
    text, ends, events = sample()
    hit = range(10, len(ends) - 1, 50)
    for index in hit:
        text = broken(text, index)
    trace = read(tmp_path, text)
    assert trace.events == len(events) - len(hit)
    assert len(trace.damage) == len(hit)
    assert f"and {len(hit) - 3} more places" in trace.warnings[0]


def test_a_hole_of_zeros_costs_what_it_covers(tmp_path: Path) -> None:
    """A file whose middle was never written, as after a full disk."""
    text, _, events = sample()
    for start, size in ((100_000, 600_000), (300_000, 5000), (700_000, 300_000)):
        trace = read(tmp_path, damaged(text, start, "\0" * size))
        lost = whole_before(start + size) - whole_before(start) + 1
        assert len(events) - lost - 1 <= trace.events <= len(events) - lost
        assert trace.partial


def test_damage_at_an_event_and_a_cut_off_end_are_both_told(tmp_path: Path) -> None:
    text, ends, _ = sample()
    text = broken(text, 100)[: ends[500] + 40]
    trace = read(tmp_path, text)
    assert trace.events == 500
    assert len(trace.warnings) == 2


def test_objects_nested_in_an_event_are_no_events_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``}, {"name":`` inside an event is where a chunk must not be cut for good."""
    inner = [{"name": f"inner {i}", "args": {"a": i}, "ph": "X"} for i in range(20)]
    text = document([kernel(f"k{i}", nested=inner) for i in range(12)])
    for size in (64, 200, 777, 2000, 10_000):
        monkeypatch.setattr("tracelens.trace.source.BLOCK", size)
        monkeypatch.setattr("tracelens.trace.reader.BLOCK", size)
        for processes in (1, 2):
            trace = read(tmp_path, text, processes=processes)
            assert names(trace, trace.kernels) == [f"k{i}" for i in range(12)]
            assert (trace.events, trace.warnings) == (12, [])


def test_an_event_larger_than_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.trace.source.BLOCK", 1000)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", 1000)
    events = [kernel("a"), kernel("x" * 50_000), kernel("b", list=[list(range(1000))] * 20), kernel("c")]
    trace = read(tmp_path, document(events))
    assert [len(name) for name in names(trace, trace.kernels)] == [1, LONGEST_NAME, 1, 1]
    assert not trace.partial


def test_no_event_is_awaited_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text without an end of an event in it is given up after a limit, and what follows is read."""
    monkeypatch.setattr("tracelens.trace.source.BLOCK", 1000)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", 1000)
    monkeypatch.setattr("tracelens.trace.reader._EVENT_LIMIT", 10_000)
    hole = '{"ph": "X", "name": "' + "y" * 30_000 + "\n"
    good = [json.dumps(kernel(f"k{i}")) for i in range(50)]
    trace = read(tmp_path, '{"traceEvents": [' + good[0] + "," + hole + "},\n" + ",\n".join(good[1:]) + "]}")
    assert names(trace, trace.kernels) == [f"k{i}" for i in range(50)]
    assert trace.partial
