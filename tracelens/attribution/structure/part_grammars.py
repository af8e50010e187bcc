"""The grammars of parts that stand between layers, beside them and behind them: one value for each."""

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
    tagged,
    unless,
    what,
)
from tracelens.attribution.structure.grammars import first
from tracelens.attribution.structure.norms import adds, adds_number
from tracelens.attribution.structure.units import CUTS, VIEWS
from tracelens.attribution.structure.walk import activates, loses

# MLPs that no attention is beside: of blocks of convolutions, of positions, before and between the layers.
# Two linear layers up and back with an activation between, whose result is added to what they were made of,
# are an MLP in any model that has attention somewhere.

_LINEAR = what("gemm", "bmm")
_IN_MLP = Gap(
    unless("mlp.activation", dropout="dropout", norm="norm"),
    what("activation", "elementwise", "copy", "dropout", "norm", "add"),
)
_TO_SUM = Gap("", no(adds, PRODUCT, what("convolution", "norm")), most=6)

_TO_NORMED_SUM = Gap(unless("", norm="norm"), no(adds, PRODUCT, what("convolution")), most=6)

LONE_MLP = Grammar(
    "MLP",
    (
        one("mlp.up", _LINEAR, batch="batch", m="tokens", n="inner", k="hidden"),
        one("mlp.activation", what("activation"), _IN_MLP),
        one("mlp.down", _LINEAR, _IN_MLP, batch="batch", m="tokens", n="hidden", k="inner"),
        one("residual", adds, _TO_SUM, elements="sum"),
    ),
    where=lambda it: it["inner"] > it["hidden"] and it["sum"] == it["batch"] * it["tokens"] * it["hidden"],
    shaped=True,
)


# An MLP whose activation weighs a second layer of the same (arXiv 2002.05202), whatever its result is for:
# what projects a picture into another model has no sum behind it (transformers models/molmo2).


def _gates(it: Match) -> bool:
    """Wider inside; is one layer's result bent, and the other's multiplied with it?"""
    inside = it["tokens"] * it["inner"]
    bends = it.count(lambda kind: kind.what == "activation" and [prod(t) for t in kind.tensors] == [inside])
    gates = it.count(lambda kind: kind.name == "mul" and [prod(t) for t in kind.tensors] == 2 * [inside])
    return it["inner"] > it["width"] and bends == gates == 1


GATED_MLP = Grammar(
    "gated MLP",
    (
        one("mlp.gate", what("gemm"), m="tokens", n="inner", k="width"),
        one("mlp.up", what("gemm"), _IN_MLP, m="tokens", n="inner", k="width"),
        one("mlp.down", what("gemm"), _IN_MLP, m="tokens", k="inner"),
    ),
    _gates,
    shaped=True,
)


# The same whose layer up makes both halves, which one kernel of torch.compile bends and multiplies.

HALVED_MLP = Grammar(
    "MLP with its gate in the layer up",
    (
        one("mlp.up", what("gemm"), m="tokens", n="both", k="hidden"),
        one("mlp.activation", activates),
        one("mlp.down", what("gemm"), m="tokens", n="hidden", k="inner"),
    ),
    lambda it: it["both"] == 2 * it["inner"] > 2 * it["hidden"],
    shaped=True,
)


# An MLP of the stream and what attention gave, side by side, whose result is added to the stream (SuperGlue,
# arXiv 1911.11763; LoFTR, arXiv 2104.00680; LightGlue, arXiv 2306.13643).


def _of_two(it: Match) -> bool:
    """Does it take both, each as wide as what it gives?"""
    sizes = [tensor[-1] for tensor in it.kinds[it.start].tensors]
    return sizes == 2 * [it["hidden"]] and it["both"] == 2 * it["hidden"]


