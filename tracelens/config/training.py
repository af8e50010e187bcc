"""How a step is run: what the configuration of a model does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from tracelens.config.model_config import ModelConfig
from tracelens.errors import UsageError
from tracelens.results.suggestions import Checkpoint, Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CHECKPOINTS: tuple[Checkpoint, ...] = get_args(Checkpoint)
_MOST = 2**17


@dataclass(frozen=True, slots=True)
class Training:
    """GPUs, how they share a step, and what of the activations is computed again.

    fsdp: weights, gradients and optimizer are shared among the data-parallel GPUs. ddp: each GPU has all
    of them. tp: all GPUs, or as many as ``tensor_parallel`` says, share each layer; ddp among the rest.
    ``gpus`` None: one node, where its collectives were published, else one GPU.
    """

    gpus: int | None = None
    strategy: Strategy = "fsdp"
    checkpoint: Checkpoint = "none"
    micro_batches: int = 1  # of one optimizer step

    def checked(self) -> Training:
        """UsageError where it makes no sense."""
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("checkpoint", self.checkpoint, CHECKPOINTS),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r:.40} is not known: {', '.join(known)}")
        for name, number in (("gpus", self.gpus or 1), ("micro_batches", self.micro_batches)):
            if not 0 < number <= _MOST:
                raise UsageError(f"{name} = {number} is no number of them")
        return self

    def expert_groups(self, config: ModelConfig) -> int:
        """Groups of data-parallel GPUs with all experts each; UsageError where they do not divide so."""
        data, ep = self.data_ranks(config), config.ep
        if data % ep:
            raise UsageError(
                f"{data} data-parallel GPUs do not divide into groups of {ep} that share the experts"
            )
        return data // ep

    def data_ranks(self, config: ModelConfig) -> int:
        """GPUs that train on different data; UsageError where tensor-parallel ranks do not divide them."""
        gpus, t = self.gpus or 1, config.tp
        if gpus % t:
            raise UsageError(f"{gpus} GPUs do not divide into groups of {t} tensor-parallel ranks")
        return gpus // t
