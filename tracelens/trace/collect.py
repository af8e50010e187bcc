"""Joins the columns of all chunks, wherever they were decoded, into the tables of a trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from tracelens.trace.columns import Chunk, Column
from tracelens.trace.tables import Counters, Flows, Frames, Kernels, Launches, Ops, Ranges, Syncs

_CODES = {"name", "category", "thread", "device", "inputs", "launch", "collective", "label"}
_TABLES: dict[str, type[Any]] = {
    "ops": Ops,
    "kernels": Kernels,
    "launches": Launches,
    "ranges": Ranges,
    "frames": Frames,
    "flows": Flows,
    "syncs": Syncs,
    "counters": Counters,
}
_DTYPES: dict[str, type[Any]] = {
    "start": np.bool_,
    "marked_backward": np.bool_,
    "value": np.float64,
} | dict.fromkeys(_CODES, np.int32)


class Collector:
    """Collects chunks in the order of the file."""

    def __init__(self) -> None:
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.categories: Counter[str] = Counter()
        self.events = 0
        self.dropped: Counter[str] = Counter()
        self._parts: dict[str, dict[str, list[Column]]] = defaultdict(lambda: defaultdict(list))

    def add(self, chunk: Chunk) -> None:
        self.events += chunk.events
        self.categories.update(chunk.categories)
        self.thread_names.update(chunk.thread_names)
        self.dropped.update(chunk.dropped)
        for table, columns in chunk.tables.items():
            for name, column in columns.items():
                self._parts[table][name].append(column)

    def tables(self) -> dict[str, Any]:
        """Join everything collected, freeing the parts column by column."""
        return {name: self._join(name, kind) for name, kind in _TABLES.items()}

    def _join(self, table: str, kind: type[Any]) -> Any:
        parts = self._parts.pop(table, {})
        columns: dict[str, Column] = {}
        for name in kind.__dataclass_fields__:
            dtype = _DTYPES.get(name, np.int64)
            chunks = parts.pop(name, [])
            joined = np.concatenate(chunks) if chunks else np.empty(0, dtype)
            columns[name] = joined.astype(dtype, copy=False)
        return kind(**columns)
