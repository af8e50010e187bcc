"""Predicts the time of fused attention: FlashAttention 2 to 4, cuDNN and memory-efficient kernels.

Unfused attention is in ``attention_unfused``; which kernel torch picks in ``attention_backend``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tracelens.errors import InputError
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.gemm.predict.attention_calibrated import AttentionFit, Correction
from tracelens.gemm.predict.attention_call import Call, checked_call
from tracelens.gemm.predict.attention_kernels import Kernel, attention_kernel, backend_name
from tracelens.gemm.predict.attention_model import BANDWIDTH_FRAC, Modelled, model
from tracelens.gemm.predict.attention_prediction import AttentionPrediction
from tracelens.gemm.predict.attention_rates import Rate, kernel_rate
from tracelens.gemm.predict.attention_terms import Derivation, number, rounded_value
from tracelens.gemm.predict.attention_unfused import unfused_prediction
from tracelens.gemm.predict.rates import least_us
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Basis, Estimate


def predict_attention(
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    causal: bool,
    direction: str,
    gpu: Gpu,
    dtype: str = "bf16",
    backend: str | None = None,
    window: int | None = None,
    measured: Measurements | None = None,
    torch_version: str | None = None,
) -> AttentionPrediction:
    """Time of one attention call on ``gpu``.

    ``direction`` is "forward" or "backward"; ``backend`` one of ``attention_kernels.BACKENDS`` or, when
    None, what torch would pick. ``causal`` aligns the mask at the bottom right where lengths differ.
    ``window``: earlier keys that a query sees. ``measured`` of this GPU make the basis "calibrated"; else
    it is "model". Raises ``InputError`` for sizes that make no sense and kernels that do not exist.

    >>> from tracelens.hardware import find_gpu
    >>> shape = dict(batch=4, heads=32, kv_heads=32, seq_q=2048, seq_k=2048, causal=True)
    >>> a100 = find_gpu(None, override="a100-sxm-80gb")
    >>> found = predict_attention(**shape, head_dim=80, direction="forward", gpu=a100)
    >>> found.backend, found.head_dim, found.time_us.basis
    ('flash', 96, 'model')
    """
    call = checked_call(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=causal,
        direction=direction,
        dtype=dtype,
        window=window,
    )
    if backend is None:
        name, why = likely_backend(
            head_dim=head_dim,
            dtype=dtype,
            gpu=gpu,
            causal=causal,
            seq_q=seq_q,
            seq_k=seq_k,
            torch_version=torch_version,
        )
    else:
        name, why = backend_name(backend), "asked for"
    if name == "math":
        if backend is None and call.dtype in ("fp16", "bf16"):
            # aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math: q, k and v
            # become float unless allow_fp16_bf16_reduction_math_sdp is set.
            call, why = replace(call, dtype="fp32"), f"{why}; it computes {call.dtype} in fp32"
        return unfused_prediction(call, why=why, gpu=gpu, measured=measured)
    kernel = _kernel(call, name, gpu)
    ceilings = _ceilings(call, gpu, measured)
    if isinstance(ceilings, str):
        return _unknown(call, kernel, why, ceilings)
    lines = Derivation()
    modelled = _model(call, kernel, gpu, measured, ceilings, lines)
    correction = None
    if measured is not None:
        fit, model_range_frac = _fit(_Same(measured), gpu), _rate(call, kernel, gpu).range_frac
        correction = fit.correction(call, name, model_range_frac=model_range_frac)
    return _predicted(call, kernel, why, gpu, ceilings, modelled, correction, measured, lines)


@dataclass(frozen=True, slots=True)
class _Ceilings:
    peak_tflops: float  # of the products as this kernel does them
    bandwidth_gbps: float  # datasheet
    copy_gbps: float  # what a copy reaches


def _ceilings(call: Call, gpu: Gpu, measured: Measurements | None) -> _Ceilings | str:
    """Peak and bandwidth, or what is missing."""
    capability = gpu.compute_capability or (0, 0)
    if call.dtype == "fp32" and capability >= (8, 0):
        # CUTLASS's OpMultiplyAddFastF32 (torch mem_eff_attention/gemm_kernel_utils.h): three tf32 products
        # for one of fp32.
        tf32 = gpu.peak("tf32")
        peak = tf32 / 3 if tf32 is not None else None
    else:
        twin = {"bf16": "fp16", "fp16": "bf16"}.get(call.dtype)
        peak = gpu.peak(call.dtype) or (gpu.peak(twin) if twin else None)
    if peak is None:
        return f"the peak of {gpu.title} for {call.dtype} is not known"
    if gpu.bandwidth_gbps is None:
        return f"the memory bandwidth of {gpu.title} is not known"
    copy = measured.bandwidth_gbps if measured is not None else None
    return _Ceilings(
        rounded_value(peak),
        gpu.bandwidth_gbps,
        rounded_value(min(copy, gpu.bandwidth_gbps) if copy else gpu.bandwidth_gbps * BANDWIDTH_FRAC),
    )


def _kernel(call: Call, backend: str, gpu: Gpu) -> Kernel:
    return attention_kernel(
        backend,
        head_dim=call.head_dim,
        gpu=gpu,
        causal=call.causal,
        windowed=call.window is not None,
        backward=call.backward,
        dtype=call.dtype,
    )


def _rate(call: Call, kernel: Kernel, gpu: Gpu) -> Rate:
    windowed = call.window is not None
    return kernel_rate(kernel, gpu=gpu, causal=call.causal, windowed=windowed, dtype=call.dtype)


def _model(
    call: Call,
    kernel: Kernel,
    gpu: Gpu,
    measured: Measurements | None,
    ceilings: _Ceilings,
    lines: Derivation,
) -> Modelled:
    return model(
        call,
        kernel=kernel,
        rate=_rate(call, kernel, gpu),
        gpu=gpu,
        peak_tflops=ceilings.peak_tflops,
        bandwidth_gbps=ceilings.copy_gbps,
        launch_us=least_us(gpu, measured),
        lines=lines,
    )


def _predicted(
    call: Call,
    kernel: Kernel,
    why: str,
    gpu: Gpu,
    ceilings: _Ceilings,
    modelled: Modelled,
    correction: Correction | None,
    measured: Measurements | None,
    lines: Derivation,
) -> AttentionPrediction:
    floor = lines.add(
        "floor",
        f"max({call.useful_flops} / ({number(ceilings.peak_tflops)} * 1e6),"
        f" {number(call.bytes_moved)} / ({number(ceilings.bandwidth_gbps)} * 1e3))",
        max(
            call.useful_flops / (ceilings.peak_tflops * 1e6),
            call.bytes_moved / (ceilings.bandwidth_gbps * 1e3),
        ),
        "us",
        "useful operations at the peak, or each tensor once at the bandwidth: no kernel is faster",
    )
    rate = _rate(call, kernel, gpu)
    basis: Basis = "model"
    factor, range_frac, notes = 1.0, rate.range_frac, [rate.source]
    if correction is not None:
        factor = _correct(correction, lines)
        basis, range_frac = "calibrated", correction.range_frac
        notes = [f"measured: {correction.how}, {correction.held_out} held out for the range"]
    elif measured is not None:
        notes.append("no measurements of this kind of call: the model stands")
    mid = lines.add(
        "predicted",
        f"max({number(modelled.time_us)} * {number(factor)}, {number(floor)})",
        max(modelled.time_us * factor, floor),
        "us",
        "the middle of the range",
    )
    if gpu.sms is None:
        notes.append("the number of SMs is not known: waves are left out")
    return AttentionPrediction(
        time_us=Estimate(max(mid / (1 + range_frac), floor), mid, mid * (1 + range_frac), basis),
        kernel_us=max(modelled.kernel_us * factor, floor),
        backend=kernel.backend,
        backend_why=why,
        head_dim=kernel.head_dim,
        block_q=kernel.block_q,
        block_k=kernel.block_k,
        tiles=modelled.tiles,
        waves=modelled.waves,
        useful_flops=float(call.useful_flops),
        computed_flops=modelled.computed_flops,
        floor_us=floor,
        terms=lines.done(),
        notes=tuple(notes),
    )


def _correct(correction: Correction, lines: Derivation) -> float:
    pairs = [(rounded_value(n.ratio), rounded_value(n.weight)) for n in correction.neighbours]
    weights = sum(weight for _, weight in pairs)
    formula = " + ".join(f"{number(ratio)} * {number(weight)}" for ratio, weight in pairs)
    return lines.add(
        "correction",
        f"({formula}) / ({' + '.join(number(weight) for _, weight in pairs)})",
        sum(ratio * weight for ratio, weight in pairs) / weights,
        "",
        "measured over modelled time of "
        + "; ".join(neighbour.shape for neighbour in correction.neighbours)
        + ", by likeness",
    )


def _unknown(call: Call, kernel: Kernel, why: str, missing: str) -> AttentionPrediction:
    return AttentionPrediction(
        time_us=Estimate(None, None, None, "model"),
        kernel_us=None,
        backend=kernel.backend,
        backend_why=why,
        head_dim=kernel.head_dim,
        block_q=kernel.block_q,
        block_k=kernel.block_k,
        tiles=None,
        waves=None,
        useful_flops=float(call.useful_flops),
        computed_flops=None,
        floor_us=None,
        terms=(),
        notes=(),
        unknown=missing,
    )


class _Same:
    """A key for the cache: the very object, for measurements are not hashable."""

    __slots__ = ("measured",)

    def __init__(self, measured: Measurements) -> None:
        self.measured = measured

    def __hash__(self) -> int:
        return id(self.measured)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.measured is self.measured


@lru_cache(maxsize=8)
def _fit(same: _Same, gpu: Gpu) -> AttentionFit:
    measured = same.measured

    def model_us(call: Call, backend: str) -> float | None:
        try:
            kernel = _kernel(call, backend, gpu)
        except InputError:
            return None
        ceilings = _ceilings(call, gpu, measured)
        if isinstance(ceilings, str):
            return None
        return _model(call, kernel, gpu, measured, ceilings, Derivation()).time_us

    return AttentionFit(measured, model_us=model_us)
