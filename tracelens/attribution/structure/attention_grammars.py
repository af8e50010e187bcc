"""The grammars of attention whose core is no scores, softmax and values: one value for each."""

from __future__ import annotations

from math import prod

from tracelens.attribution.structure.grammar import (
    PRODUCT,
    Gap,
    Grammar,
    Match,
    either,
    many,
    named,
    no,
    one,
    some,
    unless,
    what,
)
from tracelens.attribution.structure.grammars import first
from tracelens.attribution.structure.units import VIEWS, Kind

# Attention cores other than scores, softmax and values (``cores.py``), which reads these sizes of them: batch
# (of all heads), queries, key_dim, value_dim.


def _in_blocks(kind: Kind) -> bool:
    """A GEMM's kernel whose grid has several blocks in z."""
    return kind.what == "gemm" and kind.depth > 1


def _is_whole(it: Match, at: int) -> bool:
    """Are the blocks batches? Behind those of a sum that is split a kernel adds them up."""
    return not any(kind.what == "helper" for kind in it.kinds[at + 1 : at + 2])


_IN_HEADS = unless("attention.softmax", dropout="dropout", copy="attention.other")
_TO_SOFTMAX = no(PRODUCT, what("softmax"))

KERNELS = Grammar(
    "attention of kernels without operators",
    (
        one("attention.scores", _in_blocks, where=_is_whole, depth="depth"),
        one("attention.softmax", what("softmax"), Gap(_IN_HEADS, _TO_SOFTMAX)),
        one("attention.values", _in_blocks, Gap(_IN_HEADS, no(PRODUCT)), where=_is_whole, depth="depth"),
    ),
)

_GOES_BACK = Gap("attention.other", no(PRODUCT))
_BENDS_BACK = Gap("attention.softmax", no(PRODUCT))
KERNELS_BACK = Grammar(
    "the same backward",
    (
        one("attention.values", _in_blocks, where=_is_whole, depth="depth"),
        one("attention.values", _in_blocks, _GOES_BACK, where=_is_whole, depth="depth"),
        one("attention.softmax", what("softmax"), Gap("attention.softmax", _TO_SOFTMAX)),
        one("attention.scores", _in_blocks, _BENDS_BACK, where=_is_whole, depth="depth"),
        one("attention.scores", _in_blocks, _GOES_BACK, where=_is_whole, depth="depth"),
    ),
)

# Efficient attention (arXiv 1812.01243): a softmax of the keys, their GEMM with the values, and that of the
# queries with what came of it.

_OTHER = Gap("attention.other", _TO_SOFTMAX)
_TO_QUERIES = Gap("attention.other", no(PRODUCT))

FACTORED = Grammar(
    "efficient attention",
    (
        one("attention.softmax", what("softmax"), elements="weights"),
        one("attention.scores", PRODUCT, _OTHER, batch="batch", m="key_dim", n="value_dim", k="queries"),
        one("attention.values", PRODUCT, _TO_QUERIES, batch="batch", m="queries", n="value_dim", k="key_dim"),
    ),
    where=lambda it: it["weights"] == it["batch"] * it["queries"] * it["key_dim"] and it["batch"] > 1,
    shaped=True,
)

# Linear attention: GEMMs between two linear layers, the first two of them scores and values, with work on the
# scores and on nothing else between.


def _sums(kind: Kind) -> bool:
    """A GEMM that sums over something: what is multiplied with a table or a mask does not."""
    return kind.what == "bmm" and kind.gemm is not None and kind.gemm.k > 1


def _by_weights(it: Match) -> bool:
    """Do both take a matrix for each head, the same for all samples? So do linear layers of a head's
    channels (RG-LRU, arXiv 2402.19427)."""
    taken = (it.kinds[it.places[part][0]].tensors[:2] for part in (0, 2))
    return all(len(tensors) == 2 and len(tensors[1]) < len(tensors[0]) for tensors in taken)


def _works_on_scores(it: Match) -> bool:
    """Is all between the two GEMMs as large as the scores of tokens with themselves, or a number for each row
    of them (experts in a batch have rows of another number than their width), and does the second give the
    heads' width back, or are pairs of tokens masked between, or decayed?"""
    rows, between = it["batch"] * it["rows"], it.kinds[it.places[0][0] + 1 : it.places[2][0]]
    alone = all(kind.tensors and prod(kind.tensors[0]) in (rows * it["keys"], rows) for kind in between)
    pairs = {t[-2:] for kind in between for t in kind.tensors[1:] if prod(t) < rows * it["keys"]}
    itself = it["key_dim"] == it["value_dim"] or (it["rows"], it["keys"]) in pairs
    return it["rows"] == it["keys"] and alone and itself and not _by_weights(it)


_ENDS_HEADS = what("gemm", "core", "softmax", "loss")
_OPENS = first(_sums, either(_ENDS_HEADS, what("convolution")))
_ON_SCORES = Gap("attention.scores", no(_ENDS_HEADS, _sums))

