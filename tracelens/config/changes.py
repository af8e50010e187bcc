"""Changes of hyper-parameters as users write them: names of the usual frameworks, whole numbers, a type."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracelens.config.model_config import DTYPES, NAMES, ModelConfig, known_values
from tracelens.errors import UsageError
from tracelens.numbers import listed

#: Rows of an expert as a multiple of what it has with even loads: other ways to give ``capacity``.
_FACTORS = ("capacity_factor", "moe_expert_capacity_factor", "moe_capacity_factor", "expert_capacity_factor")
#: How users write a parameter -> our name for it.
_ALIASES = {
    "vocab_size": "vocab", "v": "vocab",
    "h": "hidden", "hidden_size": "hidden", "n_embd": "hidden", "d_model": "hidden",
    "a": "heads", "n_head": "heads", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "num_query_groups": "kv_heads", "kv": "kv_heads",
    "d": "head_dim", "kv_channels": "head_dim",
    "d_ff": "ffn", "f": "ffn", "intermediate_size": "ffn", "ffn_hidden_size": "ffn", "n_inner": "ffn",
    "n_layer": "layers", "num_layers": "layers", "num_hidden_layers": "layers",
    "seq": "sequence", "s": "sequence", "seq_length": "sequence", "block_size": "sequence",
    "b": "micro_batch", "batch": "micro_batch", "batch_size": "micro_batch",
    "micro_batch_size": "micro_batch",
    "tp": "tensor_parallel", "t": "tensor_parallel", "tensor_model_parallel_size": "tensor_parallel",
    "num_experts": "experts", "num_local_experts": "experts", "n_routed_experts": "experts",
    "pp": "pipeline_parallel", "pipeline_model_parallel_size": "pipeline_parallel",
    "stages": "pipeline_parallel",
    "ep": "expert_parallel", "expert_model_parallel_size": "expert_parallel",
    "experts_per_token": "top_k", "num_experts_per_tok": "top_k", "moe_router_topk": "top_k",
    "moe_top_k": "top_k",
    "expert_capacity": "capacity", "tokens_per_expert": "capacity",
    "load_imbalance": "imbalance", "rounding": "row_multiple",
    "precision": "dtype", "type": "dtype",
}  # fmt: skip
#: How users write a type of products -> our name for it.
_DTYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
    "fp32": "fp32", "float32": "fp32", "tf32": "tf32", "fp8": "fp8", "float8": "fp8",
    "fp8-block": "fp8-block", "fp8_block": "fp8-block", "nvfp4": "nvfp4",
}  # fmt: skip
_WHOLE = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,17}")
_DECIMAL = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")


def parse_changes(texts: Sequence[str], *, now: ModelConfig | None = None) -> dict[str, int | str]:
    """``("vocab=50304,heads=20",)`` -> ``{"vocab": 50304, "heads": 20}``; ``dtype=fp8`` is the one word.

    ``capacity_factor=1.25`` becomes ``capacity``, by the tokens and experts that there are then.
    Raises UsageError that says what is wrong and which parameters there are, with their values ``now``.
    """
    changes: dict[str, int | str] = {}
    factors: set[float] = set()
    for part in (piece.strip() for text in texts for piece in text.split(",") if piece.strip()):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        if not sign or not name:
            raise UsageError(f"{part[:60]!r} is not a change: write NAME=NUMBER", known_values(now))
        given = name.lower() in _FACTORS
        found = "capacity" if given else canonical(name, now=now)
        value: int | str
        if given or (found == "capacity" and "." in number):
            factors.add(_factor(part, number))
            continue
        if found == "dtype":
            value = _dtype(number)
        elif not _WHOLE.fullmatch(number):
            raise UsageError(f"{part[:60]!r}: {number[:40]!r} is not a whole number", known_values(now))
        else:
            value = int(number.replace("_", ""))
        if changes.get(found, value) != value:
            raise UsageError(f"{found} is given twice: {changes[found]} and {value}")
        changes[found] = value
    if len(factors) + ("capacity" in changes) > 1:
        raise UsageError("the capacity is given twice")
    if factors:
        changes["capacity"] = _rows_of_factor(min(factors), now, changes)
    if not changes:
        raise UsageError("no change given: write NAME=NUMBER", known_values(now))
    return changes if now is None else of_rank(changes, now)


def of_rank(changes: Mapping[str, int | str], now: ModelConfig) -> dict[str, int | str]:
    """``changes`` of the whole model with a vocabulary that ranks split as a rank's part of it.

    Raises UsageError where the ranks do not divide it.
    """
    whole, parts = changes.get("vocab"), now.vocab_parts
    if not isinstance(whole, int) or parts == 1:
        return dict(changes)
    if whole % parts:
        near = [str(one) for one in (whole // parts * parts, (whole // parts + 1) * parts) if one]
        why = f"vocab = {whole} does not divide over the {parts} ranks that split it"
        raise UsageError(f"{why}: give {' or '.join(near)}")
    return {**changes, "vocab": whole // parts}


def of_model(change: Mapping[str, list[Any]], now: ModelConfig) -> dict[str, list[Any]]:
    """The other way round, for a change as [from, to]."""
    if not now.vocab_split or "vocab" not in change:
        return dict(change)
    ranks = change.get("tensor_parallel", [now.tp, now.tp])
    return {**change, "vocab": [part * count for part, count in zip(change["vocab"], ranks, strict=True)]}


def _factor(part: str, number: str) -> float:
    value = float(number) if _DECIMAL.fullmatch(number) else 0.0
    if value <= 0:
        raise UsageError(f"{part[:60]!r}: {number[:40]!r} is no factor of the rows that an expert has")
    return value


def _rows_of_factor(factor: float, now: ModelConfig | None, changes: Mapping[str, int | str]) -> int:
    """Rows of one expert: the factor times what it has where all experts of all ranks are loaded evenly."""
    then = replace(now or ModelConfig(), **changes)  # type: ignore[arg-type]
    needs = {"tokens": then.token_count, "top_k": then.top_k, "experts": then.experts}
    if lacks := [name for name, value in needs.items() if not value]:
        why = f"a factor of the capacity needs {listed(lacks)}: give capacity as rows of an expert"
        raise UsageError(why, known_values(now))
    even = (then.token_count or 0) * then.ep * (then.top_k or 0) / (then.experts or 1)
    return max(1, math.ceil(factor * even - 1e-9))


def _dtype(text: str) -> str:
    found = _DTYPES.get(text.lower().removeprefix("torch."))
    if found is None:
        raise UsageError(f"{text[:40]!r} is not a type of GEMMs that can be simulated: {', '.join(DTYPES)}")
    return found


def canonical(name: str, *, now: ModelConfig | None = None) -> str:
    """Our name of a parameter; UsageError lists them."""
    low = name.lower()
    found = _ALIASES.get(low, low)
    if found not in (*NAMES, "dtype"):
        close = difflib.get_close_matches(low, (*NAMES, "dtype", *_ALIASES, *_FACTORS), n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        raise UsageError(f"unknown hyper-parameter {name[:40]!r}{hint}", known_values(now))
    return found
