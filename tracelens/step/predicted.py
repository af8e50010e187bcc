"""How the time of one product moves with its shape, with the range of that.

Where nothing is predicted the answer is a sentence that says why.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from tracelens.config.model_config import ModelConfig
from tracelens.errors import InputError
from tracelens.gemm import bytes_per_element
from tracelens.gemm.gain import ratio_error
from tracelens.gemm.ladder import LadderStep, alignment_ladder
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.gemm.predict.rates import most_l2_mb, peak_of
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Basis, GemmRow
from tracelens.step.alignment import GRID_BYTES, grid_elements, loads_16_bytes
from tracelens.step.stalls import call_us_of
from tracelens.step.words import simulation as words
from tracelens.step.work import Product, Work

#: Fewer aligned rows than this say nothing about how this trace runs against its predictions.
_FEW = 2
#: Errors of the ratio of two times (``gemm.gain.RATIO_ERROR``): of shapes that differ by a half, and of ones
#: that are as far apart as can be.
NEAR_ERROR = ratio_error(math.log(1.5))
FAR_ERROR = ratio_error(math.inf)
#: The new shape against other shapes of the trace.
_ANCHOR_ERROR = NEAR_ERROR
#: A measured time this far below the datasheet's floor speaks against the floor (another GPU, less work).
BELOW_FLOOR = 0.98
#: Error (ln) of the ratio of two times of one shape, in 16 bits and in 8 or 4: nine in ten of the linears
#: left out of the fits are within 0.10 to 0.22, by GPU and type (benchmarks/low_precision.py).
TYPE_ERROR = 0.2
SIXTEEN_BITS = frozenset({"bf16", "fp16"})
#: Types whose operands are cast first -> what their sizes are multiples of: torch._scaled_mm's N and K of 16;
#: TransformerEngine fp8_blockwise_scaling.rst; pytorch/torchtitan nvfp4.md.
LOW_PRECISION: Mapping[str, int] = {"fp8": 16, "fp8-block": 128, "nvfp4": 128}
_Key = TypeVar("_Key")
#: Linear layers that recipes of low precision take.
CONVERTED = frozenset({"attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down", "moe.experts"})
_LAYOUTS = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}
ErrorKind = Literal["same", "anchored", "ratio", "attention"]


@dataclass(frozen=True, slots=True)
class Scaled:
    """New time over measured time, and where that comes from."""

    low: float
    mid: float
    high: float
    basis: Basis
    shape_now: str
    shape_then: str
    how: str
    kind: ErrorKind  # errors of one kind go together


@dataclass(frozen=True, slots=True)
class Anchors:
    """Measured over predicted time of this trace's aligned products: per type, the median and its spread.

    ``pace``: that of linear layers of all types, which shows a GPU that runs slower throughout.
    ``narrow``: that of its products below 16 bytes, apart for odd sizes, which have kernels of their own.
    ``compiled``: torch.compile made the layers' kernels, so it pads a product that leaves the grid
    (Inductor's pad_mm, which tries both).
    """

    by_dtype: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # factor, log half-width
    fastest_tflops: Mapping[str, float] = field(default_factory=dict)  # per type, of one of them
    narrow: Mapping[tuple[str, bool], tuple[float, float]] = field(default_factory=dict)
    pace: tuple[float, float] | None = None
    compiled: bool = False

    def of_type(self, dtype: str) -> tuple[float, float] | None:
        """Those of the type, or of all; None where too few of either are predicted."""
        return self.by_dtype.get(dtype, self.pace)

    @property
    def slower(self) -> float:
        """How much longer other kernels take than predicted, as this trace's GEMMs do; 1 at least.

        Those that are faster have better kernels, which says nothing of others.
        """
        return max(1.0, self.pace[0]) if self.pace is not None else 1.0

    @classmethod
    def of(cls, work: Work, now: ModelConfig, *, gpu: Gpu, measured: Measurements | None) -> Anchors:
        """Aligned = every operand on 16 bytes or more, so the cost of alignment plays no part."""
        ratios: dict[str, list[float]] = {}
        narrow: dict[tuple[str, bool], list[float]] = {}
        fastest: dict[str, float] = {}
        linear: list[float] = []
        for product in work.products:
            sizes = product.sizes(now)
            row = product.row
            if sizes is None or product.weight != 1.0 or row.calls_per_step <= 0 or row.time_ms_per_step <= 0:
                continue
            found = predict_row(sizes, row, gpu=gpu, measured=measured)
            if isinstance(found, str) or not found.time_us.mid or found.bound == "latency":
                continue
            pace = call_us_of(row) / found.time_us.mid
            if _class(found) < GRID_BYTES:
                if not loads_16_bytes(row):
                    narrow.setdefault(_narrow(found, row), []).append(pace)
                continue
            ratios.setdefault(_math(row), []).append(pace)
            linear += [pace] if sizes[3] == 1 else []
            reached = _operations(found) / (call_us_of(row) * 1e6)
            fastest[_math(row)] = max(reached, fastest.get(_math(row), 0.0))
        return cls(_medians(ratios), fastest, _medians(narrow), _medians({"": linear}).get(""))


def scaled_product(
    product: Product,
    now: ModelConfig,
    then: ModelConfig,
    *,
    anchors: Anchors,
    gpu: Gpu,
    measured: Measurements | None,
) -> Scaled | str:
    """The factor on a product's time, or why there is none.

    The measured time moves as the prediction moves. A product off the 16-byte grid is the exception when
    it comes onto the grid: there the ratio would rest on what misalignment costs at large, while the trace
    shows what its own aligned products take over their predictions. So is one that leaves the grid: it gets
    another kernel, of which the measured time of this one says little.
    """
    before, after = product.sizes(now), product.sizes(then)
    row = product.row
    if before is None or after is None:
        return words.CHANGE_UNKNOWN
    dtype = dtype_then(row, now, then)
    same_type = dtype == _math(row)
    texts = _text(before), _text(after) + ("" if same_type else f" {dtype}")
    if before == after and same_type:
        return Scaled(1.0, 1.0, 1.0, "model", *texts, words.SAME_SHAPE, "same")
    if row.calls_per_step <= 0 or row.time_ms_per_step <= 0:
        return words.NO_TIME
    call_us = call_us_of(row)
    old = predict_row(before, row, gpu=gpu, measured=measured)
    new = predict_row(after, row, gpu=gpu, measured=measured, dtype=dtype)
    if anchors.compiled and same_type and _leaves_grid(old, new):
        new = predict_row(_on_grid(after, row), row, gpu=gpu, measured=measured)
    if isinstance(old, str) or isinstance(new, str):
        return old if isinstance(old, str) else str(new)
    if not same_type and (off := _off_block(new, dtype)):
        return off
    if new.time_us.mid is None:
        return new.unknown or words.THEN_UNPREDICTED
    floor = held_us(old, new, row, gpu)
    onto_grid = same_type and _class(old) < GRID_BYTES <= _class(new)
    if onto_grid and not loads_16_bytes(row):
        seen = max(gpu.ceiling(_math(row)) or math.inf, anchors.fastest_tflops.get(_math(row), 0.0))
        return anchored(new, row, anchors.of_type(_math(row)), texts, floor, seen)
    if onto_grid and loads_16_bytes(row):
        # Its kernel loads 16 bytes all the same (the storage is padded): compare like with like.
        old = predict_row(_on_grid(before, row), row, gpu=gpu, measured=measured)
    if isinstance(old, str) or old.time_us.mid is None:
        return old if isinstance(old, str) else old.unknown or words.NOW_UNPREDICTED
    if same_type and _leaves_grid(old, new) and new.alignment_frac != old.alignment_frac:
        step = alignment_ladder(gpu=gpu, dtype=dtype, measured=measured).step_of(new.alignment)
        return _left_grid(old, new, row, anchors.narrow.get(_narrow(new, row)), step, texts, floor)
    reach, types = _error(before, after), {dtype, _math(row)}
    if same_type or types == SIXTEEN_BITS:  # of equal rates and bytes
        faster, slower = _ladder_error(old, new, row, gpu=gpu, measured=measured)
    else:
        reach, (faster, slower) = type_error(reach, types, old, new)
    return moved(old, new, call_us, (reach + faster, reach + slower), texts, floor)


def moved(
    old: Prediction, new: Prediction, call_us: float, widths: tuple[float, float],
    texts: tuple[str, str], floor_us: float,
) -> Scaled:  # fmt: skip
    """The measured time moves as the prediction moves; both have a mid. ``widths``: faster, slower (logs)."""
    assert old.time_us.mid and new.time_us.mid
    then_us = call_us * new.time_us.mid / old.time_us.mid
    how = words.as_predictions_move(call_us, new.time_us.mid, old.time_us.mid, then_us)
    return bounded(then_us, call_us, widths, new.time_us.basis, texts, how, floor_us, "ratio")


def type_error(
    reach: float, types: set[str], old: Prediction, new: Prediction
) -> tuple[float, tuple[float, float]]:
    """Error of the ratio of two types, and beside it what both predictions leave open (logs)."""
    if len(types & SIXTEEN_BITS) == len(types & LOW_PRECISION.keys()) == 1:
        return max(reach, TYPE_ERROR), (0.0, 0.0)
    return max(reach, FAR_ERROR), _spread_of(old, new)


def _off_block(new: Prediction, dtype: str) -> str:
    """Why a type of low precision does not take these sizes; "" where it does."""
    block = LOW_PRECISION.get(dtype, 1)
    sizes = (new.m, new.n, new.k) if block > 16 else (new.n, new.k)
    if not any(size % block for size in sizes):
        return ""
    return words.needs_blocks(dtype, block)


def anchored(
    new: Prediction,
    row: GemmRow,
    anchor: tuple[float, float] | None,
    texts: tuple[str, str],
    floor_us: float,
    seen_tflops: float,
) -> Scaled | str:
    """The new shape by its own prediction, as this trace's aligned products run against theirs.

    ``seen_tflops`` is the fastest product known, of this trace or of anyone on such a GPU: the middle of the
    range is no faster, for a large product's prediction is already near it where a small one's is not.
    """
    call_us, time = call_us_of(row), new.time_us
    if time.mid is None or time.low is None or time.high is None:
        return new.unknown or words.THEN_UNPREDICTED
    if anchor is None:  # no aligned product to compare with: the prediction as it stands, with its range
        how = words.as_predicted(time.mid, call_us)
        widths = math.log(time.mid / max(time.low, 1e-9)), math.log(time.high / time.mid)
        return bounded(time.mid, call_us, widths, time.basis, texts, how, floor_us, "anchored")
    factor, width = anchor
    then_us = time.mid * factor
    how = words.as_aligned_run(time.mid, factor, then_us, call_us)
    width = max(width, _ANCHOR_ERROR)
    least_us = _operations(new) / (seen_tflops * 1e6)
    if then_us >= least_us:
        return bounded(then_us, call_us, (width, width), time.basis, texts, how, floor_us, "anchored")
    how = words.held_to_best(how, seen_tflops, least_us)
    # the ends stay where the anchor has them
    widths = width + math.log(least_us / then_us), max(0.0, width - math.log(least_us / then_us))
    return bounded(least_us, call_us, widths, time.basis, texts, how, floor_us, "anchored")


def _left_grid(
    old: Prediction,
    new: Prediction,
    row: GemmRow,
    narrow: tuple[float, float] | None,
    step: LadderStep,
    texts: tuple[str, str],
    floor_us: float,
) -> Scaled | str:
    """The new shape by its own prediction, as this trace's own misaligned products run against theirs.

    Where there are none, its pace (measured over predicted, on the grid) is carried over as far as
    predictions of aligned products vary: a GPU that runs them faster or slower does so with other kernels,
    too, but what is beyond that is the doing of this kernel. The range reaches from none of the pace to all
    of it. An H100 of 2024 ran aligned products at half of today's rate and misaligned ones as today (see
    docs/rules/TL104.md).
    """
    call_us, time_us, old_us = call_us_of(row), new.time_us.mid, old.time_us.mid
    if time_us is None or not old_us:
        return words.THEN_UNPREDICTED
    pace = call_us / old_us
    if narrow is not None:
        factor, width = narrow
        faster = slower = max(width, _ANCHOR_ERROR)
        whose = words.TRACE_MISALIGNED
    else:
        rates = old.chosen.rates if old.chosen is not None else None
        least, most = (rates.low_frac, rates.high_frac) if rates is not None else (1.0, 1.0)
        factor = min(max(pace, least), most)
        frac = new.alignment_frac or 1.0
        low, high = min(step.low or frac, frac), max(step.high or frac, frac)
        faster = NEAR_ERROR + math.log(factor / min(pace, 1.0)) + math.log(high / frac)
        slower = NEAR_ERROR + math.log(max(pace, 1.0) / factor) + math.log(frac / low)
        whose = words.THIS_GEMM
    then_us = time_us * factor
    how = words.as_others_run(time_us, factor, whose, then_us, call_us)
    aligned_us = call_us * _operations(new) / _operations(old)
    if then_us < aligned_us:
        how = words.no_faster_than_on_grid(how, aligned_us)
        then_us = aligned_us
    least_us = max(floor_us, aligned_us * math.exp(-NEAR_ERROR))
    return bounded(then_us, call_us, (faster, slower), new.time_us.basis, texts, how, least_us, "ratio")


def bounded(
    then_us: float,
    call_us: float,
    widths: tuple[float, float],
    basis: Basis,
    texts: tuple[str, str],
    how: str,
    floor_us: float,
    kind: ErrorKind,
) -> Scaled:
    """As factors on the measured time, never below the datasheet's floor."""
    if then_us < floor_us:
        how = words.held_to_datasheet(how, floor_us)
    mid_us = max(then_us, floor_us)
    low_us = max(then_us * math.exp(-widths[0]), floor_us)
    high_us = max(then_us * math.exp(widths[1]), mid_us)
    return Scaled(low_us / call_us, mid_us / call_us, high_us / call_us, basis, *texts, how, kind)


