"""What misaligned leading dimensions cost a GEMM: throughput by the least aligned operand, in steps.

A kernel loads and stores 16 bytes per instruction when every row of every operand starts on a multiple of
16 bytes; below that the library falls back to kernels with narrower accesses (CUTLASS ``align4``,
``align2``, ``align1``), and above it a row that starts inside a 128-byte cache line costs extra lines.
Such a kernel loads both operands narrowly, whichever is misaligned. Where the rows of both are, loads of both
straddle lines too, which costs more (A100, 4 bytes: 0.545 in place of 0.665).

Published steps, with the measurements that they rest on: ``tracelens.gemm.ladder_published``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median, quantiles

from tracelens.errors import InputError
from tracelens.gemm import words
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.efficiency import BEST_ALIGNMENT_BYTES, alignment_bytes
from tracelens.gemm.ladder_published import Published, Step, published, published_also
from tracelens.gemm.shapes import GemmShape
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.results import Basis

#: Every alignment a leading dimension can have, best first.
STEPS_BYTES = (128, 64, 32, 16, 8, 4, 2, 1)
#: Rows on it are loaded at full width.
_GRID_BYTES = 16
#: A step is taken from measurements when at least this many pairs of like with like stand behind it.
_ENOUGH_PAIRS = 3
#: A partner may be this much larger than the misaligned size (or stand at its next multiple of 128 bytes).
_PARTNER_FRAC = 0.02


@dataclass(frozen=True, slots=True)
class LadderStep:
    """Throughput at one alignment as a share of that at 128 bytes; None = not known."""

    alignment_bytes: int
    low: float | None
    mid: float | None
    high: float | None
    basis: Basis
    source: str  # where the figures come from, or why they are not known


@dataclass(frozen=True, slots=True)
class AlignmentLadder:
    """Throughput by alignment for one GPU and operand type, best alignment first."""

    gpu: str
    dtype: str
    steps: tuple[LadderStep, ...]
    #: Those that differ by which operands are misaligned: "ab" where the rows of both are, the output's not.
    also: Mapping[tuple[int, str], LadderStep] = field(default_factory=dict)

    def step(self, alignment_bytes: int) -> LadderStep:
        """The step of an alignment: the largest power of two that divides it, at most 128 bytes.

        Of a product in which one operand or the output is misaligned. Raises ``InputError`` for an
        alignment below one byte.
        """
        if alignment_bytes < 1:
            raise InputError(f"an alignment of {alignment_bytes} bytes: give at least 1")
        wanted = min(alignment_bytes & -alignment_bytes, BEST_ALIGNMENT_BYTES)
        return next(step for step in self.steps if step.alignment_bytes == wanted)

    def step_of(self, operands: Mapping[str, int | None]) -> LadderStep:
        """The step of a product whose a, b and c are aligned so (bytes); 128 where none is known.

        >>> from tracelens.hardware import find_gpu
        >>> ladder = alignment_ladder(gpu=find_gpu("NVIDIA A100-SXM4-40GB"), dtype="bf16")
        >>> ladder.step_of({"a": 4, "b": 4, "c": 128}).mid, ladder.step_of({"a": 4, "b": 128, "c": 4}).mid
        (0.545, 0.665)
        """
        known = {name: size for name, size in operands.items() if size is not None}
        least = min(known.values(), default=BEST_ALIGNMENT_BYTES)
        narrow = "".join(name for name in "abc" if known.get(name, least + 1) < max(_GRID_BYTES, least + 1))
        return self.also.get((least, narrow)) or self.step(least)


def alignment_ladder(*, gpu: Gpu, dtype: str, measured: Measurements | None = None) -> AlignmentLadder:
    """The ladder of ``gpu`` for operands of ``dtype``: measured steps, published ones for the rest.

    ``measured`` counts only when it is of this GPU. Raises ``InputError`` for an unknown element type.
    """
    if bytes_per_element(dtype) is None:
        raise InputError(f"unknown element type {dtype!r}: use bf16, fp16, fp8, tf32 or fp32")
    own = _measured_steps(measured, dtype) if measured is not None and measured.gpu == gpu.name else {}
    known = published(gpu) if dtype in _TENSOR_CORE_DTYPES else {}
    steps = tuple(own.get(size) or _step(size, known, gpu, dtype) for size in STEPS_BYTES)
    differ = published_also(gpu) if dtype in _TENSOR_CORE_DTYPES else {}
    also = {
        (size, operands): _step(size, {size: step}, gpu, dtype)
        for (size, operands), step in differ.items()
        if size not in own
    }
    return AlignmentLadder(gpu=gpu.name, dtype=dtype, steps=steps, also=also)


def operand_alignment(
    m: int, n: int, k: int, *, dtype: str, out_dtype: str, layout: str
) -> dict[str, int | None]:
    """Alignment in bytes of contiguous operands a, b and c (= out), by cuBLAS layout letters.

    The first letter is torch's b, the second torch's a; N = row-major in torch's view (see
    ``efficiency.leading_dimensions``).

    >>> operand_alignment(4096, 50257, 768, dtype="bf16", out_dtype="bf16", layout="TN")
    {'a': 128, 'b': 128, 'c': 2}
    """
    shape = GemmShape(
        m,
        n,
        k,
        1,
        dtype,
        out_dtype,
        layout,
        lda=k if layout[1] == "N" else m,
        ldb=n if layout[0] == "N" else k,
    )
    return alignment_bytes(shape)


#: Types with 16-byte tensor-core loads at least; fp32 on CUDA cores loads element by element.
_TENSOR_CORE_DTYPES = frozenset({"bf16", "fp16", "tf32", "fp8", "fp8-block", "nvfp4", "int8"})


def _step(size: int, known: Published, gpu: Gpu, dtype: str) -> LadderStep:
    nothing: Step = (None, None, None, "heuristic", words.nothing_published(dtype, gpu.title))
    low, mid, high, basis, source = known.get(size, nothing)
    if size == BEST_ALIGNMENT_BYTES:
        low, mid, high, basis, source = 1.0, 1.0, 1.0, "model", words.REFERENCE
    elif dtype in ("fp8", "fp8-block", "nvfp4", "int8") and size < _GRID_BYTES:
        low, mid, high = None, None, None
        basis, source = "heuristic", words.in_multiples_of_16(dtype)
    elif dtype == "tf32" and size < _GRID_BYTES and known:
        low, mid, basis, source = None, None, "heuristic", words.TWO_BYTE_TYPES_ONLY
    return LadderStep(size, low, mid, high, basis, source)


_Shape = tuple[int, int, int]
_Group = tuple[int, str, str]


@lru_cache(maxsize=16)
def _measured_steps(measured: Measurements, dtype: str) -> dict[int, LadderStep]:
    """Steps that enough pairs of like with like stand behind."""
    groups: dict[_Group, dict[_Shape, GemmMeasurement]] = {}
    for one in measured.gemms:
        if one.dtype == dtype and one.layout in ("TN", "NN", "NT", "TT"):
            groups.setdefault((one.batch, one.out_dtype, one.layout), {})[one.m, one.n, one.k] = one
    ratios: dict[int, list[float]] = {}
    for shapes in groups.values():
        for alignment, ratio in _pairs(shapes):
            ratios.setdefault(alignment, []).append(ratio)
    steps = {}
    for alignment, found in ratios.items():
        if len(found) < _ENOUGH_PAIRS:
            continue
        cuts = quantiles(found, n=10, method="inclusive")
        low, mid, high = (min(value, 1.0) for value in (cuts[0], median(found), cuts[-1]))
        steps[alignment] = LadderStep(
            alignment, low, mid, high, "calibrated", words.measured_pairs(len(found))
        )
    return steps


def _pairs(shapes: Mapping[_Shape, GemmMeasurement]) -> list[tuple[int, float]]:
    """(alignment, time of the aligned partner / time) of every product with a partner.

    The partner has one size rounded up to 128 bytes, or the next measured aligned one within 2 %, scaled
    by the work; its other sizes are the same.
    """
    lines: dict[tuple[int, _Shape], dict[int, float]] = {}  # aligned times along one axis
    for sizes, one in shapes.items():
        if _least_aligned(one) == BEST_ALIGNMENT_BYTES:
            for axis in range(3):
                lines.setdefault((axis, _without(sizes, axis)), {})[sizes[axis]] = one.time_us
    found = []
    for sizes, one in shapes.items():
        alignment = _least_aligned(one)
        if alignment is None or alignment == BEST_ALIGNMENT_BYTES:
            continue
        for axis in range(3):
            partner = _partner(sizes[axis], lines.get((axis, _without(sizes, axis)), {}), one.dtype)
            if partner is not None:
                found.append((alignment, partner / one.time_us))
    return found


def _partner(size: int, aligned: Mapping[int, float], dtype: str) -> float | None:
    multiple = int(BEST_ALIGNMENT_BYTES / (bytes_per_element(dtype) or 1))
    rounded = -(-size // multiple) * multiple
    if rounded in aligned:
        return aligned[rounded]
    near = [one for one in aligned if size < one <= size * (1 + _PARTNER_FRAC)]
    return aligned[min(near)] * size / min(near) if near else None


def _least_aligned(one: GemmMeasurement) -> int | None:
    values = operand_alignment(
        one.m, one.n, one.k, dtype=one.dtype, out_dtype=one.out_dtype, layout=one.layout
    ).values()
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


def _without(sizes: _Shape, axis: int) -> _Shape:
    first, second, third = (0 if at == axis else size for at, size in enumerate(sizes))
    return first, second, third
