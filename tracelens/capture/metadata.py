"""What a trace must say about its training run: the key ``tracelens`` of the file.

No environment variable, no path, no host name. Every part stands alone: one that cannot be had is an
``error`` in its place, with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tracelens.capture.batch import Batch
from tracelens.capture.compiled import counters
from tracelens.capture.dimensions import infer_dimensions
from tracelens.capture.messages import why
from tracelens.capture.modules import Model, class_name, is_wrapper
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
