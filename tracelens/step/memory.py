"""What a rank keeps in its memory while it trains, and what would make it less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.step.planned_kernels import activation_bytes

#: bf16 weights and gradients, and Adam's fp32 master weights and two moments (ZeRO, arXiv 1910.02054).
STATE_BYTES = 16.0
#: Of a GPU's memory: the rest is the context and fragments.
USABLE = 0.92


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one GPU: weights, gradients and optimizer; activations of one micro-batch."""

    states: float
    activations: float

    @property
    def whole(self) -> float:
        return self.states + self.activations


def memory_of(config: ModelConfig, layout: Layout, training: Training) -> Memory:
    """An estimate, of one GPU. Full checkpointing keeps each layer's input, and one layer whole."""
    weights = (config.parameters or 0) / (config.tensor_parallel or 1)
    ranks = training.data_ranks(config)
    states = STATE_BYTES * weights
    if training.strategy == "fsdp" and ranks > 1:
        # Two layers are there whole, in 16 bits: the one computed and the one gathered ahead of it.
        states = states / ranks + 2 * 2.0 * weights / (config.layers or 1)
    kept = activation_bytes(config, layout)
    if training.checkpoint == "full":
        tokens, layers = config.token_count or 0, config.layers or 1
        kept = activation_bytes(replace(config, layers=1), layout)
        kept += 2.0 * tokens * (config.hidden or 0) * (layers - 1)
    return Memory(states, kept)
