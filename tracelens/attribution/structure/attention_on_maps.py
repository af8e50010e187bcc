"""Attention over the places of a map: queries, keys and values, and the output, are convolutions of one tap.

So it stands in the U-Nets and autoencoders of image generators, with scores of all places (arXiv 1711.07971),
or linear, with a softmax of the queries' and one of the keys' own features (arXiv 1812.01243).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, takewhile
from math import prod

from tracelens.attribution.structure.norms import adds, adds_number
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Dims, Kind
from tracelens.attribution.structure.walk import counts_batches

_ATTENDS = ("core", "softmax", "bmm")
_WITHOUT_SOFTMAX = ("attention.scores", "attention.values")  # of linear attention
_EDGES = ("convolution", "norm", "gemm", "bmm", "core", "softmax", "loss", "picture")
_MADE = 48  # units between what makes queries and their scores, at most
_PRODUCTS = 2  # a softmax and at least so many of them are attention, where no operator is


def label_attention_on_maps(run: Run) -> None:
    """Name the convolutions around what attends, and what stands between; fills ``run.labels``."""
    parts = {at: part for core in run.cores for at, part in core.parts.items()}
    places = [at for at, kind in enumerate(run.kinds) if kind.what in ("convolution", "gemm")]
    for start, stop in pairwise([*places, len(run)]):
        if not _is_pointwise(run, start) or not _attends(run, start, stop):
            continue
        makes = [*_together(run, places, start)]
        ends = [stop] if stop < len(run) and _is_pointwise(run, stop) else []
        for at in range(makes[-1], min(stop + 2, len(run))):
            if counts_batches(run, at):
                run.labels.setdefault(at, Label("norm", evidence="local"))
        for at in makes:
            _name(run, at, "attention.qkv")
        for at in range(makes[-1] - 1, -1, -1):  # the channels that attend are cut from the map's
            if run.kinds[at].name in CUTS:
                run.labels.setdefault(at, Label("attention.other", evidence="local"))
            elif run.kinds[at].what != "norm" and not counts_batches(run, at):
                break
        for at in range(makes[-1], start):
            if _moves(run.kinds[at]):  # each is laid out by heads on its own
                run.labels.setdefault(at, Label("attention.other", evidence="local"))
        for at in ends:
            _name(run, at, "attention.output")
        for at in range(start + 1, stop if ends else 1 + max(_of_attention(run, start, stop))):
            run.labels.setdefault(at, Label(parts.get(at, "attention.other"), evidence="local"))


def label_laid_out(run: Run) -> None:
    """Name what lays out and scales queries, keys, values and result of what attends between convolutions;
    fills ``run.labels``."""
    edge, found = 0, set[int]()
    for core in run.cores:
        first, last = run.shape(core.first), run.shape(core.last)
        ahead = range(core.first - 1, max(edge, core.first - _MADE), -1)
        offsets = first.n if first is not None and core.first < core.last else None
        found |= {at for at in ahead if _looks_up(run.kinds[at], core.heads, offsets)}
        if core.first < core.last and first is not None and last is not None:
            sizes = (first.m * first.k, first.n * first.k, last.k * last.n)
            taken = {first.batch * size for size in (*sizes, sum(sizes))}
            made = takewhile(lambda at: not _ends(run.kinds[at]), ahead)
            behind = takewhile(lambda at: _moves(run.kinds[at]), range(core.last + 1, len(run)))
            given = {last.batch * last.m * last.n}
            found |= {*_of_sizes(run, made, taken), *_of_sizes(run, behind, given)}
        found |= {*_beside(run, core.first, core.last), *_between(run, core.first)}
        edge = core.last + 1
    own = {at for core in run.cores for at in range(core.first, core.last + 1)}
    products = [at for at, label in run.labels.items() if label.component in _WITHOUT_SOFTMAX]
    for at in sorted({*products} - own):
        found |= {*_beside(run, at, at)}
    for at in found:
        run.labels.setdefault(at, Label("attention.other", evidence="local"))


def label_views(run: Run) -> None:
    """Name the views without a name whose elements a copy ``attention.other`` lays out next (windows): the
    gradient is laid out the other way; fills ``run.labels``."""
    for at in range(len(run) - 2, -1, -1):
        behind = run.labels.get(at + 1)
        if at in run.labels or behind is None or behind.component != "attention.other":
            continue
        own, other = run.kinds[at : at + 2]
        sizes = {prod(kind.tensors[0]) for kind in (own, other) if kind.tensors}
        if own.name in VIEWS and (other.what == "copy" or other.name in VIEWS) and len(sizes) == 1:
            run.labels[at] = behind


def _beside(run: Run, first: int, last: int) -> Iterator[int]:
    """All from a convolution, its bias and its norm to what attends, and from there to the next, but sums
    of two maps, and what Inductor makes of a bias and an activation."""
    for way in (range(first - 1, -1, -1), range(last + 1, len(run))):
        near = [*takewhile(lambda at: run.kinds[at].what not in _EDGES, way)]
        end = (near[-1] if near else way.start - way.step) + way.step
        if not 0 <= end < len(run) or not _of_maps(run.kinds[end]):
            continue
        for at in near:
            behind = run.kinds[at - 1].what == "convolution"
            bias = behind and run.kinds[at].tensors and _is_bias(run.kinds[at])
            bends = run.kinds[at].tags >= {"activation", "bias"}
            if not (_sums(run, at) or counts_batches(run, at) or bias or bends):
                yield at


def _between(run: Run, first: int) -> Iterator[int]:
    """What bends or lays out between the convolutions of one tap that take one map right before the core:
    queries, keys, values and their gate. Without shapes: between those that nothing but batch norms and a
    gate's sigmoid stands between."""
    given: Dims | None = None
    near: list[int] = []
    for at in range(first - 1, -1, -1):
        kind = run.kinds[at]
        if kind.what == "convolution":
            taken = next(iter(kind.tensors), ())
            if (taken and not _is_pointwise(run, at)) or (given is not None and taken != given):
                return
            given = taken
            yield from near
            near = []
        elif kind.what in (*_ATTENDS, "gemm", "picture", "loss") or _sums(run, at) or _begins(kind):
            return
        elif given is not None and (kind.what in ("activation", "elementwise") or _moves(kind)):
            near.append(at)


