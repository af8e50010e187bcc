"""The hyper-parameters that a traced step runs with: its dimensions, and what its rows and messages add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.config.model_config import DTYPES, ModelConfig, model_config_of
from tracelens.results import CommunicationRow, GemmRow, ModelDims
from tracelens.step.exchange import vocab_is_split
from tracelens.step.experts import mixture_of
from tracelens.step.work import is_gated, repeats_keys, tokens_of, vocab_of


def present_config(
    rows: Sequence[GemmRow],
    dims: ModelDims,
    communication: Sequence[CommunicationRow],
    declared: Mapping[str, int],
) -> ModelConfig:
    """The hyper-parameters of the whole model, as far as the step shows them.

    ``declared`` are sizes that the model's own configuration states; what the trace shows goes first.
    """
    tokens = tokens_of(rows)
    batch, length = dims.micro_batch.value, dims.sequence.value
    mixture = mixture_of(rows, dims, tokens=batch * length if batch and length else tokens)
    more: dict[str, int | str | bool | None] = {
        "dtype": _main_dtype(rows),
        "micro_batches": micro_batches_of(rows, dims),
        "kv_repeated": repeats_keys(rows, dims),
    }
    if tokens is not None:
        more["vocab_split"] = vocab_is_split(
            communication, dims, tokens=tokens, declared=declared.get("vocab")
        )
    whole, here = declared.get("layers"), dims.layers.value
    if (dims.pipeline_parallel.value or 1) > 1 and whole is not None and whole >= (here or whole):
        more["layers"] = whole  # and not this stage's times the stages, which need not be alike
    if mixture is not None:
        if mixture.capacity:
            more["capacity"] = round(mixture.capacity)
        more["top_k"] = mixture.top_k or declared.get("experts_per_token")
        if dims.expert_parallel.value is None:
            more["expert_parallel"] = mixture.ranks
    gated = mixture.gated if mixture is not None else is_gated(rows, dims.ffn.value)
    return model_config_of(dims, gated=gated, tokens=tokens, vocab=vocab_of(rows, dims), **more)


def _main_dtype(rows: Sequence[GemmRow]) -> str | None:
    """The type in which products of layers spend most of their time, where it is one that can be changed."""
    times: dict[str, float] = {}
    for row in rows:
        dtype = row.math_dtype or row.dtype
        if dtype is not None and row.kind == "gemm":
            times[dtype] = times.get(dtype, 0.0) + row.time_ms_per_step
    most = max(times, key=lambda dtype: times[dtype]) if times else None
    return most if most in DTYPES else None


def micro_batches_of(rows: Sequence[GemmRow], dims: ModelDims) -> int | None:
    """Micro-batches of a step on this rank: forward output projections over this rank's layers."""
    calls = sum(
        row.calls_per_step
        for row in rows
        if row.component == "attention.output" and row.kind == "gemm"
        and row.role in (None, "forward") and row.phase in ("forward", "other")
    )  # fmt: skip
    layers = dims.layers.value
    count = calls / layers if layers else 0.0
    return round(count) if count >= 1 and abs(count - round(count)) < 0.01 else None
