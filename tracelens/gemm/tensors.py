"""Careful access to Kineto's per-argument lists, which can hold anything once a trace was edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Dims = tuple[int, ...]
_LARGEST = 2**63 - 1


def item_at(values: Sequence[Any], index: int) -> Any:
    """Argument ``index``, or None past the end."""
    return values[index] if 0 <= index < len(values) else None


def dims_at(values: Sequence[Any], index: int) -> Dims | None:
    """Sizes of tensor argument ``index``; None for scalars, absent tensors, TensorLists and nonsense."""
    entry = item_at(values, index)
    if not isinstance(entry, (list, tuple)) or not entry or len(entry) > 16:
        return None
    for size in entry:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _LARGEST:
            return None
    return tuple(entry)


def strides_at(values: Sequence[Any], index: int, rank: int) -> Dims | None:
    """Strides of tensor argument ``index`` in elements, or None unless there are ``rank`` of them."""
    strides = dims_at(values, index)
    return strides if strides is not None and len(strides) == rank else None


def truth_at(values: Sequence[Any], index: int | None) -> bool | None:
    """A boolean of Concrete Inputs ("True"/"False"), or None."""
    entry = item_at(values, index) if index is not None else None
    return {"True": True, "False": False}.get(entry) if isinstance(entry, str) else None


def number_at(values: Sequence[Any], index: int | None) -> int | None:
    """An integer of Concrete Inputs, or None."""
    entry = item_at(values, index) if index is not None else None
    if not isinstance(entry, str) or len(entry) > 19 or not entry.removeprefix("-").isdecimal():
        return None
    return int(entry)