def dtype_then(row: GemmRow, now: ModelConfig, then: ModelConfig) -> str:
    """The type that a product runs in after a change of ``dtype``.

    The change takes every product of the present main type. fp8 and less are for the linear layers of
    attention, MLP and experts: recipes leave logits, router and attention's own products in 16 bits
    (torchao's convert_to_float8_training and Transformer Engine's modules are given those layers).
    """
    present = _math(row)
    if now.dtype == then.dtype or then.dtype is None or present != now.dtype:
        return present
    return present if then.dtype in LOW_PRECISION and row.component not in CONVERTED else then.dtype


def _spread_of(old: Prediction, new: Prediction) -> tuple[float, float]:
    """Half of what both predictions leave open (logs: faster, slower): two types miss the truth apart."""
    then, now = new.time_us.known, old.time_us.known
    if then is None or now is None or then.low <= 0 or now.low <= 0:
        return 0.0, 0.0
    faster = max(math.log(then.mid / then.low), math.log(now.high / now.mid))
    return 0.5 * faster, 0.5 * max(math.log(then.high / then.mid), math.log(now.mid / now.low))


def layout_of(row: GemmRow) -> str:
    """How its operands lie, cuBLAS's opA and opB; by its role where the trace does not say."""
    return row.layout if row.layout in ("TN", "NN", "NT", "TT") else _LAYOUTS.get(row.role or "", "TN")


