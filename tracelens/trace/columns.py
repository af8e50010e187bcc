"""From decoded events to columns: the loops stay in C, one chunk at a time.

Each chunk's events are split by category and turned into arrays at once, so the Python objects of
one chunk are all that is ever alive beside the growing tables.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, compress, count, repeat
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from tracelens.trace import collectives
from tracelens.trace import decode as decoding
from tracelens.trace.door import LONGEST_NS
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
    "cuda_sync": "syncs",
}
#: Counter events that are kept, of the process "GPU 0 Counters": torch 2.14, torch/profiler/_cupti/
#: monitor_trace.py, with ``enable_environment_counters`` of the backend ``cupti_monitor``.
COUNTERS = frozenset({"SM Clock (MHz)", "Power (W)"})
_OF_DEVICE = re.compile(r"GPU (\d{1,4}) Counters")
_DURATIONS = {"ops", "kernels", "launches", "ranges", "frames", "syncs"}
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
    dropped: dict[str, int]  # values that cannot be, by kind (``door``)


class ChunkDecoder:
    """Decodes chunks of JSON events into columns, coding strings as it goes."""

    def __init__(self) -> None:
        self.names = Coder()
        self.details = Coder()
        self.threads = Coder()
        self._dropped: Counter[str] = Counter()
        self._exact = False  # read times from their text
        self._integers = False  # times are whole microseconds
        self._text: bytes | bytearray | memoryview = b""  # of the events at hand
        self._makers: dict[str, Callable[[list[Any]], dict[str, Column]]] = {
            "ops": self._ops,
            "kernels": self._kernels,
            "launches": self._launches,
            "ranges": self._ranges,
            "frames": self._span,
            "flows": self._flows,
            "syncs": self._syncs,
        }

    def decode(self, text: bytes | bytearray | memoryview) -> Chunk | None:
        """A JSON array of events as columns; None where it is not that, or of unexpected types."""
        self._text = text
        try:
            if not self._exact:
                try:
                    return self.columns(decoding.decode_events(text))
                except InexactTimes:
                    if not self._integers and not _FRACTION.search(text):
                        self._integers = True
                        return self.decode(text)
                    self._exact = True
            return self.columns(decoding.decode_exact(text))
        except (*decoding.NOT_JSON, UnreadableTime):
            return None
        finally:
            self._text = b""  # a view of a buffer that is used again

    def columns(self, events: Sequence[decoding.Event] | Sequence[decoding.ExactEvent]) -> Chunk:
        """Events of any kind as columns.

        Raises:
            InexactTimes: the events must be decoded again with exact times.
            UnreadableTime: an event of a table has no time (see ``lacks_time``).
        """
        self._dropped.clear()
        bins = _Bins()
        for event in events:
            bins[event.cat].append(event)
        tables = {}
        for table, group in (_split_2021(bins) if "Operator" in bins else bins.by_table).items():
            if table in self._makers:
                if table in _DURATIONS and set(map(_PH, group)) != _COMPLETE:
                    group = [event for event in group if event.ph == "X"]
                if group:
                    tables[table] = self._makers[table](group)
        rest = bins.by_table.get("", [])
        if sampled := [one for one in rest if one.ph == "C" and one.name in COUNTERS and _is_timed(one)]:
            tables["counters"] = self._counters(sampled)
        return Chunk(
            events=len(events),
            categories=bins.sizes(),
            tables=tables,
            thread_names=_thread_names(rest),
            dropped=dict(self._dropped),
        )

    def _times(self, starts: Iterable[Any], durations: Iterable[Any]) -> Column:
        """Start and duration in ns, as two rows; a duration below 0 or without end is 0, and counted."""
        values = [*starts, *durations]
        exact = isinstance(values[0], Raw)
        times = (exact_ns(values) if exact else float_ns(values, integers=self._integers)).reshape(2, -1)
        for kind, wrong in (("negative", times[1] < 0), ("duration", times[1] > LONGEST_NS)):
            if wrong.any():
                self._dropped[kind] += int(wrong.sum())
                times[1][wrong] = 0
        return times

    def _span(self, events: list[Any]) -> dict[str, Column]:
        names, pids, tids, starts, durations = zip(*map(_SPAN, events), strict=True)
        ts_ns, dur_ns = self._times(starts, durations)
        return {
            "name": self.names.codes(names, len(events)),
            "thread": self.threads.codes(zip(pids, tids, strict=True), len(events)),
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
        }

    def _ops(self, events: list[Any]) -> dict[str, Column]:
        fields = ("external_id", "external_id_2021", "sequence", "forward_thread")
        integers, inputs = _arguments(events, fields, decoding.INPUT_FIELDS)
        span = self._span(events)
        collective = np.flatnonzero(span["name"] == self.names.get(collectives.OP, -1))
        return span | {
            "external_id": _first_known(integers[0], integers[1]),
            "sequence": integers[2],
            "forward_thread": integers[3],
            "inputs": self.details.codes(inputs, len(events)),
            "collective": self._collectives(events, collective.tolist()),
        }

    def _kernels(self, events: list[Any]) -> dict[str, Column]:
        fields = ("external_id", "external_id_2021", "correlation", "graph_node", "stream", "device")
        integers, launch = _arguments(events, fields, decoding.LAUNCH_FIELDS)
        ts_ns, dur_ns = self._times(map(_TS, events), map(_DUR, events))
        names = [event.name for event in events]
        collective = compress(count(), map(str.startswith, names, repeat(collectives.KERNEL)))
        stream, device = integers[4], integers[5]
        if (stream < 0).any():  # GPU events stand on a track whose tid is the stream and pid the device
            stream = np.where(stream < 0, [decoding.as_int(event.tid) for event in events], stream)
            device = np.where(device < 0, [decoding.as_int(event.pid) for event in events], device)
        return {
            "name": self.names.codes(names, len(events)),
            "category": self.names.codes(
                (_MODERN_CATEGORY.get(event.cat, event.cat) for event in events), len(events)
            ),
            "device": np.where(np.abs(device) < 2**31, device, -1).astype(np.int32),
            "stream": stream,
            "ts_ns": ts_ns,
            "dur_ns": dur_ns,
            "correlation": integers[2],
            "external_id": _first_known(integers[0], integers[1]),
            "launch": self.details.codes(launch, len(events)),
            **self._labels(events, np.flatnonzero(integers[3] > 0).tolist()),
            "collective": self._collectives(events, collective),
        }

    def _labels(self, events: list[Any], replayed: list[int]) -> dict[str, Column]:
        """What marks the kernels of CUDA graphs: only these rows have it."""
        label = np.full(len(events), self.names[""], np.int32)
        backward = np.zeros(len(events), np.bool_)
        for row in replayed:
            for text in map(bytes, _LABELS(events[row].args)):
                if text.startswith(b'"'):
                    with suppress(*decoding.NOT_JSON):
                        label[row] = self.names[decoding.clean_text(msgspec.json.decode(text, type=str))]
                        backward[row] = b"backward" in bytes(events[row].args.autograd_phase)
                        break
        return {"label": label, "marked_backward": backward}

    def _collectives(self, events: list[Any], rows: Iterable[int]) -> Column:
        """Codes of the arguments of collectives, which only these rows can have."""
        codes = np.full(len(events), self.details[b""], np.int32)
        for row in rows:
            args = events[row].args
            if args is not None and args.collective:
                codes[row] = self.details[collectives.fields_text(args.collective, self._text)]
        return codes

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

    def _syncs(self, events: list[Any]) -> dict[str, Column]:
        integers, _ = _arguments(events, ("device", "stream", "record"))
        device, stream, record = integers
        return {
            "name": self.names.codes([event.name for event in events], len(events)),
            "device": np.where(np.abs(device) < 2**31, device, -1).astype(np.int32),
            "stream": stream,
            "ts_ns": self._times(map(_TS, events), map(_DUR, events))[0],
            "record": record,
        }

    def _counters(self, events: list[Any]) -> dict[str, Column]:
        values = np.full(len(events), np.nan)
        for at, event in enumerate(events):
            with suppress(ValueError):
                values[at] = float(bytes((event.args or decoding.NO_ARGS).value) or b"nan")
        devices = (_OF_DEVICE.fullmatch(str(event.pid)) for event in events)
        return {
            "name": self.names.codes([event.name for event in events], len(events)),
            "device": np.array([int(found[1]) if found else -1 for found in devices], np.int32),
            "ts_ns": self._times(map(_TS, events), map(_DUR, events))[0],
            "value": values,
        }

    def _flows(self, events: list[Any]) -> dict[str, Column]:
        return {
            "id": _integers([event.id for event in events]),
            "start": np.array([event.ph == "s" for event in events], np.bool_),
            "thread": self.threads.codes(map(_PID_TID, events), len(events)),
            "ts_ns": self._times(map(_TS, events), map(_DUR, events))[0],
        }


class _Bins(dict[str, list[Any]]):
    """Events by category; the categories of one table share a list, so its events keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.by_table: dict[str, list[Any]] = {}

    def __missing__(self, category: str) -> list[Any]:
        table = TABLE_OF_CATEGORY.get(category) or (category and f"no table: {category}")
        found = self[category] = self.by_table.setdefault(table, [])
        return found

    def sizes(self) -> dict[str, int]:
        """Events by category."""
        sizes: Counter[str] = Counter()
        for table, group in self.by_table.items():
            shared = sum(found is group for found in self.values()) > 1
            sizes.update(map(_CAT, group) if shared else {_CAT(group[0]) if group else table: len(group)})
        return dict(sizes)


