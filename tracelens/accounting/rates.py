"""Whether the work that shapes count can have been done in the time it took.

A grouped product counts the rows of its buffer, whatever of them the experts got; causal attention counts
scores that the kernel leaves out. Both are upper bounds. A rate above the GPU's peak says of any call that
its work was less than counted, and how much less no trace tells.
"""

from __future__ import annotations

from tracelens.gemm import AttentionShape, Shape, flops
from tracelens.gemm.lost import CLOCK_MARGIN
from tracelens.numbers import sig
from tracelens.results import GpuInfo, WorkKnown


def most_tflops(gpu: GpuInfo, dtype: str | None) -> float | None:
    """The fastest that the GPU multiplies: its dense peak at boards' clocks, or the best measured."""
    peak = gpu.peak_tflops.get(dtype or "")
    if peak is None:
        return None
    best = (gpu.ceiling_tflops.get(dtype or ""), gpu.measured_tflops.get(dtype or ""))
    return max((1 + CLOCK_MARGIN) * peak, *(one or 0.0 for one in best))


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


def work_why(
    shape: Shape | None, known: WorkKnown, tflops: float | None, gpu: GpuInfo, dtype: str | None
) -> str | None:
    """Why the counted FLOPs are no more than a bound, or are not known; None where they are exact."""
    if known == "above_peak":
        peak = gpu.peak_tflops.get(dtype or "")
        what = "rows of a buffer were" if not isinstance(shape, AttentionShape) else "scores were"
        return (
            f"counted in full it would be {sig(tflops)} TFLOP/s, above the dense peak of {sig(peak)}: not all"
            f" {what} computed, or the product is sparse"
        )
    if known != "at_most":
        return None
    if isinstance(shape, AttentionShape):
        return "causal attention is counted in full; its kernel leaves out masked scores"
    return "all rows of the buffer are counted, filled or not"