def _begins(kind: Kind) -> bool:
    """Without shapes: does it stand before what makes queries, and not between?"""
    bends = kind.what == "activation" and not kind.name.startswith("sigmoid")
    return not kind.tensors and (bends or (kind.what == "norm" and kind.name != "batch_norm"))


def _sums(run: Run, at: int) -> bool:
    """Is it a sum of two maps?"""
    kind = run.kinds[at]
    bare = kind.what == "add" and not kind.tensors and not adds_number(kind)
    return adds(kind) or (bare and not counts_batches(run, at))


def _of_maps(kind: Kind) -> bool:
    """Convolves, or normalizes the channels of a map."""
    bare = not kind.tensors and (kind.what == "convolution" or kind.name == "batch_norm")
    return bare or (kind.what in ("convolution", "norm") and any(len(t) > 3 for t in kind.tensors))


def _ends(kind: Kind) -> bool:
    """A product, an attention, or a normalization that is written out: what is before makes no queries."""
    return kind.what in ("gemm", "core") or kind.name in ("rsqrt", "sqrt", "var", "mean", "div")


def _looks_up(kind: Kind, heads: int | None, offsets: int | None) -> bool:
    """A table with a row for each head (TinyViT), or with a column for each offset, of what is added to the
    scores of heads that attend one after another (EfficientViT, arXiv 2305.07027)."""
    tables = [t for t in kind.tensors if len(t) == 2]
    by_head = len(tables) == 1 and (tables[0][0] == heads or (heads is None and tables[0][1] == offsets))
    return kind.name == "index" and by_head


def _moves(kind: Kind) -> bool:
    return kind.what == "copy" or kind.name in VIEWS


def _of_sizes(run: Run, places: Iterable[int], sizes: set[int]) -> Iterator[int]:
    """Of them the moves of so many elements, or untold how many."""
    for at in places:
        kind = run.kinds[at]
        if _moves(kind) and (not kind.tensors or sizes.intersection(map(prod, kind.tensors))):
            yield at


def _is_pointwise(run: Run, at: int) -> bool:
    """A convolution of a map, or of several, that takes every place by itself."""
    maps = [t for t in run.kinds[at].tensors if len(t) >= 4]
    return run.kinds[at].what == "convolution" and len(maps) > 1 and {*maps[1][2:]} == {1}


def _of_attention(run: Run, start: int, stop: int) -> list[int]:
    return [at for at in range(start + 1, stop) if run.kinds[at].what in _ATTENDS]


def _attends(run: Run, start: int, stop: int) -> bool:
    what = [run.kinds[at].what for at in _of_attention(run, start, stop)]
    return "core" in what or ("softmax" in what and what.count("bmm") >= _PRODUCTS)


def _together(run: Run, places: list[int], last: int) -> Iterator[int]:
    """The convolution, and those before it with nothing but biases between."""
    yield last
    for before, behind in pairwise(reversed(places[: places.index(last) + 1])):
        between = (run.kinds[at] for at in range(behind + 1, before))
        if not _is_pointwise(run, behind) or not all(map(_is_bias, between)):
            return
        yield behind


def _is_bias(kind: Kind) -> bool:
    """Is it a bias or a copy? A sum of two maps is a residual."""
    return kind.what == "copy" or kind.name in VIEWS or (kind.what == "add" and not adds(kind))


def _name(run: Run, at: int, component: str) -> None:
    """A convolution, and its bias, which PyTorch adds where cuDNN does not."""
    run.labels.setdefault(at, Label(component, evidence="local"))
    behind = run.kinds[at + 1] if at + 1 < len(run) else None
    if behind is not None and behind.name == "add_":
        run.labels.setdefault(at + 1, Label(component, evidence="local"))
