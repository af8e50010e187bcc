"""Measured GEMM and attention times of one GPU: what ``tracelens bench`` writes and predictions read.

Plain JSON (optionally gzip), written with the standard library alone, for a GPU machine may have nothing
but torch. Rows are arrays under named columns; kernel names are listed once and referred to by index.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from tracelens.errors import InputError, UsageError
from tracelens.files import write_bytes
from tracelens.hardware import words
from tracelens.words import Direction

SCHEMA = "tracelens.measurements/1"
#: Fused kernels of attention that torch can be told to take.
MeasuredBackend = Literal["flash", "cudnn", "efficient"]


@dataclass(frozen=True, slots=True)
class GemmMeasurement:
    """One timed product out[M,N] = a[M,K] @ b[K,N], ``batch`` times."""

    sweep: str  # the family of shapes it was measured for: "wave", "alignment", "transformer"
    m: int
    n: int
    k: int
    batch: int
    dtype: str  # of the operands, as in GemmShape: bf16, fp16, fp8, tf32 (fp32 data on tensor cores), fp32
    out_dtype: str
    layout: str  # cuBLAS opA, opB: TN (y = x W^T), NN (dgrad), NT (wgrad)
    time_us: float  # median over the repeats
    spread_frac: float | None  # (90th - 10th percentile) / median
    kernels: tuple[str, ...]  # names in launch order; empty where they were not recorded
    grid: tuple[int, int, int] | None = None  # of the longest kernel

    @property
    def tflops(self) -> float:
        """Achieved TFLOP/s, 2*M*N*K*batch over the time."""
        return 2.0 * self.m * self.n * self.k * self.batch / self.time_us / 1e6


@dataclass(frozen=True, slots=True)
class AttentionMeasurement:
    """One timed fused attention call (scores, softmax and values in one kernel)."""

    sweep: str
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    dtype: str
    causal: bool
    direction: Direction
    backend: MeasuredBackend
    time_us: float
    spread_frac: float | None
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything measured on one GPU, and how. ``None`` = not measured."""

    gpu: str  # key in gpus.toml, "unknown" when not in the table
    device: Mapping[str, Any]  # name, sms, compute_capability, memory_bytes, l2_bytes
    software: Mapping[str, Any]  # torch, cuda, driver, cublas
    clocks: Mapping[str, Any]  # sm_mhz_before, sm_mhz_after, sm_mhz_max
    date: str  # of the measurement, ISO
    command: str
    method: str  # one or two sentences: warm-up, flush, repeats, data
    gemms: tuple[GemmMeasurement, ...] = ()
    attention: tuple[AttentionMeasurement, ...] = ()
    bandwidth_gbps: float | None = None  # large device-to-device copy, bytes read plus written
    launch_floor_us: float | None = None  # the shortest GEMM kernel seen
    call_gap_us: float | None = None  # in every time_us: what separates two kernels of a full stream
    notes: tuple[str, ...] = field(default=())
    method_version: int = 1  # results of another version are stale

    def __hash__(self) -> int:
        return hash((self.gpu, self.date, self.command, len(self.gemms), len(self.attention)))


def write_measurements(measurements: Measurements, path: Path) -> None:
    """Write atomically; gzip when the name ends in ``.gz``. Raises UsageError where it cannot be written."""
    text = json.dumps(_encode(measurements), separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path.name}: {error.strerror}") from error
    # mtime=0: the same measurements are the same bytes.
    data = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
    write_bytes(path, data)


def read_measurements(path: Path) -> Measurements:
    """Read a file of ``write_measurements``; ``InputError`` says what is wrong with another."""
    try:
        data = path.read_bytes()
        raw = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read as measurements: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise InputError(f"{path.name} is no file of `tracelens bench` ({SCHEMA})")
    try:
        return _decode(raw)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path.name} holds damaged measurements: {error!r}") from error


