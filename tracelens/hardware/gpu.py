"""The GPU a trace was recorded on: found by name, corrected by what the trace itself says."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracelens.errors import UsageError
from tracelens.hardware.table import Cell, Row, load_rows
from tracelens.results import GpuInfo

#: Boards that share a name (RTX 3060 with 8 and 12 GB) differ by 33 % in memory; the driver's reserve
#: takes a few percent of it.
_MEMORY_TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is known of one GPU. ``None`` or an absent dtype means unknown, never zero.

    Peaks are dense TFLOP/s with fp32 accumulation (int8: TOP/s); ceilings are the best matmul anyone
    measured; bandwidth is in 10^9 bytes per second.
    """

    name: str  # key in gpus.toml: "h100-sxm"; "unknown" when not in the table
    title: str
    vendor: str  # "nvidia" | "amd" | "unknown"
    device_name: str | None  # as the trace states it
    sms: int | None  # streaming multiprocessors; compute units on AMD
    sms_source: str  # "trace" | "table" | "unknown"
    compute_capability: tuple[int, int] | None
    bandwidth_gbps: float | None
    l2_mb: float | None
    matched_by: str  # "--gpu" | "device name" | "none"
    notes: tuple[str, ...] = ()
    peak_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    ceiling_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    cells: Mapping[str, Cell] = field(default_factory=dict, hash=False, repr=False)  # "peak.bf16" -> source

    def peak(self, dtype: str | None) -> float | None:
        """Dense datasheet peak in TFLOP/s for ``dtype`` ("bf16", "tf32", "fp8"...), or None.

        >>> find_gpu("NVIDIA H100 80GB HBM3").peak("bf16")
        989.0
        """
        return None if dtype is None else self.peak_tflops.get(dtype)

    def ceiling(self, dtype: str | None) -> float | None:
        """Best measured matmul in TFLOP/s for ``dtype``, or None.

        >>> find_gpu("NVIDIA B200").ceiling("bf16")
        1745.0
        """
        return None if dtype is None else self.ceiling_tflops.get(dtype)

    def info(self) -> GpuInfo:
        """The same as a value of the report."""
        return GpuInfo(
            name=self.name,
            title=self.title,
            vendor=self.vendor,
            sms=self.sms,
            sms_source=self.sms_source,
            peak_tflops=dict(self.peak_tflops),
            ceiling_tflops=dict(self.ceiling_tflops),
            bandwidth_gbps=self.bandwidth_gbps,
            matched_by=self.matched_by,
        )


def list_gpus() -> list[Gpu]:
    """Every GPU of the table, in table order.

    >>> [gpu.name for gpu in list_gpus()][:3]
    ['v100-sxm', 'v100-pcie', 'v100-dgxs']
    """
    return [_from_row(row, device_name=None, matched_by="none", traced=_Traced()) for row in load_rows()]


def find_gpu(
    device_name: str | None,
    *,
    override: str | None = None,
    properties: Mapping[str, Any] | None = None,
) -> Gpu:
    """The GPU behind a device name, with the traced properties taking precedence over the table.

    ``override`` is a key of the table ("h100-sxm") that the user gave; an unknown one raises
    ``UsageError`` naming close keys. ``properties`` is one entry of Kineto's ``deviceProperties``
    (``name``, ``numSms``, ``totalGlobalMem``, ``computeMajor``/``computeMinor``) or of the 2021
    ``computeProperties`` (``major``/``minor``, ``multiProcessorCount``). A device that is not in the
    table gives a ``Gpu`` named "unknown" without peaks, never a guess from a similar name.

    Where the traced SM count differs from the table's, the device is a slice (MIG) or another variant:
    its peaks and bandwidth are then unknown, unless the user insisted with ``override``.

    >>> find_gpu("NVIDIA H100 80GB HBM3", properties={"numSms": 132}).name
    'h100-sxm'
    >>> find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU").name
    'unknown'
    """
    traced = _Traced.read(properties)
    name = device_name if isinstance(device_name, str) and device_name.strip() else traced.name
    name = name.strip() if name is not None else None
    if override is not None:
        return _from_row(_row_by_key(override), device_name=name, matched_by="--gpu", traced=traced)
    if name is not None:
        for row in load_rows():
            if row.matches(name):
                return _from_row(row, device_name=name, matched_by="device name", traced=traced)
    return Gpu(
        name="unknown",
        title=name or "unknown GPU",
        vendor=_vendor(name),
        device_name=name,
        sms=traced.sms,
        sms_source="trace" if traced.sms is not None else "unknown",
        compute_capability=traced.compute_capability,
        bandwidth_gbps=None,
        l2_mb=None,
        matched_by="none",
        notes=("this GPU is not in the table: no peaks, no roofline",) if name else (),
    )


