"""Microseconds as Kineto writes them, to integer nanoseconds without losing one."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

#: Below this many microseconds a double holds a time to better than half a nanosecond.
EXACT_BELOW_US = 2**53 / 1000

_DOT, _COMMA = ord("."), ord(",")
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[list(b"0123456789-.,")] = True


class InexactTimes(Exception):
    """These times carry a fraction that doubles cannot hold: epoch time plus nanoseconds."""


def float_ns(values: list[Any]) -> npt.NDArray[np.int64]:
    """Nanoseconds from doubles; absent (NaN) becomes 0.

    Raises:
        InexactTimes: a double near 1.7e15 us holds only quarters of a microsecond. Whole numbers
            throughout mean that the exporter wrote integers, and those are exact.
    """
    us = np.fromiter(values, np.float64, len(values))
    largest = np.abs(us).max(initial=0.0)
    if largest < EXACT_BELOW_US:
        return np.rint(us * 1e3).astype(np.int64)
    if np.isfinite(us).all() and (us == np.floor(us)).all():
        return np.clip(us, -9.2e15, 9.2e15).astype(np.int64) * 1000
    if np.abs(us[np.isfinite(us)]).max(initial=0.0) >= EXACT_BELOW_US:
        raise InexactTimes
    return np.rint(np.nan_to_num(us) * 1e3).astype(np.int64)


def exact_ns(values: list[Any]) -> npt.NDArray[np.int64]:
    """Nanoseconds from the raw text of each value, digit by digit.

    The usual case, three decimals or none throughout, is parsed at once; anything else one by one.
    """
    text = b",".join(values)
    letters = np.frombuffer(text, np.uint8)
    if not len(values) or not _PLAIN[letters].all():
        return _one_by_one(values)
    dots = np.flatnonzero(letters == _DOT)
    ends = np.append(np.flatnonzero(letters == _COMMA), len(letters))
    if len(ends) != len(values):
        return _one_by_one(values)
    if not len(dots):
        factor = 1000
    elif len(dots) == len(ends) and (dots + 4 == ends).all():
        text, factor = text.replace(b".", b""), 1
    else:
        return _one_by_one(values)
    numbers = np.fromstring(text.decode("ascii"), dtype=np.int64, sep=",")
    return numbers * factor if len(numbers) == len(values) else _one_by_one(values)


def _one_by_one(values: list[Any]) -> npt.NDArray[np.int64]:
    return np.array([_one(bytes(value)) for value in values], dtype=np.int64)


def _one(raw: bytes) -> int:
    try:
        ns = int((Decimal(raw.decode("ascii", "replace").strip('" ')) * 1000).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return 0
    return max(-(2**63), min(2**63 - 1, ns))
