"""How well GEMM times are predicted: python -m benchmarks.predictions [--fit] [--gpu h100_sxm] [--json FILE]

Per GPU and class: number of shapes, median and 90th percentile of |ln(predicted / measured)|, and the share
whose measured time lies in the stated range. Measured is the median of the sources. Neighbours are sizes
next to one another in the table (another N or M, all else the same, at most twice as large) from 1024 up;
true ones differ by 10 % or more in time per FLOP in at least two sources. Judged are the weight shapes that
no fit sees; --fit judges those that fits see.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.silicon import DTYPES, GPUS, left_out, linears, sources
from tracelens.errors import UsageError
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.architecture import architecture
from tracelens.hardware import Gpu, find_gpu

_SWEEPS = Path(__file__).parents[2] / "shared" / "paper_data" / "a100_gemm_sweeps.csv"
#: Time per FLOP differs by this much (ln) or the sizes are as good as one another.
_DIFFERS = math.log(1.1)
_LARGE = 1024
#: The authors' batched GEMMs, timed by the CPU's clock around a launch and a synchronization.
_BY_THE_CPU = "bmm/msweep"
Figures = dict[str, float | int | str]


def predicted(table: pd.DataFrame, gpu: Gpu, dtype: str, layout: str = "TN") -> pd.DataFrame:
    """The table with columns ``low``, ``mid`` and ``high`` in us; NaN where nothing is predicted."""
    batches = table["batch"] if "batch" in table else [1] * len(table)
    times = []
    for m, n, k, batch in zip(table["m"], table["n"], table["k"], batches, strict=True):
        sizes = int(m), int(n), int(k)
        one = predict_gemm(*sizes, gpu=gpu, batch=int(batch), dtype=dtype, layout=layout, cast=True)
        times.append((one.time_us.low, one.time_us.mid, one.time_us.high))
    found = np.asarray(times, dtype=np.float64).reshape(-1, 3)
    return table.assign(low=found[:, 0], mid=found[:, 1], high=found[:, 2])


def judged(table: pd.DataFrame) -> Figures:
    """n, median and 90th percentile of the error, bias, and the share in range."""
    known = table[table["mid"].notna()]
    if not len(known):
        return {"n": 0}
    error = pd.Series(np.log(known["mid"].to_numpy() / known["time_us"].to_numpy()))
    inside = known["time_us"].between(known["low"], known["high"])
    return {
        "n": len(known),
        "median": float(error.abs().median()),
        "p90": float(error.abs().quantile(0.9)),
        "bias": float(error.median()),
        "in_range": float(inside.mean()),
    }


def neighbours(table: pd.DataFrame, axis: str, told_apart: float) -> Figures:
    """Of true neighbours: whose cheaper size is named; how many are named for each, and how many wrongly.
    Of all that are named, how many the sources' median has cheaper at all.

    Named are those predicted to differ by ``told_apart`` (ln) or more, as ``tracelens gemm`` names them.
    """
    change = _changes(table, axis)
    up, down = (_agreed(sign * change.drop(columns="mid"), 2) for sign in (1, -1))
    true = up ^ down
    named = change["mid"].abs() >= told_apart
    right = true & (np.sign(change["mid"]) == np.where(up, 1.0, -1.0))
    cheaper = named & (np.sign(change["mid"]) == np.sign(change.drop(columns="mid").median(axis=1)))
    most = max(int(true.sum()), 1)
    return {
        "pairs": len(change),
        "true": int(true.sum()),
        "direction": float(right.sum() / most),
        "recall": float((right & named).sum() / most),
        "named_per_true": float(named.sum() / most),
        "wrong_way": float((true & named & ~right).sum() / max(int(named.sum()), 1)),
        "cheaper": float(cheaper.sum() / max(int(named.sum()), 1)),
    }


def as_one_source_would(table: pd.DataFrame, axis: str) -> Figures:
    """Recall of neighbours that two sources measure 10 % apart: by the third source, and by the prediction.

    Either names three for each true one, those it has furthest apart. Means over the sources, and their least
    and most; where no size has three sources, n = 0. Of those that one source measures 10 % apart, how many
    ``another`` does, the same way round; and how far the third, and the prediction, is off two (ln).
    """
    change = _changes(table, axis)
    change = change[change.notna().all(axis=1)]
    found: dict[str, list[float]] = {"source": [], "mid": [], "another": [], "source off": [], "mid off": []}
    for name in change.columns.drop("mid"):
        others = change.drop(columns=["mid", name])
        apart = change[name].abs() >= _DIFFERS
        same = others[apart].mul(np.sign(change[name][apart]), axis=0) >= _DIFFERS
        found["another"] += same.to_numpy(dtype=np.float64).ravel().tolist()
        up, down = (_agreed(sign * others, 2) for sign in (1, -1))
        count = int((up | down).sum())
        for kind, said in (("source", change[name]), ("mid", change["mid"])):
            first = said.abs().sort_values(ascending=False, kind="stable").index[: 3 * count]
            right = (said > 0) & up | (said < 0) & down
            found[kind].append(float(right.loc[first].sum() / max(count, 1)))
            found[f"{kind} off"].append(float((said - others.mean(axis=1)).abs().mean()))
    if len(found["source"]) < 3 or not len(change):
        return {"n": 0}
    return {
        "n": len(change),
        "by_a_source": float(np.mean(found["source"])),
        "least": min(found["source"]),
        "most": max(found["source"]),
        "predicted": float(np.mean(found["mid"])),
        "another": float(np.mean(found["another"] or [0.0])),
        "source_off": float(np.mean(found["source off"])),
        "predicted_off": float(np.mean(found["mid off"])),
    }


def _agreed(change: pd.DataFrame, count: int) -> pd.Series:
    """Do so many of the columns grow by 10 % or more?"""
    return (change >= _DIFFERS).sum(axis=1) >= count


def _changes(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    """ln of the ratio of the times per FLOP of neighbours that two sources have: by each, and predicted."""
    other = [size for size in ("m", "n", "k") if size != axis]
    large = table[(table[["m", "n", "k"]] >= _LARGE).all(axis=1)].sort_values([*other, axis])
    work = large["m"] * large["n"] * large["k"]
    logs = pd.DataFrame({name: np.log(large[name] / work) for name in [*sources(_bare(table)), "mid"]})
    sizes = large[["m", "n", "k"]].to_numpy()
    at = {"m": 0, "n": 1, "k": 2}
    same = np.logical_and.reduce([sizes[1:, at[one]] == sizes[:-1, at[one]] for one in other])
    near = same & (sizes[1:, at[axis]] <= 2 * sizes[:-1, at[axis]])
    change = logs.diff().iloc[1:][near]
    found: pd.DataFrame = change[change.drop(columns="mid").notna().sum(axis=1) >= 2]
    return found


def _bare(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=["low", "mid", "high"])


def classes(table: pd.DataFrame, dtype: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The classes of shape that are judged apart; they may share shapes."""
    large = (table[["m", "n", "k"]] >= _LARGE).all(axis=1)
    yield f"{dtype}, m n k >= 1024", table[large]
    yield f"{dtype}, under 10 us", table[table["time_us"] < 10]
    yield f"{dtype}, m <= 64", table[table["m"] <= 64]
    yield f"{dtype}, the rest", table[~large & (table["m"] > 64) & (table["time_us"] >= 10)]