def predict_row(
    sizes: tuple[int, int, int, int],
    row: GemmRow,
    *,
    gpu: Gpu,
    measured: Measurements | None,
    dtype: str | None = None,
    out_dtype: str | None = None,
) -> Prediction | str:
    """The row's product with these sizes, in its layout, with its output type and the GPU's calibration.

    ``dtype`` other than the row's: its output follows it, unless ``out_dtype`` says what it is or the row
    accumulates gradients in fp32.
    """
    m, n, k, batch = sizes
    layout = layout_of(row)
    out = row.out_dtype
    if dtype is not None and dtype != _math(row):
        if not peak_of(gpu, dtype):
            return words.nothing_known(dtype)
        out = out if out == "fp32" and row.dtype != "fp32" else None
        layout = (
            "TN" if dtype in LOW_PRECISION else layout
        )  # the layout of every fp8 product on Hopper (cuBLAS)
    try:
        return predict_gemm(
            m, n, k, batch=batch, gpu=gpu, dtype=dtype or _math(row), out_dtype=out_dtype or out,
            layout=layout, measured=measured,
        )  # fmt: skip
    except InputError as error:
        return str(error)


def _math(row: GemmRow) -> str:
    return row.math_dtype or row.dtype or "bf16"


def _class(found: Prediction) -> int:
    """Alignment of the least aligned operand, bytes."""
    return min((value for value in found.alignment.values() if value is not None), default=0)