@dataclass(frozen=True, slots=True)
class _Traced:
    """What the trace says of its device; each field None where it is missing or malformed."""

    name: str | None = None
    sms: int | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None

    @classmethod
    def read(cls, properties: Mapping[str, Any] | None) -> _Traced:
        if not isinstance(properties, Mapping):
            return cls()

        def number(*keys: str, least: int = 1) -> int | None:
            for key in keys:
                value = properties.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value >= least:
                    return value
            return None

        name = properties.get("name")
        major = number("computeMajor", "major")
        minor = number("computeMinor", "minor", least=0)
        return cls(
            name=name if isinstance(name, str) and name.strip() else None,
            sms=number("numSms", "multiProcessorCount"),
            memory_bytes=number("totalGlobalMem"),
            compute_capability=(major, minor) if major is not None and minor is not None else None,
        )


def _from_row(row: Row, *, device_name: str | None, matched_by: str, traced: _Traced) -> Gpu:
    notes = list(row.notes)
    peaks: Mapping[str, Cell] = row.peak_tflops
    ceilings: Mapping[str, Cell] = row.ceiling_tflops
    bandwidth, l2 = row.bandwidth_gbps, row.l2_mb
    table_sms = int(row.sms.value) if row.sms is not None else None

    if traced.sms is not None and table_sms is not None and traced.sms != table_sms:
        if matched_by == "--gpu":
            notes.append(f"the trace reports {traced.sms} SMs, a {row.title} has {table_sms}")
        else:
            notes.append(
                f"the trace reports {traced.sms} SMs, a {row.title} has {table_sms}: a MIG slice or another"
                " variant, so no peaks or bandwidth are applied"
            )
            peaks, ceilings, bandwidth, l2 = {}, {}, None, None
    if row.memory_gb is not None and traced.memory_bytes is not None:
        traced_gb = traced.memory_bytes / 2**30
        if abs(traced_gb - row.memory_gb) > _MEMORY_TOLERANCE * row.memory_gb and matched_by != "--gpu":
            notes.append(
                f"the trace reports {traced_gb:.0f} GB, the table's board has {row.memory_gb:g}:"
                " bandwidth unknown"
            )
            bandwidth = None

    cells = {f"peak.{dtype}": cell for dtype, cell in peaks.items()}
    cells |= {f"ceiling.{dtype}": cell for dtype, cell in ceilings.items()}
    for label, one in (("sms", row.sms), ("bandwidth_gbps", bandwidth), ("l2_mb", l2)):
        if one is not None:
            cells[label] = one
    sms = traced.sms if traced.sms is not None else table_sms
    return Gpu(
        name=row.key,
        title=row.title,
        vendor=row.vendor,
        device_name=device_name,
        sms=sms,
        sms_source="trace" if traced.sms is not None else "table" if sms is not None else "unknown",
        compute_capability=row.compute_capability,
        bandwidth_gbps=bandwidth.value if bandwidth is not None else None,
        l2_mb=l2.value if l2 is not None else None,
        matched_by=matched_by,
        notes=tuple(notes),
        peak_tflops={dtype: cell.value for dtype, cell in peaks.items()},
        ceiling_tflops={dtype: cell.value for dtype, cell in ceilings.items()},
        cells=cells,
    )


def _row_by_key(override: str) -> Row:
    keys = {row.key: row for row in load_rows()}
    wanted = override.strip().lower()
    if wanted in keys:
        return keys[wanted]
    # Prefixes first: "h100" means one of its variants, which difflib's cutoff would miss.
    close = [key for key in keys if key.startswith(wanted)] if wanted else []
    close += [k for k in difflib.get_close_matches(wanted, keys, n=5, cutoff=0.5) if k not in close]
    hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(keys)}"
    raise UsageError(f"unknown GPU {override!r}; {hint}")


def _vendor(name: str | None) -> str:
    lowered = (name or "").lower()
    if any(word in lowered for word in ("amd", "instinct", "radeon")):
        return "amd"
    if any(word in lowered for word in ("nvidia", "tesla", "geforce", "quadro", "titan")):
        return "nvidia"
    return "unknown"
