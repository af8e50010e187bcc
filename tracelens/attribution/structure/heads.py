"""What shapes and names tell of heads and samples: rotations of heads, numbers for each sample, widths."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.runs import Core
from tracelens.attribution.structure.units import Dims, Kind


def rotates(kinds: list[Kind]) -> bool:
    """Rotary embeddings written out negate half, or take a product of one half from one of the other, and put
    the halves together again."""
    counts = Counter(kind.name for kind in kinds)
    names = counts.keys()
    if {"sub", "add", "cat"} <= names and counts["mul"] >= 4:
        return True
    if any(puts_half(*pair) for pair in pairwise(kinds) if pair[0].name == "sub") and counts["mul"] >= 4:
        return True
    complex_ = names & {"view_as_complex", "view_as_real", "polar"}
    return {"neg", "cat"} <= names or bool(complex_) or any("rope" in kind.tags for kind in kinds)


def puts_half(made: Kind, behind: Kind) -> bool:
    """Is a rotated half of every head written to its places in the whole, and not put together with the other
    (transformer_wan.py of huggingface/diffusers)?"""
    given = made.tensors[:1]
    turned = made.name in ("sub", "add") and [len(t) for t in given] == [4] and made.tensors[1:2] == given
    return turned and behind.what == "copy" and behind.tensors[:1] == given


def per_sample(tensors: tuple[Dims, ...]) -> bool:
    """Is one of them a number for each of the first dimension of the others, or alone in that form?

    Not beside a number for each channel: both are sums of a normalization.
    """
    rank = max(map(len, tensors), default=0)
    full = [t for t in tensors if len(t) == rank >= 3]
    sums = any(prod(t[1:]) == max(t[1:]) > 1 for t in full)
    return not sums and any(t[0] > 1 and prod(t[1:]) == 1 for t in full)


def per_head(tensor: Dims, core: Core) -> bool:
    """[batch, heads, sequence, d] or [batch, sequence, heads, d] of queries or of keys, or d in pairs."""
    heads = {core.heads, core.kv_heads} - {None}
    fits = len(tensor) in (4, 5) and prod(tensor[3:]) <= (core.key_dim or 0)
    return fits and bool(heads & set(tensor[1:3]))


def splits(tensor: Dims, rows: int, most: int) -> bool:
    """Is it of so many rows, each at most so wide, in however many dimensions?"""
    heads = (at for at in range(2, len(tensor)) if prod(tensor[:at]) == rows)
    return any(prod(tensor[at:]) <= most for at in heads)


def widths(tensors: tuple[tuple[int, ...], ...]) -> set[int]:
    return {tensor[-1] for tensor in tensors if len(tensor) >= 2}
