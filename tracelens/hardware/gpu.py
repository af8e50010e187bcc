"""The GPU a trace was recorded on: found by name, corrected by what the trace itself says."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tracelens.errors import UsageError
from tracelens.hardware import words
from tracelens.hardware.measurements import Measurements
from tracelens.hardware.table import TableCell, TablePart, load_rows
from tracelens.results import GpuInfo
from tracelens.results.identity import GpuMatch, SmsSource, Vendor

#: Boards that share a name (RTX 3060 with 8 and 12 GB) differ by 33 % in memory; what a device reports is
#: below what is printed on its box by up to 10 % (ECC, the driver's reserve, GB for GiB).
_MEMORY_TOLERANCE = 0.15
#: "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
_MIG = re.compile(r"(?P<parent>.+?) MIG (?P<slice>\d+[cg]\.\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is known of one GPU. ``None`` or an absent dtype means unknown, never zero.

    Peaks are dense TFLOP/s with fp32 accumulation (int8: TOP/s); ceilings are the best matmul anyone
    measured; bandwidth is in 10^9 bytes per second.
    """

    name: str  # key in gpus.toml: "h100-sxm"; "unknown" when not in the table
    title: str
    vendor: Vendor
    sms: int | None  # streaming multiprocessors; compute units on AMD
    sms_source: SmsSource
    compute_capability: tuple[int, int] | None
    bandwidth_gbps: float | None
    l2_mb: float | None
    matched_by: GpuMatch
    notes: tuple[str, ...] = ()
    memory_gb: float | None = None  # as the trace reports it, in GiB, else as printed
    boost_mhz: float | None = None  # the highest clock: as the trace reports it, else as printed
    traced_memory_gib: float | None = None  # ``memory_gb`` where it is the trace's
    peak_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    ceiling_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    # "peak.bf16" -> source
    cells: Mapping[str, TableCell] = field(default_factory=dict, hash=False, repr=False)

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

    def info(self, *, measured: Measurements | None = None) -> GpuInfo:
        """The same as a value of the report, with the ceilings that ``measured`` found on this GPU."""
        best: dict[str, float] = {}
        for one in measured.gemms if measured is not None else ():
            best[one.dtype] = max(best.get(one.dtype, 0.0), one.tflops)
        sources = {label: _cite(cell) for label, cell in self.cells.items()}
        if measured is not None:
            sources["measured"] = words.measured_on(measured.date)
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
            sources=sources,
            l2_mb=self.l2_mb,
            measured_tflops=best,
            measured_bandwidth_gbps=measured.bandwidth_gbps if measured is not None else None,
            memory_gib=self.traced_memory_gib,
        )


def _cite(cell: TableCell) -> str:
    """A cell's document and date in one line, without what the document's title says of itself."""
    note = f"; {cell.note}" if cell.note else ""
    return f"{cell.source.partition(' (')[0]}, {cell.date}{note}"


def list_gpus() -> list[Gpu]:
    """Every GPU of the table, in table order.

    >>> [gpu.name for gpu in list_gpus()][:3]
    ['v100-sxm', 'v100-pcie', 'v100-dgxs']
    """
    return [_from_row(row, matched_by="none", traced=_Traced()) for row in load_rows()]


def find_gpu(
    device_name: str | None, *, override: str | None = None, properties: Mapping[str, Any] | None = None
) -> Gpu:
    """The GPU behind a device name, with the traced properties taking precedence over the table.

    ``override`` is a key of the table ("h100-sxm") that the user gave; an unknown one raises
    ``UsageError`` naming close keys. ``properties`` is one entry of Kineto's ``deviceProperties``
    (``name``, ``numSms``, ``totalGlobalMem``, ``computeMajor``/``computeMinor``) or of the 2021
    ``computeProperties`` (``major``/``minor``, ``multiProcessorCount``); a clock (``clockRate``, kHz, as in
    CUDA's properties) is in neither and used where something added it. A device that is not in the
    table gives a ``Gpu`` named "unknown" without peaks, never a guess from a similar name.

    Where the traced SM count differs from the table's, the device is a slice (MIG) or another variant:
    its peaks and bandwidth are then unknown, unless the user insisted with ``override``.

    >>> find_gpu("NVIDIA H100 80GB HBM3", properties={"numSms": 132}).name
    'h100-sxm'
    >>> find_gpu("NVIDIA GeForce RTX 5090 Laptop GPU").name
    'unknown'
    """
    traced = _Traced.read(properties)
    name = device_name if isinstance(device_name, str) and device_name.strip() else traced.name
    name = name.strip() if name is not None else None
    if override is not None:
        found = _from_row(_row_by_key(override), matched_by="--gpu", traced=traced)
        told = taken_as(override)
        return replace(found, notes=(*found.notes, f"{found.name} {told}")) if told else found
    if name is not None:
        for row in load_rows():
            if row.matches(name):
                return _from_row(row, matched_by="device name", traced=traced)
    return Gpu(
        name="unknown",
        title=name or "unknown GPU",
        vendor=_vendor(name),
        sms=traced.sms,
        sms_source="trace" if traced.sms is not None else "unknown",
        compute_capability=traced.compute_capability,
        bandwidth_gbps=None,
        l2_mb=None,
        matched_by="none",
        notes=(_why_unknown(name),) if name else (),
        memory_gb=traced.memory_gb,
        boost_mhz=traced.clock_mhz,
        traced_memory_gib=traced.memory_gb,
    )


