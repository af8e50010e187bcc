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
_WHOLE_SIDE = 128
#: Elements of a 128x128 tile.
_WHOLE_TILE = 128 * 128
#: 1/128 + 1/256: the tile whose loads the multiply rate already contains.
REFERENCE_LOADS = 3 / 256


@dataclass(frozen=True, slots=True)
class Products:
    """Sizes of S products as columns of shape (S, 1, 1), to meet C tiles and P splits; of one, as numbers."""

    m: Array | float
    n: Array | float
    k: Array | float
    batch: Array | float
    alignment_frac: Array | float
    size: Array | float  # bytes per element of the operands
    out_size: Array | float

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
    cluster_m: Array  # CTAs of a cluster along M
    cluster_n: Array
    per_wave: Array  # (1, C, P): the part of a wave that one cluster's slices of K are
    along_m: Array  # rows of a cluster
    along_n: Array
    slots: Array
    rate_frac: Array  # fitted per tile, 1 without measurements
    bias: Array  # see ``preference``
    sliced: NDArray[np.bool_]  # (1, 1, P): splits above 1
    sums: Array  # (1, 1, P): slices to sum up, 0 without a split
    shortest: Array  # (1, 1, P): the shortest slice worth it
    steps: Array  # (1, C, P): elements of K that one step of all slices takes
    below: NDArray[np.bool_]  # smaller than 128x128, where there are others
    forbidden: Array  # 0 or infinity, (1, C, P): tiles that cannot slice K
    above_m: Array
    to_m: Array

    @classmethod
    def of(
        cls,
        tiles: Sequence[Tile],
        *,
        sms: int,
        rate_frac: Sequence[float] | None = None,
        bias: Sequence[float] | None = None,
    ) -> TileTable:
        def column(values: Sequence[float]) -> Array:
            return np.asarray(values, dtype=np.float64).reshape(1, -1, 1)

        splits = np.asarray(SPLITS, dtype=np.float64).reshape(1, 1, -1)
        slots = column([tile.slots(sms) for tile in tiles])
        below = [float(tile.m * tile.n < _WHOLE_TILE) for tile in tiles]
        return cls(
            tiles=tuple(tiles),
            m=column([tile.m for tile in tiles]),
            n=column([tile.n for tile in tiles]),
            k=column([tile.k for tile in tiles]),
            cluster_m=column([tile.clusters[0] for tile in tiles]),
            cluster_n=column([tile.clusters[1] for tile in tiles]),
            per_wave=splits * column([tile.cluster_size for tile in tiles]) / slots,
            along_m=column([tile.m * tile.clusters[0] for tile in tiles]),
            along_n=column([tile.n * tile.clusters[1] for tile in tiles]),
            slots=slots,
            rate_frac=column(rate_frac if rate_frac is not None else [1.0] * len(tiles)),
            bias=column(bias if bias is not None else [1.0] * len(tiles)),
            sliced=splits > 1,
            sums=np.where(splits > 1, splits, 0.0),
            shortest=np.where(splits > 1, _SHORTEST_SLICE, 0.0),
            steps=splits * column([tile.k for tile in tiles]),
            below=column(below if not all(below) else [0.0] * len(below)) > 0,
            forbidden=np.asarray(
                [[0.0 if split == 1 or tile.may_split else np.inf for split in SPLITS] for tile in tiles]
            ).reshape(1, len(tiles), -1),
            above_m=column([tile.above_m for tile in tiles]),
            to_m=column([tile.to_m for tile in tiles]),
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
def _per_tile(table: TileTable, rates: Rates) -> tuple[Array, Array, Array, Array]:
    """What no product changes: us of multiplies per element of K; us to load one row and one column of it per
    byte; us to store one element of the output per byte."""
    slowdown = tile_slowdown(table.m, table.n, rates.load_elements) / table.rate_frac
    multiply = 2e-6 * table.m * table.n * slowdown * rates.sms / rates.multiply_tflops
    row, column = (
        shared_load(ctas, rates.cluster_load_frac) / (rates.sm_gbps * 1e3)
        for ctas in (table.cluster_n, table.cluster_m)
    )
    return multiply, row, column, rates.store_frac * table.slots / (rates.bandwidth_gbps * 1e3)


def costs(products: Products, table: TileTable, rates: Rates) -> Array:
    """Microseconds of every product with every tile and split: shape (S, C, P), infinite where impossible."""
    one = products
    multiply, row, column, stored = _per_tile(table, rates)
    # A tile loads and stores the rows and columns that exist; its multiplies run over the empty ones too.
    rows, columns = np.minimum(table.m, one.m), np.minimum(table.n, one.n)
    per_k = np.maximum(multiply, (rows * row + columns * column) * one.size) / one.alignment_frac
    clusters = np.ceil(one.m / table.along_m) * np.ceil(one.n / table.along_n) * one.batch
    slice_k = np.ceil(one.k / table.steps) * table.k
    fill = clusters * table.per_wave
    begun = np.ceil(fill)
    # A wave that is not full saves its share of what it does not cost in any case.
    saved = np.where(fill < 1, 1 - rates.first_wave_frac, 1 - rates.partial_wave_frac)
    waves = begun - saved * (begun - fill)
    stored_us = stored * (rows * columns * one.out_size)
    compute_us = waves * (per_k * slice_k + stored_us + rates.tile_us)
    compute_us = compute_us * (1 + rates.ragged_frac * ragged(one.m, table.along_m))
    if rates.long_k_frac:
        compute_us = compute_us * (1 + rates.long_k_frac * long_k(slice_k))
    # Misaligned operands leave the tensor cores idle, and those draw no power.
    loss = rates.sustained_loss_frac * one.alignment_frac
    busy_us = overlapped(compute_us, memory_us(memory_bytes(one), rates))
    busy_us = busy_us * (1 + loss * compute_us / (compute_us + rates.sustained_us))
    # Slices are written and read back as fp32 sums; one shorter than a few steps is not worth that.
    traffic_us = 8.0 * one.m * one.n * one.batch / (rates.l2_gbps * 1e3)
    split_us = table.sums * traffic_us + table.sliced * rates.split_us + rates.fixed_us
    impossible = (slice_k < table.shortest) | (table.below & (one.m > rates.whole_tiles_above_m))
    impossible |= (one.m <= table.above_m) | (one.m > table.to_m)
    return np.asarray(
        busy_us + split_us + cast_us(one, rates) + np.where(impossible, np.inf, table.forbidden)
    )


def preference(products: Products, table: TileTable, rates: Rates) -> Array:
    """What the library ranks a candidate by beside its time: its bias, and whether it divides M or N."""
    by_m, by_n = whole(products.m, table.m), whole(products.n, table.n)
    return np.asarray(
        table.bias * np.where(by_m, rates.whole_m_frac, 1.0) * np.where(by_n, rates.whole_n_frac, 1.0)
    )


def whole(size: Any, side: Array) -> NDArray[np.bool_]:
    """Does a tile's side divide this size? Sides that nearly every size is a multiple of do not count."""
    return np.asarray((size % side == 0) & (side >= _WHOLE_SIDE))


def ragged(m: Any, rows: Any) -> Any:
    """How empty the last row of clusters is, squared, over how many rows of them there are.

    CUTLASS's persistent kernels of Hopper take 1.2 to 1.4 times as long for 257 rows as for 512, in the same
    number of tiles, 1.1 for 1793 as for 2048, and no longer for 225 than for 256.

    >>> float(round(ragged(257, 256), 3)), float(ragged(512, 256))
    (0.496, 0.0)
    """
    there = np.ceil(m / rows)
    return (there - m / rows) ** 2 / there


def long_k(k: Any) -> Any:
    """Thousands of K beyond 5,000 that slow a tile down: from 3,000 to 10,240, and none from 12,288 on.

    On the four Blackwells a tile's time per K grows with K, by 4 % from 4,096 to 10,240, and is back to where
    it was at 12,288, in the tables of all three libraries; why is not known. On Hopper it stays.

    >>> float(long_k(1000.0)), float(round(long_k(10240.0), 2)), float(long_k(20000.0))
    (-2.0, 5.24, 0.0)
    """
    beyond = np.maximum(k, 3000.0) - 5000.0
    return np.minimum(beyond, 5240.0 / 2048.0 * np.maximum(12288.0 - k, 0.0)) / 1000.0


def cast_us(one: Products, rates: Rates) -> Any:
    """Casting 16-bit activations to the operands' type first: the middle one of the casts known.

    Frameworks differ in it (a scale per tensor takes two passes, one per row a block of threads for each);
    0 where the GEMM is asked for alone.
    """
    if not rates.casts:
        return 0.0
    rows = one.m * one.batch
    moved = [memory_us(cast.element_bytes * rows * one.k, rates) for cast in rates.casts]
    each = [
        cast.start_us + np.maximum(cast.row_ns * rows / 1e3, us)
        for cast, us in zip(rates.casts, moved, strict=True)
    ]
    return np.sort(np.stack(each), axis=0)[len(each) // 2]


def shared_load(ctas: Any, pair_frac: float) -> Any:
    """Share of an operand's loads that is left where so many CTAs of a cluster load it together.

    ``pair_frac`` is that of two, and what the others save follows 1 - 1 / ctas.

    >>> shared_load(1, 0.6), shared_load(2, 0.6), round(shared_load(4, 0.6), 2)
    (1.0, 0.6, 0.4)
    """
    return 1 - 2 * (1 - pair_frac) * (1 - 1 / ctas)


def overlapped(compute_us: Array, memory_us: Array) -> Array:
    """Compute and memory traffic side by side, (c^4 + m^4)^(1/4): the longer of the two, and more where they
    are alike."""
    compute, memory = compute_us * compute_us, memory_us * memory_us
    return np.asarray(np.sqrt(np.sqrt(compute * compute + memory * memory)))


def memory_us(moved: Any, rates: Rates) -> Any:
    """So many bytes from memory, or from the L2 cache as far as they are still there."""
    at_most = (
        max(moved, rates.cached_mb * 1e6)
        if isinstance(moved, float)
        else np.maximum(moved, rates.cached_mb * 1e6)
    )
    cached = (rates.cached_mb * 1e6 / at_most) ** 2
    return moved * ((1 - cached) / rates.bandwidth_gbps + cached / rates.l2_gbps) / 1e3


def cached_us(mid: Any, one: Products, rates: Rates, l2_mb: float) -> Any:
    """The time ``mid`` where all operands come from the L2 cache; ``mid`` itself where they do not fit."""
    moved = memory_bytes(one)
    apart = rates.fixed_us + cast_us(one, rates)
    busy, moved_us = mid - apart, memory_us(moved, rates)
    read_us = np.minimum(moved / (rates.l2_gbps * 1e3), moved_us)
    within = apart + (np.maximum(busy**4 - moved_us**4, 0.0) + read_us**4) ** 0.25
    return np.where(moved <= l2_mb * 1e6, np.minimum(within, mid), mid)


def memory_bytes(products: Products) -> Any:
    """Bytes across memory when each operand crosses it once: the L2 cache serves the tiles of a wave."""
    one = products
    operands = one.size * (one.m * one.k + one.k * one.n) + one.out_size * one.m * one.n
    return one.batch * operands


def best(times: Array, preferred: Array | float = 1.0) -> tuple[Array, NDArray[np.intp], NDArray[np.intp]]:
    """(time, tile index, split index) of the candidate that the library takes for every product."""
    flat = times.reshape(times.shape[0], -1)
    at = (times * preferred).reshape(flat.shape).argmin(axis=1)
    return flat[np.arange(len(at)), at], at // times.shape[2], at % times.shape[2]
