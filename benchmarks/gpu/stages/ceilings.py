"""What shapes are judged against: a large copy, the shortest GEMM, large GEMMs of each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.stage import Item, Row, Setting, Stage
from benchmarks.gpu.stages.shapes import CAREFUL, check_products, joined, measure, open_bench, predict
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.measure.cases import TRY, GemmCase

_LIMITS = ("bandwidth_gbps", "launch_floor_us", "call_gap_us")


def ceiling_items(setting: Setting) -> list[Item]:
    sizes = (64,) if setting.dry_run else (4096, 6144, 8192, 16384)
    cases = tuple(
        GemmCase("ceiling", size, size, 64 if setting.dry_run else min(size, 8192), dtype=dtype)
        for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32")
        for size in (sizes[:2] if dtype == "fp32" else sizes)
    )
    return [
        Item("bandwidth", 2.0, "bandwidth"),
        Item("launch_floor", 2.0, "launch_floor"),
        Item("call_gap", 2.0, "call_gap"),
        Item("products", 8.0, cases),
    ]


def ceiling_measure(setting: Setting, item: Item) -> Row:
    from tracelens.measure import measure_bandwidth, measure_call_gap, measure_launch_floor

    options = TRY if setting.dry_run else CAREFUL
    if item.spec == "bandwidth":
        value = measure_bandwidth(device=open_bench(setting), options=options)
        return {"bandwidth_gbps": round(value, 1)}
    if item.spec == "launch_floor":
        return {
            "launch_floor_us": round(measure_launch_floor(device=open_bench(setting), options=options), 3)
        }
    if item.spec == "call_gap":
        gap = measure_call_gap(device=open_bench(setting), options=options)
        return {"call_gap_us": None if gap is None else round(gap, 3)}
    return measure(CAREFUL, setting, item)


def ceiling_prediction(setting: Setting, item: Item) -> dict[str, Any] | None:
    return None if isinstance(item.spec, str) else predict(setting, item)


def ceiling_summary(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    plain = {key: row[key] for row in rows for key in _LIMITS if key in row}
    return plain | joined(GemmMeasurement, setting, [row for row in rows if "table" in row])


CEILINGS = Stage(
    name="ceilings",
    writes="copy bandwidth, launch floor, gap between calls, the best large GEMMs of each type",
    items=ceiling_items,
    measure=ceiling_measure,
    predict=ceiling_prediction,
    summarize=ceiling_summary,
    check=check_products,
    max_failed_frac=0.34,
)
