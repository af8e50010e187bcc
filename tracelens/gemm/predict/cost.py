"""The time of a product for every candidate tile and split of K at once.

One formula, on arrays, serves both the prediction of one product and the fit to thousands: ``derivation``
spells the same formula out for the chosen candidate, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
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


@dataclass(frozen=True, slots=True, eq=False)
class TileTable:
    """Candidate tiles as arrays of shape (1, C, 1)."""

    tiles: tuple[Tile, ...]
    m: Array
    n: Array
    k: Array
    slots: Array
    rate_frac: Array  # fitted per tile, 1 without measurements
    splits: Array  # (1, 1, P)
    sliced: NDArray[np.bool_]  # (1, 1, P): splits above 1
    steps: Array  # (1, C, P): elements of K that one step of all slices takes
    forbidden: Array  # 0 or infinity, (1, C, P): tiles that cannot slice K

    @classmethod
    def of(cls, tiles: Sequence[Tile], *, sms: int, rate_frac: Sequence[float] | None = None) -> TileTable:
        def column(values: Sequence[float]) -> Array:
            return np.asarray(values, dtype=np.float64).reshape(1, -1, 1)

        splits = np.asarray(SPLITS, dtype=np.float64).reshape(1, 1, -1)
        return cls(
            tiles=tuple(tiles),
            m=column([tile.m for tile in tiles]),
            n=column([tile.n for tile in tiles]),
            k=column([tile.k for tile in tiles]),
            slots=column([tile.slots(sms) for tile in tiles]),
            rate_frac=column(rate_frac if rate_frac is not None else [1.0] * len(tiles)),
            splits=splits,
            sliced=splits > 1,
            steps=splits * column([tile.k for tile in tiles]),
            forbidden=np.asarray(
                [[0.0 if split == 1 or tile.may_split else np.inf for split in SPLITS] for tile in tiles]
            ).reshape(1, len(tiles), -1),
        )

    def rate_of(self, tile: Tile) -> float:
        """The fitted rate of one tile beside the formula's, 1 for a tile that is not in the table."""
        return float(self.rate_frac[0, self.tiles.index(tile), 0]) if tile in self.tiles else 1.0


def tile_slowdown(tile_m: Any, tile_n: Any, load_elements: float) -> Any:
    """How much longer a tile's multiplies take than a 128x256 tile's: per output it loads more.

    A step of K multiplies tile_m * tile_n pairs and loads tile_m + tile_n elements: 1/tile_m + 1/tile_n
    loads per multiply.

    >>> float(round(tile_slowdown(128, 128, 20.0), 3)), float(tile_slowdown(128, 256, 20.0))
    (1.078, 1.0)
    """
    return 1 + load_elements * np.maximum(1 / tile_m + 1 / tile_n - REFERENCE_LOADS, 0)


@lru_cache(maxsize=64)
def _per_tile(table: TileTable, rates: Rates) -> tuple[Array, Array]:
    """What does not depend on the product: us per element of K, and us to store a wave per output byte."""
    area = table.m * table.n
    slowdown = tile_slowdown(table.m, table.n, rates.load_elements) / table.rate_frac
    multiply = 2e-6 * area * slowdown * rates.sms / rates.multiply_tflops
    store = rates.store_frac * area * table.slots / (rates.bandwidth_gbps * 1e3)
    return multiply, store


def costs(products: Products, table: TileTable, rates: Rates) -> Array:
    """Microseconds of every product with every tile and split: shape (S, C, P), infinite where impossible."""
    one = products
    multiply, store = _per_tile(table, rates)
    slice_k = np.ceil(one.k / table.steps) * table.k
    fill = np.ceil(one.m / table.m) * np.ceil(one.n / table.n) * one.batch * table.splits / table.slots
    whole = np.floor(fill)
    partial = np.where(fill < 1, rates.first_wave_frac, rates.partial_wave_frac)
    waves = np.where(fill > whole, whole + partial + (1 - partial) * (fill - whole), whole)
    compute_us = waves * (multiply * slice_k / one.alignment_frac + store * one.out_size)
    memory_us = memory_bytes(one) / (rates.bandwidth_gbps * 1e3)
    # Slices are written and read back as fp32 sums; one shorter than a few steps is not worth that.
    traffic_us = 8.0 * one.m * one.n * one.batch / (rates.bandwidth_gbps * 1e3)
    split_us = np.where(table.sliced, rates.split_us + table.splits * traffic_us, 0.0)
    too_short = np.where(table.sliced & (slice_k < _SHORTEST_SLICE), np.inf, table.forbidden)
    busy_us = np.maximum(compute_us, memory_us)
    time_us = rates.fixed_us + busy_us + split_us + too_short
    if rates.ceiling_tflops is not None:
        time_us = np.maximum(time_us, 2e-6 * one.m * one.n * one.k * one.batch / rates.ceiling_tflops)
    return np.asarray(time_us)


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
