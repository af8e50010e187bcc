"""Sizes of a row that M, N and K do not hold, read once from the note that a report keeps of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, cast

#: "b=8 h=12 kv=4 s=1024 d=64", "sq=1 sk=4096" where lengths differ, "packed tokens=32768", "dv=64".
_SIZE = re.compile(r"(?<![a-z])(b|h|kv|s|sq|sk|d|dv|tokens)=(\d{1,12})(?![\w.])")
#: What AttentionShape.describe says of a tensor added to the scores.
_MASK = re.compile(r" (mask\??|bias)$")
_GROUPS = re.compile(r"(\d+) groups, ([mnk]) is their total$")


@dataclass(frozen=True, slots=True)
class AttentionNoted:
    """What a row says of its attention calls; None = it does not say."""

    batch: int | None
    heads: int | None
    kv_heads: int | None
    seq_q: int | None
    seq_k: int | None
    head_dim: int | None
    value_dim: int | None  # where it is not the head dimension
    tokens: int | None  # of sequences packed behind one another
    mask: str | None = None  # added to the scores: "mask" of all heads, "bias" for each, "mask?" one of them

    @property
    def heads_of_all(self) -> tuple[int, int, int] | None:
        """Heads, key/value heads and head dimension, where all are known."""
        if self.heads is None or self.kv_heads is None or self.head_dim is None:
            return None
        return self.heads, self.kv_heads, self.head_dim


class Groups(NamedTuple):
    """Groups of unequal size in one call: the dimension that is their total, and how many there are."""

    axis: Literal["m", "n", "k"]
    number: int


@lru_cache(maxsize=4096)
def attention_noted(note: str | None) -> AttentionNoted | None:
    """The sizes in the note of an attention row; None where there are none.

    >>> attention_noted("b=8 h=12 s=1024 d=64").heads_of_all
    (12, 12, 64)
    >>> attention_noted("inputs not recorded")
    """
    found = {name: int(size) for name, size in _SIZE.findall(note or "")}
    if not found:
        return None
    heads, length = found.get("h"), found.get("s")
    return AttentionNoted(
        batch=found.get("b"),
        heads=heads,
        kv_heads=found.get("kv", heads),
        seq_q=found.get("sq", length),
        seq_k=found.get("sk", length),
        head_dim=found.get("d"),
        value_dim=found.get("dv"),
        tokens=found.get("tokens"),
        mask=masked[1] if (masked := _MASK.search(note or "")) else None,
    )


@lru_cache(maxsize=4096)
def groups_noted(note: str | None) -> Groups | None:
    """The groups in the note of a GEMM row.

    >>> groups_noted("8 groups, m is their total")
    Groups(axis='m', number=8)
    """
    found = _GROUPS.match(note or "")
    return Groups(cast(Literal["m", "n", "k"], found[2]), int(found[1])) if found else None
