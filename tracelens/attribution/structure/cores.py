"""Attention cores: fused operators, and the products of an unfused one with what stands between them.

Scores are a product over the heads' width, values one over the keys that the scores ran over; a softmax
stands between them or, in attention without one, nothing but work on the scores themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from math import prod

from tracelens.attribution.structure.attention_grammars import CORES
from tracelens.attribution.structure.beside_cores import with_absorbed, with_bias, with_other_way, with_twin
from tracelens.attribution.structure.grammar import (
    PRODUCT,
    Gap,
    Grammar,
    Match,
    Part,
    either,
    matches,
    no,
    one,
    tagged,
    what,
)
from tracelens.attribution.structure.norms import is_root
from tracelens.attribution.structure.runs import Core, Run
from tracelens.attribution.structure.units import VIEWS, Kind
from tracelens.attribution.structure.walk import routes

_TO_ROOT = 3  # units from the mean of squares to the root of it, at most
_NEAR = 256  # units between scores, softmax and values, at most: Longformer has 76
_TAKEN = 64  # units from a core to the product that takes its output, less than this
_POSITIONS = 2  # linear layers within the scores of an attention
_COORDINATES = 4  # numbers that say how two positions lie to one another, at most
_HEADS_WIDE = 4  # times as wide as what makes a number for each of them are all heads together, where untold
_SCORES_SUMMED = 3  # products, of content and of position each way (DeBERTa), at most
_PADDED = 4  # scores of blocks or windows are padded before or behind their softmax, and by less than this


def find_cores(run: Run) -> list[Core]:
    """Attention cores of a forward run, in order: fused, with a softmax, and ``attention_grammars.CORES``."""
    found = [with_bias(run, fused_core(at, kind)) for at, kind in enumerate(run.kinds) if kind.what == "core"]
    stop = 0
    for it in matches(run, *WITH_SOFTMAX, *CORES):
        if not it.sizes and _chooses(it):
            continue
        found.append(with_absorbed(run, with_twin(run, with_other_way(run, _core_of(it, stop)))))
        stop = it.stop
    among = [*_among(run, found)]
    others = {at for core in among for at in core.parts}
    found = [replace(c, parts={at: part for at, part in c.parts.items() if at not in others}) for c in found]
    return [_on_tokens(run, core) for core in in_one(run, sorted((*found, *among), key=lambda c: c.first))]


def _on_tokens(run: Run, core: Core) -> Core:
    """The core with the heads that a token has: several can attend as one whose sequence is as many times as
    long (paired heads of KellerJordan/modded-nanogpt), which the product that takes the output tells."""
    width, tokens = core.out_width, core.tokens
    near = range(core.last + 1, min(core.last + _TAKEN, len(run)))
    shapes = (s for at in near if (s := run.shape(at)) and s.batch == 1 and width and tokens)
    taken = ((s.m, s.k) for s in shapes if s.m * s.k == (tokens or 0) * (width or 0))
    rows, wide = next(taken, (tokens, width))
    times = wide // width if width and wide and rows and tokens == rows * (wide // width) else 1
    heads, kv_heads = (count and count * times for count in (core.heads, core.kv_heads))
    return replace(core, tokens=rows, heads=heads, kv_heads=kv_heads) if times > 1 else core


def _chooses(it: Match) -> bool:
    """Without shapes: is behind the softmax one chosen of several, or another softmax? That sends tokens to
    experts and back."""
    softmaxes = [at for at in range(it.start, it.stop) if it.kinds[at].what == "softmax"]
    behind = range(softmaxes[0] + 1, it.stop) if softmaxes else ()
    return any(routes(it.run, at) for at in behind) or any(b - a == 1 for a, b in pairwise(softmaxes))


def _among(run: Run, found: list[Core]) -> Iterator[Core]:
    """Attention whose scores and values a compiler has put between those of another model."""
    ends = {at for core in found for at in (core.first, core.last)}
    parts = ends | {at for core in found for at, part in core.parts.items() if part == "attention.softmax"}
    if not parts or not any(kind.what == "fused" for kind in run.kinds):
        return
    kept = [at for at in range(len(run)) if at not in parts]
    rest = run.part(kept)
    for it in matches(rest, *WITH_SOFTMAX):
        first, last = kept[it.start], kept[it.stop - 1]
        if last - first >= it.stop - it.start and it.sizes:
            yield _core_of(it, it.start).at(dict(enumerate(kept)))


def in_one(run: Run, cores: list[Core]) -> list[Core]:
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


# Attention with a softmax: scores, softmax and values, in any rank. Between the products stands work on the
# scores: other products of them (relative positions), and few linear layers.


def _of_activations(kind: Kind) -> bool:
    """A product of two activations: what is multiplied with a table or a mask is none."""
    return kind.what == "bmm" and (kind.gemm is None or kind.gemm.k > 1)


def _near_softmax(it: Match, at: int) -> bool:
    """Scores are; a loop over many products is not asked from each of them on."""
    return any(kind.what == "softmax" or "softmax" in kind.tags for kind in it.kinds[at : at + _NEAR])


def _weighs(it: Match, at: int) -> bool:
    """Can a softmax be of these scores? One of far fewer numbers is not: a router's beside its experts."""
    first, given = it.run.shape(it.start), it.kinds[at].tensors[:1]
    if first is None or not given or it.kinds[at].what != "softmax":
        return True
    return _PADDED * prod(given[0]) >= first.batch * first.m * first.n


