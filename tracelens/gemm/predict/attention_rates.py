"""How fast attention kernels run, by GPU generation: from published figures, each with its source.

One kernel alternates matrix products on the tensor cores with exponentials on the special function units,
16 results per clock and SM on every generation but Blackwell Ultra (32). A score costs 4d operations of
the first kind forward (10d backward) and one of the second, so the smaller the head dimension, the more of
the time goes into exponentials: on Hopper one exponential costs as much as 256 operations, all that a head
dimension of 64 has forward. Adding the two unoverlapped reproduces the published forward speeds at head
dimensions 64 and 128 with nearly one rate of the products; FlashAttention-3 and 4, which overlap them on
purpose, leave a part of the exponentials exposed.

Fitted to: figures without a causal mask at sequences 512, 2048 and 16384 of each source, and with one at
the same lengths for ``causal_factor`` and ``causal_blocks``. Every other length, and every other source,
is held out; tests/gemm compares both. Figures of whole tables (``_SILICON``) are fitted to two thirds of
their head geometries, those of Hopper's FlashAttention-2, cuDNN and memory-efficient kernels (``_OWN``) to
half of the geometries of our own sweep (``benchmarks.attention``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_kernels import Kernel
from tracelens.gemm.predict.words import attention as words
from tracelens.hardware import Gpu

#: Exponentials per clock and SM: CUDA C++ Programming Guide, throughput of native arithmetic instructions.
#: Blackwell Ultra doubles it (NVIDIA developer blog, "Making Softmax More Efficient with NVIDIA Blackwell
#: Ultra").
_EXPS = 16
_EXPS_ULTRA = 32
_ULTRA = (10, 3)
#: Boost clocks in GHz: those with which a datasheet peak is a whole power of two of operations per clock
#: and SM (A100: 312 TFLOP/s = 108 SMs x 2048 x 1.41 GHz).
_BOOST_GHZ = {
    (7, 0): 1.53, (7, 5): 1.59, (8, 0): 1.41, (8, 6): 1.70, (8, 9): 2.52, (9, 0): 1.83, (10, 0): 1.86,
    (10, 3): 1.86, (12, 0): 2.41,
}  # fmt: skip
#: Those operations, dense fp16 with fp32 accumulation, for GPUs whose number of SMs is not known.
_FLOPS_PER_CLOCK = {
    (7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096, (10, 0): 8192,
    (10, 3): 8192, (12, 0): 512,
}  # fmt: skip

_FA2 = "flash-attention README, A100 80GB SXM4 forward + backward, July 2023"
_FA3 = "arXiv 2407.08608 figures 5 and 6, H100 80GB SXM5, July 2024"
_FA3_96 = f"{_FA3}; head dimension 96: NVIDIA aiconfigurator's tables (095f58a51), H100"
_FA3_FP8 = "arXiv 2407.08608, fp8 forward figure, H100 80GB SXM5, July 2024"
_A5000 = "gpu-mode/ring-attention issue 10, RTX A5000, February 2024"
_H20 = "flash-attention issue 1310, H20, November 2024"
_FA2_B200 = "flash-attention issue 1589 (April 2025), tritonbench pull 171 (March 2025), B200"
_FA4 = "flash-attention pulls 2605 (2026) and 2280 (February 2026), B200"
_SILICON = (
    "NVIDIA aiconfigurator's tables (095f58a51): vLLM's vision FlashAttention-2, FlashInfer's prefill; "
)
_L40S = _SILICON + "L40S as its clock and power stood"
_RTX_PRO = _SILICON + "RTX PRO 6000 Server"
_OWN = "benchmarks/gpu/results/h100-sxm/attention_sweep.json, H100 SXM at its power, PyTorch 2.11, cuDNN 9.19"
_XFORMERS = "flash-attention README, A100 80GB SXM4, xformers, forward + backward, July 2023"
_FP32 = "one training trace of an RTX 3060 (luatil/torch-profile trace_04), head dimension 64"


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of one kernel on one GPU generation."""

    mma_frac: float  # of the peak, while it multiplies
    exposed_exp_frac: float  # of the exponentials that no product hides
    overhead_blocks: float  # prologue and epilogue of a tile, in blocks
    slowdown: float  # of every block, where a causal mask makes the kernel slower
    range_frac: float  # about 9 of 10 held-out figures lie within this of the model
    source: str
    fixed_us: float = 0.0  # that a launch takes beside the shortest kernel's time
    tail_frac: float | None = None  # of the longest tile, with SMs idle at the end; None = as for any kernel


