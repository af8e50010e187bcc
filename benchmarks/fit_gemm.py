"""Fit the constants of GEMM predictions: python -m benchmarks.fit_gemm [--gpu G] [--dtype D] [--write]

Prints the constants of ``tracelens/gemm/predict/architectures`` per GPU and type, fitted to the two thirds of
the weight shapes that judge nothing (``benchmarks.silicon``); --write puts them there, --check instead says
which of those there differ. Starts from the same figures each time: the same rows give the same constants.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.fit_rows import BOUNDS, CAST, Array, Rows, columns
from benchmarks.predictions import neighbours
from benchmarks.silicon import DTYPES, GPUS, linears
from tracelens.gemm.gain import ratio_error
from tracelens.gemm.predict.architecture import Shares, architecture
from tracelens.gemm.predict.cost import Products, cached_us
from tracelens.gemm.predict.rates import FEW, SHORT_US, SMALL, most_l2_mb, rates_of
from tracelens.hardware import Gpu, find_gpu

_ARCHITECTURES = Path(__file__).parents[1] / "tracelens" / "gemm" / "predict" / "architectures"
_PROGRAM, _VERSION = "benchmarks/fit_gemm.py", 5
#: What the source of a block says of the program: its version, and ``digest`` of the block.
STAMP = re.compile(rf"\({_PROGRAM} (\d+), (\w+)\)")
_AS_STORED = "as stored"
#: Where descents start: the better of kernels that stay on an SM for tile after tile, and one per tile; and
#: for libraries with a family of tiles, whose rates traces of training contradict where the others lead.
_STARTS = tuple(
    Shares(
        partial_wave_frac=partial, first_wave_frac=first, sm_gbps=sm_gbps, of_peak=0.85, of_bandwidth=0.8,
        load_elements=45.0, store_frac=0.4, fixed_us=2.0, split_us=2.5, cluster_load_frac=0.65,
        cached_mb=10.0, l2_sm_gbps=60.0, sustained_loss_frac=0.2, sustained_us=1000.0, low=0.9, high=1.1,
        low_small=0.8, high_small=1.2, source="",
    )
    for partial, first, sm_gbps in ((0.46, 0.6, 90.0), (0.85, 0.8, 36.0), (0.88, 0.6, 110.0))
)  # fmt: skip
#: And those of types below 16 bits: SGLang's cast, vLLM's, which takes a block of threads for each row, and
#: TensorRT-LLM's, which looks for the tensor's largest value first.
_CASTS = {
    "cast_us": (2.0, 2.0, 9.0), "cast_row_ns": (0.3, 7.0, 0.1), "cast_bytes": (3.0, 4.0, 5.0),
    "ragged_frac": 0.3, "tile_us": 1.0,
}  # fmt: skip
#: CUTLASS's dispatchers switch tiles by M; cuBLAS's does not.
_WHOLE_TILES_ABOVE_M = (math.inf, 32.0, 64.0, 128.0, 256.0)
_RATE_BOUNDS = (0.6, 1.5)
#: Of a family's coefficients.
_COEFFICIENT_BOUNDS = (-0.4, 0.4)
_WHOLE_BOUNDS = (0.7, 1.05)
#: Steps of a descent, rounds in which each row's candidates are chosen anew, the length of a step at first.
_STEPS, _ROUNDS, _LENGTH = 120, 6, 0.02
#: Descents of pairs and of types below 16 bits, each from where the last ended, with long steps again (arXiv
#: 1608.03983).
_DESCENTS = 3
#: Candidates whose times differ by less than this (ln) share a row while constants move, as steps in a choice
#: would hide where to go: at first and at last.
_SOFT = (0.03, 0.0015)
#: What a thousand of K adds to a tile (``cost.long_k``).
_LONG_K = tuple(round(0.001 * step, 3) for step in range(11))
#: Share of the fitted rows that lies below the range's low end, and above its high end.
_OUTSIDE = 0.025
#: Errors of weight shapes left out of a fit over those of shapes in it (ln, at these quantiles): an H100's,
#: each third left out in turn, 1.07 for large shapes, 1.10 up to 64 rows, 1.05 under 10 us, 1.0 for the rest.
_LEFT_OUT = 1.08
#: In fp8 and less training runs kernels of other libraries than these tables: the output layer of a public
#: H100 trace (16384 x 50304 x 768) takes 0.74 of the prediction.
_OTHER_KERNELS = 0.7
#: A class of fewer rows has no range of its own.
_ENOUGH_TO_RANGE = 100
#: Predicted differences (ln) from which on to name neighbours; how many for each true one, and wrongly.
_TOLD_APART = tuple(round(0.01 + 0.0025 * step, 4) for step in range(35))
_MOST_NAMED, _MOST_WRONG = 2.8, 0.0175
#: Fewer rows than this say too little for so many constants.
_ENOUGH = 1000


def fit(rows: Rows, *, steps: int = _STEPS) -> Shares:
    """The constants with the least mean error, down its slope."""
    shares = _alone(rows.without_pairs(), steps)
    family = rows.known.family
    return (
        shares
        if family is None or not shares.family_rates or not family.pairs
        else paired(shares, rows, steps)
    )


def _alone(rows: Rows, steps: int) -> Shares:
    """The same for a library without tiles of pairs of SMs."""
    known = rows.known
    if rows.dtype != "bf16":
        return _with_casts(rows, steps)
    starts = [replace(one, tile_rates=(1.0,) * len(known.tiles)) for one in _STARTS[:2]]
    if known.family is not None:
        rates, bias = ((0.0,) * each.shape[1] for each in (known.family.of_rate, known.family.features))
        starts = [replace(_STARTS[2], tile_rates=starts[0].tile_rates, family_rates=rates, family_bias=bias)]
    shares = starts[0]
    if len(starts) > 1:
        shares = _best([_descend(one, rows, steps // 6, rounds=1) for one in starts])
    _, shares = _descend(shares, rows, steps, rounds=_ROUNDS)
    return _rounded(shares)


def _with_casts(rows: Rows, steps: int) -> Shares:
    """The same for types below 16 bits, by the tiles that dispatchers take where those are listed."""
    known, dispatched = rows.known, rows.dtype if rows.dtype in rows.known.dispatched else ""
    rates = (1.0,) * len(known.dispatched.get(dispatched, known.tiles))
    starts = [replace(one, tile_rates=rates, dispatched=dispatched, **_CASTS) for one in _STARTS[:2]]  # type: ignore[arg-type]
    shares = _best([_descend(one, rows, steps // 6, rounds=1) for one in starts])
    if not dispatched:
        kinds = [replace(shares, whole_tiles_above_m=above) for above in _WHOLE_TILES_ABOVE_M]
        shares = _best([_descend(one, rows, steps // 10, rounds=1) for one in kinds])
    for _ in range(_DESCENTS):
        _, shares = _descend(shares, rows, steps, rounds=_ROUNDS)
    return _rounded(shares)


def paired(shares: Shares, rows: Rows, steps: int = _STEPS) -> Shares:
    """From there on with tiles of pairs of SMs: the best of descents that each go on from the last."""
    family = rows.known.family
    assert family is not None
    rates, bias = (family.with_pairs(each) for each in (shares.family_rates, shares.family_bias))
    found = [(math.inf, replace(shares, family_rates=rates, family_bias=bias))]
    for _ in range(_DESCENTS):
        found.append(_descend(found[-1][1], rows, steps, rounds=_ROUNDS))
    return _rounded(_best(found))


def _best(options: list[tuple[float, Shares]]) -> Shares:
    return min(options, key=lambda one: one[0])[1]


def _descend(shares: Shares, rows: Rows, steps: int, *, rounds: int) -> tuple[float, Shares]:
    """Adam (arXiv 1412.6980) with steps that shrink; the last loss and where it ended."""
    means: dict[str, tuple[Array, Array, int]] = {}
    loss, narrowed = math.inf, rows.narrowed(shares)
    for step in range(steps):
        if step and step % max(steps // rounds, 1) == 0:
            narrowed = rows.narrowed(shares)
        soft = _SOFT[0] * (_SOFT[1] / _SOFT[0]) ** (step / steps)
        loss, slopes = narrowed.slope(shares, soft, of_gpu=step % 2 == 0)
        length = _LENGTH * (1 - 0.9 * step / steps)
        moves = {}
        for name, slope in slopes.items():
            mean, square, seen = means.get(name, (np.zeros_like(slope), np.zeros_like(slope), 0))
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope * slope
            means[name] = mean, square, seen + 1
            unbiased = mean / (1 - 0.9 ** (seen + 1)), square / (1 - 0.999 ** (seen + 1))
            moves[name] = -length * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        shares = _moved(shares, moves)
    return loss, shares


def _moved(shares: Shares, moves: dict[str, Array]) -> Shares:
    """Every figure moved by so much, others than coefficients in ln, as far as its bounds allow."""
    bounds = {**BOUNDS, **CAST, "tile_rates": _RATE_BOUNDS}
    bounds |= {"whole_m_frac": _WHOLE_BOUNDS, "whole_n_frac": _WHOLE_BOUNDS}
    changed: dict[str, object] = {}
    for name, by in moves.items():
        value = np.asarray(getattr(shares, name))
        if name in ("family_rates", "family_bias"):
            value = np.clip(value + by, *_COEFFICIENT_BOUNDS)
        else:
            value = np.clip(value * np.exp(by), *bounds[name])
        changed[name] = tuple(value.tolist()) if value.ndim else float(value)
    return replace(shares, **changed)  # type: ignore[arg-type]


def _rounded(shares: Shares) -> Shares:
    figures = {
        one.name: float(f"{getattr(shares, one.name):.4g}") for one in fields(Shares) if one.type == "float"
    }
    lists = {
        one.name: tuple(float(f"{value:.3g}") for value in getattr(shares, one.name))
        for one in fields(Shares)
        if isinstance(getattr(shares, one.name), tuple)
    }
    return replace(shares, **figures, **lists)  # type: ignore[arg-type]


def ranged(rows: Rows, shares: Shares) -> Shares:
    """Ends of the range, so that all but a few of ``rows`` are inside; apart by kind of small shapes."""
    rates, measured = rates_of(shares, rows.gpu, rows.dtype), rows.table["time_us"].to_numpy(dtype=np.float64)
    mid = measured * np.exp(rows.errors(shares))
    products = Products(
        *(np.concatenate(one).ravel() for one in zip(*map(columns, rows.products), strict=True))
    )
    least = cached_us(mid, products, rates, most_l2_mb(rows.gpu))
    m = rows.table["m"].to_numpy()
    large = (rows.table[["m", "n", "k"]] >= SMALL).all(axis=1).to_numpy()
    few, short = ~large & (m <= FEW), ~large & (m > FEW) & (mid < SHORT_US)

    def ends(part: NDArray[np.bool_]) -> tuple[float, ...]:
        if part.sum() < _ENOUGH_TO_RANGE:
            return ()
        low = np.quantile(measured[part] / least[part], _OUTSIDE) ** _LEFT_OUT
        high = np.quantile(measured[part] / mid[part], 1 - _OUTSIDE) ** _LEFT_OUT
        return float(f"{min(low, 1.0):.3g}"), float(f"{max(high, 1.0):.3g}")

    low, high = ends(large) or (shares.low, shares.high)
    rest = ends(~large & ~few & ~short) or ends(~large)
    low_small, high_small = rest or (shares.low_small, shares.high_small)
    if rows.dtype != "bf16":
        low_small = min(low_small, _OTHER_KERNELS)
    figures = {"low": low, "high": high, "low_small": low_small, "high_small": high_small}
    return replace(shares, **figures, few=ends(few), short=ends(short))  # type: ignore[arg-type]


def compared(rows: Rows, shares: Shares) -> Shares:
    """What is known of neighbours: the error of their ratio, and when to name them.

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
        if isinstance(value, tuple):
            lines += [f"{one.name} = [{', '.join(f'{figure:g}' for figure in value)}]"] if value else []
        elif isinstance(value, str):
            lines += [f'{one.name} = "{value}"'] if value or one.name == "source" else []
        elif value != one.default:
            lines.append(f"{one.name} = {value:.7g}")
    return "\n".join(lines) + "\n"


