"""From the protobuf of PyTorch's backend ``cupti_monitor`` (``.pftrace``) to the JSON of its other export.

Field numbers: google/perfetto, ``protos/perfetto/trace/`` (``trace_packet``, ``track_event/track_event``,
``track_event/track_descriptor``, ``interned_data/interned_data``, ``gpu/gpu_render_stage_event``,
``gpu/gpu_counter_event``). What is written, and in which order: PyTorch 2.14, ``monitor_pftrace.cpp`` in
``torch/csrc/profiler/cupti`` and ``torch/profiler/_cupti/monitor_trace.py``. Others write differently.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain

import msgspec

from tracelens.errors import RECORD_ONE, InputError
from tracelens.trace import words
from tracelens.trace.protobuf import (
    BROKEN,
    annotation,
    as_json_text,
    fields,
    message,
    packets,
    signed,
    varint,
)

_SNIFF = 512  # bytes; the first packet is shorter
_PIECE = 256 * 1024  # of JSON
_CACHED = 512  # bytes; annotations up to this size repeat often
_PACKED_TOGETHER = 1000
_WRITER_ID = 1
_BEGIN, _END = 1, 2  # types of a track event
#: Keys of a packet: field number and wire type, as the bytes have them.
_TIME, _WRITER, _CLOCKS, _SLICE, _INTERNED = 8 << 3, 10 << 3, 6 << 3 | 2, 11 << 3 | 2, 12 << 3 | 2
_COUNTER, _STAGE, _TRACK = 52 << 3 | 2, 53 << 3 | 2, 60 << 3 | 2
_CONFIG, _MARKER = 33 << 3 | 2, 36 << 3 | 2  # other programs begin with these
_CATEGORIES = {
    '"Kernel"': "kernel",
    '"Memcpy"': "gpu_memcpy",
    '"Memset"': "gpu_memset",
    '"Annotation"': "gpu_user_annotation",
    '"EventRecord"': "graph_event_node",
    '"HostNode"': "graph_host_node",
}
#: Values that GPU events hold as text: what JSON calls them, and which of them are text there, too.
_RENAMED = {"device id": "device", "context id": "context", "stream id": "stream"}
_TEXTS = {"Process Group Name", "Process Group Description"}
_OF_PROCESS = {"process_id", "process_name"}

_repeated = lru_cache(1 << 14)(annotation)


def as_json(blocks: Iterator[bytes], name: str, lost: Callable[[str], None]) -> Iterator[bytes]:
    """Kineto's JSON from the blocks of a file: protobuf is turned into it, all else passes as it is.

    ``lost`` is told why events are missing, where a file is cut off or damaged.

    Raises:
        InputError: a Perfetto trace of another program, or one without a whole event.
    """
    first = b""
    while len(first) < _SNIFF and first[:1] in (b"", b"\n") and (more := next(blocks, b"")):
        first += more
    if is_protobuf(first):
        yield from _Converter(name, lost).convert(chain([first], blocks))
    else:
        yield first
        yield from blocks


def is_protobuf(first: bytes) -> bool:
    """Does a file begin with a packet of a Perfetto trace?"""
    if first[:1] != b"\n":  # Trace.packet; JSON too may begin so
        return False
    try:
        length, at = varint(first, 1)
        keys = {key for key, _ in fields(first[at : at + length])}
    except BROKEN:
        return False
    return not keys.isdisjoint((_TIME, _WRITER, _CLOCKS, _INTERNED, _TRACK, _CONFIG, _MARKER))


def _us(ns: int) -> str:
    """Nanoseconds as microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}" if ns >= 0 else f"-{_us(-ns)}"


def _double(data: bytes) -> str:
    return msgspec.json.encode(struct.unpack("<d", data)[0]).decode()


class _Ranges:
    """Ranges that begin, and behind them their ends in the same order; texts of millions wait packed."""

    def __init__(self) -> None:
        self.starts, self.tracks = array("Q"), array("Q")
        self.ends, self.end_tracks = array("Q"), array("Q")
        self._packed: list[bytes] = []
        self._loose: list[str] = []

    def begin(self, text: str, time: int, track: int) -> None:
        self.starts.append(time)
        self.tracks.append(track)
        self._loose.append(text)
        if len(self._loose) == _PACKED_TOGETHER:
            self._packed.append(zlib.compress("\n".join(self._loose).encode(), 1))
            self._loose.clear()

    def end(self, time: int, track: int) -> None:
        self.ends.append(time)
        self.end_tracks.append(track)

    def is_paired(self) -> bool:
        """Can each end belong to the range at its place? Not where a beginning is missing."""
        return self.tracks[: len(self.ends)] == self.end_tracks and all(
            start <= end for start, end in zip(self.starts, self.ends, strict=False)
        )

    def texts(self) -> Iterator[str]:
        for packed in self._packed:
            yield from zlib.decompress(packed).decode().split("\n")
        yield from self._loose


