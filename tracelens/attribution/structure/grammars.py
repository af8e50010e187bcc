"""The grammars of what can be told wherever it stands, whatever the model is: one value for each.

A new kind of layer is one grammar here, in the row of those that it is looked for with, and its test
(docs/add-a-layer.md); attention's are in ``attention_grammars.py``. The words are those of ``grammar.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import dropwhile, takewhile

from tracelens.attribution.structure.grammar import (
    PRODUCT,
    Gap,
    Grammar,
    InPlace,
    Match,
    Test,
    either,
    many,
    named,
    no,
    one,
    some,
    unless,
    what,
)
from tracelens.attribution.structure.norms import adds, written_norms
from tracelens.attribution.structure.units import CUTS, VIEWS, Kind
from tracelens.attribution.structure.walk import MOST_EXPERTS


def back_to(stop: Test, kinds: Sequence[Kind], at: int) -> Iterator[Kind]:
    """Units from a place back to the first that stops."""
    for place in range(at, -1, -1):
        if stop(kinds[place]):
            return
        yield kinds[place]


def first(test: Test, stop: Test) -> InPlace:
    """Places that no such unit stands before, back to the first that stops."""
    return lambda it, at: not any(map(test, back_to(stop, it.kinds, at - 1)))


# State-space mixers (Mamba, Mamba-2, gated DeltaNet): GEMMs of the stream, a short causal convolution of each
# channel by itself, a scan along the sequence whose state decays (an exponential), and a GEMM that comes back
# to the stream (state-spaces/mamba mamba_ssm/modules/mamba2.py, fla-org/flash-linear-attention at
# fla/layers/gated_deltanet.py). A short convolution without a decay is none of them, and neither is one with
# a window over pictures.

_TAPS = range(2, 9)  # all public models take 3 or 4
_DECAYS = named("exp", "exp_")
_ASIDE = ("copy", "dropout")
_ATTENDS = what("core", "softmax")
_ENDS_BRANCH = either(_DECAYS, what("activation", "norm", "convolution", "embedding", "loss"))


def _of_channels(kind: Kind) -> bool:
    """A short convolution over the sequence, of each channel by itself: weight [channels, 1, taps]."""
    wide = [t for t in kind.tensors if len(t) == 3]
    if kind.what != "convolution" or len(wide) < 2:
        return False
    channels, within, taps = wide[1]
    return within == 1 and wide[0][1] == channels > 1 and taps in _TAPS


def _over_sequence(kind: Kind) -> bool:
    """Without shapes any convolution over one dimension."""
    return not kind.tensors and kind.what == "convolution" and kind.name == "conv1d"


def _of_adapter(it: Match, at: int) -> bool:
    """A low-rank adapter's scale behind its second product, or the sum behind that (arXiv 2106.09685)."""
    scale = at - 1 if it.kinds[at].what == "add" else at
    return scale > it.start and it.kinds[scale].name == "mul" and it.kinds[scale - 1].what == "gemm"


def _in_mixer(it: Match, at: int) -> str:
    """A norm that is written out is part of the scan: queries and keys are normed in it, and its output. A
    batched GEMM ahead of the decays makes the steps' inputs, of each head by itself (Zamba). What is made for
    the mixer can be added to the stream, and that normed, before it takes it (Zamba 2)."""
    if at < it.places[1][0] and _of_adapter(it, at):
        return "ssm.projection"
    before = range(it.start, at + 1 if at < it.places[0][-1] else it.start)
    sums = [p for p in before if adds(it.kinds[p]) and not _of_adapter(it, p)]
    if sums and it.kinds[at].what != "gemm":
        return "residual" if at == sums[-1] else "norm"
    own = {"norm": "norm", "gemm": "ssm.projection", "convolution": "ssm.conv", "bmm": "ssm.scan"}
    behind = "ssm.conv" if it.kinds[at - 1].what == "convolution" else "ssm.scan"
    moves = takewhile(lambda kind: kind.what == "copy", it.kinds[at:])
    ahead = not any(map(_DECAYS, it.kinds[it.start : at]))
    if ahead and it.kinds[at + sum(1 for _ in moves)].what == "bmm":
        return "ssm.projection"
    return own.get(it.kinds[at].what, behind)


def _is_wide(it: Match) -> bool:
    """Are the GEMMs that open it together as wide as the convolution at least?"""
    opens, (conv,) = (it.kinds[at].gemm for at in it.places[0]), it.places[1]
    channels = next(t[1] for t in it.kinds[conv].tensors if len(t) == 3)
    return sum(shape.n for shape in opens if shape is not None) >= channels