def digest(shares: Shares, name: str, dtype: str) -> str:
    """What a block's source says of its figures, so that one changed by hand is seen."""
    block = written(replace(shares, source=""), name, dtype)
    return hashlib.sha256(block.encode()).hexdigest()[:8]


def _found(folder: str, gpu: Gpu, dtype: str, most: int) -> Shares | None:
    """All that a fit tells of one GPU and type; None where there are too few rows."""
    table = linears(folder, dtype, judging=False)
    if len(table) < _ENOUGH:
        print(f"{gpu.name}, {dtype}: {len(table)} rows of which two sources agree are too few")
        return None
    shares = _judged(table, gpu, dtype, fit(Rows.of(sampled(table, most), gpu, dtype)))
    source = (
        f"NVIDIA aiconfigurator's tables (095f58a51), {gpu.title.removeprefix('NVIDIA ')}: two thirds of the"
        " weight shapes, as its clocks and power stood "
    )
    return replace(shares, source=f"{source}({_PROGRAM} {_VERSION}, {digest(shares, gpu.name, dtype)})")


def _judged(table: pd.DataFrame, gpu: Gpu, dtype: str, shares: Shares) -> Shares:
    """The ranges of fitted constants, and when to name neighbours by them."""
    large = Rows.of(table[(table[["m", "n", "k"]] >= SMALL).all(axis=1)], gpu, dtype)
    if dtype == "bf16":
        shares = lengthened(large, shares)
    shares = ranged(Rows.of(table, gpu, dtype), shares)
    return compared(large, shares) if dtype == "bf16" else shares


