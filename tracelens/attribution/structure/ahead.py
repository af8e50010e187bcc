"""Keys and values that are made ahead of their layer: all layers that attend to one sequence of another model
can have theirs as soon as it is there, and a compiler, or a cache of them, makes them at once. Queries need
nothing of that model, and can be made before it runs."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Kind


def label_ahead(run: Run) -> None:
    """Name the open products before a core that attends to another sequence and has no keys and values, or no
    queries, yet, which are together exactly as wide as those, and the one that takes what a core gives behind
    another's attention; fills ``run.labels``."""
    before = 0
    made_of = (run.shape(at) for at, label in run.labels.items() if label.component == "attention.qkv")
    streams = {shape.k for shape in made_of if shape is not None}
    for core in run.cores:
        layer = run.labels[core.first].layer if core.first in run.labels else None
        run.labels |= {at: Label("attention.output", layer) for at in _gives(run, core, streams)}
        rows = key_rows(run, core)
        alone = not before or run.products(before, core.first)  # and no part of the attention before
        if alone and rows not in (None, core.tokens) and core.heads and core.key_dim and core.value_dim:
            heads = core.kv_heads or core.heads
            keys = {heads * core.key_dim, heads * core.value_dim, heads * (core.key_dim + core.value_dim)}
            queries = core.heads * core.key_dim
            wide = _widths(run, before, core.first)
            if wide.total() >= queries + max(keys) and wide[core.tokens] >= queries:
                before = core.last
                continue  # it has all: its keys are of the sequence of its queries, and of some around
            made = _made(run, core, before, rows, keys)
            made += _made(run, core, before, core.tokens, {queries})
            run.labels |= {at: Label("attention.qkv", layer) for at in made}
        before = core.last


def _widths(run: Run, start: int, stop: int) -> Counter[int | None]:
    """How wide the queries, keys and values of as many rows are together that have a name."""
    named = {at for at, label in run.labels.items() if label.component == "attention.qkv"}
    wide: Counter[int | None] = Counter()
    for at in run.products(start, stop):
        if at in named and (shape := run.shape(at)) is not None:
            wide[shape.m] += shape.n
    return wide


def _made(run: Run, core: Core, before: int, rows: int | None, widths: set[int]) -> list[int]:
    """The first open products of so many rows that are together as wide as the largest of the ``widths``; no
    product where one with a name stands behind ``before``."""
    fits = [
        at
        for at in run.products(0, core.first)
        if (shape := run.shape(at)) is not None and (shape.m, shape.batch) == (rows, 1)
        if shape.n in widths and not _takes_heads(run, at) and not _is_bent(run, at)
    ]
    has = any(at > before and run.labels.get(at) is not None for at in fits)
    return [] if has else _together([at for at in fits if at not in run.labels], run, max(widths))


def _is_bent(run: Run, at: int) -> bool:
    """Does an activation take its result, as that of an MLP's first product?"""
    behind = (kind for kind in run.kinds[at + 1 :] if kind.what != "copy")
    return next((kind.what == "activation" for kind in behind), False)


def _takes_heads(run: Run, at: int) -> bool:
    """Is the last that is not pointwise before it of an attention, and of its size, so that it takes what
    heads give?"""
    for place in range(at - 1, -1, -1):
        kind = run.kinds[place]
        if kind.what in ("bmm", "core", "softmax"):
            core = next((core for core in run.cores if place in core.parts), None)
            return core is None or _takes(run, at, core)
        if kind.what in ("gemm", "norm") or "norm" in kind.tags:
            return False
    return False


def _takes(run: Run, at: int, core: Core) -> bool:
    """Has it as many rows as a core's queries and as many columns as its heads, as far as these are known?"""
    shape, given = run.shape(at), (core.tokens, core.out_width)
    return shape is None or None in given or (shape.m, shape.k) == given


def _gives(run: Run, core: Core, streams: set[int]) -> list[int]:
    """The open product that takes what a core gives and makes one of the ``streams``, where another
    sequence's attention, which a compiler runs first, is between the two."""
    later = (other for other in run.cores if other.first > core.last)
    stop = next((other.first for other in later if other.tokens == core.tokens), len(run))
    takes = [at for at in run.products(core.last + 1, stop) if run.shape(at) and _takes(run, at, core)]
    fits = [at for at in takes if (shape := run.shape(at)) and shape.batch == 1 and shape.n in streams]
    between = any(core.last < other.first < at for at in fits[:1] for other in run.cores)
    known = core.tokens is None or core.out_width is None or any(at in run.labels for at in fits)
    return [] if known or not between else fits[:1]


def _together(places: list[int], run: Run, wanted: int) -> list[int]:
    """The first of these that are as wide together."""
    wide, out = 0, []
    for at in places:
        shape = run.shape(at)
        wide += shape.n if shape is not None else 0
        out.append(at)
        if wide >= wanted:
            return out if wide == wanted else []
    return []


def key_rows(run: Run, core: Core) -> int | None:
    """Rows of the keys that a core takes: batch times length."""
    fused, scores = run.kinds[core.first].core, run.shape(core.first)
    if fused is not None:
        return fused.key_tokens or (fused.batch * fused.key_len if fused.batch and fused.key_len else None)
    if scores is None or not core.heads or scores.batch % core.heads:
        return None
    return scores.batch // core.heads * scores.n


def label_widening(run: Run) -> None:
    """Where a stage begins, name the stream's own product right before that of queries, keys and values: as
    wide as what comes of these, or without shapes of what is normalized, and pooled as they are (Hiera, arXiv
    2306.00989); fills ``run.labels``."""
    outputs = (run.shape(at) for at, label in run.labels.items() if label.component == "attention.output")
    widths = {core.out_width for core in run.cores} | {shape.k for shape in outputs if shape is not None}
    for own, makes in pairwise(run.products()):
        label, shape, other = run.labels.get(makes), run.shape(own), run.shape(makes)
        if own in run.labels or label is None or label.component != "attention.qkv":
            continue
        between = run.kinds[own + 1 : makes]
        pools = [at for at in range(own + 1, makes) if _pools(run.kinds[at])]
        if shape is not None and other is not None:
            fits = (shape.m, shape.k) == (other.m, other.k) and shape.n in widths - {shape.k}
        else:
            fits = shape is other and run.kinds[own - 1].what == "norm" and own + 1 in pools
        if fits and pools and all(kind.what in ("copy", "elementwise", "picture") for kind in between):
            run.labels |= dict.fromkeys([own, *pools], Label("other"))


def _pools(kind: Kind) -> bool:
    return kind.what == "picture" or kind.name in ("amax", "max")
