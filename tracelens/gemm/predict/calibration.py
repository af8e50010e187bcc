"""The formula fitted to measurements of one GPU, and what its nearest measured neighbours say beyond it.

Two steps, both deterministic. First the rates (and, where kernel names were recorded, the rate of each
tile) are moved until the formula fits the measurements best, by coordinate descent on the mean absolute
log error. Then the formula's remaining error is taken over from the measured products nearest in
(log M, log N, log K, log batch) with the same layout and alignment. How far neighbours reach, and the
stated range, come from leaving each measurement out in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.kernel_names import parse_kernel_name
from tracelens.gemm.ladder import AlignmentLadder, alignment_ladder, operand_alignment
from tracelens.gemm.predict.cost import Array, Products, TileTable, best, costs
from tracelens.gemm.predict.rates import Rates, model_rates
from tracelens.gemm.predict.tiles import Tile, candidate_tiles, tiles_of_kernel
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements

#: Fewer measurements of a type than this say too little to fit seven rates.
_ENOUGH = 24
#: The rates are fitted to at most this many products, evenly spread over the sorted shapes.
_FIT_ROWS = 360
_NEIGHBOURS = 5
#: Tensor cores run both at one rate (datasheets of every GPU of the table).
_TWINS = {"bf16": "fp16", "fp16": "bf16"}
_STEPS = (0.7, 0.85, 0.93, 0.97, 0.99, 1.01, 1.03, 1.07, 1.15, 1.4)
#: Rates to fit, each with the bounds that keep it a physical figure.
_BOUNDS = {
    "multiply_tflops": (0.0, np.inf),
    "bandwidth_gbps": (0.0, np.inf),
    "fixed_us": (0.5, 100.0),
    "partial_wave_frac": (0.02, 0.98),
    "store_frac": (0.02, 1.5),
    "load_elements": (1.0, 300.0),
    "split_us": (0.2, 30.0),
}
#: A loss grows no further than this, so that a few odd measurements do not bend the fit.
_CAPPED = 0.5
_REACH = (0.005, 0.02, 0.06, 0.2)  # distance, in powers of two, at which a neighbour's weight halves twice
_PRIOR_DISTANCE = (0.1, 0.3, 1.0, 3.0)  # neighbours this far count as much as having none
_COVERED = 0.90
_BIN_ROWS = 40


@dataclass(frozen=True, slots=True)
class Nearest:
    """What measured neighbours say of one product."""

    weighted: tuple[tuple[float, float, str], ...] = ()  # (weight, ln(measured / formula), shape)
    prior_weight: float = 1.0
    low_frac: float = 1.0
    high_frac: float = 1.0


@dataclass(frozen=True, slots=True)
class _Class:
    """Measured products of one layout and alignment."""

    points: Array  # (N, 4): log2 of m, n, k, batch
    residuals: Array  # ln(measured / formula)
    shapes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """The rates of one GPU and type as measured, and the neighbours to correct by."""

    rates: Rates
    table: TileTable
    ladder: AlignmentLadder
    classes: dict[tuple[str, int], _Class] = field(repr=False)
    reach: float
    prior_distance: float
    bins: tuple[tuple[float, float, float], ...]  # (distance up to, low_frac, high_frac)

    def nearest(self, sizes: tuple[float, ...], layout: str, aligned: int) -> Nearest:
        """Neighbours of (m, n, k, batch, ...) with this layout and alignment, and the range they leave."""
        found = self.classes.get((layout, aligned)) or self.classes.get(("", aligned))
        if found is None:
            return Nearest((), 1.0, *self._range(np.inf))
        distance = np.abs(found.points - np.log2(np.asarray(sizes[:4], dtype=np.float64))).sum(axis=1)
        count = min(_NEIGHBOURS, len(distance))
        at = np.argpartition(distance, count - 1)[:count]
        at = at[np.lexsort((at, distance[at]))]
        weighted = tuple(
            (_round(1 / (distance[i] + self.reach) ** 2), _round(found.residuals[i]), found.shapes[i])
            for i in at
        )
        return Nearest(weighted, _round(1 / self.prior_distance**2), *self._range(float(distance[at[0]])))

    def has(self, layout: str, aligned: int) -> bool:
        return (layout, aligned) in self.classes or ("", aligned) in self.classes

    def _range(self, distance: float) -> tuple[float, float]:
        for upto, low, high in self.bins:
            if distance <= upto:
                return low, high
        return self.bins[-1][1:]


_FITTED: dict[tuple[int, str, str, int | None], tuple[Measurements, Fit | None]] = {}
_KEPT = 16


def fitted(measured: Measurements, *, gpu: Gpu, math_dtype: str) -> Fit | None:
    """The fit to ``measured`` for one type, made once per ``Measurements`` object.

    None when the measurements are of another GPU or too few of this type (bf16 and fp16 stand in for
    each other).
    """
    key = (id(measured), math_dtype, gpu.name, gpu.sms)
    if key not in _FITTED:
        while len(_FITTED) >= _KEPT:
            _FITTED.pop(next(iter(_FITTED)))
        _FITTED[key] = (measured, _fit(measured, gpu, math_dtype))  # holding it keeps its id its own
    return _FITTED[key][1]


def _fit(measured: Measurements, gpu: Gpu, math_dtype: str) -> Fit | None:
    sms = measured.device.get("sms")
    if measured.gpu != gpu.name or (gpu.sms is not None and sms not in (None, gpu.sms)):
        return None
    for dtype in (math_dtype, _TWINS.get(math_dtype, math_dtype)):
        rows = [
            one for one in measured.gemms if one.dtype == dtype and one.layout in ("TN", "NN", "NT", "TT")
        ]
        if len(rows) >= _ENOUGH:
            return _fit_rows(_sorted(rows), measured, gpu, dtype)
    return None


def _sorted(rows: Sequence[GemmMeasurement]) -> list[GemmMeasurement]:
    return sorted(
        rows, key=lambda one: (one.m, one.n, one.k, one.batch, one.layout, one.out_dtype, one.time_us)
    )


def _fit_rows(rows: list[GemmMeasurement], measured: Measurements, gpu: Gpu, dtype: str) -> Fit | None:
    ladder = alignment_ladder(gpu=gpu, dtype=dtype, measured=measured)
    start = _start(rows, measured, gpu, dtype)
    if start is None:
        return None
    aligned = [_aligned(one) for one in rows]
    products = [
        (one.m, one.n, one.k, one.batch, _frac(ladder, at), _size(one.dtype), _size(one.out_dtype))
        for one, at in zip(rows, aligned, strict=True)
    ]
    times = np.asarray([one.time_us for one in rows])
    ran = [_ran(one) for one in rows]
    tiles = _tiles(ran, gpu, dtype)
    sample = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _FIT_ROWS)).astype(int))
    mask = _mask([ran[at] for at in sample], tiles)
    picked = Products.of([products[at] for at in sample])

    def error(rates: Rates, table: TileTable) -> Array:
        found, _, _ = best(costs(picked, table, rates) + mask)
        return np.log(times[sample] / found)

    table = TileTable.of(tiles, sms=start.sms)
    rates = _descend(start, lambda one: error(one, table))
    if mask.any():
        table = TileTable.of(tiles, sms=start.sms, rate_frac=_tile_rates(error(rates, table), mask))
        rates = _descend(rates, lambda one: error(one, table))
    rates = replace(rates, **{name: _round(getattr(rates, name)) for name in _BOUNDS})
    formula, _, _ = best(costs(Products.of(products), table, rates))
    residuals = np.log(times / formula)
    return _with_neighbours(rows, aligned, residuals, rates, table, ladder)


def _start(rows: list[GemmMeasurement], measured: Measurements, gpu: Gpu, dtype: str) -> Rates | None:
    """Where the descent begins: the model's rates, or for an unknown GPU what the measurements show."""
    best_seen = max(one.tflops for one in rows)
    rates = model_rates(gpu, dtype)
    if isinstance(rates, str):
        sms = gpu.sms or measured.device.get("sms")
        if not isinstance(sms, int) or sms < 1:
            return None
        bandwidth = measured.bandwidth_gbps or gpu.bandwidth_gbps
        if bandwidth is None:
            return None
        rates = Rates(sms, best_seen, 35.0, 0.5, 0.5, bandwidth, 5.0, 2.0, 1.0, 1.0, "")
    return replace(
        rates,
        bandwidth_gbps=measured.bandwidth_gbps or rates.bandwidth_gbps,
        source=f"fitted to {len(rows)} measurements of {measured.date}",
    )


