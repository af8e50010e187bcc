"""The columnar tables of a trace: one NumPy array per column, integer nanoseconds, coded strings.

A trace of millions of events is held as a handful of arrays, about 60 bytes an event. Strings are
kept once and named by their position (``Symbols``); the shapes and types that Kineto attaches to
operators are kept once as raw JSON and parsed only when somebody asks (``Details``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.collectives import Collective, parse
from tracelens.trace.decode import NOT_JSON
from tracelens.trace.door import Door
from tracelens.trace.metadata import device_name
from tracelens.trace.words import DamageKind

IntArray = npt.NDArray[np.int64]
CodeArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

#: A missing number: no correlation, no sequence number, no stream.
MISSING = -1


class Symbols:
    """Strings, each known by its code (its position); distinct but for names that were mended alike."""

    def __init__(self, texts: list[str]):
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, code: int) -> str:
        """The text of a code; the empty string for ``MISSING``."""
        return self._texts[code] if code >= 0 else ""

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    @cached_property
    def array(self) -> npt.NDArray[np.object_]:
        """All texts as an object array, for ``symbols.array[codes]``."""
        out = np.empty(len(self._texts), dtype=object)
        out[:] = self._texts
        return out

    def where(self, test: Any) -> npt.NDArray[np.bool_]:
        """One boolean per code: does ``test(text)`` hold? Index it with a column of codes."""
        return np.fromiter(map(test, self._texts), np.bool_, len(self._texts))

    def added(self, texts: list[str]) -> Symbols:
        """The same and behind them others."""
        return Symbols(self._texts + texts)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an operator was called with, as Kineto writes it; None where the trace does not say."""

    dims: list[Any] | None  # of each input its sizes; of a list of tensors a list of those
    types: list[str] | None
    strides: list[Any] | None
    concrete: list[str] | None


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a kernel was launched; None where the trace does not say."""

    grid: list[int] | None  # three sizes
    block: list[int] | None
    shared_memory: int | None  # bytes per block, static + dynamic
    registers: int | None  # per thread


class Details:
    """Distinct argument texts (shapes, launch configurations, collectives), parsed once each on demand."""

    def __init__(self, raw: list[bytes], door: Door):
        self._raw = raw
        self._door = door
        self._inputs: dict[int, Inputs] = {}
        self._configs: dict[int, LaunchConfig] = {}
        self._collectives: dict[int, Collective | None] = {}

    def __len__(self) -> int:
        return len(self._raw)

    def added(self, texts: list[bytes]) -> Details:
        """The same and behind them others."""
        return Details(self._raw + texts, self._door)

    def inputs(self, code: int) -> Inputs:
        """The inputs of an operator (``Ops.inputs``)."""
        if code not in self._inputs:
            dims, dims_2021, types, strides, concrete = map(_parse, self._raw[code].split(b"\0"))
            door = self._door
            self._inputs[code] = Inputs(
                door.dims(dims if dims is not None else dims_2021),
                door.texts(types),
                door.dims(strides),
                door.texts(concrete),
            )
        return self._inputs[code]

    def config(self, code: int) -> LaunchConfig:
        """The launch configuration of a kernel (``Kernels.launch``)."""
        if code not in self._configs:
            grid, block, memory, registers = map(_parse, self._raw[code].split(b"\0"))
            door = self._door
            self._configs[code] = LaunchConfig(
                door.grid(grid), door.grid(block), door.count(memory), door.count(registers)
            )
        return self._configs[code]

    def collective(self, code: int) -> Collective | None:
        """The collective of an operator or kernel (``Ops.collective``, ``Kernels.collective``), if any."""
        if code not in self._collectives:
            self._collectives[code] = parse(self._raw[code], self._door)
        return self._collectives[code]


def _parse(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        value = msgspec.json.decode(raw)
        # some exporters write a list as text: "[128, 1, 1]"
        return msgspec.json.decode(value.encode()) if isinstance(value, str) else value
    except NOT_JSON:
        return None


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def rows(self, kept: BoolArray) -> Self:
        """The same with these rows only."""
        return replace(self, **{one.name: getattr(self, one.name)[kept] for one in fields(self)})


@dataclass(frozen=True, slots=True)
class Ops(Table):
    """Host operators (category ``cpu_op``)."""

    name: CodeArray
    thread: CodeArray
    ts_ns: IntArray
    dur_ns: IntArray
    external_id: IntArray
    sequence: IntArray  # autograd sequence number; MISSING without one
    forward_thread: IntArray  # logical thread that ran the forward; > 0 on backward ops only
    inputs: CodeArray  # code for Trace.details.inputs
    collective: CodeArray  # code for Trace.details.collective


@dataclass(frozen=True, slots=True)
class Kernels(Table):
    """GPU events: kernels, copies and fills (``kernel``, ``gpu_memcpy``, ``gpu_memset``)."""

    name: CodeArray
    category: CodeArray
    device: CodeArray  # the trace's own device number
    stream: IntArray
    ts_ns: IntArray
    dur_ns: IntArray
    correlation: IntArray
    external_id: IntArray
    launch: CodeArray  # code for Trace.details.config
    label: CodeArray  # what marks it in its CUDA graph (``mark_kernels``); empty: nothing
    marked_backward: BoolArray  # the label is of the forward, this its backward
    collective: CodeArray  # code for Trace.details.collective


@dataclass(frozen=True, slots=True)
class Launches(Table):
    """Host calls into the CUDA/HIP runtime and driver."""

    name: CodeArray
    thread: CodeArray
    ts_ns: IntArray
    dur_ns: IntArray
    correlation: IntArray
    external_id: IntArray


@dataclass(frozen=True, slots=True)
class Ranges(Table):
    """Named ranges: ``record_function`` on the host (``user_annotation``) or its GPU shadow."""

    name: CodeArray
    category: CodeArray
    thread: CodeArray
    ts_ns: IntArray
    dur_ns: IntArray


@dataclass(frozen=True, slots=True)
class Frames(Table):
    """Python frames (category ``python_function``), among them ``nn.Module: Linear_3``."""

    name: CodeArray
    thread: CodeArray
    ts_ns: IntArray
    dur_ns: IntArray


@dataclass(frozen=True, slots=True)
class Flows(Table):
    """Arrows from a forward operator to its backward (category ``fwdbwd``)."""

    id: IntArray
    start: npt.NDArray[np.bool_]  # True at the forward end
    thread: CodeArray
    ts_ns: IntArray


@dataclass(frozen=True, slots=True)
class Syncs(Table):
    """Waits that CUPTI records (``cuda_sync``); ``name`` is their kind: "Stream Sync", "Event Sync"."""

    name: CodeArray
    device: CodeArray
    stream: IntArray
    ts_ns: IntArray
    record: IntArray  # correlation or external id of the cudaEventRecord that is waited for


@dataclass(frozen=True, slots=True)
class Counters(Table):
    """Samples of a GPU's clock and power, where a trace has them; ``value`` in the unit of ``name``."""

    name: CodeArray
    device: CodeArray
    ts_ns: IntArray
    value: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the file that could not be read."""

    offset: int  # bytes into the (uncompressed) JSON
    length: int
    reason: DamageKind
    entries: int = 1


@dataclass(frozen=True)
class TraceSource:
    """Where the trace came from."""

    name: str  # file name without its directory; "<stdin>"
    bytes: int  # as given, compressed if it was
    json_bytes: int  # uncompressed
    path: Path | None  # None for standard input
    digest: str | None  # SHA-256 where it is already known

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the bytes as given; a file is read once more for it. Empty when gone, or a pipe."""
        if self.digest is not None or self.path is None:
            return self.digest or ""
        if not os.path.isfile(self.path):  # gone by now, or a pipe: to open it again waits for ever
            return ""
        try:
            with self.path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            return ""