def _is_added(it: Match, at: int) -> bool:
    """Behind a decay: is its result added to something, scaled or not, and that no bias before an activation?
    What it is added to can be several streams that a batched GEMM mixes (arXiv 2409.19606), or what attention
    beside it gives, ahead of the stream (arXiv 2507.22448)."""
    behind = [kind for kind in it.kinds[at + 1 :] if kind.what not in _ASIDE and kind.name != "mul"]
    beside = [*takewhile(no(_ATTENDS, _ENDS_BRANCH), behind)]
    attends = [kind.what for kind in beside].count("gemm") in (1, 2, 3)
    output = [*dropwhile(no(what("gemm")), behind[len(beside) :])] if attends else []
    summed = [kind.what for kind in output[1:3]] == ["add", "add"] and _ATTENDS(behind[len(beside)])
    rest = (kind.what for kind in behind)
    first = next(rest, "")
    added = next(rest, "") if first == "bmm" else first
    summed |= added == "add" and next(rest, "") != "activation"
    return summed and any(map(_DECAYS, it.kinds[it.start : at]))


GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
_NO_MIXER = either(
    what("core", "embedding", "loss", "fused_logits_loss", "optimizer"),
    named("topk", *GROUPED),  # a router's scores can be exponentials, too
)
_NOT_AHEAD = either(_NO_MIXER, what("gemm", "bmm", "norm", "softmax", "activation"))
_AHEAD = Gap(_in_mixer, no(_NOT_AHEAD, _of_channels))
_TO_CONVOLUTION = Gap(_in_mixer, no(_NOT_AHEAD, _of_channels, adds))
_AHEAD_UNSHAPED = Gap(  # an adapter's sum is of what is before
    _in_mixer,
    no(_NOT_AHEAD, _over_sequence),
    where=lambda it, at: it.kinds[at].what != "add" or _of_adapter(it, at),
)
_SCAN = Gap(_in_mixer, no(_NO_MIXER))

MIXER = Grammar(
    "state-space mixer",
    (
        some(_in_mixer, what("gemm"), _AHEAD, m="tokens", k="hidden"),
        one(_in_mixer, _of_channels, _TO_CONVOLUTION),
        one(_in_mixer, what("gemm"), _SCAN, n="hidden"),
    ),
    where=lambda it: it.count(_DECAYS) > 0 and _is_wide(it),
    shaped=True,
)
MIXER_WITHOUT_SHAPES = Grammar(
    "state-space mixer without shapes",
    (
        some(_in_mixer, what("gemm"), _AHEAD_UNSHAPED),
        one(_in_mixer, _over_sequence, _AHEAD_UNSHAPED),
        one(_in_mixer, what("gemm"), _SCAN, where=_is_added),
    ),
)

# Gated convolution (transformers models/lfm2/modeling_lfm2.py, Lfm2ShortConv; models/lfm3_vl, of each picture
# by itself): a GEMM makes two gates and what they gate, convolutions of each channel stand between the gates,
# and a GEMM comes back to the stream.


def by_channel(kind: Kind) -> bool:
    """A convolution of each channel by itself, in any rank."""
    wide = [t for t in kind.tensors if len(t) >= 3]
    return kind.what == "convolution" and len(wide) > 1 and (wide[0][1], 1) == wide[1][:2]


_IN_CONVOLUTION = Gap("other", what("elementwise", "copy"))

GATED_CONVOLUTION = Grammar(
    "gated convolution",
    (
        one("other", what("gemm"), m="tokens", n="made", k="hidden"),
        one("other", named("mul"), _IN_CONVOLUTION),
        some("other", either(by_channel, _over_sequence), _IN_CONVOLUTION),
        one("other", named("mul"), _IN_CONVOLUTION),
        one("other", what("gemm"), _IN_CONVOLUTION, m="tokens", n="hidden", k="hidden"),
    ),
    # where shapes are known: two gates and what they gate, each as wide as the stream
    where=lambda it: it.sizes.get("made", 0) == 3 * it.sizes.get("hidden", 0),
)

# Indexer of sparse attention (arXiv 2512.02556; transformers models/deepseek_v32/modeling_deepseek_v32.py):
# scores of queries and keys of its own, weighed and summed over the heads, of which the largest are chosen.


def _part_or_norm(it: Match, at: int, part: str) -> str:
    """A part that can have a norm of its own."""
    steps = written_norms(it.run.part(range(it.start, it.stop)))
    return "norm" if at - it.start in steps or it.kinds[at].what == "norm" else part