def _descend(rates: Rates, error: Callable[[Rates], Array]) -> Rates:
    def loss(one: Rates) -> float:
        return float(np.minimum(np.abs(error(one)), _CAPPED).mean())

    least = loss(rates)
    for _ in range(3):
        before = least
        for name, (low, high) in _BOUNDS.items():
            for step in _STEPS:
                moved = replace(rates, **{name: min(max(getattr(rates, name) * step, low), high)})
                if (found := loss(moved)) < least:
                    least, rates = found, moved
        if before - least < 1e-3 * before:
            break
    return rates


def _ran(one: GemmMeasurement) -> tuple[Tile, ...]:
    """The tile that ran, both orders where the name leaves them open, () where no name tells."""
    for name in one.kernels:
        kernel = parse_kernel_name(name)
        if kernel is not None and kernel.kind == "gemm":
            return tiles_of_kernel(kernel)
    return ()


def _tiles(ran: Sequence[tuple[Tile, ...]], gpu: Gpu, dtype: str) -> tuple[Tile, ...]:
    """The tiles seen when most measurements name theirs, the architecture's otherwise."""
    seen: dict[Tile, int] = {}
    for tiles in ran:
        for tile in tiles:
            seen[tile] = seen.get(tile, 0) + 1
    if sum(1 for tiles in ran if tiles) * 2 < len(ran):
        return candidate_tiles(gpu, dtype)
    common = sorted(
        seen, key=lambda tile: (-seen[tile], tile.m, tile.n, tile.k, tile.cluster or "", tile.may_split)
    )
    return tuple(common[:_MOST_TILES])


