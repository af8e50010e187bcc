"""What a file is, told by its content: a trace, a saved report, or something else."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import msgspec

#: Bytes in which a trace or a saved report says what it is, also one that is cut off.
_HEAD = 65_536
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, zstd
_REPORT, _EVENTS, _DEVICES = b'"schema_version"', b'"traceEvents"', b'"deviceProperties"'


class _Keys(msgspec.Struct):
    schema_version: str | None = None
    traceEvents: msgspec.Raw | None = None


def kind_of(path: str | Path) -> Literal["trace", "report", "other"]:
    """``trace``, ``report`` (of ``--json``, whole or damaged) or ``other``, also for what cannot be opened.

    Standard input ("-") and pipes are traces: nothing can be read there twice.
    """
    if str(path) == "-":
        return "trace"
    try:
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            return "trace"
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            if head.startswith(_PACKED) or start == b"[":
                return "trace"
            if start != b"{":
                return "other"
            # A report names its schema at its head, a trace its events.
            named = _REPORT in head, _EVENTS in head or _DEVICES in head
            if named == (True, False):
                return "report"
            if named == (False, True):
                return "trace"
            data = head + file.read()
    except (OSError, ValueError):
        return "other"
    if _REPORT in data and _is_report(data):
        return "report"
    return "trace" if _EVENTS in data else "other"


def _is_report(data: bytes) -> bool:
    try:
        keys = msgspec.json.decode(data, type=_Keys)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return keys.schema_version is not None and keys.traceEvents is None
