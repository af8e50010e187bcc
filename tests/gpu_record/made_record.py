"""A made-up record, written as the collection writes its files: numbers that follow simple rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import sweeps
from benchmarks.gpu.attention_sweeps import attention_sweep
from benchmarks.gpu.findings import power_of_two
from benchmarks.gpu.pairs import layer_pairs, step_pairs
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.stages.layer_pairs import _compared, _layer_facts
from benchmarks.gpu.stages.repeatability import agreement
from benchmarks.gpu.stages.shapes import joined
from benchmarks.gpu.store import SCHEMA, write_json
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement, table_of
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.layer_shapes import LayerShape

KERNEL = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
SETTING = Setting("cuda", "h200", False, Path("traces"), Path("scratch"))


def rate_tflops(m: int, n: int, k: int, dtype: str = "bf16") -> float:
    """More where every dimension has a larger power of two; fp8 twice as fast."""
    least = min(power_of_two(one) for one in (m, n, k))
    return (200.0 + 8 * min(least, 64)) * (2 if dtype == "fp8" else 1)


def timed(case: GemmCase, factor: float = 1.0) -> GemmMeasurement:
    time_us = max(2.5, case.flops / rate_tflops(case.m, case.n, case.k, case.dtype) / 1e6) * factor
    return GemmMeasurement(
        case.sweep, case.m, case.n, case.k, case.batch, case.dtype, case.result_dtype, case.layout, time_us,
        0.01, (KERNEL,), (132, 1, 1),
    )  # fmt: skip


def attended(case: AttentionCase) -> AttentionMeasurement:
    flops = 4.0 * case.batch * case.heads * case.seq_q * case.keys * case.head_dim
    factor = 1.0 if case.direction == "forward" else 2.5
    return AttentionMeasurement(
        case.sweep, case.batch, case.heads, case.key_heads, case.seq_q, case.keys, case.head_dim, case.dtype,
        case.causal, case.direction, case.backend, factor * flops / 400e6, 0.01, ("flash_fwd_kernel",),
    )  # fmt: skip


def layer_ms(layer: LayerShape) -> float:
    products = sum(2.0 * g.m * g.n * g.k * g.batch / rate_tflops(g.m, g.n, g.k) / 1e9 for g in layer.gemms())
    return products + 1.0


def write_record(results: Path, *, stages: Mapping[str, Mapping[str, Any]], **changes: Any) -> Path:
    """Files under ``results/h200``; ``changes`` go to the head of each."""
    for name, data in stages.items():
        head = {
            "schema": SCHEMA,
            "stage": name,
            "gpu": "h200",
            "dry_run": False,
            "state": "done",
            "refused": [],
            "date": "2026-11-21T10:00:00+00:00",
            "command": "python -m benchmarks.gpu.collect --minutes 9",
            "method": 1,
            "device": {"name": "NVIDIA H200", "sms": 132, "compute_capability": "9.0"},
            "software": {"torch": "2.11.0", "cuda": "13.0", "driver": "580", "cublas": "13.1"},
            "clocks": {"before": {"sm_mhz": 1900, "sm_mhz_max": 1980}, "after": {"sm_mhz": 1890}},
            "seconds": 100.0,
            "spread": {"median_frac": 0.012},
        }
        write_json(results / "h200" / f"{name}.json", {**head, **changes, "data": data})
    return results


def made_stages(every: int = 7) -> dict[str, dict[str, Any]]:
    """Data of every stage; ``every`` thins the sweep out."""
    sweep = [timed(case) for case in sweeps.gemm_sweep(132)[::every]]
    sample = sweep[:200]
    return {
        "ceilings": _table([timed(GemmCase("ceiling", 8192, 8192, 8192, dtype=d)) for d in ("bf16", "fp8")])
        | {"bandwidth_gbps": 4300.0, "launch_floor_us": 2.5},
        "gemm_sweep": _table(sweep),
        "curves": _table([timed(case) for case in sweeps.curves(132)]),
        "attention_sweep": {
            "kind": "cuda",
            "table": table_of([attended(case) for case in attention_sweep()]),
            "unmeasured": {},
        },
        "repeatability": {
            "kind": "cuda",
            "first": _table([replace(one, time_us=one.time_us * 1.02) for one in sample]),
            "second": _table(sample),
            "agreement": agreement([replace(one, time_us=one.time_us * 1.02) for one in sample], sample),
        },
        "layer_pairs": {"kind": "cuda", "models": [], "pairs": [_pair(pair) for pair in layer_pairs()]},
        "full_steps": {"kind": "cuda", "models": [], "pairs": [_step(pair) for pair in step_pairs()]},
    }  # fmt: skip


def _table(found: list[GemmMeasurement]) -> dict[str, Any]:
    return joined(GemmMeasurement, SETTING, [{"table": table_of(found), "unmeasured": {}}])


def _pair(pair: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        side: {"ms": layer_ms(shape), "kernels": 30} | _layer_facts(shape, layer_ms(shape))
        for side, shape in (("before", pair.before), ("after", pair.after))
    }
    row["turns_ms"] = [[row["before"]["ms"], row["after"]["ms"]]]
    return _compared(row, pair.name, pair.change) | {
        "model": pair.model, "rule": pair.rule, "expected": pair.expected,
    }  # fmt: skip


def _step(pair: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for side, shape in (("before", pair.before), ("after", pair.after)):
        ms = shape.layers * layer_ms(shape.layer)
        row[side] = {
            "ms": ms,
            "us_per_token": ms / shape.layer.tokens * 1e3,
            "parameters": shape.parameters,
            "kernels": 100,
        }
    row["turns_ms"] = [[row["before"]["ms"], row["after"]["ms"]]]
    return _compared(row, pair.name, pair.change)
