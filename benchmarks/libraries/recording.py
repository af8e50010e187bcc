"""Records a training step of a model of six libraries on the meta device, as ``benchmarks.hub`` does.

Recorded with litgpt 0.5.13, torchtune 0.6.1, x-transformers 2.31.10, open_clip_torch 3.3.0, vit-pytorch
1.26.11 and diffusers 0.42.1, installed without what they need; imports ask for timm, torchvision, einops,
einx, torch-einops-utils, loguru, ftfy, wcwidth, frozendict, torchao 0.10, datasets, torchdata and tokenizers.
"""

# PyTorch's functions that take anything return anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.hub.recording import Marks, Recorded, recorded
from benchmarks.hub.values import _unseen, held
from benchmarks.libraries import models, truth
from benchmarks.libraries.lists import LISTS
from benchmarks.libraries.models import EXPERTS
from benchmarks.libraries.workloads import made
from tests.kept import kept, of_package, sources

_PACKAGES = {
    "aurora": "microsoft-aurora",
    "whisper": "openai-whisper",
    "esm": "fair-esm",
    "clip": "clip-anytorch",
    "olmo_core": "ai2-olmo-core",
    "onmt": "OpenNMT-py",
    "open_clip": "open_clip_torch",
    "vit_pytorch": "vit-pytorch",
    "x_transformers": "x-transformers",
}


class LibraryMarks(Marks):
    """Marks that see into PyTorch's own attention module, and take fused attention by keyword."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            with mock.patch.object(functional, "has_torch_function", lambda _: False), self:
                return func(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            args = (*args, *(kwargs.pop(key) for key in ("query", "key", "value") if key in kwargs))
        # up to a number that only a device could tell
        if name == "__getitem__" and isinstance(args[1], tuple):
            args = (args[0], tuple(slice(1) if _unknown(at) else at for at in args[1]))
        repeats = held(args[1]) if name == "repeat_interleave" and len(args) > 1 else None
        if repeats is not None:
            with _unseen():
                kwargs["output_size"] = int(repeats.sum())
        return super().__torch_function__(func, types, args, kwargs)


def _unknown(at: Any) -> bool:
    return isinstance(at, slice) and isinstance(at.stop, Tensor)


def record_library(name: str) -> Recorded:
    """A recording of ``LIBRARY/NAME``, made once and kept."""
    package = name.partition("/")[0]
    made_of = f"{of_package('torch')} {of_package(_PACKAGES.get(package, package))} "
    parts = (
        "recording",
        "models",
        "truth",
        "more_truth",
        *(x.__name__.rpartition(".")[2] for x in _home(name)),
    )
    made_of += sources(
        "tests/zoo", "tests/synthetic", "benchmarks/hub", *(f"benchmarks/libraries/{x}.py" for x in parts)
    )
    return kept("libraries", name, made_of, lambda: _recorded(name))


@contextmanager
def answered(name: str) -> Iterator[None]:
    """What a meta device cannot do: know which tokens go to an expert, and run without autocast."""

    def chosen(mask: Tensor) -> Tensor:
        return mask.new_empty(mask.numel() // EXPERTS, mask.dim(), dtype=torch.int64)

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if name.startswith("x_transformers"):
            home = import_module("x_transformers.x_transformers")
            stack.enter_context(mock.patch.object(home, "autocast", lambda *_, **__: nullcontext()))
        if name.startswith(("diffusers", "olmo_core")):
            stack.enter_context(mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext()))
        library = stack.enter_context(torch.library._scoped_library("aten", "IMPL"))
        library.impl("nonzero", chosen, "Meta", allow_override=True)
        library.impl("masked_select", lambda x, mask: x.new_empty(x.numel()), "Meta", allow_override=True)
        yield


def _home(name: str) -> tuple[Any, Any]:
    """What builds it, and its truth."""
    return next((x for x in LISTS if name in x[0].NAMES), (models, truth))


def _recorded(name: str) -> Recorded:
    home, table = _home(name)
    with answered(name):
        built = home.build(name) if hasattr(home, "build") else made(name, home)
        return recorded(name, built.model, built.loss, table.truth_of, LibraryMarks)
