"""A sample of the GEMM sweep measured twice more: how well two runs agree."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.gpu import sweeps
from benchmarks.gpu.stage import Item, Row, Setting, Stage
from benchmarks.gpu.stages.shapes import (
    QUICK,
    check_products,
    gemm_chunks,
    joined,
    measure,
    measured_of,
    sms_of,
    toy_gemms,
)
from tracelens.hardware.measurements import GemmMeasurement


def repeat_items(setting: Setting) -> list[Item]:
    """The sample twice, the second time in the opposite order: two runs of the GEMM sweep in small."""
    sample = sweeps.repeat_sample(sweeps.gemm_sweep(sms_of(setting)))
    if setting.dry_run:
        sample = toy_gemms(sample)
    return [
        replace(item, key=f"{run}-{item.key}")
        for run, cases in (("first", sample), ("second", sample[::-1]))
        for item in gemm_chunks(cases, QUICK, setting)
    ]


def repeat_measure(setting: Setting, item: Item) -> Row:
    return measure(QUICK, setting, item) | {"run": item.key.partition("-")[0]}


def repeat_summary(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    """Both runs and how far they are apart, shape by shape."""
    runs = {
        name: joined(GemmMeasurement, setting, [row for row in rows if row["run"] == name])
        for name in ("first", "second")
    }
    found = agreement(*(measured_of(run, GemmMeasurement) for run in runs.values()))
    return {"kind": setting.kind, **runs, "agreement": found}


def agreement(first: Sequence[GemmMeasurement], second: Sequence[GemmMeasurement]) -> dict[str, Any]:
    """|second / first - 1| over the shapes in both: median, 90th percentile, worst."""

    def key(one: GemmMeasurement) -> tuple[Any, ...]:
        return one.m, one.n, one.k, one.batch, one.dtype, one.layout

    earlier = {key(one): one.time_us for one in first}
    apart = sorted(abs(one.time_us / earlier[key(one)] - 1) for one in second if key(one) in earlier)
    if not apart:
        return {"shapes": 0, "median_frac": None, "p90_frac": None, "worst_frac": None}
    return {
        "shapes": len(apart),
        "median_frac": round(statistics.median(apart), 5),
        "p90_frac": round(apart[min(len(apart) - 1, int(0.9 * len(apart)))], 5),
        "worst_frac": round(apart[-1], 5),
    }


#: Two runs of the sweep must agree this well, in the median.
REPEAT_FRAC = 0.03


def check_repeat(data: Mapping[str, Any]) -> list[str]:
    wrong = [*check_products(data["first"]), *check_products(data["second"])]
    median = data["agreement"]["median_frac"]
    if data["kind"] == "cuda" and (median is None or median > REPEAT_FRAC):
        wrong.append(f"two runs differ by {median if median is None else f'{median:.1%}'} in the median")
    return wrong


REPEATABILITY = Stage(
    name="repeatability",
    writes="200 GEMMs of the sweep measured twice more",
    items=repeat_items,
    measure=repeat_measure,
    summarize=repeat_summary,
    check=check_repeat,
)