@dataclass(frozen=True, slots=True)
class _Figures:
    mma_frac: Mapping[int, float]  # by padded head dimension
    overhead_blocks: float
    source: str
    exposed_exp_frac: float = 1.0
    causal_factor: float = 1.0
    causal_blocks: float = 0.0  # more overhead of a tile under a causal mask
    ragged_blocks: float = 0.0  # more of it where the last block of a causal mask is cut
    narrow_factor: float = 1.0  # of a head dimension below the kernel's
    odd_factor: float = 1.0  # of one that is no multiple of 16
    fixed_us: float = 0.0
    tail_frac: float | None = None
    range_frac: float = 0.15


#: More overhead of a tile of FlashAttention-2 forward under a causal mask, by the A100's figures.
_FA2_CAUSAL = 0.6
# The README's figures are of forward and backward together: the forward products are taken at 0.87 of the
# peak, the best matmul anyone measured on an A100 (gpus.toml: 271 of 312), and the backward fitted.
_TABLE: dict[tuple[str, str, bool], _Figures] = {
    ("flash", "sm80", False): _Figures({64: 0.87, 128: 0.87}, 0.8, _FA2, causal_blocks=_FA2_CAUSAL),
    ("flash", "sm80", True): _Figures({64: 0.635, 128: 0.665}, 0.6, _FA2),
    ("flash", "sm86", False): _Figures({64: 0.88}, 0.0, _A5000, causal_blocks=_FA2_CAUSAL),
    ("flash", "sm86", True): _Figures({64: 0.75}, 1.0, _A5000),
    ("flash", "l40s", False): _Figures(
        {64: 0.71, 96: 0.70, 128: 0.67, 256: 0.47}, 0.0, _L40S, causal_blocks=_FA2_CAUSAL
    ),
    ("flash", "sm120", False): _Figures(
        {64: 1.0, 96: 0.90, 128: 0.88, 256: 0.71}, 0.0, _RTX_PRO, causal_blocks=_FA2_CAUSAL
    ),
    ("flash", "sm90", False): _Figures(
        {32: 0.466, 64: 0.502, 96: 0.492, 128: 0.451, 192: 0.411, 256: 0.368},
        1.6,
        _OWN,
        ragged_blocks=1.33,
        narrow_factor=1.116,
        odd_factor=1.068,
        tail_frac=1.0,
    ),
    ("flash", "sm90", True): _Figures(
        {32: 0.279, 64: 0.352, 96: 0.311, 128: 0.354, 192: 0.294, 256: 0.273},
        1.46,
        _OWN,
        causal_factor=1.016,
        narrow_factor=1.074,
        odd_factor=1.009,
    ),
    ("flash", "h20", False): _Figures({64: 0.64, 128: 0.64}, 1.0, _H20, exposed_exp_frac=0.0),
    ("flash", "sm100", False): _Figures(
        {64: 0.28, 128: 0.19}, 1.2, _FA2_B200, causal_factor=1.06, causal_blocks=0.3
    ),
    ("flash", "sm100", True): _Figures({64: 0.17}, 1.0, _FA2_B200),
    ("flash3", "sm90", False): _Figures(
        {64: 0.93, 96: 0.95, 128: 0.93, 256: 0.83}, 1.0, _FA3_96, 0.7, causal_factor=1.08, causal_blocks=0.8
    ),
    ("flash3", "sm90", True): _Figures({64: 0.645, 128: 0.70}, 1.3, _FA3),
    ("flash3", "h20", False): _Figures({64: 1.0, 128: 1.0}, 1.0, _H20, 0.0, causal_blocks=0.8),
    ("cudnn", "sm90", False): _Figures(
        {64: 0.77, 128: 0.911, 192: 0.867, 256: 0.862},
        1.08,
        _OWN,
        0.6,
        causal_factor=1.071,
        narrow_factor=0.99,
        odd_factor=1.093,
        fixed_us=2.6,
        tail_frac=0.5,
    ),
    ("cudnn", "sm90", True): _Figures(
        {64: 0.572, 128: 0.726, 192: 0.406, 256: 0.505},
        4.06,
        _OWN,
        causal_factor=1.037,
        narrow_factor=0.931,
        odd_factor=1.075,
    ),
    ("cudnn", "h20", False): _Figures({64: 0.98, 128: 0.98}, 1.0, _H20, 0.0),
    ("flash4", "sm100", False): _Figures({64: 0.67, 128: 0.90}, 3.3, _FA4, 0.5, causal_blocks=0.6),
    ("flash4", "sm100", True): _Figures({128: 0.67}, 1.3, _FA4, 0.5),
    ("efficient", "sm80", False): _Figures({64: 0.36, 128: 0.40}, 1.0, _XFORMERS, causal_factor=1.06),
    ("efficient", "sm80", True): _Figures({64: 0.24, 128: 0.315}, 0.3, _XFORMERS),
    ("efficient", "sm90", False): _Figures(
        {64: 0.153, 128: 0.211, 256: 0.195},
        0.96,
        _OWN,
        narrow_factor=0.973,
        odd_factor=1.10,
        tail_frac=1.0,
        range_frac=0.25,
    ),
    ("efficient", "sm90", True): _Figures(
        {32: 0.063, 64: 0.113, 96: 0.123, 128: 0.155, 192: 0.042, 256: 0.043},
        1.0,
        _OWN,
        odd_factor=1.044,
        tail_frac=1.0,
    ),
}
#: fp32 through the memory-efficient kernels, of a third of the tf32 peak.
_EFFICIENT_FP32 = {False: _Figures({64: 0.75}, 1.0, _FP32), True: _Figures({64: 0.645}, 0.6, _FP32)}
#: FlashAttention-3 forward in fp8, of the fp8 peak. A tile also transposes V, which costs it blocks.
_FLASH3_FP8 = _Figures({64: 0.86, 256: 0.84}, 3.0, _FA3_FP8)
#: Where no figure was found: (backend, generation) -> (backend, generation, factor) of one that is like it.
_LIKE: dict[tuple[str, str], tuple[str, str, float]] = {
    ("flash", "sm89"): ("flash", "sm86", 1.0),
    ("flash", "l40s"): ("flash", "sm86", 0.8),  # backward: the ratio of the forward rates
    ("flash", "sm120"): ("flash", "sm86", 1.0),  # backward
    ("flash", "h20"): ("flash", "sm90", 1.8),  # backward: the ratio of the forward rates
    ("flash3", "h20"): ("flash3", "sm90", 1.2),
    ("cudnn", "h20"): ("cudnn", "sm90", 1.2),
    ("flash4", "sm90"): ("flash3", "sm90", 1.0),
    ("flash4", "sm120"): ("flash", "sm86", 1.0),
    ("cudnn", "sm80"): ("flash", "sm80", 0.95),  # torch pull 192799: as fast or a little slower
    ("cudnn", "sm86"): ("flash", "sm86", 1.0),
    ("cudnn", "sm89"): ("flash", "sm86", 1.0),
    ("cudnn", "l40s"): ("flash", "sm86", 0.8),
    ("cudnn", "sm100"): ("flash4", "sm100", 1.0),
    ("cudnn", "sm120"): ("flash", "sm86", 1.0),
    # mma.sync reaches about 0.3 of Blackwell's peak, as flash shows.
    ("efficient", "h20"): ("efficient", "sm80", 0.75),
    ("efficient", "sm100"): ("efficient", "sm80", 0.30),
}
#: Held-out figures: 9 of 10 within 0.07, those of other sources than fitted to within 0.15. A head
#: dimension or a generation without figures is less sure; how much less is a judgement.
_RANGE_HEAD_DIM, _RANGE_DERIVED = 0.35, 0.6


