"""Predictions beside measurements: of products that the fit has not seen, and of layers before and after."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from benchmarks.gpu.cells import MISSING, Table, share
from benchmarks.gpu.record import Record, calibration
from tracelens.errors import InputError
from tracelens.hardware.gpu import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.results import Estimate

#: The family of shapes that no one chose; a fit is made without it.
HELD_OUT = "random"
#: Pairs whose layers differ in their linear products alone: attention and the rest stay as they are.
_BY_PRODUCTS = ("ffn", "tensor_parallel_ffn")
#: A saving below this share of the layer is noise, and its sign says nothing.
_SIGNIFICANT_FRAC = 0.01

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


def saving_errors(pairs: Sequence[Mapping[str, Any]], predict: Predict) -> tuple[Errors | None, float | None]:
    """Of the saving that the products of a layer explain, as a share of the layer's time before; and the
    share of the significant savings whose sign is right."""
    errors, inside, right, significant = [], 0, 0, 0
    for row in pairs:
        sides = [_products_ms(row[side], predict) for side in ("before", "after")]
        before, after = (None if side is None else side.mid for side in sides)
        if sides[0] is None or sides[1] is None or before is None or after is None:
            continue
        saved = (row["before"]["ms"] - row["after"]["ms"]) / row["before"]["ms"]
        predicted = (before - after) / row["before"]["ms"]
        errors.append(abs(predicted - saved))
        inside += _within(saved * row["before"]["ms"], *sides)
        if abs(saved) > _SIGNIFICANT_FRAC:
            significant += 1
            right += (saved > 0) == (predicted > 0)
    return _errors(errors, inside), right / significant if significant else None


def _products_ms(side: Mapping[str, Any], predict: Predict) -> Estimate | None:
    """All products of the layer together; None where one of them has no prediction."""
    low = mid = high = 0.0
    for _, _, m, n, k, batch, layout in side["gemms"]:
        one = predict(m, n, k, batch, side["shape"]["dtype"], layout)
        if one.low is None or one.mid is None or one.high is None:
            return None
        low, mid, high = low + one.low / 1e3, mid + one.mid / 1e3, high + one.high / 1e3
    return Estimate(low, mid, high, "model")


def _within(saved_ms: float, before: Estimate | None, after: Estimate | None) -> bool:
    if before is None or after is None:
        return False
    ends = (before.low, before.high, after.low, after.high)
    if any(end is None for end in ends):
        return False
    least, most = (before.low or 0) - (after.high or 0), (before.high or 0) - (after.low or 0)
    return least <= saved_ms <= most


def _errors(errors: list[float], inside: int) -> Errors | None:
    if not errors:
        return None
    errors.sort()
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return Errors(len(errors), statistics.median(errors), p90, inside / len(errors))


# --- tables -------------------------------------------------------------------------------------------


def verification_tables(record: Record) -> list[Table]:
    return [_verification(record)]


def _verification(record: Record) -> Table:
    model = held = None
    savings: tuple[Errors | None, float | None] = (None, None)
    random = [one for one in record.gemms if one.sweep == HELD_OUT]
    if record.known is not None and not record.dry_run:
        full, rest = _fits(record)
        if (predict := predictor(record.known, None)) is not None:
            model = product_errors(random, predict)
        if rest is not None and (predict := predictor(record.known, rest)) is not None:
            held = product_errors(random, predict)
        if full is not None and (predict := predictor(record.known, full)) is not None:
            pairs = [row for row in record.pairs("layer_pairs") if row["rule"] in _BY_PRODUCTS]
            savings = saving_errors(pairs, predict)
    return Table(
        "Predictions",
        "Times of products that no one chose, predicted from the datasheet and from a calibration without "
        "them, as shares of the measured time; and savings of layers whose products alone change, as shares "
        "of the layer's time.",
        ("prediction", "cases", "median error", "90th percentile", "within the stated range", "right sign"),
        (
            ("product, from the datasheet", *_cells(model), "–"),
            ("product, calibrated", *_cells(held), "–"),
            ("saving of a layer, calibrated", *_cells(savings[0]), share(savings[1])),
        ),
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
