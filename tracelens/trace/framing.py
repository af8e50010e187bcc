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
from decimal import Decimal
from typing import Any

from tracelens.trace.words import DamageKind

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_KEY_REACH = 4096  # the key with all its white space is shorter
_BARE = re.compile(rb"\s*\[")
_CUT = re.compile(rb"\}\s+,\s*\{")
_CUT_REACH = 1024 * 1024
_WHITESPACE = b" \t\r\n"
#: Control characters in names happen; a time of 19 digits does not fit a float.
_DECODER = json.JSONDecoder(strict=False, parse_float=Decimal)
_ARRAY_END = re.compile(r'\]\s*(?:,\s*"|\}?[\s,]*\Z)')  # any other ] with events behind it is damage
_SKIP = re.compile(r"[\s,]*")
_NAME = re.compile(
    r'("name"\s*:\s*")(.{0,4096}?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|id|args)"\s*:)', re.DOTALL
)
_NUMBER_WORD = re.compile(r"(?<=[:\[,\s])-?(?:nan|inf|infinity)(?=\s*[,\]}])", re.IGNORECASE)
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_UNFINISHED_LIMIT = 1024 * 1024  # characters; a damaged event can swallow those behind it
_NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|args|id|dur|s|bp)"\s*:)')


def find_events(buffer: bytearray, start: int, end: int, *, searched: int = 0) -> int | None:
    """The offset of the ``[`` that opens the event array; None where it has not come yet.

    ``searched`` bytes are known not to hold its beginning: a long head is searched once.
    """
    match = _BARE.match(buffer, start, end) or _KEY.search(buffer, start + max(0, searched - _KEY_REACH), end)
    return match.end() - 1 if match else None


def cut(buffer: bytearray, start: int, end: int) -> int:
    """The offset of the last comma that stands between two events, or -1 where there is none."""
    while True:
        brace = buffer.rfind(b"},", start, end)
        if brace < 0:
            return _cut_before_comma(buffer, start, end)
        following = buffer[brace + 2 : min(brace + 258, end)].lstrip(_WHITESPACE)
        if following[:1] == b"{":
            return brace + 1
        end = brace + 1


def _cut_before_comma(buffer: bytearray, start: int, end: int) -> int:
    """The same for files with white space before their commas."""
    found = -1
    for match in _CUT.finditer(buffer, max(start, end - _CUT_REACH), end):
        found = buffer.index(b",", match.start())
    return found


@dataclass(slots=True)
class Careful:
    """What a slow reading of one stretch found."""

    values: list[Any]
    consumed: int  # bytes; what follows is the beginning of an unfinished event
    ended: bool  # the event array was closed here
    damage: list[tuple[int, int, DamageKind]]  # (offset, length, reason) within the stretch


def read_carefully(buffer: bytes, *, final: bool) -> Careful:
    """Read events one by one, mend what can be mended, and step over what cannot.

    ``final`` says that no more bytes will come, so an unfinished event is lost and said so.
    """
    text = buffer.decode("utf-8", "surrogateescape")
    values: list[Any] = []
    damage: list[tuple[int, int, DamageKind]] = []
    content: int | None = None  # without the white space at the end; looked for where something is wrong
    at = 0

    def size(start: int, end: int) -> int:
        return len(text[start:end].encode("utf-8", "surrogateescape"))

    while True:
        at = _end_of(_SKIP, text, at)
        if at >= len(text):
            return Careful(values, len(buffer), False, damage)
        if text[at] == "]" and (_ARRAY_END.match(text, at) or not _NEXT_EVENT.search(text, at)):
            return Careful(values, size(0, at + 1), True, damage)
        try:
            value, stop = _DECODER.raw_decode(text, at)
            if isinstance(value, dict):
                values.append(value)
            else:
                damage.append((size(0, at), size(at, stop), "no_event"))
            at = stop
            continue
        except json.JSONDecodeError as error:
            if content is None:
                content = len(text.rstrip(" \t\r\n,"))
            unfinished = error.pos >= content or error.msg.startswith("Unterminated string")
        except (ValueError, RecursionError):
            unfinished = False
        if unfinished and not final and len(text) - at < _UNFINISHED_LIMIT:
            return Careful(values, size(0, at), False, damage)
        following = _NEXT_EVENT.search(text, at)
        stop = following.start() + 1 if following else len(text)
        mended = _mend(text[at:stop])
        if mended is not None:
            value, used = mended
            values.append(value)
            at += used
        elif following:
            damage.append((size(0, at), size(at, stop), "invalid"))
            at = stop
        elif final:
            damage.append((size(0, at), size(at, len(text)), "incomplete"))
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
    mended = _NAME.sub(lambda m: m[1] + _BARE_QUOTE.sub(r'\\"', m[2]) + m[3], mended)
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
