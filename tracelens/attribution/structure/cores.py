"""Attention cores: fused operators, and the products of an unfused one with what stands between them.

Scores are a product over the heads' width, values one over the keys that the scores ran over; a softmax
stands between them or, in attention without one, nothing but work on the scores themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tracelens.attribution.structure.grammar import Match, matches
from tracelens.attribution.structure.grammars import CORES
from tracelens.attribution.structure.runs import Core, Run
from tracelens.attribution.structure.units import VIEWS, Kind
from tracelens.gemm import GemmShape

_POSITIONS = 2  # linear layers within the scores of an attention
_COORDINATES = 4  # numbers that say how two positions lie to one another, at most
_PADDED = 4  # scores of blocks or windows are padded before or behind their softmax, and by less than this
_VALUES = 2  # gradients of what makes the values
_NORM = frozenset({"norm", "norm_backward"})
_OWN = {"dropout": "dropout", "norm": "norm"}  # what a unit is wherever it stands


def find_cores(run: Run) -> list[Core]:
    """Attention cores of a forward run, in order: fused, bmm -> softmax -> bmm, and ``grammars.CORES``."""
    found = _with_softmax(run)
    for grammar in CORES:
        taken = {at for core in found for at in core.parts}
        found += map(_core_of, matches(run, grammar, taken=taken))
    return _in_one(run, sorted(found, key=lambda core: core.first))


def _in_one(run: Run, cores: list[Core]) -> list[Core]:
    """Cores that follow one another with nothing made between are one attention: called in a loop over
    windows or pictures of different sizes, whose tokens lie behind one another."""
    groups: list[list[Core]] = []
    for core in cores:
        if groups and _goes_on(run, groups[-1][-1], core):
            groups[-1].append(core)
        else:
            groups.append([core])
    return [core for group in groups for core in (_whole(run, group) if len(group) > 1 else group)]


def _goes_on(run: Run, last: Core, core: Core) -> bool:
    between = run.kinds[last.last + 1 : core.first]
    if not any(map(run.shape, run.products())):  # without shapes: what stands between tells attentions apart
        parts = ("gemm", "bmm", "convolution", "norm")
        return last.backward == core.backward and not any(kind.what in parts for kind in between)
    sizes = [(c.heads, c.kv_heads, c.key_dim, c.value_dim, c.backward) for c in (last, core)]
    return sizes[0] == sizes[1] and all(kind.what == "copy" or kind.name in VIEWS for kind in between)


def _whole(run: Run, group: list[Core]) -> list[Core]:
    """One core of all tokens that a product before makes queries of, or of the same tokens again; those of
    two models, which a compiler puts beside one another, stay apart."""
    counts = [core.tokens for core in group if core.tokens]
    made = next((s.m for at in range(group[0].first, -1, -1) if (s := run.shape(at)) and s.batch == 1), None)
    whole, same = made == sum(counts), len(set(counts)) == 1
    compiled = any(kind.what == "fused" for kind in run.kinds)
    if compiled and counts and not whole and (len(counts) < len(group) or not same):
        return group
    tokens = (sum(counts) if whole or not same else counts[0]) if len(counts) == len(group) else None
    parts = {at: part for core in group for at, part in core.parts.items()}
    return [replace(group[0], last=group[-1].last, parts=parts, tokens=tokens)]


def _with_softmax(run: Run) -> list[Core]:
    cores: list[Core] = []
    ahead: list[int] = []  # products that can be scores, the last ones first to be asked
    softmax: int | None = None
    between = 0  # linear layers behind the first of them, but for those on the scores themselves
    late: int | None = None  # a linear layer behind the softmax: of the values, where it makes all of them
    for at, kind in enumerate(run.kinds):
        if kind.what == "core":
            cores.append(_fused(at, kind))
            ahead, softmax, between, late = [], None, 0, None
        elif kind.what == "bmm":
            if late is not None and not (_makes(run, late, at) or _hands_on(run, late, at)):
                ahead, softmax, between = [], None, 0
            late = None
            before = [] if softmax is None else [p for p in ahead if p < softmax]
            scores = next((p for p in reversed(before) if _values(run, p, at)), None)
            if scores is not None and softmax is not None:
                core = _unfused(run, scores, softmax, at)
                inside = (p for p in range(before[0], scores) if run.kinds[p].what != "gemm")
                core.parts.update({p: _OWN.get(run.kinds[p].what, "attention.scores") for p in inside})
                cores.append(core)
                ahead, softmax, between = [], None, 0
            elif (shape := run.shape(at)) is None or shape.k > 1:  # a table or a mask is no product of two
                both = softmax is None and not (shape is None and between)
                ahead, softmax, between = ([*ahead, at] if both else [at]), None, between * both
        elif kind.what == "softmax" or "softmax" in kind.tags:
            softmax = at if softmax is None and any(_weighs(run, p, at) for p in ahead) else softmax
        elif kind.what == "gemm":
            if any(_mixes_heads(run, p, at) for p in ahead[-1:]):
                continue
            if softmax is not None and late is None:
                late = at
                continue
            between += bool(ahead)
            # relative positions are projected between the two products that make the scores
            if softmax is not None or between > _POSITIONS:
                ahead, softmax, between, late = [], None, 0, None
        elif kind.what == "norm" and ahead and run.shape(ahead[-1]) is None:
            ahead, softmax, between, late = [], None, 0, None
        elif kind.what == "convolution" and ahead and not _on_scores(run, ahead[-1], at):
            ahead, softmax, between = [], None, 0
    return cores


def _weighs(run: Run, scores: int, at: int) -> bool:
    """Can a softmax be of these scores? One of far fewer numbers is not: a router's beside its experts."""
    first, given = run.shape(scores), run.kinds[at].tensors[:1]
    if first is None or not given or run.kinds[at].what != "softmax":
        return True
    return _PADDED * prod(given[0]) >= first.batch * first.m * first.n


