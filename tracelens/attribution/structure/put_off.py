"""Gradients of weights that a compiler puts off, in a backward without shapes: told by their kernels.

A part of a layer has one kernel in all layers, and the gradients of one kernel follow each other as those
of activations do. So a distribution of the parts over the kernels says which each is; those are possible in
which each kernel has as many as its parts have, takes about as long as the gradients of activations of the
same products, and none comes before what it is made from. What all that are possible agree on is said.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, pairwise
from math import log
from statistics import median

from tracelens.attribution.structure.returns import normalizes
from tracelens.attribution.structure.runs import Label, Run

_OPEN = "unattributed"
_UP = ("mlp.up", "mlp.gate")
_SLOWER = 2.5  # one gradient of a product than the other, at most
_CLOSE = 0.05  # mean of the logarithms of their ratios: no other way is said to be closer
_SLOWER_BY = 1.5  # the next of another size
_MOST_TRIES = 20_000

_Part = tuple[str, object, int]  # a component, the kernel of its other gradient, which of these in a layer


@dataclass(frozen=True)
class _Product:
    order: int
    label: Label
    ready: int  # the position before which its output has no gradient yet
    path: int | None  # where the gradient of its activations stands


def agree(run: Run, weights: Mapping[int, Label], path: Sequence[int], kernels: Mapping[int, object]) -> bool:
    """Where some gradients of weights are put off by a layer or more: are as many of them, of the same
    ``kernels`` where these are known, between the same two stations of the ``path`` those of the same
    weights?"""
    ends = [run.labels[at] for at in path]
    seen: dict[tuple[object, ...], set[tuple[str, ...]]] = {}
    late = set()
    for place, inside in groupby(weights, lambda at: bisect(path, at)):
        places = [*inside]
        labels = [weights[at] for at in places]
        if 0 < place < len(path):
            around = ends[place - 1], ends[place]
            own = sorted(str(kernels.get(at)) for at in places)
            key = (around[0].component, around[1].component, len(labels), *own)
            seen.setdefault(key, set()).add(tuple(sorted(label.component for label in labels)))
            if not {label.layer for label in labels} <= {label.layer for label in around}:
                late.add(key)
    return all(len(seen[key]) == 1 for key in late)


def by_kernel(
    run: Run,
    weights: Sequence[int],
    gaps: Sequence[tuple[int, list[int], list[Label]]],
    keys: Mapping[int, object],
    busy: Mapping[int, int],
) -> dict[int, Label]:
    """What gradients of weights are, where all possible distributions agree.

    ``gaps`` are by stretch between cores: where it begins, its gradients of activations, and the products of
    the forward there, reversed. ``busy`` is in nanoseconds.
    """
    products = [*_products(gaps)]
    classes = _classes(weights, keys, busy)
    if len(products) != len(weights) or len(classes) < 2:
        return {}
    parts = _parts(products, _classes([at for _, places, _ in gaps for at in places], keys, busy))
    fits = {
        part: [
            key
            for key, places in classes.items()
            if len(places) >= len(own) and _as_long([product.path for product in own], places, busy)
        ]
        for part, own in parts.items()
    }
    for part, own in parts.items():  # off the grid of 16 bytes one of the two can take several times as long
        fits[part] = fits[part] or [key for key, places in classes.items() if len(places) == len(own)]
    inside = {at for core in run.cores for at in (core.first, core.last)}
    path = [at for at, label in sorted(run.labels.items()) if label.role == "dgrad" or at in inside]
    near = neighbours(run)
    found: list[tuple[int, float, dict[int, Label]]] = []
    # an encoder's layers end before the decoder's are through, as the forward's order has it; then kernels
    # tell the one's from the other's
    free = {
        part: [replace(product, ready=0) if part[0] == "mlp.down" else product for product in own]
        for part, own in parts.items()
    }
    made, kernels = _distributions(parts, fits, classes, strict=True), dict[int, object]()
    if made == []:
        made = _distributions(parts, fits, classes, strict=False)
    if made == []:
        made, kernels = _distributions(free, fits, classes, strict=True), {at: keys.get(at) for at in weights}
    for one in made or ():
        named = {at: product.label for at, product in one.items()}
        if agree(run, named, path, kernels):
            found.append((_descents([*one.values()]) - _besides(named, near), _apart(one, busy), named))
    least = min((many for many, _, _ in found), default=0)
    closest = min((apart for many, apart, _ in found if many == least), default=0)
    best = [named for many, apart, named in found if many == least and apart <= closest + _CLOSE]
    if not best:
        return {}
    same = {at: label for at in best[0] if (label := _common([one[at] for one in best])) is not None}
    steady = {at for places in classes.values() for at in _steady(run, same, places, path)}
    return {at: replace(label, role="wgrad") for at, label in same.items() if at in steady}


def _common(labels: list[Label]) -> Label | None:
    """What all say, and without a layer where that differs."""
    first = labels[0]
    if any(label.component != first.component for label in labels):
        return None
    return first if len({label.layer for label in labels}) == 1 else replace(first, layer=None)


def _steady(run: Run, named: Mapping[int, Label], places: list[int], path: list[int]) -> list[int]:
    """Which of those of one kernel stand as others of their part do, or are all that is left before or behind
    these: at the ends of a program its order changes, and of several parts the order is all that tells one
    from the other."""
    known = [at for at in places if at in named and named[at].component != _OPEN]
    if {named[at].component for at in known} <= {*_UP} or len({named[at].component for at in known}) < 2:
        return known
    ends = ["", *(run.labels[at].component for at in path), ""]
    groups = [(place, [*group]) for place, group in groupby(places, lambda at: bisect(path, at))]
    around = [(ends[place], ends[place + 1], len(group)) for place, group in groups]
    last = [place for place, _ in groups] == [len(path)]  # behind all, one waits as long as the other
    often = [last or around.count(own) > 1 for own in around]
    sure = [at for same, (_, group) in zip(often, groups, strict=True) if same for at in group if at in known]
    if not sure:
        return []
    rests = ([at for at in known if at < min(sure)], [at for at in known if at > max(sure)])
    alone = (rest for rest in rests if len({named[at].component for at in rest}) == 1)
    return [*sure, *chain.from_iterable(alone)]


def _classes(
    weights: Sequence[int], keys: Mapping[int, object], busy: Mapping[int, int]
) -> dict[object, list[int]]:
    """Those of one kernel; a persistent one is launched alike for all sizes, which its times tell apart."""
    out: dict[object, list[int]] = {}
    for key in dict.fromkeys(keys.get(at) for at in weights):
        own = sorted((at for at in weights if keys.get(at) == key), key=lambda at: busy.get(at, 0))
        longer = (busy.get(at, 0) > _SLOWER_BY * busy.get(before, 0) for before, at in pairwise(own))
        for at, size in zip(own, accumulate(longer, initial=0), strict=True):
            out.setdefault((key, size), []).append(at)
    return {key: sorted(places) for key, places in out.items()}


def _products(gaps: Sequence[tuple[int, list[int], list[Label]]]) -> Iterator[_Product]:
    order = 0
    for begin, places, labels in gaps:
        ready, known = begin, len(places) == len(labels)
        for number, label in enumerate(labels):
            before = labels[number - 1] if number else None
            if known and before is not None and not _beside(before, label):
                ready = places[number - 1]
            yield _Product(order, label, ready, places[number] if known else None)
            order += 1


def _beside(one: Label, other: Label) -> bool:
    """Do they share an input, so that their gradients come in any order?"""
    return one.component == other.component or {one.component, other.component} <= {*_UP}


def _parts(products: list[_Product], kernels: Mapping[object, list[int]]) -> dict[_Part, list[_Product]]:
    """Those of one part of a layer, one in each layer."""
    own = {at: key for key, places in kernels.items() for at in places}
    out: dict[_Part, list[_Product]] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for product in products:
        kind = (product.label.component, own.get(product.path) if product.path is not None else None)
        out.setdefault((*kind, seen[*kind, product.label.layer]), []).append(product)
        seen[*kind, product.label.layer] += 1
    return out


def _as_long(path: list[int | None], places: list[int], busy: Mapping[int, int]) -> bool:
    """Do both gradients of some products take about as long, as far as that is known?"""
    known = [busy.get(at, 0) for at in path if at is not None]
    both = [median(times) for times in (known, [busy.get(at, 0) for at in places]) if times]
    return len(both) < 2 or not min(both) or max(both) <= _SLOWER * min(both)


def _distributions(
    parts: Mapping[_Part, list[_Product]],
    fits: Mapping[_Part, list[object]],
    classes: Mapping[object, list[int]],
    *,
    strict: bool,
) -> list[dict[int, _Product]] | None:
    """The parts over the kernels, each kernel as often as it ran and its gradients in the order of their
    products, none too early; None where there are too many to try. ``strict``: one kernel for those of one
    size."""
    out: list[dict[int, _Product]] = []
    left, given, tries = [*parts], dict[_Part, object](), 0
    taken: dict[object, list[_Product]] = {key: [] for key in classes}

    def give(number: int) -> None:
        nonlocal tries
        tries += 1
        if number == len(left):
            made = (zip(classes[key], taken[key], strict=True) for key in classes)
            out.append(dict(sorted(chain.from_iterable(made))))
            return
        part = left[number]
        # of a layer's parts of one component in one order only
        alike = [given[one] for one in given if _same_size(one, part)]
        first = fits[part].index(alike[-1]) if alike and alike[-1] in fits[part] else 0
        for key in alike[:1] if alike and strict else fits[part][first:]:
            own, places = taken[key], classes[key]
            more = sorted([*own, *parts[part]], key=lambda product: product.order)
            ends = places[len(places) - len(more) :] if len(more) <= len(places) else []
            if (
                ends
                and tries <= _MOST_TRIES
                and all(at >= one.ready for at, one in zip(ends, more, strict=True))
            ):
                taken[key], given[part] = more, key
                give(number + 1)
                taken[key] = own
                del given[part]

    give(0)
    return out if tries <= _MOST_TRIES else None


def _same_size(one: _Part, other: _Part) -> bool:
    """Has the other gradient one kernel, of two parts of a layer that are alike?"""
    return one[1] == other[1] is not None and (one[0] == other[0] or {one[0], other[0]} == {*_UP})


def neighbours(run: Run) -> dict[int, set[str]]:
    """Per product the gradients of activations right before and behind it, in the same block."""
    rows = run.products()
    steps = {at: label.component for at, label in run.labels.items() if label.role == "dgrad"}
    near: dict[int, set[str]] = {}
    for pair in pairwise(rows):
        if not any(map(normalizes, run.kinds[pair[0] + 1 : pair[1]])):
            for at, other in (pair, pair[::-1]):
                near.setdefault(at, set()).update({steps[other]} if other in steps else set())
    return near


def _besides(named: Mapping[int, Label], near: Mapping[int, set[str]]) -> int:
    """How many stand right beside that of the activations of the same product, or one like it."""
    return sum(label.component in near.get(at, ()) for at, label in named.items())


def _apart(made: Mapping[int, _Product], busy: Mapping[int, int]) -> float:
    """How far the times of both gradients of a product lie apart, on average."""
    pairs = [(busy.get(at, 0), busy.get(one.path, 0)) for at, one in made.items() if one.path is not None]
    ratios = [abs(log(own / other)) for own, other in pairs if own and other]
    return sum(ratios) / max(len(ratios), 1)


def _descents(made: list[_Product]) -> int:
    """How often a gradient follows that of a later product: a compiler moves few, and those in rows."""
    return sum(
        one.order > other.order and not _beside(one.label, other.label) for one, other in pairwise(made)
    )
