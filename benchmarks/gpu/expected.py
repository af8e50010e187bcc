"""About how long a product or an attention call takes: to pack a collection into the minutes there are.

Nothing else reads these guesses; what the tool says of a shape comes from measurements.
"""

from __future__ import annotations

from tracelens.hardware.gpu import Gpu
from tracelens.measure.cases import AttentionCase, GemmCase

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "tf32": 4, "fp32": 4}
#: The paper's A100 falls from 256 to 74 TFLOP/s where a vocabulary is odd (arXiv 2401.14489).
_MISALIGNED = 3.5
#: Fractions of the datasheet that a large aligned product and a large copy reach; no kernel is shorter
#: than the floor. An attention kernel at head dimension 128 reaches less, and less yet below it.
_PEAK_FRAC, _BANDWIDTH_FRAC, _FLOOR_US = 0.7, 0.8, 3.0
_CASE_S = 0.012  # beside the timed batches
_ATTENTION_FRAC = {"flash": 0.4, "cudnn": 0.5, "efficient": 0.15}


def gemm_bytes(case: GemmCase) -> float:
    """Each operand read once, the result written once."""
    inputs = (case.m * case.k + case.k * case.n) * ELEMENT_BYTES[case.dtype]
    return float(case.batch * (inputs + case.m * case.n * ELEMENT_BYTES[case.result_dtype]))


def leading_dimensions(case: GemmCase) -> tuple[int, int, int]:
    """The contiguous dimension of a, b and out, in elements.

    >>> leading_dimensions(GemmCase("x", 4096, 2560, 50257, layout="NN"))
    (50257, 2560, 2560)
    """
    a = case.m if case.layout[1] == "T" else case.k
    b = case.k if case.layout[0] == "T" else case.n
    return a, b, case.n


def aligned(case: GemmCase, to_bytes: int = 16) -> bool:
    """Whether every row of a, b and out starts at a multiple of ``to_bytes``: below 16, no TMA on Hopper."""
    sizes = (case.dtype, case.dtype, case.result_dtype)
    return not any(
        dimension * ELEMENT_BYTES[dtype] % to_bytes
        for dimension, dtype in zip(leading_dimensions(case), sizes, strict=True)
    )


def gemm_us(case: GemmCase, gpu: Gpu) -> float:
    """One launch on ``gpu``: the larger of its arithmetic and its traffic, and never less than a launch."""
    peak = (gpu.peak(case.dtype) or 100.0) * _PEAK_FRAC
    compute = case.flops / peak / 1e6 * (1.0 if aligned(case) else _MISALIGNED)
    traffic = gemm_bytes(case) / ((gpu.bandwidth_gbps or 1000.0) * _BANDWIDTH_FRAC) / 1e3
    return max(compute, traffic) + _FLOOR_US


def attention_flops(case: AttentionCase) -> float:
    """Two products forward, five backward (the scores are computed again); a causal mask halves both."""
    products = 2 if case.direction == "forward" else 5
    area = case.seq_q * case.keys * (0.5 if case.causal else 1.0)
    return 2.0 * products * case.batch * case.heads * area * case.head_dim


def attention_us(case: AttentionCase, gpu: Gpu) -> float:
    """One call on ``gpu``."""
    reach = _ATTENTION_FRAC[case.backend] * min(1.0, case.head_dim / 128)
    return attention_flops(case) / ((gpu.peak(case.dtype) or 100.0) * reach) / 1e6 + 2 * _FLOOR_US


def case_s(one_us: float, *, seconds_per_case: float) -> float:
    """Seconds one case costs the machine, from the time of one call: what ``tracelens.measure`` does with it.

    Laying out and checking operands, recording kernels, two batches to find the size of a batch and about
    ten that count, each behind a wait that lets the host queue it.
    """
    batches = 12 if one_us < seconds_per_case * 1e6 / 3 else 5
    calls = max(1.0, min(128.0, 300.0 / one_us))
    batch_us = calls * (one_us + 15.0) + 150.0
    return _CASE_S + min(batches * batch_us / 1e6, seconds_per_case + 5 * batch_us / 1e6)