def _split_2021(bins: _Bins) -> dict[str, list[Any]]:
    """The tables with ranges of their own: the 2021 format calls them operators, too.

    PyTorch's own are known by their number sign (``ProfilerStep#2``, ``Optimizer.step#SGD.step``), which no
    operator's name holds.
    """
    named = [event for event in bins["Operator"] if "#" in event.name]
    return bins.by_table | {
        "ops": [event for event in bins["Operator"] if "#" not in event.name],
        "ranges": bins.by_table.get("ranges", []) + named,
    }


def lacks_time(event: decoding.ExactEvent) -> bool:
    """Does the event belong in a table, but has no readable start?"""
    table = TABLE_OF_CATEGORY.get(event.cat)
    in_table = table is not None and (event.ph == "X" or table not in _DURATIONS)
    return in_table and not bytes(event.ts)


def _is_timed(event: decoding.Event | decoding.ExactEvent) -> bool:
    """A float is a time unless it is NaN; raw text is one unless it is empty."""
    return event.ts == event.ts if isinstance(event.ts, float) else bool(bytes(event.ts))


def _thread_names(events: list[Any]) -> dict[tuple[Any, Any], str]:
    names = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name" and event.args is not None:
            with suppress(*decoding.NOT_JSON):
                names[event.pid, event.tid] = msgspec.json.decode(event.args.name, type=str)
    return names


