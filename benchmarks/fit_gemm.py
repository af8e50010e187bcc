"""Fit the constants of GEMM predictions: python -m benchmarks.fit_gemm [--gpu G] [--dtype D] [--write]

Prints the constants of ``tracelens/gemm/predict/architectures`` per GPU and type, fitted to the two thirds of
the weight shapes that judge nothing (``benchmarks.silicon``); --write puts them there. Starts from the same
figures each time and moves one at a time, so that the same rows give the same constants. The A100's are kept
from an earlier fit, as that follows the authors' sweeps (arXiv 2401.14489) better and these rows as well.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.predictions import neighbours
from benchmarks.silicon import DTYPES, GPUS, linears
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.gain import ratio_error
from tracelens.gemm.ladder import alignment_ladder, operand_alignment
from tracelens.gemm.predict.architecture import Shares, architecture
from tracelens.gemm.predict.cost import SPLITS, Products, TileTable, best, costs
from tracelens.gemm.predict.rates import SMALL, rates_of
from tracelens.hardware import Gpu, find_gpu

_ARCHITECTURES = Path(__file__).parents[1] / "tracelens" / "gemm" / "predict" / "architectures"
_VERSION = "benchmarks/fit_gemm.py 1"
#: Where descents start, the better of two: kernels that stay on an SM for tile after tile, and one per tile.
_STARTS = tuple(
    Shares(
        partial_wave_frac=partial, first_wave_frac=first, sm_gbps=sm_gbps, of_peak=0.85, of_bandwidth=0.8,
        load_elements=45.0, store_frac=0.4, fixed_us=2.0, split_us=2.5, cluster_load_frac=0.65,
        cached_mb=10.0, l2_sm_gbps=60.0, sustained_loss_frac=0.2, sustained_us=1000.0, low=0.9, high=1.1,
        low_small=0.8, high_small=1.2, source="",
    )
    for partial, first, sm_gbps in ((0.46, 0.6, 90.0), (0.85, 0.8, 36.0))
)  # fmt: skip
#: What moves, each with the bounds that keep it a physical figure.
_BOUNDS = {
    "of_peak": (0.2, 2.5), "of_bandwidth": (0.3, 0.97), "load_elements": (1.0, 300.0),
    "partial_wave_frac": (0.3, 0.95), "first_wave_frac": (0.3, 1.0), "store_frac": (0.02, 1.5),
    "fixed_us": (0.5, 30.0), "split_us": (0.2, 60.0), "sm_gbps": (5.0, 1000.0),
    "cluster_load_frac": (0.5, 1.0), "cached_mb": (0.5, 120.0), "l2_sm_gbps": (10.0, 300.0),
    "sustained_loss_frac": (0.01, 0.6), "sustained_us": (100.0, 5000.0),
}  # fmt: skip
_CAST = {"cast_us": (0.5, 30.0), "cast_bytes": (0.5, 12.0)}
#: CUTLASS's dispatchers switch tiles by M; cuBLAS's does not.
_WHOLE_TILES_ABOVE_M = (math.inf, 32.0, 64.0, 128.0, 256.0)
_STEPS = (1.5, 1.2, 1.07, 1.12, 1.06, 1.03, 1.03, 1.015)
_RATE_BOUNDS = (0.6, 1.5)
#: What a tile's rate away from the formula's weighs, so that only what rows show moves it.
_RATES_WEIGH = 0.003
#: An error counts no further, so that a few odd rows do not bend the fit.
_CAPPED = 0.5
_PART = 96  # rows predicted at once
_KEPT = 24  # candidates of a row that a descent looks at
#: What the error of the ratio of two neighbours' times weighs beside that of their times.
_PAIRS_WEIGH = 0.5
_DIFFERS = math.log(1.1)
#: Share of the fitted rows that lies below the range's low end, and above its high end.
_OUTSIDE = 0.018
#: GEMMs of training steps vary more than those of these tables, which run alone: traces of an H100.
_LARGE_RANGE, _SMALL_RANGE = (0.87, 1.2), (0.75, 1.4)
#: Predicted differences (ln) from which on to name neighbours; how many for each true one, and wrongly.
_TOLD_APART = (0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06, 0.07, 0.08, 0.0953)
_MOST_NAMED, _MOST_WRONG = 2.8, 0.02
#: Fewer rows than this say too little for so many constants.
_ENOUGH = 1000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Measured products, ready to be predicted, with what each weighs."""

    table: pd.DataFrame
    gpu: Gpu
    dtype: str
    weights: Array

    @classmethod
    def of(cls, table: pd.DataFrame, gpu: Gpu, dtype: str) -> Rows:
        """Every class of shape weighs the same, however many rows it has; large ones weigh double."""
        large = (table[["m", "n", "k"]] >= SMALL).all(axis=1)
        short, few = table["time_us"] < 10, table["m"] <= 64
        kinds = ((large, 2.0), (short, 1.0), (few, 1.0), (~large & ~short & ~few, 1.0))
        weights = np.sum([weight * kind / max(int(kind.sum()), 1) for kind, weight in kinds], axis=0)
        return cls(table, gpu, dtype, np.asarray(weights / weights.sum(), dtype=np.float64))

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
        times = np.concatenate([best(costs(part, table, rates))[0] for part in self.products])
        return np.asarray(np.log(times) - self.logs)

    def tiles(self, shares: Shares) -> TileTable:
        assert self.gpu.sms is not None
        known = architecture(self.gpu.compute_capability).tiles
        return TileTable.of(known, sms=self.gpu.sms, rate_frac=shares.tile_rates)

    def narrowed(self, shares: Shares) -> Narrowed:
        """The same rows, each with the candidates that ``shares`` make fastest."""
        table, rates = self.tiles(shares), rates_of(shares, self.gpu, self.dtype)
        found = []
        for part in self.products:
            flat = costs(part, table, rates)
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
        joined = [np.concatenate(one) for one in zip(*map(_columns, rows.products), strict=True)]
        return cls(rows, Products(*joined), replace(table, **arrays), tile)

    def loss(self, shares: Shares) -> float:
        rates = np.asarray(shares.tile_rates)[self.tile][:, :, None]
        table = replace(self.table, rate_frac=rates)
        times = costs(self.products, table, rates_of(shares, self.rows.gpu, self.rows.dtype)).min(axis=(1, 2))
        error = np.log(times) - self.rows.logs
        own = float((np.minimum(np.abs(error), _CAPPED) * self.rows.weights).sum())
        own += _RATES_WEIGH * float(np.abs(np.log(shares.tile_rates)).mean())
        if not len(self.rows.pairs):
            return own
        change = np.abs(error[self.rows.pairs[:, 0]] - error[self.rows.pairs[:, 1]])
        return own + _PAIRS_WEIGH * float((np.minimum(change, _CAPPED) * self.rows.pair_weights).sum())