class _Converter:
    """Packets in, JSON out: its state is what packets refer to, and one group of ranges."""

    def __init__(self, name: str, lost: Callable[[str], None]):
        self._name, self._lost = name, lost
        self._base = 0  # ns; times in JSON count from it
        self._names: dict[int, dict[int, str]] = {1: {}, 2: {}, 24: {}, 1001: {}}  # by InternedData's field
        self._counters: dict[int, tuple[int, dict[int, str]]] = {}  # device, and names
        self._tracks: dict[int, tuple[int, int]] = {}  # pid, tid
        self._group = _Ranges()
        self._strange = False  # a packet that may have been something else before it was damaged
        self._out: list[str] = []
        self._size = self._events = 0
        self._head = ""  # once written

    def convert(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The whole file as JSON, in pieces."""
        read, is_whole = 0, True
        try:
            for packet in packets(blocks):
                yield from self._packet(packet)
                read += len(packet)
            if len(self._group.ends) < len(self._group.starts):
                raise ValueError("its last ranges have no end")
            yield from self._close_group()
        except BROKEN as error:
            is_whole = False
            self._lost(words.perfetto_damaged(read, error))
            if self._group.is_paired() and not self._strange:
                yield from self._ranges()
        if not self._events and not is_whole:
            raise InputError(
                f"{self._name} is cut off or damaged before the first whole event of its Perfetto trace;"
                f" copy it again, or {RECORD_ONE}"
            )
        if not self._events:
            raise InputError(
                f"{self._name} is a Perfetto trace without a whole event of PyTorch's profiler:"
                " export_chrome_trace('trace.json.gz') writes what is read here"
            )
        self._out.append("]}")
        yield self._taken()

    def _packet(self, packet: bytes) -> Iterator[bytes]:
        time = writer = kind = 0
        body = b""
        for key, value in fields(packet):
            if isinstance(value, int):
                time = value if key == _TIME else time
                writer = value if key == _WRITER else writer
            elif key in (_CLOCKS, _SLICE, _INTERNED, _COUNTER, _STAGE, _TRACK):
                kind, body = key, value
        if kind in (_SLICE, _COUNTER, _STAGE) and writer != _WRITER_ID:
            raise InputError(
                f"{self._name} is a Perfetto trace of another program: only those of PyTorch's backend"
                " cupti_monitor are read"
            )
        if kind in (_COUNTER, _STAGE):
            yield from self._close_group()
        if kind == _SLICE:
            yield from self._slice(body, time)
        elif kind == _STAGE:
            self._stage(body, time)
        elif kind == _COUNTER:
            self._counter(body, time)
        elif kind == _TRACK:
            self._track(body)
        elif kind == _INTERNED:
            self._interned(body)
        elif kind == _CLOCKS:
            self._base = self._base or message(message(body)[1].get(1, b""))[0].get(2, 0)
        else:
            self._strange = True
        if self._size > _PIECE:
            yield self._taken()

    def _add(self, event: str) -> None:
        if not self._head:
            self._head = f'{{"schemaVersion":1,"baseTimeNanoseconds":{self._base},"traceEvents":[\n'
            event = self._head + event
        else:
            event = ",\n" + event
        self._events += 1
        self._out.append(event)
        self._size += len(event)

    def _taken(self) -> bytes:
        text = "".join(self._out).encode()
        self._out, self._size = [], 0
        return text

    def _track(self, data: bytes) -> None:
        known, inner = message(data)
        if 4 not in inner:
            return  # a process
        ids, named = message(inner[4])
        pid, tid = self._tracks[known.get(1, 0)] = signed(ids.get(1, 0)), signed(ids.get(2, 0))
        args = f'"args":{{"name":{as_json_text(named.get(5, b""))}}}'
        self._add(f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},{args}}}')
        self._events -= 1  # a name alone is no event

    def _interned(self, data: bytes) -> None:
        for key, value in fields(data):
            if isinstance(value, int):
                continue
            known, inner = message(value)
            if key >> 3 in self._names:
                self._names[key >> 3][known.get(1, 0)] = as_json_text(inner.get(2, b""))
            elif key >> 3 == 47:  # names of one GPU's counters
                names = {}
                for spec_key, spec in fields(inner.get(2, b"")):
                    if spec_key == 1 << 3 | 2 and isinstance(spec, bytes):
                        spec_known, spec_inner = message(spec)
                        names[spec_known.get(1, 0)] = as_json_text(spec_inner.get(2, b""))
                self._counters[known.get(1, 0)] = known.get(3, 0), names

    def _name_of(self, field: int, iid: int) -> str:
        try:
            return self._names[field][iid]
        except KeyError:
            raise ValueError("a name is missing") from None

    def _slice(self, data: bytes, time: int) -> Iterator[bytes]:
        known: dict[int, int] = {}
        args = []
        for key, value in fields(data):
            if isinstance(value, int):
                known[key >> 3] = value
            elif key == 4 << 3 | 2:
                args.append(_repeated(value) if len(value) < _CACHED else annotation(value))
        track = known.get(11, 0)
        if known.get(9) == _END:
            self._group.end(time, track)
            return
        if known.get(9) != _BEGIN or track not in self._tracks:
            raise ValueError("a range that neither begins nor ends, or on no thread")
        if self._group.ends:
            yield from self._close_group()
        if 3 in known:
            category = self._name_of(1, known[3])
        else:  # synchronizations and the profiler's own work have none
            category = '"cuda_sync"' if any(name == '"cuda_sync_kind"' for name, _ in args) else '""'
        pid, tid = self._tracks[track]
        name, inner = self._name_of(2, known.get(10, 0)), ",".join(map(":".join, args))
        self._group.begin(
            f'{{"ph":"X","cat":{category},"name":{name},"pid":{pid},"tid":{tid},"args":{{{inner}}},'
            f'"ts":{_us(time - self._base)},"dur":',
            time,
            track,
        )

    def _close_group(self) -> Iterator[bytes]:
        if len(self._group.ends) != len(self._group.starts) or not self._group.is_paired():
            self._strange = True
            raise ValueError("beginnings and ends of its ranges do not match")
        if self._group.ends:
            yield from self._ranges()

    def _ranges(self) -> Iterator[bytes]:
        group, self._group = self._group, _Ranges()
        for text, start, end in zip(group.texts(), group.starts, group.ends, strict=False):
            self._add(f"{text}{_us(end - start)}}}")
            if self._size > _PIECE:
                yield self._taken()

    def _stage(self, data: bytes, time: int) -> None:
        """A GPU event. Shared memory is left out: only the dynamic part of it is in the file."""
        known: dict[int, int] = {}
        args: dict[str, str] = {}
        for key, value in fields(data):
            if isinstance(value, int):
                known[key >> 3] = value
            elif key == 6 << 3 | 2:
                extra = message(value)[1]
                name, text = (extra.get(field, b"").decode("utf-8", "replace") for field in (1, 2))
                is_number = text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20
                if name not in _OF_PROCESS:
                    plain = is_number and name not in _TEXTS
                    args[_RENAMED.get(name, name)] = str(int(text)) if plain else as_json_text(text)
            elif key == 21 << 3 | 2:
                args |= self._launch(value)
        device = args.setdefault("device", str(signed(known.get(11, 0))))
        stage = self._name_of(24, known.get(14, 0))
        name = self._name_of(2, known[20]) if 20 in known else stage
        inner = ",".join(f"{as_json_text(key)}:{value}" for key, value in args.items())
        self._add(
            f'{{"ph":"X","cat":"{_CATEGORIES.get(stage, "")}","name":{name},"pid":{device},'
            f'"tid":{args.get("stream", "0")},"ts":{_us(time - self._base)},"dur":{_us(known.get(2, 0))},'
            f'"args":{{{inner}}}}}'
        )

    def _launch(self, data: bytes) -> dict[str, str]:
        found = {}
        for key, value in fields(data):
            known = message(value)[0] if isinstance(value, bytes) else {}
            if key >> 3 in (1, 2):
                found["grid" if key >> 3 == 1 else "block"] = str([known.get(axis, 0) for axis in (1, 2, 3)])
            elif key >> 3 == 3 and self._name_of(1001, known.get(1, 0)) == '"registers_per_thread"':
                found["registers per thread"] = str(known.get(4, 0))
        return found

    def _counter(self, data: bytes, time: int) -> None:
        device, names = self._counters.get(message(data)[0].get(4, 0), (0, {}))
        for key, value in fields(data):
            if key == 2 << 3 | 2 and isinstance(value, bytes):
                known, inner = message(value)
                reading = _double(inner[3]) if len(inner.get(3, b"")) == 8 else str(signed(known.get(2, 0)))
                name = names.get(known.get(1, 0), '""')
                self._add(
                    f'{{"ph":"C","name":{name},"pid":"GPU {device} Counters",'
                    f'"ts":{_us(time - self._base)},"args":{{"":{reading}}}}}'
                )
