"""What a rank keeps in its memory while it trains, and what would make it less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.step.activations import activation_bytes
from tracelens.step.planned_kernels import busiest_stage, stacks
from tracelens.step.words import planned as words

#: bf16 weights and gradients, and Adam's fp32 master weights and two moments (ZeRO, arXiv 1910.02054).
STATE_BYTES = 16.0
_OPTIMIZER_BYTES = 12.0
#: Degrees that are tried for what would fit.
_TENSOR = (2, 4, 8)
_STAGES = tuple(2**n for n in range(1, 7))
_EXPERTS = tuple(2**n for n in range(1, 7))
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
    """An estimate, of one GPU. Full checkpointing keeps each layer's input, and one layer whole.

    With fused attention there is nothing that Megatron-LM's selective recompute would not keep.

    Of pipeline stages the first, which keeps as many micro-batches as there are stages (more where they
    are interleaved), or the last, with the logits.
    """
    stage = busiest_stage(config)
    states = _states(stage, training, training.data_ranks(config) * config.cp if training.gpus else 1)
    first = replace(stage, vocab=0) if config.pp > 1 else stage
    ahead = _kept(first, layout, training, _in_flight(config, training))
    return Memory(states, max(ahead, _kept(stage, layout, training, 1.0)))


def _states(stage: ModelConfig, training: Training, ranks: int) -> float:
    """Weights, gradients and optimizer of one GPU; ``ranks`` of data-parallel GPUs can share them."""
    held, shared = stage.held_parameters, (stage.parameters or 0) / stage.tp / ranks
    if ranks == 1 or training.strategy in ("ddp", "tp"):
        return STATE_BYTES * held
    if training.strategy == "zero1":
        return (STATE_BYTES - _OPTIMIZER_BYTES) * held + _OPTIMIZER_BYTES * shared
    # Two layers are there whole, in 16 bits: the one computed and the one gathered ahead of it; beside
    # pipeline stages all, and their gradients, until the step ends.
    layers, bytes_each = (stage.all_layers, 2.0) if training.gpus == ranks * stage.tp else (2, 4.0)
    return STATE_BYTES * shared + 2 * bytes_each * held / layers


def _in_flight(config: ModelConfig, training: Training) -> float:
    """Micro-batches whose activations the first stage keeps (1F1B; interleaved: arXiv 2205.05198)."""
    p, turns = config.pp, config.virtual_stages or 1
    most = p * (1 + (p - 1) / (p * turns)) if turns > 1 else float(p)
    return min(most, training.micro_batches or most)


def _kept(stage: ModelConfig, layout: Layout, training: Training, batches: float) -> float:
    """Activations of ``batches`` micro-batches on one GPU."""
    split = training.sequence_parallel
    if training.checkpoint != "full":
        some = training.checkpoint == "selective-op"
        return batches * activation_bytes(stage, layout, sequence_parallel=split, selective=some)
    rows = sum((one.token_count or 0) * (one.layers or 1) for one, _ in stacks(stage, layout))
    inputs = 2.0 * rows / stage.cp * (stage.hidden or 0) / (stage.tp if split else 1)
    single = replace(stage, layers=1, dense_layers=None, decoder_layers=1 if stage.decoder_layers else None)
    one = activation_bytes(single, layout, sequence_parallel=split)
    return one + batches * inputs - inputs / (stage.layers or 1)


def would_fit(config: ModelConfig, layout: Layout, training: Training, room_gb: float) -> list[str]:
    """Ways to train it within ``room_gb`` of a GPU, the least of each kind, what costs little first."""

    def fits(then: ModelConfig, how: Training) -> bool:
        return memory_of(then, layout, how).whole <= room_gb * 1e9

    t, recompute = config.tp, replace(training, checkpoint="full")
    split = replace(training, sequence_parallel=True)
    found = [words.SEQUENCE_PARALLEL] if split != training and t > 1 and fits(config, split) else []
    smaller = range((config.micro_batch or 1) - 1, 0, -1)
    found += [words.micro_batch_of(n) for n in smaller if fits(replace(config, micro_batch=n), training)][:1]
    again = fits(config, recompute)
    found += [words.FULL_RECOMPUTE] if again else []
    found += _shared(fits, config, replace(training, gpus=None))
    ways = (training,) if again else (training, recompute)
    found += _sharded(fits, config, ways, ())
    degrees = [n for n in _EXPERTS if t == 1 and n > config.ep and (config.experts or 1) % n == 0]
    return found or _sharded(fits, config, ways, degrees)[:1]


def _shared(fits: Callable[[ModelConfig, Training], bool], config: ModelConfig, alone: Training) -> list[str]:
    """The fewest GPUs that share layers; else the fewest stages; else the fewest GPUs with both."""
    t, p, layers = config.tp, config.pp, config.layers or 1
    wider = [n for n in _TENSOR if config.ep == 1 and n > t and _divides(config, n)]
    deeper = [n for n in _STAGES if p < n <= layers and not config.decoder_layers]
    both = sorted(product(wider, deeper), key=lambda pair: (pair[0] * pair[1], pair[1]))
    split = replace(alone, sequence_parallel=True)
    for some, how in (
        ([(n, p) for n in wider], alone),
        ([(t, n) for n in deeper], alone),
        (both, split),
        (both, replace(split, checkpoint="full")),
    ):
        for n, stages in some:
            cut = config.expert_tensor if n == t else None  # Megatron-LM's default follows the layers
            then = replace(config, tensor_parallel=n, pipeline_parallel=stages, virtual_stages=None,
                           expert_tensor=cut)  # fmt: skip
            if fits(then, how):
                again = how.checkpoint == "full" and how is not alone
                return [words.shared_over(n if n > t else 1, stages if stages > p else 1, recompute=again)]
    return []


def _sharded(
    fits: Callable[[ModelConfig, Training], bool],
    config: ModelConfig,
    ways: Sequence[Training],
    degrees: Sequence[int],
) -> list[str]:
    """FSDP over more GPUs than now, the fewest first; each further way only where it needs fewer of them.

    ``degrees`` of expert parallelism are tried in place of the present one.
    """
    found: list[tuple[int, str]] = []
    for how in ways:
        least = (how.gpus or 1) // config.model_ranks if how.strategy == "fsdp" else 1
        least += 0 if degrees else 1
        for n, ep in product(_SHARDED, degrees or (config.ep,)):
            then = replace(config, expert_parallel=ep)
            sharded = replace(how, strategy="fsdp", gpus=n * config.model_ranks)
            if n < least or n % config.cp or n * config.tp // then.etp % ep or (found and n >= found[0][0]):
                continue
            if not fits(then, sharded):
                continue
            way = words.fsdp_over(n, experts=ep if degrees else 1, recompute=how is not ways[0])
            found.insert(0, (n, way))
            break
    return [way for _, way in found]


def _divides(config: ModelConfig, ranks: int) -> bool:
    sizes = (config.heads, config.ffn, config.vocab, config.shared_ffn or 0, config.dense_ffn or 0)
    kv = config.kv_heads or config.heads or 1
    return all(size is not None and size % ranks == 0 for size in sizes) and (
        kv % ranks == 0 or ranks % kv == 0
    )
