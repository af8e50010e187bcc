"""Builds models of `transformers` from their own configurations, on the meta device, and a batch for each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.hub.asked import asked_of
from benchmarks.hub.batches import LAYOUTS, batch_of, inputs_of
from benchmarks.hub.classes import Make, makers
from benchmarks.hub.configs import FIRST, config_of

#: architecture: (task, overrides of its configuration)
SPECIAL: dict[str, tuple[str | None, dict[str, Any]]] = {
    "bamba": ("CausalLM", {"attn_layer_indices": [5, 11]}),
    "esm": ("MaskedLM", {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}),
    "clip": ("", {}),
    "siglip": ("", {}),
    "altclip": ("", {}),
    **{
        name: (None, {"prediction_length": 24})
        for name in ("informer", "autoformer", "time_series_transformer")
    },
}
#: architecture: overrides of its configuration; what its defaults lack
OVERRIDES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("overrides.toml").read_text())
#: How a model is made, after one another.
_MODELS: tuple[tuple[torch.dtype, tuple[str, ...]], ...] = (
    (torch.bfloat16, ("sdpa", "eager")),
    (torch.float32, ("sdpa", "eager")),
    (torch.bfloat16, ("eager",)),
)
#: What of layouts is tried once more where a model is made in another way.
_FEW = ("usual", "text")
Built = tuple[nn.Module, dict[str, Any]]


def build(name: str) -> Built:
    """The model, in bf16 and training, and the keywords of its forward, in the first way there is."""
    return next(ways(name))


def ways(name: str) -> Iterator[Built]:
    """Ways to build an architecture, the likeliest first: not every model takes a step in each.

    Of each class that can be made: all that it takes, its pictures and sounds in one layout after the other;
    no labels (a loss may count what they hold); its text alone (pictures may be cut by what they show).
    Last in float32, where a part knows nothing else, and with attention written out.
    """
    wrong: Exception | None = None
    for part in (False, True):
        made = 0
        for model, batch in _ways(name, part=part):
            if isinstance(batch, Exception):
                wrong = wrong or batch
                continue
            made += 1
            yield model, batch
        if made:
            return
    raise wrong or LookupError("no model is made for the configuration")


def _ways(name: str, *, part: bool) -> Iterator[tuple[Any, Any]]:
    """A model and a batch, or None and what its library says of a configuration that it cannot make."""
    bare = name.partition("?")[0]
    task, over = SPECIAL.get(bare, (None, OVERRIDES.get(bare, {})))
    try:
        count = len(list(makers(config_of(name, over, part=part), task)))
    except Exception as error:
        yield None, error
        return
    for at, made in product(range(min(count, 3)), _MODELS):
        dtype, attentions = made
        try:
            config = config_of(name, over, part=part)
            model = _made(next(islice(makers(config, task), at, None)), config, dtype, attentions)
            model.train()
            if bare not in FIRST:
                model.to("meta")  # a parameter made by torch.Tensor(sizes) heeds no default device
            asked = asked_of(bare, inputs_of(model, config, layout="usual", dtype=dtype))
            layouts = LAYOUTS if made == _MODELS[0] else _FEW
            batches = [asked] if asked is not None else list(_batches(model, config, dtype, layouts))
        except Exception as error:
            yield None, error
            continue
        yield from ((model, batch) for batch in batches)


def _batches(
    model: nn.Module, config: Any, dtype: torch.dtype, layouts: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Batches that differ."""
    seen: list[str] = []
    for layout, labels in product(layouts, (True, False)):
        try:
            batch = batch_of(model, config, layout=layout, labels=labels, dtype=dtype)
        except Exception:
            if not seen:  # the likeliest batch is to be known by its error
                raise
            continue
        text = repr(
            {key: value.shape if isinstance(value, Tensor) else value for key, value in batch.items()}
        )
        if text not in seen:
            seen.append(text)
            yield batch


def _no_numbers(
    mean: Any = 0.0, std: Any = 1.0, size: Any = (), *, generator: Any = None, **of: Any
) -> Tensor:
    """torch.normal, which writes numbers where the meta device has no room for them."""
    return torch.empty_like(mean) if isinstance(mean, Tensor) else torch.empty(size, **of)


def _made(make: Make, config: Any, dtype: torch.dtype, attentions: tuple[str, ...]) -> nn.Module:
    before = torch.get_default_dtype()
    for attention in attentions:
        try:
            with torch.device("meta"), patch("torch.normal", _no_numbers):
                return make(config, dtype=dtype, attn_implementation=attention)
        except (ValueError, ImportError):
            if attention == attentions[-1]:
                raise
        finally:
            torch.set_default_dtype(before)
    raise AssertionError


def first_loss(out: Any) -> Tensor:
    """The model's own loss, or the mean of the first result that has a gradient."""
    loss = getattr(out, "loss", None)
    if isinstance(loss, Tensor) and loss.requires_grad:
        return loss
    for tensor in _results(out):
        if tensor.requires_grad:
            return tensor.float().mean()
    raise ValueError("no result has a gradient")


def _results(out: Any) -> Iterator[Tensor]:
    """The tensors of an output, those of outputs inside it after its own."""
    if isinstance(out, Tensor):
        yield out
        return
    items = out.to_tuple() if hasattr(out, "to_tuple") else out
    items = list(items.values()) if isinstance(items, dict) else items
    if not isinstance(items, (list, tuple)):
        return
    yield from (item for item in items if isinstance(item, Tensor))
    for item in items:
        if not isinstance(item, Tensor):
            yield from _results(item)