def _core_of(found: Match) -> Core:
    """The core of a grammar's match, by the names of its sizes; how many heads the softmax's tensor tells, or
    that of the scores."""
    sizes, batch = found.sizes, found.sizes.get("batch", 0)
    units = found.kinds[found.start : found.stop]
    weighs = next((kind for kind in units if kind.what == "softmax"), units[0])
    wide = next((tensor for tensor in weighs.tensors if len(tensor) > 3), None)
    heads = wide[1] if wide and batch and batch % wide[1] == 0 else None
    tokens = batch // heads * sizes["queries"] if heads and "queries" in sizes else None
    key_dim, value_dim = sizes.get("key_dim"), sizes.get("value_dim")
    return Core(found.start, found.stop - 1, found.components, tokens, heads, None, key_dim, value_dim)


def find_backward_cores(run: Run, forward: list[Run]) -> list[Core]:
    """Attention cores of a backward run.

    An unfused one, S = Q K^T, O = softmax(S) V, is known by dP = dO V^T, which has the size of S and which
    nothing else in a backward has. dV, of the size of dQ, mostly comes right before it; where it is put off
    it cannot be told from dQ. Without shapes it is known by a softmax's gradient between such products.
    """
    if not any(map(run.shape, run.products())):
        return _in_one(run, [*_backward_by_order(run)])
    scores = {
        _size(shape)
        for other in forward
        for core in other.cores
        if core.first != core.last and (shape := other.shape(core.first)) is not None
    }
    turned = {(batch, k, n, m) for batch, m, n, k in scores}  # dK as Q^T dS, transposed
    cores: list[Core] = []
    for at, kind in enumerate(run.kinds):
        shape = run.shape(at)
        if kind.what == "core":
            cores.append(_fused(at, kind))
        elif kind.what == "bmm" and shape is not None and _size(shape) in scores:
            cores.append(_unfused_backward(run, at, turned))
    return _in_one(run, cores)


def _backward_by_order(run: Run) -> Iterator[Core]:
    """Without shapes: dV and dP, the gradient of the softmax, dQ and dK. Between dV and dP what made the
    values can have its gradients."""
    for at, kind in enumerate(run.kinds):
        if kind.what == "core":
            yield _fused(at, kind)
        elif _goes_back(kind):
            last, behind = (
                _beside_softmax(run, way) for way in (range(at - 1, -1, -1), range(at + 1, len(run)))
            )
            if last and behind:
                first = _beside_softmax(run, range(last[-1] - 1, -1, -1), linear=_VALUES)
                before = [*last, *first][:2]
                parts = dict.fromkeys(before, "attention.values") | {at: "attention.softmax"}
                parts |= dict.fromkeys(behind, "attention.scores")
                yield Core(min(parts), max(parts), parts, None, None, None, None, None, True)


def _goes_back(kind: Kind) -> bool:
    return kind.what == "softmax" or "softmax_backward" in kind.tags


