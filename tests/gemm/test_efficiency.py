"""Tiles, waves, alignment, tensor cores and roofline, on figures of real launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.gemm import (
    AttentionShape,
    GemmShape,
    KernelName,
    alignment_bytes,
    bound,
    intensity,
    leading_dimensions,
    math_dtype,
    parse_kernel_name,
    resident_ctas,
    tensor_core_state,
    tile_eff,
    tiles,
    usable_sms,
    wave_eff,
    waves,
)
from tracelens.hardware import find_gpu

H100 = find_gpu("NVIDIA H100 80GB HBM3", properties={"numSms": 132})
V100 = find_gpu("Tesla V100-SXM2-32GB")
RTX3060 = find_gpu("NVIDIA GeForce RTX 3060")


def kernel(name: str) -> KernelName:
    parsed = parse_kernel_name(name)
    assert parsed is not None
    return parsed


def shape(m: int, n: int, k: int, dtype: str = "bf16") -> GemmShape:
    return GemmShape(m, n, k, 1, dtype, dtype, None)


@pytest.mark.parametrize(
    ("name", "m", "n", "batch", "ctas"),
    [
        # (kernel, shape, CTAs the trace's launch grid has), one CTA per tile
        ("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", 888, 2880, 1, 140),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", 888, 640, 1, 140),
        ("nvjet_tst_64x16_64x16_2x4_2cta_h_bz_bias_TNT", 888, 128, 1, 112),
        ("nvjet_tst_192x192_64x3_2x1_v_bx_coopB_NNN", 768, 768, 8, 128),
        ("ampere_sgemm_128x64_tn", 1024, 1536, 1, 12 * 16),
        ("ampere_sgemm_128x64_tn", 1024, 8192, 1, 64 * 16),
        ("ampere_sgemm_64x64_nt", 8192, 512, 1, 8 * 128),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", 197, 2304, 1, 18 * 4),
        ("cutlass_80_simt_sgemm_256x128_8x4_nt_align1", 1000, 4096, 1, 64 * 2),
        ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_32x1_tn_align2", 32768, 6, 1, 1024),
    ],
)
def test_tiles_match_the_launch_grid(name: str, m: int, n: int, batch: int, ctas: int) -> None:
    tile = kernel(name).tile
    assert tile is not None
    assert tiles(m, n, batch=batch, tile=tile) == ctas


def test_sm80_xmma_grid_axes_are_torchs_m_and_n() -> None:
    xmma = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_execute_kernel"
    tile = kernel(xmma).tile
    assert tile is not None
    assert (tiles(512, 1, tile=tile), tiles(1, 25088, tile=tile)) == (
        2,
        196,
    )  # the launch grid of M=512, N=25088


def test_tile_efficiency() -> None:
    assert tile_eff(256, 512, tile=(128, 256)) == 1.0
    assert tile_eff(1, 1, tile=(128, 256)) == pytest.approx(1 / (128 * 256))
    assert tile_eff(0, 512, tile=(128, 256)) is None


@given(
    st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from([8, 64, 128, 144, 256]), st.integers(1, 4)
)
def test_tile_efficiency_is_a_share(m: int, n: int, side: int, batch: int) -> None:
    efficiency = tile_eff(m, n, tile=(side, 128))
    assert efficiency is not None and 0 < efficiency <= 1
    assert tiles(m, n, batch=batch, tile=(side, 128)) * side * 128 >= m * n * batch


@given(st.integers(1, 300), st.sampled_from([1, 2, 4, 8, 16]))
def test_usable_sms_are_whole_clusters(sms: int, cluster: int) -> None:
    least, most = usable_sms(sms, cluster_size=cluster)
    assert 0 <= least <= most <= sms and least % cluster == most % cluster == 0


def test_waves() -> None:
    assert waves(132, sms=132, cluster_size=1) == 1
    assert waves(133, sms=132, cluster_size=2) == 2
    assert waves(112, sms=132, cluster_size=8) == 1
    assert waves(128, sms=132, cluster_size=8) is None  # depends on which SMs the chip has
    assert waves(133, sms=132, cluster_size=8) == 2
    assert waves(264, sms=132, cluster_size=None) is None
    assert waves(4, sms=2, cluster_size=4) is None
    assert waves(16, sms=8, cluster_size=8) == 2


def test_wave_efficiency_of_the_a100_sawtooth() -> None:
    """arXiv 2401.14489: 2304 x 4096 @ 4096 x n on an A100 drops after n=1536 with 128x128 tiles."""

    def efficiency(n: int) -> float | None:
        return wave_eff(tiles(2304, n, tile=(128, 128)), sms=108, cluster_size=1)

    assert efficiency(1536) == 1.0
    after = efficiency(1600)
    assert after is not None and after == pytest.approx(234 / 324)


def test_wave_efficiency_where_it_does_not_apply() -> None:
    split = kernel("nvjet_tst_192x192_64x3_2x1_v_bz_coopB_splitK_NTN")
    assert wave_eff(64, sms=132, cluster_size=2, kernel=split, split_k=None) is None
    assert wave_eff(64, sms=132, cluster_size=2, kernel=split, split_k=2) == pytest.approx(128 / 132)
    streamed = kernel(
        "cutlass3x_sm90_tensorop_gemm_bf16_bf16_f32_bf16_bf16_128x256x64_2x1x1_0_ttt_align8_stream_k"
    )
    assert wave_eff(64, sms=132, cluster_size=2, kernel=streamed) == 1.0  # equal shares: no last wave
    assert wave_eff(1, sms=132, cluster_size=2, kernel=streamed) == 1.0
    assert wave_eff(0, sms=132, cluster_size=2, kernel=streamed) is None
    vector = kernel("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(P)")
    assert wave_eff(64, sms=132, cluster_size=1, kernel=vector) is None
    assert wave_eff(0, sms=132, cluster_size=1) is None


@pytest.mark.parametrize(
    ("elements", "dtype", "expected"),
    [(50257, "bf16", 2), (50258, "bf16", 4), (30522, "bf16", 4), (50260, "bf16", 8), (10922, "bf16", 4),
     (2560 // 32, "bf16", 32), (50304, "bf16", 128), (4096, "bf16", 128), (3, "fp8", 1), (48, "fp8", 16),
     (64, "fp32", 128), (7, "fp32", 4), (1, "fp4", None), (64, None, None),
     (1, "bf16", 2), (0, "bf16", None)],
)  # fmt: skip
def test_alignment(elements: int, dtype: str | None, expected: int | None) -> None:
    one = GemmShape(64, 64, 64, 1, dtype, dtype, None, lda=elements, ldb=elements, ldc=elements)
    assert alignment_bytes(one) == {"a": expected, "b": expected, "c": expected}


def test_leading_dimensions_say_where_they_come_from() -> None:
    forward = GemmShape(1024, 50257, 768, 1, "bf16", "bf16", None)
    assert leading_dimensions(forward) == ({"a": 768, "b": 50257, "c": 50257}, "assumed contiguous")
    tn = kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn")
    assert leading_dimensions(forward, kernel=tn) == ({"a": 768, "b": 768, "c": 50257}, "kernel name")
    nt = kernel("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_nt")
    assert leading_dimensions(forward, kernel=nt)[0] == {"a": 1024, "b": 50257, "c": 50257}
    known = GemmShape(1024, 50257, 768, 1, "bf16", "bf16", "TN", lda=768, ldb=768, ldc=50304)
    assert leading_dimensions(known, kernel=nt) == ({"a": 768, "b": 768, "c": 50304}, "strides")
    assert alignment_bytes(forward, kernel=tn)["b"] == 128
    for silent in (replace(tn, layout=None), replace(tn, kind="gemm_helper")):
        assert leading_dimensions(forward, kernel=silent)[1] == "assumed contiguous"
    one = replace(known, layout=None, ldb=None)
    assert leading_dimensions(one)[1] == "assumed contiguous"


def test_tensor_core_state() -> None:
    simt, tensor = (
        kernel("ampere_sgemm_128x64_tn"),
        kernel("ampere_bf16_s16816gemm_bf16_128x64_stages_64x4_tn"),
    )
    gemv = kernel("void gemv2T_kernel_val<int, int, __half, ...")
    fp32, bf16 = shape(1024, 1536, 512, "fp32"), shape(1024, 1536, 512)
    assert tensor_core_state(bf16, kernel=tensor, gpu=H100) == "used"
    assert tensor_core_state(fp32, kernel=simt, gpu=RTX3060) == "eligible_unused"
    assert tensor_core_state(fp32, kernel=simt, gpu=V100) == "ineligible"
    assert tensor_core_state(shape(64, 64, 64, "fp16"), kernel=simt, gpu=V100) == "eligible_unused"
    assert tensor_core_state(bf16, kernel=simt, gpu=V100) == "ineligible"
    assert tensor_core_state(shape(1, 1536, 512), kernel=gemv, gpu=H100) == "ineligible"
    assert tensor_core_state(shape(64, 64, 64, "fp64"), kernel=simt, gpu=H100) == "eligible_unused"
    assert tensor_core_state(shape(64, 64, 64, "fp64"), kernel=simt, gpu=RTX3060) == "ineligible"
    assert tensor_core_state(shape(64, 64, 64, "fp64"), kernel=simt, gpu=find_gpu("NVIDIA B200")) is None
    assert tensor_core_state(bf16, kernel=None, gpu=H100) is None
    assert tensor_core_state(bf16, kernel=kernel("triton_tem_fused_mm_2"), gpu=H100) is None
    assert tensor_core_state(fp32, kernel=simt, gpu=find_gpu("AMD Instinct MI300X")) is None
    for gpu in (replace(H100, vendor="amd"), replace(H100, compute_capability=None)):
        assert tensor_core_state(bf16, kernel=simt, gpu=gpu) is None
    assert tensor_core_state(replace(bf16, dtype=None), kernel=simt, gpu=H100) is None


def test_math_dtype() -> None:
    fp32 = shape(1024, 1536, 512, "fp32")
    tf32 = kernel("cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4")
    assert math_dtype(fp32, kernel=tf32) == "tf32"
    assert math_dtype(fp32, kernel=kernel("ampere_sgemm_128x64_tn")) == "fp32"
    assert math_dtype(fp32, kernel=None) is None
    assert math_dtype(fp32, kernel=kernel("triton_tem_fused_mm_2")) is None
    assert math_dtype(shape(8, 8, 8, "fp8"), kernel=None) == "fp8"


def test_roofline() -> None:
    assert bound(shape(8192, 8192, 8192), gpu=H100) == "compute"
    assert bound(shape(1, 8192, 8192), gpu=H100) == "memory"
    assert bound(shape(64, 64, 64), gpu=H100) == "latency"
    assert bound(shape(8192, 8192, 8192), gpu=replace(H100, peak_tflops={})) is None
    assert bound(shape(8192, 8192, 8192), gpu=replace(H100, bandwidth_gbps=None)) is None
    assert bound(shape(8192, 8192, 8192, "fp32"), gpu=H100) is None  # tf32 or not: 7 times apart
    assert (
        bound(shape(8192, 8192, 8192, "fp32"), gpu=H100, kernel=kernel("ampere_sgemm_128x64_tn")) == "compute"
    )
    long = AttentionShape(8, 32, 32, 4096, 4096, 128, 128, "bf16", True, False)
    assert bound(long, gpu=H100) == "compute"
    packed = AttentionShape(
        None, 6, 6, None, None, 128, 128, "bf16", True, False, varlen=True, query_tokens=9, key_tokens=9
    )
    assert bound(packed, gpu=H100) is None and intensity(packed) is None


def test_intensity() -> None:
    assert intensity(shape(1, 4096, 4096)) == pytest.approx(1.0, rel=0.01)
    assert intensity(GemmShape(64, 64, 64, 1, None, None, None)) is None


def test_resident_ctas() -> None:
    h100 = {
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 233472,
        "computeMajor": 9,
    }

    def fit(threads: int, registers: int, shared: int, properties: dict[str, int] = h100) -> int | None:
        return resident_ctas(
            threads=threads, registers_per_thread=registers, shared_memory_bytes=shared, properties=properties
        )

    assert fit(384, 168, 231424) == 1  # sm90_xmma fills the SM's shared memory
    assert fit(256, 230, 147456) == 1  # cutlass 256x128: registers and shared memory
    assert fit(128, 88, 33792) == 5  # cutlass wmma 32x32_128x2: registers
    assert fit(128, 100, 98304) == 2  # cutlass 64x64_64x6: shared memory
    assert fit(1000, 16, 0) == 2  # 32 warps of 2048 threads: threads, and no shared memory of its own
    assert fit(128, 100, 98304, {}) is None
    assert fit(0, 100, 98304) is None
    assert fit(128, 32, 116224) == 1  # with the 1 KiB of each CTA two of them no longer fit
    assert fit(128, 32, 115712) == 2
    assert fit(128, 100, 98304, h100 | {"regsPerMultiprocessor": 0}) is None


def test_no_tiles_take_no_wave_and_no_count_is_below_nothing() -> None:
    assert waves(0, sms=132, cluster_size=1) == 0
    assert waves(1, sms=132, cluster_size=1) == 1
    assert waves(-1, sms=132, cluster_size=1) is None
    assert waves(4, sms=132, cluster_size=0) is None and waves(4, sms=132, cluster_size=None) is None
    assert waves(4, sms=2, cluster_size=2) == 2 and waves(4, sms=1, cluster_size=2) is None
    assert wave_eff(0, sms=132, cluster_size=1) is None
    stream = KernelName("x", "gemm", "cutlass3", scheduler="stream_k")
    assert wave_eff(1, sms=132, cluster_size=1, kernel=stream) == 1.0
    assert wave_eff(0, sms=132, cluster_size=1, kernel=stream) is None


def test_slices_of_k_are_pieces_of_their_own() -> None:
    assert wave_eff(33, sms=132, cluster_size=1, split_k=4) == 1.0
    assert wave_eff(33, sms=132, cluster_size=1, split_k=None) is None


def test_an_output_of_nothing_has_no_tiles() -> None:
    assert tile_eff(0, 128, tile=(128, 128)) is None
    assert tile_eff(1, 1, tile=(1, 1)) == 1.0


@pytest.mark.parametrize(
    ("more", "ctas"),
    [
        ({}, 4),  # 512 threads
        ({"threads": 33}, 8),  # two warps: 16 by threads, 8 by registers
        ({"threads": 33, "registers_per_thread": 0}, 32),
        ({"registers_per_thread": 9}, 16),  # 288 registers a warp are 512
        ({"registers_per_thread": 8}, 16),
        ({"shared_memory_bytes": 49152 - 1024}, 2),
        ({"shared_memory_bytes": 49152 - 1023}, 1),
        ({"shared_memory_bytes": 10**6}, 1),  # it ran
        ({"shared_memory_bytes": -1}, None),
        ({"registers_per_thread": -1}, None),
        ({"threads": 0}, None),
        ({"threads": 1, "registers_per_thread": 0}, 64),
    ],
)
def test_what_fits_on_a_multiprocessor(more: dict[str, int], ctas: int | None) -> None:
    """2048 threads, 65536 registers, 96 KiB + of shared memory; 1 KiB a CTA goes to the system."""
    has = {
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 98304,
        "computeMajor": 8,
    }
    launch = {"threads": 128, "registers_per_thread": 128, "shared_memory_bytes": 0} | more
    assert resident_ctas(**launch, properties=has) == ctas


@pytest.mark.parametrize(
    ("value", "known"), [(1, True), (0, False), (True, False), (None, False), (2.0, False)]
)
def test_a_property_that_is_no_count_leaves_it_open(value: object, known: bool) -> None:
    for name in (
        "maxThreadsPerMultiprocessor",
        "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor",
        "computeMajor",
    ):
        has: dict[str, object] = {
            "maxThreadsPerMultiprocessor": 2048,
            "regsPerMultiprocessor": 65536,
            "sharedMemPerMultiprocessor": 98304,
            "computeMajor": 7,
            name: value,
        }
        found = resident_ctas(threads=128, registers_per_thread=1, shared_memory_bytes=0, properties=has)
        assert (found is not None) == known, name


def test_nothing_is_taken_from_shared_memory_before_ampere() -> None:
    has = {
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 98304,
        "computeMajor": 7,
    }
    launch = {"threads": 128, "registers_per_thread": 0}
    assert resident_ctas(**launch, shared_memory_bytes=49152, properties=has) == 2
    assert resident_ctas(**launch, shared_memory_bytes=0, properties=has) == 16


def test_products_with_a_side_of_one_have_nothing_for_tensor_cores() -> None:
    simt = kernel("ampere_sgemm_128x64_tn")
    for sides in ((1, 64, 64), (64, 1, 64), (64, 64, 1)):
        assert tensor_core_state(shape(*sides, dtype="fp32"), kernel=simt, gpu=H100) == "ineligible"
    assert tensor_core_state(shape(2, 2, 2, dtype="fp32"), kernel=simt, gpu=H100) == "eligible_unused"


@pytest.mark.parametrize(
    ("gpu", "taken"),
    [
        ("v100-sxm", {"fp16"}),
        ("t4", {"fp16", "int8"}),
        ("a100-sxm-80gb", {"fp16", "int8", "bf16", "fp32", "tf32"}),
        ("rtx-4090", {"fp16", "int8", "bf16", "fp32", "tf32", "fp8"}),
    ],
)
def test_each_architecture_brought_types_to_the_tensor_cores(gpu: str, taken: set[str]) -> None:
    """Volta: fp16; Turing: int8; Ampere: bf16 and tf32; Ada: fp8 (NVIDIA's architecture white papers)."""
    simt, board = kernel("ampere_sgemm_128x64_tn"), find_gpu(None, override=gpu)
    for dtype in ("fp16", "int8", "bf16", "fp32", "tf32", "fp8"):
        state = tensor_core_state(shape(64, 64, 64, dtype=dtype), kernel=simt, gpu=board)
        assert state == ("eligible_unused" if dtype in taken else "ineligible"), dtype


def test_where_memory_and_arithmetic_take_as_long_arithmetic_is_named() -> None:
    """134217.728 us both: 2^37 operations at 1.024 TFLOP/s, 100663296 bytes at 0.75 GB/s."""
    even = replace(H100, peak_tflops={"bf16": 1.024}, bandwidth_gbps=0.75)
    assert bound(shape(4096, 4096, 4096), gpu=even) == "compute"
    assert bound(shape(4096, 4096, 4096), gpu=replace(even, bandwidth_gbps=0.74)) == "memory"
    at = 134217.728
    assert bound(shape(4096, 4096, 4096), gpu=even, least_us=at) == "compute"
    assert bound(shape(4096, 4096, 4096), gpu=even, least_us=at + 1) == "latency"
