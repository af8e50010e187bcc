"""Which classes of `transformers` an architecture is built as."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

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
    for made in sorted(_own(transformers, type(config)), key=_rank):
        yield made._from_config


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