MESSAGE_MLP = Grammar(
    "MLP of a message",
    (
        one("mlp.other", named("cat")),
        one("mlp.up", what("gemm"), Gap("mlp.other", what("copy")), m="tokens", n="inner", k="both"),
        one("mlp.activation", what("activation"), _IN_MLP),
        one("mlp.down", what("gemm"), _IN_MLP, m="tokens", n="hidden", k="inner"),
        one("residual", adds, _TO_NORMED_SUM),
    ),
    _of_two,
    shaped=True,
)


# An MLP that is added to a linear layer of what it takes (TiDE, arXiv 2304.08424; the last of TimesFM, arXiv
# 2310.10688).

RESIDUAL_BLOCK = Grammar(
    "residual block",
    (
        one("mlp.up", what("gemm"), m="tokens", n="inner", k="given"),
        one("mlp.activation", what("activation")),
        one("mlp.down", what("gemm"), m="tokens", n="width", k="inner"),
        one("other", what("gemm"), Gap("dropout", what("dropout")), m="tokens", n="width", k="given"),
        one("residual", adds, elements="sum"),
    ),
    where=lambda it: it["sum"] == it["tokens"] * it["width"],
    shaped=True,
)


# Series scaled and shifted back to what they were, each by numbers of its own (RevIN, ICLR 2022; TimesFM).


def _by_sample(it: Match, at: int) -> bool:
    """Is the second operand one number for each sample of the first?"""
    whole, numbers = (*it.kinds[at].tensors[:2], (), ())[:2]
    return len(numbers) > 2 and numbers == (*whole[:1], *(1 for _ in whole[1:]))


SCALED_BACK = Grammar(
    "series scaled back",
    (one("other", named("mul"), where=_by_sample), one("other", named("add"), where=_by_sample)),
    new=no(),
)


# A table of positions that is read by a product with rows of one 1 each (Gemma 4's pictures).

ONE_HOT = Grammar(
    "lookup by a product",
    (
        one("embedding", named("one_hot")),
        many("embedding", what("copy")),
        one("embedding", what("bmm", "gemm"), n="hidden", k="places"),
        one("embedding", named("sum"), least=0),
    ),
    where=lambda it: it["places"] > it["hidden"],
    shaped=True,
)


# Between two layers: what is made of every token for the next, as positions of a detector's queries
# (transformers models/dab_detr/modeling_dab_detr.py, DabDetrMLP) or their boxes (models/d_fine), and added to
# no stream.


def _ends(it: Match) -> bool:
    """Is it not the first of more layers? A sigmoid makes shares of what it gives."""
    behind = it.kinds[it.stop : it.stop + 1]
    return not any(kind.what == "activation" and kind.name != "sigmoid" for kind in behind)


INNER_MLP = Grammar(
    "MLP between layers",
    (
        one("mlp.up", what("gemm"), m="tokens", n="inner", k="given"),
        one("mlp.activation", what("activation")),
        one("mlp.down", what("gemm"), m="tokens", n="hidden", k="inner"),
    ),
    _ends,
)

INNER_MLP_OF_THREE = Grammar(
    "MLP of three layers between layers",
    (
        *INNER_MLP.parts[:2],
        one("mlp.other", what("gemm"), m="tokens", n="second", k="inner"),
        one("mlp.activation", what("activation")),
        one("mlp.down", what("gemm"), m="tokens", n="hidden", k="second"),
    ),
    _ends,
)


# What makes masks, boxes or their worth of single tokens behind the last layer (arXiv 2304.02643; DETR, arXiv
# 2005.12872): three linear layers as wide as the stream, and no more than two activations between; under
# torch.compile the first layers of several run, then what bends them, and so on.

# ReLU's kernel also makes the mask for its gradient, and is named after that
_BENDS_ALONE = no(no(activates, tagged("activation_backward")), tagged("norm"))


def _is_narrower(it: Match, at: int) -> bool:
    shape = it.run.shape(at)
    return shape is None or shape.n < it.sizes.get("hidden", 1)