def _adds_nothing(it: Match, at: int) -> bool:
    """No sum but that of a norm's epsilon: behind it there would be another layer."""
    behind = [kind.name for kind in it.kinds[at + 1 : at + 2]]
    return it.kinds[at].what != "add" or behind in (["rsqrt"], ["sqrt"], ["pow"])


_OF_QUERIES = partial(_part_or_norm, part="attention.other")
_IN_INDEXER = Gap(unless("attention.other", norm="norm"), no(PRODUCT, what("softmax", "loss", "embedding")))

INDEXER = Grammar(
    "indexer",
    (
        one("", what("gemm")),  # the last that makes queries, keys and values
        one("attention.other", what("gemm"), Gap(_OF_QUERIES, no(PRODUCT), where=_adds_nothing)),
        one("attention.other", what("gemm"), Gap("attention.other", no(PRODUCT, what("norm", "softmax")))),
        one("norm", what("norm"), Gap("attention.other", what("copy", "helper", "elementwise"))),
        one("attention.scores", what("bmm"), _IN_INDEXER),
        one("attention.other", what("activation"), _IN_INDEXER),
        one("attention.other", what("gemm"), _IN_INDEXER),
        one("attention.scores", what("bmm"), _IN_INDEXER),
        some("attention.other", named("topk"), _IN_INDEXER),
    ),
)

# Convolutions of Conformers (arXiv 2005.08100) between linear layers: one makes what is gated and its gate,
# and the convolution's result is normed and bent; it can leave out every other place.

_TO_BEND = Gap(partial(_part_or_norm, part="other"), no(PRODUCT, what("softmax", "loss", "embedding")))


def _is_gated_inside(it: Match) -> bool:
    """By its sizes, or by the gate's own name where there are none."""
    if it.sizes:
        return it["made"] == 2 * it["inner"] and it["tokens"] % it["left"] == 0
    return it.count(named("glu")) == 1


CONVOLUTION_MODULE = Grammar(
    "convolution module",
    (
        one("other", what("gemm"), m="tokens", n="made", k="hidden"),
        some(
            "other",
            either(by_channel, _over_sequence),
            Gap("other", what("elementwise", "copy", "activation")),
        ),
        one("other", what("activation"), _TO_BEND),
        one("other", what("gemm"), _IN_CONVOLUTION, m="left", n="hidden", k="inner"),
    ),
    where=_is_gated_inside,
)

# A short convolution of each channel whose result is added to what it takes, before that is added to the
# stream (transformers models/inkling/modeling_inkling.py, InklingShortConvolution).


def _joins_stream(it: Match) -> bool:
    """Is what comes of it added once more? In attention, of keys and values, it is not."""
    return any(adds(kind) for kind in it.kinds[it.stop : it.stop + 1])


_LAYS_OUT = Gap("other", either(what("copy"), named(*VIEWS, *CUTS)))
_CONVOLVED = (
    one("other", _of_channels, Gap("other", named(*VIEWS))),
    one("other", adds, _LAYS_OUT, elements="stream"),
    many("other", either(what("copy"), named("mul", "div")), elements="stream"),
)
CONVOLUTIONS = (
    CONVOLUTION_MODULE,
    Grammar("short convolution, cast", (one("other", what("copy")), *_CONVOLVED), _joins_stream, shaped=True),
    Grammar("short convolution", _CONVOLVED, _joins_stream, shaped=True),
)

# Norms whose result is gated by a low-rank MLP of itself (transformers models/axk2/modeling_axk2.py).

_NORM_STEPS = 12
_CASTS = Gap("norm", what("copy"), most=1)


def _is_normed(it: Match, at: int) -> bool:
    """Is what the unit before gives normed, by one operator or written out?"""
    start = max(0, at - _NORM_STEPS)
    ahead = it.run.part(range(start, at))
    return at > 0 and (it.kinds[at - 1].what == "norm" or at - 1 - start in written_norms(ahead))


GATED_NORM = Grammar(
    "gated norm",
    (
        one("mlp.up", what("gemm"), where=_is_normed, m="tokens", n="rank", k="hidden"),
        one("mlp.activation", what("activation")),
        one("mlp.down", what("gemm"), m="tokens", n="hidden", k="rank"),
        one("norm", named("sigmoid"), _CASTS, elements="stream"),
        one("norm", named("mul"), _CASTS, elements="stream"),
        one("norm", what("copy"), least=0, elements="stream"),
    ),
    where=lambda it: it["stream"] == it["tokens"] * it["hidden"] and it["rank"] < it["hidden"],
    shaped=True,
)


