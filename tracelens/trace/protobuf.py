"""Protobuf's wire format, as far as Perfetto's traces need it (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

_LONGEST = 64 * 1024 * 1024  # bytes of a packet; the one with all names comes nearest
_DEEPEST = 16  # lists within lists
_LONGEST_NUMBER = 10  # bytes

#: What damaged bytes raise here.
BROKEN = (ValueError, IndexError)


def varint(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends.

    >>> varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = 0
    for shift in range(0, 7 * _LONGEST_NUMBER, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ValueError("a number without an end")


def signed(value: int) -> int:
    """A number of type int32 or int64, whose sign is its highest bit."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Key and value of each field. The key has the wire type in it, so a known key's value is as expected."""
    at, size = 0, len(data)
    while at < size:
        key = data[at]
        at += 1
        if key > 127:
            key, at = varint(data, at - 1)
        kind = key & 7
        if kind == 0:
            number = data[at]
            at += 1
            if number > 127:
                number, at = varint(data, at - 1)
            yield key, number
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("no such wire type")
        begin, at = at, at + length
        if at > size:
            raise ValueError("a field is cut off")
        yield key, data[begin:at]


def message(data: bytes) -> tuple[dict[int, int], dict[int, bytes]]:
    """Numbers, and texts or messages, by field number; of a repeated field the last."""
    numbers: dict[int, int] = {}
    parts: dict[int, bytes] = {}
    for key, value in fields(data):
        if isinstance(value, int):
            numbers[key >> 3] = value
        else:
            parts[key >> 3] = value
    return numbers, parts


def as_json_text(text: bytes | str) -> str:
    """Text as JSON; bytes that are no UTF-8 are replaced."""
    return msgspec.json.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text).decode()


def annotation(data: bytes, depth: int = 0) -> tuple[str, str]:
    """Name and value of a debug annotation as JSON; one without a value is PyTorch's empty list.

    Field numbers: google/perfetto, ``protos/perfetto/trace/track_event/debug_annotation.proto``.
    """
    if depth > _DEEPEST:
        raise ValueError("lists within lists")
    name, value = '""', "[]"
    entries, members = [], []
    for key, found in fields(data):
        if isinstance(found, int):
            match key >> 3:
                case 2:
                    value = "true" if found else "false"
                case 3:
                    value = str(found)
                case 4:
                    value = str(signed(found))
        elif key == 5 << 3 | 1:
            value = msgspec.json.encode(struct.unpack("<d", found)[0]).decode()
        elif key == 6 << 3 | 2:
            value = as_json_text(found)
        elif key == 10 << 3 | 2:
            name = as_json_text(found)
        elif key == 11 << 3 | 2:
            members.append(":".join(annotation(found, depth + 1)))
        elif key == 12 << 3 | 2:
            entries.append(annotation(found, depth + 1)[1])
    if entries:
        value = f"[{','.join(entries)}]"
    elif members:
        value = f"{{{','.join(members)}}}"
    return name, value


def packets(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The packets of a trace.

    Raises:
        ValueError: something else stands there, or the last packet is not whole.
    """
    buffer = bytearray()
    for block in blocks:
        buffer += block
        at = 0
        while len(buffer) - at > _LONGEST_NUMBER:  # a key and a length are there
            begin, end = _place(buffer, at)
            if end > len(buffer):
                break
            yield bytes(buffer[begin:end])
            at = end
        del buffer[:at]
    at = 0
    while at < len(buffer):
        begin, end = _place(buffer, at)
        if end > len(buffer):
            raise ValueError("its last packet is not whole")
        yield bytes(buffer[begin:end])
        at = end


def _place(buffer: bytearray, at: int) -> tuple[int, int]:
    """Where the packet at ``at`` begins and ends."""
    if buffer[at] != 1 << 3 | 2:
        raise ValueError("no packet where one begins")
    length, begin = varint(buffer, at + 1)
    if length > _LONGEST:
        raise ValueError("a packet of impossible size")
    return begin, begin + length
