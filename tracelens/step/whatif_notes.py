"""What a simulated change leaves out or takes for granted, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from tracelens.config.model_config import ModelConfig
from tracelens.step.exchange import bubble
from tracelens.step.predicted import LOW_PRECISION
from tracelens.step.words import simulation as words
from tracelens.step.work import Product

#: What a reader can be told otherwise: of the count of parameters, of a step that waits for the CPU, and of
#: its idle time with other tokens.
Told = Literal["parameters", "waits", "idle"]

#: Rows of experts' GEMMs: as each has them, the same in all, or of groups whose sizes are not known.
Loads = Literal["own", "equal", "taken as even"]


def notes_of(
    now: ModelConfig,
    then: ModelConfig,
    *,
    communicates: bool,
    work_ms: float | None,
    loads: Loads,
    told: Collection[Told] = (),
) -> list[str]:
    """Sentences without capital and full stop. ``work_ms``: GPU time of a step's micro-batches after it."""
    notes = []
    if now.hidden != then.hidden and now.ffn == then.ffn and now.ffn:
        notes.append(words.ffn_stays(now.ffn))
    if now.tensor_parallel is None:
        notes.append(words.RANKS_UNKNOWN)
    if now.vocab != then.vocab and now.tensor_parallel == then.tensor_parallel and now.tp > 1:
        notes.append(words.vocab_of_rank(now.vocab, now.vocab_parts))
    if now.tensor_parallel != then.tensor_parallel and now.vocab and now.vocab_split is False:
        notes.append(words.whole_vocab(now.vocab))
    both_matrices = (now.vocab, now.hidden) != (then.vocab, then.hidden)
    once = both_matrices and now.tied is None and now.vocab and now.parameters is not None
    if once and "parameters" not in told:
        notes.append(words.COUNTED_ONCE)
    sent = (
        "parameters",
        "token_count",
        "hidden",
        "top_k",
        "capacity",
    )  # without layers no parameters are known
    if communicates and any(getattr(now, name) != getattr(then, name) for name in sent):
        notes.append(words.MESSAGES_STAY)
    return [*notes, *_of_pipeline(now, then, work_ms), *_of_experts(now, then, loads), *_of_dtype(now, then)]


def _of_pipeline(now: ModelConfig, then: ModelConfig, work_ms: float | None) -> list[str]:
    stages = then.pp
    notes = []
    if now.pipeline_parallel != then.pipeline_parallel:
        notes.append(bubble(now, then, work_ms=work_ms))
    changes = now.pipeline_parallel != then.pipeline_parallel or now.layers != then.layers
    if changes and stages > 1 and then.layers and then.stage_layers:
        mean = then.layers / stages
        more = then.stage_layers / mean - 1 if then.layers % stages else 0.0
        notes.append(words.layers_of_stages(then.layers, stages, then.stage_layers, mean=mean, more=more))
    return notes


def loads_of(products: Sequence[Product]) -> Loads:
    """How the rows of experts are known: groups show no sizes, GEMMs of single experts each its own."""
    rows = [one.m.load or one.k.load for one in products]
    if any(one.row.groups is not None for one in products):
        return "taken as even"
    own = {(load[0], load[1]) for load in rows if load is not None}
    return "own" if any(size != mean for size, mean in own) else "equal"


def _of_experts(now: ModelConfig, then: ModelConfig, loads: Loads) -> list[str]:
    notes = []
    if now.capacity != then.capacity and now.capacity:
        alone = now.top_k == then.top_k and _tokens_to_experts(now, then)
        filled = [words.FILLED] if alone else [words.EVEN_EXPERTS] if loads == "taken as even" else []
        notes += [words.OWN_LOADS] if loads == "own" else filled
        notes += [words.OTHER_TOKENS_TAKEN] if alone else []
    if now.row_multiple != then.row_multiple:
        notes.append(words.PADDING_ROWS)
    if now.imbalance != then.imbalance:
        notes.append(words.FULLEST_RANK)
    if now.experts != then.experts:
        notes.append(words.MOVING_TOKENS)
    return notes


def _tokens_to_experts(now: ModelConfig, then: ModelConfig) -> bool:
    """Is the capacity changed by itself?"""
    names = ("token_count", "experts", "expert_parallel")
    return all(now.get(name) == then.get(name) for name in names)


def _of_dtype(now: ModelConfig, then: ModelConfig) -> list[str]:
    if now.dtype == then.dtype:
        return []
    notes = [words.STATE_KEEPS_TYPE]
    if then.dtype in LOW_PRECISION:
        notes.append(words.to_low_precision(then.dtype))
    elif now.dtype in LOW_PRECISION:
        notes.append(words.from_low_precision(now.dtype))
    return notes