def generation(gpu: Gpu) -> str:
    """The GPU generation whose figures apply: "sm80". Blackwell Ultra counts to sm100. The H20, whose
    tensor cores are cut down and nothing else, is its own, and so is the L40S, whose power is short.

    >>> from tracelens.hardware import find_gpu
    >>> [generation(find_gpu(None, override=name)) for name in ("a100-sxm-80gb", "h200", "h20", "b300")]
    ['sm80', 'sm90', 'h20', 'sm100']
    """
    if gpu.name in ("h20", "l40s"):
        return gpu.name
    major, minor = gpu.compute_capability or (0, 0)
    return f"sm{major}{0 if (major, minor) == _ULTRA else minor}"


def exp_cost(gpu: Gpu, peak_tflops: float) -> float:
    """What one exponential costs, in operations that the tensor cores would do in the same time.

    >>> from tracelens.hardware import find_gpu
    >>> round(exp_cost(find_gpu(None, override="h100-sxm"), 989))
    256
    """
    capability = gpu.compute_capability or (0, 0)
    exps = _EXPS_ULTRA if capability == _ULTRA else _EXPS
    clock = _BOOST_GHZ.get(capability)
    if gpu.sms is None or clock is None:
        return _FLOPS_PER_CLOCK.get(capability, 1024) / exps
    return peak_tflops * 1e3 / (gpu.sms * clock * exps)


