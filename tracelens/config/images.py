"""Vision transformers: tokens are patches of an image, and no vocabulary stands at either end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tracelens.config import words
from tracelens.config.configuration import Draft, whole
from tracelens.config.families import ModelFamily
from tracelens.errors import InputError, UsageError


def patched(
    draft: Draft, table: Mapping[str, object], family: ModelFamily, given: Mapping[str, int]
) -> ModelFamily:
    """Sets the sequence and the MLP's width; the family as its gate is in this file.

    Raises InputError where neither patches nor their number are said, UsageError for a vocabulary.
    """
    if "vocab" in given:
        raise UsageError(f"{family.title} has patches of images, and no vocabulary")
    draft.values.pop("vocab", None)
    if "sequence" not in given:
        _sequence(draft, table, family.patches or 0)
    draft.notes.append(words.NO_PATCHES_COUNTED)
    if family.bias:  # where the file asks for one
        asked = table.get("use_relative_position_bias") or table.get("use_shared_relative_position_bias")
        family = replace(family, bias=bool(asked))
    if draft.take("ffn", table, ("intermediate_size",)):
        return replace(family, gated=bool(table.get("use_gated_mlp", family.gated)))
    factor = whole(table.get("mlp_ratio", 4), "mlp_ratio", draft.name)
    width = factor * draft.values.get("hidden", 0)
    if not table.get("use_swiglu_ffn"):
        draft.put("ffn", width, f"{factor} * hidden", key="mlp_ratio")
        draft.fixed["ffn"] = words.no_width_key(family.title)
        return family
    draft.put("ffn", (2 * width // 3 + 7) // 8 * 8, words.TWO_THIRDS)  # modeling_dinov2.py, Dinov2SwiGLUFFN
    draft.fixed["ffn"] = words.no_width_key(family.title)
    return replace(family, gated=True, fused_gate=True)


def _sequence(draft: Draft, table: Mapping[str, object], beside: int) -> None:
    """Patches of an image, and the tokens beside them: of its class, and registers."""
    beside += whole(table.get("num_register_tokens") or 0, "num_register_tokens", draft.name)
    if table.get("num_patches") is not None:
        patches, key = whole(table["num_patches"], "num_patches", draft.name), "num_patches"
    else:
        key = "image_size, patch_size"
        sides = [_sides(table.get(name), name, draft.name) for name in ("image_size", "patch_size")]
        (high, wide), (down, across) = sides
        if not (0 < down <= high and 0 < across <= wide):
            raise InputError(f"{draft.name}: patches of {down} do not cut an image of {high}")
        patches = (high // down) * (wide // across)
    draft.put("sequence", patches + beside, f"{draft.name}: {key}")


def _sides(found: object, key: str, name: str) -> tuple[int, int]:
    if found is None:
        raise InputError(f"{name} does not say {key}: give --sequence N")
    high, wide = found if isinstance(found, list) and len(found) == 2 else (found, found)
    return whole(high, key, name), whole(wide, key, name)
