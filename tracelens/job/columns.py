"""Columns of nanoseconds as a few bytes of JSON: delta-coded and deflated."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError

IntArray = npt.NDArray[np.int64]


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


def merged(begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Spans that overlap or touch as one, in order of time.

    >>> [one.tolist() for one in merged(np.array([0, 5, 20]), np.array([8, 10, 30]))]
    [[0, 20], [10, 30]]
    """
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.append(True, begin[1:] > reach[:-1])
    return begin[first], np.append(reach[np.flatnonzero(first)[1:] - 1], reach[-1])