def _linear(it: Match, start: int, stop: int) -> list[int]:
    """Linear layers, but for those from heads to heads on all scores (talking heads)."""
    return [at for at in range(start, stop) if it.kinds[at].what == "gemm" and not _mixes_heads(it, at)]


def _mixes_heads(it: Match, at: int) -> bool:
    first, shape = it.run.shape(it.start), it.run.shape(at)
    if first is None or shape is None or shape.n != shape.k or first.batch % shape.k:
        return False
    return first.batch * first.m * first.n == shape.m * shape.k


def _of_offsets(it: Match, at: int) -> bool:
    """Is it one of a row of linear layers that begins with how two positions lie to one another?"""
    row = [it.run.shape(p) for p in range(it.start + 1, at + 1) if it.kinds[p].what == "gemm"]
    first = row[0] if row else None
    return first is not None and first.k <= _COORDINATES and all(s and s.m == first.m for s in row)


def _on_scores(it: Match, at: int) -> bool:
    """May it stand between the products? A convolution is over heads, of all scores; without shapes nothing
    tells whether a product behind a linear layer is of the same scores."""
    kind, first = it.kinds[at], it.run.shape(it.start)
    if kind.what == "gemm":  # relative positions are projected, or values are made
        start, most = (it.places[1][0], 1) if it.places[1] else (it.start, _POSITIONS)
        near = (k.what for k in it.kinds[at + 1 : at + _NEAR] if k.what in ("bmm", "softmax"))
        again = first is None and not it.places[1] and next(near, "") == "bmm"
        return _of_offsets(it, at) or (len(_linear(it, start, at + 1)) <= most and not again)
    if kind.what == "convolution" and first is not None:
        maps = kind.tensors[:1]
        return any(prod(t[:2]) == first.batch and prod(t[2:]) == first.m * first.n for t in maps)
    written = is_root(it.run, at) and any(k.name == "mean" for k in it.kinds[at - _TO_ROOT : at])
    return first is not None or not (written or kind.what == "norm")


def _takes_values(it: Match, at: int) -> bool:
    """Do linear layers behind the softmax make what the product takes?"""
    known = {it.run.shape(place) is None for place in (it.start, at)}
    return len(known) == 1 and all(_makes(it, p, at) for p in _linear(it, it.places[1][0], at))


def _makes(it: Match, at: int, values: int) -> bool:
    """Does a linear layer make all the values that the product takes, or those of one sequence that all
    samples attend to? Without shapes: does its result go into the product as it is?"""
    shape, second = it.run.shape(at), it.run.shape(values)
    if shape is None:
        between = it.kinds[at + 1 : values]
        return all(kind.what in ("add", "copy", "dropout") or kind.name in VIEWS for kind in between)
    return second is not None and shape.m * shape.n in (
        batch * second.k * second.n for batch in (second.batch, _heads(it) or 0)
    )


def _makes_second_scores(it: Match, at: int) -> bool:
    """Does it make all queries, or all keys, of a second product that gives scores of the same pairs?"""
    later = (it.run.shape(p) for p in range(at + 1, it.places[1][0]) if it.kinds[p].what == "bmm")
    first, shape, second = it.run.shape(it.start), it.run.shape(at), next(later, None)
    if first is None or shape is None or second is None or shape.batch > 1:
        return False
    same = (second.batch, second.m, second.n) == (first.batch, first.m, first.n)
    rows = second.batch * second.m, second.batch * second.n
    return same and shape.m * shape.n in [second.k * many for many in rows]