def _columns(products: Products) -> list[Array]:
    return [np.asarray(getattr(products, one.name)) for one in fields(Products)]


def fit(rows: Rows) -> Shares:
    """The constants with the least mean error, by coordinate descent; then the range that holds the rows."""
    tiles = architecture(rows.gpu.compute_capability).tiles
    bounds = dict(_BOUNDS)
    starts = [replace(one, tile_rates=(1.0,) * len(tiles)) for one in _STARTS]
    if rows.dtype != "bf16":
        bounds |= _CAST
        starts = [replace(one, cast_us=3.0, cast_bytes=3.0) for one in starts]
    moves = [_field(name, low, high) for name, (low, high) in bounds.items()]
    rates = [_tile(at) for at in range(len(tiles))]
    shares = _best(rows, [_descend(one, rows, moves, _STEPS[:3]) for one in starts])
    if rows.dtype != "bf16":
        kinds = [replace(shares, whole_tiles_above_m=above) for above in _WHOLE_TILES_ABOVE_M]
        shares = _best(rows, [_descend(one, rows, moves, _STEPS[2:3]) for one in kinds])
    for step in _STEPS[3:]:
        shares = _descend(shares, rows, rates, (step,))
        shares = _descend(shares, rows, moves, (step,))
    return _ranged(rows, _rounded(shares))


def _best(rows: Rows, options: list[Shares]) -> Shares:
    return min(options, key=lambda one: rows.narrowed(one).loss(one))


Move = Callable[[Shares, float], Shares]


def _field(name: str, low: float, high: float) -> Move:
    def move(shares: Shares, factor: float) -> Shares:
        changed = {name: float(np.clip(getattr(shares, name) * factor, low, high))}
        return replace(shares, **changed)  # type: ignore[arg-type]

    return move


def _tile(at: int) -> Move:
    def move(shares: Shares, factor: float) -> Shares:
        rates = list(shares.tile_rates)
        rates[at] = float(np.clip(rates[at] * factor, *_RATE_BOUNDS))
        return replace(shares, tile_rates=tuple(rates))

    return move


def _descend(shares: Shares, rows: Rows, moves: list[Move], steps: tuple[float, ...]) -> Shares:
    """One figure at a time, in steps that shrink, as long as the loss falls."""
    for step in steps:
        loss = rows.narrowed(shares).loss
        least = loss(shares)
        for move in moves:
            for factor in (step, 1 / step):
                while (moved := move(shares, factor)) != shares and (found := loss(moved)) < least - 1e-7:
                    least, shares = found, moved
    return shares


def _rounded(shares: Shares) -> Shares:
    figures = {
        one.name: float(f"{getattr(shares, one.name):.4g}") for one in fields(Shares) if one.type == "float"
    }
    rates = tuple(float(f"{rate:.3g}") for rate in shares.tile_rates)
    return replace(shares, **figures, tile_rates=rates)  # type: ignore[arg-type]