def lengthened(rows: Rows, shares: Shares) -> Shares:
    """With what a long K costs: the least median error of large rows."""
    options = [replace(shares, long_k_frac=each) for each in _LONG_K]
    return min(options, key=lambda one: float(np.median(np.abs(rows.errors(one)))))


def _reranged(folder: str, gpu: Gpu, dtype: str, most: int) -> Shares | None:
    """The stored constants, whose version their source keeps, with what today is said of their errors."""
    stored = architecture(gpu.compute_capability).shares.get(dtype, {}).get(gpu.name)
    table = linears(folder, dtype, judging=False)
    if stored is None or not STAMP.search(stored.source) or len(table) < _ENOUGH:
        return None
    shares = _judged(table, gpu, dtype, stored)
    stamp = rf"({_PROGRAM} \1, {digest(shares, gpu.name, dtype)})"
    return replace(shares, source=STAMP.sub(stamp, stored.source))


def _further(folder: str, gpu: Gpu, dtype: str, most: int) -> Shares | None:
    """The stored constants, gone on with down the slope."""
    stored = architecture(gpu.compute_capability).shares.get(dtype, {}).get(gpu.name)
    table = linears(folder, dtype, judging=False)
    stamp = STAMP.search(stored.source) if stored is not None else None
    if stored is None or stamp is None or len(table) < _ENOUGH:
        return None
    rows = Rows.of(sampled(table, most), gpu, dtype)
    _, shares = _descend(stored, rows, _STEPS, rounds=_ROUNDS)
    shares = _judged(table, gpu, dtype, _rounded(shares))
    said = f", gone on from version {stamp[1]}'s ({_PROGRAM} {_VERSION}, {digest(shares, gpu.name, dtype)})"
    return replace(shares, source=re.sub(f" {STAMP.pattern}", said, stored.source))