_TS, _DUR, _CAT, _PH = map(attrgetter, ("ts", "dur", "cat", "ph"))
_PID_TID, _SPAN = attrgetter("pid", "tid"), attrgetter("name", "pid", "tid", "ts", "dur")
_LABELS = attrgetter(*decoding.LABEL_FIELDS)
_COMPLETE = {"X"}


def _arguments(
    events: list[Any], integers: tuple[str, ...], texts: tuple[str, ...] = ()
) -> tuple[Column, Iterable[bytes]]:
    """Arguments of a group of events: integer fields as rows of one array, raw texts joined into one.

    One conversion for all fields: for the small groups of a chunk NumPy's cost is per call. The
    joined texts (shapes, types, strides) repeat together, so alike events share one code.
    """
    rows = map(attrgetter(*integers, *texts), [event.args or decoding.NO_ARGS for event in events])
    columns = list(zip(*rows, strict=True))
    numbers = _integers([*chain.from_iterable(columns[: len(integers)])])
    return numbers.reshape(len(integers), -1), map(b"\0".join, zip(*columns[len(integers) :], strict=True))


def _integers(values: list[Any]) -> Column:
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):  # a null, a text, or an id above 2**63
        return np.array([decoding.as_int(value) for value in values], dtype=np.int64)


def _first_known(modern: Column, older: Column) -> Column:
    return np.where(modern < 0, older, modern)
