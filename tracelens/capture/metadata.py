"""What a trace must say about its training run: the key ``tracelens`` of the file.

No environment variable, no path, no host name. Every part stands alone: one that cannot be had is an
``error`` in its place, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from tracelens.capture.compiled import counters
from tracelens.capture.messages import why
from tracelens.capture.modules import Batch, Model, class_name, is_wrapper, unwrap
from tracelens.capture.parallel import parallel
from tracelens.capture.system import gpus, precision, seeds, versions

#: Raised when a key changes its meaning; new keys do not raise it.
SCHEMA_VERSION = 1


def describe(models: Iterable[Model], batch: Batch) -> dict[str, Any]:
    """Everything but times and steps; JSON values only."""
    models = list(models)
    parts: dict[str, Callable[[], Any]] = {
        "versions": versions,
        "models": lambda: [_model(model, batch) for model in models],
        "batch": batch.shapes,
        "parallel": lambda: parallel(model.root for model in models),
        "gpus": gpus,
        "precision": precision,
        "seeds": seeds,
        "compile": lambda: _compile(models),
    }
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tracelens_version": sys.modules["tracelens"].__version__,
        "torch_version": sys.modules["torch"].__version__,
    }
    for key, make in parts.items():
        try:
            found[key] = make()
        except Exception as error:  # a strange model must not cost the trace
            found[key] = {"error": why(error)}
    return found


def _model(model: Model, batch: Batch) -> dict[str, Any]:
    return {
        "name": model.prefix,
        "class": class_name(model.root),
        "trained": model.trained,
        "parameters": sum(p.numel() for p in model.root.parameters()),
        "dimensions": infer_dimensions(model.root, batch.shapes() if model.trained else []),
        "modules": _tree(model),
        "tied": _tied(model),
        "checkpointing": _checkpointing(model),
    }


def _tree(model: Model) -> list[dict[str, Any]]:
    """Every module, parents first: its range's name, its class, its own parameters."""
    rows = []
    for name, module in model.named():
        row: dict[str, Any] = {"name": name, "class": class_name(module)}
        own = {
            key: {
                "shape": list(value.shape),
                "dtype": dtype_name(value.dtype),
                "trained": value.requires_grad,
            }
            for key, value in module._parameters.items()
            if value is not None
        }
        if own:
            row["parameters"] = own
        if is_wrapper(module):
            row["wrapper"] = True
        rows.append(row)
    return rows


def _tied(model: Model) -> list[list[str]]:
    """Groups of names of one and the same parameter."""
    groups: dict[int, list[str]] = {}
    for name, module in model.named():
        for key, value in module._parameters.items():
            if value is not None:
                groups.setdefault(id(value), []).append(f"{name}.{key}")
    return [names for names in groups.values() if len(names) > 1]


def _checkpointing(model: Model) -> list[str]:
    """Modules that say they checkpoint their activations; what was recomputed is in ``window``."""
    return [
        name
        for name, module in model.named()
        if class_name(module) == "CheckpointWrapper"
        or getattr(module, "gradient_checkpointing", False) is True
    ]


def _compile(models: list[Model]) -> dict[str, Any]:
    whole = [
        name
        for model in models
        for name, module in model.named()
        if type(module).__name__ == "OptimizedModule"
        or module.__dict__.get("_compiled_call_impl") is not None
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
    ]
    found: dict[str, Any] = {"modules": whole, **counters()}
    inductor = sys.modules.get("torch._inductor.config")
    if inductor is not None:
        found["inductor_cudagraphs"] = bool(inductor.triton.cudagraphs)
    return found


def dtype_name(dtype: Any) -> str:
    """``bfloat16`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


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
