"""What a predicted attention call says."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.gemm.predict.derivation import Term
from tracelens.results import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPrediction:
    """What one attention call takes, and why. None = not known; ``unknown`` says why.

    ``time_us`` covers the call: its main kernel and, backward, the small kernels around it.
    """

    time_us: Estimate
    kernel_us: float | None = (
        None  # of the middle estimate, the main kernel alone; None for unfused attention
    )
    backend: str
    backend_why: str
    head_dim: int | None  # the kernel computes with
    block_q: int | None = None
    block_k: int | None = None
    tiles: int | None = None
    waves: float | None = None
    useful_flops: float  # of scores that are not masked
    computed_flops: float | None = None  # with masked parts of blocks and padded head dimensions
    floor_us: float | None = None  # useful operations at the peak or bytes at the bandwidth, the larger
    terms: tuple[Term, ...] = ()  # the last value is the middle estimate
    notes: tuple[str, ...] = ()  # where the rate is from, what is left out
    unknown: str | None = None  # why there is no estimate

    @property
    def tflops(self) -> float | None:
        """Useful TFLOP/s of the middle estimate."""
        return self.useful_flops / self.time_us.mid / 1e6 if self.time_us.mid else None
