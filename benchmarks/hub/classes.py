"""Which classes of `transformers` an architecture is built as."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, cast

import torch
from torch import nn

_TASKS = (
    "CausalLM", "Seq2SeqLM", "MaskedLM", "ZeroShotImageClassification", "ImageClassification",
    "ObjectDetection", "CTC", "SpeechSeq2Seq", "ImageTextToText",
)  # fmt: skip

Make = Callable[..., nn.Module]


def makers(config: Any, task: str | None) -> Iterator[Make]:
    """What makes a model of a configuration, likeliest first: a task, the bare model, its module's others.

    Parts of models have configurations that no task knows: the class of the same module that is made for the
    configuration is theirs.
    """
    transformers = import_module("transformers")
    autos = [] if task == "" else [f"AutoModelFor{kind}" for kind in ([task] if task else _TASKS)]
    known = [getattr(transformers, auto) for auto in autos]
    yield from [auto.from_config for auto in known if type(config) in auto._model_mapping][:1]
    if type(config) in transformers.AutoModel._model_mapping:
        yield transformers.AutoModel.from_config
    own = sorted(_own(transformers, type(config)), key=_rank)
    yield from (made._from_config for made in own)
    if not own and type(config) not in transformers.AutoModel._model_mapping:
        yield from (partial(_plain, part) for part in _parts(type(config)))


def _parts(config: type) -> list[Any]:
    """Parts that are plain modules, or models of another file: what is called after the configuration."""
    package = import_module(config.__module__.rpartition(".")[0])
    short = config.__name__.removesuffix("Config")
    files = [name for _, name, _ in iter_modules(package.__path__) if name.startswith(("modeling", "vision"))]
    found = []
    for file in files:
        module = import_module(f"{package.__name__}.{file}")
        for made in vars(module).values():
            own = inspect.isclass(made) and issubclass(made, nn.Module) and made.__module__ == module.__name__
            if own and made.__name__ in (short, f"{short}Model", f"{short}Transformer"):
                found.append(made)
    return found


def _plain(made: Any, config: Any, *, dtype: torch.dtype, attn_implementation: str) -> nn.Module:
    config._attn_implementation = attn_implementation
    torch.set_default_dtype(dtype)  # who asks for the model sets it back
    return cast("nn.Module", made(config))


def _own(transformers: Any, config: type) -> list[Any]:
    try:
        module = import_module(config.__module__.replace(".configuration_", ".modeling_"))
    except ImportError:
        return []
    return [
        made
        for made in vars(module).values()
        if inspect.isclass(made)
        and made.__module__ == module.__name__
        and issubclass(made, transformers.PreTrainedModel)
        and getattr(made, "config_class", None) is config
        and getattr(made, "forward", None) is not nn.Module.forward
    ]


def _rank(made: Any) -> tuple[bool, bool, bool]:
    """Models of a task, then models, then parts."""
    name = made.__name__
    return ("Head" in name, "For" not in name, "Model" not in name)
