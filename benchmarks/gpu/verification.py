"""Predictions beside measurements: of products that the fit has not seen, and of layers before and after."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.attribution_truth import Agreement, compare, read_pair, truth_of
from benchmarks.gpu.cells import MISSING, Table, number, share
from benchmarks.gpu.record import Record, calibration
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.stages.captures import CAPTURES, MORE_CAPTURES
from benchmarks.gpu.stages.overhead import OVERHEAD
from tracelens.errors import InputError
from tracelens.hardware.gpu import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.numbers import DASH, pct
from tracelens.results import Estimate

#: The family of shapes that no one chose; a fit is made without it.
HELD_OUT = "random"
#: Pairs whose layers differ in their linear products alone: attention and the rest stay as they are.
BY_PRODUCTS = ("ffn", "vocabulary", "tensor_parallel_ffn")
#: A saving below this share of the layer is noise, and its sign says nothing.
SIGNIFICANT_FRAC = 0.01

_NOWHERE = Setting("none", "h200", False, Path("nowhere"), Path("nowhere"))  # items as they are planned

#: m, n, k, batch, dtype, layout -> microseconds
Predict = Callable[[int, int, int, int, str, str], Estimate]


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are from what was measured."""

    count: int
    median_frac: float
    p90_frac: float
    in_range_frac: float  # measured lies between low and high


def predictor(gpu: Gpu, measured: Measurements | None) -> Predict | None:
    """The tool's own prediction of a product; None in a tree that has none yet."""
    try:
        predict_gemm = import_module("tracelens.gemm.predict").predict_gemm
    except ModuleNotFoundError:
        return None

    def predict(m: int, n: int, k: int, batch: int, dtype: str, layout: str) -> Estimate:
        found = predict_gemm(m, n, k, gpu=gpu, batch=batch, dtype=dtype, layout=layout, measured=measured)
        estimate: Estimate = found.time_us
        return estimate

    return predict


def product_errors(gemms: Sequence[GemmMeasurement], predict: Predict) -> Errors | None:
    """Of predicted times, as shares of the measured ones; products without a prediction are left out."""
    errors, inside = [], 0
    for one in gemms:
        estimate = predict(one.m, one.n, one.k, one.batch, one.dtype, one.layout)
        if estimate.mid is None:
            continue
        errors.append(abs(estimate.mid / one.time_us - 1))
        if estimate.low is not None and estimate.high is not None:
            inside += estimate.low <= one.time_us <= estimate.high
    return _errors(errors, inside)


@dataclass(frozen=True, slots=True)
class Saving:
    """A change of a layer: what it was predicted to save and what it saved, as shares of the layer's time."""

    name: str
    predicted_frac: float
    measured_frac: float
    in_range: bool  # measured lies between the lowest and the highest prediction

    @property
    def error_frac(self) -> float:
        return abs(self.predicted_frac - self.measured_frac)


def savings(pairs: Sequence[Mapping[str, Any]], predict: Predict) -> list[Saving]:
    """Savings that the products of a layer explain; pairs with an unpredicted product are left out."""
    found = []
    for row in pairs:
        before, after = (_products_ms(row[side], predict) for side in ("before", "after"))
        if before is None or after is None:
            continue
        whole = row["before"]["ms"]
        saved = whole - row["after"]["ms"]
        low, mid, high = before[0] - after[2], before[1] - after[1], before[2] - after[0]
        found.append(Saving(row["name"], mid / whole, saved / whole, low <= saved <= high))
    return found


def _products_ms(side: Mapping[str, Any], predict: Predict) -> tuple[float, float, float] | None:
    """Low, mid and high of all products of the layer together; None where one of them has no prediction."""
    low = mid = high = 0.0
    for _, _, m, n, k, batch, layout in side["gemms"]:
        one = predict(m, n, k, batch, side["shape"]["dtype"], layout)
        if one.low is None or one.mid is None or one.high is None:
            return None
        low, mid, high = low + one.low / 1e3, mid + one.mid / 1e3, high + one.high / 1e3
    return low, mid, high


def saving_errors(found: Sequence[Saving]) -> Errors | None:
    return _errors([one.error_frac for one in found], sum(one.in_range for one in found))


def right_sign(found: Sequence[Saving]) -> float | None:
    """Of the savings and losses that are no noise, the share that was predicted as what it is."""
    clear = [one for one in found if abs(one.measured_frac) > SIGNIFICANT_FRAC]
    if not clear:
        return None
    return sum((one.measured_frac > 0) == (one.predicted_frac > 0) for one in clear) / len(clear)


def _errors(errors: list[float], inside: int) -> Errors | None:
    if not errors:
        return None
    errors.sort()
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return Errors(len(errors), statistics.median(errors), p90, inside / len(errors))


