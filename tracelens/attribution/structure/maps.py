"""Work on feature maps and pictures: no part of a transformer's layer, wherever it stands.

A convolution takes and gives maps, [batch, channels, *space]; so do the normalizations and activations around
it. What runs on the same maps is work of the same kind: its own operators say where they come from, and no
transformer need be known. Behind the last product of a pass there is no layer any more; what follows an
operator of pictures there (resized masks, boxes, codes of masks) only makes them into an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise, takewhile
from math import prod

from tracelens.attribution.structure.grammars import by_channel
from tracelens.attribution.structure.heads import per_sample
from tracelens.attribution.structure.norms import adds, standardized_weights, written_norms
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Dims, Kind
from tracelens.attribution.structure.walk import counts_batches, loses
from tracelens.gemm import GemmShape

_LINEAR = ("attention.qkv", "attention.output", "mlp.up", "mlp.down", "other")
_ADDITIVE = Label("attention.output", evidence="local")
_OTHER = Label("other", evidence="local")
_SIDE = 4  # rows of a map, at least
_MODULE = 8  # units between two convolutions of one module, at most, views not counted
_MASKED = 64  # units from a map to the masks that are made of it, at most
_HANDS_ON = ("copy", "norm", "helper")
_BESIDE = 2  # norms, poolings and convolutions of each channel that attention on maps holds on a side
_INSIDE = {f"attention.{part}" for part in ("qkv", "scores", "softmax", "values", "core")}
_TO_DROP = 3  # units from what is drawn by chance to the product with it
_SEQUENCE = 3  # dimensions: samples, channels, places
MAPS = ("convolution", "picture")
_ENDS = ("convolution", "norm", "gemm", "bmm", "core", "softmax", "picture")
_PRODUCTS = ("gemm", "bmm", "core")
_MAKES = (*_PRODUCTS, "convolution")
_ASIDE = ("copy", "dropout", "helper")
_OWN = (
    *MAPS, *_PRODUCTS, "norm", "softmax", "loss", "fused_logits_loss", "embedding", "dropout", "kernel",
    "helper",
)  # fmt: skip


def linear_convolutions(run: Run) -> None:
    """Over a sequence, a convolution of one tap is a linear layer, and is counted as one; beside one of
    several taps, or with its channels normalized, it is part of a module of convolutions."""
    convolutions = [at for at, kind in enumerate(run.kinds) if kind.what == "convolution"]
    places = [
        at for at in convolutions if not run.kinds[at].tensors or len(run.kinds[at].tensors[0]) == _SEQUENCE
    ]
    taps = [[t for t in run.kinds[at].tensors if len(t) == 3][1:2] for at in places]
    linear = [bool(weight) and weight[0][2] == 1 for weight in taps]
    # what is worked out of single numbers, how far to pad say, stands between and is nothing
    before = [*accumulate(kind.name not in VIEWS and bool(kind.tensors) for kind in run.kinds)]
    for number, at in enumerate(places):
        near = range(max(0, number - 1), min(len(places), number + 2))
        if all(linear[other] or abs(before[places[other]] - before[at]) > _MODULE for other in near):
            given, weight = [t for t in run.kinds[at].tensors if len(t) == 3][:2]
            next_ = takewhile(lambda kind: kind.what not in _MAKES, run.kinds[at + 1 : at + _MODULE])
            norms = (kind for kind in next_ if kind.what == "norm")
            if any(kind.tensors[:1] == ((given[0], weight[0], given[2]),) for kind in norms):
                continue
            _make_linear(run, at, given[0] * prod(given[2:]), weight[0], given[1])
    for at in (p for p in _linear_without_shapes(run) if run.kinds[p].what == "convolution"):
        run.kinds[at] = replace(run.kinds[at], what="gemm")
    for at, behind in pairwise(convolutions):
        bent = _up_and_back(run, at, behind)
        if bent is not None and len(bent) == 3:
            for place in (at, behind):
                _make_linear(run, place, bent[0] * bent[2], *_weight(run.kinds[place])[:2])


def _linear_without_shapes(run: Run) -> dict[int, str]:
    """Without shapes convolutions over a sequence in the places of linear layers, and what is beside them:
    three in a row ahead of an attention core, two around one activation of an MLP next to a norm, and one
    behind a core (SqueezeBERT, arXiv 2006.11316)."""
    says = {at: _is_sequence(kind) * "conv1d" or kind.what for at, kind in enumerate(run.kinds)}
    steps = [at for at, what in says.items() if what not in _ASIDE and run.kinds[at].name not in VIEWS]
    steps = [at for at in steps if not counts_batches(run, at)]
    said, found = [says[at] for at in steps], dict[int, str]()
    for number in range(1, len(steps) if {"core", "softmax"} & {*said} else 0):
        here, before, parts = said[number : number + 5], said[number - 1], tuple[str, ...]()
        if here[:3] == ["conv1d"] * 3 and here[3:4] in (["bmm"], ["core"]):
            parts = ("attention.qkv",) * 3
        elif here[:4] == ["conv1d", "activation", "conv1d", "add"] and "norm" in (before, *here[4:]):
            parts = ("mlp.up", "mlp.activation", "mlp.down", "residual")
        elif before in ("bmm", "core") and here[:3] == ["conv1d", "add", "norm"]:
            parts = ("attention.output", "residual")
        found |= dict(zip(steps[number:], parts, strict=False))
    return found


def _is_sequence(kind: Kind) -> bool:
    return kind.name == "conv1d" and not kind.tensors


def linear_rows(run: Run) -> None:
    """A product of one row for every token that attends, each with a matrix of its own, is a linear layer
    (the depth transformer of arXiv 2410.00037), where attention takes such; else of experts (2407.04153).
    """
    cores = [core for core in run.cores if core.first == core.last]
    tokens = {core.tokens for core in cores}
    shapes = {at: shape for at in run.products() if (shape := run.shape(at)) is not None}
    rows = {
        at for at, shape in shapes.items()
        if run.kinds[at].what == "bmm" and shape.m == 1 and shape.batch in tokens
    }  # fmt: skip
    if rows.isdisjoint(max((at for at in shapes if at < core.first), default=-1) for core in cores):
        return
    for at in rows:
        _make_linear(run, at, shapes[at].batch, shapes[at].n, shapes[at].k)


def _make_linear(run: Run, at: int, rows: int, made: int, taken: int) -> None:
    shape = GemmShape(rows, made, taken, 1, None, None, None)
    run.kinds[at] = replace(run.kinds[at], what="gemm", gemm=shape)


def _up_and_back(run: Run, at: int, behind: int) -> Dims | None:
    """What is bent between two convolutions that are an MLP's two linear layers: up and back over a sequence,
    with several taps (FastSpeech, arXiv 1905.09263), or over places by themselves (CvT, arXiv 2103.15808);
    None."""
    up, down = (_weight(run.kinds[place]) for place in (at, behind))
    between = run.kinds[at + 1 : behind]
    bent = next((kind.tensors[0] for kind in between if kind.what == "activation" and kind.tensors), ())
    taps = up[2:] == down[2:] or (1,) in (up[2:], down[2:])  # FastSpeech 2 has several on one way only
    fits = taps and up[:2] == down[1::-1] and up[:1] > down[:1] and bent[1:2] == up[:1]
    plain = all(kind.what in ("activation", "elementwise", "dropout", "copy") for kind in between)
    return bent if fits and plain and (len(bent) == 3 or up[2:] == (1, 1)) else None


def _weight(kind: Kind) -> Dims:
    """Of a convolution over a sequence, or a map, in one group."""
    given, weight = ([t for t in kind.tensors if len(t) >= 3] + [(), ()])[:2]
    return weight if given[1:2] == weight[1:2] else ()


def open_convolutions(run: Run) -> None:
    """Without shapes, a convolution over a sequence next to an attention core, or any next to a product of
    two activations, no other product between, can be a linear layer: which part it is stays open; fills
    ``run.labels``."""
    for at, part in _linear_without_shapes(run).items():
        run.labels.setdefault(at, Label(part, evidence="local"))
    for at in (*_beside_cores(run), *_beside_products(run)):
        run.labels.setdefault(at, Label("unattributed", candidates=_LINEAR))


def _beside_products(run: Run) -> Iterator[int]:
    between = ("elementwise", "copy", "softmax", "helper")
    for at in (p for p, kind in enumerate(run.kinds) if kind.what == "bmm" and run.shape(p) is None):
        for way in (range(at - 1, -1, -1), range(at + 1, len(run))):
            end = next((p for p in way if run.kinds[p].what not in between), at)
            if run.kinds[end].what == "convolution":
                yield end


def _beside_cores(run: Run) -> Iterator[int]:
    for core in run.cores:
        for way in (range(core.first - 1, -1, -1), range(core.last + 1, len(run))):
            for at in way:
                kind = run.kinds[at]
                if kind.what in _PRODUCTS or loses(run, at):
                    break
                if _is_sequence(kind):
                    yield at
    yield from (at for at in _in_mlps(run) if run.kinds[at].name == "conv1d")


def _in_mlps(run: Run) -> Iterator[int]:
    """Without shapes: two convolutions with an activation between, and the sum that takes the result; not the
    last two of three in a row (arXiv 1801.04381)."""
    places = [at for at, kind in enumerate(run.kinds) if kind.what == "convolution" and not kind.tensors]
    for at in places:
        if [kind.what for kind in run.kinds[max(at - 2, 0) : at]] == ["convolution", "activation"]:
            continue
        work = [p for p in range(at + 1, len(run)) if run.kinds[p].what not in ("copy", "dropout")][:3]
        added = [run.kinds[p].what for p in work] == ["activation", "convolution", "add"]
        if added and not counts_batches(run, work[-1]):
            yield from (at, *work)


def label_maps(run: Run, hidden: int | None) -> None:
    """Name what works on maps and has no name yet ``other``; fills ``run.labels``.

    ``hidden``, the width of the residual stream, is that of no map: patches are embedded by a convolution.
    """
    _label_mlps(run)
    counts = (at for at in range(len(run)) if counts_batches(run, at))
    for at in (*standardized_weights(run), *counts):
        run.labels.setdefault(at, Label("norm", evidence="local"))
    for at in _masks(run):
        run.labels.setdefault(at, Label("other", evidence="local"))
    around = {*_around(run, hidden), *_between_convolutions(run), *_to_pooling(run), *_of_sequences(run)}
    found = (around - {*_beside_attention(run)} - _at_ends(run)) | {*_behind_all(run)}
    found -= {*_at_losses(run), *_inside_attention(run)}
    found |= {at for at in around if counts_batches(run, at)}
    drawn = [at for at, kind in enumerate(run.kinds) if kind.name == "bernoulli_" and not kind.tensors]
    found -= {p for at in drawn for p in range(at, at + _TO_DROP)}  # without shapes: of samples
    normed = written_norms(run) if found else set()
    for at in found:
        kind = run.kinds[at]
        if at not in run.labels and kind.what not in _OWN and not _gives_stream(run, at, hidden):
            normal = at in normed or "norm" in kind.tags or counts_batches(run, at)  # or of a sample's
            component = "norm" if normal else "dropout" if per_sample(kind.tensors) else "other"
            run.labels[at] = Label(component, evidence="local")
            if _adds_by_channel(run, at):
                run.labels[at] = Label("residual", evidence="local")
                for place in _class_token(run, at):
                    run.labels.setdefault(place, Label("other", evidence="local"))
    run.labels |= dict.fromkeys([*_places(run)], _OTHER)


def _gives_stream(run: Run, at: int, hidden: int | None) -> bool:
    """Works on what an output projection gave, the stream with its channels in front? A sum is a residual."""
    before = next((p for p in range(at - 1, -1, -1) if run.kinds[p].what in (*_MAKES, "norm")), at)
    behind = run.labels.get(before, _OTHER).component == "attention.output"
    behind &= any(t[1] == hidden for t in run.kinds[at].tensors[:1] if len(t) > _SEQUENCE)
    if behind and adds(run.kinds[at]):
        run.labels[at] = Label("residual", evidence="local")
    return behind


def _places(run: Run) -> Iterator[int]:
    """Rows or columns worked out for a map that is made larger or smaller: kernels of torch.compile that work
    on as many numbers as it has on a side, and a unit behind that takes these and is other work."""
    for at, kind in enumerate(run.kinds):
        sides = {*map(prod, kind.tensors)}
        if at in run.labels or kind.what != "fused" or len(sides) != 1 or min(sides) < _SIDE:
            continue
        near = range(at + 1, min(len(run), at + _MODULE))
        if all(max(t) in sides for t in kind.tensors) and any(
            run.labels.get(p) == _OTHER and kind.tensors[-1] in run.kinds[p].tensors for p in near
        ):
            yield at


def _masks(run: Run) -> Iterator[int]:
    """Products of a few embeddings with every place of a map, with no softmax behind: masks (Segment
    Anything, MaskFormer's ``bqc,bchw->bqhw``); and what works on that map before. Channels that attend to one
    another take places, too (Restormer, arXiv 2111.09881)."""
    attention = {at for core in run.cores for at in core.parts}
    for at, kind in enumerate(run.kinds):
        shape = kind.gemm
        if kind.what != "bmm" or shape is None or shape.m == shape.n or at in attention:
            continue
        near = range(max(0, at - _MASKED), at)
        of_map = [
            (place, dims[2] * dims[3])
            for place in near
            for dims in run.kinds[place].tensors
            if len(dims) == 4 and dims[:2] == (shape.batch, shape.k) and min(dims[2:]) >= _SIDE
        ]
        behind = run.kinds[at + 1 : at + _MODULE]
        attends = any(other.what == "softmax" or "softmax" in other.tags for other in behind)
        found = [place for place, places in of_map if places in (shape.m, shape.n) and not attends]
        yield from (place for place in found if run.kinds[place].what not in _OWN)
        yield from [at][: len(found)]


def _label_mlps(run: Run) -> None:
    """Behind attention whose output a convolution makes, the sum with the stream, and an MLP: convolutions
    up and back, over places by themselves, whose result is added to the map that they took."""
    places = [at for at, kind in enumerate(run.kinds) if kind.what == "convolution"]
    outputs = {at for at, label in run.labels.items() if label == _ADDITIVE}
    for core in run.cores:
        end = next((at for at in range(core.last + 1, len(run)) if run.kinds[at].what in _ENDS), -1)
        outputs |= {end} & {*places}
        if end in places and _weight(run.kinds[end])[1:] == (core.out_width, 1, 1):
            for at in range(core.last + 1, end):
                run.labels.setdefault(at, Label("attention.other", evidence="local"))
    for end in sorted(outputs):
        stream = _sum_behind(run, end)
        if stream is None:
            continue
        parts = {stream: "residual"}
        up, down = ([at for at in places if at > stream] + [len(run)] * 2)[:2]
        bent, added = (
            (_up_and_back(run, up, down), _sum_behind(run, down)) if down < len(run) else (None, None)
        )
        if bent is not None and added is not None and run.kinds[added].tensors[0] == run.kinds[up].tensors[0]:
            parts |= dict.fromkeys(range(up + 1, down), "mlp.activation")
            parts |= {at: "dropout" for at in parts if run.kinds[at].what == "dropout"}
            parts |= {up: "mlp.up", down: "mlp.down", added: "residual"}
        for at, part in parts.items():
            run.labels.setdefault(at, Label(part, evidence="local"))


def _sum_behind(run: Run, at: int) -> int | None:
    """The sum of two maps right behind a convolution."""
    between = ("elementwise", "dropout", "copy", "norm")
    counts = Kind("add", "add_")  # the batches, beside a batch norm
    aside = (
        p for p in range(at + 1, len(run)) if run.kinds[p].what not in between and run.kinds[p] != counts
    )
    behind = next(aside, at)
    bare = run.kinds[behind].what == "add" and not run.kinds[behind].tensors
    return behind if bare or adds(run.kinds[behind]) else None


def _adds_by_channel(run: Run, at: int) -> bool:
    """A map and what a convolution of each channel made of it: positions, added (arXiv 2102.10882)."""
    before = next((kind for kind in reversed(run.kinds[:at]) if kind.what != "copy"), None)
    return adds(run.kinds[at]) and before is not None and by_channel(before)


def _class_token(run: Run, at: int) -> Iterator[int]:
    """Around a sum of a map with positions what takes a token of another kind off, and puts it back."""
    conv = next(place for place in range(at - 1, -1, -1) if run.kinds[place].what == "convolution")
    yield from takewhile(lambda place: run.kinds[place].name in VIEWS | CUTS, range(conv - 1, -1, -1))
    behind = next((place for place in range(at + 1, len(run)) if run.kinds[place].name not in VIEWS), at)
    if run.kinds[behind].name == "cat":
        yield behind


def _around(run: Run, hidden: int | None) -> Iterator[int]:
    """What works on maps of the size of a convolution's, or of as many channels as one before it gives."""
    spaces = {found for kind in run.kinds for found in _spaces(kind) if hidden not in found[2]}
    channels: set[int] = set()
    chained = False
    for at, kind in enumerate(run.kinds):
        if kind.what == "convolution":
            channels, chained = _channels(kind), True
            continue
        if kind.what in _PRODUCTS:
            channels = set()
        maps = any((len(t), t[0], t[2:]) in spaces for t in kind.tensors if len(t) >= 3)
        named = [t for t in kind.tensors if len(t) >= 3 and t[1] in channels]
        maps |= any(hidden not in (t[1], t[-1]) or t == (1, t[1], 1, 1) for t in named)
        chained = maps or (chained and bool(channels - {hidden}) and not kind.tensors)
        if chained:
            yield at


def _between_convolutions(run: Run) -> Iterator[int]:
    """Without shapes: between two convolutions and no other product, and what bends the last one's result;
    not where they can be linear layers, nor where a cosine says what turns or has positions, nor what is read
    of a table, as of biases of scores."""
    if next(_beside_cores(run), None) is not None:
        return
    ends, mlps = {*_PRODUCTS, "softmax", "embedding", "dropout", "cos"}, {*_in_mlps(run)}
    places = [at for at, kind in enumerate(run.kinds) if kind.what == "convolution" and not kind.tensors]
    for at, behind in pairwise([*places, len(run)]):
        between = range(at + 1, behind)
        steps = {step for place in between for step in (run.kinds[place].what, run.kinds[place].name)}
        if behind == len(run) or ends & steps:
            kinds = ((place, run.kinds[place]) for place in between)
            bare = (p for p, kind in kinds if kind.what not in _HANDS_ON and kind.name not in VIEWS | CUTS)
            first = next(bare, at)
            between = range(at + 1, first + 1) if run.kinds[first].what == "activation" else range(0)
        beside = {p + way for p in between if run.kinds[p].name == "layer_norm" for way in (-1, 1)}
        beside = {p for p in beside if run.kinds[p].what == "copy"}  # of tokens
        beside |= {p + way for p in between if run.kinds[p].name.startswith("index") for way in (0, -1)}
        yield from (p for p in between if p not in beside | mlps)


def _of_sequences(run: Run) -> Iterator[int]:
    """From one convolution over a sequence to the next, as wide as the stream or not, and pointwise alone: in
    the module of a Conformer (arXiv 2005.08100)."""
    pointwise = ("activation", "elementwise", "copy", "norm")
    places = [at for at, kind in enumerate(run.kinds) if kind.what == "convolution"]
    for at, behind in pairwise(places):
        between = range(at + 1, behind)
        both = [{len(t) for t in run.kinds[place].tensors if len(t) >= 3} == {3} for place in (at, behind)]
        if all(both) and all(run.kinds[place].what in pointwise for place in between):
            yield from between


def _to_pooling(run: Run) -> Iterator[int]:
    """From a convolution to the pooling of its result: also of as many channels as the stream is wide (the
    distilling of Informer, arXiv 2012.07436)."""
    pointwise = ("activation", "elementwise", "copy", "add", "norm")
    for at, kind in enumerate(run.kinds):
        if kind.what == "picture" and "pool" in kind.name:
            own = [kind.what in pointwise and kind.name != "cos" for kind in run.kinds[:at]]
            back = [*takewhile(own.__getitem__, range(at - 1, -1, -1))]
            if len(back) < at and run.kinds[at - len(back) - 1].what == "convolution":
                yield from back


def _beside_attention(run: Run) -> Iterator[int]:
    """Between a convolution and a product of two activations, or its softmax: of either of the two; and what
    stands beside a linear layer that is written as a convolution, as masks do."""
    for at, kind in enumerate(run.kinds):
        if kind.what in _PRODUCTS:  # laid out for it, or for what follows: of the one or the other
            for way in (range(at - 1, -1, -1), range(at + 1, len(run))):
                yield from takewhile(lambda p: run.kinds[p].what == "copy" or run.kinds[p].name in VIEWS, way)
        attends = kind.what in ("bmm", "core", "softmax") or kind.tags & {"softmax", "softmax_backward"}
        if attends or (kind.what == "gemm" and kind.name.startswith("conv")):
            yield at
            for way in (range(at - 1, -1, -1), range(at + 1, len(run))):
                left = _BESIDE if attends else 0  # of its own, on maps
                for place in way:
                    if run.kinds[place].what in _ENDS:
                        left -= 1
                        if left < 0 or not _of_channels(run.kinds[place]):
                            break
                    yield place


def _inside_attention(run: Run) -> Iterator[int]:
    """Between two units that are of one attention, whatever that is written with."""
    for at, behind in pairwise(sorted(run.labels)):
        parts = [run.labels[place].component for place in (at, behind)]
        if {*parts} <= _INSIDE:
            yield from range(at + 1, behind)


def _of_channels(kind: Kind) -> bool:
    """A normalization, a pooling, or a convolution of each channel: beside queries, too (LeViT)."""
    convolves = kind.what == "convolution" and bool(kind.tensors)
    return kind.what in ("norm", "picture") or (convolves and by_channel(kind))


def _at_losses(run: Run) -> Iterator[int]:
    """Casts right before a loss, and right behind its gradient: as much of it as of the map."""
    for at in range(len(run)):
        if loses(run, at):
            for way in (range(at - 1, -1, -1), range(at + 1, len(run))):
                yield from takewhile(
                    lambda p: run.kinds[p].what == "copy" or run.kinds[p].name == "fill_", way
                )


def _at_ends(run: Run) -> set[int]:
    """Before the first product of a pass noise can be added, and behind the last, once what it gave is
    normalized and bent, a loss be computed (diffusion)."""
    products = [at for at, kind in enumerate(run.kinds) if kind.what in (*_MAKES, "picture")]
    if not products:
        return set()
    own, moves = ("norm", "activation", "copy", "add", "dropout"), VIEWS | CUTS | {"fill_", "zero_"}
    works = (
        kind.what in own or kind.name in moves or _scales_channels(kind)
        for kind in run.kinds[products[-1] + 1 :]
    )
    stop = products[-1] + 1 + len([*takewhile(bool, works)])
    while run.kinds[stop - 1].what == "copy" and stop < len(run):  # cast for what follows
        stop -= 1
    return {*range(products[0]), *range(stop, len(run))}


def _scales_channels(kind: Kind) -> bool:
    """A number for each channel, times a map."""
    maps = max(kind.tensors, key=prod, default=())
    return kind.name == "mul" and len(maps) > 1 and maps[1] in map(prod, kind.tensors)


def _spaces(kind: Kind) -> Iterator[tuple[int, int, Dims]]:
    """(rank, batch, space) of the map that a convolution takes: the tensor before its weight."""
    wide = [t for t in kind.tensors if len(t) >= 3]
    if kind.what == "convolution" and len(wide) >= 2 and len(wide[0]) == len(wide[1]):
        yield len(wide[0]), wide[0][0], wide[0][2:]


def _channels(kind: Kind) -> set[int]:
    """Channels on both sides of its weight, the last of its tensors with a space."""
    weights = [t for t in kind.tensors if len(t) >= 3]
    return set(weights[-1][:2]) if weights else set()


def _behind_all(run: Run) -> range:
    """From the first operator of pictures behind the last product on, to a loss."""
    last = next((at for at in range(len(run) - 1, -1, -1) if run.kinds[at].what in _PRODUCTS), -1)
    first = next((at for at in range(last + 1, len(run)) if run.kinds[at].what == "picture"), len(run))
    weighs = (at for at in range(first, len(run)) if loses(run, at) or run.kinds[at].what == "softmax")
    return range(first, next(weighs, len(run)))