LINEAR = Grammar(
    "linear attention",
    (
        one("attention.scores", _sums, where=_OPENS, batch="batch", m="rows", n="keys", k="key_dim"),
        one("attention.scores", what("elementwise"), _ON_SCORES),
        one("attention.values", _sums, _ON_SCORES, batch="batch", m="rows", n="value_dim", k="keys"),
        many("attention.values", _sums, Gap("attention.other", no(_ENDS_HEADS))),
    ),
    where=_works_on_scores,
    shaped=True,
)

# A sigmoid of every score in place of the softmax (arXiv 2409.04431).

SIGMOID = Grammar(
    "attention with a sigmoid",
    (
        one("attention.scores", _sums, batch="batch", m="rows", n="keys", k="key_dim"),
        one("attention.scores", named("sigmoid"), _ON_SCORES, elements="weights"),
        one("attention.values", _sums, _ON_SCORES, batch="batch", m="rows", n="value_dim", k="keys"),
    ),
    where=lambda it: it["weights"] == it["batch"] * it["rows"] * it["keys"] and not _by_weights(it),
    shaped=True,
)

# An activation of every score in place of the softmax (HSTU, arXiv 2402.17152), of tokens with themselves:
# experts that are batched are two such products as well, up and back.


def _of_itself(it: Match) -> bool:
    """Are scores of as many keys as queries, one head beside the other?"""
    (bent,) = it.places[1]
    weights = it.kinds[bent].tensors[0]
    return it["rows"] == it["keys"] and it["key_dim"] == it["value_dim"] and len(weights) == _OF_SCORES


_OF_SCORES = 4  # dimensions: samples, heads, queries, keys


def _on_all(it: Match, at: int) -> str:
    """Work on all scores, or on what is added to them (positions)."""
    return "attention.softmax" if it["weights"] in map(prod, it.kinds[at].tensors) else "attention.other"


_ON_ALL = Gap(_on_all, no(_ENDS_HEADS, _sums))

POINTWISE = Grammar(
    "attention with an activation",
    (
        one("attention.scores", _sums, batch="batch", m="rows", n="keys", k="key_dim"),
        one("attention.softmax", what("activation"), _ON_ALL, elements="weights"),
        one("attention.values", _sums, _ON_ALL, batch="batch", m="rows", n="value_dim", k="keys"),
    ),
    where=lambda it: it["weights"] == it["batch"] * it["rows"] * it["keys"] and _of_itself(it),
    shaped=True,
)

# Linear attention with the weights' sum as one value more, which the others are divided by: keys are summed
# with the values over all tokens first, and each query reads what came of it (arXiv 2205.14756, 2410.10629).

_BETWEEN_SUMS = Gap("attention.other", no(_ENDS_HEADS, _sums))


def _summed_first(name: str, *, turned: bool) -> Grammar:
    """Both GEMMs give their results with values in columns, or turned with values in rows."""
    one_row, other = ("value_dim", "key_dim") if turned else ("key_dim", "value_dim")
    row, column = ("value_dim", "queries") if turned else ("queries", "value_dim")
    return Grammar(
        name,
        (
            one("attention.scores", _sums, where=_OPENS, batch="batch", m=one_row, n=other, k="queries"),
            one("attention.values", _sums, _BETWEEN_SUMS, batch="batch", m=row, n=column, k="key_dim"),
            one("attention.other", named("div"), _BETWEEN_SUMS),
        ),
        where=lambda it: it["value_dim"] == it["key_dim"] + 1 < it["queries"],
        shaped=True,
    )


BY_SUMS = (
    _summed_first("linear attention by sums", turned=False),
    _summed_first("turned linear attention by sums", turned=True),
)

# A linear layer makes the weights by itself, without keys (VOLO, arXiv 2106.13112).

_MADE = Gap(unless("attention.scores", dropout="dropout"), _TO_SOFTMAX)
_WEIGHED = Gap(unless("attention.softmax", dropout="dropout"), no(PRODUCT))

MADE_WEIGHTS = Grammar(
    "attention without keys",
    (
        one("attention.scores", what("gemm"), m="tokens", n="made"),
        one("attention.softmax", what("softmax"), _MADE, elements="weights"),
        one("attention.values", what("bmm"), _WEIGHED, batch="batch", m="rows", n="value_dim", k="keys"),
    ),
    where=lambda it: (
        it["tokens"] * it["made"] == it["weights"] == it["batch"] * it["rows"] * it["keys"] and it["keys"] > 1
    ),
    shaped=True,
)

# Deformable attention (arXiv 2010.04159): linear layers make values, places to read them at and, through a
# softmax, weights; values are read from maps at those places and summed by those weights.

_BESIDE_SAMPLES = Gap("attention.other", no(PRODUCT, what("softmax", "norm", "loss")))

