"""Every prediction that was written down before its measurement, and what was measured: hit, miss, bias."""

from __future__ import annotations

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from benchmarks.gpu.pairs import ADVISED_RULES
from benchmarks.gpu.predicted import name_of
from benchmarks.gpu.record import ATTENTION, GEMMS, LAYERS, Record
from benchmarks.gpu.stages.captures import PAIR
from benchmarks.gpu.stages.shapes import measured_of
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement

#: Microseconds of a call, or the share of its time that a change saves.
Kind = Literal["gemm", "attention", "saving"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One prediction and its measurement."""

    stage: str
    date: str
    kind: Kind
    name: str
    by: str  # what the prediction was calibrated by
    low: float
    mid: float
    high: float
    measured: float
    advised: bool = False  # a saving that `tracelens suggest` could promise

    @property
    def hit(self) -> bool:
        """Is what was measured within the stated range?"""
        return self.low <= self.measured <= self.high

    @property
    def error(self) -> float:
        """Measured less predicted: of a time as a share of the prediction, of a saving in shares."""
        return self.measured - self.mid if self.kind == "saving" else self.measured / self.mid - 1


@dataclass(frozen=True, slots=True)
class Line:
    """The predictions of one kind and stage together. ``bias_frac`` is the median of their signed errors."""

    kind: Kind
    stage: str
    by: str
    predictions: int
    hits: int
    misses: int
    bias_frac: float
    median_error_frac: float


def entries(record: Record) -> list[Entry]:
    """All of a record; what was measured without a prediction before it is no entry."""
    found: list[Entry] = []
    for stage in GEMMS:
        found += _calls(record, stage, "gemm", GemmMeasurement)
    found += _calls(record, ATTENTION, "attention", AttentionMeasurement)
    for stage in (*LAYERS, "full_steps"):
        found += _savings(record, stage)
    return [*found, *_first(record)]


def _predicted(record: Record, stage: str) -> dict[str, tuple[str, float, float, float]]:
    """Name of a call or pair -> what the prediction was calibrated by, and its three numbers."""
    found: dict[str, tuple[str, float, float, float]] = {}
    for one in (record.results.get(stage) or {}).get("predictions", {}).values():
        for name, values in one.get("values", {}).items():
            if values is not None:
                low, mid, high = values
                found[name] = (str(one["by"]), low, mid, high)
    return found


def _calls(record: Record, stage: str, kind: Kind, rows: type[Any]) -> Iterator[Entry]:
    said, data = _predicted(record, stage), record.data(stage)
    for one in measured_of(data, rows) if data is not None and said else ():
        if (told := said.get(name_of(one))) is not None:
            yield Entry(stage, _date(record, stage), kind, name_of(one), *told, one.time_us)


def _savings(record: Record, stage: str) -> Iterator[Entry]:
    said = _predicted(record, stage)
    for row in record.pairs(stage):
        if (told := said.get(row["name"])) is not None:
            after, before = row["after"]["us_per_token"], row["before"]["us_per_token"]
            yield Entry(
                stage, _date(record, stage), "saving", row["name"], *told, 1 - after / before,
                _advised(row),
            )  # fmt: skip


def _first(record: Record) -> Iterator[Entry]:
    said = _predicted(record, "first_step")
    compared = (record.data("first_step") or {}).get("compared")
    if compared and (told := said.get(PAIR)) is not None:
        yield Entry(
            "first_step", _date(record, "first_step"), "saving", PAIR, *told,
            compared["saving_frac"],
        )  # fmt: skip


def _advised(row: Mapping[str, Any]) -> bool:
    shape = row["before"]["shape"]
    return row.get("rule") in ADVISED_RULES and (shape["attention"] == "flash" or bool(shape["vocab"]))


def _date(record: Record, stage: str) -> str:
    return str(record.results[stage]["date"])


def lines(found: Iterable[Entry]) -> list[Line]:
    """One line for each kind, stage and calibration, in the order of the entries."""
    groups: dict[tuple[Kind, str, str], list[Entry]] = defaultdict(list)
    for one in found:
        groups[(one.kind, one.stage, one.by)].append(one)
    result = []
    for (kind, stage, by), part in groups.items():
        hits, errors = sum(one.hit for one in part), [one.error for one in part]
        result.append(
            Line(kind, stage, by, len(part), hits, len(part) - hits, statistics.median(errors),
                 statistics.median(map(abs, errors)))
        )  # fmt: skip
    return result


def as_csv(found: Sequence[Entry]) -> str:
    """The ledger's file: one line for each prediction."""
    text = io.StringIO()
    names = [one.name for one in fields(Entry) if one.name != "advised"]
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*names, "hit", "error"])
    for one in found:
        values = asdict(one)
        cells = [f"{values[name]:.6g}" if isinstance(values[name], float) else values[name] for name in names]
        table.writerow([*cells, "hit" if one.hit else "miss", f"{one.error:.4f}"])
    return text.getvalue()