def _compared_to_stored(shares: Shares, gpu: Gpu, dtype: str) -> str:
    """Are these the stored figures, whichever version of the program stored them?"""
    stored = architecture(gpu.compute_capability).shares.get(dtype, {}).get(gpu.name)
    if stored is None:
        return "nothing is stored"
    if digest(stored, gpu.name, dtype) == digest(shares, gpu.name, dtype):
        return _AS_STORED
    stamp = STAMP.search(stored.source)
    return f"differs from what version {stamp[1]} stored" if stamp else "differs from what is stored"


def _path(gpu: Gpu) -> Path:
    major, minor = gpu.compute_capability or (0, 0)
    return _ARCHITECTURES / f"sm{major}{minor}.toml"


def _write(block: str, gpu: Gpu) -> None:
    path = _path(gpu)
    head = re.escape(block.partition("\n")[0])
    text, count = re.subn(rf"(?ms)^{head}\n.*?(?=^\[|\Z)", lambda _: block + "\n", path.read_text())
    path.write_text((text if count else text.rstrip("\n") + "\n\n" + block).rstrip("\n") + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu", action="append", choices=list(GPUS), help="folders of the table; all")
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="all")
    parser.add_argument("--rows", type=int, default=3600, help="fitted at most, of each GPU and type")
    parser.add_argument("--write", action="store_true", help="put the constants where they belong")
    parser.add_argument(
        "--ranges", action="store_true", help="ranges and neighbours alone, by the constants there"
    )
    parser.add_argument("--further", action="store_true", help="go on from the constants there")
    parser.add_argument(
        "--check", action="store_true", help="say which differ from those there; 1 if any does"
    )
    given = parser.parse_args(arguments)
    made = _reranged if given.ranges else _further if given.further else _found
    differ = 0
    for folder in given.gpu or list(GPUS):
        gpu = find_gpu(None, override=GPUS[folder][1])
        for dtype in given.dtype or list(DTYPES):
            shares = made(folder, gpu, dtype, given.rows)
            if shares is None:
                continue
            block = written(shares, gpu.name, dtype)
            said = _compared_to_stored(shares, gpu, dtype)
            differ += said != _AS_STORED
            print(f"{gpu.name}, {dtype}: {said}" if given.check else block, flush=True)
            if given.write:
                _write(block, gpu)
    return int(given.check and differ > 0)


if __name__ == "__main__":
    sys.exit(main())
