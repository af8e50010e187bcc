"""Builds models of `transformers` from their own configurations, on the meta device, and a batch for each."""

from __future__ import annotations

import inspect
import json
import re
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

_DEPTHS = re.compile(r"(num_|n_)?(hidden_|encoder_|decoder_|text_)?(layers?|blocks)")
#: Periods of unlike layers: as many layers as hold all kinds.
_LAYERS = {"jamba": 8, "bamba": 12, "zamba2": 12, "zamba": 12, "nemotron_h": 12, "granitemoehybrid": 8}
_TASKS = (
    "CausalLM", "Seq2SeqLM", "MaskedLM", "ZeroShotImageClassification", "ImageClassification",
    "ObjectDetection", "CTC", "SpeechSeq2Seq", "ImageTextToText",
)  # fmt: skip
#: No choice by chance: it needs numbers, which the meta device has not.
_PLAINLY = {"apply_spec_augment": False, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0}
_PLAINLY |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
#: architecture: (task, overrides of its configuration)
SPECIAL: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": ("CausalLM", {"attn_layer_indices": [5, 11]}),
    "esm": ("MaskedLM", {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}),
    "clip": ("", {}),
    "siglip": ("", {}),
    "altclip": ("", {}),
}


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model, in bf16 and training, and the keywords of its forward.

    ``name`` is an architecture, with what its configuration is to say otherwise: ``llama?mlp_bias=true&...``.
    """
    transformers = import_module("transformers")
    name, _, otherwise = name.partition("?")
    task, over = SPECIAL.get(name, (None, {}))
    said = (setting.partition("=") for setting in otherwise.split("&") if setting)
    config = transformers.AutoConfig.for_model(
        name, **over, **{key: json.loads(text) for key, _, text in said}
    )
    _shallow(config, _LAYERS.get(name, 4))
    for key, value in _PLAINLY.items():
        if hasattr(config, key):
            setattr(config, key, value)
    auto = _auto(transformers, config, task)
    before = torch.get_default_dtype()
    model = None
    for attention in ("sdpa", "eager"):
        try:
            with torch.device("meta"):
                model = auto.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
            break
        except (ValueError, ImportError):
            if attention == "eager":
                raise
        finally:
            torch.set_default_dtype(before)
    assert model is not None
    model.train()
    return model, _batch(model, config)


def _shallow(config: Any, layers: int) -> None:
    """Cut the configuration, and those inside it, to ``layers`` layers."""
    if getattr(config, "num_key_value_heads", 0) is None:
        config.num_key_value_heads = config.num_attention_heads
    if getattr(config, "head_dim", 0) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    was = {
        key: value
        for key, value in config.__dict__.items()
        if isinstance(value, int) and _DEPTHS.fullmatch(key)
    }
    for key, value in was.items():
        setattr(config, key, min(value, layers))
    for key, value in list(config.__dict__.items()):
        if isinstance(value, list) and len(value) in was.values() and len(value) > layers:
            setattr(config, key, value[:layers])
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shallow(value, layers)


def _auto(transformers: Any, config: Any, task: str | None) -> Any:
    if task == "":
        return transformers.AutoModel
    for kind in [task] if task else _TASKS:
        auto = getattr(transformers, f"AutoModelFor{kind}")
        if type(config) in auto._model_mapping:
            return auto
    return transformers.AutoModel


def _batch(model: nn.Module, config: Any) -> dict[str, Tensor]:
    """Keywords for the model's forward, on the meta device."""
    names = inspect.signature(model.forward).parameters
    text, vision = (getattr(config, key, None) or config for key in ("text_config", "vision_config"))
    loops = config.model_type in ("jamba", "mamba", "falcon_mamba", "rwkv", "recurrent_gemma", "xlstm")
    longest = getattr(text, "max_position_embeddings", None) or 512
    length = 64 if loops else min(512, longest if isinstance(longest, int) and longest > 8 else 512)
    ids = torch.zeros(4, length, dtype=torch.int64, device="meta")
    out: dict[str, Any] = {}
    main = str(getattr(model, "main_input_name", "input_ids"))
    if main == "pixel_values" or ("pixel_values" in names and "vision_config" in config.__dict__):
        size = getattr(vision, "image_size", 224) or 224
        size = (
            (size, size)
            if isinstance(size, int)
            else tuple(size.values())
            if isinstance(size, dict)
            else size
        )
        channels = getattr(vision, "num_channels", 3)
        out["pixel_values"] = torch.zeros(8, channels, *size, dtype=torch.bfloat16, device="meta")
        ids = ids[:1].expand(8, -1)
    if main == "input_values":
        out["input_values"] = torch.zeros(4, 64000, dtype=torch.bfloat16, device="meta")
    if main == "input_features":
        width: Any = getattr(config, "num_mel_bins", None)
        width = width or getattr(config, "feature_projection_input_dim", 80)
        shape = (4, width, 3000) if "whisper" in config.model_type else (4, 600, width)
        out["input_features"] = torch.zeros(shape, dtype=torch.bfloat16, device="meta")
    if "input_ids" in names and not {"input_values", "input_features"} & out.keys():
        out["input_ids"] = ids
    if "decoder_input_ids" in names:
        out["decoder_input_ids"] = ids[:, : length // 2].contiguous()
    if "labels" in names and "input_ids" in out:
        out["labels"] = out.get("decoder_input_ids", ids)
    elif "labels" in names and "Classification" in type(model).__name__:
        out["labels"] = torch.zeros(8, dtype=torch.int64, device="meta")
    if "return_loss" in names:
        out["return_loss"] = True
    if "use_cache" in names:
        out["use_cache"] = False
    return out


def first_loss(out: Any) -> Tensor:
    """The model's own loss, or the mean of the first result that has a gradient."""
    loss = getattr(out, "loss", None)
    if isinstance(loss, Tensor) and loss.requires_grad:
        return loss
    found = [t for t in out.to_tuple() if isinstance(t, Tensor) and t.requires_grad]
    return found[0].float().mean()
