"""Whether the work that shapes count can have been done in the time it took.

A grouped product counts the rows of its buffer, whatever of them the experts got; causal attention counts
scores that the kernel leaves out. Both are upper bounds. A rate above the GPU's peak says of any call that
its work was less than counted, and how much less no trace tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.accounting.words import figures as words
from tracelens.gemm import AttentionShape, Shape, flops
from tracelens.gemm.lost import CLOCK_MARGIN
from tracelens.results import GpuInfo, WorkKnown


@dataclass(frozen=True, slots=True)
class RowRate:
    """How fast calls of one row multiply, if all the work that their shape counts was done."""

    flops: int | None  # of a call, as counted
    tflops: float | None
    dtype: str | None  # whose peak it is judged against
    known: WorkKnown
    possible: bool  # False: more than the GPU can do


def rate_of(shape: Shape | None, *, calls: int, time_ns: int, gpu: GpuInfo, dtype: str | None) -> RowRate:
    """The rate of ``calls`` that took ``time_ns`` together."""
    work, most = flops(shape) if shape else None, most_tflops(gpu, dtype)
    tflops = work * calls / time_ns / 1e3 if work is not None and time_ns else None
    known = work_known(shape, tflops, most)
    # a bound above the peak bounds nothing, whatever the clocks
    limit = gpu.peak_tflops.get(dtype or "", most) if known == "at_most" else most
    return RowRate(work, tflops, dtype, known, not above(tflops, limit))


def most_tflops(gpu: GpuInfo, dtype: str | None) -> float | None:
    """The fastest that the GPU multiplies: its dense peak at boards' clocks, or the best measured."""
    peak = gpu.peak_tflops.get(dtype or "")
    if peak is None:
        return None
    best = (gpu.ceiling_tflops.get(dtype or ""), gpu.measured_tflops.get(dtype or ""))
    return max([(1 + CLOCK_MARGIN) * peak, *(one for one in best if one is not None)])


def above(tflops: float | None, most: float | None) -> bool:
    """Is a rate more than the GPU can do? Never where one of the two is not known."""
    return tflops is not None and most is not None and tflops > most


def work_known(shape: Shape | None, tflops: float | None, most: float | None) -> WorkKnown:
    """How the counted FLOPs of calls that ran at ``tflops`` by them stand to those that were done."""
    if shape is None or flops(shape) is None:
        return "unknown"
    masked = isinstance(shape, AttentionShape) and shape.causal is not False
    if above(tflops, 2 * most if masked and most is not None else most):
        return "above_peak"
    if isinstance(shape, AttentionShape):
        return "at_most" if shape.causal or above(tflops, most) else "exact"
    return "at_most" if shape.grouped else "exact"


def work_why(shape: Shape | None, rate: RowRate, gpu: GpuInfo) -> str | None:
    """Why the counted FLOPs are no more than a bound, or are not known; None where they are exact."""
    if rate.known == "above_peak":
        peak = gpu.peak_tflops.get(rate.dtype or "")
        return words.above_peak(rate.tflops, peak, attention=isinstance(shape, AttentionShape))
    if rate.known != "at_most":
        return None
    return words.CAUSAL_IN_FULL if isinstance(shape, AttentionShape) else words.BUFFER_IN_FULL
