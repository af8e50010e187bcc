"""The bytes of a trace once more, with events added.

The events of a sound trace are copied byte for byte, but for the folders of absolute paths; what the trace
says of itself is reduced to what names no machine (``public``). ``keep_metadata``
copies the whole file byte for byte. The added events stand right behind the ``[`` of its event array. Only a
stretch that is not JSON (cut off, damaged, a bare ``nan``) is written anew, event by event, because a file
with it would open nowhere. Memory is a few chunks, whatever the size of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Raw

from tracelens.errors import InputError
from tracelens.results.json import each_text
from tracelens.trace.decode import NOT_JSON
from tracelens.trace.framing import cut, find_events, read_carefully
from tracelens.trace.metadata import read_metadata
from tracelens.trace.source import BLOCK, ByteSource

_CHUNK = BLOCK
_EVENT_LIMIT = 64 * 1024 * 1024  # as in the reader: no single event is larger
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_JOIN = b",\n"
_SURROGATE = re.compile("[\ud800-\udfff]")  # what a byte that is no UTF-8 was read as
_events = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Copy:
    """Copies one trace; the counts are right once ``blocks`` has ended."""

    def __init__(self, source: ByteSource, *, keep_metadata: bool):
        self._source = source
        self._whole = keep_metadata
        self._buffer = bytearray()
        self._left = b""  # an unfinished event before the next stretch
        self._tail: bytearray | None = None  # what stands behind the events, once they have ended
        self._bare = False  # the file is an array, not an object
        self.events = 0  # of the trace, written
        self.added = 0
        self.rewritten = 0  # of `events`: mended, or beside damage
        self.left_out = 0  # stretches that hold no whole event

    def blocks(self, added: Iterable[bytes]) -> Iterator[bytes]:
        """The new file's JSON in pieces. ``added`` are whole events, one JSON object each.

        Raises InputError when the file holds no events any more.
        """
        blocks = iter(self._source)
        yield self._head(blocks)
        for event in added:
            yield _JOIN + event if self.added else event
            self.added += 1
        while True:
            yield from self._whole_stretches()
            block = next(blocks, None)
            if block is None:
                break
            self._take(block)
        if self._tail is None:
            yield from self._settle(bytes(self._buffer), final=True)
        yield self._end()

    def _take(self, block: bytes) -> None:
        if self._tail is None:
            self._buffer += block
        else:
            self._tail += block

    def _head(self, blocks: Iterator[bytes]) -> bytes:
        searched = 0
        for block in blocks:
            self._buffer += block
            if self._buffer.startswith(_BYTE_ORDER_MARK):
                del self._buffer[: len(_BYTE_ORDER_MARK)]
            at = find_events(self._buffer, 0, len(self._buffer), searched=searched)
            if at is not None:
                head = bytes(self._buffer[: at + 1])
                del self._buffer[: at + 1]
                self._bare = head.strip(_SPACE) == b"["
                sound = self._bare or (self._whole and _is_json(head + b"]}"))
                return head if sound else self._rewritten_head(head)
            searched = len(self._buffer)
        raise InputError(f"{self._source.name} holds no events any more: it changed while it was read")

    def _whole_stretches(self) -> Iterator[bytes]:
        """All but the last stretch of the buffer, which can hold the end of the events."""
        while self._tail is None and len(self._buffer) >= 2 * _CHUNK:
            comma = cut(self._buffer, 0, _CHUNK)
            if comma < 0:
                comma = cut(self._buffer, 0, len(self._buffer))
            if comma < 0 and len(self._buffer) < _EVENT_LIMIT:
                return
            stretch = bytes(self._buffer[:comma] if comma > 0 else self._buffer)
            del self._buffer[: len(stretch) + 1]
            yield from self._settle(stretch, final=comma < 0)
        if self._tail is not None and self._buffer:
            self._tail += self._buffer
            self._buffer.clear()

    def _settle(self, stretch: bytes, *, final: bool) -> Iterator[bytes]:
        """Write the events of a stretch: as they are if they are JSON, else those that can be read."""
        text, self._left = self._left + stretch, b""
        count = _count(text)
        if count is not None:
            yield from self._write(text, count)
            return
        if not final:
            text += b","
        careful = read_carefully(text, final=final)
        end = careful.consumed - 1 if careful.ended else _last_comma(text, careful.consumed)
        body = text[:end]
        if careful.ended:
            self._tail = bytearray(text[careful.consumed :])
            if not final:  # the comma that the stretch was cut at has been put back
                self._tail += self._buffer
                self._buffer.clear()
        else:
            self._left = text[end + 1 :]
        count = _count(body)
        if count is not None and not careful.damage:
            yield from self._write(body, count)
            return
        self.left_out += len(careful.damage)
        self.rewritten += len(careful.values)
        yield from self._write(b",".join(map(_rewritten, careful.values)), len(careful.values))

    def _write(self, body: bytes, count: int) -> Iterator[bytes]:
        if count:
            yield (b"," if self.events else _JOIN if self.added else b"")
            yield body if self._whole else without_folders(body)
            self.events += count

    def _end(self) -> bytes:
        tail = bytes(self._tail or b"")
        if self._bare:
            return b"]\n"
        if self._whole and _is_json(b'{"x":[]' + tail):
            return b"]" + tail
        metadata = self._kept(b"", tail)
        return b"]" + (b"," + _rewritten(metadata)[1:] if metadata else b"}") + b"\n"

    def _rewritten_head(self, head: bytes) -> bytes:
        """The head anew: it holds what must not go out, or is not JSON (NaN)."""
        text = head.rstrip(b"[" + _SPACE).rstrip(b":" + _SPACE).removesuffix(b'"traceEvents"')
        metadata = self._kept(text, b"")
        return (_rewritten(metadata)[:-1] + b"," if metadata else b"{") + b'"traceEvents":['

    def _kept(self, head: bytes, tail: bytes) -> dict[str, Any]:
        metadata, _ = read_metadata(head, tail)
        return metadata if self._whole else public(metadata)


def _last_comma(text: bytes, end: int) -> int:
    """The place of the comma behind the last whole event before ``end``, else ``end``."""
    events = len(text[:end].rstrip(_SPACE + b","))
    comma = text.find(b",", events, end)
    return comma if comma >= 0 else end


def _count(body: bytes) -> int | None:
    """How many entries of an array these are; None where they are not JSON."""
    try:
        if not body.isascii():
            body.decode()
        return len(_events(b"[%b]" % body))
    except NOT_JSON:
        found = _patient(b"[%b]" % body)
        return len(found) if isinstance(found, list) else None


def _is_json(text: bytes) -> bool:
    try:
        text.decode()
        msgspec.json.decode(text, type=Raw)
    except NOT_JSON:
        return _patient(text) is not None
    return True


def _patient(text: bytes) -> Any:
    """JSON that msgspec refuses though it is JSON (a lone surrogate written as an escape), or None."""
    try:
        return json.loads(text.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _rewritten(value: Any) -> bytes:
    """JSON of a decoded value; numbers keep their digits, NaN becomes null, broken UTF-8 U+FFFD."""
    value = _encodable(value)
    try:
        return _encode(value)
    except (ValueError, OverflowError, TypeError):  # an integer above 64 bits
        return json.dumps(value, default=float).encode()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", str(key)): _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    return value


#: What Kineto and this package write of the recording, the devices and the ranks. Whatever else stands
#: beside the events came from somebody's ``add_metadata`` or is the path of the file (``traceName``).
_KEPT = frozenset(
    {
        "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "deviceProperties", "computeProperties",
        "cupti_version", "cuda_runtime_version", "cuda_driver_version", "hip_runtime_version",
        "hip_driver_version", "record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules",
        "distributedInfo", "torch_version", "pytorch_version", "tracelens",
    }
)  # fmt: skip
_INNER = {
    "distributedInfo": frozenset({"backend", "rank", "world_size", "pg_count", "pg_config", "nccl_version"})
}
_FOLDERS = re.compile(
    rb"""/(?:
    (?<="/)(?:[^"\\;()/]++/)++                      # a text that is a path: with spaces
    |(?<=[\s;,=:('\[<]/)/*+(?:[^"\\;,()/\s]++/)++   # a path or an address among other words
    )""",
    re.VERBOSE,
)
_ESCAPED_FOLDERS = re.compile(rb"""(?<=["\s;,=('])\\/(?:[^"\\;()/]++\\/)++""")
_DRIVE_FOLDERS = re.compile(rb"""(?<=["\s;,=('])[A-Za-z]:\\\\(?:[^"\\;()]++\\\\)++""")
_PACKAGES = re.compile(rb".*[-]packages(?:/|\\\\|\\/)", re.DOTALL)


def public(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a trace's metadata that says nothing of the machine's name, its user and its files."""
    found = {}
    for key, value in metadata.items():
        if key in _KEPT:
            inner = _INNER.get(key)
            if inner is not None:
                value = (
                    {name: one for name, one in value.items() if name in inner}
                    if isinstance(value, dict)
                    else {}
                )
            found[key] = each_text(value, _clean)
    return found


def without_folders(text: bytes) -> bytes:
    """JSON whose absolute paths are cut to the file, or to the place inside an installed package.

    >>> without_folders(b'{"name": "/home/me/run/train.py(7): step"}')
    b'{"name": "train.py(7): step"}'
    """
    text = _FOLDERS.sub(_inside_package, text)
    text = _ESCAPED_FOLDERS.sub(_inside_package, text) if b"\\/" in text else text
    return _DRIVE_FOLDERS.sub(_inside_package, text) if b":\\\\" in text else text


def _inside_package(found: re.Match[bytes]) -> bytes:
    package = _PACKAGES.match(found[0])
    return found[0][package.end() :] if package else b""


def _clean(text: str) -> str:
    return without_folders(b'"%b"' % text.encode("utf-8", "replace"))[1:-1].decode("utf-8", "replace")
