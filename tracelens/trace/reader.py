"""Read a Kineto trace of any age, size and state into tables."""

from __future__ import annotations

import gc
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import RECORD_ONE, InputError
from tracelens.trace import words
from tracelens.trace.collect import Collector
from tracelens.trace.columns import Chunk, ChunkDecoder, lacks_time
from tracelens.trace.decode import NOT_JSON, as_int, coerce_event, decode_values
from tracelens.trace.door import Door
from tracelens.trace.framing import cut, find_events, read_carefully
from tracelens.trace.metadata import read_metadata
from tracelens.trace.pieces import Packed, Piece, Slice, Text
from tracelens.trace.pool import Pool
from tracelens.trace.source import BLOCK, ByteSource
from tracelens.trace.tables import Damage, Details, Symbols, Trace

_HEAD_LIMIT = 256 * 1024 * 1024  # metadata of large jobs (process groups) stands before the events
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KEY_AT_END = re.compile(rb'"traceEvents"\s*:\s*$')
_OPEN, _CLOSE, _COMMA = b"[],"
_POOL_FROM = 16 * 1024 * 1024  # a helper costs 10 ms where it can be forked
_IN_FLIGHT = 16
_SLICE = 768 * 1024
_WINDOW = 16 * 1024  # a few dozen events
_EVENT_LIMIT = 64 * 1024 * 1024  # no single event is larger; beyond it the text is damaged
_MAX_DAMAGE = 1000
_TOLD = 3  # places of damage in a warning


def read_trace(
    path: str | Path, *, processes: int | None = None, progress: Callable[[float], None] | None = None
) -> Trace:
    """Read ``.json``, ``.json.gz`` or ``.pftrace`` (or ``-``, standard input) into columnar tables.

    Memory is bounded by the tables, about 60 bytes an event, and not by the file. A damaged or cut
    off file gives every event that is whole; ``damage``, ``truncated`` and ``warnings`` say what is
    missing and where. Large files are decoded on several cores (``processes``, this one included;
    by default as many as help, four at most). ``progress`` is called with the share of the file that has
    been read, 0 to 1, now and then; never for standard input.

    Raises:
        InputError: the file is missing, unreadable, empty, or holds no ``traceEvents``.
    """
    source = ByteSource(path)
    with _no_gc(), _Reader(source, processes, progress) as reader:
        if not reader.read_slices():
            for block in source:
                reader.feed(block)
        reader.finish()
        return reader.trace()