def _why_unknown(name: str) -> str:
    """Why a device that has a name has no row."""
    if (mig := _MIG.fullmatch(name)) is not None:
        rows = [row for row in load_rows() if row.matches(mig["parent"])]
        whole = rows[0].title if rows else mig["parent"]
        return words.mig_slice(mig["slice"], whole)
    if re.search(r"\b(?:Laptop|Mobile|Max-Q)\b", name, re.IGNORECASE):
        return words.LAPTOP
    return words.NOT_IN_TABLE


#: No chip has as many; traces of an A800 hold the bytes of an SM's shared memory under ``numSms``.
_MOST_SMS = 1024


@dataclass(frozen=True, slots=True)
class _Traced:
    """What the trace says of its device; each field None where it is missing or malformed."""

    name: str | None = None
    sms: int | None = None
    memory_bytes: int | None = None
    clock_khz: int | None = None
    compute_capability: tuple[int, int] | None = None

    @property
    def memory_gb(self) -> float | None:
        return self.memory_bytes / 2**30 if self.memory_bytes is not None else None

    @property
    def clock_mhz(self) -> float | None:
        return self.clock_khz / 1000 if self.clock_khz is not None else None

    @classmethod
    def read(cls, properties: Mapping[str, Any] | None) -> _Traced:
        if not isinstance(properties, Mapping):
            return cls()

        def number(*keys: str, least: int = 1, most: int = 2**63) -> int | None:
            found = (properties.get(key) for key in keys)
            return next((one for one in found if type(one) is int and least <= one <= most), None)

        name = properties.get("name")
        major = number("computeMajor", "major")
        minor = number("computeMinor", "minor", least=0)
        return cls(
            name=name if isinstance(name, str) and name.strip() else None,
            sms=number("numSms", "multiProcessorCount", most=_MOST_SMS),
            memory_bytes=number("totalGlobalMem"),
            clock_khz=number("clockRate"),
            compute_capability=(major, minor) if major is not None and minor is not None else None,
        )


def _from_row(row: TablePart, *, matched_by: GpuMatch, traced: _Traced) -> Gpu:
    """The row, with what the trace says in place of it; another variant keeps no figure that hangs on SMs."""
    notes = [*row.notes, *_unknown_notes(row, traced)]
    table_sms = int(row.sms.value) if row.sms is not None else None
    table: dict[str, TableCell | None] = {
        "sms": row.sms,
        "boost_mhz": row.boost_mhz,
        "memory_gb": row.memory_gb,
        "bandwidth_gbps": row.bandwidth_gbps,
        "l2_mb": row.l2_mb,
    }
    peaks: Mapping[str, TableCell] = row.peak_tflops
    ceilings: Mapping[str, TableCell] = row.ceiling_tflops
    if traced.sms is not None and table_sms is not None and traced.sms != table_sms:
        dropped = matched_by != "--gpu"
        if dropped:
            peaks, ceilings = {}, {}
            table = {**dict.fromkeys(table), "sms": row.sms}
        notes.append(words.other_sms(traced.sms, row.title, table_sms, dropped=dropped))
    if matched_by != "--gpu" and (other := _other_memory(table["memory_gb"], traced)):
        notes.append(other)
        table["memory_gb"] = table["bandwidth_gbps"] = None

    cells = {f"peak.{dtype}": cell for dtype, cell in peaks.items()}
    cells |= {f"ceiling.{dtype}": cell for dtype, cell in ceilings.items()}
    cells |= {label: cell for label, cell in table.items() if cell is not None}
    sms = traced.sms if traced.sms is not None else table_sms
    figures = {label: cell.value if cell is not None else None for label, cell in table.items()}
    return Gpu(
        name=row.key,
        title=row.title,
        vendor=row.vendor,
        sms=sms,
        sms_source="trace" if traced.sms is not None else "table" if sms is not None else "unknown",
        compute_capability=row.compute_capability,
        bandwidth_gbps=figures["bandwidth_gbps"],
        l2_mb=figures["l2_mb"],
        matched_by=matched_by,
        notes=tuple(notes),
        peak_tflops={dtype: cell.value for dtype, cell in peaks.items()},
        ceiling_tflops={dtype: cell.value for dtype, cell in ceilings.items()},
        cells=cells,
        memory_gb=figures["memory_gb"] if traced.memory_gb is None else traced.memory_gb,
        boost_mhz=figures["boost_mhz"] if traced.clock_mhz is None else traced.clock_mhz,
        traced_memory_gib=traced.memory_gb,
    )