def _beside_softmax(run: Run, way: range, linear: int = 0) -> list[int]:
    """The nearest two products of batches on a ``way``, none of them behind a normalization, another softmax
    or more than so many ``linear`` layers."""
    found: list[int] = []
    for at in way:
        kind = run.kinds[at]
        linear -= kind.what == "gemm"
        if linear < 0 or kind.what in ("core", "norm") or kind.tags & _NORM or _goes_back(kind):
            break
        found += [at] if kind.what == "bmm" else []
    return found[:2]


def _mixes_heads(run: Run, scores: int, at: int) -> bool:
    """A linear layer from heads to heads, on all scores (talking heads)."""
    first, shape = run.shape(scores), run.shape(at)
    if first is None or shape is None or shape.n != shape.k or first.batch % shape.k:
        return False
    return first.batch * first.m * first.n == shape.m * shape.k


def _makes(run: Run, at: int, values: int) -> bool:
    """Does a linear layer make all the values that the product takes?"""
    shape, second = run.shape(at), run.shape(values)
    if shape is None or second is None:
        return False
    return shape.m * shape.n == second.batch * second.k * second.n


def _hands_on(run: Run, at: int, values: int) -> bool:
    """Without shapes: does a linear layer's result go into the product as it is? It makes the values, or
    mixes heads."""
    between = run.kinds[at + 1 : values]
    return run.shape(at) is None and all(
        kind.what in ("add", "copy", "dropout") or kind.name in VIEWS for kind in between
    )


def weighs_pairs(run: Run, scores: int, heads: int | None, at: int) -> bool:
    """A linear layer that makes one number for each head of how two positions lie to one another: on all
    pairs of a query and a key, or of their distances."""
    first, shape = run.shape(scores), run.shape(at)
    pairs = first is not None and shape is not None and shape.m % (first.m * first.n) == 0
    return (pairs and _for_heads(run, scores, heads, at)) or of_distances(run, scores, heads, at)


def of_distances(run: Run, scores: int, heads: int | None, at: int) -> bool:
    """Either of two linear layers in a row, the first of few coordinates, the second with one number for each
    head."""
    shape = run.shape(at)
    if shape is None:
        return False
    opens = shape.k <= _COORDINATES
    way = range(at + 1, len(run)) if opens else range(at - 1, -1, -1)
    other = next((p for p in way if run.kinds[p].what == "gemm"), at)
    made, taken = (run.shape(p) for p in ((at, other) if opens else (other, at)))
    if made is None or taken is None or other == at or made.k > _COORDINATES:
        return False
    return (made.m, made.n) == (taken.m, taken.k) and _for_heads(run, scores, heads, max(at, other))


def _of_each_query(run: Run, scores: int, at: int) -> bool:
    """A table of distances that every query of every head is multiplied with (BoTNet, HaloNet)."""
    first, shape = run.shape(scores), run.shape(at)
    return first is not None and shape is not None and (shape.m, shape.k) == (first.batch * first.m, first.k)


def _for_heads(run: Run, scores: int, heads: int | None, at: int) -> bool:
    """Does the product give as many numbers as there are heads, or may be?"""
    first, shape = run.shape(scores), run.shape(at)
    if shape is None or heads is not None:
        return shape is not None and shape.n == heads
    return first is not None and first.batch % shape.n == 0


def _on_scores(run: Run, scores: int, at: int) -> bool:
    """A convolution over heads, of all scores."""
    first, given = run.shape(scores), run.kinds[at].tensors[:1]
    if first is None:
        return False
    return any(prod(t[:2]) == first.batch and prod(t[2:]) == first.m * first.n for t in given)


def query_rows(run: Run, core: Core) -> int | None:
    """Queries of all heads together."""
    if core.tokens and core.heads:
        return core.tokens * core.heads
    scores = run.shape(core.first)
    return scores.batch * scores.m if scores is not None else None


def _size(shape: GemmShape) -> tuple[int, int, int, int]:
    return (shape.batch, shape.m, shape.n, shape.k)