@contextmanager
def _no_gc() -> Iterator[None]:
    """Decoding makes millions of short-lived objects without cycles; collecting them halves the speed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _pool(decoder: ChunkDecoder, size: int, processes: int | None) -> Pool | None:
    """Helpers, where the file is large enough to pay for their start."""
    if processes is None:
        processes = min(4, os.cpu_count() or 1) if size >= _POOL_FROM else 1
    return Pool(decoder, processes - 1) if processes > 1 else None


def _seam(stream: FileIO, start: int, size: int) -> int:
    """The place of the last comma between two events within the next slice; 0 where the file ends first."""
    stop = start + _SLICE
    if stop >= size:
        return 0
    window = _WINDOW
    while window < _SLICE:
        stream.seek(stop - window)
        comma = cut(bytearray(stream.read(window)), 0, window)
        if comma > 0:
            return stop - window + comma
        window *= 8
    return 0


def _label(value: Any, door: Door) -> Any:
    """The number or name of a process or thread."""
    return door.text(value) if isinstance(value, str) else as_int(value)


class _Reader:
    """Turns blocks of text into columns: first the head, then chunk after chunk, then the tail.

    The text not yet decoded lies in ``_buffer[_start:_end]``, one buffer used again and again: fresh
    memory for every block costs more time (page faults) than decoding it. Its first byte is the ``[``
    that opens the events, or the comma behind the last decoded event, turned into a ``[``: a chunk
    becomes a JSON array by writing two bytes in place.
    """

    def __init__(
        self, source: ByteSource, processes: int | None, progress: Callable[[float], None] | None = None
    ):
        self.source = source
        self._progress = progress if source.size() else None
        self.collected = Collector()
        self._decoder = ChunkDecoder()
        self._pool = _pool(self._decoder, source.expected_bytes(), processes)
        self._waiting: deque[tuple[int, Piece, Callable[[], Chunk | None]]] = deque()
        self._packed = source.packed_path() if self._pool is not None else ""
        self._chunk = _SLICE if self._packed else BLOCK  # a chunk stays in the processor's cache
        self.damage: list[Damage] = []
        self.head: bytes | None = None  # metadata text before the events, once found
        self.ended = False
        self.truncated = False
        self.bytes = 0  # of JSON seen so far
        self._buffer = bytearray(4 * BLOCK)
        self._start = 0
        self._end = 0
        self._futile = 0  # bytes of text in which no two events meet
        self._searched = 0  # bytes of the head without the beginning of the events
        self._tail = b""  # metadata text behind the events
        self._left = b""  # an unfinished event that a careful reading left before the next chunk

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def feed(self, block: bytes) -> None:
        self._append(block)
        if self.head is None and not self._find_head():
            return
        while not self.ended and self._end - self._start >= self._chunk:
            if self._end - self._start < 2 * self._futile:
                return  # looked through already, and not much is new
            comma = cut(self._buffer, self._start + 1, self._start + self._chunk)
            if comma <= 0:
                comma = cut(self._buffer, self._start + 1, self._end)
            if comma > 0:
                self._futile = 0
                self._decode(comma)
                continue
            self._futile = self._end - self._start
            if self._end - self._start > _EVENT_LIMIT:
                self._futile = 0
                self._read_rest()
            return

    def read_slices(self) -> bool:
        """Read a plain file by its places, so that helpers read their own pieces; False where it is none.

        Only the seams are looked at here. What is left at the end is fed as blocks are.
        """
        if self._pool is None or not self.source.is_plain_file():
            return False
        path = str(self.source.path)
        with open(path, "rb", buffering=0) as stream:
            while self.head is None and (block := stream.read(BLOCK)):
                self._append(block)
                self._find_head()
            if self.head is not None:
                at, size = self._offset, os.fstat(stream.fileno()).st_size
                while (comma := _seam(stream, at, size)) > 0:
                    self._waiting.append(
                        (at + 1, piece := Slice(path, at, comma + 1), self._pool.submit(piece))
                    )
                    at = comma
                    while len(self._waiting) > _IN_FLIGHT:
                        self._settle_next()
                stream.seek(at)
                self.bytes, self._start, self._end = at, 0, 0
            while block := stream.read(BLOCK):
                self.feed(block)
        self.source.raw_bytes = self.bytes
        return True

    def _append(self, block: bytes) -> None:
        self.bytes += len(block)
        if self._end + len(block) > len(self._buffer):
            left = self._end - self._start
            if left + len(block) > len(self._buffer) // 2:
                self._buffer = self._buffer[self._start : self._end] + bytes(2 * (left + len(block)))
            else:
                self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        self._buffer[self._end : self._end + len(block)] = block
        self._end += len(block)

    def _text(self) -> bytes:
        return bytes(self._buffer[self._start : self._end])

    def _find_head(self) -> bool:
        first = bytes(self._buffer[self._start : min(self._start + 64, self._end)])
        if first.startswith(_BYTE_ORDER_MARK):
            self._start, first = self._start + len(_BYTE_ORDER_MARK), first[len(_BYTE_ORDER_MARK) :]
        first = first.lstrip()
        if first and first[:1] not in b"{[" and not _BYTE_ORDER_MARK.startswith(first):
            raise InputError(
                f"{self.source.name} holds no JSON object or list: torch.profiler traces are .json, .json.gz"
                f" or .pftrace; {RECORD_ONE}"
            )
        found = find_events(self._buffer, self._start, self._end, searched=self._searched)
        if found is None:
            self._searched = self._end - self._start
            if self._searched > _HEAD_LIMIT:
                raise InputError(
                    f"{self.source.name} holds no traceEvents in its first 256 MB: not a Kineto trace"
                )
            return False
        self.head = _KEY_AT_END.sub(b"", self._buffer[self._start : found]).strip()
        self._start = found
        return True

    @property
    def _offset(self) -> int:
        """Where the undecoded text begins, in bytes of JSON."""
        return self.bytes - (self._end - self._start)

    def _decode(self, comma: int) -> None:
        """Hand on the whole events up to ``comma``: to the pool, or decode them here and now."""
        offset = self._offset + 1
        self._buffer[self._start], self._buffer[comma] = _OPEN, _CLOSE
        with self._view(self._start, comma + 1) as text:
            if self._pool is not None:
                end = offset - 1 + len(text)
                piece = Packed(self._packed, offset - 1, end) if self._packed else Text(bytes(text))
                self._waiting.append((offset, piece, self._pool.submit(piece, text)))
            else:
                chunk = None if self._left else self._decoder.decode(text)
                self._settle(offset, b"" if chunk and not self.ended else bytes(text[1:-1]), chunk)
        self._buffer[comma] = _COMMA
        self._start = comma
        while len(self._waiting) > _IN_FLIGHT:
            self._settle_next()

    @contextmanager
    def _view(self, start: int, end: int) -> Iterator[memoryview]:
        """A stretch of the buffer. Who keeps a part of it beyond this keeps the buffer, and we take another.

        Nobody here does; a profiler that samples frames can, for a moment (the one of Dask workers).
        """
        view = memoryview(self._buffer)
        text = view[start:end]
        try:
            yield text
        finally:
            try:
                text.release()
                view.release()
            except BufferError:
                self._buffer = bytearray(self._buffer)

    def _settle_next(self) -> None:
        offset, piece, result = self._waiting.popleft()
        chunk = result()
        taken = chunk is not None and not self.ended and not self._left
        self._settle(offset, b"" if taken else bytes(piece.load()[1:-1]), chunk)

    def _settle(self, offset: int, stretch: bytes, chunk: Chunk | None) -> None:
        """Take a decoded chunk, in the order of the file; read it with care where decoding failed."""
        if self._progress is not None:
            # what is still packed unpacks, on average, as what has been read
            unpacking = self.bytes / self.source.raw_bytes if self.source.raw_bytes else 1.0
            self._progress(min(1.0, offset / (self.source.size() * unpacking)))
        if self.ended:  # this is metadata behind the events, cut as if it were events
            self._tail += stretch + b","
        elif chunk is not None and not self._left:
            self.collected.add(chunk)
        else:
            self._settle_odd(offset, stretch)

    def _settle_odd(self, offset: int, stretch: bytes) -> None:
        """The stretch is valid JSON with unexpected types, or a wrong cut, or damaged."""
        if not self._left:
            try:
                values = decode_values(b"[%b]" % stretch)
            except NOT_JSON:
                pass
            else:
                self._add_values(values, offset, len(stretch))
                return
        self._read_carefully(offset - len(self._left), self._left + stretch + b",", final=False)

    def _read_carefully(self, offset: int, stretch: bytes, *, final: bool) -> None:
        careful = read_carefully(stretch, final=final)
        self._add_values(careful.values, offset, careful.consumed)
        for start, length, reason in careful.damage:
            self._damaged(Damage(offset + start, length, reason))
        self._left = stretch[careful.consumed :]
        if careful.ended:
            self.ended, self._tail, self._left = True, self._left, b""

    def _read_rest(self) -> None:
        """Read all that lies in the buffer, event by event."""
        while self._waiting:
            self._settle_next()
        offset, stretch = self._offset + 1, self._text()[1:]
        self._start = self._end - 1
        if self.ended:
            self._tail += stretch
        else:
            self._read_carefully(offset - len(self._left), self._left + stretch, final=True)

    def _add_values(self, values: list[Any], offset: int, length: int) -> None:
        events = [coerce_event(value) for value in values]
        whole = [event for event in events if event is not None and not lacks_time(event)]
        if len(whole) != len(events):
            missing = len(events) - len(whole)
            self._damaged(Damage(offset, length, "no_time", missing))
        if whole:
            self.collected.add(self._decoder.columns(whole))

    def _damaged(self, one: Damage) -> None:
        if len(self.damage) < _MAX_DAMAGE:
            self.damage.append(one)

    def finish(self) -> None:
        """The last stretch: events, the end of the array, and the metadata behind it."""
        if self.head is None:
            self._no_events()
        comma = 0 if self.ended else cut(self._buffer, self._start + 1, self._end)
        if comma > 0:
            self._decode(comma)  # all but the last event and what stands behind it
        self._read_rest()
        self.truncated = not self.ended

    def _no_events(self) -> None:
        name = self.source.name
        if not self._text().strip():
            why = f" ({self.source.fault})" if self.source.fault else ""
            raise InputError(f"{name} is empty{why}: nothing to analyze; copy it again, or {RECORD_ONE}")
        if self.source.fault:
            raise InputError(
                f"{name}: {self.source.fault}, before the first event; copy it again, or {RECORD_ONE}"
            )
        try:
            found = msgspec.json.decode(self._text())
        except NOT_JSON:
            raise InputError(
                f"{name} ends or breaks before its traceEvents: not a whole Kineto trace; copy it again,"
                f" or {RECORD_ONE}"
            ) from None
        if isinstance(found, dict) and "schema_version" in found:
            raise InputError(f"{name} is what --json of tracelens wrote, and not the trace; give the trace")
        raise InputError(
            f"{name} is JSON without traceEvents: not a Kineto trace (export_chrome_trace writes one); a"
            " model's configuration is for 'tracelens suggest'"
        )

    def trace(self) -> Trace:
        """All columns joined, with the metadata of the head and the tail."""
        door = Door()
        door.dropped.update(self.collected.dropped)
        metadata, trouble = read_metadata(self.head or b"", self._tail if self.head else b"", door)
        return Trace(
            source=self.source.describe(self.bytes),
            metadata=metadata,
            symbols=Symbols([door.text(name) for name in self._decoder.names]),
            details=Details(list(self._decoder.details), door),
            threads=[(_label(pid, door), _label(tid, door)) for pid, tid in self._decoder.threads],
            thread_names={
                (_label(pid, door), _label(tid, door)): door.text(name)
                for (pid, tid), name in self.collected.thread_names.items()
            },
            events=self.collected.events,
            categories=dict(self.collected.categories),
            damage=self.damage,
            truncated=self.truncated or not self.source.whole,
            warnings=self._warnings() + trouble,
            door=door,
            **self.collected.tables(),
        )

    def _warnings(self) -> list[str]:
        out = []
        if self.source.fault:
            out.append(self.source.fault)
        if self.truncated:
            out.append(words.ends_early(self.bytes, self.collected.events))
        lost = [damage for damage in self.damage if not (self.truncated and damage.reason == "incomplete")]
        if lost:
            places = [
                words.damaged_place(one.offset, one.length, one.reason, one.entries) for one in lost[:_TOLD]
            ]
            out.append(words.damaged(places, len(lost) - len(places)))
        return out