def kernel_rate(kernel: Kernel, call: AttentionProblem, *, gpu: Gpu) -> Rate:
    """The rate of a kernel at a call; where it is not known, that of the nearest and a wider range."""
    figures, factor, derived = _figures(kernel, generation(gpu), call.dtype)
    known = figures.mma_frac
    nearest = min(known, key=lambda size: (abs(size - kernel.head_dim), size))
    # In fp8 the overhead of a tile differs among head dimensions more than one number can say.
    windowed = call.window is not None
    sure = nearest == kernel.head_dim and not windowed and call.dtype != "fp8"
    source, range_frac = figures.source, figures.range_frac if sure else _RANGE_HEAD_DIM
    if derived:
        source = words.of_another_kernel(source)
        range_frac = _RANGE_DERIVED
    elif nearest != kernel.head_dim:
        source = words.of_another_head_dim(source, nearest, kernel.head_dim)
    elif windowed:
        source = words.without_window(source)
    blocks, slowdown = figures.overhead_blocks, 1.0
    if call.causal:
        ragged = call.seq_q % kernel.block_q or call.seq_k % kernel.block_k
        blocks += figures.causal_blocks + (figures.ragged_blocks if ragged else 0.0)
        slowdown = figures.causal_factor
    slowdown *= figures.narrow_factor if call.head_dim < kernel.head_dim else 1.0
    slowdown *= figures.odd_factor if call.head_dim % 16 else 1.0
    return Rate(
        mma_frac=round(known[nearest] * factor, 4),
        exposed_exp_frac=figures.exposed_exp_frac,
        overhead_blocks=round(blocks, 4),
        slowdown=round(slowdown, 4),
        range_frac=range_frac,
        source=source,
        fixed_us=figures.fixed_us,
        tail_frac=figures.tail_frac,
    )


def _figures(kernel: Kernel, gpu_generation: str, dtype: str) -> tuple[_Figures, float, bool]:
    """The figures to use, what to multiply their rate with, and whether they are of another kernel or GPU."""
    if dtype == "fp32":
        return _EFFICIENT_FP32[kernel.backward], 1.0, True  # of one GPU
    if dtype == "fp8":
        return _FLASH3_FP8, 1.0, False
    found = _TABLE.get((kernel.backend, gpu_generation, kernel.backward))
    if found is not None:
        return found, 1.0, False
    otherwise = ("efficient" if kernel.backend == "efficient" else "flash", "sm80", 1.0)
    backend, like, factor = _LIKE.get((kernel.backend, gpu_generation), otherwise)
    return _TABLE[(backend, like, kernel.backward)], factor, True
