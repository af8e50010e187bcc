"""Latent attention (MLA, arXiv 2405.04434): queries, keys and values are made from short vectors."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.config import words
from tracelens.config.configuration import Draft, Given, whole
from tracelens.config.model_config import Latent
from tracelens.errors import InputError, UsageError

#: Keys of the vector's width, of a head's plain and turned parts and of its value.
HUGGINGFACE = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
MEGATRON = ("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
_WIDEST = 2**14


def take_latent(
    draft: Draft, table: Mapping[str, object], given: Given, *, names: tuple[str, ...] = HUGGINGFACE
) -> None:
    """Set the widths of latent attention and ``head_dim``, and keep the search off the heads.

    Raises InputError where one is missing, and UsageError where the user gives what follows from them.
    """
    follows = f"{names[1]} + {names[2]}"
    if asked := {"head_dim", "kv_heads"} & given.sizes.keys():
        raise UsageError(f"{min(asked)} follows from {follows} and the heads in latent attention")
    missing = [key for key in names if table.get(key) is None]
    if missing:
        raise InputError(f"{draft.name} does not say how wide its latent attention is ({missing[0]})")
    keys, plain, turned, value = (_width(table[key], key, draft.name) for key in names)
    rank = table.get("q_lora_rank")
    draft.put("head_dim", plain + turned, follows, key=names[1])
    for name in ("heads", "kv_heads", "head_dim"):
        draft.fixed[name] = words.LATENT_FOLLOWS
    queries = None if rank is None else _width(rank, "q_lora_rank", draft.name)
    draft.latent = Latent(keys, queries, plain, turned, value)


def _width(found: object, key: str, name: str) -> int:
    width = whole(found, key, name)
    if not 0 < width < _WIDEST:
        raise InputError(f"{name}: {key} = {width} is not a size a model can have")
    return width
