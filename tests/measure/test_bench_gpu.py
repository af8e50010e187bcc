"""What only a GPU can show: kernel names and grids, no host in the time, cold caches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tracelens.gemm.kernel_names import parse_kernel_name
from tracelens.hardware.measurements import read_measurements
from tracelens.measure import (
    AttentionCase,
    CaseOutcome,
    Device,
    GemmCase,
    MeasureOptions,
    device_facts,
    measure_attention,
    measure_bandwidth,
    measure_call_gap,
    measure_gemms,
    measure_launch_floor,
    open_device,
    read_clocks,
    time_calls,
)
from tracelens.measure.run import Settings, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device()


def test_products_have_names_grids_and_steady_times(device: Device) -> None:
    cases = [
        GemmCase("x", 4096, 4096, 4096, layout=layout, dtype=dtype)
        for layout in ("TN", "NN", "NT")
        for dtype in ("bf16", "fp16", "tf32")
    ]
    rows = list(measure_gemms(cases, device=device))
    assert len(rows) == len(cases)
    for row in rows:
        parsed = [parse_kernel_name(name) for name in row.kernels]
        assert any(one is not None and one.kind == "gemm" for one in parsed), row
        assert row.grid is not None
        assert row.spread_frac is not None and row.spread_frac < 0.2
        layouts = {one.layout for one in parsed if one is not None and one.layout is not None}
        assert layouts <= {row.layout}


def test_throughput_is_below_the_datasheet_and_not_absurd(device: Device) -> None:
    (row,) = measure_gemms([GemmCase("x", 8192, 8192, 8192)], device=device)
    peak = device_facts(device).gpu.peak("bf16")
    if peak is None:
        pytest.skip("this GPU's peak is not in the table")
    assert 0.3 * peak < row.tflops < peak


def test_no_host_gap_is_in_the_time_of_a_short_product(device: Device) -> None:
    floor = measure_launch_floor(device=device)
    gap = measure_call_gap(device=device)
    assert 1 < floor < 12  # the host needs more than that to queue a call
    assert gap is not None and -1 < gap < 4


def test_rotating_operands_are_colder_than_the_same_ones(device: Device) -> None:
    size = device.l2_bytes // 4 // 4  # a quarter of the cache read, a quarter written
    sources = [torch.rand(size, device="cuda") for _ in range(16)]
    targets = [torch.empty(size, device="cuda") for _ in range(16)]
    options = MeasureOptions(max_calls=64)
    cold = time_calls(lambda at: targets[at % 16].copy_(sources[at % 16]), device=device, options=options)
    warm = time_calls(lambda at: targets[0].copy_(sources[0]), device=device, options=options)
    assert cold.time_us > warm.time_us


def test_copy_bandwidth_is_near_the_datasheet(device: Device) -> None:
    sheet = device_facts(device).gpu.bandwidth_gbps
    if sheet is None:
        pytest.skip("this GPU's bandwidth is not in the table")
    assert 0.6 * sheet < measure_bandwidth(device=device) < sheet


def test_attention_names_its_kernels(device: Device) -> None:
    heard: list[CaseOutcome] = []
    cases = [
        AttentionCase("x", 2, 8, 1000, dim, kv, direction=way, backend=backend)
        for dim in (64, 80, 128)
        for kv in (8, 2)
        for way in ("forward", "backward")
        for backend in ("flash", "cudnn", "efficient")
    ]
    rows = list(measure_attention(cases, device=device, progress=heard.append))
    assert len(rows) >= len(cases) // 3  # a backend may lack grouped heads
    assert len(heard) == len(cases)
    for outcome in heard:
        assert outcome.time_us is not None or outcome.note
        assert "wrong" not in (outcome.note or "")
    for row in rows:
        parsed = [parse_kernel_name(name) for name in row.kernels]
        assert any(one is not None and one.kind == "attention" for one in parsed), row


def test_fp8_is_measured_or_the_reason_told(device: Device) -> None:
    heard: list[CaseOutcome] = []
    cases = [GemmCase("x", 4096, 4096, 4096, dtype="fp8"), GemmCase("x", 4096, 4104, 4096, dtype="fp8")]
    list(measure_gemms(cases, device=device, progress=heard.append))
    if torch.cuda.get_device_capability() >= (8, 9):
        assert heard[0].time_us is not None, heard[0].note
    assert heard[1].note  # N is no multiple of 16


def test_too_large_a_product_is_skipped_with_the_reason(device: Device) -> None:
    heard: list[CaseOutcome] = []
    cases = [GemmCase("x", 2**21, 2**21, 64), GemmCase("x", 512, 512, 512)]
    list(measure_gemms(cases, device=device, progress=heard.append))
    assert heard[0].note is not None and "memory" in heard[0].note
    assert heard[1].time_us is not None


def test_clocks_are_read_or_the_reason_told(device: Device) -> None:
    clocks = read_clocks(device)
    assert clocks["sm_mhz"] is not None or clocks["why"]


def test_a_short_run_writes_a_file(device: Device, tmp_path: Path) -> None:
    gemms = [GemmCase("x", 2048 + 8 * index, 2048, 2048) for index in range(12)]
    attention = [AttentionCase("x", 2, 8, 1024, 64, direction=way) for way in ("forward", "backward")]
    result = run(Settings(gemms, attention, 1, tmp_path / "gpu.json.gz"), device=device)
    made = read_measurements(result.path)
    assert (len(made.gemms), len(made.attention), result.left) == (12, 2, 0)
    assert all(row.kernels for row in made.gemms) and all(row.kernels for row in made.attention)
    assert made.bandwidth_gbps and made.launch_floor_us and made.call_gap_us is not None
