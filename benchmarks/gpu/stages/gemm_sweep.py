"""The products of transformers and of the paper's sweeps, and the curves that are drawn of them."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu import sweeps
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stages.shapes import (
    CAREFUL,
    MEASURED_WITH,
    QUICK,
    SHAPES,
    check_products,
    gemm_items,
    joined,
    measure,
)
from tracelens.hardware.measurements import GemmMeasurement

_SOURCES = (*MEASURED_WITH, *SHAPES, "benchmarks/gpu/stages/gemm_sweep.py")

GEMM_SWEEP = Stage(
    name="gemm_sweep",
    writes="times and kernel names of the products of transformers and of the paper's sweeps",
    items=partial(gemm_items, sweeps.gemm_sweep, QUICK),
    measure=partial(measure, QUICK),
    summarize=partial(joined, GemmMeasurement),
    check=check_products,
    max_failed_frac=0.05,
    sources=_SOURCES,
    cap_mb=8.0,
)

CURVES = Stage(
    name="curves",
    writes="wave sawtooths and alignment staircases, dense enough to draw",
    items=partial(gemm_items, sweeps.curves, CAREFUL),
    measure=partial(measure, CAREFUL),
    summarize=partial(joined, GemmMeasurement),
    check=check_products,
    max_failed_frac=0.05,
    sources=_SOURCES,
)
