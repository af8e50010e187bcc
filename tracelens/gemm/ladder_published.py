"""Published costs of misalignment, as shares of the throughput at 128 bytes, and what they rest on.

A100 and V100: raw sweeps that the authors of arXiv 2401.14489 published (EleutherAI/cookbook, commit
fb3e361, folder ``sizing/results``; torch 1.13, fp16). Each step is the time of the product whose misaligned
size is rounded up to the next multiple of 128 bytes over that of the product, so both have the same tiles:
10th percentile, median, 90th percentile.

A100, vocab_v_sweep (8192 x v x 14336, v = 51136..51264): 2 bytes 0.282, 0.290, 0.297; 4 bytes 0.539, 0.541,
0.547; 8 bytes 0.542, 0.547, 0.553; 16 bytes 0.880, 0.886, 0.890; 32 bytes 0.873, 0.986, 0.986.
A100, vocab_h_sweep (8192 x 51200 x h, h = 14272..14400): 2 bytes 0.276, 0.277, 0.281; 4 bytes 0.662, 0.665,
0.683; 8 bytes 0.663, 0.665, 0.684; 16 bytes 0.985, 0.996, 1.005; 32 and 64 bytes 0.99 to 1.02.
A100, ksweep_low (M 27648, K 4096, N 194..510): 4 bytes 0.615, 0.669, 0.690; 8 bytes 0.613, 0.668, 0.690; 16
bytes 0.939, 0.983, 0.998; 32 and 64 bytes 1.00 to 1.02.
V100, ksweep_low (N 258..510): 4 bytes 0.703, 0.734, 0.895; 8 bytes 0.690, 0.730, 0.866; 16 bytes and more
0.99 to 1.02. Odd sizes were not measured.

Which operand: the lines of both vocabulary files ("..., b=1", four digits) are printed by
``benchmark_mm_b`` of ``mm_flops.py`` alone, which prints M x K x N and runs ``linear`` (TN). So v is K
there, and misaligns a and b; h is N, and misaligns the output only (its time steps up by 2.9 % from 14336 =
112 x 128 to 14344, as a new column of tiles does and a longer K does not). ksweep_low is ``mm`` (NN): its N
misaligns b and the output.

H100 and H200 below 16 bytes: TMA takes no such rows (CUDA driver API, cuTensorMapEncodeTiled), so cuBLAS
runs sm80 (4 and 8 bytes) and sm75 kernels (2 bytes), which lack Hopper's wgmma. Measured on an H100 with
torch 2.11, over what the formula of ``predict`` says of aligned ones, 1,200 products of 60 us and more:
medians below, 9 of 10 within the ends; what each operand costs at 2 bytes depends on the kernel's layout.
Smaller products and batched ones take kernels of many kinds: between half and twice that. Before it was
measured the following was known, and it agrees:

- 4 bytes, a only: 4 x (4096 x 4096 by 10922), fp16, 272.7 TFLOP/s (d_ff search of March 2024,
  stas00/ml-engineering): 0.33. Aligned widths reached 395 to 398 there, 0.69 of which is no measure of
  today's cost: both figures are within 4 % of A100's sm80 kernels (173 and 255 TFLOP/s) times the SMs and
  clock of an H100 (263 and 388), so both most likely ran on those (no kernel name was recorded); the same
  author's table has 739 TFLOP/s for an H100 in August 2024.
- 4 and 8 bytes, output only: A100's 173 TFLOP/s so scaled: 0.31. Both operands: 139 TFLOP/s: 0.25.
- 4 bytes, output only: BERT-small, 141 x 30522 x 512 in 41.3 us (traces in AMD-AGI/TraceLens): 0.25 to
  0.30, with the best tile and with the one that ran.
- 8 bytes: the three products of a vision MLP, 768 tokens, 1280 wide, ffn 3420, in 57.4 us each
  (revollllt/flash-vla, results/lingbot-h100, torch 2.9.1): 0.20 to 0.23.
- 4 and 8 bytes, all operands: 64 x (L x L x L) around L = 705 takes 2.3 times as long as with L a multiple
  of 8 (an ESMFold2 patch, torch 2.13): 0.43 of what aligned products so small reach.
- 2 bytes, one operand or both: 72000 x 3072 by 3072 and by 14336 on an H200 (Frankaaay/FastWAM,
  docs/26-07-03, torch 2.7.1), 14.2 and 64.0 ms where 1.715 and 9.097 ms aligned: 0.12 and 0.14 of those, 96
  and 99 TFLOP/s.
- 2 bytes: A100's 74 TFLOP/s scaled: 113, 0.13. Scores and values of OWLv2 and TimeSformer (16 x 5185 x 5185
  and 96 x 3137 x 3137, head dimension 64; AMD-AGI/TraceLens): 0.07 and 0.10 (scores, mostly stores), 0.10
  and 0.11 (values; 0.17 and 0.19 by the tile that ran, half of it empty). ESMFold2 as above: 3.2 times,
  0.31.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.hardware import Gpu
from tracelens.results import Basis

#: low, mid, high, basis, source of one step.
Step = tuple[float | None, float | None, float | None, Basis, str]
Published = dict[int, Step]
#: By alignment and the operands that are loaded or stored narrowly: of "a", "b" and "c", which is the output.
Narrow = Mapping[tuple[int, str], Step]

_PAPER = "raw sweeps of arXiv 2401.14489"
_A100 = f"A100, fp16: median and range over three {_PAPER}"
_A100_ONE = f"A100, fp16: output misaligned, and b with it, in two {_PAPER}"
_A100_BOTH = f"A100, fp16: rows of both operands misaligned, one of the {_PAPER}"
_V100 = f"V100, fp16: 27648 x 4096 by n among the {_PAPER}"
_H100 = "H100, fp16: d_ff search in stas00/ml-engineering (cuBLAS of 2024)"
_MEASURED = "H100: products of at least 60 us, torch 2.11 (benchmarks/gpu/results/h100-sxm)"
_TMA = "not measured: TMA takes it, at no more than A100's cost"
_LIKE_A100 = "as A100, whose kernels it runs"
_UP_TO_A100 = "not measured: between A100's, whose kernels it runs, and no cost"
_LIKE_H100 = "Blackwell: not measured; no better than H100's"

#: Microseconds from which on the steps of Hopper hold, and how far from them smaller and batched ones are.
WHOLE_US = 60.0
OF_SMALL: Mapping[tuple[int, int], float] = {(9, 0): 2.0}

SM80: Published = {
    64: (0.98, 1.0, 1.0, "model", _A100),
    32: (0.87, 1.0, 1.0, "model", _A100),
    16: (0.93, 0.983, 1.0, "model", _A100_ONE),
    8: (0.61, 0.665, 0.69, "model", _A100_ONE),
    4: (0.61, 0.665, 0.69, "model", _A100_ONE),
    2: (0.27, 0.283, 0.30, "model", f"A100, fp16: odd sizes in two {_PAPER}"),
}
SM80_ALSO: Narrow = {
    (size, operands): (low, mid, high, "model", _A100_BOTH)
    for size, (low, mid, high) in {
        16: (0.87, 0.886, 1.0),
        8: (0.53, 0.545, 0.61),
        4: (0.53, 0.545, 0.61),
    }.items()
    for operands in ("ab", "abc")
}
SM70: Published = {
    64: (0.98, 1.0, 1.0, "model", _V100),
    32: (0.98, 1.0, 1.0, "model", _V100),
    16: (0.98, 1.0, 1.0, "model", _V100),
    8: (0.69, 0.73, 0.90, "model", _V100),
    4: (0.69, 0.73, 0.90, "model", _V100),
    2: (None, None, 0.90, "heuristic", "V100: odd sizes not measured; no faster than even ones"),
}
#: Same sm80 kernels on GPUs with less tensor throughput per byte loaded: A100's cost is the worst case,
#: none the best.
SM86: Published = {
    64: (0.98, 1.0, 1.0, "heuristic", _LIKE_A100),
    32: (0.87, 1.0, 1.0, "heuristic", _LIKE_A100),
    16: (0.88, 0.983, 1.0, "heuristic", _LIKE_A100),
    8: (0.54, None, 1.0, "heuristic", _UP_TO_A100),
    4: (0.54, None, 1.0, "heuristic", _UP_TO_A100),
    2: (0.27, None, 1.0, "heuristic", _UP_TO_A100),
}
#: Ends below 16 bytes are those of large products: ``WHOLE_US``, ``OF_SMALL``.
SM90: Published = {
    64: (0.98, 1.0, 1.0, "model", _H100),
    32: (0.9, 0.98, 1.0, "model", _MEASURED),
    16: (0.9, 0.95, 1.0, "model", _MEASURED),
    8: (0.26, 0.30, 0.35, "model", _MEASURED),
    4: (0.26, 0.30, 0.35, "model", _MEASURED),
    2: (0.11, 0.14, 0.18, "model", _MEASURED),
}
SM90_ALSO: Narrow = {
    (size, operands): (0.225, 0.26, 0.305, "model", _MEASURED)
    for size in (8, 4)
    for operands in ("ab", "abc")
} | {
    (32, "c"): (0.95, 1.0, 1.0, "model", _MEASURED),
    (16, "a"): (0.9, 0.97, 1.0, "model", _MEASURED),
    (16, "c"): (0.95, 1.0, 1.0, "model", _MEASURED),
    (2, "a"): (0.13, 0.155, 0.185, "model", _MEASURED),
    (2, "ab"): (0.11, 0.131, 0.16, "model", _MEASURED),
    (2, "abc"): (0.11, 0.14, 0.18, "model", _MEASURED),
    (2, "bc"): (0.125, 0.15, 0.185, "model", _MEASURED),
    (2, "c"): (0.1, 0.111, 0.125, "model", _MEASURED),
}
SM100: Published = {
    64: (0.98, 1.0, 1.0, "heuristic", "not measured: taken from H100"),
    32: (0.87, 0.98, 1.0, "heuristic", _TMA),
    16: (0.87, 0.95, 1.0, "heuristic", _TMA),
    8: (None, None, 0.72, "heuristic", _LIKE_H100),
    4: (None, None, 0.72, "heuristic", _LIKE_H100),
    2: (None, None, 0.72, "heuristic", _LIKE_H100),
}
_BY_CAPABILITY: Mapping[tuple[int, int], Published] = {
    (7, 0): SM70, (8, 0): SM80, (8, 6): SM86, (8, 9): SM86, (9, 0): SM90, (10, 0): SM100,
    (10, 3): SM100, (12, 0): SM86,
}  # fmt: skip
_ALSO: Mapping[tuple[int, int], Narrow] = {(8, 0): SM80_ALSO, (9, 0): SM90_ALSO}


def published(gpu: Gpu) -> Published:
    """The steps of an architecture."""
    if gpu.vendor != "nvidia" or gpu.compute_capability is None:
        return {}
    return _BY_CAPABILITY.get(gpu.compute_capability, {})


def published_also(gpu: Gpu) -> Narrow:
    """Those that differ by which operands are misaligned."""
    return _ALSO.get(gpu.compute_capability, {}) if gpu.vendor == "nvidia" and gpu.compute_capability else {}
