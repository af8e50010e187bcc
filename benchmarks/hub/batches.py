"""A batch for a model of `transformers`, on the meta device, from its signature and configuration."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.hub.inputs import GIVEN, LAYOUTS, Inputs, marked_ids

_RECURRENT = ("jamba", "mamba", "falcon_mamba", "rwkv", "recurrent_gemma", "xlstm", "zamba")
#: What some models take beside text without a configuration of its own.
_BESIDE = {
    "all": (
        "bbox", "pixel_values", "pixel_values_videos", "visual_feats", "visual_pos", "input_features",
        "input_values",
    ),
    "marked": ("mm_token_type_ids", "token_type_ids", "bbox"),
}  # fmt: skip
#: What goes with what else: given where the first is and the forward takes it.
_WITH = {
    "pixel_values": (
        "image_grid_thw", "image_sizes", "pixel_attention_mask", "spatial_shapes", "pixel_position_ids",
        "image_position_ids", "aspect_ratio_ids", "aspect_ratio_mask", "grid_thw", "image_grid_hw",
        "mm_token_type_ids", "qformer_input_ids", "image_attention_mask",
    ),
    "input_features": ("input_features_mask", "feature_attention_mask", "feature_lens"),
    "past_values": (
        "past_time_features", "past_observed_mask", "future_values", "future_time_features",
        "static_categorical_features",
    ),
}  # fmt: skip


def batch_of(
    model: nn.Module, config: Any, *, labels: bool, layout: str, dtype: torch.dtype
) -> dict[str, Any]:
    """Keywords for the model's forward. ``layout``: how pictures and sounds are laid, if there are any."""
    parameters = inspect.signature(model.forward).parameters
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in (2, 4)]
    given = inputs_of(model, config, layout=layout, dtype=dtype)
    main = given.main
    alone = layout in ("text", "marked")
    out = _plain(given, pictures=not alone or not _text(given), labels=labels)
    _give(given, [name for name in needed if name not in out], out)
    for name, others in _WITH.items():
        if name in out:
            _give(given, [other for other in others if other in parameters and other not in out], out)
    beside = _BESIDE.get(layout, ())
    _give(given, [name for name in beside if name in parameters and name not in out], out)
    if not any(isinstance(value, Tensor) for value in out.values()):
        _give(given, [name for name in (main, *parameters) if name in parameters], out)
    return out


def inputs_of(model: nn.Module, config: Any, *, layout: str, dtype: torch.dtype) -> Inputs:
    """What the inputs of a model are made from."""
    main = getattr(model, "main_input_name", "input_ids")
    main = str(main[0] if isinstance(main, list) and main else main)
    names = tuple(inspect.signature(model.forward).parameters)
    return Inputs(model, config, main, names, dtype, layout)


def _give(given: Inputs, names: list[str], out: dict[str, Any]) -> None:
    for name in names:
        value = GIVEN[name](given) if name in GIVEN else None
        if value is not None:
            out[name] = value


def _text(given: Inputs) -> bool:
    return "input_ids" in given.names and (given.main == "input_ids" or given.text is not given.config)


def _plain(given: Inputs, *, pictures: bool, labels: bool) -> dict[str, Any]:
    """What most models take: tokens, a picture or sound, and labels."""
    config, names, main = given.config, given.names, given.main
    longest = getattr(given.text, "max_position_embeddings", None) or 512
    length = min(512, longest if isinstance(longest, int) and longest > 8 else 512)
    length = 64 if config.model_type in _RECURRENT else length
    ids = torch.zeros(4, length, dtype=torch.int64, device="meta")
    out: dict[str, Any] = {}
    if pictures and (main == "pixel_values" or ("pixel_values" in names and given.pictured)):
        out["pixel_values"] = given.pixel_values()
        ids = marked_ids(given, ids[:1].expand(len(given.rows), -1))
    if main == "input_values" or (main == "inputs" and "input_values" in names):
        out["input_values"] = GIVEN["input_values"](given)
    if main == "input_features":
        out["input_features"] = given.input_features()
    if "input_ids" in names and not {"input_values", "input_features"} & out.keys():
        out["input_ids"] = ids
    if "decoder_input_ids" in names:
        out["decoder_input_ids"] = ids[:, : length // 2].contiguous()
    if labels and "labels" in names and "input_ids" in out:
        out["labels"] = out.get("decoder_input_ids", ids)
    elif labels and "labels" in names and "Classification" in type(given.model).__name__:
        out["labels"] = torch.zeros(8, dtype=torch.int64, device="meta")
    if "return_loss" in names and labels:
        out["return_loss"] = True
    if "use_cache" in names:
        out["use_cache"] = False
    return out


__all__ = ["LAYOUTS", "batch_of", "inputs_of"]