def of_silicon(name: str, *, judging: bool) -> dict[str, Figures]:
    """Every class of one folder of the table."""
    gpu = find_gpu(None, override=GPUS[name][1])
    found: dict[str, Figures] = {}
    for dtype in DTYPES:
        table = linears(name, dtype, judging=judging)
        if not len(table):
            continue
        table = predicted(table, gpu, dtype)
        found |= {label: judged(rows) for label, rows in classes(table, dtype)}
        if dtype == "bf16":
            shares = architecture(gpu.compute_capability).shares_of(gpu.name, dtype)
            assert shares is not None
            for axis, told_apart in (("n", shares.told_apart_n), ("m", shares.told_apart_m)):
                found[f"neighbours in {axis.upper()}"] = neighbours(table, axis, told_apart)
                found[f"by one source in {axis.upper()}"] = as_one_source_would(table, axis)
    return found


def of_sweeps() -> dict[str, Figures]:
    """The A100 sweeps of arXiv 2401.14489 (fp16, NN), batched attention GEMMs among them."""
    rows = pd.read_csv(_SWEEPS).rename(columns={"reduction": "k", "n_out": "n"})
    rows["time_us"] = 2.0 * rows["m"] * rows["n"] * rows["k"] * rows["batch"] / rows["tflops"] / 1e6
    table = predicted(rows, find_gpu(None, override="a100-sxm-40gb"), "fp16", "NN")
    found = {f"fp16, {sweep}": judged(part) for sweep, part in table.groupby("sweep")}
    return found | {f"fp16, {_BY_THE_CPU}, as a call": judged(as_calls(table[table["sweep"] == _BY_THE_CPU]))}


def as_calls(table: pd.DataFrame) -> pd.DataFrame:
    """The left-out third of GEMMs timed by the CPU, predicted as calls: a kernel and what is around it.

    A call takes at least what the CPU does, and what launch and synchronization add to the kernel: of the
    other two thirds, where the kernel is short (15 us) and where it no longer is (20 to 200 us). The middle
    takes the medians of both; the range also has what 90 % of those calls vary by.
    """
    sizes = zip(table["m"], table["n"], table["k"], table["batch"], strict=True)
    judging = np.asarray([left_out(*map(int, one)) for one in sizes])
    fit, rest = table[~judging], table[judging]
    least = fit["time_us"][fit["mid"] < 15]
    more = (fit["time_us"] - fit["mid"])[fit["mid"].between(20, 200)]
    at = {"low": 0.05, "mid": 0.5, "high": 0.95}
    around = {end: (float(more.quantile(q)), float(least.quantile(q))) for end, q in at.items()}
    return rest.assign(**{end: np.maximum(rest[end] + add, floor) for end, (add, floor) in around.items()})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fit", action="store_true", help="judge the shapes that fits see")
    parser.add_argument(
        "--gpu", action="append", choices=list(GPUS), help="folders of the table; all of them"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args(arguments)
    found: dict[str, dict[str, Figures]] = {}
    for name in given.gpu or list(GPUS):
        try:
            found[name] = of_silicon(name, judging=not given.fit)
        except UsageError as error:
            print(f"{name}: {error}")
    if not given.gpu or "a100_sxm" in given.gpu:
        found["sweeps of arXiv 2401.14489"] = of_sweeps()
    for name, figures in found.items():
        print(name)
        for label, one in figures.items():
            cells = (
                f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                for key, value in one.items()
            )
            print(f"  {label:24s} {', '.join(cells)}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
