"""Where events begin and end in the text of a trace, without trusting its layout.

PyTorch's versions write three-line events, one key per line, or anything after a re-dump; metadata
stands before or after the events; some files are bare arrays. The rule used here holds for all:
events are objects in one array, so ``} , {`` is a place to cut, unless it stands inside an event.
A wrong cut leaves unbalanced braces, which always fails to decode and is then read with care.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_WHITESPACE = b" \t\r\n"
_DECODER = json.JSONDecoder(strict=False)  # control characters in names happen
_SKIP = re.compile(r"[\s,]*")
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|id|args)"\s*:)', re.DOTALL)
_NUMBER_WORD = re.compile(r'(?<=[:\[,\s])-?(?:nan|inf|infinity)(?=\s*[,\]}])', re.IGNORECASE)
_NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|args|id|dur|s|bp)"\s*:)')


def find_events(head: bytes | bytearray) -> int | None:
    """The offset of the ``[`` that opens the event array; None where it has not come yet."""
    start = len(head) - len(head.lstrip(_WHITESPACE))
    if head[start : start + 1] == b"[":
        return start
    match = _KEY.search(head)
    return match.end() - 1 if match else None


def cut(buffer: bytearray, start: int, end: int) -> int:
    """The offset of the last comma that stands between two events, or -1 where there is none."""
    while True:
        brace = buffer.rfind(b"},", start, end)
        if brace < 0:
            return -1
        following = buffer[brace + 2 : min(brace + 258, end)].lstrip(_WHITESPACE)
        if following[:1] == b"{":
            return brace + 1
        end = brace + 1


@dataclass(slots=True)
class Careful:
    """What a slow reading of one stretch found."""

    values: list[Any]
    consumed: int  # bytes; what follows is the beginning of an unfinished event
    ended: bool  # the event array was closed here
    damage: list[tuple[int, int, str]]  # (offset, length, reason) within the stretch


def read_carefully(buffer: bytes, *, final: bool) -> Careful:
    """Read events one by one, mend what can be mended, and step over what cannot.

    ``final`` says that no more bytes will come, so an unfinished event is lost and said so.
    """
    text = buffer.decode("utf-8", "surrogateescape")
    values: list[Any] = []
    damage: list[tuple[int, int, str]] = []
    at = 0

    def size(start: int, end: int) -> int:
        return len(text[start:end].encode("utf-8", "surrogateescape"))

    while True:
        at = _end_of(_SKIP, text, at)
        if at >= len(text):
            return Careful(values, len(buffer), False, damage)
        if text[at] == "]":
            return Careful(values, size(0, at + 1), True, damage)
        try:
            value, at = _DECODER.raw_decode(text, at)
            values.append(value)
            continue
        except (ValueError, RecursionError):
            pass
        following = _NEXT_EVENT.search(text, at)
        stop = following.start() + 1 if following else len(text)
        mended = _mend(text[at:stop])
        if mended is not None:
            value, used = mended
            values.append(value)
            at += used
        elif following:
            damage.append((size(0, at), size(at, stop), "an event that is not valid JSON"))
            at = stop
        elif final:
            damage.append((size(0, at), size(at, len(text)), "an event that is not complete"))
            return Careful(values, len(buffer), False, damage)
        else:
            return Careful(values, size(0, at), False, damage)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _mend(text: str) -> tuple[Any, int] | None:
    """Try the two faults seen in the wild: bare ``nan``/``inf`` and unescaped quotes in a name.

    Returns the event and how many characters of the unmended text it took.
    """
    mended = _NUMBER_WORD.sub("null", text)
    mended = _NAME.sub(lambda m: m[1] + re.sub(r'(?<!\\)"', r"\\\"", m[2]) + m[3], mended)
    if mended == text:
        return None
    try:
        value, end = _DECODER.raw_decode(mended)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    rest = mended[end:]
    return value, len(text) - len(rest) if text.endswith(rest) else len(text)
