"""What the GPUs of a planned step send to one another: activations, rows of experts, weights, gradients."""

from __future__ import annotations

import math
from functools import partial

from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.errors import InputError
from tracelens.hardware.collectives import exchange_us, linked
from tracelens.results import Span
from tracelens.step.paces import Pace
from tracelens.step.planned_kernels import RankSizes, busiest_stage
from tracelens.step.planned_step import Planner

#: DeepEP's combine on B200 takes at most 1.7 times NCCL's copies (aiconfigurator, 095f58a51; 1024 tokens and
#: top-6 or more); the error of every part is around this.
_DEEPEP_FRAC = 1.3
#: Bytes of a gradient that DDP exchanges under autocast: those of the fp32 weights.
_DDP_BYTES = 4.0


def tensor_parallel(planner: Planner, config: ModelConfig, training: Training, shown: float) -> Span:
    """Two all-reduces of the activations forward and two backward in each layer (three with cross-attention).

    Sequence-parallel ranks gather and scatter in their place, and gather inputs again for their weights'
    gradients (arXiv 2205.05198). All of it is hidden, or none of it.

    Experts that are dealt out whole need none; where they are cut as well, rows are exchanged. ``shown`` of
    it is not hidden.
    """
    t = config.tp
    if t == 1:
        return Span.exactly(0.0, "model")
    in_node, took, again = linked(planner.gpu.name, t), 0.0, 0.0
    for stack, layout in planner.stacks(config):
        s = RankSizes.of(stack)
        routed = s.layers - (stack.dense_layers or 0) if layout.experts_per_token else 0
        rows = (layout.experts_per_token or 1) if config.ep > 1 else 1
        rows = rows if config.etp > 1 else int(bool(config.shared_ffn))
        attentions = s.layers if layout.cross is None else 2 * s.layers
        layers = attentions + (s.layers - routed) + routed * rows
        calls = (3 if training.checkpoint == "full" else 2) * layers * training.batches
        each = partial(_exchanged, planner, ranks=t, size=2.0 * s.tokens * s.hidden, in_node=in_node)
        if training.sequence_parallel:
            took += calls * (each("all_gather") + each("reduce_scatter"))
            again += layers * training.batches * each("all_gather")
        else:
            took += calls * each("all_reduce")
    return Span(0.0, shown * took, took + again, "model")


def context_parallel(planner: Planner, config: ModelConfig, training: Training, attention_ms: float) -> Span:
    """Keys and values of a sequence on their way round, backward with their gradients, behind attention."""
    cp = config.cp
    if cp == 1:
        return Span.exactly(0.0, "model")
    s = RankSizes.of(config)
    calls = (4 if training.checkpoint in ("full", "selective") else 3) * s.layers * training.batches
    in_node = linked(planner.gpu.name, cp, apart=config.tp)
    size = 2 * 2.0 * s.tokens * cp * s.kv_heads * s.head_dim
    took = calls * _exchanged(planner, "all_gather", cp, size, in_node)
    least = max(0.0, took - attention_ms)
    return Span(least, least, took, "heuristic")


def to_experts(planner: Planner, config: ModelConfig, training: Training) -> Span:
    """Rows sent to the GPUs of their experts and back, forward and backward, which nothing hides.

    NCCL sends a copy for each expert that a token chose; the low end is one for each GPU, or node, that has
    any of them, as DeepEP sends. Its kernels can be slower, too.
    """
    ep, experts, top_k = (
        config.ep,
        config.experts or 1,
        planner.layout.experts_per_token or 1,
    )
    s, in_node = RankSizes.of(config), linked(planner.gpu.name, ep, apart=config.etp)
    tokens = s.tokens / config.tp  # tensor-parallel ranks share them
    places = ep // in_node if ep > in_node else ep
    none_there = math.comb(experts - experts // places, top_k) / math.comb(experts, top_k)
    calls = (6 if training.checkpoint == "full" else 4) * (s.layers - (config.dense_layers or 0))
    low, high = (
        calls * training.batches
        * _exchanged(planner, "all_to_all", ep, 2.0 * tokens * s.hidden * copies, in_node)
        for copies in (places * (1 - none_there), float(top_k))
    )  # fmt: skip
    return Span(low, high, _DEEPEP_FRAC * high, "heuristic")


def to_stages(planner: Planner, config: ModelConfig, training: Training) -> Span:
    """Activations to the next stage and their gradients back, each rank its part; hidden, or none of it."""
    s, t = RankSizes.of(config), config.tp
    in_node = linked(planner.gpu.name, 2, apart=(training.gpus or 1) // config.pp)
    took = _exchanged(planner, "all_gather", 2, 2 * 2.0 * s.tokens * s.hidden / t, in_node)
    shown = 2 * (config.virtual_stages or 1) * training.batches * took
    return Span(0.0, shown, shown, "heuristic")


def data_parallel(
    planner: Planner, config: ModelConfig, training: Training, backward_ms: float, pace: Pace
) -> Span:
    """FSDP gathers each layer forward and backward and scatters its gradients, for every micro-batch.

    Beside pipeline stages it gathers once a step and keeps what it has, as torchtitan does. DDP reduces all
    gradients once, behind the last micro-batch's backward: between all of it shows and only what is longer
    than that.
    """
    t, ep, etp = config.tp, config.ep, config.etp
    groups, alike = training.expert_groups(config), training.data_ranks(config) * config.cp
    stages, config = config.pp, busiest_stage(config)
    experts = config.expert_parameters if ep > 1 else 0  # each of their GPUs exchanges its own with its like
    parts = [
        (alike, t, ((config.parameters or 0) - experts) / t),
        (groups, ep * etp, experts / ep / etp),
    ]
    took, layers = 0.0, config.all_layers
    gathers, times = (1, 1) if stages > 1 else (2, training.batches)
    for ranks, apart, weights in parts:
        if ranks == 1 or not weights:
            continue
        in_node = linked(planner.gpu.name, ranks, apart=apart)
        if training.strategy == "fsdp":
            size = 2.0 * weights / layers
            each = gathers * _exchanged(planner, "all_gather", ranks, size, in_node)
            each += _exchanged(planner, "reduce_scatter", ranks, size, in_node)
            took += each * layers * times
        elif training.strategy == "zero1":
            took += _exchanged(planner, "reduce_scatter", ranks, _DDP_BYTES * weights, in_node)
            took += _exchanged(planner, "all_gather", ranks, 2.0 * weights, in_node)
        else:
            took += _exchanged(planner, "all_reduce", ranks, _DDP_BYTES * weights, in_node)
    if not took:
        return Span.exactly(took, "model")
    if training.strategy == "fsdp":
        backward_ms *= training.batches
        if not pace.overlaps:  # it is made to hide its exchanges: in the steps that were fitted it hid none
            return Span(max(0.0, took - backward_ms), took, took, "model") * pace.exchange
    elif pace.overlaps:  # each part of a stage's layers has its last micro-batch, one stage after the other
        backward_ms *= min(training.batches, stages)
    least = max(0.0, took - backward_ms)
    return Span(least, least + pace.gradients * (took - least), took, "heuristic")


def _exchanged(planner: Planner, collective: str, ranks: int, size: float, in_node: int) -> float:
    """ms of one call; InputError where it was not published."""
    took = exchange_us(planner.gpu.name, collective, ranks, size, in_node=in_node)
    if took is None:
        raise InputError(
            f"what {ranks} GPUs take to exchange data was not published for the {planner.gpu.title}: no step"
            " on so many is predicted; --gpus 1 is one without exchange"
        )
    return took / 1e3
