"""How a step is run: what the configuration of a model does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from tracelens.config.configuration import Run
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
    of them. zero1: all but the optimizer, as Megatron-LM's distributed one. tp: all GPUs, or as many as
    ``tensor_parallel`` says, share each layer; ddp among the rest. ``gpus`` None: one node, where its
    collectives were published, else one GPU. ``strategy``, ``checkpoint`` and ``micro_batches`` None: as the
    configuration says, else fsdp, none and one.
    """

    gpus: int | None = None
    strategy: Strategy | None = None
    checkpoint: Checkpoint | None = None
    micro_batches: int | None = None  # of one optimizer step, on each data-parallel GPU
    sequence_parallel: bool = False  # tensor-parallel ranks share what is between their GEMMs, too

    def checked(self) -> Training:
        """UsageError where it makes no sense."""
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("checkpoint", self.checkpoint, CHECKPOINTS),
        ):
            if value is not None and value not in known:
                raise UsageError(f"{name} {value!r:.40} is not known: {', '.join(known)}")
        for name, number in (("gpus", self.gpus), ("micro_batches", self.micro_batches)):
            if number is not None and not 0 < number <= _MOST:
                raise UsageError(f"{name} = {number} is no number of them")
        return self

    @property
    def batches(self) -> int:
        """Micro-batches, one where nothing says how many."""
        return self.micro_batches or 1

    def as_run(self, run: Run, config: ModelConfig) -> Training:
        """With what the configuration says of a step; UsageError where its batch does not divide so."""
        batches = self.micro_batches
        if batches is None and run.global_batch is not None:
            at_once = (config.micro_batch or 1) * self.data_ranks(config)
            if run.global_batch % at_once:
                raise UsageError(
                    f"a global batch of {run.global_batch} does not divide into micro-batches of"
                    f" {config.micro_batch} on {self.data_ranks(config)} data-parallel GPUs: give"
                    " --micro-batches N"
                )
            batches = run.global_batch // at_once
        return replace(
            self,
            strategy=self.strategy or run.strategy,
            checkpoint=self.checkpoint or ("full" if run.full_recompute else "none"),
            micro_batches=batches or 1,
            sequence_parallel=self.sequence_parallel or run.sequence_parallel,
        )

    def expert_groups(self, config: ModelConfig) -> int:
        """Groups of data-parallel GPUs with all experts each; UsageError where they do not divide so."""
        data, ep = self.data_ranks(config), config.ep
        if data % ep:
            raise UsageError(
                f"{data} data-parallel GPUs do not divide into groups of {ep} that share the experts"
            )
        return data // ep

    def data_ranks(self, config: ModelConfig) -> int:
        """GPUs that train on different data; UsageError where those that share a model do not divide them."""
        gpus, shared = self.gpus or 1, config.model_ranks
        if gpus % shared:
            kind = "tensor-parallel ranks" if config.pp == 1 else f"{config.pp} stages of {config.tp} ranks"
            count = f"{shared} {kind}" if config.pp == 1 else kind
            raise UsageError(f"{gpus} GPUs do not divide into groups of {count}")
        return gpus // shared