def find_measurements(gpu: str, *, sms: int | None = None) -> Measurements | None:
    """The measurements to predict with on ``gpu`` (a key of gpus.toml), or None where there are none.

    Looks at the user's own first (``user_file``), then at those that ship with the package. Measurements
    of a device with another number of SMs (a slice, another variant) are not taken. Times are those of
    kernels, without the gap between calls (``of_kernels``).
    """
    for path in (user_file(gpu), Path(__file__).with_name("calibration") / f"{gpu}.json.gz"):
        if path.is_file():
            found = _kernel_times(path, path.stat().st_mtime_ns)
            if sms is None or found.device.get("sms") in (None, sms):
                return found
    return None


@lru_cache(maxsize=8)
def _kernel_times(path: Path, changed_ns: int) -> Measurements:
    """One object for one state of a file: fits to measurements are kept by the object."""
    return of_kernels(read_measurements(path))


def of_kernels(measured: Measurements) -> Measurements:
    """The same with the gap between calls taken out of every time: what a trace calls a kernel's duration.

    No time loses more than half of itself: the gap is a median, and the shortest kernels may have less.
    """
    gap = measured.call_gap_us
    if gap is None or gap <= 0:
        return measured

    def without(time_us: float) -> float:
        return max(time_us - gap, 0.5 * time_us)

    floor = measured.launch_floor_us
    return replace(
        measured,
        gemms=tuple(replace(one, time_us=without(one.time_us)) for one in measured.gemms),
        attention=tuple(replace(one, time_us=without(one.time_us)) for one in measured.attention),
        launch_floor_us=without(floor) if floor is not None else None,
        call_gap_us=None,
        notes=(*measured.notes, words.gap_taken_out(gap)),
    )


def user_file(gpu: str) -> Path:
    """Where ``tracelens bench`` keeps this user's measurements of ``gpu``.

    ``$TRACELENS_CALIBRATION`` names another folder; the default follows the XDG base directories.
    """
    folder = os.environ.get("TRACELENS_CALIBRATION")
    if folder:
        return Path(folder) / f"{gpu}.json.gz"
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "tracelens" / "calibration" / f"{gpu}.json.gz"


Measured = TypeVar("Measured", GemmMeasurement, AttentionMeasurement)

_TABLES: Mapping[str, type[Any]] = {"gemms": GemmMeasurement, "attention": AttentionMeasurement}


def _encode(measurements: Measurements) -> dict[str, Any]:
    raw: dict[str, Any] = {"schema": SCHEMA}
    for one in fields(measurements):
        value = getattr(measurements, one.name)
        raw[one.name] = table_of(value) if one.name in _TABLES else value
    return raw


def table_of(rows: Sequence[GemmMeasurement | AttentionMeasurement]) -> dict[str, Any]:
    """Rows as plain JSON: arrays under named columns, each kernel's name once. ``rows_of`` reads it."""
    names: dict[str, int] = {}
    columns = [one.name for one in fields(rows[0])] if rows else []
    table = []
    for row in rows:
        cells = [getattr(row, column) for column in columns]
        at = columns.index("kernels")
        cells[at] = [names.setdefault(name, len(names)) for name in cells[at]]
        table.append(cells)
    return {"columns": columns, "kernel_names": list(names), "rows": table}


def _decode(raw: dict[str, Any]) -> Measurements:
    values: dict[str, Any] = {}
    for one in fields(Measurements):
        if one.name not in raw:
            continue  # older file: the default stands, or the constructor says what is missing
        value = raw[one.name]
        values[one.name] = (
            rows_of(value, _TABLES[one.name])
            if one.name in _TABLES
            else tuple(value)
            if one.name == "notes"
            else value
        )
    return Measurements(**values)


def rows_of(table: Mapping[str, Any], kind: type[Measured]) -> tuple[Measured, ...]:
    """The rows of ``table_of``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` on damaged ones."""
    names = table["kernel_names"]
    rows = []
    for cells in table["rows"]:
        row = dict(zip(table["columns"], cells, strict=True))
        row["kernels"] = tuple(names[index] for index in row["kernels"])
        if row.get("grid") is not None:
            row["grid"] = tuple(row["grid"])
        if not row["time_us"] > 0:
            raise ValueError(f"a time of {row['time_us']} µs")
        rows.append(kind(**row))
    return tuple(rows)