#: Layers that take the place of attention, what chooses for it, and norms with products in them: what is left
#: without them is read as a transformer.
MIXERS = (MIXER, MIXER_WITHOUT_SHAPES, GATED_CONVOLUTION, INDEXER, GATED_NORM, *CONVOLUTIONS)


# Mixtures of experts: a GEMM over groups of rows (``torch._grouped_mm``) multiplies the tokens of each expert
# with that expert's weight, and has no other use in a model. What leads to it is a choice over a small GEMM's
# results (router), then sorts and moves of rows (dispatch); behind it rows go back to their places and are
# summed.

_WEIGHS = ("gather", "sigmoid", "softmax", "div", "div_")  # the scores of the chosen
_SCORES = either(what("copy", "add", "softmax"), named(*_WEIGHS, "mul", "mul_", "add", "sub"))
_EXPERT = either(named(*GROUPED), what("experts"))
_PUTS_BACK = what("dispatch", "topk")
_ROWS_BACK = either(_PUTS_BACK, named("sum", "mul", "mul_"))
_EDGES = what("gemm", "bmm", "core", "norm", "loss", "embedding")
_APART = either(what("convolution"), named("cos", "sin", "neg", "pow", "rsqrt"))  # turned, or normalized


def _routes(it: Match) -> bool:
    """Is the choice among the columns of the GEMM? Without shapes: only scores are made between them."""
    (product,), choice = it.places[0], it.places[1][-1]
    kind, among = it.kinds[product], {tensor[-1] for tensor in it.kinds[choice].tensors}
    if kind.gemm is not None:
        return kind.gemm.n in among and kind.gemm.n <= MOST_EXPERTS
    return not among and kind.what == "gemm" and all(map(_SCORES, it.kinds[product + 1 : choice]))


def _are_back(it: Match, at: int) -> bool:
    """Are rows back in their places there?"""
    return any(map(_PUTS_BACK, back_to(_EXPERT, it.kinds, at)))


_ROUTER = (
    one("moe.router", _EDGES),
    some("moe.router", named("topk"), Gap("moe.router", no(_EDGES, _EXPERT))),
    many("moe.router", named(*_WEIGHS)),
)
_EXPERTS = (  # behind the first: nothing between them but what stands between the GEMMs of an MLP
    many("moe.experts", _EXPERT, Gap("moe.experts", no(_EDGES))),
    many("moe.dispatch", _ROWS_BACK, Gap("moe.dispatch", no(_EDGES, _APART)), where=_are_back),
)
_BEHIND_ROUTER = one("moe.experts", _EXPERT, Gap("moe.dispatch", no(_EDGES, named("topk"))))
_BEHIND_SHARED = one("moe.experts", _EXPERT, Gap("", no(named("topk"))))  # an expert of all tokens runs first


# Soft mixtures (arXiv 2308.00951): the same numbers weigh all tokens for each slot of an expert and all slots
# for each token, and so go through a softmax twice.

_TO_SLOTS = Gap("moe.dispatch", no(_EDGES, what("softmax", "activation")))


def _is_slots(it: Match, at: int) -> bool:
    """Does the product not yet take what all slots give?"""
    shape = it.run.shape(at)
    return shape is None or (shape.batch, shape.k) != (it["batch"], it["slots"])


SOFT = Grammar(
    "soft mixture of experts",
    (
        one("moe.router", what("gemm", "bmm"), n="slots"),
        one("moe.router", what("softmax"), Gap("moe.router", no(_EDGES)), elements="weights"),
        one("moe.router", what("softmax"), Gap("moe.router", no(_EDGES)), elements="weights"),
        one("moe.dispatch", what("bmm"), _TO_SLOTS, batch="batch", m="slots", k="tokens"),
        some("moe.experts", what("gemm", "bmm"), Gap("moe.experts", no(_EDGES)), where=_is_slots),
        one("moe.dispatch", what("bmm"), Gap("moe.dispatch", no(_EDGES)), batch="batch", k="slots"),
    ),
    where=lambda it: it["weights"] == it["batch"] * it["tokens"] * it["slots"],
    shaped=True,
)

#: Mixtures of experts, what tells the most first.
MIXTURES = (
    SOFT,
    Grammar("mixture of experts", (*_ROUTER, _BEHIND_ROUTER, *_EXPERTS), where=_routes, new=_EXPERT),
    Grammar("mixture behind others", (*_ROUTER, _BEHIND_SHARED, *_EXPERTS), where=_routes, new=_EXPERT),
    Grammar("experts", (one("moe.experts", _EXPERT), *_EXPERTS), new=_EXPERT),
)
