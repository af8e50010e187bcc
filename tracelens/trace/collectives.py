"""The arguments of collectives, kept as text and parsed on demand.

Few events are collectives, and asking every event for eight fields more costs 6 % of the loading time.
So an event is asked for one of them, the collective's name; where it has one, the object around that name
is found in the text and decoded again with all of them. The fields are written by
``torch/csrc/profiler/util.h`` on ``record_param_comms``, and since pytorch/kineto#821 on NCCL's kernels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec import field as renamed

from tracelens.trace.door import Door

NO_TEXT = Raw(b"")
NAME = "Collective name"
OP = "record_param_comms"
KERNEL = "nccl"  # how the names of its kernels begin
_REACH = (1 << 11, 1 << 16)  # bytes of text on each side of the name in which its object begins and ends
MOST_RANKS = 2**20  # of a job: ten times the GPUs of the largest
_TRIES = 4  # braces inside strings


class _Fields(Struct):
    name: Raw = renamed(default=NO_TEXT, name=NAME)
    dtype: Raw = NO_TEXT
    in_elements: Raw = renamed(default=NO_TEXT, name="In msg nelems")
    out_elements: Raw = renamed(default=NO_TEXT, name="Out msg nelems")
    group: Raw = renamed(default=NO_TEXT, name="Process Group Name")
    description: Raw = renamed(default=NO_TEXT, name="Process Group Description")
    group_size: Raw = renamed(default=NO_TEXT, name="Group size")
    ranks: Raw = renamed(default=NO_TEXT, name="Process Group Ranks")
    in_parts: Raw = renamed(default=NO_TEXT, name="In split size")
    out_parts: Raw = renamed(default=NO_TEXT, name="Out split size")


_NAMES = {field.encode_name for field in msgspec.structs.fields(_Fields)}
_decode = msgspec.json.Decoder(_Fields).decode


@dataclass(frozen=True, slots=True)
class Collective:
    """What a collective was called with, as PyTorch writes it; None where the trace does not say."""

    name: str | None  # "allreduce", "_allgather_base"
    dtype: str | None  # "BFloat16", "Float"
    in_elements: int | None  # of this rank's input
    out_elements: int | None  # of this rank's output
    group: str | None  # the process group's number, "0"
    description: str | None  # "default_pg", "mesh_tp"
    group_size: int | None
    ranks: tuple[int, ...] | None  # None too where PyTorch cut the list short
    in_parts: tuple[int, ...] | None = None  # of an all-to-all: what goes to each rank, and comes from each
    out_parts: tuple[int, ...] | None = None


def fields_of(arguments: dict[Any, Any]) -> Raw:
    """The collective fields among decoded arguments; stands in for the name. Empty without a name."""
    found = {key: value for key, value in arguments.items() if key in _NAMES}
    try:
        return Raw(json.dumps(found, allow_nan=False, default=float).encode()) if NAME in found else NO_TEXT
    except (ValueError, RecursionError):
        return NO_TEXT


def fields_text(name: Raw, whole: bytes | bytearray | memoryview) -> bytes:
    """All collective fields of an event as one text, from its ``Collective name`` within ``whole``.

    A name made by ``fields_of`` brings its fields along.
    """
    made = _fields(bytes(name)) if bytes(memoryview(name)[:1]) == b"{" else _around(name, whole)
    fields = made if made is not None else _Fields()
    return b"\0".join(getattr(fields, field) for field in _Fields.__struct_fields__)


def _around(name: Raw, whole: bytes | bytearray | memoryview) -> _Fields:
    """Decode the object that holds this name; with strange braces about, the name alone."""
    at = _address(name) - _address(whole)  # Raw is a view of the text it was decoded from
    for reach in _REACH:
        first = max(0, at - reach)
        found = _object_at(bytes(whole[first : at + reach]), at - first)
        if found is not None and bytes(found.name) == bytes(name):
            return found
    return _Fields(name=name)


def _object_at(text: bytes, at: int) -> _Fields | None:
    """The innermost JSON object of a text that encloses a place in it; None where it is not whole."""
    opening = at
    for _ in range(_TRIES):
        opening = text.rfind(b"{", 0, max(0, opening))
        closing = at
        for _ in range(_TRIES):
            closing = text.find(b"}", closing + 1)
            if opening < 0 or closing < 0:
                break
            if (found := _fields(text[opening : closing + 1])) is not None:
                return found
    return None


def _fields(text: bytes) -> _Fields | None:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def parse(raw: bytes, door: Door) -> Collective | None:
    """The fields of one text, through the door; None for the empty one."""
    if not raw:
        return None
    values = [_value(part) for part in raw.split(b"\0")]
    name, dtype, in_elements, out_elements, group, description, size, ranks, in_parts, out_parts = values
    return Collective(
        name=door.text(name) or None,
        dtype=door.text(dtype) or None,
        in_elements=door.count(in_elements),
        out_elements=door.count(out_elements),
        group=door.text(str(group) if type(group) is int else group) or None,
        description=door.text(description) or None,
        group_size=door.count(size, most=MOST_RANKS),
        ranks=door.ranks(_listed(ranks)),
        in_parts=door.ranks(_listed(in_parts)) or None,
        out_parts=door.ranks(_listed(out_parts)) or None,
    )


def _listed(value: Any) -> Any:
    """PyTorch writes a list as text, "[0, 1]", and cuts a long one short: "[0, 1, ..., 511]"."""
    return _value(value.encode("utf-8", "replace")) if isinstance(value, str) else value


def _value(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