def _leaves_grid(old: Prediction | str, new: Prediction | str) -> bool:
    return not isinstance(old, str) and not isinstance(new, str) and _class(new) < GRID_BYTES <= _class(old)


def _on_grid(sizes: tuple[int, int, int, int], row: GemmRow) -> tuple[int, int, int, int]:
    """The sizes at the next 16 bytes, as padded storage has them."""
    step = grid_elements(_math(row)) or 8
    m, n, k = (math.ceil(size / step) * step for size in sizes[:3])
    return m, n, k, sizes[3]


def _error(before: tuple[int, ...], after: tuple[int, ...]) -> float:
    far = max(abs(math.log(b / a)) for a, b in zip(before, after, strict=True))
    return ratio_error(far)


def _ladder_error(
    old: Prediction, new: Prediction, row: GemmRow, *, gpu: Gpu, measured: Measurements | None
) -> tuple[float, float]:
    """How much faster and slower (logs) the new shape is where the steps of alignment are at their ends."""
    if old.alignment_frac == new.alignment_frac or not old.alignment_frac or not new.alignment_frac:
        return 0.0, 0.0
    ladder = alignment_ladder(gpu=gpu, dtype=_math(row), measured=measured)
    before, after = ladder.step_of(old.alignment), ladder.step_of(new.alignment)
    spread = [
        (math.log(frac / (step.low or frac)), math.log((step.high or frac) / frac))
        for step, frac in ((before, old.alignment_frac), (after, new.alignment_frac))
    ]
    (old_down, old_up), (new_down, new_up) = spread
    return max(0.0, old_down + new_up), max(0.0, old_up + new_down)