def _unfused_backward(run: Run, at: int, turned: set[tuple[int, int, int, int]]) -> Core:
    """The core around one dP: what stands close before and behind it."""
    parts = {at: "attention.values"}
    batch = run.kinds[at].gemm
    before = next(
        (p for p in range(at - 1, max(-1, at - 4), -1) if run.kinds[p].what in ("gemm", "bmm")), None
    )
    if before is not None and _is_of(run, before, batch):
        parts[before] = "attention.values"  # dV
    softmax = None
    for place in range(at + 1, min(len(run), at + 24)):
        kind, shape = run.kinds[place], run.shape(place)
        if kind.what == "softmax" or kind.tags & {"softmax_backward"} or kind.name.startswith("_softmax"):
            parts[place] = "attention.softmax"
            softmax = place
        elif kind.what == "bmm" and softmax is not None and shape is not None:
            if _size(shape) in turned or before in parts:
                parts[place] = "attention.scores"  # dQ, dK
            if sum(component == "attention.scores" for component in parts.values()) == 2:
                break
        elif kind.what == "bmm":
            break
    return Core(min(parts), max(parts), parts, None, None, None, None, None, True)


def _is_of(run: Run, at: int, other: GemmShape | None) -> bool:
    shape = run.shape(at)
    return (
        run.kinds[at].what == "bmm"
        and shape is not None
        and other is not None
        and shape.batch == other.batch
        and _size(shape) != _size(other)
    )


def _fused(at: int, kind: Kind) -> Core:
    shape = kind.core
    if shape is None:
        return Core(at, at, {at: "attention.core"}, None, None, None, None, None, kind.backward)
    tokens = shape.query_tokens or (
        shape.batch * shape.query_len if shape.batch and shape.query_len else None
    )
    return Core(
        at,
        at,
        {at: "attention.core"},
        tokens,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.value_dim,
        kind.backward,
    )


def _values(run: Run, scores: int, at: int) -> bool:
    """Does the product at ``at`` reduce over the keys that the scores ran over?

    In local attention, whose queries and keys lie in chunks that overlap, it gives back the heads' width.
    """
    first, second = run.shape(scores), run.shape(at)
    if first is None or second is None:
        return first is second  # without shapes the order alone: product, softmax, product
    if first.batch == second.batch and first.n == second.k and first.m in (second.m, second.n):
        return True  # also values first, weights turned
    queries, chunked = second.batch * second.m, first.batch * first.m
    return first.k == second.n < second.k and first.n < second.k and queries <= chunked <= 4 * queries


def _over_channels(run: Run, first: GemmShape, second: GemmShape, heads: int, values: int) -> bool:
    """Are the scores of channels to channels, summed over the tokens (XCiT)? The product behind tells: it
    takes a row of all channels for every token."""
    behind = next((run.shape(p) for p in range(values + 1, len(run)) if run.kinds[p].what == "gemm"), None)
    if behind is None or first.m != first.n or first.k not in (second.m, second.n) or first.k == first.m:
        return False
    return (behind.m, behind.k) == (first.batch // heads * first.k, heads * first.m)


def _unfused(run: Run, scores: int, softmax: int, values: int) -> Core:
    first, second = run.shape(scores), run.shape(values)
    batch = first.batch if first is not None else None
    given = (t for t in run.kinds[softmax].tensors if len(t) == 4)
    weights = next(
        (t for t in given if t[1] > 1 or t[0] == batch), None
    )  # and no mask, which is of all heads
    heads = weights[1] if weights and first and first.batch % weights[1] == 0 else None
    parts = {scores: "attention.scores", softmax: "attention.softmax", values: "attention.values"}
    for at in range(scores + 1, values):
        if at not in parts:
            inside = run.kinds[at]
            size = first.batch * first.m * first.n if first else None
            turns = not any(prod(t) == size for t in inside.tensors) and (
                inside.what == "copy" or inside.tags == {"layout"}
            )
            around = "attention.other" if turns else "attention.softmax"
            makes = "attention.scores" if inside.what == "bmm" and at < softmax else around
            parts[at] = "dropout" if inside.what == "dropout" else makes
            if inside.what == "gemm":
                parts[at] = "attention.other"
                if at > softmax and _makes(run, at, values):
                    parts[at] = "attention.qkv"
                elif inside.gemm is not None and not (
                    _mixes_heads(run, scores, at)
                    or weighs_pairs(run, scores, heads, at)
                    or _of_each_query(run, scores, at)
                ):
                    del parts[at]
    tokens = first.batch // heads * first.m if heads and first else None
    width = None
    if first is not None and second is not None:
        width = second.m if first.m == second.n != second.m else second.n
    if (
        heads
        and first is not None
        and second is not None
        and _over_channels(run, first, second, heads, values)
    ):
        tokens = first.batch // heads * first.k
        return Core(scores, values, parts, tokens, heads, None, first.m, first.m)
    return Core(scores, values, parts, tokens, heads, None, first.k if first else None, width)
