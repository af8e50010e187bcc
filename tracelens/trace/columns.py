"""From decoded events to columns: the loops stay in C, one chunk at a time.

Each chunk's events are split by category and turned into arrays at once, so the Python objects of
one chunk are all that is ever alive beside the growing tables.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.decode import (
    INPUT_FIELDS,
    LAUNCH_FIELDS,
    NO_ARGS,
    NOT_JSON,
    Event,
    ExactEvent,
    as_int,
    decode_events,
    decode_exact,
)
from tracelens.trace.times import InexactTimes, UnreadableTime, exact_ns, float_ns

Column = npt.NDArray[Any]

#: Which table each Kineto category belongs to, in both generations of the format
#: (libkineto/include/ActivityType.h; the capitalised names are from 2021).
TABLE_OF_CATEGORY = {
    "cpu_op": "ops",
    "Operator": "ops",
    "kernel": "kernels",
    "Kernel": "kernels",
    "gpu_memcpy": "kernels",
    "Memcpy": "kernels",
    "gpu_memset": "kernels",
    "Memset": "kernels",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
    "hip_runtime": "launches",
    "hip_driver": "launches",
    "Runtime": "launches",
    "user_annotation": "ranges",
    "gpu_user_annotation": "ranges",
    "python_function": "frames",
    "fwdbwd": "flows",
    "forward_backward": "flows",
}
_DURATIONS = {"ops", "kernels", "launches", "ranges", "frames"}
_MODERN_CATEGORY = {"Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}


_FRACTION = re.compile(rb'"(?:ts|dur)"\s*:\s*"?-?\d+\.\d*[1-9]')


class Coder(defaultdict[Any, int]):
    """Gives every distinct value the next code: ``map(coder.__getitem__, values)`` runs in C."""

    def __init__(self) -> None:
        super().__init__(count().__next__)

    def codes(self, values: Iterable[Any], size: int) -> Column:
        return np.fromiter(map(self.__getitem__, values), np.int32, size)


@dataclass(slots=True)
class Chunk:
    """The columns of one chunk of events, with codes of the decoder that made it."""

    events: int
    categories: dict[str, int]
    tables: dict[str, dict[str, Column]]
    thread_names: dict[tuple[Any, Any], str]


class ChunkDecoder:
    """Decodes chunks of JSON events into columns, coding strings as it goes."""

    def __init__(self) -> None:
        self.names = Coder()
        self.details = Coder()
        self.threads = Coder()
        self._exact = False  # read times from their text
        self._integers = False  # times are whole microseconds
        self._makers: dict[str, Callable[[list[Any]], dict[str, Column]]] = {
            "ops": self._ops,
            "kernels": self._kernels,
            "launches": self._launches,
            "ranges": self._ranges,
            "frames": self._frames,
            "flows": self._flows,
        }

    def decode(self, text: bytes | memoryview) -> Chunk | None:
        """A JSON array of events as columns; None where it is not that, or of unexpected types."""
        try:
            if not self._exact:
                try:
                    return self.columns(decode_events(text))
                except InexactTimes:
                    if not self._integers and not _FRACTION.search(text):
                        self._integers = True
                        return self.decode(text)
                    self._exact = True
            return self.columns(decode_exact(text))
        except (*NOT_JSON, UnreadableTime):
            return None

    def columns(self, events: Sequence[Event] | Sequence[ExactEvent]) -> Chunk:
        """Events of any kind as columns.

        Raises:
            InexactTimes: the events must be decoded again with exact times.
            UnreadableTime: an event of a table has no time (see ``lacks_time``).
        """
        groups: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            groups[event.cat].append(event)
        categories: dict[str, list[str]] = defaultdict(list)
        for category in groups:
            if category in TABLE_OF_CATEGORY:
                categories[TABLE_OF_CATEGORY[category]].append(category)
        tables = {}
        for table, own in categories.items():
            # several categories of one table are gathered anew, to keep the order of the file
            group = groups[own[0]] if len(own) == 1 else [event for event in events if event.cat in own]
            if table in _DURATIONS and not all(event.ph == "X" for event in group):
                group = [event for event in group if event.ph == "X"]
            if group:
                tables[table] = self._makers[table](group)
        return Chunk(
            events=len(events),
            categories={category: len(group) for category, group in groups.items()},
            tables=tables,
            thread_names=_thread_names(groups.get("", [])),
        )

    def _times(self, events: list[Any]) -> Column:
        """Start and duration in ns, as two rows; a duration below 0 (clocks were corrected) is 0."""
        values = [*map(_TS, events), *map(_DUR, events)]
        exact = isinstance(events[0], ExactEvent)
        times = (exact_ns(values) if exact else float_ns(values, integers=self._integers)).reshape(2, -1)
        np.maximum(times[1], 0, out=times[1])
        return times

    def _threads(self, events: list[Any]) -> Column:
        return self.threads.codes(map(_PID_TID, events), len(events))

    def _names(self, events: list[Any]) -> Column:
        return self.names.codes(map(_NAME, events), len(events))

    def _span(self, events: list[Any]) -> dict[str, Column]:
        ts_ns, dur_ns = self._times(events)
        return {
            "name": self._names(events),
            "thread": self._threads(events),
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
        }

    def _ops(self, events: list[Any]) -> dict[str, Column]:
        fields = ("external_id", "external_id_2021", "sequence", "forward_thread")
        integers, inputs = _arguments(events, fields, INPUT_FIELDS)
        return self._span(events) | {
            "external_id": _first_known(integers[0], integers[1]),
            "sequence": integers[2],
            "forward_thread": integers[3],
            "inputs": self.details.codes(inputs, len(events)),
        }

    def _kernels(self, events: list[Any]) -> dict[str, Column]:
        fields = ("external_id", "external_id_2021", "correlation", "graph_node", "stream", "device")
        integers, launch = _arguments(events, fields, LAUNCH_FIELDS)
        ts_ns, dur_ns = self._times(events)
        stream, device = integers[4], integers[5]
        if (stream < 0).any():  # GPU events stand on a track whose tid is the stream and pid the device
            stream = np.where(stream < 0, [as_int(event.tid) for event in events], stream)
            device = np.where(device < 0, [as_int(event.pid) for event in events], device)
        return {
            "name": self._names(events),
            "category": self.names.codes(
                (_MODERN_CATEGORY.get(event.cat, event.cat) for event in events), len(events)
            ),
            "device": device.astype(np.int32),
            "stream": stream,
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "correlation": integers[2],
            "external_id": _first_known(integers[0], integers[1]),
            "launch": self.details.codes(launch, len(events)),
            "graph_node": integers[3],
        }

    def _launches(self, events: list[Any]) -> dict[str, Column]:
        integers, _ = _arguments(events, ("external_id", "external_id_2021", "correlation"))
        return self._span(events) | {
            "correlation": integers[2],
            "external_id": _first_known(integers[0], integers[1]),
        }

    def _ranges(self, events: list[Any]) -> dict[str, Column]:
        return self._span(events) | {
            "category": self.names.codes((event.cat for event in events), len(events))
        }

    def _frames(self, events: list[Any]) -> dict[str, Column]:
        fields = ("python_id", "parent_id", "module_id")
        integers, _ = _arguments(events, fields)
        return self._span(events) | dict(zip(fields, integers, strict=True))

    def _flows(self, events: list[Any]) -> dict[str, Column]:
        return {
            "id": _integers([event.id for event in events]),
            "start": np.array([event.ph == "s" for event in events], np.bool_),
            "thread": self._threads(events),
            "ts_ns": self._times(events)[0],
        }


def lacks_time(event: ExactEvent) -> bool:
    """Does the event belong in a table, but has no readable start?"""
    table = TABLE_OF_CATEGORY.get(event.cat)
    in_table = table is not None and (event.ph == "X" or table not in _DURATIONS)
    return in_table and not bytes(event.ts)


def _thread_names(events: list[Any]) -> dict[tuple[Any, Any], str]:
    names = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name" and event.args is not None:
            with suppress(*NOT_JSON):
                names[event.pid, event.tid] = msgspec.json.decode(event.args.name, type=str)
    return names


_TS, _DUR, _NAME, _PID_TID = attrgetter("ts"), attrgetter("dur"), attrgetter("name"), attrgetter("pid", "tid")


def _arguments(
    events: list[Any], integers: tuple[str, ...], texts: tuple[str, ...] = ()
) -> tuple[Column, Iterable[bytes]]:
    """Arguments of a group of events: integer fields as rows of one array, raw texts joined into one.

    One conversion for all fields: for the small groups of a chunk NumPy's cost is per call. The
    joined texts (shapes, types, strides) repeat together, so alike events share one code.
    """
    rows = map(attrgetter(*integers, *texts), [event.args or NO_ARGS for event in events])
    columns = list(zip(*rows, strict=True))
    numbers = _integers([*chain.from_iterable(columns[: len(integers)])])
    return numbers.reshape(len(integers), -1), map(b"\0".join, zip(*columns[len(integers) :], strict=True))


def _integers(values: list[Any]) -> Column:
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):  # a null, a text, or an id above 2**63
        return np.array([as_int(value) for value in values], dtype=np.int64)


def _first_known(modern: Column, older: Column) -> Column:
    return np.where(modern < 0, older, modern)
