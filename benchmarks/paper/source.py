"""Whose measurements are drawn: the GPU at hand, a dry run, or the paper's own raw data."""

from __future__ import annotations

import csv
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Record, calibration, read_record, read_records
from benchmarks.gpu.store import ROOT
from benchmarks.gpu.tables import PAPER
from benchmarks.paper.figure import PAPER_GPU
from tracelens.errors import InputError
from tracelens.hardware.gpu import Gpu, list_gpus
from tracelens.hardware.measurements import (
    AttentionMeasurement,
    GemmMeasurement,
    Measurements,
    find_measurements,
    read_measurements,
)

RESULTS = ROOT / "benchmarks" / "gpu" / "results"
#: The paper's raw A100 sweeps where they lie beside the checkout; they are no part of the project.
PAPER_DATA = ROOT.parent / "shared" / "paper_data" / "a100_gemm_sweeps.csv"
_A100_SMS = 108
#: Stages whose dates a figure may carry, the most important first.
_DATED = ("gemm_sweep", "curves", "attention_sweep", "layer_pairs")

#: Says whether a product belongs to a figure.
Fits = Callable[[GemmMeasurement], bool]


@dataclass(frozen=True, slots=True)
class Source:
    """What was measured on one GPU."""

    key: str  # of gpus.toml
    title: str
    sms: int | None
    date: str
    dry_run: bool
    basis: str  # measured | dry run on a CPU | published
    gemms: tuple[GemmMeasurement, ...] = ()
    attention: tuple[AttentionMeasurement, ...] = ()
    pairs: tuple[Mapping[str, Any], ...] = ()  # rows of the stage layer_pairs
    software: str = ""
    method: str = ""  # how it was timed, in sentences
    command: str = ""  # that measured it

    @property
    def dtype(self) -> str:
        """bf16 where it was measured, else the type of most products."""
        seen = Counter(one.dtype for one in self.gemms) or Counter(one.dtype for one in self.attention)
        return "bf16" if "bf16" in seen or not seen else seen.most_common(1)[0][0]

    def products(self, sweep: str, fits: Fits) -> Iterator[GemmMeasurement]:
        """Products of the drawn type that ``fits`` says belong to a figure.

        By shape, not by the sweep they were measured for: one product may belong to several. A dry run has
        toy shapes, of which only the sweep's name tells what they stand for.
        """
        dtype = self.dtype
        for one in self.gemms:
            if one.dtype == dtype and (one.sweep == sweep if self.dry_run else fits(one)):
                yield one


@dataclass(frozen=True, slots=True)
class Published:
    """What others measured: raw sweeps where they are at hand, and figures quoted in paper.toml."""

    raw: Source | None
    quoted: Mapping[str, Mapping[str, Any]]

    def by_size(self, key: str) -> dict[int, float]:
        """Throughput by power of two, head dimension, width: whatever the table's names are."""
        return {int(name): float(value) for name, value in self.quoted[key].items() if name != "source"}


def of_measurements(measured: Measurements, pairs: tuple[Mapping[str, Any], ...] = ()) -> Source:
    """A file of ``tracelens bench`` or of the collection. What a CPU measured is a dry run."""
    known = _known(measured.gpu)
    dry = measured.gpu == "cpu"
    sms = measured.device.get("sms")
    return Source(
        key=measured.gpu,
        title="CPU" if dry else known.title if known else str(measured.device.get("name") or measured.gpu),
        sms=int(sms) if sms else known.sms if known else None,
        date=measured.date[:10],
        dry_run=dry,
        basis="dry run on a CPU" if dry else "measured",
        gemms=measured.gemms,
        attention=measured.attention,
        pairs=pairs,
        software=_software(measured.software),
        method=measured.method,
        command=measured.command,
    )


def of_record(record: Record) -> Source:
    """The finished results of a collection on one GPU, or of its dry run, which is no calibration."""
    with suppress(InputError):
        return of_measurements(calibration(record), tuple(record.layers))
    head = next((record.results[name] for name in _DATED if name in record.results), None)
    head = head or next(iter(record.results.values()))
    kinds = {result["data"].get("kind") for result in record.results.values()}
    dry = record.dry_run or "cpu" in kinds
    known, sms = record.known, head["device"].get("sms")
    title = known.title if known else str(head["device"].get("name") or record.gpu)
    return Source(
        key=record.gpu,
        title="CPU" if dry else title,
        sms=int(sms) if sms else known.sms if known else None,
        date=str(head["date"])[:10],
        dry_run=dry,
        basis="dry run on a CPU" if dry else "measured",
        gemms=record.gemms,
        attention=record.attention,
        pairs=tuple(record.layers),
        software=_software(head["software"]),
    )


def find_sources(measurements: Path | None, results: Path | None) -> list[Source]:
    """One per GPU: of the file or the results that are named, else of every GPU that has measurements here.

    Layers before and after a change are not in a calibration; they come from the collection's results.
    Raises ``InputError``.
    """
    if measurements is not None:
        return [of_measurements(read_measurements(measurements))]
    if results is not None:
        if found := [of_record(record) for record in read_records(results)]:
            return found
        raise InputError(f"{results.name} holds no finished result of benchmarks.gpu.collect")
    return [
        of_measurements(measured, _pairs(gpu.name))
        for gpu in list_gpus()
        if (measured := find_measurements(gpu.name)) is not None
    ]


def read_published(raw: Path | None) -> Published:
    """The quoted figures, and the raw sweeps of ``raw`` if there is such a file."""
    quoted = tomllib.loads(PAPER.read_text(encoding="utf-8"))
    return Published(None if raw is None else _raw(raw), quoted)


def raw_sweeps(path: Path) -> list[GemmMeasurement]:
    """Columns sweep, gpu, batch, m, reduction (K), n_out (N), tflops; times follow from the throughput.

    The authors' ``torch.mm`` and ``torch.bmm`` of row-major operands are cuBLAS's NN
    (EleutherAI/cookbook, benchmarks/sizing/utils.py).
    """
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            m, n, k, batch = (int(row[name]) for name in ("m", "n_out", "reduction", "batch"))
            time_us = 2.0 * m * n * k * batch / float(row["tflops"]) / 1e6
            found.append(
                GemmMeasurement(row["sweep"], m, n, k, batch, "fp16", "fp16", "NN", time_us, None, ())
            )
    return found


def _raw(path: Path) -> Source:
    try:
        found = raw_sweeps(path)
    except (OSError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path.name} cannot be read as the paper's raw sweeps: {error!r}") from error
    if not found:
        raise InputError(f"{path.name} holds no sweep")
    return Source(
        key="a100", title=PAPER_GPU, sms=_A100_SMS, date="", dry_run=False, basis="published",
        gemms=tuple(found), software="torch 1.13.1, fp16",
    )  # fmt: skip


def _pairs(gpu: str) -> tuple[Mapping[str, Any], ...]:
    folder = RESULTS / gpu
    return tuple(read_record(folder).layers) if folder.is_dir() else ()


def _known(key: str) -> Gpu | None:
    return next((gpu for gpu in list_gpus() if gpu.name == key), None)


def _software(software: Mapping[str, Any]) -> str:
    names = {"torch": "torch", "cuda": "CUDA", "driver": "driver", "cublas": "cuBLAS"}
    return ", ".join(f"{shown} {software[key]}" for key, shown in names.items() if software.get(key))
