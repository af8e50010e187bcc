"""The model's dimensions, from its configuration where it has one, else from its modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from tracelens.capture.modules import unwrap

#: Our name -> what configurations call it (transformers, nanoGPT, torchtitan, litgpt).
_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_head", "n_kv_heads", "n_query_groups", "num_kv_heads"),
    "head_dim": ("head_dim", "head_size"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "moe_intermediate_size"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_router_topk", "moe_top_k"),
    "context": ("max_position_embeddings", "block_size", "n_positions", "max_seq_len"),
}
_CONFIGS = ("config", "cfg", "model_args", "params", "args", "hparams")


def infer_dimensions(root: nn.Module, batch: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``{"hidden": {"value": 768, "source": "config.n_embd"}, ...}``; what is not known is not there."""
    model = unwrap(root)
    found: dict[str, dict[str, Any]] = {}
    for name, value, source in [*_from_config(model), *_from_modules(model), *_from_batch(batch)]:
        found.setdefault(name, {"value": value, "source": source})
    if "head_dim" not in found and "hidden" in found and "heads" in found:
        hidden, heads = found["hidden"]["value"], found["heads"]["value"]
        if hidden % heads == 0:
            found["head_dim"] = {"value": hidden // heads, "source": "hidden / heads"}
    return found


def _from_config(model: nn.Module) -> Iterable[tuple[str, int, str]]:
    holders = [model, *(child for child in model.children())]
    for holder in holders:
        for attribute in _CONFIGS:
            config = holder.__dict__.get(attribute)
            config = getattr(config, "text_config", None) or config  # multi-modal: the language model's
            if config is None:
                continue
            rows = []
            for name, keys in _NAMES.items():
                for key in keys:
                    value = config.get(key) if isinstance(config, dict) else getattr(config, key, None)
                    if type(value) is int and value > 0:
                        rows.append((name, value, f"{attribute}.{key}"))
                        break
            if rows:
                return rows
    return []


def _from_modules(model: nn.Module) -> Iterable[tuple[str, int, str]]:
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    hidden = None
    if tables:
        table = max(tables, key=lambda module: module.num_embeddings)
        hidden = table.embedding_dim
        yield "vocab", table.num_embeddings, "largest nn.Embedding"
        yield "hidden", hidden, "largest nn.Embedding"
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    stacks = [stack for stack in lists if len(stack) and len({type(layer) for layer in stack}) == 1]
    stacks = [stack for stack in stacks if sum(1 for _ in stack[0].modules()) > 1]
    if not stacks:
        return
    layers = max(stacks, key=len)
    yield "layers", len(layers), "longest list of equal modules"
    for inner in layers[0].modules():
        for attribute in ("num_heads", "n_head", "n_heads", "num_attention_heads"):
            value = inner.__dict__.get(attribute)
            if type(value) is int and value > 0:
                yield "heads", value, f"{type(inner).__name__}.{attribute}"
        # the down projection is the only one that comes from more than the hidden size
        if isinstance(inner, nn.Linear) and hidden and inner.in_features > hidden == inner.out_features:
            yield "ffn", inner.in_features, "nn.Linear down to hidden"


def _from_batch(batch: Iterable[dict[str, Any]]) -> Iterable[tuple[str, int, str]]:
    for entry in batch:
        shape, dtype = entry["shape"], entry["dtype"]
        if len(shape) == 2 and dtype in ("int64", "int32"):
            yield "micro_batch", shape[0], f"argument {entry['argument']} of {entry['module']}"
            yield "sequence", shape[1], f"argument {entry['argument']} of {entry['module']}"
            return