_MOST_TILES = 32


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


def _with_neighbours(
    rows: list[GemmMeasurement],
    aligned: list[int],
    residuals: Array,
    rates: Rates,
    table: TileTable,
    ladder: AlignmentLadder,
) -> Fit:
    points = np.log2([[one.m, one.n, one.k, one.batch] for one in rows])
    shapes = tuple(_shape(one) for one in rows)
    groups: dict[tuple[str, int], list[int]] = {}
    for at, (one, alignment) in enumerate(zip(rows, aligned, strict=True)):
        groups.setdefault((one.layout, alignment), []).append(at)
        groups.setdefault(("", alignment), []).append(at)
    classes = {
        key: _Class(points[at], residuals[at], tuple(shapes[i] for i in at)) for key, at in groups.items()
    }
    distances, values, own = [], [], []
    for key, one in classes.items():
        if key[0]:
            found, at = _others(one.points)
            distances.append(found)
            values.append(np.where(np.isfinite(found), one.residuals[at], 0.0))
            own.append(one.residuals)
    distance, value, truth = np.concatenate(distances), np.concatenate(values), np.concatenate(own)
    errors = {
        (reach, prior): truth - _corrections(distance, value, reach, prior)
        for reach in _REACH
        for prior in _PRIOR_DISTANCE
    }
    reach, prior = min(errors, key=lambda one: float(np.minimum(np.abs(errors[one]), _CAPPED).mean()))
    bins = _bins(distance[:, 0], errors[reach, prior])
    return Fit(rates, table, ladder, classes, reach, prior, bins)


def _others(points: Array) -> tuple[Array, NDArray[np.intp]]:
    """Distances to and places of the nearest other points, nearest first; infinite where there are none."""
    count = min(_NEIGHBOURS, len(points) - 1)
    distance = np.full((len(points), _NEIGHBOURS), np.inf)
    place = np.zeros((len(points), _NEIGHBOURS), dtype=np.intp)
    if count < 1:
        return distance, place
    for first in range(0, len(points), 256):
        part = slice(first, first + 256)
        all_of = np.abs(points[part, None, :] - points[None, :, :]).sum(axis=2)
        rows = np.arange(len(all_of))
        all_of[rows, rows + first] = np.inf
        at = np.argsort(all_of, axis=1, kind="stable")[:, :count]
        distance[part, :count] = np.take_along_axis(all_of, at, axis=1)
        place[part, :count] = at
    return distance, place


def _corrections(distance: Array, value: Array, reach: float, prior: float) -> Array:
    weight = 1 / (distance + reach) ** 2
    summed: Any = (weight * value).sum(axis=1) / (weight.sum(axis=1) + 1 / prior**2)
    return np.asarray(summed, dtype=np.float64)


def _bins(distance: Array, error: Array) -> tuple[tuple[float, float, float], ...]:
    """Ranges by distance of the nearest neighbour: each holds 90 % of its left-out errors."""
    order = np.argsort(distance, kind="stable")
    parts = np.array_split(order, max(1, min(4, len(order) // _BIN_ROWS)))
    bins: list[tuple[float, float, float]] = []
    low, high = 0.0, 0.0
    for part in parts:
        covered = min(1.0, _COVERED * (1 + 1 / len(part)))
        below, above = np.quantile(error[part], [(1 - covered) / 2, (1 + covered) / 2])
        low, high = min(low, float(below)), max(high, float(above))  # farther is never surer
        bins.append((float(distance[part[-1]]), float(np.exp(low)), float(np.exp(high))))
    return tuple(bins)


def _aligned(one: GemmMeasurement) -> int:
    found = operand_alignment(
        one.m, one.n, one.k, dtype=one.dtype, out_dtype=one.out_dtype, layout=one.layout
    )
    return min(value for value in found.values() if value is not None)


def _frac(ladder: AlignmentLadder, aligned: int) -> float:
    """Throughput at an alignment; where no source tells, the neighbours of the class do."""
    step = ladder.step(aligned)
    return step.mid or step.high or 1.0


def _size(dtype: str) -> float:
    return bytes_per_element(dtype) or 2.0


def _shape(one: GemmMeasurement) -> str:
    return f"{one.m}x{one.n}x{one.k}" + (f" x{one.batch}" if one.batch > 1 else "")


def _round(value: float) -> float:
    return float(f"{value:.7g}")
