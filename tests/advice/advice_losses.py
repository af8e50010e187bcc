"""Steps of made-up transformers whose products also know their tiles, waves and what they lose by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.advice.advice_steps import H100, Shape, dims_of, model_of, rows_of
from tracelens.accounting.lost import split_row
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu
from tracelens.results import GemmRow, Lost
from tracelens.rules import StepFacts


def with_losses(rows: Sequence[GemmRow], *, gpu: Gpu = H100) -> list[GemmRow]:
    """Products on the tile that the predictor takes, their time split as the analysis splits it."""
    return [_judged(row, gpu) if row.kind == "gemm" else row for row in rows]


def _judged(row: GemmRow, gpu: Gpu) -> GemmRow:
    m, n, k = row.m or 0, row.n or 0, row.k or 0
    found = predict_gemm(m, n, k, gpu=gpu, layout=row.layout or "TN")
    row = replace(
        row, tiles=found.tiles, waves=found.waves, tile_eff_frac=found.tile_eff_frac,
        wave_eff_frac=found.wave_eff_frac, alignment_frac=found.alignment_frac, lost_ms=Lost(),
    )  # fmt: skip
    split = split_row(row, gpu.info())

    def per_step(value: float | None) -> float | None:
        return value * row.calls_per_step / 1e3 if value is not None else None

    lost = Lost(
        alignment=per_step(split.alignment), tile=per_step(split.tile), wave=per_step(split.wave),
        memory=per_step(split.memory), other=per_step(split.other), useful=per_step(split.useful),
    )  # fmt: skip
    return replace(row, lost_ms=lost)


def judged_facts(x: Shape, *, gpu: Gpu = H100, busy_frac: float = 0.99, **more: Any) -> StepFacts:
    """What the rules see of that step."""
    rows = with_losses(rows_of(x, gpu=gpu, **more), gpu=gpu)
    step = model_of(x, gpu=gpu, rows=rows, busy_frac=busy_frac)
    return StepFacts(gemms=rows, model=dims_of(x), gpu=gpu.info(), step_ms=step.step_ms, step=step,
                     gpu_busy_frac=busy_frac)  # fmt: skip
