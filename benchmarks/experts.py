"""How well layers of experts are predicted: python -m benchmarks.experts [--fit] [--gpu h100_sxm]

Per GPU and element type: number of rows, median and 90th percentile of |ln(predicted / measured)|, the share
in the stated range, how far the cost of an uneven load over an even one is off (median, from 512 tokens
on), and of pairs that differ in their load alone and by 5 % or more, the share predicted right in direction
(also of those from 512 tokens on, as in training). Measured is the fastest source of a row
that a tuned library ran, among others or alone (Triton kernels with default settings are up to four times
slower). Pairs are counted where all sources of both loads, two or more, agree in direction. Judged are
geometries (hidden, inter, top-k, experts) that no fit sees. --fit fits the constants anew to the others and
prints ``experts.toml``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.silicon import FOLDER, GPUS, left_out
from tracelens.gemm.predict.experts_cost import ExpertWork, forward
from tracelens.gemm.predict.experts_load import expert_load
from tracelens.gemm.predict.experts_rates import ExpertRates, ExpertShares, expert_rates, rates_of
from tracelens.hardware import Gpu, find_gpu

DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4"}
LOADS = {"balanced": None, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
_KEY = [
    "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "num_tokens",
    "distribution",
]  # fmt: skip
#: Libraries that choose among tuned grouped kernels, by what is in their ``kernel_source``.
_TUNED = "cutlass|trtllm|moe_torch_flow$|moe_torch_flow_nongated"
#: Nemotron's experts have no gate; TensorRT-LLM ran them so, and the weights' bytes say it of the others.
_NO_GATE = {(2688, 1856, 6, 128), (4096, 2688, 22, 512), (2048, 5120, 22, 512)}
#: A pair of loads is compared where it differs by this much (ln).
_DIFFERS = float(np.log(1.05))
#: A miss by more than this (ln) is as bad as any: measured calls that fell back to another kernel.
_OUTLIER = 0.5
#: What a constant that is e times its start has to gain in mean error: few geometries leave some open.
_PRIOR = 0.002
#: Constant -> (start, lower and upper bound).
_FITTED = {
    "of_peak": (0.85, 0.05, 1.0), "of_bandwidth": (0.85, 0.3, 1.0), "load_elements": (60.0, 1.0, 400.0),
    "partial_wave_frac": (0.6, 0.1, 1.0), "ends_k": (200.0, 5.0, 2000.0), "cached_mb": (10.0, 0.1, 150.0),
    "overlap": (2.5, 1.0, 8.0), "fixed_us": (15.0, 2.0, 80.0), "choice_us": (0.3, 0.001, 20.0),
    "expert_us": (0.05, 0.001, 2.0), "moved_frac": (0.6, 0.1, 1.5), "activated_frac": (0.4, 0.02, 1.5),
}  # fmt: skip
#: And of kernels that are given every token and choose its experts themselves, where nothing else ran: they
#: move the rows of other GPUs' experts too. Triton's do, and TensorRT-LLM's of Blackwell.
_FOREIGN = {"foreign_frac": (1.0, 0.05, 5.0)}
_GIVEN_ALL = "triton|flashinfer_trtllm"
#: DeepSeek-V3's geometry, whose experts TensorRT-LLM's kernels choose by groups: of an even load half of the
#: experts get rows (B200, 32 tokens in blockwise fp8: 862 us, in which memory gives the weights of 150), and
#: with expert parallelism one GPU gets far more than its share (8192 tokens, EP 64: half the time of EP 1).
_GROUPED = (7168, 2048, 8, 256)
#: From so many tokens on a row is like training, and counts so much more than one of inference.
_TRAINING, _TRAINING_WEIGHT = 512, 3.0
_FIT_ROWS, _ROUNDS = 4000, 16


@lru_cache(maxsize=1)
def _rows() -> pd.DataFrame:
    return pd.read_parquet(FOLDER / "moe.parquet")


def layers(gpu: str, dtype: str) -> pd.DataFrame:
    """Measured layers of one folder: their sizes, a column in us per source, ``time_us``, ``gated``, and
    ``judging`` where left out."""
    rows = _rows()
    rows = rows[
        (rows["gpu"] == gpu) & (rows["device"] == GPUS[gpu][0]) & (rows["moe_dtype"] == DTYPES[dtype])
    ]
    grouped = (rows[_KEY[:4]] == list(_GROUPED)).all(axis=1)
    rows = rows[~(grouped & rows["kernel_source"].str.contains("flashinfer_trtllm"))]
    kernels = rows["kernel_source"]
    tuned = kernels.str.contains(_TUNED) & ~kernels.str.contains("triton")
    rows = rows.assign(latency=rows["latency"] * 1e3, tuned=tuned if tuned.any() else True)
    wide = rows.pivot_table(index=_KEY, columns="kernel_source", values="latency", aggfunc="median")
    wide = wide.assign(time_us=wide.min(axis=1), tuned=rows.groupby(_KEY)["tuned"].any()).reset_index()
    table = wide[wide["tuned"]].drop(columns="tuned").reset_index(drop=True)
    sizes = list(zip(*(table[name].tolist() for name in _KEY[:4]), strict=True))
    return table.assign(
        gated=[one not in _NO_GATE for one in sizes], judging=[left_out(*one) for one in sizes]
    )


def work_of(table: pd.DataFrame) -> ExpertWork:
    """The layers of a table as columns for the cost formula."""
    asked = zip(
        *(
            table[name].tolist()
            for name in ("num_tokens", "topk", "num_experts", "moe_ep_size", "distribution")
        ),
        strict=True,
    )
    loads = [
        expert_load(tokens, top_k=top_k, experts=experts, ep=ep, exponent=LOADS[load])
        for tokens, top_k, experts, ep, load in asked
    ]
    return ExpertWork.of(
        loads,
        tokens=table["num_tokens"],
        top_k=table["topk"],
        hidden=table["hidden_size"],
        inter=table["inter_size"] // table["moe_tp_size"],
        ups=np.where(table["gated"], 2, 1),
    )


def times(work: ExpertWork, rates: ExpertRates) -> np.ndarray:
    """Predicted microseconds of every layer."""
    gemms, others = forward(work, rates)
    return np.asarray(sum(one.us for one in gemms.values()) + sum(others.values()))


def judged(table: pd.DataFrame, rates: ExpertRates) -> dict[str, float | int]:
    """n, median and 90th percentile of the error, bias, share in range, and direction of uneven loads."""
    mid = times(work_of(table), rates)
    error = np.log(mid / table["time_us"].to_numpy())
    low, high = rates.range_of("forward")
    inside = (error <= -np.log(low)) & (error >= -np.log(high))
    pairs = list(_pairs(table.assign(mid=mid)))
    uneven = uneven_error(table.assign(mid=mid)) if table["distribution"].nunique() > 1 else None
    return {
        "n": len(table),
        "median": float(np.median(np.abs(error))),
        "p90": float(np.quantile(np.abs(error), 0.9)),
        "bias": float(np.median(error)),
        "in_range": float(inside.mean()),
        "uneven_median": float("nan") if uneven is None else float(uneven.median()),
        "pairs": len(pairs),
        "direction": float(np.mean([right for _, right in pairs])) if pairs else float("nan"),
        "direction_training": float(np.mean([right for tokens, right in pairs if tokens >= _TRAINING]))
        if pairs
        else float("nan"),
    }


def uneven_error(table: pd.DataFrame) -> pd.Series:
    """|ln| of what an uneven load costs over an even one, predicted by measured, of layers as in training.

    ``table`` has the column ``mid``, predicted; a row for each layer and load that ran with both. Where no
    even load ran (A100: in Triton's default kernels alone, which take as long with any), the less uneven one.
    """
    large = table[table["num_tokens"] >= _TRAINING].set_index(_KEY)
    cost = (large["mid"] / large["time_us"]).transform("log").unstack("distribution")
    even = min(cost.columns)  # balanced, else power_law_1.01
    error = cost.drop(columns=even).sub(cost[even], axis=0)
    return error.melt()["value"].dropna().abs()


def _pairs(table: pd.DataFrame) -> Iterator[tuple[int, bool]]:
    """Uneven against balanced, all else the same, 5 % or more apart: tokens, and whether the slower one is
    predicted slower."""
    sources = _sources(table)
    logs = table.set_index(_KEY)[[*sources, "mid"]].transform("log")
    loads = {str(name): part.droplevel("distribution") for name, part in logs.groupby(level="distribution")}
    for load in sorted(set(loads) - {"balanced"}) if "balanced" in loads else ():
        change = (loads[load] - loads["balanced"]).dropna(subset="mid")
        measured = change[sources]
        ran = measured.notna().sum(axis=1)
        for sign in (1, -1):
            agreed = ((sign * measured >= _DIFFERS).sum(axis=1) == ran) & (ran >= 2)
            right = sign * change["mid"][agreed] > 0
            yield from zip(right.index.get_level_values("num_tokens").tolist(), right.tolist(), strict=True)


def _sources(table: pd.DataFrame) -> list[str]:
    """The columns of measured times, one per library's kernel."""
    return [name for name in table.columns if name not in {*_KEY, "time_us", "gated", "judging", "mid"}]


def fit(table: pd.DataFrame, gpu: Gpu, dtype: str, source: str) -> ExpertShares:
    """Constants with the least mean error, found by stepping along one after the other."""
    rows = table.sample(min(len(table), _FIT_ROWS), random_state=0)
    work, measured = work_of(rows), np.log(rows["time_us"].to_numpy())
    weight = np.where(rows["num_tokens"] >= _TRAINING, _TRAINING_WEIGHT, 1.0)
    weight /= weight.mean()
    fitted = _FITTED | (_FOREIGN if all(re.search(_GIVEN_ALL, name) for name in _sources(table)) else {})
    values = {name: start for name, (start, _, _) in fitted.items()}

    def shares(values: dict[str, float]) -> ExpertShares:
        return ExpertShares(
            **{name: float(f"{value:.4g}") for name, value in values.items()},
            low=0.8,
            high=1.25,
            source=source,
        )

    def error(values: dict[str, float]) -> np.ndarray:
        rates = rates_of(gpu, dtype, shares(values))
        assert isinstance(rates, ExpertRates)
        return np.asarray(np.log(times(work, rates)) - measured)

    def loss(values: dict[str, float]) -> float:
        far = sum(np.log(value / fitted[name][0]) ** 2 for name, value in values.items())
        return float((weight * np.minimum(np.abs(error(values)), _OUTLIER)).mean() + _PRIOR * far)

    best, steps = loss(values), dict.fromkeys(values, 1.5)
    for _ in range(_ROUNDS):
        for name, (_, low, high) in fitted.items():
            for factor in (steps[name], 1 / steps[name]):
                moved = values | {name: min(max(values[name] * factor, low), high)}
                if (found := loss(moved)) < best - 1e-6:
                    values, best = moved, found
                    break
            else:
                steps[name] = max(steps[name] ** 0.6, 1.01)
    missed = -error(values)
    # Beyond twice the time the library fell back to another kernel, which no range is to hold.
    low, high = np.exp(np.quantile(missed[np.abs(missed) < np.log(2)], [0.025, 0.975]))
    return replace(shares(values), low=round(float(low), 2), high=round(float(high), 2))


def _toml(dtype: str, gpu: Gpu, shares: ExpertShares) -> str:
    lines = [f"[{dtype}.{gpu.name}]"]
    for name in ExpertShares.__dataclass_fields__:
        if value := getattr(shares, name):
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fit", action="store_true", help="fit the constants anew and print them")
    parser.add_argument(
        "--gpu", action="append", choices=list(GPUS), help="folders of the table; all of them"
    )
    parser.add_argument("--dtype", action="append", choices=list(DTYPES), help="element types; all of them")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args(arguments)
    found: dict[str, dict[str, float | int]] = {}
    for name in given.gpu or list(GPUS):
        gpu = find_gpu(None, override=GPUS[name][1])
        for dtype in given.dtype or list(DTYPES):
            table = layers(name, dtype)
            if not len(table):
                continue
            if given.fit:
                title = gpu.title.removeprefix("NVIDIA ")
                source = f"NVIDIA aiconfigurator's tables (095f58a51), {title}: two thirds of the geometries"
                shares = fit(table[~table["judging"]], gpu, dtype, source)
                print(_toml(dtype, gpu, shares), flush=True)
                rates = rates_of(gpu, dtype, shares)
            else:
                rates = expert_rates(gpu, dtype)
            for label, part in (("left out", table[table["judging"]]), ("fitted", table[~table["judging"]])):
                if not isinstance(rates, str) and len(part):
                    found[f"{name} {dtype} {label}"] = one = judged(part, rates)
                    cells = ", ".join(
                        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in one.items()
                    )
                    print(f"# {name} {dtype} {label}: {cells}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