DEFORMABLE = Grammar(
    "deformable attention",
    (
        one("attention.qkv", what("gemm")),
        one("attention.other", what("gemm"), _BESIDE_SAMPLES, n="coordinates"),
        one("attention.other", what("gemm"), _BESIDE_SAMPLES, n="weights"),
        one("attention.softmax", what("softmax"), _BESIDE_SAMPLES),
        some("attention.values", named("grid_sampler_2d"), _BESIDE_SAMPLES),
        one("attention.output", what("gemm"), _BESIDE_SAMPLES),
    ),
    where=lambda it: it.sizes.get("coordinates", 0) == 2 * it.sizes.get("weights", 0),
)

# The same of the stream itself, which nothing makes values of (D-FINE, arXiv 2410.13842).

DEFORMABLE_ALONE = Grammar(
    "deformable attention of the stream",
    (
        *DEFORMABLE.parts[1:5],
        some(
            "attention.values", named("sum", "mul"), Gap("attention.values", what("copy", "elementwise"), 6)
        ),
    ),
    where=DEFORMABLE.where,
)

# Additive attention (arXiv 2108.09084, 2303.15446): one score for each token, made of its query; normed by a
# softmax or by their length they weigh the sum of all queries, and each key is multiplied with that.

_BESIDE_SCORES = Gap("attention.other", no(PRODUCT, what("softmax", "norm", "loss", "convolution")))

ADDITIVE = Grammar(
    "additive attention",
    (
        some("attention.qkv", what("gemm"), _BESIDE_SCORES, m="tokens", n="width", k="hidden"),
        one("attention.scores", what("gemm"), _BESIDE_SCORES, m="tokens", n="one", k="width"),
        one(
            "attention.softmax",
            either(what("softmax"), named("linalg_vector_norm")),
            _BESIDE_SCORES,
            elements="tokens",
        ),
        one("attention.values", named("sum"), _BESIDE_SCORES),
        some("attention.output", what("gemm"), _BESIDE_SCORES, m="tokens", k="width"),
    ),
    where=lambda it: it["one"] == 1,
    shaped=True,
)

# Additive attention of one query (arXiv 1409.0473): its linear layer and that of the keys are added, and a
# core whose scores are products with one vector takes what comes of it.


def _of_one_vector(it: Match) -> bool:
    scores = it.run.shape(it.stop) if it.stop < len(it.run) else None
    return scores is not None and (scores.m, scores.n, scores.k) == (
        max(it["keys"], it["one"]),
        1,
        it["width"],
    )


TO_KEYS = Grammar(
    "query and keys of additive attention",
    (
        one("attention.qkv", what("gemm"), m="keys", n="width"),
        one("attention.qkv", what("gemm"), m="one", n="width"),
        one("attention.other", named("add")),
        one("attention.other", what("activation")),
    ),
    where=_of_one_vector,
    shaped=True,
)

# The same on maps (arXiv 2206.02680): one convolution makes one score, a key and a value for each place.

SEPARABLE = Grammar(
    "separable attention",
    (
        one(
            "attention.qkv",
            lambda kind: kind.what == "convolution" and [*map(len, kind.tensors[:2])] == [4, 4],
        ),
        one("attention.softmax", what("softmax"), _BESIDE_SCORES),
        one("attention.values", named("sum"), _BESIDE_SCORES),
        one("attention.output", what("convolution"), _BESIDE_SCORES),
    ),
    where=lambda it: next(t[0] == 2 * t[1] + 1 for t in it.kinds[it.start].tensors[1:] if len(t) == 4),
    shaped=True,
)

# Series are put together by how they agree with themselves some steps later (arXiv 2106.13008): the product
# of the queries' and the keys' Fourier transforms makes the scores of all lags, and the values are moved by
# the best of them and summed.

_LAGS = Gap("attention.softmax", no(PRODUCT, what("norm", "loss", "convolution")))
_MOVED = Gap("attention.values", no(PRODUCT, what("norm", "loss", "convolution", "softmax", "dropout")))

AUTOCORRELATION = Grammar(
    "autocorrelation",
    (
        one("attention.scores", named("mul")),
        one(
            "attention.scores",
            named("_fft_c2r"),
            Gap("attention.scores", either(what("copy"), named(*VIEWS))),
        ),
        one("attention.softmax", what("softmax"), _LAGS),
        some("attention.values", named("add_", "add"), _MOVED),
    ),
)

#: Attention cores, in the order in which they are looked for.
CORES = (AUTOCORRELATION, KERNELS, FACTORED, LINEAR, SIGMOID, POINTWISE, *BY_SUMS, MADE_WEIGHTS)

AT_PLACES = (DEFORMABLE, DEFORMABLE_ALONE)
WITHOUT_SCORES = (ADDITIVE, SEPARABLE, TO_KEYS)
