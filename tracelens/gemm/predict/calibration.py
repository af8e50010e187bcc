"""The formula fitted to measurements of one GPU.

Deterministic, in two steps: the rates (and, where kernel names were recorded, the rate of each tile) are
moved until the formula fits best, by coordinate descent on the mean absolute log error; what it then still
misses is left to the measured neighbours of a product (``neighbours``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.kernel_names import gemm_among
from tracelens.gemm.ladder import AlignmentLadder, alignment_ladder, operand_alignment
from tracelens.gemm.predict.architecture import architecture
from tracelens.gemm.predict.cost import Array, Products, TileTable, best, costs
from tracelens.gemm.predict.neighbours import Neighbours, neighbours
from tracelens.gemm.predict.rates import Rates, model_rates, rates_of_unknown
from tracelens.gemm.predict.tiles import Tile, tiles_of_kernel
from tracelens.gemm.predict.words import gemm as words
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements

#: Fewer measurements of a type than this say too little to fit eight rates.
_ENOUGH = 24
#: The rates are fitted to at most this many products, evenly spread over the sorted shapes.
_FIT_ROWS = 250
_MOST_TILES = 32
#: Tensor cores run both at one rate (datasheets of every GPU of the table).
_TWINS = {"bf16": "fp16", "fp16": "bf16"}
#: Factors of the descent, one round each.
_STEPS = (1.5, 1.2, 1.07, 1.2, 1.07, 1.02, 1.01)
#: Rates to fit, each with the bounds that keep it a physical figure.
_BOUNDS = {
    "multiply_tflops": (0.0, np.inf),
    "bandwidth_gbps": (0.0, np.inf),  # see ``_bandwidth_bounds``
    "fixed_us": (0.5, 100.0),
    "partial_wave_frac": (0.5, 0.95),  # 0.59 on V100, 0.58 to 0.70 on H100
    "first_wave_frac": (0.5, 1.0),
    "store_frac": (0.02, 1.5),
    "load_elements": (1.0, 300.0),
    "sm_gbps": (5.0, 1000.0),
    "split_us": (0.2, 30.0),
}
#: A product's bandwidth beside that of a plain copy.
_OF_COPY = (0.8, 1.15)
#: A loss grows no further than this, so that a few odd measurements do not bend the fit.
_CAPPED = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The rates of one GPU and type as measured, and the neighbours to correct by. Equal only to itself."""

    rates: Rates
    table: TileTable
    ladder: AlignmentLadder
    neighbours: Neighbours

    def assumed(self, operands: Mapping[str, int | None]) -> float:
        """Throughput with operands so aligned, as the fit took it."""
        return _frac(self.ladder, operands)


@lru_cache(maxsize=16)
def fitted(measured: Measurements, *, gpu: Gpu, math_dtype: str) -> Fit | None:
    """The fit to ``measured`` for one type, made once per ``Measurements`` object.

    None when the measurements are of another GPU or too few of this type (bf16 and fp16 stand in for
    each other).
    """
    sms = measured.device.get("sms")
    if measured.gpu != gpu.name or (gpu.sms is not None and sms not in (None, gpu.sms)):
        return None
    for dtype in (math_dtype, _TWINS.get(math_dtype, math_dtype)):
        rows = [one for one in measured.gemms if one.dtype == dtype and _usable(one)]
        if len(rows) >= _ENOUGH:
            # in one order, so that a fit is the same whatever order they were measured in
            rows.sort(key=lambda x: (x.m, x.n, x.k, x.batch, x.layout, x.out_dtype, x.time_us))
            return _fit_rows(rows, measured, gpu, dtype)
    return None


def _usable(one: GemmMeasurement) -> bool:
    sizes = min(one.m, one.n, one.k, one.batch)
    return (
        sizes > 0 and one.layout in ("TN", "NN", "NT", "TT") and bytes_per_element(one.out_dtype) is not None
    )


def _fit_rows(rows: list[GemmMeasurement], measured: Measurements, gpu: Gpu, dtype: str) -> Fit | None:
    ladder = alignment_ladder(gpu=gpu, dtype=dtype, measured=measured)
    start = _start(rows, measured, gpu, dtype)
    if start is None:
        return None
    operands = [_operands(one) for one in rows]
    aligned = [min(size for size in at.values() if size is not None) for at in operands]
    products = [
        (one.m, one.n, one.k, one.batch, _frac(ladder, at), _size(one.dtype), _size(one.out_dtype))
        for one, at in zip(rows, operands, strict=True)
    ]
    times = np.asarray([one.time_us for one in rows])
    ran = [_ran(one) for one in rows]
    tiles = _tiles(ran, gpu, dtype)
    sample = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _FIT_ROWS)).astype(int))
    mask = _mask([ran[at] for at in sample], tiles)
    named = bool(mask.any())
    picked = Products.of([products[at] for at in sample])

    def error(rates: Rates, table: TileTable) -> Array:
        found, _, _ = best(costs(picked, table, rates) + (mask if named else 0.0))
        return np.asarray(np.log(times[sample] / found), dtype=np.float64)

    table = TileTable.of(tiles, sms=start.sms)
    bounds = {**_BOUNDS, "bandwidth_gbps": _bandwidth_bounds(measured, gpu)}
    few = table
    if len(tiles) > _MOST_TILES:  # a descent needs those that are fastest for some product
        _, won, _ = best(costs(picked, table, start))
        few = TileTable.of([tiles[at] for at in np.unique(won)], sms=start.sms)
    rates = _descend(start, lambda one: error(one, few), bounds=bounds, rounds=7)
    if named:
        table = TileTable.of(tiles, sms=start.sms, rate_frac=_tile_rates(error(rates, table), mask))
        rates = _descend(rates, lambda one: error(one, table), bounds=bounds, rounds=3)
    for name in _BOUNDS:
        rates = _with(rates, name, _round(getattr(rates, name)))
    formula, _, _ = best(costs(Products.of(products), table, rates))
    return Fit(rates, table, ladder, neighbours(rows, aligned, np.log(times / formula)))