TOKEN_MLP = Grammar(
    "MLP of single tokens",
    (
        some("mlp.up", what("gemm"), m="tokens", n="hidden", k="hidden"),
        some("mlp.activation", _BENDS_ALONE),
        some("mlp.other", what("gemm"), m="tokens", n="hidden", k="hidden"),
        some("mlp.activation", _BENDS_ALONE),
        some("mlp.down", what("gemm"), m="tokens", k="hidden", where=_is_narrower),
    ),
    where=lambda it: _ends(it) and len({*map(len, it.places)}) == 1,
)


# Two streams that a linear layer of both weighs (models/d_fine, DFineGate; models/deimv2).

WEIGHED_STREAMS = Grammar(
    "streams that are weighed",
    (
        one("residual", named("cat"), where=lambda it, at: len({*it.kinds[at].tensors}) == 1),
        one("residual", what("gemm"), m="tokens", n="both", k="both"),
        one("residual", named("sigmoid")),
        some("residual", named("mul"), Gap("", named(*CUTS)), elements="stream"),
        one("residual", adds, elements="stream"),
    ),
    where=lambda it: 2 * it["stream"] == it["tokens"] * it["both"] and len(it.places[3]) == 2,
    shaped=True,
)


# Layers that are narrower than their stream (MobileBERT, arXiv 2004.02984): behind the last MLP a linear
# layer goes back to the width of the stream, and is added to it.


def _scales_channels(it: Match, at: int) -> bool:
    """One number for each channel: of an affine layer in place of a normalization."""
    return it.kinds[at].tensors[1:2] == ((it["wide"],),)


BACK_TO_STREAM = Grammar(
    "back onto a wider stream",
    (
        one("mlp.down", what("gemm"), m="tokens", n="wide", k="hidden"),
        one("residual", adds, Gap("dropout", what("dropout")), elements="sum"),
        one("norm", either(what("norm"), named("mul")), least=0, where=_scales_channels, elements="sum"),
        one("norm", what("add"), least=0, where=_scales_channels, elements="sum"),
    ),
    where=lambda it: it["wide"] > it["hidden"] and it["sum"] == it["tokens"] * it["wide"],
    shaped=True,
)


# Adaptive normalization without shapes (arXiv 2212.09748): an activation of a condition, which no product
# made right before, a GEMM of that, and the normalization that it is for.


def _of_condition(it: Match, at: int) -> bool:
    before = it.kinds[at - 1].what if at else ""
    return before in ("add", "elementwise", "copy") and not it.kinds[at].tensors


def _before_norm(it: Match) -> bool:
    """Ends it with a GEMM, or a sum of one of low rank that is cut into parts, and is a normalization right
    behind it, as one operator or written out?"""
    last, behind = it.kinds[it.stop - 1], it.kinds[it.stop : it.stop + _CUT]
    cut = any(kind.name in CUTS for kind in behind[:1])
    if last.what == "activation" or (last.what == "add" and not (cut and it.count(what("gemm")) > 1)):
        return False
    # a scale that was cut off is one more than that
    made = (kind for kind in behind if not (cut and adds_number(kind)))
    parts = (kind for kind in made if kind.name not in CUTS | VIEWS | {"unsqueeze"})
    first = [kind.name if kind.what == "elementwise" else kind.what for kind in parts][:2]
    return first[first[:1] == ["copy"] :][:1] in (["norm"], ["pow"])


_CUT = 16  # units: a result is cut into shifts, scales and gates, each a view


CONDITION = Grammar(
    "condition",
    (
        one("other", what("activation"), where=_of_condition),
        one("other", what("gemm")),
        many("other", what("activation", "gemm"), Gap("other", named(*CUTS))),  # of two streams; of low rank
        one("other", named("add"), least=0),  # with what all layers share
    ),
    where=_before_norm,
)


# Times without shapes (arXiv 2006.11239): sines of frequencies, side by side, which an MLP takes as they are.

