"""What can be measured: one value per product or attention call, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from tracelens.errors import TracelensError
from tracelens.hardware.measurements import MeasuredBackend
from tracelens.numbers import mnk
from tracelens.words import Direction

#: What a product is computed in; tf32 is fp32 data on tensor cores.
DTYPES = ("bf16", "fp16", "fp8", "tf32", "fp32")
LAYOUTS = ("TN", "NN", "NT", "TT")

BACKENDS: tuple[MeasuredBackend, ...] = get_args(MeasuredBackend)


@dataclass(frozen=True, slots=True)
class GemmCase:
    """One product out[M,N] = a[M,K] @ b[K,N] to be timed, ``batch`` times by one ``torch.bmm``.

    ``layout`` is cuBLAS opA, opB as torch produces it: TN in the forward (x @ w.T), NN for the gradient
    of the input (dy @ w), NT for that of the weight (dy.T @ x). Leading dimensions are the natural ones
    of contiguous tensors and storage begins at 512 bytes, as the caching allocator gives it, so alignment
    follows from M, N and K alone.
    """

    sweep: str  # the family of shapes it belongs to: "wave", "alignment", "transformer"
    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "bf16"
    layout: str = "TN"
    out_dtype: str | None = None  # None: that of the operands; bf16 for fp8, fp32 for tf32

    @property
    def result_dtype(self) -> str:
        """The dtype of out.

        >>> GemmCase("x", 16, 16, 16, dtype="fp8").result_dtype
        'bf16'
        """
        return self.out_dtype or {"fp8": "bf16", "tf32": "fp32"}.get(self.dtype, self.dtype)

    @property
    def flops(self) -> float:
        """2*M*N*K*batch."""
        return 2.0 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        return f"{mnk(self.m, self.n, self.k, self.batch)} {self.dtype} {self.layout}"


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One call of ``scaled_dot_product_attention`` to be timed with one backend.

    Heads lie beside each other in memory ([batch, sequence, heads, head_dim], seen transposed), as a
    model's projections leave them. ``backward`` times the gradients of query, key and value alone.
    """

    sweep: str
    batch: int
    heads: int
    seq_q: int
    head_dim: int
    kv_heads: int | None = None  # None: as many as heads
    seq_k: int | None = None  # None: seq_q
    dtype: str = "bf16"
    causal: bool = True
    direction: Direction = "forward"
    backend: MeasuredBackend = "flash"

    @property
    def key_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def keys(self) -> int:
        """The length of key and value."""
        return self.seq_q if self.seq_k is None else self.seq_k

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.key_heads == self.heads else f"{self.heads}/{self.key_heads}"
        length = f"{self.seq_q}" if self.keys == self.seq_q else f"{self.seq_q}×{self.keys}"
        mask = " causal" if self.causal else ""
        return (
            f"{self.backend} {self.direction} b={self.batch} h={heads} s={length} d={self.head_dim}"
            f" {self.dtype}{mask}"
        )


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How a case is measured; the defaults suit a GPU and thousands of shapes."""

    seconds_per_case: float = 0.06  # of repeats, at most
    min_seconds: float = 0.02  # of repeats, at least: clocks and power follow the load with a delay
    batch_us: float = 300.0  # calls between two events last about this long: events resolve half a µs
    max_calls: int = 128  # in one batch
    min_batches: int = 7
    max_batches: int = 64
    settled_frac: float = 0.003  # stop once the median is known this well
    warmup_calls: int = 2
    profile_every: int = 96  # cases in one profiler run, which names their kernels
    check: bool = True  # compare a slice of each result with a float64 reference


#: A try of the program on a CPU: the fewest calls that exercise everything.
TRY = MeasureOptions(
    seconds_per_case=0.0, min_seconds=0.0, batch_us=1.0, max_calls=1, min_batches=3, max_batches=3,
    warmup_calls=1,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What became of one case: a time, or the reason why there is none."""

    case: GemmCase | AttentionCase
    time_us: float | None
    note: str | None = None


class CannotMeasure(TracelensError):
    """This case cannot be measured here (no kernel for it, too little memory); the next one may."""
