"""What products in fp8 or less add to a step: their operands have to be cast first."""

from __future__ import annotations

import math

from tracelens.config.model_config import ModelConfig
from tracelens.hardware import Gpu
from tracelens.results import Rest, Span
from tracelens.step.predicted import LOW_PRECISION, dtype_then
from tracelens.step.traffic import BANDWIDTH_FRAC, repeats
from tracelens.step.words import simulation as words
from tracelens.step.work import Product

#: Bytes of an operand's element that a cast moves: none where it is fused into the kernel that makes the
#: operand; 16 bits read and 8 written; with dynamic scaling 16 bits read once more for the largest value.
_FUSED, _PLAIN, _SCALED = 0.0, 3.0, 5.0


def casts_of(
    products: tuple[Product, ...], now: ModelConfig, then: ModelConfig, *, gpu: Gpu
) -> tuple[Rest, ...]:
    """Casts of both operands of every product that becomes fp8 or less; empty without any, or a bandwidth.

    Weights and activations are used by two products each (forward and one gradient). They are counted for
    each, for fp8 products take one layout only and the other is a copy of its own.
    """
    if then.dtype not in LOW_PRECISION or now.dtype in LOW_PRECISION or not gpu.bandwidth_gbps:
        return ()
    elements = 0.0
    for product in products:
        sizes = product.sizes(then)
        if sizes is None or dtype_then(product.row, now, then) != then.dtype:
            continue
        m, n, k, batch = sizes
        calls = product.row.calls_per_step * product.weight
        calls *= repeats(product.row.component, now, then)
        elements += calls * batch * (m * k + k * n)
    if not elements:
        return ()
    return (Rest("other", "other", words.casts(then.dtype), 0.0, cast_ms(elements, gpu)),)


def cast_ms(elements: float, gpu: Gpu) -> Span:
    """Casting so many elements, from fused into other kernels to with a pass of its own for the largest."""
    per_byte = elements / ((gpu.bandwidth_gbps or math.inf) * BANDWIDTH_FRAC * 1e9) * 1e3
    return Span(_FUSED * per_byte, _PLAIN * per_byte, _SCALED * per_byte, "model")
