"""Measured products that constants of GEMM predictions are fitted to, and how far a fit is off them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.ladder import alignment_ladder, operand_alignment
from tracelens.gemm.predict.architecture import Architecture, Library, Shares, architecture
from tracelens.gemm.predict.cost import SPLITS, Products, TileTable, best, costs, preference, whole
from tracelens.gemm.predict.family import LEAST, Family
from tracelens.gemm.predict.rates import SMALL, Rates, rates_of
from tracelens.hardware import Gpu

#: What moves, each with the bounds that keep it a physical figure.
BOUNDS = {
    "of_peak": (0.2, 2.5), "of_bandwidth": (0.3, 0.97), "load_elements": (1.0, 300.0),
    "partial_wave_frac": (0.3, 0.95), "first_wave_frac": (0.3, 1.0), "store_frac": (0.02, 1.5),
    "fixed_us": (0.5, 30.0), "split_us": (0.2, 60.0), "sm_gbps": (5.0, 1000.0),
    "cluster_load_frac": (0.5, 1.0), "cached_mb": (0.5, 120.0), "l2_sm_gbps": (10.0, 300.0),
    "sustained_loss_frac": (0.01, 0.6), "sustained_us": (100.0, 5000.0),
}  # fmt: skip
#: And what moves beside it in types below 16 bits.
CAST = {
    "cast_us": (0.3, 30.0), "cast_row_ns": (0.0, 30.0), "cast_bytes": (0.5, 12.0), "ragged_frac": (0.0, 2.0),
    "tile_us": (0.0, 10.0),
}  # fmt: skip
#: What a constant is moved by (ln) to see how times follow.
_APART = 1e-3
#: What a tile's rate away from the formula's weighs, so that only what rows show moves it.
_RATES_WEIGH = 0.003
#: An error counts no further, so that a few odd rows do not bend the fit.
_CAPPED = 0.5
_PART = 96  # rows predicted at once
_KEPT = 32  # candidates of a row that a descent looks at
#: What the error of the ratio of two neighbours' times weighs beside that of their times.
_PAIRS_WEIGH = 1.0
_DIFFERS = math.log(1.1)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Measured products, ready to be predicted, with what each weighs."""

    table: pd.DataFrame
    gpu: Gpu
    dtype: str
    weights: Array
    known: Architecture

    @classmethod
    def of(cls, table: pd.DataFrame, gpu: Gpu, dtype: str) -> Rows:
        """Every class of shape weighs the same, however many rows it has; large ones weigh double."""
        large = (table[["m", "n", "k"]] >= SMALL).all(axis=1)
        short, few = table["time_us"] < 10, table["m"] <= 64
        kinds = ((large, 2.0), (short, 1.0), (few, 1.0), (~large & ~short & ~few, 1.0))
        weights = np.sum([weight * kind / max(int(kind.sum()), 1) for kind, weight in kinds], axis=0)
        shares = np.asarray(weights / weights.sum(), dtype=np.float64)
        return cls(table, gpu, dtype, shares, architecture(gpu.compute_capability))

    def without_pairs(self) -> Rows:
        """The same for a library that has no tiles of pairs of SMs."""
        family = self.known.family
        alone = Family.of(family.longest, {}) if family is not None else None
        return replace(self, known=replace(self.known, family=alone))

    @cached_property
    def products(self) -> list[Products]:
        """In parts that fit in a core's cache with all their candidates."""
        ladder = alignment_ladder(gpu=self.gpu, dtype=self.dtype)
        size = bytes_per_element(self.dtype) or 2.0
        rows = [
            (m, n, k, 1, ladder.step_of(self._aligned(m, n, k)).mid or 1.0, size, 2.0)
            for m, n, k in self.table[["m", "n", "k"]].itertuples(index=False)
        ]
        return [Products.of(rows[at : at + _PART]) for at in range(0, len(rows), _PART)]

    def _aligned(self, m: int, n: int, k: int) -> dict[str, int | None]:
        return operand_alignment(m, n, k, dtype=self.dtype, out_dtype="bf16", layout="TN")

    @cached_property
    def pairs(self) -> NDArray[np.intp]:
        """Rows of large sizes next to one another in M or N, all else the same, at most twice as large."""
        sizes = self.table[["m", "n", "k"]].to_numpy()
        found = []
        for axis in (0, 1):
            order = np.lexsort([sizes[:, axis], *(sizes[:, one] for one in range(3) if one != axis)])
            one, other = sizes[order[:-1]], sizes[order[1:]]
            near = (np.delete(one, axis, 1) == np.delete(other, axis, 1)).all(axis=1)
            near &= (one.min(axis=1) >= SMALL) & (other[:, axis] <= 2 * one[:, axis])
            found.append(np.stack([order[:-1][near], order[1:][near]], axis=1))
        return np.concatenate(found)

    @cached_property
    def pair_weights(self) -> Array:
        """Neighbours that differ in time per FLOP, few as they are, weigh as much as all that do not."""
        work = np.log(self.table[["m", "n", "k"]].prod(axis=1).to_numpy(dtype=np.float64))
        per_flop = self.logs - work
        differ = np.abs(per_flop[self.pairs[:, 0]] - per_flop[self.pairs[:, 1]]) >= _DIFFERS
        share = np.where(differ, differ.mean() or 1.0, 1.0 - differ.mean())
        weights = 1 / share
        return np.asarray(weights / weights.sum())

    @cached_property
    def logs(self) -> Array:
        return np.asarray(np.log(self.table["time_us"].to_numpy(dtype=np.float64)))

    def errors(self, shares: Shares) -> Array:
        """ln(predicted / measured) of every row, all tiles and splits considered."""
        table, rates = self.tiles(shares), rates_of(shares, self.gpu, self.dtype)
        times = [best(costs(part, table, rates), preference(part, table, rates))[0] for part in self.products]
        return np.asarray(np.log(np.concatenate(times)) - self.logs)

    def tiles(self, shares: Shares) -> TileTable:
        assert self.gpu.sms is not None
        known = self.library(shares)
        return TileTable.of(known.tiles, sms=self.gpu.sms, rate_frac=known.rates, bias=known.bias)

    def library(self, shares: Shares) -> Library:
        return self.known.library_of(shares, self.dtype)

    def listed(self, shares: Shares) -> list[int]:
        """Places in the architecture's list of the first tiles of ``library``."""
        tiles = self.known.dispatched.get(shares.dispatched, self.known.tiles)
        return [at for at, one in enumerate(tiles) if not shares.family_rates or one.m * one.n < LEAST]

    def narrowed(self, shares: Shares) -> Narrowed:
        """The same rows, each with the candidates that ``shares`` make fastest."""
        table, rates = self.tiles(shares), rates_of(shares, self.gpu, self.dtype)
        found = []
        for part in self.products:
            flat = costs(part, table, rates) * preference(part, table, rates)
            flat = flat.reshape(len(flat), -1)
            found.append(np.argpartition(flat, min(_KEPT, flat.shape[1]) - 1, axis=1)[:, :_KEPT])
        return Narrowed.of(self, table, np.concatenate(found))


