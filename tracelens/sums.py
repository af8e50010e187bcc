"""Amounts added up by what they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Amount = TypeVar("_Amount", int, float)


def summed(pairs: Iterable[tuple[_Key, _Amount]]) -> dict[_Key, _Amount]:
    """The sum of each key's amounts, keys in the order in which they come first.

    >>> summed([("a", 1), ("b", 2), ("a", 3)])
    {'a': 4, 'b': 2}
    """
    sums: dict[_Key, _Amount] = {}
    for key, amount in pairs:
        sums[key] = sums.get(key, 0) + amount
    return sums
