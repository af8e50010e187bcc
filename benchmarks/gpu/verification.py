"""What the record says of the tool, written once into a file of its own beside the ledger.

``results/<gpu>.verification.json`` is what the page shows: a fit may differ in its last digit from one
machine to the next, a page that is made of files does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.attribution_truth import Agreement, compare, read_pair, truth_of
from benchmarks.gpu.ledger import entries, lines
from benchmarks.gpu.record import VERIFICATION, Record, calibration
from benchmarks.gpu.stages.captures import FIRST_NAMES
from benchmarks.gpu.suggested import advised, verdict
from tracelens.errors import InputError, TracelensError
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware.gpu import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.results import Estimate

#: The family of shapes that no one chose; a fit is made without it.
HELD_OUT = "random"
#: Microseconds of one GEMM, with their range.
Predict = Callable[[GemmMeasurement], Estimate]


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are from what was measured."""

    count: int
    median_frac: float
    p90_frac: float
    in_range_frac: float  # measured lies between low and high


def predictor(gpu: Gpu, measured: Measurements | None) -> Predict:
    """The tool's own predictions."""
    return lambda one: (
        predict_gemm(
            one.m,
            one.n,
            one.k,
            gpu=gpu,
            batch=one.batch,
            dtype=one.dtype,
            layout=one.layout,
            measured=measured,
        ).time_us
    )


def gemm_errors(gemms: Sequence[GemmMeasurement], predict: Predict) -> Errors | None:
    """Of predicted times, as shares of the measured ones; GEMMs without a prediction are left out."""
    errors, inside = [], 0
    for one in gemms:
        estimate = predict(one)
        if estimate.mid is None:
            continue
        errors.append(abs(estimate.mid / one.time_us - 1))
        if estimate.low is not None and estimate.high is not None:
            inside += estimate.low <= one.time_us <= estimate.high
    if not errors:
        return None
    errors.sort()
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return Errors(len(errors), statistics.median(errors), p90, inside / len(errors))


def left_out(record: Record) -> dict[str, Errors | None]:
    """GEMMs that no one chose, predicted from the datasheet and from a calibration without them."""
    gpu = record.known
    try:
        full = calibration(record)
    except InputError:
        return {}
    if gpu is None:
        return {}
    rest = replace(full, gemms=tuple(one for one in full.gemms if one.sweep != HELD_OUT))
    drawn = [one for one in record.gemms if one.sweep == HELD_OUT]
    return {
        "gemm_model": gemm_errors(drawn, predictor(gpu, None)),
        "gemm_calibrated": gemm_errors(drawn, predictor(gpu, rest)),
    }


def agreement_of(traces: Path, captured: Mapping[str, Any]) -> Agreement | None:
    """The trace of one capture beside its truth; None where the files are not there."""
    trace = traces / captured["trace"]
    if not trace.is_file() or not truth_of(trace).is_file():
        return None
    told, truth, modules = read_pair(trace)
    return compare(told, truth, modules=modules)


def first_step(record: Record) -> dict[str, Any] | None:
    """Both captured steps as the tool reads them: one compared with the other."""
    import tracelens

    rows = [record.captures.get(name) for name in FIRST_NAMES]
    traces = [record.traces / row["trace"] for row in rows if row is not None]
    if len(traces) < 2 or not all(trace.is_file() for trace in traces):
        return None
    try:
        found = tracelens.compare(*traces)
    except TracelensError as error:
        return {"why": str(error)}
    return {"verdict": found.verdict}


def verification(record: Record) -> dict[str, Any]:
    """Plain JSON: errors of predictions, the ledger's lines, the first step and the attribution of every
    trace."""
    ledger = entries(record)
    together = verdict(advised(ledger))
    found: dict[str, Any] = _rounded(
        {
            "schema": VERIFICATION,
            "gpu": record.gpu,
            "errors": {name: None if one is None else asdict(one) for name, one in left_out(record).items()},
            "ledger": [asdict(line) for line in lines(ledger)],
            "suggestions": None if together is None else asdict(together),
            "first_step": first_step(record),
            "attribution": {
                name: asdict(agreed)
                for name, captured in record.captures.items()
                if (agreed := agreement_of(record.traces, captured)) is not None
            },
        }
    )
    return found


def _rounded(value: Any) -> Any:
    """Five digits after the point say all there is to say of a share."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value
