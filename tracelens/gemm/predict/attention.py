"""Predicts the time of fused attention: FlashAttention 2 to 4, cuDNN and memory-efficient kernels.

Unfused attention is in ``attention_unfused``; which kernel torch picks in ``attention_backend``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tracelens.errors import InputError
from tracelens.gemm.predict.attention_backend import CUDNN_MAX_HEAD_DIM, likely_backend
from tracelens.gemm.predict.attention_calibrated import AttentionFit, Correction
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_kernels import Kernel, attention_kernel, backend_name
from tracelens.gemm.predict.attention_model import BANDWIDTH_FRAC, Modelled, model
from tracelens.gemm.predict.attention_rates import Rate, kernel_rate
from tracelens.gemm.predict.attention_terms import AttentionPrediction, Derivation, number, rounded_value
from tracelens.gemm.predict.attention_unfused import unfused_prediction
from tracelens.gemm.predict.rates import least_us
from tracelens.gemm.predict.words import attention as words
from tracelens.gemm.predict.words.gemm import bandwidth_unknown
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Basis, Estimate


def predict_attention(
    call: AttentionProblem,
    *,
    gpu: Gpu,
    backend: str | None = None,
    measured: Measurements | None = None,
    torch_version: str | None = None,
) -> AttentionPrediction:
    """Time of one attention call on ``gpu``.

    ``backend`` is one of ``attention_kernels.BACKENDS`` or, when None, what torch would pick; "math" is
    attention with its scores in memory. ``measured`` of this GPU make the basis "calibrated"; else it is
    "model". Raises ``InputError`` for kernels that do not exist.

    >>> from tracelens.hardware import find_gpu
    >>> shape = dict(batch=4, heads=32, kv_heads=32, seq_q=2048, seq_k=2048, head_dim=80)
    >>> call = AttentionProblem(**shape, causal=True, direction="forward")
    >>> found = predict_attention(call, gpu=find_gpu(None, override="a100-sxm-80gb"))
    >>> found.backend, found.head_dim, found.time_us.basis
    ('flash', 96, 'model')
    """
    if backend is None:
        name, why = likely_backend(
            head_dim=call.head_dim, value_dim=call.value_dim, dtype=call.dtype, gpu=gpu, causal=call.causal,
            lengths=(call.seq_q, call.seq_k), torch_version=torch_version,
        )  # fmt: skip
    else:
        name, why = backend_name(backend), words.ASKED_FOR
    if name == "math":
        if backend is None and call.dtype in ("fp16", "bf16"):
            # aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math: q, k and v
            # become float unless allow_fp16_bf16_reduction_math_sdp is set.
            call, why = replace(call, dtype="fp32"), words.computed_in_fp32(why, call.dtype)
        return unfused_prediction(call, why=why, gpu=gpu, measured=measured)
    if call.value_dim is not None:
        wide = replace(call, value_dim=None)
        found = _narrower(
            call, replace(predict_attention(wide, gpu=gpu, backend=name, measured=measured), backend_why=why)
        )
        # flash_attn gets values padded to the keys' width (transformers, modeling_deepseek_v3.py)
        return found if backend else _open_to(predict_attention(wide, gpu=gpu, measured=measured), found)
    kernel = _kernel(call, name, gpu)
    ceilings = _ceilings(call, gpu, measured)
    if isinstance(ceilings, str):
        return _unknown(call, kernel, why, ceilings)
    found = _KernelRun(call, kernel, gpu, measured, ceilings).predicted(why)
    library = _BY_LIBRARY.get(gpu.compute_capability or (0, 0))
    if backend is not None or name != "flash" or library is None or call.head_dim <= CUDNN_MAX_HEAD_DIM:
        return found
    return _open_to(predict_attention(call, gpu=gpu, backend=library, measured=measured), found)


#: What flash_attn, called as a library, runs where heads wider than cuDNN's get FlashAttention-2 from torch.
_BY_LIBRARY = {(9, 0): "flash3", (10, 0): "flash4", (10, 3): "flash4"}


def _open_to(other: AttentionPrediction, found: AttentionPrediction) -> AttentionPrediction:
    """``found`` with a range that reaches down to what a faster kernel would take."""
    low, least, mid = found.time_us.low, other.time_us.low, other.time_us.mid
    if low is None or found.time_us.mid is None or least is None or mid is None or least >= low:
        return found
    time_us = replace(found.time_us, low=least)
    return replace(found, time_us=time_us, notes=(*found.notes, words.faster_by_library(other.backend, mid)))


#: Of the operations that narrower values leave out, the share that is time: latent attention with heads of
#: 192 and values of 128 takes 0.95 of what heads of 192 are predicted to, where its operations are 0.83
#: (TensorRT-LLM on H100, H200 and B200; aiconfigurator's tables, 095f58a51).
_NARROW_FRAC = 0.3


def _narrower(call: AttentionProblem, alike: AttentionPrediction) -> AttentionPrediction:
    """``call``, whose values are narrower than its keys, from one whose values are as wide."""
    low, mid, wide = alike.time_us.low, alike.time_us.mid, replace(call, value_dim=None)
    work = call.useful_flops / wide.useful_flops
    least = min(work, call.bytes_moved / wide.bytes_moved)
    found = replace(
        alike,
        useful_flops=float(call.useful_flops),
        computed_flops=alike.computed_flops * work if alike.computed_flops else None,
        floor_us=alike.floor_us * least if alike.floor_us is not None else None,
        notes=(*alike.notes, words.NARROW_VALUES),
    )
    if low is None or mid is None:
        return found
    lines = Derivation()
    saved = rounded_value(work)
    mid = lines.add(
        "narrow values",
        f"{number(mid)} * (1 - {_NARROW_FRAC} * (1 - {number(saved)}))",
        mid * (1 - _NARROW_FRAC * (1 - saved)),
        "us",
        words.narrow_values(call.value_dim or call.head_dim),
    )
    kernel_us = alike.kernel_us * (1 - _NARROW_FRAC * (1 - saved)) if alike.kernel_us is not None else None
    time_us = replace(alike.time_us, low=low * least, mid=mid)
    return replace(found, time_us=time_us, kernel_us=kernel_us, terms=(*alike.terms, *lines.done()))


@dataclass(frozen=True, slots=True)
class _Ceilings:
    peak_tflops: float  # of the products as this kernel does them
    bandwidth_gbps: float  # datasheet
    copy_gbps: float  # what a copy reaches


def _ceilings(call: AttentionProblem, gpu: Gpu, measured: Measurements | None) -> _Ceilings | str:
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
        return words.peak_unknown(gpu.title, call.dtype)
    if gpu.bandwidth_gbps is None:
        return bandwidth_unknown(gpu.title)
    copy = measured.bandwidth_gbps if measured is not None else None
    return _Ceilings(
        rounded_value(peak),
        gpu.bandwidth_gbps,
        rounded_value(min(copy, gpu.bandwidth_gbps) if copy else gpu.bandwidth_gbps * BANDWIDTH_FRAC),
    )


def _kernel(call: AttentionProblem, backend: str, gpu: Gpu) -> Kernel:
    return attention_kernel(
        backend,
        head_dim=call.head_dim,
        gpu=gpu,
        causal=call.causal,
        windowed=call.window is not None,
        backward=call.backward,
        dtype=call.dtype,
    )


@dataclass(frozen=True, slots=True)
class _KernelRun:
    """One call on one kernel of one GPU."""

    call: AttentionProblem
    kernel: Kernel
    gpu: Gpu
    measured: Measurements | None
    ceilings: _Ceilings

    @property
    def rate(self) -> Rate:
        return kernel_rate(self.kernel, self.call, gpu=self.gpu)

    def modelled(self, lines: Derivation) -> Modelled:
        return model(
            self.call,
            kernel=self.kernel,
            rate=self.rate,
            gpu=self.gpu,
            peak_tflops=self.ceilings.peak_tflops,
            bandwidth_gbps=self.ceilings.copy_gbps,
            launch_us=least_us(self.gpu, self.measured) + self.rate.fixed_us,
            lines=lines,
        )

    def predicted(self, why: str) -> AttentionPrediction:
        """The answer; ``why`` this kernel."""
        lines, rate = Derivation(), self.rate
        basis: Basis = "model"
        modelled, correction = self.modelled(lines), None
        if self.measured is not None:
            fit = _fit(self.measured, self.gpu)
            correction = fit.correction(self.call, self.kernel.backend, model_range_frac=rate.range_frac)
        floor = self._floor_us(lines)
        factor, range_frac, notes = 1.0, rate.range_frac, [rate.source]
        if correction is not None:
            factor = _correct(correction, lines)
            basis, range_frac = "calibrated", correction.range_frac
            notes = [words.measured(correction.how, correction.held_out)]
        elif self.measured is not None:
            notes.append(words.NOTHING_LIKE_IT_MEASURED)
        mid = lines.add(
            "predicted",
            f"max({number(modelled.time_us)} * {number(factor)}, {number(floor)})",
            max(modelled.time_us * factor, floor),
            "us",
            words.MIDDLE,
        )
        if self.gpu.sms is None:
            notes.append(words.WAVES_LEFT_OUT)
        return replace(
            _unknown(self.call, self.kernel, why, ""),
            time_us=Estimate(max(mid / (1 + range_frac), floor), mid, mid * (1 + range_frac), basis),
            kernel_us=max(modelled.kernel_us * factor, floor),
            tiles=modelled.tiles,
            waves=modelled.waves,
            computed_flops=modelled.computed_flops,
            floor_us=floor,
            terms=lines.done(),
            notes=tuple(notes),
            unknown=None,
        )

    def _floor_us(self, lines: Derivation) -> float:
        flops, moved, ceilings = self.call.useful_flops, self.call.bytes_moved, self.ceilings
        return lines.add(
            "floor",
            f"max({flops} / ({number(ceilings.peak_tflops)} * 1e6),"
            f" {number(moved)} / ({number(ceilings.bandwidth_gbps)} * 1e3))",
            max(flops / (ceilings.peak_tflops * 1e6), moved / (ceilings.bandwidth_gbps * 1e3)),
            "us",
            words.NO_KERNEL_FASTER,
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
        words.corrected(neighbour.shape for neighbour in correction.neighbours),
    )


def _unknown(call: AttentionProblem, kernel: Kernel, why: str, missing: str) -> AttentionPrediction:
    return AttentionPrediction(
        time_us=Estimate(None, None, None, "model"),
        backend=kernel.backend,
        backend_why=why,
        head_dim=kernel.head_dim,
        block_q=kernel.block_q,
        block_k=kernel.block_k,
        useful_flops=float(call.useful_flops),
        unknown=missing,
    )


@lru_cache(maxsize=8)
def _fit(measured: Measurements, gpu: Gpu) -> AttentionFit:
    def model_us(call: AttentionProblem, backend: str) -> float | None:
        try:
            kernel = _kernel(call, backend, gpu)
        except InputError:
            return None
        ceilings = _ceilings(call, gpu, measured)
        if isinstance(ceilings, str):
            return None
        return _KernelRun(call, kernel, gpu, measured, ceilings).modelled(Derivation()).time_us

    return AttentionFit(measured, model_us=model_us)
