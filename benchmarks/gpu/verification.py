"""Predictions and attribution beside measurements, written once into a file of their own.

``results/<gpu>.verification.json`` is what the page shows: a fit may differ in its last digit from one
machine to the next, a page that is made of files does not.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.attribution_truth import Agreement, compare, read_pair, truth_of
from benchmarks.gpu.record import VERIFICATION, Record, calibration
from benchmarks.gpu.suggested import Suggested, judged, suggested, verdict
from tracelens.errors import InputError
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.attention import predict_attention
from tracelens.hardware.gpu import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements, of_kernels
from tracelens.results import Estimate

#: The family of shapes that no one chose; a fit is made without it.
HELD_OUT = "random"
#: Changes that products and fused attention explain: norms, activations and the rest stay as they are.
EXPLAINED = ("heads", "ffn", "vocabulary", "kv_heads", "tensor_parallel_ffn")
#: A saving below this share of the layer is noise, and its sign says nothing.
SIGNIFICANT_FRAC = 0.01


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a layer."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: str


@dataclass(frozen=True, slots=True)
class Attention:
    """One fused attention call of a layer."""

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    head_dim: int
    dtype: str
    causal: bool
    direction: str


#: Microseconds of one product or attention call, with their range.
Predict = Callable[[Product | Attention], Estimate]


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are from what was measured."""

    count: int
    median_frac: float
    p90_frac: float
    in_range_frac: float  # measured lies between low and high


def predictor(gpu: Gpu, measured: Measurements | None) -> Predict:
    """The tool's own predictions."""

    def predict(one: Product | Attention) -> Estimate:
        if isinstance(one, Product):
            return predict_gemm(
                one.m, one.n, one.k, gpu=gpu, batch=one.batch, dtype=one.dtype, layout=one.layout,
                measured=measured,
            ).time_us  # fmt: skip
        return predict_attention(
            batch=one.batch, heads=one.heads, kv_heads=one.kv_heads, seq_q=one.sequence, seq_k=one.sequence,
            head_dim=one.head_dim, causal=one.causal, direction=one.direction, gpu=gpu, dtype=one.dtype,
            backend="flash", measured=measured,
        ).time_us  # fmt: skip

    return predict


def product_errors(gemms: Sequence[GemmMeasurement], predict: Predict) -> Errors | None:
    """Of predicted times, as shares of the measured ones; products without a prediction are left out."""
    errors, inside = [], 0
    for one in gemms:
        estimate = predict(Product(one.m, one.n, one.k, one.batch, one.dtype, one.layout))
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
    """What products and attention are predicted to save; pairs with an unpredicted one are left out."""
    found = []
    for row in pairs:
        before, after = (Counter(parts(row[side])) for side in ("before", "after"))
        # what both do alike takes the same time, and must not widen the range
        gone, come = _total_ms(before - after, predict), _total_ms(after - before, predict)
        if gone is None or come is None:
            continue
        (low, mid, high), (less, middle, more) = gone, come
        whole = row["before"]["ms"]
        saved = whole - row["after"]["ms"]
        in_range = low - more <= saved <= high - less
        found.append(Saving(row["name"], (mid - middle) / whole, saved / whole, in_range))
    return found


def parts(side: Mapping[str, Any]) -> Iterator[Product | Attention]:
    """Every product of the layer, and its attention where that is one kernel."""
    layer = side["shape"]
    for _, _, m, n, k, batch, layout in side["gemms"]:
        yield Product(m, n, k, batch, layer["dtype"], layout)
    if layer["attention"] == "flash" and not layer["vocab"]:
        t = layer["tensor_parallel"]
        for direction in ("forward", "backward"):
            yield Attention(
                layer["micro_batch"], layer["heads"] // t, layer["kv_heads"] // t, layer["sequence"],
                layer["head_dim"], layer["dtype"], layer["causal"], direction,
            )  # fmt: skip


def explained(pairs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Pairs in which nothing else changes: not those with softmax as a kernel of its own."""
    return [
        row
        for row in pairs
        if row["rule"] in EXPLAINED
        and (row["before"]["shape"]["attention"] == "flash" or row["before"]["shape"]["vocab"])
    ]


def _total_ms(
    calls: Mapping[Product | Attention, int], predict: Predict
) -> tuple[float, float, float] | None:
    """Low, mid and high of all calls; None where one of them has no prediction."""
    low = mid = high = 0.0
    for one, times in calls.items():
        found = predict(one)
        if found.low is None or found.mid is None or found.high is None:
            return None
        low += times * found.low / 1e3
        mid += times * found.mid / 1e3
        high += times * found.high / 1e3
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


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of the predictions of one record; None and empty where there is nothing to check."""

    model: Errors | None = None
    calibrated: Errors | None = None
    savings: tuple[Saving, ...] = ()
    suggested: tuple[Suggested, ...] = ()


def verify(record: Record) -> Checked:
    """Predict what was measured, on the GPU it was measured on."""
    gpu = record.known
    full, rest = _fits(record)
    if gpu is None or full is None or rest is None:
        return Checked()
    drawn = [one for one in record.gemms if one.sweep == HELD_OUT]
    return Checked(
        product_errors(drawn, predictor(gpu, None)),
        product_errors(drawn, predictor(gpu, rest)),
        tuple(savings(explained(record.pairs("layer_pairs")), predictor(gpu, full))),
        tuple(suggested(judged(record.pairs("layer_pairs")), gpu=gpu, measured=of_kernels(full))),
    )


def _fits(record: Record) -> tuple[Measurements | None, Measurements | None]:
    """The calibration, and the same without the products that predictions are tried on."""
    try:
        full = calibration(record)
    except InputError:
        return None, None
    return full, replace(full, gemms=tuple(one for one in full.gemms if one.sweep != HELD_OUT))


def agreement_of(traces: Path, captured: Mapping[str, Any]) -> Agreement | None:
    """The trace of one capture beside its truth; None where the files are not there."""
    trace = traces / captured["trace"]
    if not trace.is_file() or not truth_of(trace).is_file():
        return None
    told, truth, modules = read_pair(trace)
    return compare(told, truth, modules=modules)


# --- the file -----------------------------------------------------------------------------------------


def verification(record: Record) -> dict[str, Any]:
    """Plain JSON: errors of predictions, every predicted saving, and the attribution of every trace."""
    checked = verify(record)
    errors = {
        "product_model": checked.model,
        "product_calibrated": checked.calibrated,
        "saving_calibrated": saving_errors(checked.savings),
    }
    together = verdict(checked.suggested)
    found: dict[str, Any] = _rounded(
        {
            "schema": VERIFICATION,
            "gpu": record.gpu,
            "errors": {name: None if one is None else asdict(one) for name, one in errors.items()},
            "right_sign_frac": right_sign(checked.savings),
            "savings": [asdict(one) for one in checked.savings],
            "suggestions": None if together is None else asdict(together),
            "suggested": [asdict(one) for one in checked.suggested],
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
