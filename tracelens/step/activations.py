"""What a rank keeps of a micro-batch for its backward, and the memory of a model that a trace shows."""

from __future__ import annotations

from dataclasses import replace

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.errors import InputError
from tracelens.step.planned_kernels import RankSizes, attention_calls, bias_bytes, dense_mlps, stacks


def activation_bytes(
    config: ModelConfig, layout: Layout, *, sequence_parallel: bool = False, selective: bool = False
) -> float:
    """Activations of one micro-batch that a rank keeps for the backward of all layers, in 16 bits.

    As in Korthikanti et al. (arXiv 2205.05198), with fused attention and no recompute; ``sequence_parallel``:
    each rank keeps its part of what is as wide as the stream. ``selective``: of a layer its input, what
    attention gives and the outputs of every second GEMM, as torchtitan keeps them.
    """
    return sum(
        _of_stack(stack, its, sequence_parallel=sequence_parallel, selective=selective)
        for stack, its in stacks(config, layout)
    )


def _of_stack(config: ModelConfig, layout: Layout, *, sequence_parallel: bool, selective: bool) -> float:
    s = RankSizes.of(config)
    kv_heads = s.heads if config.kv_repeated else s.kv_heads
    stream = 4 * s.hidden / (config.tp if sequence_parallel else 1)
    width = stream + (2 * s.heads + 2 * kv_heads) * s.head_dim
    if (latent := config.latent) is not None:  # short vectors before and behind their norms, q, k, v and out
        width = stream + 2 * (latent.keys + (latent.queries or 0)) + latent.turned
        width += 2 * s.heads * (s.head_dim + latent.value)
    beside = sum(bias_bytes(call) * call.calls for call in attention_calls(config, layout))
    if layout.cross is not None:  # norm, residual, q and out of the stack's tokens; k and v of the encoder's
        width += stream / 2 + 2 * s.heads * s.head_dim
        beside += 2.0 * (config.micro_batch or 1) * layout.cross * 2 * kv_heads * s.head_dim * s.layers
    mlp = sum(width * layers for width, layers in dense_mlps(config, layout))
    if config.experts and layout.experts_per_token:
        mlp += s.ffn * layout.experts_per_token * (s.layers - (config.dense_layers or 0))
    kept = s.layers * width + (3 if config.gated else 2) * mlp
    if selective:
        outputs = s.layers * ((s.heads + 2 * kv_heads) * s.head_dim + stream / 2)
        outputs += (2 if config.gated else 1) * mlp
        kept = s.layers * (stream / 4 + s.heads * s.head_dim) + outputs / 2
    return 2.0 * s.tokens * (kept + 3 * s.vocab) + beside


def memory_of_trace(config: ModelConfig) -> float | None:
    """Estimate of a rank's memory in bytes for a model read off a trace: weights as in ``memory_of``.

    None where a size is not known, or experts share the tokens. What data-parallel ranks share (ZeRO, FSDP),
    and activations that are computed again, make it less.
    """
    if config.experts and config.experts > 1:
        return None
    weights = config.rank_parameters
    try:
        return 16.0 * weights + kept_of_trace(config) if weights is not None else None
    except InputError:
        return None


def kept_of_trace(config: ModelConfig) -> float:
    """``activation_bytes`` of a model read off a trace: one stage's layers, one rank's vocabulary.

    A rank of a 1F1B schedule keeps those of as many micro-batches as there are stages behind it, itself
    among them (Narayanan et al., arXiv 2104.04473): this is the last stage's.
    """
    t = config.tp
    rank = replace(config, vocab=config.vocab * t if config.vocab else None, layers=config.stage_layers)
    return activation_bytes(rank, Layout())
