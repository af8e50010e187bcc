"""What misaligned leading dimensions cost a GEMM: throughput by the least aligned operand, in steps.

A kernel loads and stores 16 bytes per instruction when every row of every operand starts on a multiple of
16 bytes; below that the library falls back to kernels with narrower accesses (CUTLASS ``align4``,
``align2``, ``align1``), and above it a row that starts inside a 128-byte cache line costs extra lines.

The shipped steps compare like with like: the time of a product over that of the product whose misaligned
size is rounded up to the next multiple of 128 bytes, so both have the same tiles. They come from raw
sweeps that the authors of arXiv 2401.14489 published (EleutherAI/cookbook, commit fb3e361, folder
``sizing/results``; torch 1.13, fp16), each step as 10th percentile, median, 90th percentile:

A100, vocab_v_sweep (8192 x v x 14336, v = 51136..51264): 2 bytes 0.282, 0.290, 0.297; 4 bytes 0.539, 0.541,
0.547; 8 bytes 0.542, 0.547, 0.553; 16 bytes 0.880, 0.886, 0.890; 32 bytes 0.873, 0.986, 0.986.
A100, vocab_h_sweep (8192 x 51200 x h, h = 14272..14400): 2 bytes 0.276, 0.277, 0.281; 4 bytes 0.662, 0.665,
0.683; 8 bytes 0.663, 0.665, 0.684; 16 bytes 0.985, 0.996, 1.005; 32 and 64 bytes 0.99 to 1.02.
(The two differ because v and h misalign other operands; the files do not say which of them was K.)
A100, ksweep_low (M 27648, K 4096, N 194..510): 4 bytes 0.615, 0.669, 0.690; 8 bytes 0.613, 0.668, 0.690;
16 bytes 0.939, 0.983, 0.998; 32 and 64 bytes 1.00 to 1.02.
V100, ksweep_low (N 258..510): 4 bytes 0.703, 0.734, 0.895; 8 bytes 0.690, 0.730, 0.866; 16 bytes and more
0.99 to 1.02. Odd sizes were not measured.

H100, 4 x (4096 x 4096 by d), fp16, d_ff search of 2024 in stas00/ml-engineering (training/performance):
d = 10922 (4 bytes) 272.7 TFLOP/s, 10848 and 10912 (64 bytes) 395.6 and 395.2, 10880, 10944 and 11008 (128
bytes) 395.5, 398.4, 395.0. That is 0.69 of what aligned sizes reached then. The aligned kernels have been
replaced since (nvjet: median 747 TFLOP/s over the large bf16 products of public H100 traces of October and
December 2025), the fallback is still the sm80 kernel of that time: 272.7 / 747 = 0.37. A trace of BERT-small
(M 141, N 30522, K 512) shows it at 0.26 of nvjet's rate after tiles and waves. Odd sizes (2 bytes): scores
and values of TimeSformer and OWLv2 (16 x 5185 x 5185 and 96 x 3137 x 3137, head dimension 64; traces in
AMD-AGI/TraceLens) run on ``cutlass_75 .. align1`` at 0.08 and 0.10 (scores, mostly stores) and at 0.10 and
0.11 of nvjet's rate (values, whose 128x128 tiles are half empty: 0.2 of a full tile's); A100's odd kernel (74
TFLOP/s) times the SMs and clock of an H100 gives 113 / 747 = 0.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median, quantiles

from tracelens.errors import InputError
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.efficiency import BEST_ALIGNMENT_BYTES, alignment_bytes
from tracelens.gemm.shapes import GemmShape
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements

#: Every alignment a leading dimension can have, best first.
STEPS_BYTES = (128, 64, 32, 16, 8, 4, 2, 1)
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
    basis: str  # calibrated | model | heuristic
    source: str  # where the figures come from, or why they are not known


@dataclass(frozen=True, slots=True)
class AlignmentLadder:
    """Throughput by alignment for one GPU and operand type, best alignment first."""

    gpu: str
    dtype: str
    steps: tuple[LadderStep, ...]

    def step(self, alignment_bytes: int) -> LadderStep:
        """The step of an alignment: the largest power of two that divides it, at most 128 bytes.

        Raises ``InputError`` for an alignment below one byte.
        """
        if alignment_bytes < 1:
            raise InputError(f"an alignment of {alignment_bytes} bytes: give at least 1")
        wanted = min(alignment_bytes & -alignment_bytes, BEST_ALIGNMENT_BYTES)
        return next(step for step in self.steps if step.alignment_bytes == wanted)

    def throughput_frac(self, alignment_bytes: int) -> float | None:
        """Throughput as a share of that at 128 bytes (1.0 there), None where it is not known.

        >>> from tracelens.hardware import find_gpu
        >>> ladder = alignment_ladder(gpu=find_gpu("NVIDIA A100-SXM4-40GB"), dtype="bf16")
        >>> ladder.throughput_frac(128), ladder.throughput_frac(16), ladder.throughput_frac(4)
        (1.0, 0.983, 0.665)
        """
        return self.step(alignment_bytes).mid


def alignment_ladder(*, gpu: Gpu, dtype: str, measured: Measurements | None = None) -> AlignmentLadder:
    """The ladder of ``gpu`` for operands of ``dtype``: measured steps, published ones for the rest.

    ``measured`` counts only when it is of this GPU. Raises ``InputError`` for an unknown element type.
    """
    if bytes_per_element(dtype) is None:
        raise InputError(f"unknown element type {dtype!r}: use bf16, fp16, fp8, tf32 or fp32")
    own = _measured_steps(measured, dtype) if measured is not None and measured.gpu == gpu.name else {}
    published = _published_steps(gpu, dtype)
    steps = tuple(own.get(size) or published[size] for size in STEPS_BYTES)
    return AlignmentLadder(gpu=gpu.name, dtype=dtype, steps=steps)


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


_PAPER = "raw sweeps of arXiv 2401.14489"
_A100 = f"A100, fp16: median and range over three {_PAPER}"
_V100 = f"V100, fp16: 27648 x 4096 by n among the {_PAPER}"
_H100 = "H100, fp16: d_ff search in stas00/ml-engineering (cuBLAS of 2024)"
_Published = dict[int, tuple[float | None, float | None, float | None, str, str]]

#: alignment -> (low, mid, high, basis, source); see the module's docstring for the figures.
_SM80: _Published = {
    64: (0.98, 1.0, 1.0, "model", _A100),
    32: (0.87, 1.0, 1.0, "model", _A100),
    16: (0.88, 0.983, 1.0, "model", _A100),
    8: (0.54, 0.665, 0.69, "model", _A100),
    4: (0.54, 0.665, 0.69, "model", _A100),
    2: (0.27, 0.283, 0.30, "model", f"A100, fp16: odd sizes in two {_PAPER}"),
}
_SM70: _Published = {
    64: (0.98, 1.0, 1.0, "model", _V100),
    32: (0.98, 1.0, 1.0, "model", _V100),
    16: (0.98, 1.0, 1.0, "model", _V100),
    8: (0.69, 0.73, 0.90, "model", _V100),
    4: (0.69, 0.73, 0.90, "model", _V100),
    2: (None, None, 0.90, "heuristic", "V100: odd sizes not measured; no faster than even ones"),
}
#: Same sm80 kernels on GPUs with less tensor throughput per byte loaded: A100's cost is the worst case,
#: none the best.
_SM86: _Published = {
    64: (0.98, 1.0, 1.0, "heuristic", "as A100, whose kernels it runs"),
    32: (0.87, 1.0, 1.0, "heuristic", "as A100, whose kernels it runs"),
    16: (0.88, 0.983, 1.0, "heuristic", "as A100, whose kernels it runs"),
    8: (0.54, None, 1.0, "heuristic", "not measured: between A100's, whose kernels it runs, and no cost"),
    4: (0.54, None, 1.0, "heuristic", "not measured: between A100's, whose kernels it runs, and no cost"),
    2: (0.27, None, 1.0, "heuristic", "not measured: between A100's, whose kernels it runs, and no cost"),
}
#: TMA takes any row pitch that is a multiple of 16 bytes (CUDA driver API, cuTensorMapEncodeTiled); below
#: that cuBLAS falls back to sm80 kernels, which lack Hopper's wgmma.
_TMA = "not measured: TMA takes it, at no more than A100's cost"
_SM90: _Published = {
    64: (0.98, 1.0, 1.0, "model", _H100),
    32: (0.87, 0.98, 1.0, "heuristic", _TMA),
    16: (0.87, 0.95, 1.0, "heuristic", _TMA),
    8: (0.26, 0.37, 0.72, "heuristic", "as 4 bytes: on A100 and V100 the two cost the same"),
    4: (0.26, 0.37, 0.72, "model", f"{_H100}, over today's aligned kernels in public traces"),
    2: (0.07, 0.15, 0.22, "model", "A100's odd kernel scaled to H100; odd products of public traces"),
}
_SM100: _Published = {
    64: (0.98, 1.0, 1.0, "heuristic", "not measured: taken from H100"),
    32: (0.87, 0.98, 1.0, "heuristic", _TMA),
    16: (0.87, 0.95, 1.0, "heuristic", _TMA),
    8: (None, None, 0.72, "heuristic", "Blackwell: not measured; no better than H100's"),
    4: (None, None, 0.72, "heuristic", "Blackwell: not measured; no better than H100's"),
    2: (None, None, 0.72, "heuristic", "Blackwell: not measured; no better than H100's"),
}
_BY_CAPABILITY: Mapping[tuple[int, int], _Published] = {
    (7, 0): _SM70, (8, 0): _SM80, (8, 6): _SM86, (8, 9): _SM86, (9, 0): _SM90, (10, 0): _SM100,
    (10, 3): _SM100,
}  # fmt: skip
#: Types with 16-byte tensor-core loads at least; fp32 on CUDA cores loads element by element.
_TENSOR_CORE_DTYPES = frozenset({"bf16", "fp16", "tf32", "fp8", "int8"})


def _published_steps(gpu: Gpu, dtype: str) -> dict[int, LadderStep]:
    known: _Published = {}
    if gpu.vendor == "nvidia" and gpu.compute_capability is not None and dtype in _TENSOR_CORE_DTYPES:
        known = _BY_CAPABILITY.get(gpu.compute_capability, {})
    steps = {}
    for size in STEPS_BYTES:
        low, mid, high, basis, source = known.get(
            size, (None, None, None, "heuristic", f"nothing published for {dtype} on {gpu.title}")
        )
        if size == BEST_ALIGNMENT_BYTES:
            low, mid, high, basis, source = 1.0, 1.0, 1.0, "model", "the reference of the ladder"
        elif dtype in ("fp8", "int8") and size < 16:
            low, mid, high = None, None, None
            basis, source = "heuristic", f"the libraries take {dtype} only in multiples of 16 bytes"
        elif dtype == "tf32" and size < 16 and known:
            low, mid, basis = None, None, "heuristic"
            source = "measured for 2-byte types only; no faster than those"
        steps[size] = LadderStep(size, low, mid, high, basis, source)
    return steps


_Shape = tuple[int, int, int]
_Group = tuple[int, str, str]


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
        source = f"measured on this GPU: median of {len(found)} pairs of like with like"
        steps[alignment] = LadderStep(alignment, low, mid, high, "calibrated", source)
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
