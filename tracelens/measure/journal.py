"""What was measured so far of a device, one line each: ``bench`` and ``verify`` write it and read it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from tracelens.errors import UsageError
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement
from tracelens.measure.cases import AttentionCase, CaseOutcome, GemmCase
from tracelens.measure.facts import DeviceFacts
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import PairTimes

Case = GemmCase | AttentionCase
Measurement = GemmMeasurement | AttentionMeasurement
Shape = LayerShape | StepShape
#: Of how a case is timed. Raise it when the same case would come out otherwise: nothing else makes a result
#: of the same device and software stale.
METHOD_VERSION = 1


def identity_of(facts: DeviceFacts) -> dict[str, Any]:
    """What has to be the same for a result to hold."""
    return {"device": facts.device, "software": facts.software, "method": METHOD_VERSION}


def beside(path: Path, ending: str = "journal.jsonl") -> Path:
    """The file of another kind that belongs to the measurements in ``path``."""
    return path.with_name(f"{path.name.removesuffix('.gz').removesuffix('.json')}.{ending}")


def key_of(one: Case | Measurement) -> Hashable:
    """What makes two rows the same case: everything but the name of the sweep."""
    match one:
        case GemmCase():
            return one.m, one.n, one.k, one.batch, one.dtype, one.result_dtype, one.layout
        case GemmMeasurement():
            return one.m, one.n, one.k, one.batch, one.dtype, one.out_dtype, one.layout
        case AttentionCase():
            sizes = (one.batch, one.heads, one.key_heads, one.seq_q, one.keys, one.head_dim)
            return *sizes, one.dtype, one.causal, one.direction, one.backend
    sizes = (one.batch, one.heads, one.kv_heads, one.seq_q, one.seq_k, one.head_dim)
    return *sizes, one.dtype, one.causal, one.direction, one.backend


def pair_key(now: Shape, then: Shape) -> str:
    """Every size of both shapes."""
    return f"{now} -> {then}"


@dataclass(slots=True)
class Journal:
    """An append-only file of rows and pairs; what another device, software or method measured is passed over.

    Every line is written through at once and names its run; a line that a kill cut off is ignored. Without
    a path it is kept in memory alone. Cases that were refused are tried again by the next run.
    """

    path: Path | None
    identity: Mapping[str, Any]
    rows: dict[Hashable, Measurement] = field(default_factory=dict)
    pairs: dict[str, PairTimes] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # case, or pair -> reason
    runs: dict[Hashable, str] = field(default_factory=dict)  # key of a row or a pair -> the run that timed it
    dates: dict[str, str] = field(default_factory=dict)  # run -> its date
    run: str = field(default_factory=lambda: uuid4().hex[:12])
    _file: TextIO | None = None

    def open(self, *, fresh: bool = False) -> None:
        """Read what earlier runs left, unless ``fresh``, which makes later runs forget it too."""
        lines = self._read()
        ours = {
            line["run"]: line for line in lines if "run" in line and line.get("identity") == self.identity
        }
        for line in lines if not fresh else ():
            if line.get("run") in ours:
                with suppress(KeyError, TypeError, ValueError):  # somebody wrote into it
                    self._take(line)
        today = datetime.now(UTC).date().isoformat()
        self.dates[self.run] = today
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {self.path.name}: {error.strerror}") from error
        self._file.write("\n")  # ends a line that a kill cut off
        self._write({"identity": dict(self.identity), "date": today, "fresh": fresh})

    def add(self, row: Measurement) -> None:
        """Keep one measured row."""
        self._write({"gemm" if isinstance(row, GemmMeasurement) else "attention": asdict(row)})
        self._keep(key_of(row), row, self.run)

    def add_pair(self, key: str, times: PairTimes) -> None:
        """Keep the turns of two shapes; names of kernels are not kept."""
        turns = {"before_ms": times.before_ms, "after_ms": times.after_ms, "queued": times.queued}
        self._write({"pair": key, **turns})
        self.pairs[key], self.runs[key] = times, self.run

    def refuse(self, outcome: CaseOutcome) -> None:
        """Keep, for this run, that a case cannot be measured, and why."""
        self.refused[str(outcome.case)] = outcome.note or ""

    def knows(self, case: Case) -> bool:
        """Whether ``case`` was measured, or refused by this run."""
        return key_of(case) in self.rows or str(case) in self.refused

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, key: Hashable, row: Measurement, run: str) -> None:
        self.rows.pop(key, None)  # in the order of measuring
        self.rows[key], self.runs[key] = row, run

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"run": self.run, **line}) + "\n")
            self._file.flush()

    def _read(self) -> list[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace") if self.path is not None else ""
        except OSError:
            return []
        lines = []
        for raw in text.splitlines():
            with suppress(ValueError, RecursionError):
                lines.append(json.loads(raw))
        return [line for line in lines if isinstance(line, dict)]

    def _take(self, line: Mapping[str, Any]) -> None:
        run = str(line["run"])
        if "identity" in line:
            self.dates[run] = str(line["date"])
            if line["fresh"]:
                self.rows.clear()
                self.pairs.clear()
        elif "gemm" in line:
            raw = dict(line["gemm"])
            grid = tuple(raw["grid"]) if raw["grid"] is not None else None
            row = GemmMeasurement(**{**raw, "kernels": tuple(raw["kernels"]), "grid": grid})
            self._keep(key_of(row), row, run)
        elif "attention" in line:
            raw = dict(line["attention"])
            call = AttentionMeasurement(**{**raw, "kernels": tuple(raw["kernels"])})
            self._keep(key_of(call), call, run)
        elif "pair" in line:
            times = PairTimes(tuple(line["before_ms"]), tuple(line["after_ms"]), line["queued"])
            self.pairs[line["pair"]], self.runs[line["pair"]] = times, run
