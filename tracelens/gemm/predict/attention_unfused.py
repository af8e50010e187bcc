"""Unfused attention: batched GEMMs with the scores in memory between them, as torch's math backend does.

Forward: scores = q k^T and out = p v with a softmax between. Backward: the two products' gradients, four
GEMMs, with the softmax's gradient between. The scores, batch * heads * s_q * s_k of them, cross memory each
time something pointwise is done to them, and nothing that is masked is skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.attention_call import AttentionProblem, visible_pairs
from tracelens.gemm.predict.attention_model import BANDWIDTH_FRAC
from tracelens.gemm.predict.attention_terms import AttentionPrediction, Derivation, number, rounded_value
from tracelens.gemm.predict.words import attention as words
from tracelens.gemm.predict.words.gemm import bandwidth_unknown
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Estimate

#: Reads and writes of the scores: softmax reads and writes them, its gradient reads p and grad_p and writes
#: (torch's softmax kernels); a mask is added in a pass of its own (``attn_mask`` in attention.cpp's
#: _scaled_dot_product_attention_math).
_SOFTMAX_PASSES, _GRADIENT_PASSES, _MASK_PASSES = 2, 3, 2
#: Pointwise kernels over the scores reach a copy's bandwidth within this.
_SOFTMAX_RANGE = 0.3
_LAUNCH_US = 2.0


class _Product(NamedTuple):
    name: str
    m: int
    n: int
    k: int
    layout: str
    why: str


def unfused_prediction(
    call: AttentionProblem, *, why: str, gpu: Gpu, measured: Measurements | None
) -> AttentionPrediction:
    """Time of attention whose scores go through memory.

    The mask saves nothing here. ``floor_us``, tiles and blocks are None: they belong to the GEMMs.
    """
    lines, bases = Derivation(), set()
    low = high = 0.0
    parts: list[float] = []
    for product in _products(call):
        found = predict_gemm(
            product.m,
            product.n,
            product.k,
            gpu=gpu,
            batch=call.batch * call.heads,
            dtype=call.dtype,
            layout=product.layout,
            measured=measured,
        )
        time = found.time_us
        if time.low is None or time.mid is None or time.high is None:
            return _prediction(call, why, Estimate(None, None, None, "model"), Derivation(), found.unknown)
        lines.take(product.name, found.terms)
        parts.append(lines.add(product.name, number(time.mid), time.mid, "us", product.why))
        bases.add(time.basis)
        low, high = low + time.low, high + time.high
    if gpu.bandwidth_gbps is None:
        missing = bandwidth_unknown(gpu.title)
        return _prediction(call, why, Estimate(None, None, None, "model"), Derivation(), missing)
    softmax = _softmax(call, gpu.bandwidth_gbps, measured, lines)
    mid = lines.add(
        "predicted",
        " + ".join(number(part) for part in (*parts, softmax)),
        sum(parts) + softmax,
        "us",
        words.ONE_AFTER_THE_OTHER,
    )
    estimate = Estimate(
        min(mid, low + softmax / (1 + _SOFTMAX_RANGE)),
        mid,
        max(mid, high + softmax * (1 + _SOFTMAX_RANGE)),
        "calibrated" if bases == {"calibrated"} else "model",
    )
    return _prediction(call, why, estimate, lines, None)


def _products(call: AttentionProblem) -> tuple[_Product, ...]:
    """out[M, N] = a[M, K] @ b[K, N] of every head; layouts as torch passes them to cuBLAS."""
    q, k, d = call.seq_q, call.seq_k, call.head_dim
    v = call.value_dim or d
    if not call.backward:
        return (_Product("scores", q, k, d, "TN", "q k^T"), _Product("values", q, v, k, "NN", "p v"))
    return (
        _Product("grad v", k, v, q, "NT", "p^T grad_out"),
        _Product("grad p", q, k, v, "TN", "grad_out v^T"),
        _Product("grad q", q, d, k, "NN", "grad_scores k"),
        _Product("grad k", k, d, q, "NT", "grad_scores^T q"),
    )


def _softmax(
    call: AttentionProblem, bandwidth_gbps: float, measured: Measurements | None, lines: Derivation
) -> float:
    copy = measured.bandwidth_gbps if measured is not None else None
    rate = rounded_value(min(copy, bandwidth_gbps) if copy else bandwidth_gbps * BANDWIDTH_FRAC)
    masked = call.causal or call.window is not None
    passes = _GRADIENT_PASSES if call.backward else _SOFTMAX_PASSES + (_MASK_PASSES if masked else 0)
    kernels = 2 if masked and not call.backward else 1
    scores = call.rows * call.seq_k
    size = call.element_bytes
    return lines.add(
        "softmax",
        f"{kernels} * {number(_LAUNCH_US)} + {passes} * {scores} * {number(size)} / ({number(rate)} * 1e3)",
        kernels * _LAUNCH_US + passes * scores * size / (rate * 1e3),
        "us",
        words.softmax_passes(passes, backward=call.backward, masked=masked),
    )


def _prediction(
    call: AttentionProblem, why: str, time_us: Estimate, lines: Derivation, unknown: str | None
) -> AttentionPrediction:
    width = (call.head_dim + (call.value_dim or call.head_dim)) * (4 if call.backward else 2)
    pairs = visible_pairs(call.seq_q, call.seq_k, causal=call.causal, window=call.window)
    return AttentionPrediction(
        time_us=time_us,
        backend="math",
        backend_why=why,
        head_dim=call.head_dim,
        # Backward, nothing is computed again: four products of the fused kernels' five.
        useful_flops=float(call.batch * call.heads * pairs * width),
        computed_flops=float(call.rows * call.seq_k * width),
        terms=lines.done(),
        notes=(words.SCORES_CROSS_MEMORY,),
        unknown=unknown,
    )
