"""Sizes of a model of the zoo, and the choices that change its operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["flash", "efficient", "math"]
Checkpoint = Literal["none", "reentrant", "nonreentrant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """True dimensions of a model, whole (not per tensor-parallel rank); None where a word does not apply.

    ``ffn`` of a mixture of experts is that of one expert; ``head_dim`` is that of queries and keys.
    """

    hidden: int
    heads: int
    head_dim: int
    ffn: int
    layers: int
    sequence: int
    micro_batch: int
    kv_heads: int | None = None
    vocab: int | None = None
    experts: int | None = None
    tensor_parallel: int = 1

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def words(self) -> int:
        """The vocabulary of a model that has one."""
        assert self.vocab is not None
        return self.vocab

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a model is built from."""

    dims: Dims
    attention: Attention = "flash"
    checkpoint: Checkpoint = "none"
