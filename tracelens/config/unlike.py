"""Why a config.json is not read as a stack of layers: by its type, and by keys that other models have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.config import words
from tracelens.config.families import NOT_MODELLED, ModelFamily

#: Kinds of ``layer_types`` that are attention and an MLP.
_LAYER_KINDS = ("attention", "full_attention", "sliding_attention", "chunked_attention")
#: What only such models have: a key, or several that stand together -> what they are. The first counts.
_OF_A_MODEL: tuple[tuple[tuple[str, ...], str], ...] = (
    (("logit_scale_init_value",), words.TOWERS),
    (("temperature_init_value",), words.TOWERS),
    (("num_queries", "backbone_config"), words.OBJECTS),
    (("mask_decoder_config",), words.OBJECTS),
)
_OF_LAYERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("hybrid_override_pattern",), words.STATE_SPACE),
    (("linear_num_value_heads",), words.DELTA),
    (("block_configs",), words.LAYERS_DIFFER),
    (("hidden_size_per_layer_input",), words.SIZES_BY_LAYER),
    (("d_latents",), words.LATENT_VECTORS),
    (("resampler_n_latents",), words.LATENT_VECTORS),
    (("cross_attention_frequency",), words.LATENT_VECTORS),
    (("prediction_length", "context_length"), words.SERIES),
    (("horizon_length",), words.SERIES),
    (("num_codebooks",), words.CODEBOOKS),
    (("codebook_size",), words.CODEBOOKS),
    (("conv_dim", "conv_stride"), words.SOUND),
    (("num_mel_bins",), words.SOUND),
    (("input_feat_per_channel",), words.SOUND),
    (("sampling_rate",), words.SOUND),
)
#: Instead of a list of numbers a plain transformer has one.
_STAGED = ("depths", "hidden_sizes", "embed_dims", "encoder_hidden_sizes", "block_out_channels", "num_heads")
_OF_PICTURES = ("_vision", "_vision_model", "_vision_encoder", "_image_model")
_PICTURES = ("patch_size", "image_size", "num_channels", "in_channels", "pixel_embed_dim")


def unlike(table: Mapping[str, Any], known: ModelFamily | None) -> str | None:
    """What a language model's part of a file has that GEMMs of plain layers do not hold; None where nothing.

    ``known`` families are built as their type says: of those only keys that change any family count.
    """
    kinds = table.get("layer_types") or table.get("layers_block_type")
    others = {str(kind) for kind in kinds} - set(_LAYER_KINDS) if isinstance(kinds, list) else set()
    if "mamba" in others or (known is not None and known.hybrid and (others or not kinds)):
        return words.STATE_SPACE
    if others:
        return words.layers_of_kind(min(others)[:40])
    if any(table[key] for key in table if key.startswith("index_topk")):
        return words.INDEXED
    if table.get("attn_output_gate") or table.get("use_gated_attention"):
        return words.ATTENTION_GATE
    if table.get("kv_lora_rank") and not (known and known.latent):
        return words.LATENT_BY_KEY
    embedded = table.get("word_embed_proj_dim")
    if embedded not in (None, table.get("hidden_size")):
        return words.FACTORED
    return None if known is not None else _by_keys(table)


def whole_unlike(table: Mapping[str, Any]) -> str | None:
    """The same of a whole file with several parts, none of which speaks for the rest."""
    kind = str(table.get("model_type"))
    return NOT_MODELLED.get(kind) or NOT_MODELLED.get(kind.removesuffix("_text")) or _has(table, _OF_A_MODEL)


def _by_keys(table: Mapping[str, Any]) -> str | None:
    """What a family that is not known has."""
    if any(isinstance(table.get(key), list) for key in _STAGED):
        return words.STAGES
    if any(key.startswith(("mamba_", "ssm_")) for key in table):
        return words.STATE_SPACE
    if table.get("is_encoder_decoder") is True:
        return words.ENCODER_DECODER
    if found := _has(table, _OF_LAYERS):
        return found
    seen = "vocab_size" not in table and any(key in table for key in _PICTURES)
    return words.IMAGES if seen or str(table.get("model_type")).endswith(_OF_PICTURES) else None


def _has(table: Mapping[str, Any], known: tuple[tuple[tuple[str, ...], str], ...]) -> str | None:
    return next((what for keys, what in known if all(table.get(key) is not None for key in keys)), None)
