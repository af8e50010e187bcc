"""Attention with its scores in memory: the GEMMs of the product predictor and passes over the scores."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gemm.test_attention_prediction import redone
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_terms import AttentionPrediction
from tracelens.hardware import find_gpu

H100 = find_gpu(None, override="h100-sxm")


def shape(seq: int, head_dim: int, *, causal: bool = False, direction: str = "forward") -> dict[str, Any]:
    """16384 tokens of hidden size 2048, as flash-attention's benchmark has them."""
    heads = 2048 // head_dim
    return {
        "batch": 16384 // seq, "heads": heads, "kv_heads": heads, "seq_q": seq, "seq_k": seq,
        "head_dim": head_dim, "causal": causal, "direction": direction,
    }  # fmt: skip


def unfused(name: str = "h100-sxm", **call: Any) -> AttentionPrediction:
    return predict_attention(AttentionProblem(**call), backend="math", gpu=find_gpu(None, override=name))


def mid(found: AttentionPrediction) -> float:
    assert found.time_us.mid is not None
    return found.time_us.mid


@pytest.mark.parametrize(
    ("head_dim", "causal", "direction", "tflops"),
    [
        (64, False, "forward", (52, 63, 67, 72, 73)),
        (128, False, "forward", (74, 100, 119, 133, 139)),
        (64, True, "forward", (16, 18, 18, 18, 18)),
        (64, False, "backward", (68, 76, 88, 92, 95)),
        (128, False, "backward", (104, 131, 159, 174, 181)),
    ],
)
def test_standard_attention_as_published(
    head_dim: int, causal: bool, direction: str, tflops: tuple[int, ...]
) -> None:
    """arXiv 2407.08608, H100: its standard attention also runs dropout over the scores, which adds passes."""
    for seq, value in zip((512, 1024, 2048, 4096, 8192), tflops, strict=True):
        call = shape(seq, head_dim, causal=causal, direction=direction)
        flops = 4 * 16384 * seq * 2048 * (0.5 if causal else 1) * (2.5 if direction == "backward" else 1)
        measured_us = flops / value / 1e6
        assert 0.45 * measured_us < mid(unfused(**call)) < 0.9 * measured_us


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_fused_is_faster_and_the_more_so_the_longer(direction: str) -> None:
    gains = []
    for seq in (512, 2048, 8192):
        call = shape(seq, 64, causal=True, direction=direction)
        gains.append(
            mid(unfused(**call)) / mid(predict_attention(AttentionProblem(**call), gpu=H100, backend="flash"))
        )
    assert gains == sorted(gains) and gains[0] > 1.5


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_derivation_redone_by_hand_is_the_estimate(direction: str) -> None:
    found = unfused(**shape(1024, 80, causal=True, direction=direction))
    redone(found)
    low, high = found.time_us.low, found.time_us.high
    assert low is not None and high is not None and low < mid(found) < high


def test_the_products_are_those_of_the_product_predictor() -> None:
    found = unfused(**shape(2048, 128))
    scores = predict_gemm(2048, 2048, 128, gpu=H100, batch=8 * 16).time_us.mid
    assert scores is not None
    assert next(value for name, _, value, *_ in found.terms if name == "scores") == pytest.approx(scores)


def test_math_is_unfused_and_torch_computes_it_in_fp32() -> None:
    call = shape(1024, 64)
    assert (
        predict_attention(AttentionProblem(**call), gpu=H100, backend="math").time_us
        == unfused(**call).time_us
    )
    v100 = find_gpu(None, override="v100-sxm")
    chosen = predict_attention(AttentionProblem(**call, dtype="bf16"), gpu=v100)
    assert chosen.backend == "math" and "fp32" in chosen.backend_why
    assert mid(chosen) == mid(
        predict_attention(AttentionProblem(**call, dtype="fp32"), backend="math", gpu=v100)
    )


def test_unknown_products_make_the_whole_unknown() -> None:
    found = predict_attention(
        AttentionProblem(**shape(1024, 64), dtype="fp16"),
        backend="math",
        gpu=find_gpu(None, override="v100-dgxs"),
    )
    assert found.time_us.mid is None and found.unknown and found.terms == ()
