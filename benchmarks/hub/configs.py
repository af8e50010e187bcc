"""Configurations of `transformers`, cut to a few layers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

_DEPTHS = re.compile(r"(num_|n_)?(hidden_|encoder_|decoder_|text_)?(layers?|blocks)")
#: Periods of unlike layers: as many layers as hold all kinds.
_LAYERS = {"jamba": 8, "bamba": 12, "zamba2": 12, "zamba": 12, "nemotron_h": 12, "granitemoehybrid": 8}
#: A kind that no layer up to here is of is left out.
_LONGEST = 12
#: No choice by chance: it needs numbers, which the meta device has not.
_PLAINLY = {"apply_spec_augment": False, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0}
_PLAINLY |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
#: Architectures of the first lists stay as they were cut: four layers even where that is no whole period.
FIRST = frozenset(
    name.partition("?")[0]
    for path in ("hub/names.txt", "fresh/hub.txt", "fresh/hub_2.txt")
    for name in Path(__file__).parents[1].joinpath(path).read_text().split()
)


def config_of(name: str, over: dict[str, Any], *, part: bool = False) -> Any:
    """The configuration of an architecture, with what ``name`` says otherwise: ``llama?mlp_bias=true&...``.

    ``part``: as the configuration of a whole model holds it, which may set what it leaves open.
    """
    name, _, otherwise = name.partition("?")
    said = (setting.partition("=") for setting in otherwise.split("&") if setting)
    config = import_module("transformers").AutoConfig.for_model(
        name, **deepcopy(over), **{key: json.loads(text) for key, _, text in said}
    )
    config = _held_by_another(config) if part else config
    _shallow(config, _LAYERS.get(name, 4), whole=name not in FIRST)
    if name not in FIRST:
        _joined(config)
        _ours(config)
    for each in [config] if name in FIRST else inside(config):
        for key, value in _PLAINLY.items():
            if hasattr(each, key):
                setattr(each, key, value)
    return config


def _shallow(config: Any, layers: int, *, whole: bool) -> None:
    """Cut the configuration, and those inside it, to ``layers`` layers; ``whole``: to a period at least."""
    _heads(config)
    was = {
        key: value
        for key, value in config.__dict__.items()
        if isinstance(value, int) and _DEPTHS.fullmatch(key)
    }
    lists = [v for v in config.__dict__.values() if isinstance(v, list) and len(v) in was.values()]
    if whole:
        layers = max([layers, *(_period(kinds) for kinds in lists)])
    for key, value in was.items():
        setattr(config, key, min(value, layers))
    if whole and getattr(config, "num_kv_shared_layers", 0) in range(layers, 1000):
        config.num_kv_shared_layers = 0  # none is left to take keys and values from
    for key, value in list(config.__dict__.items()):
        if isinstance(value, list) and len(value) in was.values() and len(value) > layers:
            setattr(config, key, value[:layers])
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shallow(value, layers if not whole else 4, whole=whole)


def _joined(config: Any) -> None:
    """Parts of one width: what a library fills in for pictures may be of another model than its text."""
    text, vision = (getattr(config, key, None) for key in ("text_config", "vision_config"))
    width = getattr(text, "hidden_size", None)
    if vision is not None and isinstance(width, int) and getattr(vision, "out_hidden_size", None):
        vision.out_hidden_size = width


def _ours(config: Any) -> None:
    """A backbone of this library where another library would be asked for one."""
    backbone = getattr(config, "backbone_config", None)
    if getattr(backbone, "model_type", "") == "timm_backbone":
        resnet = import_module("transformers").ResNetConfig
        config.backbone_config = resnet(out_features=["stage2", "stage3", "stage4"][-_maps(backbone) :])


def _maps(backbone: Any) -> int:
    """How many maps of features a backbone is asked for."""
    return min(3, len(getattr(backbone, "out_indices", None) or [4]))


def _held_by_another(config: Any) -> Any:
    for whole in vars(import_module(type(config).__module__)).values():
        for key, kind in (getattr(whole, "sub_configs", None) or {}).items():
            if kind is type(config) and getattr(whole(), key) is not None:
                return getattr(whole(), key)
    raise LookupError("no configuration holds this one")


def _heads(config: Any) -> None:
    """What is left to be worked out from the heads. Some say it for each layer: then nothing is left."""
    try:
        heads = getattr(config, "num_attention_heads", None)
        if getattr(config, "num_key_value_heads", 0) is None and heads:
            config.num_key_value_heads = heads
        if getattr(config, "head_dim", 0) is None and heads:
            config.head_dim = config.hidden_size // heads
    except (AttributeError, RuntimeError):
        return


def _period(kinds: list[Any]) -> int:
    """As many layers as hold every kind."""
    try:
        every = set(kinds[:_LONGEST])
    except TypeError:  # lists of lists say something else
        return 0
    if len(every) > 4:
        return 0
    return next(n for n in range(len(kinds) + 1) if set(kinds[:n]) == every)


def inside(config: Any) -> Iterator[Any]:
    """The configuration and those inside it."""
    yield config
    for value in config.__dict__.values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from inside(value)
