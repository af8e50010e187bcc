"""What a GPU achieves inside a GEMM: the few rates the cost of a tile is made of, each with its source.

Without measurements the rates of a GPU are its datasheet figures times the shares below. They were fitted
on data that the tests do not use: 1,101 linear layers on an A100 and a wave sweep on a V100 (h_sweep.out,
ksweep_high/v100.out among the raw sweeps of arXiv 2401.14489; EleutherAI/cookbook, commit fb3e361), and 80
GEMMs of public H100 traces (modded-nanogpt of 2025, AMD-AGI/TraceLens tests). Apart from the multiply rate
the three hardly differ, so every GPU without measurements gets the same shares of those:

=======================================  =====  =====  =====
                                         V100   A100   H100
=======================================  =====  =====  =====
multiply rate / datasheet peak           0.71   0.81   0.86
cost of an almost empty last wave        0.59   -      0.58 to 0.70
store of the output that nothing hides   0.34   0.47   0.46 to 0.57
bandwidth / datasheet                    -      0.87   0.89 to 1.00
=======================================  =====  =====  =====

(A dash: the data do not decide it.)
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.hardware import Gpu
from tracelens.results.identity import USUAL_US


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one GPU for one type; what the cost of every tile is computed from."""

    sms: int
    multiply_tflops: float  # whole GPU, inside the K loop of a 128x256 tile
    load_elements: float  # how much a tile's loads slow its multiplies: see ``cost.tile_slowdown``
    partial_wave_frac: float  # an almost empty last wave costs this share of a full one
    first_wave_frac: float  # the same where the first wave is the last: fewer tiles than SMs
    store_frac: float  # share of a wave's output store that no computation hides
    bandwidth_gbps: float  # achieved
    fixed_us: float  # a kernel's start and end
    split_us: float  # what summing up slices of K costs besides its traffic
    ceiling_tflops: float | None  # no product is faster than the best matmul anyone measured
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
    (7, 0): _Share(0.71, 0.75, 1.40, "V100: raw sweeps of arXiv 2401.14489"),
    (7, 5): _Share(0.55, 0.60, 1.60, "not measured: Turing boards at 70 W hold about half their peak"),
    (8, 0): _Share(0.81, 0.85, 1.25, "A100: layers among the raw sweeps of arXiv 2401.14489"),
    (8, 6): _Share(0.75, 0.75, 1.50, "not measured: A100's share, less on boards short of power"),
    # An L20 reaches 105 to 115 of 119.5 TFLOP/s (CUDA-Learn-Notes, hgemm); an L4 at 72 W cannot.
    (8, 9): _Share(0.80, 0.75, 1.60, "not measured: below the L20's, less on boards short of power"),
    (9, 0): _Share(0.86, 0.85, 1.25, "H100: GEMMs of public traces"),
    # 1745 of 2250 TFLOP/s on 1792x16128x3072 (gpus.toml) ask for this share once waves are counted.
    (10, 0): _Share(0.85, 0.75, 1.45, "B200: the best matmul measured"),
    (10, 3): _Share(0.85, 0.75, 1.45, "taken from B200"),
    (12, 0): _Share(0.75, 0.75, 1.50, "not measured: taken from Ampere, whose kernels it runs"),
}
_UNKNOWN_SHARE = _Share(0.70, 0.70, 1.60, "not measured on this architecture")
#: Where a type reaches another share than fp16 and bf16. fp8: 1524 to 1543 of 1979 TFLOP/s with waves and
#: all (public H100 traces). fp32 runs on CUDA cores: 47 to 55 of 67 TFLOP/s on an H100, 6 to 8 of 12.7 on an
#: RTX 3060.
_SHARES_BY_TYPE = {
    ("fp8", (9, 0)): _Share(0.79, 0.85, 1.25, "H100: fp8 GEMMs of public traces"),
    ("fp32", (9, 0)): _Share(0.79, 0.85, 1.25, "H100: fp32 GEMMs of a public trace"),
}
_CUDA_CORE_SHARE = _Share(0.72, 0.75, 1.35, "CUDA cores: fp32 GEMMs of a public RTX 3060 trace")

_PARTIAL_WAVE_FRAC = 0.6
_FIRST_WAVE_FRAC = 0.7
_STORE_FRAC = 0.5
_BANDWIDTH_SHARE = 0.9
_SPLIT_US = 2.0
#: A 128x128 tile multiplies at 0.93 of the rate of a 128x256 one. A100's layers fit best with 11, the H100
#: traces equally well from 1 to 42, V100's wave sweep with 60.
LOAD_ELEMENTS = 20.0


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
    capability = gpu.compute_capability or (0, 0)
    share = _SHARES_BY_TYPE.get((math_dtype, capability))
    if share is None:
        on_cuda_cores = math_dtype in ("fp32", "fp64")
        share = _CUDA_CORE_SHARE if on_cuda_cores else _SHARES.get(capability, _UNKNOWN_SHARE)
    return Rates(
        sms=gpu.sms,
        multiply_tflops=round(peak * share.of_peak, 4),
        load_elements=_load_elements(gpu, math_dtype, peak),
        partial_wave_frac=_PARTIAL_WAVE_FRAC,
        first_wave_frac=_FIRST_WAVE_FRAC,
        store_frac=_STORE_FRAC,
        bandwidth_gbps=round(bandwidth * _BANDWIDTH_SHARE, 2),
        fixed_us=USUAL_US,
        split_us=_SPLIT_US,
        ceiling_tflops=_ceiling(gpu, math_dtype),
        low_frac=share.low,
        high_frac=share.high,
        source=share.source,
    )


def rates_of_unknown(sms: int, multiply_tflops: float, bandwidth_gbps: float) -> Rates:
    """Rates of a GPU that only measurements tell of, as a start for fitting them."""
    return Rates(
        sms, multiply_tflops, LOAD_ELEMENTS, _PARTIAL_WAVE_FRAC, _FIRST_WAVE_FRAC, _STORE_FRAC,
        bandwidth_gbps, USUAL_US, _SPLIT_US, None, _UNKNOWN_SHARE.low, _UNKNOWN_SHARE.high, "measured",
    )  # fmt: skip


def _ceiling(gpu: Gpu, math_dtype: str) -> float | None:
    """The table's measured ceiling, for 16-bit types: fp8 GEMMs of public H100 traces exceed theirs."""
    if math_dtype not in ("bf16", "fp16"):
        return None
    return gpu.ceiling(math_dtype) or gpu.ceiling("bf16" if math_dtype == "fp16" else "fp16")


def _load_elements(gpu: Gpu, math_dtype: str, peak: float) -> float:
    """The load cost scales with bytes per multiply: the same for every tensor-core type, small for fp32."""
    reference = gpu.peak("fp16") or gpu.peak("bf16")
    size = bytes_per_element(math_dtype)
    if math_dtype not in ("fp32", "fp64") or reference is None or size is None:
        return LOAD_ELEMENTS
    return round(LOAD_ELEMENTS * (peak * size) / (reference * 2.0), 4)
