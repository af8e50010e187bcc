"""Attention cores with what stands beside them: second values, products of each head, biases."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, takewhile

from tracelens.attribution.structure.ahead import key_rows
from tracelens.attribution.structure.runs import Core, Run
from tracelens.attribution.structure.units import CUTS, VIEWS

_BLOCKS = ("gemm", "bmm", "core", "norm", "loss")


def with_twin(run: Run, core: Core) -> Core:
    """With the softmax and the values behind it that take its scores, too: two streams attend by the sum of
    the scores of both (LiLT, arXiv 2202.13669)."""
    scores = [
        s
        for at in range(core.first, core.last)
        if (s := run.shape(at)) and core.parts.get(at) == "attention.scores"
    ]
    pairs = {(s.batch, s.m, s.n) for s in scores if s.batch > 1}
    behind = [at for at in range(core.last + 1, len(run)) if run.kinds[at].what in ("softmax", *_BLOCKS)][:2]
    if len(scores) != 2 or len(pairs) != 1 or [run.kinds[at].what for at in behind] != ["softmax", "bmm"]:
        return core
    softmax, values = behind
    shape = run.shape(values)
    if shape is None or (shape.batch, shape.m, shape.k) not in pairs or shape.n not in {s.k for s in scores}:
        return core
    moves = {at: "attention.other" for at in range(core.last + 1, values) if run.kinds[at].what == "copy"}
    parts = core.parts | moves | {softmax: "attention.softmax", values: "attention.values"}
    width = (core.value_dim or 0) * (core.heads or 0)  # of the other stream
    for at in takewhile(
        lambda p: run.kinds[p].what in ("gemm", "copy", "elementwise"), range(core.first - 1, -1, -1)
    ):
        if (made := run.shape(at)) and made.n == width:
            parts[at] = "attention.qkv"
    outputs = (at for at in range(values, len(run)) if run.kinds[at].what == "gemm")
    for at in islice(outputs, 2):
        if (made := run.shape(at)) and made.k == made.n == width:
            parts[at] = "attention.output"
    return replace(core, last=values, parts=parts, value_dim=shape.n)


def with_other_way(run: Run, core: Core) -> Core:
    """With the values behind it that the same scores weigh the other way: two sequences attend to one another
    (LightGlue, arXiv 2306.13643)."""
    weighs = [at for at, part in core.parts.items() if part == "attention.softmax"]
    softmaxes = sum(run.kinds[at].what == "softmax" for at in weighs)
    moves = [*takewhile(lambda p: run.kinds[p].what == "copy", range(core.last + 1, len(run)))]
    last = moves[-1] + 1 if moves else core.last + 1
    scores, other = run.shape(core.first), run.shape(last) if last < len(run) else None
    if softmaxes != 2 or scores is None or other is None:
        return core
    if (other.batch, other.m, other.k) != (scores.batch, scores.n, scores.m) or run.kinds[last].what != "bmm":
        return core
    values = dict.fromkeys((*moves, last), "attention.values")
    return replace(core, last=last, parts=core.parts | values)


def with_absorbed(run: Run, core: Core) -> Core:
    """With the products that take queries to the compressed keys and the result from the compressed values,
    by a weight of each head (latent attention, arXiv 2405.04434)."""
    values, kinds, places = run.shape(core.last), run.kinds, range(core.last + 1, len(run))
    moves = VIEWS | CUTS
    works = (p for p in places if kinds[p].what != "copy" and kinds[p].name not in moves)
    behind = next(works, core.last)
    made = run.shape(behind) if behind > core.last else None
    takes = next(
        (kinds[p].what for p in range(behind + 1, len(run)) if kinds[p].what in ("softmax", *_BLOCKS)), ""
    )
    if values is None or made is None or kinds[behind].what != "bmm" or made.batch == 1 or takes != "gemm":
        return core
    if (made.batch * made.m, made.k) != (values.batch * values.m, values.n):
        return core
    parts = core.parts | dict.fromkeys(range(core.last + 1, behind + 1), "attention.other")
    ahead = (at for at in range(core.first - 1, -1, -1) if kinds[at].what in ("bmm", "core"))
    query = run.shape(at) if (at := next(ahead, -1)) >= 0 else None
    scores = [run.shape(p) for p, part in core.parts.items() if part == "attention.scores"]
    keys = {shape.k for shape in scores if shape is not None}  # rotated apart, and compressed
    if query is not None and (query.batch, query.m) == (made.batch, made.m) and query.n in keys:
        parts[at] = "attention.other"
    return replace(core, last=behind, parts=parts, tokens=made.m, heads=made.batch, value_dim=made.n)


def with_bias(run: Run, core: Core) -> Core:
    """With the products of its queries that stand before it: they make what is added to its scores (relative
    positions, arXiv 1901.02860), or scores that only their softmax takes."""
    edges = ("gemm", "core", "norm", "convolution")
    behind = next((at for at in range(core.first - 1, -1, -1) if run.kinds[at].what in edges), -1)
    parts, heads = dict[int, str](), core.heads or -1
    for at in range(behind + 1, core.first):
        kind, shape = run.kinds[at], run.shape(at)
        if kind.what == "bmm" and shape is not None and shape.k == core.key_dim:
            of_keys = shape.m == shape.n and shape.batch * shape.n == (key_rows(run, core) or 0) * heads
            if of_keys or shape.batch * shape.m == (core.tokens or 0) * heads:
                moves = takewhile(lambda p: run.kinds[p].what == "copy", range(at - 1, behind, -1))
                parts |= dict.fromkeys((*moves, at), "attention.scores")
        elif kind.what == "softmax" and parts:
            parts |= dict.fromkeys(range(max(parts) + 1, at + 1), "attention.softmax")
    return replace(core, parts=parts | core.parts)
