"""What was measured so far, one line per case beside the target file: nothing is lost, nothing done twice."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tracelens.errors import UsageError
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement
from tracelens.measure.cases import AttentionCase, CaseOutcome, GemmCase

_SCHEMA = "tracelens.bench.progress/1"


def key_of(one: GemmCase | AttentionCase | GemmMeasurement | AttentionMeasurement) -> Hashable:
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


@dataclass(slots=True)
class Journal:
    """An append-only file of rows and refusals, for one device with one set of software.

    Every line is written through at once; a line that a kill cut off is ignored when read again.
    """

    path: Path
    identity: Mapping[str, Any]
    gemms: dict[Hashable, GemmMeasurement] = field(default_factory=dict)
    attention: dict[Hashable, AttentionMeasurement] = field(default_factory=dict)
    refused: dict[Hashable, tuple[str, str]] = field(default_factory=dict)  # (case, reason)
    resumed: int = 0  # cases known from an earlier run
    _file: TextIO | None = None

    def open(self, *, fresh: bool) -> None:
        """Read what an earlier run left, unless ``fresh`` or of another device or software, and go on."""
        kept = [] if fresh else self._read()
        for line in kept:
            self._take(line)
        self.resumed = len(self.gemms) + len(self.attention) + len(self.refused)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Written anew: a cut-off line in the middle would hide what follows it.
            self._file = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {self.path.name}: {error.strerror}") from error
        self._write({"schema": _SCHEMA, "identity": dict(self.identity)})
        for line in kept:
            self._write(line)

    def add(self, row: GemmMeasurement | AttentionMeasurement) -> None:
        """Keep one measured row."""
        self._write({"gemm" if isinstance(row, GemmMeasurement) else "attention": asdict(row)})
        if isinstance(row, GemmMeasurement):
            self.gemms[key_of(row)] = row
        else:
            self.attention[key_of(row)] = row

    def refuse(self, outcome: CaseOutcome) -> None:
        """Keep that a case cannot be measured, and why."""
        case, why = str(outcome.case), outcome.note or ""
        self.refused[case] = (case, why)
        self._write({"refused": case, "why": why})

    def knows(self, case: GemmCase | AttentionCase) -> bool:
        """Whether ``case`` was measured or refused before."""
        if str(case) in self.refused:
            return True
        return key_of(case) in (self.gemms if isinstance(case, GemmCase) else self.attention)

    def close(self, *, finished: bool) -> None:
        """Let go of the file; when everything was measured it is not needed any more."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if finished:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(finished=False)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _read(self) -> list[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        lines = []
        for raw in text.splitlines():
            try:
                line = json.loads(raw)
            except ValueError:
                break  # cut off by a kill; nothing whole can follow
            lines.append(line)
        if not lines or lines[0].get("schema") != _SCHEMA or lines[0].get("identity") != dict(self.identity):
            return []
        return lines[1:]

    def _take(self, line: Mapping[str, Any]) -> None:
        if "gemm" in line:
            raw = dict(line["gemm"])
            raw["kernels"] = tuple(raw["kernels"])
            raw["grid"] = tuple(raw["grid"]) if raw["grid"] is not None else None
            row = GemmMeasurement(**raw)
            self.gemms[key_of(row)] = row
        elif "attention" in line:
            raw = dict(line["attention"])
            call = AttentionMeasurement(**{**raw, "kernels": tuple(raw["kernels"])})
            self.attention[key_of(call)] = call
        elif "refused" in line:
            self.refused[line["refused"]] = (line["refused"], line["why"])
