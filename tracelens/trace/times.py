"""Microseconds as Kineto writes them, to integer nanoseconds without losing one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

#: Doubles below this step by at most 2**-10 us, so the nearest one is less than half a nanosecond off.
#: It covers times relative to ``baseTimeNanoseconds``, which Kineto moves every three months (7.9e12 us).
EXACT_BELOW_US = 2.0**43
#: Below this the product with 1000 is exact enough too, and one multiplication does.
_PRODUCT_BELOW_US = 2.0**42
#: No trace is from after 2116: beyond it a time is damage, and sums of two would leave 64 bits.
LIMIT_NS = 2**62

_DOT, _COMMA = ord("."), ord(",")
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[list(b"0123456789-.,")] = True


class InexactTimes(Exception):
    """These times carry a fraction that doubles cannot hold: epoch time plus nanoseconds."""


class UnreadableTime(ValueError):
    """A time that is absent, no number, or from another age of the world."""


def float_ns(values: list[Any], *, integers: bool = False) -> npt.NDArray[np.int64]:
    """Nanoseconds from doubles.

    ``integers`` says that the exporter wrote whole microseconds, and those are exact up to 2**53.

    Raises:
        InexactTimes: a double near 1.7e15 us holds only quarters of a microsecond.
        UnreadableTime: a time is absent (NaN) or out of range.
    """
    us = np.fromiter(values, np.float64, len(values))
    largest = np.abs(us).max(initial=0.0)
    if largest < _PRODUCT_BELOW_US:
        return np.rint(us * 1e3).astype(np.int64)
    if not largest < LIMIT_NS / 1000:
        raise UnreadableTime
    whole = np.floor(us)
    if largest < EXACT_BELOW_US or (integers and (us == whole).all()):
        return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1e3).astype(np.int64)
    raise InexactTimes


def exact_ns(values: list[Any]) -> npt.NDArray[np.int64]:
    """Nanoseconds from the raw text of each value, digit by digit.

    The usual case, three decimals or none throughout, is parsed at once; anything else one by one.

    Raises:
        UnreadableTime: a time is absent, no number, or out of range.
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
    if len(numbers) != len(values) or np.abs(numbers).max() >= LIMIT_NS // factor:
        return _one_by_one(values)
    return numbers * factor


def _one_by_one(values: list[Any]) -> npt.NDArray[np.int64]:
    return np.array([_one(bytes(value)) for value in values], dtype=np.int64)


def _one(raw: bytes) -> int:
    try:
        ns = Decimal(raw.decode("ascii", "replace").strip('" ')) * 1000
    except ArithmeticError:
        raise UnreadableTime from None
    if not (ns.is_finite() and abs(ns) < LIMIT_NS):
        raise UnreadableTime
    return int(ns.to_integral_value())
