"""The hyper-parameters that a traced step runs with: its dimensions, and what its rows and messages add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.config.model_config import DTYPES, ModelConfig, model_config_of
from tracelens.results import CommunicationRow, GemmRow, ModelDims, main_dtype
from tracelens.step.exchange import vocab_is_split
from tracelens.step.experts import mixture_of
from tracelens.step.uneven import uneven_frac
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
    dtype = main_dtype(row for row in rows if row.kind == "gemm")
    more: dict[str, int | str | bool | None] = {
        "dtype": dtype if dtype in DTYPES else None,  # one that can be changed
        "micro_batches": micro_batches_of(rows, dims.layers.value),
        "kv_repeated": repeats_keys(rows, dims),
    }
    if tokens is not None:
        more["vocab_split"] = vocab_is_split(
            communication, dims, tokens=tokens, declared=declared.get("vocab")
        )
    if (uneven := uneven_frac(communication)) is not None:
        more["imbalance"] = round(100 * uneven)
    whole, here = declared.get("layers"), dims.layers.value
    if (dims.pipeline_parallel.value or 1) > 1 and whole is not None and whole >= (here or whole):
        more["layers"] = whole  # and not this stage's times the stages, which need not be alike
    if mixture is not None:
        if mixture.capacity:
            more["capacity"] = round(mixture.capacity)
            more["row_multiple"] = mixture.row_multiple
        # rows can be padding: 8 experts per token with a capacity factor of 1.25 have the rows of 10
        more["top_k"] = dims.top_k.value or declared.get("experts_per_token") or mixture.top_k
        if dims.expert_parallel.value is None:
            more["expert_parallel"] = mixture.ranks
    gated = mixture.gated if mixture is not None else is_gated(rows, dims.ffn.value)
    return model_config_of(dims, gated=gated, tokens=tokens, vocab=vocab_of(rows, dims), **more)


def micro_batches_of(rows: Sequence[GemmRow], layers: int | None) -> int | None:
    """Micro-batches of a step on this rank: forward runs of a layer's last products over this rank's layers.

    None where neither the attention's nor the MLP's run a whole number of times in each layer.
    """
    for component in ("attention.output", "mlp.down"):
        calls = sum(
            row.calls_per_step
            for row in rows
            if row.component == component and row.kind == "gemm"
            and row.role in (None, "forward") and row.phase in ("forward", "other")
        )  # fmt: skip
        count = calls / layers if layers else 0.0
        if count >= 1 and abs(count - round(count)) < 0.01:
            return round(count)
    return None
