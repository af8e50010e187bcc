"""Predictions from the datasheet alone against kernel times of public traces.

The H100 traces helped to set the model's shares (see ``predict.rates``), so these figures say that the model
describes them, not that it foresaw them; the RTX 3060 is judged by a share set on its own trace too.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.kept import analyzed
from tracelens.gemm import parse_kernel_name
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.results import Estimate

TRACES = Path(__file__).parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="public traces are not beside the checkout")

#: Products by other libraries than cuBLAS, or of vectors: nothing a tile says holds for them.
_OTHERS = ("triton", "gemv", "cublas_dot")


def pairs(pattern: str, *, with_kernel: bool) -> list[tuple[float, Estimate]]:
    """(measured, predicted) of each row of exact shape, per call, in microseconds."""
    report = analyzed(next(TRACES.glob(pattern))).report
    gpu = find_gpu(None, override=report.gpu.name)
    found = []
    for row in report.gemms:
        dtype = row.math_dtype if row.dtype == "fp32" else row.dtype
        if row.kind != "gemm" or row.shape_known != "exact" or row.kernel_family.startswith(_OTHERS):
            continue
        if row.m is None or row.n is None or row.k is None or dtype is None:
            continue
        kernel = parse_kernel_name(row.kernel) if with_kernel else None
        prediction = predict_gemm(
            row.m, row.n, row.k, gpu=gpu, batch=row.batch or 1, dtype=dtype, out_dtype=row.out_dtype,
            layout=row.layout or "TN", kernel=kernel,
        )  # fmt: skip
        found.append((row.time_ms * 1e3 / row.calls, prediction.time_us))
    return found


@pytest.mark.parametrize("with_kernel", [False, True])
@pytest.mark.parametrize(
    ("pattern", "within"), [("d1_*", 0.05), ("d1b_*", 0.05), ("d2_*", 0.15), ("job_*/rank0_*", 0.08)]
)
def test_large_products_of_a_training_step_are_close(pattern: str, within: float, with_kernel: bool) -> None:
    found = pairs(pattern, with_kernel=with_kernel)
    errors = [
        abs(one.mid / measured - 1) for measured, one in found if one.mid is not None and measured >= 20
    ]
    assert len(errors) >= 12
    assert median(errors) <= within


@pytest.mark.parametrize("pattern", ["d1_*", "d2_*", "job_*/rank0_*"])
def test_the_stated_range_holds_most_products(pattern: str) -> None:
    found = pairs(pattern, with_kernel=False)
    inside = [
        one.low <= measured <= one.high
        for measured, one in found
        if one.low is not None and one.high is not None
    ]
    assert sum(inside) >= 0.85 * len(inside)
