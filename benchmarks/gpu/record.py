"""What has been measured on one GPU, read from its result files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.gpu.stages.shapes import measured_of
from benchmarks.gpu.store import ROOT, Damaged, read_result
from tracelens.errors import InputError
from tracelens.hardware.gpu import Gpu, list_gpus
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement, Measurements

VERIFICATION = "tracelens.gpu-verification/1"
TRACES = ROOT / "sample_traces"
#: The stages whose tables of GEMMs a calibration holds, and that of attention; those of whole layers.
GEMMS = ("gemm_unsure", "gemm_sweep", "curves", "ceilings")
ATTENTION = "attention_sweep"
LAYERS = ("savings", "layer_pairs")
CAPTURED = ("first_step", "captures", "captures-more")


@dataclass(frozen=True)
class Record:
    """The finished results of one GPU by stage. A stage that is missing here is not yet measured."""

    gpu: str  # the folder's name: a key of gpus.toml, "-<n>sms" added for a slice
    results: Mapping[str, Mapping[str, Any]]
    traces: Path = TRACES  # where the captures lie
    verified: Mapping[str, Any] | None = None  # of benchmarks.gpu.verification, where it was written

    @property
    def dry_run(self) -> bool:
        return any(result["dry_run"] for result in self.results.values())

    @property
    def known(self) -> Gpu | None:
        """The table's entry; None for a GPU that it lacks and for a slice: its peaks are not the board's."""
        return next((gpu for gpu in list_gpus() if gpu.name == self.gpu), None)

    def data(self, stage: str) -> Mapping[str, Any] | None:
        result = self.results.get(stage)
        return None if result is None else result["data"]

    @cached_property
    def gemms(self) -> tuple[GemmMeasurement, ...]:
        """Of all stages that time GEMMs one by one."""
        found: list[GemmMeasurement] = []
        for stage in GEMMS:
            if (data := self.data(stage)) is not None:
                found.extend(measured_of(data, GemmMeasurement))
        return tuple(found)

    @cached_property
    def attention(self) -> tuple[AttentionMeasurement, ...]:
        data = self.data(ATTENTION)
        return () if data is None else measured_of(data, AttentionMeasurement)

    @property
    def captures(self) -> dict[str, Mapping[str, Any]]:
        """Rows of the captured traces by the name of their case, which the file's name ends in."""
        rows = [row for stage in CAPTURED for row in (self.data(stage) or {"captures": []})["captures"]]
        return {row["trace"].removeprefix(f"{self.gpu}_").removesuffix(".json.gz"): row for row in rows}

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """Whole layers before and after a change, of both stages that measure them."""
        return [row for stage in LAYERS for row in self.pairs(stage)]

    def pairs(self, stage: str) -> list[Mapping[str, Any]]:
        """Rows of a stage that measures before and after."""
        data = self.data(stage)
        return [] if data is None else list(data["pairs"])

    @property
    def calibrating(self) -> list[str]:
        """Stages that a calibration is made of."""
        return [stage for stage in (*GEMMS, ATTENTION) if stage in self.results]


def read_record(folder: Path, *, traces: Path = TRACES) -> Record:
    """Every finished result under ``results/<gpu>``; ``InputError`` on a damaged one, by its name.

    A result of an earlier version of its stage counts: it is a measurement all the same.
    """
    results = {}
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".refused.json"):
            continue
        try:
            result = read_result(path)
        except Damaged as damaged:
            raise InputError(f"{folder.name}/{damaged}") from damaged
        if result["state"] == "done":
            results[str(result["stage"])] = result
    return Record(folder.name, results, traces, _verified(verification_file(folder)))


def verification_file(folder: Path) -> Path:
    """Beside the folder of the results it is about."""
    return folder.with_name(f"{folder.name}.verification.json")


def _verified(path: Path) -> Mapping[str, Any] | None:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != VERIFICATION:
        raise InputError(f"{path.name} is no {VERIFICATION}")
    return raw


def read_records(results: Path, *, traces: Path = TRACES) -> list[Record]:
    """One record per GPU that has any, by name."""
    folders = sorted(path for path in results.glob("*") if path.is_dir()) if results.is_dir() else []
    return [record for folder in folders if (record := read_record(folder, traces=traces)).results]


def calibration(record: Record) -> Measurements:
    """What predictions on this GPU are fitted to.

    Raises ``InputError`` for a dry run or another measurement of a CPU, and where the sweep is missing.
    """
    where = record.gpu
    if record.dry_run or any(result["data"].get("kind") == "cpu" for result in record.results.values()):
        raise InputError(f"{where}: a dry run measures no GPU: nothing to ship")
    sweep = record.results.get("gemm_sweep") or record.results.get("gemm_unsure")
    if sweep is None:
        raise InputError(f"{where}: no GEMM sweep is measured yet: nothing to ship")
    parts = [record.results[stage] for stage in record.calibrating]
    names = {part["device"].get("name") for part in parts}
    if len(names) > 1:
        raise InputError(
            f"{where}: results of different devices lie in one folder: {sorted(map(str, names))}"
        )
    ceilings = record.data("ceilings") or {}
    return Measurements(
        gpu=where,
        device=_device(sweep["device"]),
        software={key: sweep["software"].get(key) for key in ("torch", "cuda", "driver", "cublas", "cudnn")},
        clocks=_clocks(sweep["clocks"]),
        date=str(sweep["date"]),
        command=str(sweep["command"]),
        method=(
            "CUDA events around batches of calls that were queued before the GPU began; operands of random "
            "numbers rotate beyond three times the L2, which is read through before each batch; medians."
        ),
        gemms=record.gemms,
        attention=record.attention,
        bandwidth_gbps=ceilings.get("bandwidth_gbps"),
        launch_floor_us=ceilings.get("launch_floor_us"),
        call_gap_us=ceilings.get("call_gap_us"),
        notes=tuple(_notes(parts)),
    )


def _device(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The driver's properties under the names of ``Measurements``."""
    names = {
        "name": "name",
        "sms": "sms",
        "compute_capability": "compute_capability",
        "memory_bytes": "total_memory_bytes",
        "l2_bytes": "l2_cache_bytes",
    }
    return {ours: properties.get(theirs) for ours, theirs in names.items()}


def _clocks(clocks: Mapping[str, Any]) -> dict[str, Any]:
    before, after = (clocks.get(when) or {} for when in ("before", "after"))
    return {
        "sm_mhz_before": before.get("sm_mhz"),
        "sm_mhz_after": after.get("sm_mhz"),
        "sm_mhz_max": before.get("sm_mhz_max"),
    }


def _notes(parts: list[Mapping[str, Any]]) -> list[str]:
    """What a reader of the calibration should know: stages measured with other software, shapes left out."""
    notes = []
    versions = {(str(part["software"].get("torch")), str(part["software"].get("driver"))) for part in parts}
    if len(versions) > 1:
        said = ", ".join(f"torch {torch} with driver {driver}" for torch, driver in sorted(versions))
        notes.append(f"measured with different software: {said}")
    for part in parts:
        if left := part["data"].get("unmeasured"):
            notes.append(f"{part['stage']}: {len(left)} shapes could not be measured")
    return notes
