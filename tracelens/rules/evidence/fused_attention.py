"""What attention that runs in separate kernels would take in a fused one, by its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tracelens.errors import InputError
from tracelens.gemm import bytes_per_element
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_terms import AttentionPrediction
from tracelens.hardware import Gpu
from tracelens.numbers import count, sig, times
from tracelens.results import Span, weakest
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.predictions import moving_ms

#: One query per call (decoding, a class token): kernels that split over the keys, which no prediction covers.
FEWEST_QUERIES = 2
_NOTHING = Span.exactly(0.0, "model")
_NAMES = {
    "cudnn": "cuDNN", "flash": "FlashAttention", "flash3": "FlashAttention 3", "flash4": "FlashAttention 4",
    "efficient": "the memory-efficient kernel",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CoreCalls:
    """Calls of attention with one size and type. ``heads`` is batch times heads, as the products have it."""

    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    value_dim: int
    dtype: str
    calls: float = 0.0  # per step, recomputed ones with them
    backward_calls: float = 0.0

    @property
    def element_bytes(self) -> float:
        """Of q, k and v; as of bf16 where their type is not known."""
        return bytes_per_element(self.dtype) or 2.0

    @property
    def scores_bytes(self) -> float:
        """Of one matrix of scores in the type of q, k and v."""
        return self.element_bytes * self.heads * self.seq_q * self.seq_k

    @property
    def text(self) -> str:
        """``1 call of b × a = 128, s = 128, d = 64 in fp32``."""
        length = f"s = {self.seq_q}"
        if self.seq_q != self.seq_k:
            length = f"s = {self.seq_q} (queries) × {self.seq_k} (keys)"
        calls = "1 call" if self.calls == 1 else f"{count(self.calls)} calls"
        return f"{calls} of b × a = {self.heads}, {length}, d = {self.head_dim} in {self.dtype}"


@dataclass(frozen=True, slots=True)
class FusedCalls:
    """Calls of cores per step in fused kernels. ``unfit``: why there is no fused kernel for one of them."""

    time_ms: Span
    floor_ms: float = 0.0
    kernels: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    unfit: str = ""


@dataclass(frozen=True, slots=True)
class Mask:
    """What becomes of the mask: nothing to mask, ``is_causal=True``, or a tensor ``attn_mask``."""

    words: str
    causal: bool = False
    tensor: bool = False


NO_MASK = Mask("without a mask")
CAUSAL = Mask("with is_causal=True", causal=True)
TENSOR = Mask("with a tensor as attn_mask", tensor=True)


def fused_time(
    facts: StepFacts, cores: Sequence[CoreCalls], mask: Mask, *, masked: Sequence[CoreCalls] | None = None
) -> FusedCalls | str:
    """The fused kernels' time, or why it cannot be told; ``masked``: the cores with that mask (None: all).

    Which kernel torch takes depends on its version, which no trace shows: the low end is that of the fastest,
    the middle and the high end are those of the slowest.
    """
    found = [_core_time(facts, core, mask if masked is None or core in masked else NO_MASK) for core in cores]
    every = [one for one in found if isinstance(one, FusedCalls)]
    if why := next((one for one in found if isinstance(one, str)), None):
        return why
    return FusedCalls(
        reduce(Span.joined, [one.time_ms for one in every], Span.exactly(0.0)),
        sum(one.floor_ms for one in every),
        tuple(dict.fromkeys(name for one in every for name in one.kernels)),
        tuple(line for one in every for line in one.lines),
        next((one.unfit for one in every if one.unfit), ""),
    )


def _core_time(facts: StepFacts, core: CoreCalls, mask: Mask) -> FusedCalls | str:
    if facts.step is None:
        return "what a fused kernel takes cannot be predicted: the step cannot be simulated"
    if core.seq_q < FEWEST_QUERIES:
        return "with one query per call fused kernels split the keys, and those are not predicted"
    try:
        backends = _backends(core, mask, gpu=facts.step.gpu)
    except InputError as error:
        return f"what a fused kernel takes cannot be predicted: {error}"
    if isinstance(backends, str):
        return FusedCalls(_NOTHING, unfit=backends)
    slower = facts.step.anchors.slower
    pace = f", each × {slower:.4g} (this trace's aligned GEMMs over their predictions)" if slower > 1 else ""
    parts: list[Span] = []
    lines: list[str] = []
    floor = 0.0
    for direction, calls in (("forward", core.calls), ("backward", core.backward_calls)):
        if calls <= 0:
            continue
        found = [_predicted(facts, core, name, mask, direction) for name in backends]
        known = [
            (one, time, one.floor_us)
            for one in found
            if not isinstance(one, str) and (time := one.time_us.known) and one.floor_us is not None
        ]
        if not known:
            lacks = [one.unknown or "its time is not known" for one in found if not isinstance(one, str)]
            if lacks:
                return f"what a fused kernel takes is not predicted: {lacks[0]}"
            return FusedCalls(_NOTHING, unfit=next(one for one in found if isinstance(one, str)))
        each = _spanned([time for _, time, _ in known], more_us=_mask_us(facts, core) if mask.tensor else 0.0)
        parts.append(calls / 1e3 * slower * each)
        floor += calls / 1e3 * min(floor_us for _, _, floor_us in known)
        names = " or ".join(_NAMES.get(one.backend, one.backend) for one, _, _ in known)
        lines.append(
            f"Fused {direction} {mask.words} ({names}): {sig(each.mid)} µs predicted, {sig(each.low)} to"
            f" {sig(each.high)}{pace}, {times(count(calls))} {facts.per_step}."
        )
    return FusedCalls(reduce(Span.joined, parts, Span.exactly(0.0)), floor, tuple(backends), tuple(lines))


def _backends(core: CoreCalls, mask: Mask, *, gpu: Gpu) -> list[str] | str:
    """The kernels that it can become, or why none takes it."""
    likely = likely_backend(
        head_dim=max(core.head_dim, core.value_dim),
        dtype=core.dtype,
        gpu=gpu,
        causal=mask.causal,
        lengths=(core.seq_q, core.seq_k),
        training=core.backward_calls > 0,
    )
    if likely.name == "math":
        return likely.why
    if mask.tensor:  # sdp_utils.cpp: check_for_attn_mask keeps flash out
        step = 4 if core.dtype == "fp32" else 8
        if core.head_dim % step or core.value_dim % step:
            return f"the memory-efficient kernel takes head dimensions of {core.dtype} in steps of {step}"
        return ["efficient"]
    return ["cudnn", "flash"] if likely.name == "cudnn" else [likely.name]


def _predicted(
    facts: StepFacts, core: CoreCalls, backend: str, mask: Mask, direction: str
) -> AttentionPrediction | str:
    if facts.step is None:
        return "the step cannot be simulated"
    try:
        call = AttentionProblem(
            batch=1,
            heads=core.heads,
            kv_heads=core.heads,
            seq_q=core.seq_q,
            seq_k=core.seq_k,
            head_dim=max(core.head_dim, core.value_dim),
            causal=mask.causal,
            direction=direction,
            dtype=core.dtype,
        )
        return predict_attention(call, gpu=facts.step.gpu, backend=backend, measured=facts.step.measured)
    except InputError as error:
        return str(error)


def _spanned(spans: Sequence[Span], *, more_us: float) -> Span:
    """Time of one call over all of them, µs; ``more_us`` in the middle and at the high end."""
    low, mid, high = (
        min(one.low for one in spans),
        max(one.mid for one in spans),
        max(one.high for one in spans),
    )
    return Span(low, mid + more_us, high + more_us, weakest(one.basis for one in spans))


def _mask_us(facts: StepFacts, core: CoreCalls) -> float:
    """A mask tensor has to be read: for every head from memory at worst."""
    return 1e3 * moving_ms(core.scores_bytes, facts=facts)
