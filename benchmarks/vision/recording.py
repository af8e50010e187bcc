"""Builds models of `timm` and `torchvision` and records a training step of each on the meta device."""

# PyTorch's functions that take anything return anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.hub.recording import Recorded, recorded
from benchmarks.vision.truth import Truth
from tests.kept import kept, of_package, sources

_BATCH = 4
#: Fewer blocks, tried in this order: as the constructor takes them.
_SHALLOW: tuple[dict[str, Any], ...] = (
    {"depth": 4},
    {"depths": (2, 2, 3, 2)},
    {"depths": (2, 2, 2)},
    {"layers": (2, 2, 3, 2)},
    {},
)


def record_vision(name: str) -> Recorded:
    """A recording of the model ``name`` of timm, or ``torchvision/name``, made once and kept."""
    made = f"{of_package('torch')} {of_package('timm')} {of_package('torchvision')} "
    made += sources("tests/zoo", "tests/synthetic", "benchmarks/hub", "benchmarks/vision")
    return kept("vision", name, made, lambda: _recorded(name))


def build(name: str) -> nn.Module:
    """The model in bf16 and training, on the meta device: as wide as its library says, a few blocks deep."""
    library, _, own = name.rpartition("/")
    if library == "torchvision":
        model = getattr(import_module("torchvision.models"), own)(weights=None)
    else:
        model = _shallow(own)
    return model.to(torch.bfloat16).to("meta").train()


def _shallow(name: str) -> nn.Module:
    for fewer in _SHALLOW:
        try:
            return import_module("timm").create_model(name, **fewer)
        except (TypeError, AssertionError, IndexError, ValueError, RuntimeError, AttributeError, KeyError):
            if not fewer:
                raise
    raise AssertionError


def _recorded(name: str) -> Recorded:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(name)
        size = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
        picture = torch.zeros(_BATCH, *size, dtype=torch.bfloat16, device="meta")
        labels = torch.zeros(_BATCH, dtype=torch.int64, device="meta")
        return recorded(name, model, lambda: _loss(model(picture), labels), Truth())


def _loss(out: Any, labels: Tensor) -> Tensor:
    """Cross entropy of the first classes that come out, or the mean of what does."""
    found = out if isinstance(out, Tensor) else next(t for t in out if isinstance(t, Tensor))
    if found.dim() == 2:
        return nn.functional.cross_entropy(found.float(), labels)
    return found.float().mean()
