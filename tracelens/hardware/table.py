"""Reads ``gpus.toml`` into plain rows; nothing here knows about traces or device names at run time."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from tracelens.results.identity import Vendor


@dataclass(frozen=True, slots=True)
class TableCell:
    """One figure of the table and the public document it comes from."""

    value: float
    source: str  # title of the document
    url: str
    date: str  # month of the document, or of the reading of a living page: "2026-08"
    read: bool  # False: cited by name, not opened when the table was written
    note: str | None  # "half of the printed figure, which is with 2:4 sparsity", versions of a measurement


@dataclass(frozen=True, slots=True)
class TablePart:
    """One part of ``gpus.toml``. An absent cell is unknown, for the reason in ``unknown``."""

    key: str
    title: str
    vendor: Vendor
    patterns: tuple[re.Pattern[str], ...]
    compute_capability: tuple[int, int]
    notes: tuple[str, ...]
    sms: TableCell | None
    boost_mhz: TableCell | None
    tensor_mhz: TableCell | None  # only where tensor cores boost lower than the rest of the SM
    memory_gb: TableCell | None
    bandwidth_gbps: TableCell | None
    l2_mb: TableCell | None
    fp16_accumulate_tflops: TableCell | None  # only where it differs from the peak, which accumulates in fp32
    tensor_flop_per_clock: float | None  # of one SM in fp16: what the table's own check multiplies with
    peak_tflops: Mapping[str, TableCell] = field(hash=False)
    ceiling_tflops: Mapping[str, TableCell] = field(hash=False)
    unknown: Mapping[str, str] = field(hash=False)  # column or type -> why there is no figure
    check: Mapping[str, str] = field(hash=False)  # type -> why its peak is not SMs x rate x clock

    def matches(self, device_name: str) -> bool:
        return any(pattern.fullmatch(device_name) for pattern in self.patterns)


_CELLS = (
    "sms", "boost_mhz", "tensor_mhz", "memory_gb", "bandwidth_gbps", "l2_mb", "fp16_accumulate_tflops",
)  # fmt: skip


@lru_cache(maxsize=1)
def load_rows() -> tuple[TablePart, ...]:
    """All rows of the packaged table, in file order."""
    text = resources.files("tracelens.hardware").joinpath("gpus.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    sources: dict[str, dict[str, Any]] = data["sources"]
    return tuple(_row(entry, sources) for entry in data["gpu"])


def _row(entry: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> TablePart:
    def cell(raw: Mapping[str, Any] | None) -> TableCell | None:
        if raw is None:
            return None
        source = sources[raw["source"]]
        title, url, date, read = (source[name] for name in ("title", "url", "date", "read"))
        return TableCell(float(raw["value"]), title, url, date, read, raw.get("note"))

    def cells(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, TableCell]:
        return {dtype: made for dtype, one in raw.items() if (made := cell(one)) is not None}

    major, minor = entry["compute_capability"].split(".")
    return TablePart(
        key=entry["key"],
        title=entry["title"],
        vendor=entry["vendor"],
        patterns=tuple(re.compile(pattern, re.IGNORECASE) for pattern in entry["match"]),
        compute_capability=(int(major), int(minor)),
        notes=tuple(entry.get("notes", ())),
        **{name: cell(entry.get(name)) for name in _CELLS},
        tensor_flop_per_clock=entry.get("tensor_flop_per_clock"),
        peak_tflops=cells(entry.get("peak_tflops", {})),
        ceiling_tflops=cells(entry.get("ceiling_tflops", {})),
        unknown=dict(entry.get("unknown", {})),
        check=dict(entry.get("check", {})),
    )
