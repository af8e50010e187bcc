"""tf32 on Hopper, whose tensor cores read it along K alone, against our own H100's sweep."""

from __future__ import annotations

import json
import math
import statistics
from functools import cache

import pytest

from benchmarks.gpu.summarize import RESULTS
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.hardware import find_gpu


@cache
def _measured(layout: str) -> list[tuple[Prediction, float]]:
    table = json.loads((RESULTS / "h100-sxm" / "gemm_sweep.json").read_text())["data"]["table"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    gpu = find_gpu(None, override="h100-sxm")
    return [
        (predict_gemm(one["m"], one["n"], one["k"], gpu=gpu, dtype="tf32", layout=layout), one["time_us"])
        for one in rows
        if one["dtype"] == "tf32" and one["layout"] == layout and min(one["m"], one["n"], one["k"]) >= 1024
    ]


@pytest.mark.parametrize(
    ("layout", "most", "inside"), [("TN", 0.08, 0.85), ("NN", 0.15, 0.75), ("NT", 0.08, 1)]
)
def test_each_layout_is_as_fast_as_measured(layout: str, most: float, inside: float) -> None:
    """Of NN the library takes the slower of two tiles for some sizes: 0.67 and 1.0 of TN's rate."""
    found = _measured(layout)
    errors = [abs(math.log((one.time_us.mid or 0.0) / time_us)) for one, time_us in found]
    within = [(one.time_us.low or 0) <= time_us <= (one.time_us.high or 0) for one, time_us in found]
    assert len(found) > 50 and statistics.median(errors) < most
    assert statistics.mean(within) >= inside


def test_the_layout_costs_nothing_elsewhere() -> None:
    def ratio(gpu: str, dtype: str) -> float:
        down, up = (
            predict_gemm(4096, 4096, 4096, gpu=find_gpu(None, override=gpu), dtype=dtype, layout=layout)
            for layout in ("NT", "TN")
        )
        return (down.time_us.mid or 0.0) / (up.time_us.mid or 1.0)

    assert ratio("h100-sxm", "tf32") > 1.5
    assert ratio("h20", "tf32") == 1  # its tensor cores are slower than what feeds them
    assert ratio("h100-sxm", "bf16") == ratio("a100-sxm-80gb", "tf32") == 1