def _ranged(rows: Rows, shares: Shares) -> Shares:
    """Ends of the range, so that all but a few of the fitted rows are inside; apart for small shapes."""
    ratio = np.exp(-rows.errors(shares))
    large = (rows.table[["m", "n", "k"]] >= SMALL).all(axis=1).to_numpy()
    ends = [np.quantile(ratio[part], [_OUTSIDE, 1 - _OUTSIDE]) for part in (large, ~large)]
    low, high, low_small, high_small = (float(f"{end:.3g}") for pair in ends for end in pair)
    if rows.dtype == "bf16":
        low, high = min(low, _LARGE_RANGE[0]), max(high, _LARGE_RANGE[1])
    low_small, high_small = min(low_small, _SMALL_RANGE[0]), max(high_small, _SMALL_RANGE[1])
    return replace(shares, low=low, high=high, low_small=low_small, high_small=high_small)


def compared(rows: Rows, shares: Shares) -> Shares:
    """What is known of neighbours beyond their times: the error of their ratio, and when to name them.

    ``rows`` are all large ones with their sources. Named are neighbours from the least predicted difference
    on at which few are named for each pair that two sources measure 10 % apart, and few the wrong way round.
    """
    errors = rows.errors(shares)
    sizes = np.log(rows.table[["m", "n", "k"]].to_numpy(dtype=np.float64))
    one, other = rows.pairs[:, 0], rows.pairs[:, 1]
    apart = np.abs(sizes[one] - sizes[other]).max(axis=1)
    error = np.abs(errors[one] - errors[other]) / [ratio_error(each) for each in apart]
    table = rows.table.assign(mid=rows.table["time_us"] * np.exp(errors), low=0.0, high=0.0)
    limits = {}
    for axis in "mn":
        for limit in _TOLD_APART:
            found = neighbours(table, axis, limit)
            few = float(found["named_per_true"]) <= _MOST_NAMED and float(found["wrong_way"]) <= _MOST_WRONG
            if found["true"] and few:
                limits[f"told_apart_{axis}"] = limit
                break
    return replace(shares, ratio_error_frac=float(f"{np.quantile(error, 0.9):.3g}"), **limits)  # type: ignore[arg-type]


def sampled(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """About so many rows: large ones in whole planes of M and N, which neighbours lie in, and some small."""
    large = (table[["m", "n", "k"]] >= SMALL).all(axis=1)
    planes = sorted(table["k"][large].unique())
    step = max(round(1.5 * int(large.sum()) / most), 1)
    small = table[~large].sort_values(["n", "k", "m"])
    at = np.unique(np.linspace(0, len(small) - 1, min(most // 3, len(small))).astype(int))
    return pd.concat([table[large & table["k"].isin(planes[::step])], small.iloc[at]])


def written(shares: Shares, name: str, dtype: str) -> str:
    """The block of an architecture's file."""
    lines = [f"[shares.{dtype}.{name}]"]
    for one in fields(Shares):
        value = getattr(shares, one.name)
        if one.name == "tile_rates":
            lines.append(f"tile_rates = [{', '.join(f'{rate:g}' for rate in value)}]")
        elif one.name == "source":
            lines.append(f'source = "{value}"')
        elif value != one.default:
            lines.append(f"{one.name} = {value:.7g}")
    return "\n".join(lines) + "\n"


def _write(block: str, gpu: Gpu) -> None:
    major, minor = gpu.compute_capability or (0, 0)
    path = _ARCHITECTURES / f"sm{major}{minor}.toml"
    head = re.escape(block.partition("\n")[0])
    text, count = re.subn(rf"(?ms)^{head}\n.*?(?=^\[|\Z)", lambda _: block + "\n", path.read_text())
    path.write_text((text if count else text.rstrip("\n") + "\n\n" + block).rstrip("\n") + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu", action="append", choices=list(GPUS), help="folders of the table; all")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="all")
    parser.add_argument("--rows", type=int, default=2400, help="fitted at most, of each GPU and type")
    parser.add_argument("--write", action="store_true", help="put the constants where they belong")
    given = parser.parse_args(arguments)
    for folder in given.gpu or list(GPUS):
        gpu = find_gpu(None, override=GPUS[folder][1])
        for dtype in given.dtype or list(DTYPES):
            table = linears(folder, dtype, judging=False)
            if len(table) < _ENOUGH:
                print(f"{gpu.name}, {dtype}: {len(table)} rows of which two sources agree are too few")
                continue
            shares = fit(Rows.of(sampled(table, given.rows), gpu, dtype))
            if dtype == "bf16":
                large = Rows.of(table[(table[["m", "n", "k"]] >= SMALL).all(axis=1)], gpu, dtype)
                shares = compared(large, shares)
            title = gpu.title.removeprefix("NVIDIA ")
            source = (
                f"NVIDIA aiconfigurator's tables (095f58a51), {title}: two thirds of the weight shapes,"
                f" as its clocks and power stood ({_VERSION})"
            )
            block = written(replace(shares, source=source), gpu.name, dtype)
            print(block, flush=True)
            if given.write:
                _write(block, gpu)


if __name__ == "__main__":
    main()
