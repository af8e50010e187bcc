"""A step to judge from rows alone: what the rules see, with predictions for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.advice.advice_rows import model
from tracelens.hardware import Gpu, find_gpu
from tracelens.results import GemmRow, ModelDims, OtherRow
from tracelens.results.report import OtherKind
from tracelens.rules import StepFacts
from tracelens.step.traced_step import step_model

H100 = find_gpu(None, override="h100-sxm")
A100 = find_gpu(None, override="a100-sxm-40gb")
RTX3060 = find_gpu(None, override="rtx-3060")
V100 = find_gpu(None, override="v100-sxm")


def step_of(
    rows: Sequence[GemmRow],
    *,
    gpu: Gpu = H100,
    dims: ModelDims | None = None,
    step_ms: float | None = 10.0,
    predict: bool = True,
    **more: Any,
) -> StepFacts:
    """Facts of these rows; ``predict`` False leaves out what predictions need."""
    found = dims or model(hidden=4096, heads=32, head_dim=128)
    step = step_model(list(rows), found, [], gpu=gpu, step_ms=step_ms)
    return StepFacts(
        gemms=list(rows),
        model=found,
        gpu=gpu.info(),
        step_ms=step_ms,
        step=replace(step, busy_frac=0.99) if predict else None,
        **({"gpu_busy_frac": 0.99} | more),
    )


def other(
    number: int,
    kind: OtherKind,
    *,
    component: str = "attention.other",
    phase: str = "forward",
    op: str | None = "aten::contiguous",
    time_us: float = 50.0,
    calls: float = 12.0,
    **more: Any,
) -> OtherRow:
    """A row of kernels that are no product."""
    fields: dict[str, Any] = {
        "within": None, "module": None, "kernel": "void at::native::elementwise_kernel<128, 4>(int)",
        "layers": 0, "dims": None, "dtype_from": None, "dtype_to": None,
    }  # fmt: skip
    return OtherRow(
        id=f"o{number}", component=component, phase=phase, kind=kind, op=op, calls=int(calls),
        calls_per_step=calls, time_ms_per_step=time_us * calls / 1e3, **(fields | more),
    )  # fmt: skip
