"""The time of a product for every candidate tile and split of K at once.

One formula, on arrays, serves both the prediction of one product and the fit to thousands: ``derivation``
spells the same formula out for the chosen candidate, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.gemm.predict.rates import Rates
from tracelens.gemm.predict.tiles import Tile

Array = NDArray[np.float64]

#: Slices of K a library may choose (grids of public traces show 2, 3, 5, 6, 8, 32 and 88).
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
#: Slices shorter than this are not worth a reduction.
_SHORTEST_SLICE = 128
#: 1/128 + 1/256: the tile whose loads the multiply rate already contains.
REFERENCE_LOADS = 3 / 256


@dataclass(frozen=True, slots=True)
class Products:
    """Sizes of S products as columns of shape (S, 1, 1), ready to meet C tiles and P splits."""

    m: Array
    n: Array
    k: Array
    batch: Array
    alignment_frac: Array
    size: Array  # bytes per element of the operands
    out_size: Array

    @classmethod
    def of(cls, rows: Sequence[tuple[float, ...]]) -> Products:
        """From rows (m, n, k, batch, alignment_frac, size, out_size)."""
        table = np.asarray(rows, dtype=np.float64)
        return cls(*(table[:, at].reshape(-1, 1, 1) for at in range(7)))


@dataclass(frozen=True, slots=True)
class TileTable:
    """Candidate tiles as arrays of shape (1, C, 1)."""

    tiles: tuple[Tile, ...]
    m: Array
    n: Array
    k: Array
    slots: Array
    rate_frac: Array  # fitted per tile, 1 without measurements
    splits: Array  # (1, 1, P)
    forbidden: Array  # 0 or infinity, (1, C, P): tiles that cannot slice K

    @classmethod
    def of(cls, tiles: Sequence[Tile], *, sms: int, rate_frac: Sequence[float] | None = None) -> TileTable:
        def column(values: Sequence[float]) -> Array:
            return np.asarray(values, dtype=np.float64).reshape(1, -1, 1)

        return cls(
            tiles=tuple(tiles),
            m=column([tile.m for tile in tiles]),
            n=column([tile.n for tile in tiles]),
            k=column([tile.k for tile in tiles]),
            slots=column([tile.slots(sms) for tile in tiles]),
            rate_frac=column(rate_frac if rate_frac is not None else [1.0] * len(tiles)),
            splits=np.asarray(SPLITS, dtype=np.float64).reshape(1, 1, -1),
            forbidden=np.asarray(
                [[0.0 if split == 1 or tile.may_split else np.inf for split in SPLITS] for tile in tiles]
            ).reshape(1, len(tiles), -1),
        )


def tile_slowdown(tile_m: Any, tile_n: Any, load_elements: float) -> Any:
    """How much longer a tile's multiplies take than a 128x256 tile's: per output it loads more.

    A step of K multiplies tile_m * tile_n pairs and loads tile_m + tile_n elements: 1/tile_m + 1/tile_n
    loads per multiply.

    >>> round(tile_slowdown(128, 128, 35.0), 3), tile_slowdown(128, 256, 35.0)
    (1.137, 1.0)
    """
    return 1 + load_elements * np.maximum(1 / tile_m + 1 / tile_n - REFERENCE_LOADS, 0)


def costs(products: Products, table: TileTable, rates: Rates) -> Array:
    """Microseconds of every product with every tile and split: shape (S, C, P), infinite where impossible."""
    one, tile = products, table
    slice_k = np.ceil(one.k / tile.splits / tile.k) * tile.k
    fill = np.ceil(one.m / tile.m) * np.ceil(one.n / tile.n) * one.batch * tile.splits / tile.slots
    whole = np.floor(fill)
    rest = fill - whole
    partial = rates.partial_wave_frac
    waves = whole + np.where(rest > 0, partial + (1 - partial) * rest, 0)
    slowdown = tile_slowdown(tile.m, tile.n, rates.load_elements) / tile.rate_frac
    area = tile.m * tile.n
    multiply_us = 2e-6 * area * slice_k * slowdown * rates.sms / (rates.multiply_tflops * one.alignment_frac)
    store_us = rates.store_frac * area * one.out_size * tile.slots / (rates.bandwidth_gbps * 1e3)
    memory_us = memory_bytes(one) / (rates.bandwidth_gbps * 1e3)
    # Slices are written and read back as fp32 sums.
    traffic = 8.0 * tile.splits * one.m * one.n * one.batch
    split_us = np.where(tile.splits > 1, rates.split_us + traffic / (rates.bandwidth_gbps * 1e3), 0)
    too_short = np.where((tile.splits > 1) & (slice_k < _SHORTEST_SLICE), np.inf, 0)
    busy_us = np.maximum(waves * (multiply_us + store_us), memory_us)
    return rates.fixed_us + busy_us + split_us + too_short + tile.forbidden  # type: ignore[no-any-return]


def memory_bytes(products: Products) -> Array:
    """Bytes across memory when each operand crosses it once: the L2 cache serves the tiles of a wave."""
    one = products
    operands = one.size * (one.m * one.k + one.k * one.n) + one.out_size * one.m * one.n
    return one.batch * operands


def best(times: Array) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """(time, tile index, split index) of the fastest candidate of every product."""
    flat = times.reshape(times.shape[0], -1)
    at = flat.argmin(axis=1)
    return flat[np.arange(len(at)), at], at // times.shape[2], at % times.shape[2]
