"""Two models of a step whose kernels a compiler mixes: it runs what has its inputs, of either model.

What a unit works on tells them apart: the tokens of the one model or of the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.ahead import key_rows
from tracelens.attribution.structure.runs import Core, Excerpt, Run, whole_of
from tracelens.attribution.structure.units import Kind

_RETURNS = 2  # to a number of tokens that was there before, at least; stages of a model never return
_CORES = 2  # of each


def streams(run: Run) -> Iterator[Excerpt]:
    """The models of a forward whose attention cores take turns; the run itself where they do not."""
    tokens = [core.tokens for core in run.cores]
    counts = Counter(tokens)
    changes = sum(one != other for one, other in pairwise(tokens))
    returns = changes - (len(counts) - 1)
    compiled = any(kind.what == "fused" for kind in run.kinds)
    if None in counts or returns < _RETURNS or min(counts.values()) < _CORES or not compiled:
        yield whole_of(run)
        return
    model = _models(run)
    if len({*model.values()}) == 1:
        yield whole_of(run)
        return
    places: dict[int, list[int]] = {count: [] for count in model.values()}
    widths = {count: _widths(run, count) for count in model}
    attended = {(core.tokens, key_rows(run, core)) for core in run.cores}
    current = tokens[0] or 0
    of_core = {at: core.tokens for core in run.cores for at in core.parts}
    for at, kind in enumerate(run.kinds):
        rows = _rows(kind)
        found = {of_core[at]} if at in of_core else rows & {*model}
        if not found:  # of the sequence it attends to, or of part of its tokens
            found = {count for count, keys in attended if keys in rows}
        found = found or {count for count in model if _width(kind) in widths[count]}
        if current not in found and found:
            current = max(found, key=lambda count: places[model[count or 0]][-1:]) or 0
        if kind.gemm is not None:
            widths[current].add(kind.gemm.n)
        places[model[current]].append(at)
    for kept in places.values():
        yield Excerpt(run, kept, run.part(kept))


def _models(run: Run) -> dict[int, int]:
    """Per number of tokens that attentions have one for its model. Windows, and what samples tell each other,
    are of the model that is as wide: no MLP is on their tokens."""
    wide: dict[int, set[int | None]] = {}
    for core in run.cores:
        wide.setdefault(core.tokens or 0, set()).add(_returns_to(run, core))
    gemms = [kind.gemm for kind in run.kinds if kind.gemm is not None]
    back = {(gemm.m, gemm.n) for gemm in gemms if gemm.k > gemm.n}
    whole = [count for count, widths in wide.items() if any((count, width) in back for width in widths)]
    out: dict[int, int] = {}
    for count, widths in wide.items():
        equal = [other for other in whole if wide[other] & widths]
        among = [other for other in wide if wide[other] & widths and other not in whole]
        out[count] = count if count in whole or len(equal) > 1 else [*equal, *among][0]
    return out


def _returns_to(run: Run, core: Core) -> int | None:
    """How wide the stream is that a core's output projection comes back to: heads can be narrower together,
    and what makes their queries is no MLP (the mask decoders of Segment Anything). Half the heads of twice
    the tokens give as many numbers (paired heads of modded-nanogpt)."""
    behind = (kind.gemm for kind in run.kinds[core.last + 1 :] if kind.gemm is not None)
    given = (core.tokens or 0) * (core.out_width or 0)
    of_core = (gemm.n for gemm in behind if gemm.m * gemm.k == given)
    return next(of_core, core.out_width)


def _widths(run: Run, rows: int) -> set[int]:
    """How wide the operands of the products of so many rows are."""
    gemms = [kind.gemm for kind in run.kinds if kind.gemm is not None and kind.gemm.m == rows]
    return {size for gemm in gemms for size in (gemm.n, gemm.k)}


def _width(kind: Kind) -> int | None:
    """How wide what it takes is."""
    if kind.gemm is not None:
        return kind.gemm.k
    return kind.tensors[0][-1] if kind.tensors and kind.tensors[0] else None


def _rows(kind: Kind) -> set[int]:
    """What its tensors can have as many rows of: batch times length, also of heads apart."""
    if kind.gemm is not None and kind.gemm.batch == 1:
        return {kind.gemm.m}
    leading = {prod(t[:size]) for t in kind.tensors for size in range(1, len(t) + 1)}
    return leading | {t[0] * t[2] for t in kind.tensors if len(t) == 4}
