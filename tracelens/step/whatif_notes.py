"""What a simulated change leaves out or takes for granted, in sentences."""

from __future__ import annotations

from tracelens.config.model_config import ModelConfig
from tracelens.step.exchange import bubble
from tracelens.step.predicted import LOW_PRECISION

#: Notes that a reader of a curve or of a finding is told otherwise.
COUNTED_ONCE = "parameters: the embedding is counted once, as if tied to the output matrix"
IDLE_STAYS = (
    "idle time is taken as it is now: whether the CPU takes longer with other tokens is not known, so the"
    " time per token is no prediction"
)


def notes_of(now: ModelConfig, then: ModelConfig, *, communicates: bool, work_ms: float | None) -> list[str]:
    """Sentences without capital and full stop. ``work_ms``: GPU time of a step's micro-batches after it."""
    notes = []
    if now.hidden != then.hidden and now.ffn == then.ffn and now.ffn:
        notes.append(f"ffn stays {now.ffn}: give ffn=... to change it with hidden")
    if now.tensor_parallel is None:
        notes.append("tensor parallelism is not known: sizes are taken as one rank holds them")
    if (
        now.vocab != then.vocab
        and now.tensor_parallel == then.tensor_parallel
        and (now.tensor_parallel or 1) > 1
    ):
        notes.append(f"vocab is what this rank's logits have: {now.vocab} columns")
    if now.tensor_parallel != then.tensor_parallel and now.vocab and now.vocab_split is False:
        notes.append(f"every rank computes logits of the whole vocabulary, {now.vocab} columns, then as now")
    both_matrices = (now.vocab, now.hidden) != (then.vocab, then.hidden)
    if both_matrices and now.tied is None and now.vocab and now.parameters is not None:
        notes.append(COUNTED_ONCE)
    grown = now.parameters != then.parameters or now.token_count != then.token_count
    if communicates and (grown or now.top_k != then.top_k or now.capacity != then.capacity):
        notes.append("communication stays as measured, though its messages change size")
    return [*notes, *_of_pipeline(now, then, work_ms), *_of_experts(now, then), *_of_dtype(now, then)]


def _of_pipeline(now: ModelConfig, then: ModelConfig, work_ms: float | None) -> list[str]:
    stages = then.pipeline_parallel or 1
    notes = []
    if now.pipeline_parallel != then.pipeline_parallel:
        notes.append(bubble(now, then, work_ms=work_ms))
    changes = now.pipeline_parallel != then.pipeline_parallel or now.layers != then.layers
    if changes and stages > 1 and then.layers and then.stage_layers:
        mean = then.layers / stages
        text = f"{then.layers} layers over {stages} stages: the longest has {then.stage_layers}"
        if then.layers % stages:
            more = then.stage_layers / mean - 1
            text += f", {more:.1%} more than the mean of {mean:.4g}, and the others wait for it"
        notes.append(text)
    return notes


def _of_experts(now: ModelConfig, then: ModelConfig) -> list[str]:
    notes = []
    if now.capacity != then.capacity and now.capacity:
        notes.append("experts are taken as evenly loaded: the fullest expert is slower than that")
    if now.capacity != then.capacity and now.top_k == then.top_k and _tokens_to_experts(now, then):
        notes.append("capacity changes which tokens the experts take, and the model's quality with it")
    if now.row_multiple != then.row_multiple:
        notes.append(
            "rows of padding hold no token; a kernel whose tile is as tall computes as many rows either way"
        )
    if now.imbalance != then.imbalance:
        notes.append(
            "GEMMs of the fullest rank are taken to take time with its rows; which rank that is no one trace"
            " tells, so the range reaches from this one to one that it waits for in every exposed all-to-all"
        )
    if now.experts != then.experts:
        notes.append("moving tokens to their experts stays as measured for each token")
    return notes


def _tokens_to_experts(now: ModelConfig, then: ModelConfig) -> bool:
    """Is the capacity changed by itself?"""
    names = ("token_count", "experts", "expert_parallel")
    return all(now.get(name) == then.get(name) for name in names)


def _of_dtype(now: ModelConfig, then: ModelConfig) -> list[str]:
    if now.dtype == then.dtype:
        return []
    notes = [
        "the optimizer's state keeps its type, and kernels that compute in fp32 throughout do not change"
    ]
    if then.dtype in LOW_PRECISION:
        notes.append(
            f"{then.dtype} is taken for the linear layers of attention, MLP and experts; the casts of their"
            " operands that"
            " it adds are in the range, from all fused into other kernels to 5 bytes of each element"
        )
    elif now.dtype in LOW_PRECISION:
        notes.append(f"casts, scales and transposes of {now.dtype} stay as measured, though they would go")
    return notes
