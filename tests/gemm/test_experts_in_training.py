"""Layers of experts as Megatron-LM trains them, against its own benchmark on eight H100."""

from __future__ import annotations

import math
import statistics

import pytest

from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.experts import ExpertLayer, predict_experts
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.words import Direction

H100 = find_gpu(None, override="h100-sxm")
TOKENS = 4096
#: NVIDIA/Megatron-LM d98e8a64, tests/functional_tests/test_cases/common/moe_perf/baseline.json, in ms: one
#: layer with its router, exchange and shared expert, without a gate, loads forced even. Nothing is fitted to
#: it.
MEASURED = {
    ("deepseek", "bf16", "all-to-all"): (7.12, 10.48),
    ("deepseek", "fp8-block", "all-to-all"): (7.61, 10.13),
    ("deepseek", "bf16", "DeepEP"): (5.68, 9.06),
    ("deepseek", "fp8-block", "DeepEP"): (6.03, 8.60),
    ("deepseek", "bf16", "HybridEP"): (5.39, 8.80),
    ("deepseek", "fp8-block", "HybridEP"): (5.14, 7.69),
    ("mixtral", "bf16", "all-to-all"): (4.33, 7.68),
    ("mixtral", "fp8-block", "all-to-all"): (3.79, 6.62),
    ("mixtral", "bf16", "DeepEP"): (4.64, 7.85),
    ("mixtral", "fp8-block", "DeepEP"): (4.10, 6.83),
    ("mixtral", "bf16", "HybridEP"): (4.34, 7.74),
    ("mixtral", "fp8-block", "HybridEP"): (3.70, 6.57),
}
#: Bytes of each activated element that Megatron's code for layers without a gate moves beyond a fused kernel
#: (megatron/core/transformer/moe/experts.py, bias_act_func): the activation, times fp32 probabilities, back
#: to 16 bits; backward the gradients of each, those of the probabilities summed.
WRITTEN_OUT = {"forward": 16.0, "backward": 40.0}
LAYERS = {
    "deepseek": ExpertLayer(7168, 2048, experts=32, top_k=8, ep=8, gated=False, exchanged=True),
    "mixtral": ExpertLayer(4096, 14336, experts=8, top_k=2, ep=8, gated=False, exchanged=True),
}


def _predicted(name: str, dtype: str, direction: Direction) -> tuple[float, float, float]:
    """Low, mid and high in ms, with NCCL's exchange, the activation and the products beside the experts."""
    layer = LAYERS[name]
    found = predict_experts(layer, TOKENS * layer.ep, gpu=H100, dtype=dtype, direction=direction).time_us
    sent = exchange_us("h100-sxm", "all_to_all", 8, 2.0 * TOKENS * layer.hidden * layer.top_k, in_node=8)
    beside = [(layer.experts, layer.hidden)]
    if name == "deepseek":  # a shared expert as wide as the others
        beside += [(layer.inter, layer.hidden), (layer.hidden, layer.inter)]
    passes = 1 if direction == "forward" else 2
    written = WRITTEN_OUT[direction] * TOKENS * layer.top_k * layer.inter / (0.9 * 3350e3)
    products = sum(predict_gemm(TOKENS, n, k, gpu=H100).time_us.mid or 0.0 for n, k in beside) * passes
    assert found.low and found.mid and found.high and sent is not None
    low, mid, high = (
        (end + 2 * sent + products + written) / 1e3 for end in (found.low, found.mid, found.high)
    )
    return low, mid, high


def _errors(direction: Direction) -> list[float]:
    at = ("forward", "backward").index(direction)
    return [
        math.log(_predicted(name, dtype, direction)[1] / measured[at])
        for (name, dtype, _), measured in MEASURED.items()
    ]


def test_the_backward_scaled_from_the_forward_is_in_range() -> None:
    for (name, dtype, how), (_, measured) in MEASURED.items():
        low, _, high = _predicted(name, dtype, "backward")
        assert low < measured < high, (name, dtype, how)


@pytest.mark.parametrize(("direction", "most"), [("forward", 0.19), ("backward", 0.12)])
def test_layers_in_training_are_met(direction: Direction, most: float) -> None:
    errors = [abs(error) for error in _errors(direction)]
    assert statistics.median(errors) < most and max(errors) < 0.36
