"""The time of a training step that nobody has run: every kernel a configuration asks for, predicted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.errors import InputError
from tracelens.gemm.ladder import AlignmentLadder, alignment_ladder
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_terms import AttentionPrediction
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.numbers import round_up
from tracelens.results import Estimate, Span
from tracelens.step import planned_kernels as kernels
from tracelens.step.casts import cast_ms
from tracelens.step.memory import memory_of
from tracelens.step.planned_change import PlannedStep, compare, total
from tracelens.step.planned_experts import expert_parts
from tracelens.step.planned_kernels import RankAttention, RankLinear, Traffic
from tracelens.step.predicted import CONVERTED, LOW_PRECISION
from tracelens.step.reasons import PlannedPart, in_ms
from tracelens.step.step import Change
from tracelens.step.traffic import BANDWIDTH_FRAC
from tracelens.step.words import planned as words
from tracelens.words import DIRECTIONS, ROLES, Role

#: What plain PyTorch's pointwise kernels, norms and losses reach, and what they take under autocast, which
#: keeps the residual stream in fp32, over that: layers and captures of our H100 (benchmarks/gpu/results).
_PLAIN_FRAC = 0.72
_AUTOCAST = 2.0
#: Bytes for each score that crosses memory which autocast adds: a bias of fp32 makes the scores and all that
#: is done to them fp32 (two more reads and writes forward, three backward, and the casts).
_FP32_SCORES = {"forward": 16.0, "backward": 22.0}
#: Inductor pads the operands of products below this (torch/_inductor/fx_passes/pad_mm.py).
_PADDED_BELOW_BYTES = 16


class Planner:
    """Predicts the steps of one configuration's family on one GPU; each part is predicted once.

    ``backend`` of attention: that of ``predict_attention``, None for torch's choice. ``dtype`` fp8: of linear
    layers with sizes that it takes, with the casts of their operands; all else is in bf16.
    Raises ``InputError`` for a GPU or type whose products cannot be predicted.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        gpu: Gpu,
        dtype: str = "bf16",
        measured: Measurements | None = None,
        backend: str | None = None,
        compiled: bool = False,
    ) -> None:
        self.layout = layout
        self.compiled = compiled
        self.gpu = gpu
        self.dtype = dtype
        self.measured = measured
        self.backend = backend
        self.wide = "bf16" if dtype in LOW_PRECISION else dtype
        probe = predict_gemm(4096, 4096, 4096, gpu=gpu, dtype=dtype, measured=measured)
        if probe.unknown is not None:
            raise InputError(f"{probe.unknown}: no step can be predicted")
        self._ladders: dict[str, AlignmentLadder] = {
            one: alignment_ladder(gpu=gpu, dtype=one, measured=measured) for one in (dtype, self.wide)
        }
        self._linear = lru_cache(maxsize=None)(self._predict_linear)
        self._attention = lru_cache(maxsize=None)(self._predict_attention)
        self._sums: dict[tuple[object, ...], float] = {}

    @property
    def predictions(self) -> int:
        """Calls of the predictor so far: what a search costs."""
        linears, calls = self._linear.cache_info().misses, self._attention.cache_info().misses
        return 3 * linears + 2 * calls

    def step(self, config: ModelConfig) -> PlannedStep:
        """The whole step. InputError where the GPU's or a size's figures are not known."""
        return PlannedStep(
            config, (*self.attention(config), *self.mlp(config), *self.hidden(config), *self.vocab(config))
        )

    def attention(self, config: ModelConfig) -> tuple[PlannedPart, ...]:
        """Parts that depend on hidden, heads, kv_heads and head_dim."""
        found: list[PlannedPart] = []
        for stack, layout in self.stacks(config):
            found += self._linears(kernels.attention_linears(stack, layout))
            found += (
                part for call in kernels.attention_calls(stack, layout) for part in self._attention(call)
            )
            found += self._moved(kernels.attention_traffic(stack, layout))
        return tuple(found)

    def mlp(self, config: ModelConfig) -> tuple[PlannedPart, ...]:
        """Parts that depend on hidden and ffn."""
        found: list[PlannedPart] = []
        for stack, layout in self.stacks(config):
            found += self._linears(kernels.mlp_linears(stack, layout))
            found += expert_parts(stack, layout, gpu=self.gpu, dtype=self.dtype)
            found += self._moved(kernels.mlp_traffic(stack, layout))
        return tuple(found)

    def hidden(self, config: ModelConfig) -> tuple[PlannedPart, ...]:
        """Parts that depend on hidden alone."""
        moved = (kernels.hidden_traffic(*one) for one in self.stacks(config))
        return tuple(part for one in moved for part in self._moved(one))

    def vocab(self, config: ModelConfig) -> tuple[PlannedPart, ...]:
        """Parts that depend on hidden and vocab."""
        stack, _ = self.stacks(config)[-1]
        return (*self._linears(kernels.logits_linear(stack)), *self._moved(kernels.vocab_traffic(stack)))

    def stacks(self, config: ModelConfig) -> tuple[tuple[ModelConfig, Layout], ...]:
        """Each stack of layers, with how it is built."""
        return kernels.stacks(config, self.layout)

    def vocab_ranks(self, now: ModelConfig) -> int:
        """GPUs that share the vocabulary: that of a configuration is the whole one."""
        return now.tp

    def time_ms(self, then: ModelConfig) -> float:
        """Mid estimate of the step, each part predicted once. Attention and MLP go with the layers."""
        outer = (then.hidden, then.micro_batch, then.sequence)
        attention = ("attention", *outer, then.heads, then.kv_heads, then.head_dim)
        layers = then.layers or 1
        mixed = bool(then.dense_layers or then.decoder_layers or self.layout.window)
        alike = layers if mixed else 1  # layers of more than one kind are summed as they are
        layer = self._sum((*attention, alike), self.attention, replace(then, layers=alike))
        layer += self._sum(("mlp", *outer, then.ffn, alike), self.mlp, replace(then, layers=alike))
        return (
            layer * (layers / alike)
            + self._sum(("hidden", *outer, then.layers), self.hidden, then)
            + self._sum(("vocab", *outer, then.vocab), self.vocab, then)
        )

    def change(self, now: ModelConfig, then: ModelConfig) -> Change:
        """What ``then`` saves over ``now``, with the range of that."""
        return compare(self.step(now), self.step(then))

    def memory(self, then: ModelConfig) -> float:
        """Estimate of a GPU's memory in bytes."""
        return memory_of(then, self.layout, Training(strategy="ddp")).whole

    def _sum(
        self,
        key: tuple[object, ...],
        parts: Callable[[ModelConfig], Sequence[PlannedPart]],
        then: ModelConfig,
    ) -> float:
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = sum(part.time_ms.mid for part in parts(then))
        return found

    def _linears(self, linears: tuple[RankLinear, ...]) -> Iterator[PlannedPart]:
        for linear in linears:
            yield from self._linear(linear)

    def _predict_linear(self, linear: RankLinear) -> tuple[PlannedPart, ...]:
        return tuple(self._product(linear, role) for role in ROLES)

    def _product(self, linear: RankLinear, role: Role) -> PlannedPart:
        (m, n, k, layout), dtype = linear.shape(role), self._type_of(linear)
        layout = "TN" if dtype in LOW_PRECISION else layout  # the only one of fp8 on Hopper (cuBLAS)
        found = predict_gemm(
            m, n, k, batch=linear.batch, gpu=self.gpu, dtype=dtype, layout=layout, measured=self.measured
        )
        pad_ms, compiled_ms = self._pad_ms(found) * linear.calls, math.inf
        copies: list[Span] = []
        if pad_ms:
            padded = self._padded(found, layout)
            if self.compiled and padded.time_us.mid is not None:
                found, copies, pad_ms = padded, [Span.exactly(pad_ms, "model")], 0.0
            elif padded.time_us.mid is not None:
                compiled_ms = pad_ms + padded.time_us.mid / 1e3 * linear.calls
        cannot = found.unknown or words.no_time("GEMMs", self.gpu.title)
        known = found.time_us if found.floor_us is None else replace(found.time_us, mid=found.floor_us)
        casts = cast_ms(float(linear.calls * (m * k + k * n)), self.gpu) if dtype in LOW_PRECISION else None
        time_ms = total((in_ms(known, linear.calls, cannot), *copies, *([casts] if casts else [])))
        shape = f"{m} x {n} x {k}" if linear.batch == 1 else f"{linear.batch} x ({m} x {n} x {k})"
        alignment = min((value for value in found.alignment.values() if value is not None), default=128)
        return PlannedPart(
            linear.component, role, "product", shape, (m, n, k), linear.calls,
            time_ms, self._open(found), alignment,
            flops=2.0 * m * n * k * linear.batch * linear.calls, unknown=found.unknown, note=_tiles(found),
            cast_ms=casts.mid if casts else 0.0, pad_ms=pad_ms, compiled_ms=compiled_ms,
        )  # fmt: skip

    def _type_of(self, linear: RankLinear) -> str:
        """What a linear layer is computed in: recipes of low precision leave out logits and the router."""
        block = LOW_PRECISION.get(self.dtype, 1)
        taken = linear.component in CONVERTED and not (linear.into % block or linear.out % block)
        return self.dtype if taken else self.wide

    def left_wide(self, config: ModelConfig) -> list[str]:
        """Components whose sizes a type of low precision does not take, though recipes convert them."""
        linears = [
            linear
            for one in self.stacks(config)
            for linear in (*kernels.attention_linears(*one), *kernels.mlp_linears(*one))
        ]
        left = [one.component for one in linears if one.component in CONVERTED]
        taken = [one.component for one in linears if self._type_of(one) in LOW_PRECISION]
        return [one for one in dict.fromkeys(left) if one not in taken] if self.dtype != self.wide else []

    def _pad_ms(self, found: Prediction) -> float:
        """What torch.compile copies to pad a product: each misaligned operand, read and written."""
        if min((value for value in found.alignment.values() if value), default=128) >= _PADDED_BELOW_BYTES:
            return 0.0
        m, n, k = (bool(2 * size % _PADDED_BELOW_BYTES) for size in (found.m, found.n, found.k))
        moved = 2.0 * found.batch * (found.m * found.k * (m or k) + found.k * found.n * (k or n))
        return 2 * moved / ((self.gpu.bandwidth_gbps or math.inf) * BANDWIDTH_FRAC * 1e6)

    def _padded(self, found: Prediction, layout: str) -> Prediction:
        """The product at the sizes that torch.compile pads it to."""
        step = _PADDED_BELOW_BYTES // 2
        m, n, k = (round_up(size, step) for size in (found.m, found.n, found.k))
        return predict_gemm(
            m, n, k, batch=found.batch, gpu=self.gpu, dtype=found.dtype, layout=layout, measured=self.measured
        )

    def _open(self, found: Prediction) -> tuple[float, float]:
        """How far the ladder leaves open what this alignment costs, in logs of time: faster, slower."""
        step = self._ladders[found.dtype].step_of(found.alignment)
        frac = found.alignment_frac
        if not frac or found.time_us.mid is None:
            low, high = found.floor_us or 1.0, found.time_us.high or 0.0
            return 0.0, math.log(max(high / low, 1.0))
        return math.log(max(step.high or frac, frac) / frac), math.log(frac / min(step.low or frac, frac))

    def _predict_attention(self, call: RankAttention) -> tuple[PlannedPart, ...]:
        parts: list[PlannedPart] = []
        kv = f" kv={call.kv_heads}" if call.kv_heads != call.heads else ""
        shape = f"b={call.batch} a={call.heads}{kv} s={call.sequence} d={call.head_dim}"
        shape += f" values {call.value_dim}" if call.value_dim not in (None, call.head_dim) else ""
        shape += f" window {call.window}" if call.window is not None else ""
        shape += f" keys {call.keys}" if call.keys is not None else ""
        for direction in DIRECTIONS:
            found = self._predict_call(
                AttentionProblem(
                    batch=call.batch,
                    heads=call.heads,
                    kv_heads=call.kv_heads,
                    seq_q=call.sequence,
                    seq_k=call.keys or call.sequence,
                    head_dim=call.head_dim,
                    causal=call.causal and not call.bias,  # a bias holds the mask: nothing is skipped
                    direction=direction,
                    dtype="fp32" if self.wide == "tf32" else self.wide,
                    window=call.window,
                    value_dim=call.value_dim,
                ),
                call,
            )
            time = found.time_us
            cannot = found.unknown or words.no_time("attention", self.gpu.title)
            if time.low is None or time.mid is None or time.high is None:
                raise InputError(cannot)
            width = found.head_dim or call.head_dim
            note = words.padded_head(call.head_dim, width) if width != call.head_dim else ""
            parts.append(
                PlannedPart(
                    "attention.core",
                    direction,
                    "attention",
                    shape,
                    (call.batch, call.heads, call.sequence, call.head_dim),
                    call.calls,
                    in_ms(time, call.calls, cannot),
                    open=_attention_open(time.low, time.mid, time.high),
                    flops=found.useful_flops * call.calls,
                    note=note,
                    backend=found.backend,
                    computed_flops=(found.computed_flops or found.useful_flops) * call.calls,
                )
            )
        return tuple(parts)

    def _predict_call(self, problem: AttentionProblem, call: RankAttention) -> AttentionPrediction:
        """One call; with a bias a wide guess, for no such call was measured.

        The middle is torch's choice for a mask tensor: no flash, and no cuDNN where the bias is learned
        (sdp_utils.cpp), as it is but in cross-attention. The range reaches from the choice without one, as
        FlexAttention has none, to scores in memory and in fp32, as older transformers have T5 under autocast.
        """
        run = partial(predict_attention, problem, gpu=self.gpu, measured=self.measured)
        bare = run(backend=self.backend)
        if not call.bias or self.backend is not None:
            return bare
        found = bare if call.keys is not None and bare.backend == "cudnn" else run(backend="efficient")
        low, mid, high = bare.time_us.low, found.time_us.mid, run(backend="math").time_us.high
        if low is None or mid is None or high is None:
            return found
        scores = _FP32_SCORES[problem.direction] * problem.rows * problem.seq_k
        high += scores / ((self.gpu.bandwidth_gbps or math.inf) * _PLAIN_FRAC * 1e3)
        return replace(found, time_us=Estimate(min(low, mid), mid, max(mid, high), "heuristic"))

    def _moved(self, traffic: Iterable[Traffic]) -> Iterator[PlannedPart]:
        bandwidth = self.gpu.bandwidth_gbps
        if bandwidth is None:
            raise InputError(f"the memory bandwidth of {self.gpu.title} is not known")
        for one in traffic:
            low = one.fused_bytes / (bandwidth * BANDWIDTH_FRAC * 1e6)
            mid = one.plain_bytes / (bandwidth * _PLAIN_FRAC * 1e6)
            yield PlannedPart(
                one.component, one.phase, "bytes", one.scales_with, (round(one.plain_bytes),), 1,
                Span(low, mid, _AUTOCAST * mid, "model"),
            )  # fmt: skip


def _attention_open(low: float, mid: float, high: float) -> float:
    """Half of the range, as the rest is in every call; and all that a faster kernel adds below."""
    half = 0.5 * math.log(high / mid)
    return max(half, math.log(mid / low) - half)


def _tiles(found: Prediction) -> str:
    if found.tile is None:
        return ""
    return words.gemm_tiles(found.tiles, found.tile, found.waves)
