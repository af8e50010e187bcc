"""How the time of one fused attention call moves with its shape, with the range of that."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from tracelens.config.model_config import ModelConfig
from tracelens.errors import InputError
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_terms import AttentionPrediction
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Basis, weakest
from tracelens.step.predicted import BELOW_FLOOR, Anchors, Scaled, bounded
from tracelens.step.stalls import call_us_of
from tracelens.step.words import simulation as words
from tracelens.step.work import AttentionCall

#: Of attention: published series of FlashAttention 2 and 3 across lengths and head sizes are met to 7 % by
#: nine in ten predictions; two of them make a ratio.
ATTENTION_ERROR = 0.10
#: Of packed sequences, whose lengths and windows no trace holds: two public traces of one model
#: (KellerJordan/modded-nanogpt, October and December 2025, 32768 and 16384 tokens) predict each other's calls
#: to 11 to 27 %.
_PACKED_ERROR = 0.25
#: Kernel family in the trace -> backend of the attention model.
_BACKENDS = {
    "flash2": "flash",
    "flash3": "flash3",
    "flash4": "flash4",
    "cudnn_sdpa": "cudnn",
    "mem_efficient": "efficient",
}
_NO_ANCHORS = Anchors()
#: Type of products -> that of what they multiply and of all that is between them.
_DATA = {"tf32": "fp32", "fp8": "bf16", "fp8-block": "bf16", "nvfp4": "bf16"}


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """One call, on one rank."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int


def scaled_attention(
    call: AttentionCall,
    now: ModelConfig,
    then: ModelConfig,
    *,
    gpu: Gpu,
    measured: Measurements | None,
    anchors: Anchors = _NO_ANCHORS,
) -> Scaled | str:
    """The factor on a fused attention call's time, or why there is none.

    What the row does not say spans the range: the ratio is taken with and without a causal mask, and for
    packed sequences, whose lengths no trace holds, for short ones and for a single one.
    """
    texts = _attention_text(call, now, now), _attention_text(call, then, now)
    before, after = (attention_sizes(call, one, now, call.seq_k or call.tokens) for one in (now, then))
    if before is not None and before == after and _dtype_of(call, then, now) == (call.row.dtype or "bf16"):
        return Scaled(1.0, 1.0, 1.0, "model", *texts, words.SAME_SHAPE, "same")
    if call.row.calls_per_step <= 0 or call.row.time_ms_per_step <= 0:
        return words.NO_TIME
    backend = _BACKENDS.get(call.row.kernel_family)
    if backend is None:
        return words.no_model(call.row.kernel_family)
    if call.row.dtype == "fp32" and _dtype_of(call, then, now) != "fp32" and after is not None:
        dtype = _dtype_of(call, then, now)
        slower = anchors.slower
        return _in_16_bits(call, after, dtype, texts, gpu=gpu, measured=measured, slower=slower)
    call_us = call_us_of(call.row)
    ratios: list[float] = []
    floors: list[float] = []
    width = ATTENTION_ERROR if call.seq_k else _PACKED_ERROR
    basis: Basis = "calibrated"
    for length in [call.seq_k] if call.seq_k else [min(512, call.tokens), call.tokens]:
        for causal in (True, False):
            pair: list[AttentionPrediction] = []
            for config in (now, then):
                shape = attention_sizes(call, config, now, length)
                if shape is None:
                    return words.CHANGE_UNKNOWN
                dtype = _dtype_of(call, config, now)
                found = _predict_attention(
                    call, shape, causal, backend, gpu=gpu, measured=measured, dtype=dtype
                )
                if isinstance(found, str):
                    return found
                pair.append(found)
            times = [one.time_us for one in pair]
            if times[0].mid is None or times[1].mid is None or times[1].high is None:
                return pair[1].unknown or pair[0].unknown or words.UNPREDICTED
            ratios.append(times[1].mid / times[0].mid)
            # What both predictions miss alike cancels; half of the range is left where it is wide.
            width = max(width, 0.5 * math.log(times[1].high / times[1].mid))
            basis = weakest((basis, times[1].basis))
            old_us, new_us = (one.floor_us for one in pair)
            if new_us is not None and (old_us is None or old_us <= call_us / BELOW_FLOOR):
                floors.append(new_us)
    mid = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    how = words.as_attention_moves(call_us, mid, call_us * mid, packed=call.seq_k is None)
    widths = width + math.log(mid / min(ratios)), width + math.log(max(ratios) / mid)
    floor = min(floors) if len(floors) == len(ratios) else 0.0
    return bounded(mid * call_us, call_us, widths, basis, texts, how, floor, "attention")


