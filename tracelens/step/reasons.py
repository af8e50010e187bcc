"""The kernels of a planned step, and why one takes another time after a change: terms that moved with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tracelens.errors import InputError
from tracelens.results import Estimate, Span
from tracelens.step.words import planned as words
from tracelens.words import Direction, Role

#: Factors nearer to one explain nothing.
_LEAST = 0.005


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One kernel of the step and all its calls in a micro-batch."""

    component: str
    role: Role | Direction  # a product has a role, the rest a direction
    kind: Literal["product", "attention", "experts", "bytes"]
    shape: str
    sizes: tuple[int, ...]  # that ratios are judged by
    calls: int
    time_ms: Span  # all calls; mid is the least where it is not known
    ladder: tuple[float, float] = (0.0, 0.0)  # logs: faster, slower by what its alignment leaves open
    alignment: int = 128  # bytes, of the least aligned operand
    open: float = 0.0  # log: half of an attention prediction's own range, and what another kernel adds
    flops: float = 0.0
    unknown: str | None = None
    note: str = ""
    cast_ms: float = 0.0  # of ``time_ms``: casts of its operands by kernels of their own
    pad_ms: float = 0.0  # copies by which torch.compile pads a misaligned product; 0: it pads nothing
    compiled_ms: float = math.inf  # the same product padded by torch.compile, with those copies
    backend: str = ""  # of attention
    computed_flops: float = 0.0  # of attention: with masked parts of blocks and padded head dimensions


def in_ms(time_us: Estimate, calls: int, cannot: str) -> Span:
    """All calls in ms; where there is no mid, the least time stands for it. Raises InputError(cannot)."""
    low = time_us.low if time_us.low is not None else time_us.mid
    if low is None:
        raise InputError(cannot)
    mid = time_us.mid if time_us.mid is not None else low
    high = time_us.high if time_us.high is not None else mid
    return Span(low, mid, high, time_us.basis) * (calls / 1000.0)


def why(old: PlannedPart, new: PlannedPart, before: float, after: float) -> str:
    """What made ``before`` ms into ``after`` (for as many tokens): only what moves the time that way."""
    tokens = after / (new.time_ms.mid or after or 1.0)
    if old.kind == "bytes":
        return words.times_the_bytes(after / before, old.shape) if before else words.MORE_BYTES
    found = (_attention if old.kind == "attention" else _product)(old, new, tokens, after > before)
    if not found:  # the operations are not it, so their rate is
        computed = [part.computed_flops or part.flops for part in (old, new)]
        rates = [
            each / (part.time_ms.mid or 1.0) / 1e9 for each, part in zip(computed, (old, new), strict=True)
        ]
        found = [words.another_rate(*rates)]
        if (rates[1] < rates[0]) != (after > before) and computed[0]:
            found = [words.times_the(computed[1] * tokens / computed[0], "operations")]
        if old.kind in ("product", "experts") and old.note != new.note:
            found.append(words.other_tiles(old.note, new.note))
    return "; ".join(found)


def _attention(old: PlannedPart, new: PlannedPart, tokens: float, slower: bool) -> list[str]:
    """The kernel, its operations, and its exponentials, which go with batch * heads * length^2."""
    found = [words.another_kernel(old.backend, new.backend)] if old.backend != new.backend else []
    padded = new.note if slower else old.note
    ran = [part.computed_flops or part.flops for part in (old, new)]
    same = math.isclose(ran[0] * new.flops, ran[1] * old.flops, rel_tol=_LEAST)
    what = "operations" if same else "computed operations"
    found += _times(what, ran[0], ran[1] * tokens, slower, padded)
    before, after = (part.calls * part.sizes[0] * part.sizes[1] * part.sizes[2] ** 2 for part in (old, new))
    return found + _times("exponentials", before, after * tokens, slower)


def _product(old: PlannedPart, new: PlannedPart, tokens: float, slower: bool) -> list[str]:
    found: list[str] = []
    if old.alignment < new.alignment and not slower:
        found.append(words.better_aligned(old.alignment, new.alignment))
    if old.alignment > new.alignment and slower:
        found.append(words.worse_aligned(old.alignment, new.alignment))
    return found or _times("operations", old.flops, new.flops * tokens, slower)


def _times(what: str, before: float, after: float, slower: bool, because: str = "") -> list[str]:
    """``1.25 times the operations``, where that goes the way of the time."""
    ratio = after / before if before else 1.0
    if (ratio > 1) != slower or abs(ratio - 1) < _LEAST:
        return []
    return [words.times_the(ratio, what, because)]