# --- tables -------------------------------------------------------------------------------------------


def verification_tables(record: Record) -> list[Table]:
    return [_verification(record), _attribution(record), _overhead(record)]


def _verification(record: Record) -> Table:
    checked = verify(record)
    return Table(
        "Predictions",
        "Times of products that no one chose, predicted from the datasheet and from a calibration without "
        "them, as shares of the measured time; and savings of layers whose products alone change, as shares "
        "of the layer's time.",
        ("prediction", "cases", "median error", "90th percentile", "within the stated range", "right sign"),
        (
            ("product, from the datasheet", *_cells(checked.model), DASH),
            ("product, calibrated", *_cells(checked.calibrated), DASH),
            (
                "saving of a layer, calibrated",
                *_cells(saving_errors(checked.savings)),
                share(right_sign(checked.savings)),
            ),
        ),
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of the predictions of one record; None and empty where there is nothing to check."""

    model: Errors | None = None
    calibrated: Errors | None = None
    savings: tuple[Saving, ...] = ()


def verify(record: Record) -> Checked:
    """Predict what was measured, on the GPU it was measured on."""
    gpu = record.known
    full, rest = _fits(record)
    if gpu is None or full is None or rest is None:
        return Checked()
    by_model, by_rest, by_all = (predictor(gpu, measured) for measured in (None, rest, full))
    if by_model is None or by_rest is None or by_all is None:
        return Checked()
    drawn = [one for one in record.gemms if one.sweep == HELD_OUT]
    pairs = [row for row in record.pairs("layer_pairs") if row["rule"] in BY_PRODUCTS]
    return Checked(
        product_errors(drawn, by_model), product_errors(drawn, by_rest), tuple(savings(pairs, by_all))
    )


def _fits(record: Record) -> tuple[Measurements | None, Measurements | None]:
    """The calibration, and the same without the products that predictions are tried on."""
    try:
        full = calibration(record)
    except InputError:
        return None, None
    return full, replace(full, gemms=tuple(one for one in full.gemms if one.sweep != HELD_OUT))


def _cells(found: Errors | None) -> tuple[str, ...]:
    if found is None:
        return (MISSING,) * 4
    return str(found.count), share(found.median_frac), share(found.p90_frac), share(found.in_range_frac)


def _attribution(record: Record) -> Table:
    """Every captured trace beside its truth; in its own words where the truth knows no modules."""
    rows = []
    for item in (*CAPTURES.items(_NOWHERE), *MORE_CAPTURES.items(_NOWHERE)):
        captured = record.captures.get(item.key)
        cells = (MISSING,) * 5 if captured is None else _attributed(record, captured)
        rows.append((item.key, *cells))
    return Table(
        "Attribution",
        "Sample traces against the truth recorded beside each: the same step with the GPU waited for around "
        "every module. Shares of GPU time; `unknown` where the truth does not know either.",
        ("trace", "kernels", "compared", "of the time compared", "right phase", "right module"),
        tuple(rows),
    )


def _attributed(record: Record, captured: Mapping[str, Any]) -> tuple[str, ...]:
    kernels = str(captured["kernels"])
    if record.dry_run:
        return (kernels, *("a CPU has no kernels",) * 4)
    found = agreement_of(record.traces, captured)
    if found is None:
        return (kernels, *("the trace is not here",) * 4)
    shares = (found.matched_frac, found.phase_frac, found.module_frac)
    return (kernels, str(found.kernels), *("unknown" if one is None else pct(one) for one in shares))


def agreement_of(traces: Path, captured: Mapping[str, Any]) -> Agreement | None:
    """The trace of one capture beside its truth; None where the files are not there."""
    trace = traces / captured["trace"]
    if not trace.is_file() or not truth_of(trace).is_file():
        return None
    told, truth, modules = read_pair(trace)
    return compare(told, truth, modules=modules)


def _overhead(record: Record) -> Table:
    data = record.data("overhead")
    models = [] if data is None else data["models"]
    rows = []
    for at, item in enumerate(OVERHEAD.items(_NOWHERE)):
        row = models[at] if at < len(models) else None
        ratios = (None if row is None else row[name]["median"] for name in ("outside", "inside", "profiler"))
        step = None if row is None else row["bare_step_ms"]
        rows.append((item.key, number(step, " ms"), *(number(one) for one in ratios)))
    return Table(
        "Capture overhead",
        "Medians of neighbouring blocks of steps: outside the window against nothing installed, in the "
        "window against plain torch.profiler, and torch.profiler against nothing.",
        ("model", "bare step", "outside the window", "in the window", "torch.profiler"),
        tuple(rows),
    )
