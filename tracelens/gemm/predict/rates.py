"""What a GPU achieves inside a GEMM: the few rates that the cost of a tile is made of, each with its source.

Without measurements the rates of a GPU are its datasheet's figures times what its architecture's file says
(``architecture``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import NamedTuple

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.predict.architecture import BLOCK_SCALED, Shares, architecture, measured_in
from tracelens.gemm.predict.words import gemm as words
from tracelens.hardware import Gpu, list_gpus
from tracelens.hardware.measurements import Measurements
from tracelens.results import GpuInfo
from tracelens.results.identity import LEAST_US

#: Below it in M, N or K kernels follow the formula less closely, and the ranges are wider.
SMALL = 1024
#: Up to so many rows, and below so many microseconds, they follow it in other ways again.
FEW, SHORT_US = 64, 10.0

#: Power leaves the full clock while tensor cores work at less than this share of the full rate: recordings of
#: an H100 (``tracelens.step.power``).
FULL_CLOCK = 1 / 3

#: Type -> the first compute capability and architecture whose tensor cores have it.
_CAME_WITH = {
    "fp16": ((7, 0), "Volta"), "int8": ((7, 5), "Turing"), "bf16": ((8, 0), "Ampere"),
    "tf32": ((8, 0), "Ampere"), "fp8": ((8, 9), "Ada and Hopper"),
    "fp8-block": ((8, 9), "Ada and Hopper"), "nvfp4": ((10, 0), "Blackwell"),
}  # fmt: skip


class Cast(NamedTuple):
    """How a framework casts activations: one block of threads takes a row, or a part of a large one."""

    start_us: float
    row_ns: float  # per row at least, however short it is
    element_bytes: float  # moved per element


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Shares):
    """The rates of one GPU for one type: its shares, and what they make of its datasheet."""

    sms: int
    multiply_tflops: float  # whole GPU, inside the K loop of a 128x256 tile
    bandwidth_gbps: float  # achieved
    l2_gbps: float
    casts: tuple[Cast, ...]  # of 16-bit activations before the GEMM: see ``cost.cast_us``; () for it alone

    @property
    def low_frac(self) -> float:
        """The range of large shapes: low = mid * low_frac, high = mid * high_frac."""
        return self.low

    @property
    def high_frac(self) -> float:
        return self.high

    def range_of(self, m: int, n: int, k: int, mid_us: float) -> tuple[float, float]:
        """Low and high end of the range of a time, as factors of its middle."""
        if min(m, n, k) >= SMALL:
            return self.low, self.high
        small = self.low_small, self.high_small
        low, high = (self.few if m <= FEW else self.short if mid_us < SHORT_US else ()) or small
        return low, high


def model_rates(gpu: Gpu, math_dtype: str, *, aligned: bool = True) -> Rates | str:
    """Rates from datasheet and published measurements, or a sentence that says what is missing.

    ``aligned``: every row begins on a multiple of 16 bytes.
    """
    peak, bandwidth = peak_of(gpu, math_dtype), gpu.bandwidth_gbps
    if (why := no_units(gpu, math_dtype)) is not None:
        return why
    if peak is None:
        return words.peak_unknown(gpu.title, math_dtype)
    if bandwidth is None:
        return words.bandwidth_unknown(gpu.title)
    if gpu.sms is None or gpu.sms < 1:
        return words.sms_unknown(gpu.title)
    shares = architecture(gpu.compute_capability).shares_of(gpu.name, math_dtype, aligned=aligned)
    if shares is None:
        return words.rates_unknown(gpu.title, math_dtype, measured_in(math_dtype))
    return rates_of(_cut_down(shares, gpu, math_dtype), gpu, math_dtype)


def _cut_down(shares: Shares, gpu: Gpu, math_dtype: str) -> Shares:
    """The reference's figures for a GPU whose tensor cores are cut down to less than a third of it (H20).

    Full rate takes no more power there than leaves the reference its full clock (``FULL_CLOCK``).
    """
    if _of_reference(gpu, math_dtype) >= FULL_CLOCK:
        return shares
    return replace(shares, sustained_loss_frac=0.0)


def no_units(gpu: Gpu, math_dtype: str) -> str | None:
    """Why a GPU multiplies no numbers of a type: another vendor's, or older than the type."""
    if gpu.vendor != "nvidia":
        return words.other_vendor(gpu.title)
    if not lacks(gpu, math_dtype):
        return None
    instead = next((one for one in ("fp8", "bf16", "fp16") if not lacks(gpu, one)), "fp32")
    return words.type_before(gpu.title, math_dtype, _CAME_WITH[math_dtype][1], instead)


def lacks(gpu: Gpu, math_dtype: str) -> bool:
    """Are the tensor cores of a GPU older than a type?"""
    first, _ = _CAME_WITH.get(math_dtype, ((0, 0), ""))
    return (gpu.compute_capability or first) < first


