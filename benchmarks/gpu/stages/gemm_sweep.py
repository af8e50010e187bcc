"""The GEMMs of transformers and of the paper's sweeps, and the curves that are drawn of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu import sweeps
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stages.shapes import CAREFUL, QUICK, check_products, gemm_items, joined, measure, predict
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.measure.cases import GemmCase, MeasureOptions


def _sweep(
    name: str, writes: str, cases: Callable[[int], Sequence[GemmCase]], options: MeasureOptions, **more: Any
) -> Stage:
    return Stage(
        name=name,
        writes=writes,
        items=partial(gemm_items, cases, options),
        measure=partial(measure, options),
        predict=predict,
        summarize=partial(joined, GemmMeasurement),
        check=check_products,
        max_failed_frac=0.05,
        **more,
    )


GEMM_UNSURE = _sweep(
    "gemm_unsure", "GEMM times where predictions are least sure: misaligned shapes, shapes nobody chose",
    sweeps.gemm_unsure, QUICK,
)  # fmt: skip
GEMM_SWEEP = _sweep(
    "gemm_sweep", "the other GEMMs of transformers and of the paper's sweeps", sweeps.gemm_rest, QUICK,
    cap_mb=8.0,
)  # fmt: skip
CURVES = _sweep(
    "curves", "wave sawtooths and alignment staircases, dense enough to draw", sweeps.curves, CAREFUL
)
