"""The ends of a predicted time, what it is bound by, and figures of a tile that can be counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tracelens.gemm import parse_kernel_name
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.cost import memory_us
from tracelens.gemm.predict.rates import Rates, model_rates, most_l2_mb
from tracelens.gemm.predict.tiles import Tile
from tracelens.hardware import find_gpu

H100 = find_gpu(None, override="h100-sxm")
EXACT = 1e-9


def rates(*, aligned: bool = True) -> Rates:
    found = model_rates(H100, "bf16", aligned=aligned)
    assert isinstance(found, Rates)
    return found


def ends(m: int, n: int, k: int, **more: object) -> tuple[float, float, float]:
    time = predict_gemm(m, n, k, **({"gpu": H100} | more)).time_us  # type: ignore[arg-type]
    assert time.low is not None and time.mid is not None and time.high is not None
    return time.low, time.mid, time.high


def test_without_a_model_the_datasheet_bounds_from_below() -> None:
    """989.0 TFLOP/s and 3350 GB/s; 2 bytes an element."""
    blind = replace(H100, sms=None)
    flop_us = 2 * 4096**3 / 989.0e6
    assert predict_gemm(4096, 4096, 4096, gpu=blind).time_us.low == pytest.approx(flop_us, rel=EXACT)
    batched = predict_gemm(4096, 4096, 4096, gpu=blind, batch=3).time_us.low
    assert batched == pytest.approx(3 * flop_us, rel=EXACT)
    small = predict_gemm(8, 16, 32, gpu=blind, batch=5, out_dtype="fp32").time_us.low
    moved = 5 * (2 * (8 * 32 + 32 * 16) + 4 * 8 * 16)
    assert small == pytest.approx(moved / 3350e3, rel=EXACT)
    no_peak = predict_gemm(64, 64, 64, gpu=replace(blind, peak_tflops={})).time_us
    assert no_peak.low == pytest.approx(2 * 3 * 64 * 64 / 3350e3, rel=EXACT)
    no_bandwidth = predict_gemm(64, 64, 64, gpu=replace(blind, bandwidth_gbps=None)).time_us
    assert no_bandwidth.low == pytest.approx(2 * 64**3 / 989.0e6, rel=EXACT)
    nothing = predict_gemm(64, 64, 64, gpu=replace(blind, bandwidth_gbps=None, peak_tflops={})).time_us
    assert (nothing.low, nothing.mid, nothing.high) == (None, None, None)


def test_the_rate_is_the_operations_over_the_middle() -> None:
    found = predict_gemm(4096, 2048, 1024, gpu=H100, batch=3)
    mid_us = ends(4096, 2048, 1024, batch=3)[1]
    assert found.tflops == pytest.approx(3 * 2 * 4096 * 2048 * 1024 / mid_us / 1e6, rel=EXACT)
    assert predict_gemm(64, 64, 64, gpu=replace(H100, sms=None)).tflops is None


def test_slices_of_k_fill_the_multiprocessors_that_tiles_leave_idle() -> None:
    """512 x 512 in tiles of 64 x 128 are 32, in 4 slices each 128 of the 132 places."""
    found = predict_gemm(512, 512, 32768, gpu=H100)
    assert (found.tile, found.cluster, found.tiles, found.split_k, found.waves) == ((64, 128), None, 32, 4, 1)
    assert found.wave_eff_frac == pytest.approx(32 * 4 / 132)
    two = predict_gemm(512, 512, 32768, gpu=H100, batch=2)
    assert two.tiles is not None and two.split_k is not None and two.waves is not None
    assert two.wave_eff_frac == pytest.approx(two.tiles * two.split_k / (two.waves * 132))


@pytest.mark.parametrize(("columns", "waves"), [(131, 1), (132, 1), (133, 2), (264, 2), (265, 3)])
def test_a_wave_is_a_tile_for_each_multiprocessor(columns: int, waves: int) -> None:
    """Tiles of 128 x 256 on 132 multiprocessors."""
    kernel = parse_kernel_name("nvjet_tst_256x128_64x4_1x1_h_bz_TNT")
    found = predict_gemm(128, 256 * columns, 4096, gpu=H100, kernel=kernel)
    assert (found.tile, found.tiles, found.waves, found.tile_k) == ((128, 256), columns, waves, 64)
    assert found.cluster == "1x1" and found.tile_eff_frac == 1.0
    assert found.wave_eff_frac == pytest.approx(columns / (132 * waves))


def test_a_name_that_leaves_the_order_of_its_tile_open_gets_the_faster_one() -> None:
    """M of 128 and N of 208 fill one tile of 128 x 208; turned round it would be two."""
    name = "nvjet_sm121_tst_mma_128x208x64_2_32x104x64_tmaAB_alignCD4_bz_TNNN"
    kernel = parse_kernel_name(name)
    found = predict_gemm(128, 208, 4096, gpu=H100, kernel=kernel)
    assert (found.tile, found.tiles) == ((128, 208), 1)
    assert predict_gemm(208, 128, 4096, gpu=H100, kernel=kernel).tile == (208, 128)


def test_a_kernel_that_names_no_tile_runs_the_librarys() -> None:
    triton = parse_kernel_name("triton_tem_fused_mm_2")
    assert triton is not None and triton.tile_pair is None
    named = predict_gemm(4096, 4096, 4096, gpu=H100, kernel=triton)
    free = predict_gemm(4096, 4096, 4096, gpu=H100)
    assert (named.tile, named.time_us) == (free.tile, free.time_us)


def test_a_cluster_that_is_larger_than_the_gpu_fills_it_once() -> None:
    assert Tile(128, 128, 64, "4x4").slots(8) == 8
    assert Tile(128, 128, 64, "2x1").slots(132) == 132


def test_large_aligned_products_have_the_range_of_the_model() -> None:
    low, mid, high = ends(8192, 8192, 8192)
    assert high == pytest.approx(mid * rates().high_frac, rel=EXACT)
    assert low == pytest.approx(max(mid * rates().low_frac, 2 * 8192**3 / 989.0e6), rel=EXACT)


def test_an_alignment_of_uncertain_cost_widens_the_range_by_its_ends() -> None:
    """4 bytes, the output only: 0.30 of the throughput, 0.26 to 0.35 of it."""
    low, mid, high = ends(8192, 8190, 8192)
    narrow = rates(aligned=False)
    assert predict_gemm(8192, 8190, 8192, gpu=H100).alignment_frac == 0.30
    assert high == pytest.approx(mid * narrow.high_frac * 0.30 / 0.26, rel=EXACT)
    assert low == pytest.approx(mid * narrow.low_frac * 0.30 / 0.35, rel=EXACT)


def test_a_small_or_batched_product_off_the_grid_may_run_another_kernel() -> None:
    one = predict_gemm(705, 705, 705, gpu=H100).time_us
    many = predict_gemm(8190, 8190, 8190, batch=2, gpu=H100).time_us
    alone = predict_gemm(8190, 8190, 8190, gpu=H100).time_us
    for wide in (one, many):
        assert wide.mid and wide.high and alone.mid and alone.high
        assert wide.high / wide.mid > 1.9 * alone.high / alone.mid


def test_operands_that_the_cache_may_hold_lower_the_low_end_and_none_that_it_cannot() -> None:
    """3 x 2.1 MB by 50 MB of cache."""
    low, mid, high = ends(1024, 1024, 1024)
    none = ends(1024, 1024, 1024, gpu=replace(H100, l2_mb=0.0))
    assert none[1:] == (mid, high)
    assert none[0] == pytest.approx(mid * rates().low_frac, rel=EXACT) and low < none[0]
    exactly = ends(1024, 1024, 1024, gpu=replace(H100, l2_mb=3 * 2 * 1024**2 / 1e6))
    assert exactly[0] == pytest.approx(low, rel=EXACT)
    smaller = ends(1024, 1024, 1024, gpu=replace(H100, l2_mb=6.29))
    assert smaller[0] == pytest.approx(none[0], rel=EXACT)


@pytest.mark.parametrize(
    ("name", "capability", "most_mb"),
    [
        ("h100-sxm", (9, 0), 60.0),  # the H200's; documents print 50 and 60 for boards of the same chip
        ("gb300", (10, 3), 126.0),  # nothing is known of 10.3: the B200's
        ("h100-sxm", None, math.inf),
    ],
)
def test_a_cache_of_unknown_size_holds_what_the_largest_of_its_architecture_does(
    name: str, capability: tuple[int, int] | None, most_mb: float
) -> None:
    gpu = replace(find_gpu(None, override=name), l2_mb=None, compute_capability=capability)
    assert most_l2_mb(gpu) == most_mb
    if capability is not None:
        for m in (1024, 32768):  # 10 and 206 MB
            told = replace(gpu, l2_mb=most_mb)
            assert ends(m, 2048, 1024, gpu=gpu) == ends(m, 2048, 1024, gpu=told)


def test_a_product_larger_than_the_cache_is_no_faster_than_its_memory_traffic() -> None:
    """16 rows by a weight of 470 MB."""
    moved = 2 * (16 * 28672 + 28672 * 8192 + 16 * 8192)
    low, mid, _ = ends(16, 8192, 28672)
    assert low == pytest.approx(max(mid * rates().few[0] if rates().few else 0.0, moved / 3350e3), rel=1e-6)


def test_an_alignment_that_nobody_measured_has_bounds_alone() -> None:
    """Two bytes on an RTX 4090: from no cost at all to 0.27 of the throughput."""
    gpu = find_gpu(None, override="rtx-4090")
    time = predict_gemm(8192, 8191, 8192, gpu=gpu).time_us
    on_grid = ends(8192, 8192, 8192, gpu=gpu)
    assert time.mid is None and time.low is not None and time.high is not None
    assert time.low == pytest.approx(on_grid[0], rel=0.02)
    assert time.high == pytest.approx(on_grid[2] / 0.27, rel=0.1)
    blackwell = predict_gemm(8192, 8191, 8192, gpu=find_gpu(None, override="b200")).time_us
    assert blackwell.low is not None and blackwell.high is None  # no worst case is known


def test_full_precision_on_cuda_cores_has_no_alignment() -> None:
    odd, even = (predict_gemm(4096, n, 4096, gpu=H100, dtype="fp32") for n in (4095, 4096))
    assert odd.alignment_frac == 1.0 and odd.time_us.mid is not None
    assert odd.time_us.mid == pytest.approx(even.time_us.mid, rel=0.01)
    for end in ("low", "high"):
        assert getattr(odd.time_us, end) == pytest.approx(getattr(even.time_us, end), rel=0.01)


@pytest.mark.parametrize(
    ("sizes", "bound"),
    [
        ((512, 512, 512), "latency"),
        ((1024, 1024, 640), "latency"),
        ((1024, 1024, 768), "compute"),
        ((1024, 1024, 1024), "compute"),
        ((64, 8192, 8192), "memory"),
        ((8192, 8192, 128), "memory"),
        ((8192, 8192, 1024), "compute"),
    ],
)
def test_what_binds_is_the_fixed_cost_from_half_of_the_time_on_else_memory_from_four_fifths(
    sizes: tuple[int, int, int], bound: str
) -> None:
    m, n, k = sizes
    found = predict_gemm(m, n, k, gpu=H100)
    mid, fixed = found.time_us.mid or 0.0, rates().fixed_us
    share = memory_us(2.0 * (m * k + k * n + m * n), rates()) / (mid - fixed)
    assert found.bound == bound
    assert bound == ("latency" if fixed / mid >= 0.5 else "memory" if share >= 0.8 else "compute")
