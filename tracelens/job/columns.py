"""Columns of nanoseconds and lists of ranks as a few bytes of JSON."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tracelens.errors import InputError
from tracelens.trace import IntArray
from tracelens.trace.collectives import MOST_RANKS

_RUN = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?:/(\d{1,7}))?)?")


def pack(column: IntArray) -> bytes:
    """Integers as deflated differences; sorted times shrink to about a byte and a half each.

    >>> unpack(pack(np.array([5, 9, 7])), 3).tolist()
    [5, 9, 7]
    """
    return zlib.compress(np.diff(column, prepend=0).astype("<i8").tobytes(), 6)


def unpack(packed: bytes, length: int) -> IntArray:
    """The column again. Raises InputError where the bytes are no column of that length."""
    engine = zlib.decompressobj()
    try:
        raw = engine.decompress(packed, 8 * length + 1)
    except zlib.error as error:
        raise InputError(f"a column of the summary is damaged: {error}") from None
    if len(raw) != 8 * length:
        raise InputError(f"a column of the summary is damaged: {length} numbers expected")
    return np.cumsum(np.frombuffer(raw, "<i8").astype(np.int64))


def rank_text(ranks: Sequence[int]) -> str:
    """Ranks as runs with their stride: a group of a thousand ranks as a few characters.

    >>> rank_text([0, 1, 2, 3]), rank_text([1, 9, 17, 4]), rank_text([5])
    ('0-3', '1-17/8,4', '5')
    """
    runs, at = [], 0
    while at < len(ranks):
        stride = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 0
        end = at
        while stride > 0 and end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == stride:
            end += 1
        runs.append(f"{ranks[at]}" + (f"-{ranks[end]}" + (f"/{stride}" if stride > 1 else "")) * (end > at))
        at = end + 1
    return ",".join(runs)


@lru_cache(1024)
def rank_list(text: str) -> tuple[int, ...]:
    """The ranks again. Raises InputError where the text lists none."""
    ranks: list[int] = []
    for run in text.split(","):
        found = _RUN.fullmatch(run)
        first, last, stride = (int(found[at] or 0) for at in (1, 2, 3)) if found else (0, 0, 0)
        listed = range(first, max(first, last) + 1, stride or 1)
        if found is None or len(ranks) + len(listed) > MOST_RANKS:
            raise InputError(f"the summary lists ranks that are none: {text[:40]!r}")
        ranks += listed
    return tuple(ranks)