_TO_ANGLES = Gap("embedding", either(what("copy"), named("mul")), most=4)
_PREPARED = Gap("embedding", either(what("copy"), named("cat")), most=3)
_WAVE = named("sin", "cos")


def _before_tokens(it: Match) -> bool:
    """Are no maps convolved next?"""
    ends = ("convolution", "norm", "gemm", "core", "embedding")
    return next((kind.what for kind in it.kinds[it.stop :] if kind.what in ends), "") != "convolution"


TIME = Grammar(
    "time",
    (
        one("embedding", named("arange", "linspace"), where=lambda it, at: not it.kinds[at].tensors),
        one("embedding", named("exp"), Gap("embedding", either(what("copy"), named("mul", "div")), most=4)),
        one("embedding", _WAVE, _TO_ANGLES),
        one("embedding", _WAVE),
        one("embedding", named("cat")),
        one("embedding", what("gemm"), _PREPARED),
        one("embedding", what("activation")),
        one("embedding", what("gemm")),
    ),
    _before_tokens,
)

# Positions without shapes, of rows and of columns: sines and cosines of each, side by side, as detectors have
# them (arXiv 2005.12872).

_COUNTED = ("cumsum", "arange", "repeat", "sub", "mul", "div", "floor_divide", "pow")
_PLACES = either(what("copy", "add"), named(*_COUNTED))
_OF_ONE = (one("embedding", _WAVE), one("embedding", _WAVE), one("embedding", named("cat", "stack")))

SINES = Grammar(
    "sines of rows and columns",
    (
        one("embedding", named("cumsum", "arange"), where=lambda it, at: not it.kinds[at].tensors),
        one("embedding", _WAVE, Gap("embedding", _PLACES)),
        *_OF_ONE[1:],
        *_OF_ONE,
        one("embedding", named("cat")),
    ),
)

# Classes and texts that are dropped by chance, for guidance without a classifier (arXiv 2207.12598).

GUIDED = Grammar(
    "dropped condition",
    (
        one("embedding", named("rand"), where=lambda it, at: not it.kinds[at].tensors),
        one("embedding", named("lt")),
        one("embedding", named("where"), Gap("embedding", what("copy"))),
    ),
)


# Heads without shapes, wherever they stand: of chunks of tokens, of a second token ahead, behind the layers.
# A loss by its name takes what the GEMM before it gives, cast, biased, scaled or capped; labels are put one
# further between.

_HANDS_ON = Gap("", what("copy", "add", "helper", "elementwise", "activation"), most=12)

_OF_NUMBERS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


def _takes_result(it: Match, at: int) -> bool:
    """A loss; one of numbers does not take a sum, as a layer gives to its stream."""
    adds = any(kind.what == "add" for kind in it.kinds[it.start : at])
    return loses(it.run, at) and not (adds and it.kinds[at].name in _OF_NUMBERS)


HEAD = Grammar("head", (one("logits", what("gemm")), one("", no(), _HANDS_ON, where=_takes_result)))


# Dropout that is written out: of what is drawn by chance for every element a mask is made, that mask taken,
# and what is left is scaled (transformers models/sew_d/modeling_sew_d.py, XDropout).

DROPOUT = Grammar(
    "dropout",
    (
        one("dropout", named("bernoulli", "bernoulli_"), elements="all"),
        many("dropout", named("sub", "rsub", "to", "copy_", "bitwise_not", "logical_not")),
        one("dropout", named("where", "masked_fill", "masked_fill_", "mul", "mul_"), elements="all"),
        one("dropout", named("mul", "mul_", "div", "div_"), least=0, elements="all"),
    ),
)


# Stochastic depth (arXiv 1603.09382) wherever it stands (timm layers/drop.py, drop_path): a number by chance
# for each sample, scaled, and the product with it.