def _spread(values: list[float]) -> float:
    """Half-width in logs that holds 9 in 10 of ``values`` around their median (all, where they are few)."""
    middle = statistics.median(values)
    away = sorted(abs(math.log(value / middle)) for value in values)
    return away[min(len(away) - 1, math.ceil(0.9 * len(away)) - 1)]


def _medians(ratios: Mapping[_Key, list[float]]) -> dict[_Key, tuple[float, float]]:
    return {
        key: (statistics.median(values), _spread(values))
        for key, values in ratios.items()
        if len(values) >= _FEW
    }


def _narrow(found: Prediction, row: GemmRow) -> tuple[str, bool]:
    """The kernels that a product below 16 bytes can get: of its type, for odd sizes or for even ones."""
    return _math(row), _class(found) <= (bytes_per_element(found.dtype) or 0)


def _operations(found: Prediction) -> float:
    return 2.0 * found.m * found.n * found.k * found.batch


def held_us(old: Prediction, new: Prediction, row: GemmRow, gpu: Gpu) -> float:
    """The datasheet's least for ``new`` in us; 0 where the measured time of ``old`` speaks against it."""
    least = _floor(old, _math(row), gpu)
    return _floor(new, new.dtype, gpu) if least <= call_us_of(row) / BELOW_FLOOR else 0.0


def _floor(found: Prediction, dtype: str, gpu: Gpu) -> float:
    """Least time of a call in us: operations at the dense peak, operands once across memory.

    Operands that fit in the L2 cache come from there, at about twice the bandwidth (see ``predict_gemm``).
    """
    m, n, k, batch = found.m, found.n, found.k, found.batch
    peak = peak_of(gpu, dtype)
    compute = _operations(found) / (peak * 1e6) if peak else 0.0
    size, out = bytes_per_element(found.dtype), bytes_per_element(found.out_dtype)
    if not gpu.bandwidth_gbps or size is None or out is None:
        return compute
    moved = batch * (size * (m * k + k * n) + out * m * n)
    share = 0.5 if moved <= most_l2_mb(gpu) * 1e6 else 1.0
    return max(compute, share * moved / (gpu.bandwidth_gbps * 1e3))


def _text(sizes: tuple[int, int, int, int]) -> str:
    m, n, k, batch = sizes
    return f"{m}×{n}×{k}" if batch == 1 else f"{batch}×({m}×{n}×{k})"
