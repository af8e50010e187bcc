"""Every rule predicts a row by one function: with its layout, its output type and the GPU's calibration."""

from __future__ import annotations

from pathlib import Path

import tracelens

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
