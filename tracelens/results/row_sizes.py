"""Sizes of a row that M, N and K do not hold: those of attention, and groups of unequal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tracelens.results.described import says

#: What a tensor added to the scores is: the same for all heads, another for each head, or not known which.
AttentionMask = Literal["mask", "bias", "mask?"]


@dataclass(frozen=True, slots=True)
class AttentionDims:
    """What a row says of its attention calls; None = it does not say."""

    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq_q: int | None = None
    seq_k: int | None = None
    head_dim: int | None = None
    value_dim: Annotated[int | None, says("where it is not the head dimension")] = None
    tokens: Annotated[int | None, says("of sequences packed behind one another")] = None
    key_tokens: Annotated[int | None, says("where they are not as many")] = None
    window: Annotated[int | None, says("sliding: earlier keys that a query sees")] = None
    mask: Annotated[
        AttentionMask | None,
        says('a tensor added to the scores: "mask" of all heads, "bias" for each, "mask?" one of them'),
    ] = None

    @property
    def heads_of_all(self) -> tuple[int, int, int] | None:
        """Heads, key/value heads and head dimension, where all are known."""
        if self.heads is None or self.kv_heads is None or self.head_dim is None:
            return None
        return self.heads, self.kv_heads, self.head_dim


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of unequal size in one call."""

    axis: Annotated[Literal["m", "n", "k"], says("the dimension that is their total")]
    number: int