@dataclass(frozen=True)
class Narrowed:
    """Rows with a few candidates each: what a descent, which moves little, looks at again and again."""

    rows: Rows
    products: Products
    table: TileTable
    tile: NDArray[np.intp]  # (S, K): which tile each candidate is

    @classmethod
    def of(cls, rows: Rows, table: TileTable, kept: NDArray[np.intp]) -> Narrowed:
        tile, split = np.divmod(kept, len(SPLITS))
        shape = (1, len(table.tiles), len(SPLITS))
        arrays = {
            one.name: np.broadcast_to(getattr(table, one.name), shape)[0, tile, split][:, :, None]
            for one in fields(TileTable)
            if one.name != "tiles"
        }
        joined = [np.concatenate(one) for one in zip(*map(columns, rows.products), strict=True)]
        return cls(rows, Products(*joined), replace(table, **arrays), tile)

    def slope(self, shares: Shares, soft: float, *, of_gpu: bool) -> tuple[float, dict[str, Array]]:
        """The loss, and how it follows each figure: by its ln, coefficients by themselves.

        Figures ``of_gpu`` as a whole take one prediction of all rows each, and are left out without.
        """
        known, rates = self.rows.library(shares), rates_of(shares, self.rows.gpu, self.rows.dtype)
        table = self._table(np.asarray(known.rates), np.asarray(known.bias))
        logs = np.log(costs(self.products, table, rates)[:, :, 0])
        ranks = logs + np.log(preference(self.products, table, rates)[:, :, 0])
        share = np.exp((ranks.min(axis=1, keepdims=True) - ranks) / soft)
        share /= share.sum(axis=1, keepdims=True)
        logs = np.where(share > 0, logs, 0.0)
        middle = (share * logs).sum(axis=1, keepdims=True)
        loss, by_row = self._loss(middle[:, 0] - self.rows.logs)
        by_rank = -by_row[:, None] * share * (logs - middle) / soft
        by_time = by_row[:, None] * share + by_rank

        def followed(table: TileTable, rates: Rates) -> Array:
            moved = np.log(costs(self.products, table, rates)[:, :, 0])
            return np.asarray(by_time * np.where(share > 0, moved - logs, 0.0) / _APART)

        slopes: dict[str, Array] = {}
        for name in (*BOUNDS, *(CAST if rates.casts else ())) if of_gpu else ():
            value = np.atleast_1d(getattr(shares, name))
            slope = []
            for at in range(len(value)):
                moved = np.where(np.arange(len(value)) == at, value * math.exp(_APART), value).tolist()
                changed = {name: tuple(moved) if isinstance(getattr(shares, name), tuple) else moved[0]}
                moved_rates = rates_of(replace(shares, **changed), self.rows.gpu, self.rows.dtype)  # type: ignore[arg-type]
                slope.append(followed(table, moved_rates).sum())
            slopes[name] = np.reshape(slope, np.shape(getattr(shares, name)))
        faster = self._table(np.asarray(known.rates) * math.exp(_APART), np.asarray(known.bias))
        return loss, slopes | self._by_tile(shares, followed(faster, rates), by_rank)

    def _by_tile(self, shares: Shares, by_rate: Array, by_rank: Array) -> dict[str, Array]:
        """Slopes of what differs from tile to tile; figures away from the formula's weigh a little."""
        family = self.rows.known.family if shares.family_rates else None
        listed = self.rows.listed(shares)
        count = len(listed) + (len(family.tiles) if family is not None else 0)
        rate, rank = (np.bincount(self.tile.ravel(), by.ravel(), count) for by in (by_rate, by_rank))
        rates = np.log(shares.tile_rates)
        found = {"tile_rates": _RATES_WEIGH * np.sign(rates) / len(rates)}
        found["tile_rates"][listed] += rate[: len(listed)]
        if family is None:
            return found
        ways = (("family_rates", family.of_rate, rate), ("family_bias", family.features, rank))
        for name, features, by in ways:
            weigh = np.sign(getattr(shares, name)) * _RATES_WEIGH / features.shape[1]
            found[name] = features.T @ by[len(listed) :] + weigh
        for name, size in (("whole_m_frac", "m"), ("whole_n_frac", "n")):
            divides = whole(getattr(self.products, size), getattr(self.table, size))[:, :, 0]
            found[name] = np.asarray((by_rank * divides).sum())
        return found

    def _loss(self, error: Array) -> tuple[float, Array]:
        """The mean error of rows and of the ratios of neighbours, and its slope by each row's error."""
        inside = np.abs(error) < _CAPPED
        loss = float((np.minimum(np.abs(error), _CAPPED) * self.rows.weights).sum())
        by_row = np.sign(error) * inside * self.rows.weights
        if len(self.rows.pairs):
            one, other = self.rows.pairs.T
            change, weights = error[one] - error[other], _PAIRS_WEIGH * self.rows.pair_weights
            loss += float((np.minimum(np.abs(change), _CAPPED) * weights).sum())
            by_pair = np.sign(change) * (np.abs(change) < _CAPPED) * weights
            by_row = by_row + np.bincount(one, by_pair, len(error)) - np.bincount(other, by_pair, len(error))
        return loss, by_row

    def _table(self, rates: Array, bias: Array) -> TileTable:
        return replace(self.table, rate_frac=rates[self.tile][:, :, None], bias=bias[self.tile][:, :, None])


def columns(products: Products) -> list[Array]:
    return [np.asarray(getattr(products, one.name)) for one in fields(Products)]
