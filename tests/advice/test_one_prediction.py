"""Every rule predicts a row by one function: with its layout, its output type and the GPU's calibration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import tracelens
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.step import predicted

#: The one of rows, and the one of configurations, which have no row.
_ALLOWED = {"predicted.py", "planned_step.py"}


def test_no_rule_predicts_a_product_by_itself() -> None:
    package = Path(tracelens.__file__).parent
    own = {
        path.name
        for room in ("rules", "step", "config")
        for path in (package / room).rglob("*.py")
        if "predict_gemm" in path.read_text()
    }
    assert own == _ALLOWED


def test_a_cache_of_unknown_size_may_hold_the_operands() -> None:
    """A least time from memory alone would be too long on a GPU whose L2 the datasheet does not tell."""
    gpu = find_gpu("NVIDIA L40S")
    assert gpu.l2_mb is None
    found = predict_gemm(16, 4096, 4096, gpu=gpu)
    told, none, untold = (predicted._floor(found, "bf16", replace(gpu, l2_mb=l2)) for l2 in (96.0, 0.0, None))
    assert untold == told == none / 2