@lru_cache(maxsize=256)
def layout_frac(gpu: Gpu, math_dtype: str, layout: str) -> float:
    """Share of the multiply rate of TN that a layout reaches.

    What holds it back is beside the tensor cores: a GPU with slower ones loses less than the reference.
    """
    frac = architecture(gpu.compute_capability).layouts.get(math_dtype, {}).get(layout, 1.0)
    return min(1.0, frac / _of_reference(gpu, math_dtype)) if frac < 1 else frac


@lru_cache(maxsize=256)
def _of_reference(gpu: Gpu, math_dtype: str) -> float:
    """The peak of one SM over that of the architecture's reference; 1 where one of them is not known."""
    reference = next(
        (one for one in list_gpus() if one.name == architecture(gpu.compute_capability).reference), gpu
    )
    own, other = ((one.peak(math_dtype) or 0.0) / one.sms if one.sms else 0.0 for one in (gpu, reference))
    return own / other if own and other else 1.0


def peak_of(gpu: Gpu, math_dtype: str) -> float | None:
    """The peak that a type's share is of: that of fp8 where the values of a type are scaled in blocks."""
    return gpu.peak("fp8" if math_dtype in BLOCK_SCALED else math_dtype)


@lru_cache(maxsize=256)
def most_l2_mb(gpu: Gpu) -> float:
    """MB that the L2 cache of this GPU holds at most.

    As printed; where that is unknown, the largest known of its compute capability, else of its major version,
    else no bound.
    """
    if gpu.l2_mb is not None:
        return gpu.l2_mb
    same = {0: 0.0, 1: 0.0}
    for one in list_gpus():
        if one.l2_mb is None or one.compute_capability is None or gpu.compute_capability is None:
            continue
        if one.compute_capability[0] == gpu.compute_capability[0]:
            near = int(one.compute_capability == gpu.compute_capability)
            same[near] = max(same[near], one.l2_mb)
    return same[1] or same[0] or math.inf


def rates_of(shares: Shares, gpu: Gpu, math_dtype: str) -> Rates:
    """Rates from the shares of a GPU whose peak, bandwidth and SMs are known."""
    peak = peak_of(gpu, math_dtype)
    assert peak is not None and gpu.bandwidth_gbps is not None and gpu.sms is not None
    return _rates(
        shares, gpu.sms, peak * shares.of_peak, gpu.bandwidth_gbps * shares.of_bandwidth,
        _load_elements(shares, gpu, math_dtype, peak),
    )  # fmt: skip


def least_us(gpu: Gpu, measured: Measurements | None = None) -> float:
    """What a kernel takes at least on this GPU, however little it computes.

    As measured on it; else what kernels of public traces take, or less where its fitted figures say less.
    """
    if measured is not None and measured.launch_floor_us is not None:
        return measured.launch_floor_us
    shares = architecture(gpu.compute_capability).shares_of(gpu.name, "bf16")
    return LEAST_US if shares is None or gpu.vendor != "nvidia" else min(LEAST_US, shares.fixed_us)


def gpu_info(gpu: Gpu, measured: Measurements | None = None) -> GpuInfo:
    """The GPU as a value of the report, with what was ``measured`` on it and what a kernel takes at least."""
    return replace(gpu.info(measured=measured), gemm_floor_us=least_us(gpu, measured))


def rates_of_unknown(sms: int, multiply_tflops: float, bandwidth_gbps: float) -> Rates:
    """Rates of a GPU that only measurements tell of, as a start for fitting them."""
    shares = architecture(None).shares_of("", "bf16")
    assert shares is not None
    return _rates(shares, sms, multiply_tflops, bandwidth_gbps, shares.load_elements)


def _rates(shares: Shares, sms: int, tflops: float, bandwidth_gbps: float, load_elements: float) -> Rates:
    own = {one.name: getattr(shares, one.name) for one in fields(Shares)} | {"load_elements": load_elements}
    return Rates(
        **own,
        sms=sms,
        multiply_tflops=round(tflops, 4),
        bandwidth_gbps=round(bandwidth_gbps, 2),
        l2_gbps=round(shares.l2_sm_gbps * sms, 2),
        casts=tuple(map(Cast, shares.cast_us, shares.cast_row_ns, shares.cast_bytes)),
    )


def _load_elements(shares: Shares, gpu: Gpu, math_dtype: str, peak: float) -> float:
    """The load cost scales with bytes per multiply: the same for every tensor-core type, small for fp32."""
    reference = gpu.peak("fp16") or gpu.peak("bf16")
    size = bytes_per_element(math_dtype)
    if math_dtype not in ("fp32", "fp64") or reference is None or size is None:
        return shares.load_elements
    return round(shares.load_elements * (peak * size) / (reference * 2.0), 4)