DROP_PATH = Grammar(
    "stochastic depth",
    (
        one("dropout", named("bernoulli_"), elements="samples"),
        one("dropout", named("div_"), elements="samples"),
        one("dropout", named("mul"), elements="all"),
    ),
    where=lambda it: it["all"] > it["samples"],
    shaped=True,
)


#: The same as many repositories have copied it (timm 0.3 to 0.4): the number is rounded down, what is left
#: divided.
DROP_PATH_FLOORED = Grammar(
    "stochastic depth, rounded",
    (
        one("dropout", named("rand", "uniform_")),
        one("dropout", named("add"), elements="samples"),
        one("dropout", named("floor", "floor_"), elements="samples"),
        one("dropout", named("div"), elements="all"),
        one("dropout", named("mul"), elements="all"),
    ),
    where=lambda it: it.sizes.get("all", 1) > it.sizes.get("samples", 0),
)


# Gradient clipping (``torch.nn.utils.clip_grad_norm_``), of all units of a step: norms of all gradients, then
# their common scale. Only the scaling proves that something is clipped.

_NORM = named("_foreach_norm", "linalg_vector_norm", "norm")
_OF_NORMS = named(
    *("stack", "cat", "add", "reciprocal", "mul", "div", "clamp", "clamp_max", "minimum", "to", "copy_"),
    *("_to_copy", "isfinite", "isnan", "isinf", "logical_or", "lift_fresh", "expand", "item", "fill_"),
    "_local_scalar_dense",
)

CLIPPING = Grammar(
    "gradient clipping",
    (
        one("grad_clip", _NORM, where=first(_NORM, no(_NORM, _OF_NORMS))),
        many("grad_clip", either(_NORM, _OF_NORMS)),
        some("grad_clip", named("_foreach_mul_", "mul_")),
    ),
    # the gradients' norms are many, or one call of all of them
    where=lambda it: it.count(_NORM) > 1 or it.kinds[it.start].name == "_foreach_norm",
    new=no(),
)


# Heads that bring the last layer's tokens to another space, to be compared there (SimCLR, arXiv 2002.05709;
# MoCo v3; DINO): linear layers, each of what the one before gives, and none comes back to the stream's width.


def _takes_last(it: Match, at: int) -> bool:
    before = next((it.run.shape(place) for places in reversed(it.places) for place in reversed(places)), None)
    shape = it.run.shape(at)
    return before is not None and shape is not None and (shape.m, shape.k) == (before.m, before.n)


_IN_HEAD = Gap("other", no(PRODUCT, what("softmax", "loss", "embedding", "convolution")), most=24)

PROJECTION_HEAD = Grammar(
    "projection head",
    (
        one("other", what("gemm"), m="rows", k="hidden"),
        some("other", what("gemm"), _IN_HEAD, where=_takes_last),
    ),
    where=lambda it: (
        any(kind.what == "activation" for kind in it.kinds[it.start : it.stop])
        and all(
            (shape := it.run.shape(at)) and shape.n != it["hidden"] for places in it.places for at in places
        )
    ),
    shaped=True,
)


# What brings tokens from one stream to another of another width, both with layers of their own (CrossViT,
# arXiv 2103.14899): normed, bent, and a linear layer.

TO_OTHER_STREAM = Grammar(
    "to another stream",
    (
        one("", what("norm")),
        one("other", what("activation")),
        one("other", what("gemm"), m="rows", n="made", k="given"),
    ),
    where=lambda it: it["made"] != it["given"],
    shaped=True,
)

CONDITIONS = (CONDITION, TIME, SINES, GUIDED)
DROPOUTS = (DROPOUT, DROP_PATH_FLOORED)
INNER_MLPS = (INNER_MLP, INNER_MLP_OF_THREE)
LONE_MLPS = (LONE_MLP, GATED_MLP, HALVED_MLP, MESSAGE_MLP, RESIDUAL_BLOCK, SCALED_BACK, WEIGHED_STREAMS)