def _start(rows: list[GemmMeasurement], measured: Measurements, gpu: Gpu, dtype: str) -> Rates | None:
    """Where the descent begins: the model's rates, or for an unknown GPU what the measurements show."""
    rates = model_rates(gpu, dtype)
    if isinstance(rates, str):
        sms = gpu.sms or measured.device.get("sms")
        bandwidth = measured.bandwidth_gbps or gpu.bandwidth_gbps
        if not isinstance(sms, int) or sms < 1 or bandwidth is None:
            return None
        rates = rates_of_unknown(sms, max(one.tflops for one in rows), bandwidth)
    return replace(
        rates,
        bandwidth_gbps=measured.bandwidth_gbps or rates.bandwidth_gbps,
        whole_m_frac=1.0,  # fitted to what ran, on tiles that names show: not to how a library ranks others
        whole_n_frac=1.0,
        source=words.fitted_to(len(rows), measured.date),
    )


def _bandwidth_bounds(measured: Measurements, gpu: Gpu) -> tuple[float, float]:
    """Near the bandwidth of a plain copy where that was measured, else no more than the datasheet's."""
    if measured.bandwidth_gbps is not None:
        low, high = (frac * measured.bandwidth_gbps for frac in _OF_COPY)
        return low, high
    return 0.0, gpu.bandwidth_gbps or np.inf


def _descend(
    rates: Rates, error: Callable[[Rates], Array], *, bounds: Mapping[str, tuple[float, float]], rounds: int
) -> Rates:
    """Move one rate at a time, in steps that shrink, as long as the mean error falls."""

    def loss(one: Rates) -> float:
        return float(np.minimum(np.abs(error(one)), _CAPPED).mean())

    least = loss(rates)
    for step in _STEPS[-rounds:]:
        for name, (low, high) in bounds.items():
            for factor in (step, 1 / step):
                while True:
                    moved = _with(rates, name, min(max(getattr(rates, name) * factor, low), high))
                    if (found := loss(moved)) >= least:
                        break
                    least, rates = found, moved
    return rates


def _with(rates: Rates, name: str, value: float) -> Rates:
    changed: dict[str, Any] = {name: value}
    return replace(rates, **changed)


def _ran(one: GemmMeasurement) -> tuple[Tile, ...]:
    """The tile that ran, both orders where the name leaves them open, () where no name tells."""
    kernel = gemm_among(one.kernels)
    return () if kernel is None else tiles_of_kernel(kernel)


def _tiles(ran: Sequence[tuple[Tile, ...]], gpu: Gpu, dtype: str) -> tuple[Tile, ...]:
    """The tiles seen when most measurements name theirs, the architecture's otherwise."""
    seen = Counter(tile for tiles in ran for tile in tiles)
    if sum(1 for tiles in ran if tiles) * 2 < len(ran):
        return architecture(gpu.compute_capability).named(dtype)
    common = sorted(
        seen, key=lambda tile: (-seen[tile], tile.m, tile.n, tile.k, tile.cluster or "", tile.may_split)
    )
    return tuple(common[:_MOST_TILES])


def _mask(ran: Sequence[tuple[Tile, ...]], tiles: tuple[Tile, ...]) -> Array:
    """(S, C, 1): infinite for tiles that are not the one that ran; 0 throughout where none is named."""
    mask = np.zeros((len(ran), len(tiles), 1))
    for at, own in enumerate(ran):
        if any(tile in tiles for tile in own):
            mask[at, :, 0] = [0.0 if tile in own else np.inf for tile in tiles]
    return mask


def _tile_rates(error: Array, mask: Array) -> list[float]:
    """Rate of each tile beside the formula's, from the products it ran; 1 where fewer than five did."""
    fracs = []
    for at in range(mask.shape[1]):
        own = error[np.isfinite(mask[:, at, 0]) & np.isinf(mask[:, :, 0]).any(axis=1)]
        fracs.append(_round(float(np.clip(np.exp(-np.median(own)), 0.6, 1.6))) if len(own) >= 5 else 1.0)
    return fracs


def _operands(one: GemmMeasurement) -> dict[str, int | None]:
    return operand_alignment(one.m, one.n, one.k, dtype=one.dtype, out_dtype=one.out_dtype, layout=one.layout)


def _frac(ladder: AlignmentLadder, operands: Mapping[str, int | None]) -> float:
    """Throughput with operands so aligned; where no source tells, the neighbours of the class do."""
    step = ladder.step_of(operands)
    return step.mid or step.high or 1.0


def _size(dtype: str) -> float:
    return bytes_per_element(dtype) or 2.0


def _round(value: float) -> float:
    return float(f"{value:.7g}")
