"""Blocks of attention kernels: flash-attention's sources (0251105) and the names of torch's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.said import Listener
from tracelens.errors import InputError
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_kernels import BACKENDS, Kernel, attention_kernel, padded_head_dim
from tracelens.gemm.predict.attention_rates import exp_cost, kernel_rate
from tracelens.hardware import find_gpu


def kernel(
    backend: str, head_dim: int, gpu: str = "h100-sxm", *, mask: str = "", way: str = "", dtype: str = "bf16"
) -> Kernel:
    return attention_kernel(
        backend, head_dim=head_dim, gpu=find_gpu(None, override=gpu), causal=mask == "causal",
        windowed=mask == "window", backward=way == "backward", dtype=dtype,
    )  # fmt: skip


#: backend, way, mask, GPUs -> (queries, keys, CTAs per SM) of each head dimension it is built for.
#: FlashAttention-2: ``Flash_{fwd,bwd}_kernel_traits`` of its launch templates. CTAs: 255 registers for each
#: of 4 warps leave room for 2 of them, 8 warps for 1; at a head dimension of 256 a CTA of 4 warps takes 96 KB
#: of the 99 KB of sm86, sm89 and sm120, or of the 227 KB of sm90.
BLOCKS = [
    ("flash", "", "", "a100-sxm-80gb", {32: (128, 128, 2), 64: (128, 128, 2), 96: (128, 64, 2),
     128: (128, 64, 2), 192: (128, 64, 1), 256: (128, 64, 1)}),
    ("flash", "", "causal", "h100-sxm b200", {64: (128, 128, 2), 96: (128, 64, 2), 128: (128, 64, 2),
     192: (128, 64, 1), 256: (64, 64, 2)}),
    ("flash", "", "", "a6000 rtx-4090", {32: (128, 128, 2), 64: (128, 128, 2), 96: (128, 64, 2),
     128: (128, 32, 2), 192: (128, 64, 1), 256: (64, 64, 1)}),
    ("flash", "", "causal", "a6000 l40s", {64: (128, 128, 2), 96: (64, 64, 2), 128: (64, 64, 2),
     192: (128, 64, 1), 256: (64, 64, 1)}),
    ("flash", "", "causal", "rtx-5090", {96: (128, 64, 2), 128: (128, 64, 2), 256: (64, 64, 1)}),
    ("flash", "backward", "", "a100-sxm-80gb h100-sxm b200", {32: (128, 128, 1), 64: (128, 128, 1),
     96: (64, 128, 1), 128: (64, 128, 1), 192: (64, 64, 1), 256: (64, 64, 1)}),
    ("flash", "backward", "causal", "a6000 rtx-4090 rtx-5090", {32: (128, 128, 1), 64: (64, 128, 1),
     96: (64, 128, 1), 128: (64, 64, 1), 192: (64, 64, 1), 256: (64, 32, 1)}),
    # hopper/tile_size.h (tile_size_fwd_sm90) and flash_bwd_launch_template.h.
    ("flash3", "", "", "h100-sxm", {64: (192, 192, 1), 96: (192, 144, 1), 128: (128, 176, 1),
     192: (128, 112, 1), 256: (128, 80, 1)}),
    ("flash3", "", "causal", "h100-sxm", {64: (192, 128, 1), 96: (192, 144, 1), 128: (128, 128, 1),
     192: (128, 112, 1), 256: (128, 80, 1)}),
    ("flash3", "", "window", "h100-sxm", {64: (192, 128, 1), 96: (192, 128, 1), 128: (128, 128, 1),
     192: (128, 96, 1), 256: (128, 64, 1)}),
    ("flash3", "backward", "", "h100-sxm", {64: (128, 128, 1), 96: (64, 128, 1), 128: (80, 128, 1),
     192: (64, 96, 1), 256: (64, 80, 1)}),
    ("flash3", "backward", "causal", "h100-sxm", {128: (64, 128, 1)}),
    ("flash3", "backward", "window", "h100-sxm", {128: (64, 128, 1)}),
    ("flash3", "", "fp8", "h100-sxm", {64: (192, 160, 1), 96: (192, 128, 1), 128: (128, 224, 1),
     192: (128, 160, 1), 256: (128, 128, 1)}),
    ("flash3", "", "fp8 window", "h100-sxm", {192: (128, 160, 1), 256: (128, 64, 1)}),
    # fmha_cutlassF_bf16_aligned_64x64_rf_sm80, 64x128_rf, 32x128_gmem;
    # fmha_cutlassB_bf16_aligned_64x64_k64_sm80, 128x64_k128, 64x64_k65536.
    ("efficient", "", "", "a100-sxm-80gb", {64: (64, 64, 2), 128: (64, 128, 2), 256: (32, 128, 2)}),
    ("efficient", "backward", "", "a100-sxm-80gb", {32: (64, 64, 2), 64: (64, 64, 2), 96: (128, 64, 2),
     128: (128, 64, 2), 192: (64, 64, 2)}),
    # flash_attn/cute: two tiles of 128 queries (q_stage) in a CTA forward on Blackwell.
    ("flash4", "", "", "b200", {128: (256, 128, 1)}),
    ("flash4", "backward", "", "b200", {128: (128, 128, 1)}),
    ("flash4", "", "", "h100-sxm", {128: (128, 128, 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "way", "mask", "gpus", "blocks"), BLOCKS)
def test_blocks_are_those_of_the_sources(
    backend: str, way: str, mask: str, gpus: str, blocks: dict[int, tuple[int, int, int]]
) -> None:
    dtype = "fp8" if mask.startswith("fp8") else "bf16"
    mask = mask.removeprefix("fp8").strip()
    for gpu in gpus.split():
        for size, wanted in blocks.items():
            for head_dim in (size - 7, size):
                found = kernel(backend, head_dim, gpu, mask=mask, way=way, dtype=dtype)
                assert (found.block_q, found.block_k, found.ctas_per_sm) == wanted, (gpu, head_dim)
                assert found.head_dim == size and found.backward == (way == "backward")
                assert found.longest_first == (backend in ("flash3", "flash4") and not way)


#: HEADDIM_SWITCH, hopper's instantiations, head_dim_padded of flash_attn/cute; cuDNN's are seen from outside.
@pytest.mark.parametrize(
    ("backend", "sizes"),
    [
        ("flash", (32, 64, 96, 128, 192, 256)),
        ("flash3", (64, 96, 128, 192, 256)),
        ("flash4", (16, 32, 48, 64, 80, 96, 112, 128, 192, 256)),
        ("cudnn", (64, 128, 192, 256)),
    ],
)
def test_a_head_dimension_is_padded_to_the_next_that_a_kernel_is_built_for(
    backend: str, sizes: Sequence[int]
) -> None:
    for below, size in zip((0, *sizes), sizes, strict=False):
        assert padded_head_dim(backend, below + 1) == padded_head_dim(backend, size) == size
    assert padded_head_dim(backend, 257) is None


def test_the_memory_efficient_kernels_take_any_head_dimension() -> None:
    forward = [padded_head_dim("efficient", d) for d in (1, 64, 65, 128, 129, 257)]
    assert forward == [64, 64, 128, 128, 256, 384]
    backward = [padded_head_dim("efficient", d, backward=True) for d in (32, 33, 65, 97, 129, 193)]
    assert backward == [32, 64, 96, 128, 192, 256]
    assert padded_head_dim("math", 300) == 300


#: What each backend needs: torch's sdp_utils.cpp and the README of flash-attention. The GPUs in order of age.
@pytest.mark.parametrize(
    ("backend", "dtype", "runs"),
    [
        ("flash", "bf16", "a100-sxm-80gb rtx-4090 h100-sxm b200"),
        ("flash", "fp32", ""),
        ("cudnn", "fp16", "a100-sxm-80gb rtx-4090 h100-sxm b200"),
        ("flash3", "bf16", "h100-sxm"),
        ("flash3", "fp8", "h100-sxm"),
        ("flash4", "bf16", "h100-sxm b200"),
        ("flash4", "fp8", ""),
        ("efficient", "fp16", "v100-sxm t4 a100-sxm-80gb rtx-4090 h100-sxm b200"),
        ("efficient", "fp32", "v100-sxm t4 a100-sxm-80gb rtx-4090 h100-sxm b200"),
        ("efficient", "bf16", "a100-sxm-80gb rtx-4090 h100-sxm b200"),
        ("efficient", "fp8", ""),
    ],
)
def test_where_a_backend_has_kernels(backend: str, dtype: str, runs: str, said: Listener) -> None:
    assert backend in BACKENDS
    found = []
    for gpu in ("v100-sxm", "t4", "a100-sxm-80gb", "rtx-4090", "h100-sxm", "b200"):
        try:
            found.append(gpu if kernel(backend, 128, gpu, dtype=dtype) else "")
        except InputError:
            continue
    assert found == runs.split()
    if dtype == "fp8" and runs:
        with pytest.raises(InputError) as error:
            kernel(backend, 128, "h100-sxm", way="backward", dtype=dtype)
        said(error.value)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("v100-sxm", "fp16"), ("t4", "fp16"), ("a100-sxm-80gb", "fp16"), ("a5000", "fp16"), ("h100-sxm", "fp16"),
     ("b200", "fp16"), ("b300", "fp16"), ("rtx-5090", "fp16"), ("rtx-6000-ada", "fp16")],
)  # fmt: skip
def test_an_exponential_costs_alike_whether_the_number_of_sms_is_known(name: str, dtype: str) -> None:
    """The datasheet's peak over SMs and boost clock is the operations of an SM and clock."""
    gpu = find_gpu(None, override=name)
    known = exp_cost(gpu, gpu.peak(dtype) or 0.0)
    assert exp_cost(replace(gpu, sms=None), 1.0) == pytest.approx(known, rel=0.01)


#: A kernel without figures on a GPU runs there as one with figures on both compares: the L40S backward as
#: forward, torch's memory-efficient kernels as FlashAttention-2, which multiplies with the same instruction.
@pytest.mark.parametrize(
    ("backend", "gpu", "like", "way"),
    [
        ("flash", "l40s", "a6000", "backward"),
        ("efficient", "h20", "a100-sxm-80gb", ""),
        ("efficient", "b200", "a100-sxm-80gb", ""),
    ],
)
def test_rates_taken_over_stand_to_each_other_as_measured_ones_do(
    backend: str, gpu: str, like: str, way: str
) -> None:
    def rate(name: str, on: str, direction: str) -> float:
        chip, found = find_gpu(None, override=on), kernel(name, 64, on, way=direction)
        call = AttentionProblem(
            batch=1, heads=1, kv_heads=1, seq_q=1024, seq_k=1024, head_dim=64, causal=False,
            direction=direction or "forward",
        )  # fmt: skip
        return kernel_rate(found, call, gpu=chip).mma_frac

    taken = rate(backend, gpu, way) / rate(backend, like, way)
    known = rate("flash", gpu, "") / rate("flash", like, "")
    assert taken == pytest.approx(known, rel=0.12)
