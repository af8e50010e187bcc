"""What a rank keeps in its memory while it trains, and what would make it less."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.step.planned_kernels import activation_bytes
from tracelens.step.words import planned as words

#: bf16 weights and gradients, and Adam's fp32 master weights and two moments (ZeRO, arXiv 1910.02054).
STATE_BYTES = 16.0
#: Degrees that are tried for what would fit.
_TENSOR = (2, 4, 8)
_SHARDED = tuple(2**n for n in range(1, 11))


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
    weights = (config.parameters or 0) / config.tp
    ranks = training.data_ranks(config) if training.gpus else 1
    states = STATE_BYTES * config.held_parameters
    if training.strategy == "fsdp" and ranks > 1:
        # Two layers are there whole, in 16 bits: the one computed and the one gathered ahead of it.
        states = STATE_BYTES * weights / ranks + 2 * 2.0 * config.held_parameters / (config.layers or 1)
    kept = activation_bytes(config, layout)
    if training.checkpoint == "full":
        tokens, layers = config.token_count or 0, config.layers or 1
        kept = activation_bytes(replace(config, layers=1, dense_layers=None), layout)
        kept += 2.0 * tokens * (config.hidden or 0) * (layers - 1)
    return Memory(states, kept)


def would_fit(config: ModelConfig, layout: Layout, training: Training, room_gb: float) -> list[str]:
    """Ways to train it within ``room_gb`` of a GPU, the least of each kind; empty where none was found."""

    def fits(then: ModelConfig, how: Training) -> bool:
        return memory_of(then, layout, how).whole <= room_gb * 1e9

    t, recompute = config.tp, replace(training, checkpoint="full")
    ep = config.ep
    found = [words.FULL_RECOMPUTE] if fits(config, recompute) else []
    smaller = range((config.micro_batch or 1) - 1, 0, -1)
    found += [words.micro_batch_of(n) for n in smaller if fits(replace(config, micro_batch=n), training)][:1]
    wider = [n for n in _TENSOR if ep == 1 and n > t and _divides(config, n)]
    alone = replace(training, gpus=None)
    found += [
        words.tensor_parallelism_over(n) for n in wider if fits(replace(config, tensor_parallel=n), alone)
    ][:1]
    now = (training.gpus or 1) // t if training.strategy == "fsdp" else 1
    sharded = [
        words.fsdp_over(n, recompute=how is recompute)
        for how in (training, recompute)
        for n in _SHARDED
        if n > now and n % ep == 0 and fits(config, replace(how, strategy="fsdp", gpus=n * t))
    ]
    return found + sharded[:1]


def _divides(config: ModelConfig, ranks: int) -> bool:
    sizes = (config.heads, config.ffn, config.vocab, config.shared_ffn or 0, config.dense_ffn or 0)
    kv = config.kv_heads or config.heads or 1
    return all(size is not None and size % ranks == 0 for size in sizes) and (
        kv % ranks == 0 or ranks % kv == 0
    )
