"""How a step is run: what the configuration of a model does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from tracelens.config.configuration import Run
from tracelens.config.model_config import ModelConfig
from tracelens.errors import UsageError
from tracelens.numbers import plural
from tracelens.results.suggestions import Checkpoint, Stack, Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CHECKPOINTS: tuple[Checkpoint, ...] = get_args(Checkpoint)
STACKS: tuple[Stack, ...] = get_args(Stack)
_MOST = 2**17


@dataclass(frozen=True, slots=True)
class Training:
    """GPUs, how they share a step, and what of the activations is computed again.

    fsdp: weights, gradients and optimizer are shared among the data-parallel GPUs. ddp: each GPU has all
    of them. zero1: all but the optimizer, as Megatron-LM's distributed one. tp: all GPUs, or as many as
    ``tensor_parallel`` says, share each layer; ddp among the rest. ``gpus`` None: one node, where its
    collectives were published, else one GPU. ``strategy``, ``checkpoint`` and ``micro_batches`` None: as the
    configuration says, else fsdp (zero1 with megatron), none and one. ``stack`` None: as it says, else plain,
    but for zero1 of GPUs that share layers, which is Megatron-LM's.
    """

    gpus: int | None = None
    strategy: Strategy | None = None
    checkpoint: Checkpoint | None = None
    micro_batches: int | None = None  # of one optimizer step, on each data-parallel GPU
    sequence_parallel: bool = False  # tensor-parallel ranks share what is between their GEMMs, too
    stack: Stack | None = None
    overlap: bool | None = None  # of tensor-parallel exchanges with GEMMs, where the stack can

    def checked(self) -> Training:
        """UsageError where it makes no sense."""
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("checkpoint", self.checkpoint, CHECKPOINTS),
            ("stack", self.stack, STACKS),
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
        strategy = self.strategy or run.strategy or ("zero1" if self.stack == "megatron" else "fsdp")
        shared = strategy == "zero1" and config.batch_ranks > 1
        stack = self.stack or run.stack or ("megatron" if shared else "plain")
        split = stack == "megatron" if run.sequence_parallel is None else run.sequence_parallel
        return replace(
            self,
            strategy=strategy,
            checkpoint=self.checkpoint or run.checkpoint,
            micro_batches=batches or 1,
            sequence_parallel=self.sequence_parallel or split,
            stack=stack,
            overlap=run.overlap if self.overlap is None else self.overlap,
        )

    def expert_groups(self, config: ModelConfig) -> int:
        """Groups of a stage's GPUs with all experts each; UsageError where they do not divide so."""
        stage, ep = self.data_ranks(config) * config.cp * config.tp // config.etp, config.ep
        if stage % ep:
            kind = "data-parallel GPUs" if config.tp * config.cp == 1 else "GPUs of a stage"
            raise UsageError(f"{stage} {kind} do not divide into groups of {ep} that share the experts")
        return stage // ep

    def data_ranks(self, config: ModelConfig) -> int:
        """GPUs that train on different data; UsageError where those that share a model do not divide them."""
        gpus, shared = self.gpus or 1, config.batch_ranks
        if gpus % shared:
            kinds = ["context"] * (config.cp > 1) + ["tensor"] * (config.tp > 1 or config.cp == 1)
            count = f"{shared} {'- and '.join(kinds)}-parallel ranks"
            if config.pp > 1:
                count = f"{config.pp} stages of {plural(config.tp * config.cp, 'rank')}"
            raise UsageError(f"{plural(gpus, 'GPU')} cannot be divided into groups of {count}")
        return gpus // shared
