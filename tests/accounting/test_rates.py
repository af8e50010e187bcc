"""A rate above the GPU's peak says that the counted work was not done."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from tests.kept import analyzed
from tests.said import Listener
from tracelens.accounting.rates import above, most_tflops, rate_of, work_known, work_why
from tracelens.analysis import analyze
from tracelens.gemm import AttentionShape, GemmShape
from tracelens.hardware import find_gpu
from tracelens.results import Report

H100 = find_gpu("NVIDIA H100 80GB HBM3").info()
GROUPED = GemmShape(8192, 2048, 1024, 1, "bf16", "bf16", None, groups=8, grouped="m")
PLAIN = GemmShape(8192, 2048, 1024, 1, "bf16", "bf16", None)
CAUSAL = AttentionShape(8, 12, 12, 1024, 1024, 64, 64, "bf16", True, False)


def test_the_limit_is_the_peak_at_boards_clocks_or_what_was_measured() -> None:
    most = most_tflops(H100, "bf16")
    assert most is not None and 1.0 < most / H100.peak_tflops["bf16"] < 1.117
    assert most_tflops(replace(H100, measured_tflops={"bf16": 2000.0}), "bf16") == 2000.0
    assert most_tflops(H100, None) is None


@pytest.mark.parametrize(
    ("shape", "tflops", "known"),
    [
        (PLAIN, 900.0, "exact"),
        (PLAIN, 5028.0, "above_peak"),
        (GROUPED, 600.0, "at_most"),
        (GROUPED, 1.117 * 989.4, "above_peak"),
        (CAUSAL, 600.0, "at_most"),
        (CAUSAL, 1300.0, "at_most"),  # half of it is masked
        (CAUSAL, 2500.0, "above_peak"),
        (replace(CAUSAL, causal=False), 1300.0, "above_peak"),
        (replace(CAUSAL, causal=None), 1300.0, "at_most"),
        (None, None, "unknown"),
    ],
)
def test_what_is_known_of_the_work(
    shape: GemmShape | AttentionShape | None, tflops: float, known: str
) -> None:
    assert work_known(shape, tflops, most_tflops(H100, "bf16")) == known


def test_a_rate_is_the_work_of_all_calls_over_their_time() -> None:
    found = rate_of(PLAIN, calls=3, time_ns=200_000, gpu=H100, dtype="bf16")
    assert found.flops == 34_359_738_368  # 2 * 8192 * 2048 * 1024
    assert found.tflops == pytest.approx(515.396, rel=1e-5) and found.possible and found.known == "exact"
    assert not rate_of(PLAIN, calls=3, time_ns=20_000, gpu=H100, dtype="bf16").possible
    for shape, time_ns in ((None, 200_000), (PLAIN, 0)):
        assert rate_of(shape, calls=3, time_ns=time_ns, gpu=H100, dtype="bf16").tflops is None


def test_a_rate_at_the_limit_is_possible() -> None:
    assert not above(1088.0, 1088.0) and above(1088.1, 1088.0)
    assert not above(None, 1088.0) and not above(1088.1, None)
    assert most_tflops(H100, "bf16") == pytest.approx(1.1 * H100.peak_tflops["bf16"], rel=1e-12)
    assert most_tflops(replace(H100, peak_tflops={}), "bf16") is None
    slower = replace(H100, measured_tflops={"bf16": 700.0}, ceiling_tflops={"bf16": 800.0})
    assert most_tflops(slower, "bf16") == most_tflops(H100, "bf16")


@pytest.mark.parametrize(
    ("tflops", "most", "known"),
    [(200.0, 100.0, "at_most"), (200.1, 100.0, "above_peak"), (500.0, None, "at_most")],
)
def test_masked_scores_are_half_of_what_is_counted(tflops: float, most: float | None, known: str) -> None:
    assert work_known(CAUSAL, tflops, most) == known
    assert work_known(replace(CAUSAL, causal=None), 90.0, 100.0) == "exact"  # as fast as a full one can be


def test_why_work_is_a_bound_or_not_known(said: Listener) -> None:
    """34.4 GFLOP in 20 us; no peak is known of the type of the second."""

    def why(shape: GemmShape | AttentionShape | None, us: float, dtype: str | None = "bf16") -> str | None:
        rate = rate_of(shape, calls=1, time_ns=round(us * 1e3), gpu=H100, dtype=dtype)
        return work_why(shape, rate, H100)

    assert why(PLAIN, 100.0) is None and why(None, 100.0) is None and why(PLAIN, 20.0, None) is None
    said(why(PLAIN, 20.0), why(GROUPED, 100.0), why(CAUSAL, 1000.0), why(CAUSAL, 10.0) or "")


def test_what_was_reached_can_be_reached() -> None:
    faster = replace(H100, ceiling_tflops={"bf16": 1900.0})
    assert most_tflops(faster, "bf16") == 1900.0
    assert work_known(PLAIN, 1900.0, 1900.0) == "exact"


@pytest.fixture(scope="module")
def too_fast() -> Report:
    """The sample with the GEMMs of mlp.up in an eighth of their time."""
    sample = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"
    frame = analyzed(sample).kernels
    fast = frame[(frame["component"] == "mlp.up") & frame["flops"].notna()]
    when = set(zip(fast["correlation"], fast["dur_ns"], strict=True))
    trace = json.loads(gzip.decompress(sample.read_bytes()))
    for event in trace["traceEvents"]:
        key = (event.get("args", {}).get("correlation"), round(event.get("dur", 0) * 1000))
        if event.get("cat") == "kernel" and key in when:
            event["dur"] /= 8
    with NamedTemporaryFile(suffix=".json") as file:
        file.write(json.dumps(trace).encode())
        file.flush()
        return analyze(file.name, shape_search=False).report


def test_no_rate_on_any_page_is_above_the_peak(too_fast: Report) -> None:
    limit = most_tflops(too_fast.gpu, "bf16")
    assert limit is not None
    rows = [row for row in too_fast.gemms if row.component == "mlp.up"]
    assert rows and {row.work_known for row in rows} == {"above_peak"}
    for row in rows:
        assert (row.flops, row.tflops, row.peak_frac, row.bytes, row.bound) == (None,) * 5
        assert row.work_why and row.lost_ms.useful is None
    assert all((row.tflops or 0.0) <= limit for row in too_fast.gemms)
    assert all((row.tflops or 0.0) <= limit for row in too_fast.components)
    assert {row.flops for row in too_fast.components if row.component == "mlp.up"} == {None}
    assert too_fast.gemm_time is not None and too_fast.gemm_time.not_judged > 0
    assert too_fast.coverage.shape_bounded_frac > 0


def test_work_that_is_not_known_makes_no_utilization(too_fast: Report) -> None:
    assert too_fast.summary.mfu_why is not None