@dataclass(frozen=True)
class Trace:
    """One rank's trace as tables. Times are integer ns on the trace's own clock."""

    source: TraceSource
    metadata: dict[str, Any]  # every top-level key of the file except traceEvents
    symbols: Symbols
    details: Details
    threads: list[tuple[Any, Any]]  # (pid, tid) by thread code
    thread_names: dict[tuple[Any, Any], str]
    ops: Ops
    kernels: Kernels
    launches: Launches
    ranges: Ranges
    frames: Frames
    flows: Flows
    syncs: Syncs
    counters: Counters
    events: int  # events read, of every kind
    categories: dict[str, int]  # events by category
    damage: list[Damage] = field(default_factory=list)
    truncated: bool = False
    warnings: list[str] = field(default_factory=list)
    door: Door = field(default_factory=Door)  # what was left out of the values; more as they are asked for
    device: int | None = None  # of the GPU whose events these are, where several ran (``one_device``)
    beside: dict[int, int] = field(default_factory=dict)  # GPU ns of each other device

    @property
    def device_name(self) -> str | None:
        """The name of the first device; its maker's, where only calls of HIP tell that."""
        named = device_name(self.metadata)
        hip = self.symbols.where(lambda text: text.startswith("hip"))[self.launches.name]
        return "AMD GPU" if named is None and hip.any() else named

    @property
    def replays(self) -> npt.NDArray[np.bool_]:
        """Per row of ``launches``: does it replay a CUDA graph?"""
        return self.symbols.where(lambda text: "GraphLaunch" in text)[self.launches.name]

    @property
    def is_of_another_program(self) -> bool:
        """Nothing in it is PyTorch's, whose events have a category and whose files a schemaVersion."""
        named = any(self.categories) or "schemaVersion" in self.metadata
        return self.events > 0 and not named and not self.partial

    @property
    def partial(self) -> bool:
        """True when part of the file could not be read."""
        return self.truncated or bool(self.damage)