def _inside(it: Match, at: int) -> str:
    """What a unit between the products is."""
    kind, (scores,), (softmax,), (values,) = it.kinds[at], *it.places
    if kind.what in ("dropout", "norm"):
        return kind.what
    if kind.what == "gemm":
        if kind.gemm is not None and at > softmax and _makes(it, at, values):
            return "attention.qkv"
        of_heads = (_heads(it) or 0) * it.sizes.get("key_dim", 0)
        if at < softmax and _makes_second_scores(it, at):
            return "attention.qkv"
        adds = _of_each_query(it.run, scores, at) or weighs_pairs(it.run, scores, _heads(it), at)
        if kind.gemm is not None and at < softmax and kind.gemm.n == of_heads and not adds:
            return "attention.qkv"  # of positions
        adds = adds or _mixes_heads(it, at) or _of_offsets(it, at)
        return "attention.other" if kind.gemm is None or adds else ""
    if any(other.what == "bmm" for other in it.kinds[at:softmax]):
        return "attention.scores"
    around = (it.kinds[scores:at], it.kinds[at:softmax])
    if all(any(other.what == "gemm" for other in side) for side in around):
        return "attention.other"  # inside an MLP of distances
    first = it.run.shape(scores)
    whole = first is not None and first.batch * first.m * first.n in map(prod, kind.tensors)
    cast = (
        first is None and at == softmax + 1 and kind.name == "copy_"
    )  # a product's own copies are part of it
    turns = not (whole or cast) and (kind.what == "copy" or kind.tags == {"layout"})
    return "attention.other" if turns else "attention.softmax"


def _in_chunks(it: Match) -> bool:
    """Local attention, whose queries and keys lie in chunks that overlap, gives back the heads' width."""
    queries, chunked = it["rows"] * it["whole"], it["batch"] * it["queries"]
    return max(it["key_dim"], it["keys"]) < it["weighed"] and queries <= chunked <= 4 * queries


