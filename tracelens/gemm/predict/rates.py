"""What a GPU achieves inside a GEMM: the few rates the cost of a tile is made of, each with its source.

Without measurements the rates of a GPU are its datasheet figures times the shares below. They were fitted
on data that the tests do not use: 1,101 of the A100 layers (h_sweep.out) among the raw sweeps of arXiv
2401.14489 (EleutherAI/cookbook, commit fb3e361), and 80 GEMMs of public H100 traces (modded-nanogpt of
2025, AMD-AGI/TraceLens tests). Both agree on everything but the rate itself:

=====================================  =====  =====
                                       A100   H100
=====================================  =====  =====
multiply rate / datasheet peak         0.81   0.86
cost of an almost empty wave           0.39   0.54
store of the output that nothing hides 0.47   0.54
bandwidth / datasheet                  0.87   0.97
=====================================  =====  =====
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.hardware import Gpu


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one GPU for one type; what the cost of every tile is computed from."""

    sms: int
    multiply_tflops: float  # whole GPU, inside the K loop of a 128x256 tile
    load_elements: float  # how much a tile's loads slow its multiplies: see ``cost.tile_slowdown``
    partial_wave_frac: float  # an almost empty wave costs this share of a full one
    store_frac: float  # share of a wave's output store that no computation hides
    bandwidth_gbps: float  # achieved
    fixed_us: float  # a kernel's start and end
    split_us: float  # what summing up slices of K costs besides its traffic
    low_frac: float  # range: low = mid * low_frac, high = mid * high_frac
    high_frac: float
    source: str


@dataclass(frozen=True, slots=True)
class _Share:
    of_peak: float
    low: float
    high: float
    source: str


#: Share of the dense peak that the multiply loop reaches, by compute capability, and the range of a
#: prediction made with it (90 % of the data named above fall inside where there are data).
_SHARES = {
    (7, 0): _Share(0.75, 0.75, 1.40, "V100: raw sweeps of arXiv 2401.14489"),
    (7, 5): _Share(0.55, 0.60, 1.60, "not measured: Turing boards at 70 W hold about half their peak"),
    (8, 0): _Share(0.81, 0.85, 1.25, "A100: layers among the raw sweeps of arXiv 2401.14489"),
    (8, 6): _Share(0.75, 0.75, 1.50, "not measured: between A100's share and a power-limited board's"),
    (8, 9): _Share(0.75, 0.75, 1.50, "not measured: between A100's share and a power-limited board's"),
    (9, 0): _Share(0.86, 0.85, 1.25, "H100: GEMMs of public traces"),
    (10, 0): _Share(0.78, 0.75, 1.45, "B200: best matmul measured, 1745 of 2250 TFLOP/s"),
    (10, 3): _Share(0.79, 0.75, 1.45, "B300: best matmul measured, 1769 of 2250 TFLOP/s"),
    (12, 0): _Share(0.75, 0.75, 1.50, "not measured: taken from Ampere, whose kernels it runs"),
}
_UNKNOWN_SHARE = _Share(0.70, 0.70, 1.60, "not measured on this architecture")
#: fp32 on CUDA cores: 48 to 55 of 67 TFLOP/s on an H100, 6 to 8 of 12.7 on an RTX 3060 (public traces).
_CUDA_CORE_SHARE = _Share(0.72, 0.75, 1.40, "CUDA cores: fp32 GEMMs of public H100 and RTX 3060 traces")

_PARTIAL_WAVE_FRAC = 0.5
_STORE_FRAC = 0.5
_BANDWIDTH_SHARE = 0.9
#: The shortest tensor-core GEMMs of public H100 traces last 5 to 6 us (M = 4 and 5, K = 768).
_FIXED_US = 5.0
_SPLIT_US = 2.0
#: 35: a 128x128 tile ran at 0.87 of the rate of a 128x256 one on A100, 0.88 on H100.
LOAD_ELEMENTS = 35.0


def model_rates(gpu: Gpu, math_dtype: str) -> Rates | str:
    """Rates from datasheet and published shares, or a sentence that says what is missing."""
    peak, bandwidth = gpu.peak(math_dtype), gpu.bandwidth_gbps
    if gpu.vendor != "nvidia":
        return f"predictions know NVIDIA's libraries only, not those of {gpu.title}"
    if peak is None:
        return f"the {math_dtype} peak of {gpu.title} is not known"
    if bandwidth is None:
        return f"the memory bandwidth of {gpu.title} is not known"
    if gpu.sms is None or gpu.sms < 1:
        return f"the number of SMs of {gpu.title} is not known"
    on_cuda_cores = math_dtype in ("fp32", "fp64")
    share = _SHARES.get(gpu.compute_capability or (0, 0), _UNKNOWN_SHARE)
    return Rates(
        sms=gpu.sms,
        multiply_tflops=round(peak * (_CUDA_CORE_SHARE if on_cuda_cores else share).of_peak, 4),
        load_elements=_load_elements(gpu, math_dtype, peak),
        partial_wave_frac=_PARTIAL_WAVE_FRAC,
        store_frac=_STORE_FRAC,
        bandwidth_gbps=round(bandwidth * _BANDWIDTH_SHARE, 2),
        fixed_us=_FIXED_US,
        split_us=_SPLIT_US,
        low_frac=(_CUDA_CORE_SHARE if on_cuda_cores else share).low,
        high_frac=(_CUDA_CORE_SHARE if on_cuda_cores else share).high,
        source=(_CUDA_CORE_SHARE if on_cuda_cores else share).source,
    )


def _load_elements(gpu: Gpu, math_dtype: str, peak: float) -> float:
    """The load cost scales with bytes per multiply: the same for every tensor-core type, small for fp32."""
    reference = gpu.peak("fp16") or gpu.peak("bf16")
    size = bytes_per_element(math_dtype)
    if math_dtype not in ("fp32", "fp64") or reference is None or size is None:
        return LOAD_ELEMENTS
    return round(LOAD_ELEMENTS * (peak * size) / (reference * 2.0), 4)