def _in_16_bits(
    call: AttentionCall,
    shape: AttentionSizes,
    dtype: str,
    texts: tuple[str, str],
    *,
    gpu: Gpu,
    measured: Measurements | None,
    slower: float,
) -> Scaled | str:
    """The call by its own prediction: 16 bits have other kernels than fp32, of which its time tells nothing.

    The range spans the kernel that a recent torch picks and flash, which torch before 2.11 took, each with
    and without a causal mask; all ``slower`` as the trace's GEMMs are.
    """
    try:
        kernels = {likely_backend(head_dim=shape.head_dim, dtype=dtype, gpu=gpu).name}
    except InputError as error:  # of another vendor, or of unknown capability
        return str(error)
    kernels |= {"flash"} if "cudnn" in kernels else set()
    times = []
    for causal, kernel in itertools.product((True, False), sorted(kernels)):
        found = _predict_attention(call, shape, causal, kernel, gpu=gpu, measured=measured, dtype=dtype)
        if isinstance(found, str) or (known := found.time_us.known) is None:
            return found if isinstance(found, str) else found.unknown or words.UNPREDICTED
        times.append(known)
    times = [slower * one for one in times]
    call_us, mid = call_us_of(call.row), math.exp(statistics.fmean(math.log(one.mid) for one in times))
    widths = math.log(mid / min(one.low for one in times)), math.log(max(one.high for one in times) / mid)
    how = words.as_predicted(mid, call_us)
    return bounded(mid, call_us, widths, weakest(one.basis for one in times), texts, how, 0.0, "attention")


def _dtype_of(call: AttentionCall, config: ModelConfig, now: ModelConfig) -> str:
    """The type of q, k and v: attention follows a change between 16 and 32 bits, and fp8 leaves it alone."""
    present = call.row.dtype or "bf16"
    before, after = (_DATA.get(one.dtype or "", one.dtype) for one in (now, config))
    return after if after is not None and before != after and present == before else present


def _predict_attention(
    call: AttentionCall,
    shape: AttentionSizes,
    causal: bool,
    backend: str,
    *,
    gpu: Gpu,
    measured: Measurements | None,
    dtype: str,
) -> AttentionPrediction | str:
    try:
        problem = AttentionProblem(
            batch=shape.batch,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            seq_q=shape.seq_q,
            seq_k=shape.seq_k,
            head_dim=shape.head_dim,
            causal=causal,
            direction="backward" if call.backward else "forward",
            dtype=dtype,
        )
        return predict_attention(problem, gpu=gpu, backend=backend, measured=measured)
    except InputError as error:
        return str(error)


def attention_sizes(
    call: AttentionCall, config: ModelConfig, now: ModelConfig, length: int
) -> AttentionSizes | None:
    """Sizes of the call on one rank under ``config``; None where they do not follow from it."""
    ranks = config.tp
    kv_heads = config.heads if config.kv_repeated else config.kv_heads or config.heads
    tokens, tokens_now = config.token_count, now.token_count
    if not config.heads or not config.head_dim or not kv_heads or config.heads % ranks:
        return None
    if call.seq_q is None or call.seq_k is None:  # packed: as many sequences of this length as there are
        count = max(1, call.tokens // length)
        if tokens != tokens_now and (tokens is None or tokens_now is None or config.sequence != now.sequence):
            return None
        grown = tokens / tokens_now if tokens and tokens_now else 1.0
        batch, seq_q, seq_k = max(1, round(count * grown)), length, length
    else:
        batch, seq_q, seq_k = call.batch, call.seq_q, call.seq_k
        if config.sequence != now.sequence:
            if seq_q != now.sequence or seq_k != now.sequence or config.sequence is None:
                return None
            seq_q = seq_k = config.sequence
        if config.micro_batch != now.micro_batch:
            if not config.micro_batch or not now.micro_batch or batch * config.micro_batch % now.micro_batch:
                return None
            batch = batch * config.micro_batch // now.micro_batch
    heads, kv_heads = config.heads // ranks, max(1, kv_heads // ranks)
    return AttentionSizes(batch, heads, kv_heads, seq_q, seq_k, config.head_dim)


def _attention_text(call: AttentionCall, config: ModelConfig, now: ModelConfig) -> str:
    """The call as the table of products writes it."""
    shape = attention_sizes(call, config, now, call.seq_k or call.tokens)
    if shape is None:
        return "sizes not known"
    kv = f" kv={shape.kv_heads}" if shape.kv_heads != shape.heads else ""
    if call.seq_q is None:
        return f"packed h={shape.heads}{kv} d={shape.head_dim}"
    length = f"s={shape.seq_q}" if shape.seq_q == shape.seq_k else f"sq={shape.seq_q} sk={shape.seq_k}"
    return f"b={shape.batch} h={shape.heads}{kv} {length} d={shape.head_dim}"