def _over_channels(it: Match) -> bool:
    """Are the scores of channels to channels, summed over the tokens (XCiT)? The product behind tells: it
    takes a row of all channels for every token."""
    behind = next((kind.gemm for kind in it.kinds[it.stop :] if kind.what == "gemm"), None)
    heads, wide = _heads(it), it["wide"]
    if behind is None or heads is None or it["queries"] == wide:
        return False
    return (behind.m, behind.k) == (it["batch"] // heads * it["queries"], heads * wide)


def _of_shared_values(it: Match) -> bool:
    """Do all heads take the same values, and so are rows of one product (latent attention, absorbed)?"""
    return it["rows"] < it["batch"] and it["rows"] * it["whole"] == it["batch"] * it["queries"]


def _by_frames(it: Match) -> bool:
    """Is the softmax over the keys of one picture at a time, and so are the values (arXiv 2106.05392)?"""
    return it["rows"] > it["batch"] and it["rows"] * it["weighed"] == it["batch"] * it["keys"]


def _of_two_maps(it: Match) -> bool:
    """Is one half of the weights taken from the other (differential attention, arXiv 2410.05258)?"""
    between = it.kinds[it.places[1][0] : it.stop]
    return 2 * it["rows"] == it["batch"] and any(
        kind.name == "sub" and prod(kind.tensors[0]) == it["rows"] * it["queries"] * it["keys"]
        for kind in between
        if kind.tensors
    )


_TO_SOFTMAX = Gap(_inside, no(what("core")), _NEAR, _on_scores)
_TO_VALUES = Gap(_inside, no(what("core"), _of_activations), _NEAR, _on_scores)
_SOFTMAX = one("attention.softmax", either(what("softmax"), tagged("softmax")), _TO_SOFTMAX, where=_weighs)


def _attention(name: str, scores: str, values: str, where: Callable[[Match], bool] | None = None) -> Grammar:
    """Scores, softmax and values, whose batch, m, n and k have these names."""
    of_scores, of_values = (
        dict(zip(("batch", "m", "n", "k"), sizes.split(), strict=True)) for sizes in (scores, values)
    )
    first = Part("attention.scores", _of_activations, None, of_scores, _near_softmax, 1, 1)
    last = Part("attention.values", what("bmm"), _TO_VALUES, of_values, _takes_values, 1, 1)
    return Grammar(name, (first, _SOFTMAX, last), where=where, shaped=where is not None)


_SCORES = "batch queries keys key_dim"

WITH_SOFTMAX = (
    _attention("over channels", "batch wide wide queries", "batch wide queries wide", _over_channels),
    _attention("over keys", _SCORES, "batch queries value_dim keys"),
    _attention("weights turned", _SCORES, "batch value_dim queries keys"),
    _attention("of shared values", _SCORES, "rows whole value_dim keys", _of_shared_values),
    _attention("by frames", _SCORES, "rows queries value_dim weighed", _by_frames),
    _attention("of two maps", _SCORES, "rows queries value_dim keys", _of_two_maps),
    _attention("in chunks", _SCORES, "rows whole key_dim weighed", _in_chunks),
)


def _heads(it: Match) -> int | None:
    """How many the softmax's tensor tells, or that of the scores."""
    units, batch = it.kinds[it.start : it.stop], it.sizes.get("batch", 0)
    weighs = next((kind for kind in units if _SOFTMAX.of(kind)), units[0])
    given = (tensor for tensor in weighs.tensors if len(tensor) == 4)
    wide = next((t for t in given if t[1] > 1 or t[0] == batch), None)  # and no mask, which is of all heads
    told = wide[1] if wide and batch and batch % wide[1] == 0 else None
    return told if told is None else _of_output(it, told)


def _of_output(it: Match, told: int) -> int:
    """How many make the rows that the linear layer behind takes, where those are all of the values and no
    part of so many: the softmax's tensor can be of windows (local attention, in blocks of the sequence)."""
    behind, values = (
        next((k.gemm for k in it.kinds[it.stop :] if k.what == "gemm"), None),
        it.run.shape(it.stop - 1),
    )
    if behind is None or values is None or behind.m * behind.k != values.batch * values.m * values.n:
        return told
    many, rest = divmod(behind.k, values.n)
    return told if rest or values.batch % many or told % many == 0 else many


def _made_first(it: Match, stop: int) -> dict[int, str]:
    """What is added to the scores can be made right before them, by other products."""
    ends = ("gemm", "core", "softmax", "norm", "convolution")
    near = takewhile(lambda at: it.kinds[at].what not in ends, range(it.start - 1, stop - 1, -1))
    products = [at for at in near if _of_activations(it.kinds[at]) and _of_activations(it.kinds[it.start])]
    made = range(min(products, default=it.start), it.start)
    return {at: "dropout" if it.kinds[at].what == "dropout" else "attention.scores" for at in made}


def _of_places(it: Match, heads: int | None) -> dict[int, str]:
    """The linear layer right before the scores that makes a number for each head of every pair of positions,
    whose softmax is another (ConViT, arXiv 2103.10697)."""
    run = it.run
    at = next((at for at in range(it.start - 1, -1, -1) if PRODUCT(run.kinds[at])), -1)
    if at < 0 or heads is None or not weighs_pairs(run, it.start, heads, at):
        return {}
    moves = takewhile(lambda p: run.kinds[p].what == "copy", range(at - 1, -1, -1))
    biases = takewhile(lambda p: run.kinds[p].what == "add", range(at + 1, it.start))
    return dict.fromkeys((*moves, at, *biases), "attention.other")


def _core_of(found: Match, stop: int) -> Core:
    """The core of a grammar's match, behind that which stops there, by the names of its sizes."""
    sizes, heads = found.sizes, _heads(found)
    parts = _of_places(found, heads) | _made_first(found, stop) | found.components
    tokens = sizes["batch"] // heads * sizes["queries"] if heads and "queries" in sizes else None
    key_dim = sizes.get("key_dim")
    value_dim = sizes.get("value_dim", sizes.get("wide", key_dim))
    scores = [at for at in sorted(parts) if found.kinds[at].what == "bmm" and parts[at] == "attention.scores"]
    weighed = scores and any(kind.name == "exp" for kind in found.kinds[scores[0] : scores[-1]])
    if not (sizes or weighed) and len(scores) > _SCORES_SUMMED:  # of three dimensions: linear layers
        parts = {at: part for at, part in parts.items() if at >= scores[-1]}
        return Core(scores[-1], found.stop - 1, parts)
    return Core(found.start, found.stop - 1, parts, tokens, heads, None, key_dim, value_dim)


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
    few = first is not None and shape.n * first.k < _HEADS_WIDE * shape.k
    return first is not None and few and first.batch % shape.n == 0


def query_rows(run: Run, core: Core) -> int | None:
    """Queries of all heads together."""
    if core.tokens and core.heads:
        return core.tokens * core.heads
    scores = run.shape(core.first)
    return scores.batch * scores.m if scores is not None else None


def fused_core(at: int, kind: Kind) -> Core:
    shape, parts = kind.core, {at: "attention.core"}
    if shape is None:
        return Core(at, at, parts, backward=kind.backward)
    tokens = shape.query_tokens or (shape.batch or 0) * (shape.query_len or 0) or None
    sizes = tokens, shape.heads, shape.kv_heads, shape.head_dim, shape.value_dim
    return Core(at, at, parts, *sizes, kind.backward)