#: What a reader of a report misses where it is unknown; the other columns are for whoever reads the table.
_MISSED = {"sms": "SM count", "bandwidth_gbps": "bandwidth", "fp16": "fp16 peak", "bf16": "bf16 peak",
           "tf32": "tf32 peak", "fp8": "fp8 peak", "fp32": "fp32 peak"}  # fmt: skip


def _unknown_notes(row: TablePart, traced: _Traced) -> list[str]:
    """One line per reason for which figures are missing."""
    by_reason: dict[str, list[str]] = {}
    for column, reason in row.unknown.items():
        if column in _MISSED and not (column == "sms" and traced.sms is not None):
            by_reason.setdefault(reason, []).append(_MISSED[column])
    return [words.unknown(missing, reason) for reason, missing in by_reason.items()]


def _other_memory(printed: TableCell | None, traced: _Traced) -> str | None:
    """Says so where the trace's memory is another board's."""
    if printed is None or traced.memory_gb is None:
        return None
    if abs(traced.memory_gb - printed.value) <= _MEMORY_TOLERANCE * printed.value:
        return None
    return words.other_memory(traced.memory_gb, printed.value)


#: The part that people mean by a chip's name alone: the one that most training runs on.
_USUAL = {
    "v100": "v100-sxm",
    "a100": "a100-sxm-80gb",
    "a800": "a800-sxm-80gb",
    "h100": "h100-sxm",
    "h800": "h800-sxm",
    "gh200": "gh200-96gb",
    "rtx-pro-6000": "rtx-pro-6000-server",
}
#: What is left out of a name at will: "4090", "RTX 4090" and "NVIDIA GeForce RTX 4090" are one board.
_LEFT_OUT = re.compile(r"^nvidia|^geforce|^rtx|[^a-z0-9]")
#: Names of accelerators of others: AMD's, Google's, Intel's, Amazon's and Huawei's.
_OTHER_VENDORS = re.compile(r"mi\d|rx.?\d|tpu|gaudi|trn|trainium|ascend")


def _squeezed(name: str) -> str:
    """The letters and digits that tell one part from another.

    >>> _squeezed("NVIDIA GeForce RTX 3090 Ti"), _squeezed("rtx-3090-ti"), _squeezed("3090TI")
    ('3090ti', '3090ti', '3090ti')
    """
    squeezed = name.lower()
    while (shorter := _LEFT_OUT.sub("", squeezed)) != squeezed:
        squeezed = shorter
    return squeezed


def taken_as(override: str) -> str | None:
    """Says which part a chip's name alone was taken for; None where a part was named.

    >>> taken_as("h100"), taken_as("h100-pcie")
    ('is what h100 usually means (others: h100-sxm-96gb, h100-pcie, h100-nvl)', None)
    """
    chip = next((chip for chip in _USUAL if _squeezed(chip) == _squeezed(override)), None)
    if chip is None:
        return None
    others = [row.key for row in load_rows() if row.key.startswith(f"{chip}-") and row.key != _USUAL[chip]]
    return words.usual_part(chip, others)


def _row_by_key(override: str) -> TablePart:
    keys = {row.key: row for row in load_rows()}
    wanted = override.strip().lower()
    known = {_squeezed(name): key for name, key in [*_USUAL.items(), *((key, key) for key in keys)]}
    if (key := known.get(_squeezed(wanted))) is not None:
        return keys[key]
    named = next((row for row in keys.values() if row.matches(override.strip())), None)  # as CUDA prints it
    if named is not None:
        return named
    if _vendor(override) == "amd" or _OTHER_VENDORS.match(wanted):
        raise UsageError(f"unknown GPU {override!r}: {words.NVIDIA_ALONE}")
    # Prefixes first: "a100-sxm" means one of its variants, which difflib's cutoff would miss.
    close = [key for key in keys if key.startswith(wanted)] if wanted else []
    close += [k for k in difflib.get_close_matches(wanted, keys, n=5, cutoff=0.5) if k not in close]
    hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(keys)}"
    raise UsageError(f"unknown GPU {override!r}; {hint}")


def _vendor(name: str | None) -> Vendor:
    lowered = (name or "").lower()
    if any(word in lowered for word in ("amd", "instinct", "radeon")):
        return "amd"
    if any(word in lowered for word in ("nvidia", "tesla", "geforce", "quadro", "titan")):
        return "nvidia"
    return "unknown"
