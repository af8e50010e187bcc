"""What a trace says of itself before its events: known without reading them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tracelens.trace.framing import find_events
from tracelens.trace.metadata import read_metadata
from tracelens.trace.source import ByteSource

_LIMIT = 64 * 1024 * 1024  # process groups of a large job stand before the events
_KEY_AT_END = re.compile(rb'"traceEvents"\s*:\s*$')


def read_head(path: str | Path) -> dict[str, Any] | None:
    """The metadata before the events of a trace file; None where no events begin, so it is no trace.

    Raises InputError when the file cannot be opened.
    """
    text, searched = bytearray(), 0
    for block in ByteSource(path):
        text += block
        found = find_events(text, 0, len(text), searched=searched)
        if found is not None:
            return read_metadata(_KEY_AT_END.sub(b"", bytes(text[:found])).strip(), b"")[0]
        searched = len(text)
        if searched > _LIMIT:
            break
    return None
