"""A backward whose products have no shapes: what each is says the layout that its kernel's name states.

PyTorch's linear layers multiply x W^T (TN in cuBLAS's letters), their gradients of activations g W (NN),
those of weights g^T x (NT). So the names alone tell the three apart; which layer each belongs to is told by
order, where the numbers agree: between two cores as many gradients of activations as the forward has products
there; and in all as many gradients of weights, in an order in which each part is one kernel in all layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from statistics import median

from tracelens.attribution.kernels import kernel_component
from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.put_off import by_kernel, neighbours
from tracelens.attribution.structure.readings import EXPERTS
from tracelens.attribution.structure.returns import OPEN, normalizes, read_gaps, unbends
from tracelens.attribution.structure.runs import Excerpt, Label, Run, whole_of
from tracelens.attribution.structure.serving import for_few_bits, pads, serves_around
from tracelens.attribution.structure.units import FEW_BITS
from tracelens.attribution.structure.unshaped import label_unshaped
from tracelens.attribution.structure.walk import loses
from tracelens.gemm.inductor_ops import SOFTMAX

_ROUTER = "moe.router"
_QUERIES = "attention.qkv"
_ATTENDS = (2, 3)  # products that make queries, and keys or values
_MLP = 3  # with the output projection
_DGRAD, _WGRAD = "NN", "NT"
_ATTENTION = frozenset({"attention.qkv", "attention.output", "mlp.down"})
_UP = ("mlp.up", "mlp.gate")
_GRADIENTS = 2  # of a product
_MOST = 0.9
_LOSS = frozenset({"loss", "loss_backward"})
_ELSEWHERE = frozenset({"embedding_backward", "router"})  # zeros for sums that come later
_OF_OTHERS = SOFTMAX | {"new_zeros"}  # a router's shares are made anew; a loss takes their logarithms
_PLACES = 4  # of the gradient of a head's table, at most
_SLOWER = 3  # one gradient of a product than the other, at most


@dataclass(frozen=True)
class Ahead:
    """The products of a forward, cut at the cores: one list more than there are cores. Those of no name have
    gradients as well."""

    products: list[list[Label]]
    in_parallel: bool  # does the MLP take what the attention takes, and not what that gives?
    norms_heads: bool = False  # are queries or keys normalized?

    def going_back(self, *, beside: bool = False) -> list[list[Label]]:
        """The same in the order of their gradients. ``beside`` an attention the way into an MLP can have its
        gradient behind that of the core, where the products are that take the same input."""
        out = [labels[::-1] for labels in reversed(self.products)]
        if not beside:
            return out
        ups = [[label for label in labels if label.component in _UP] for labels in out]
        rest = [[label for label in labels if label.component not in _UP] for labels in out]
        return [before + labels for before, labels in zip([[], *ups], rest, strict=False)]


def forward_order(run: Run, stop: int) -> Ahead:
    """What a forward names before position ``stop``."""
    out: list[list[Label]] = [[]]
    cores = {core.first for core in run.cores if core.first < stop}
    inside = {at for core in run.cores for at in core.parts}
    beside = norms = False
    last = -1
    for at in range(stop):
        if at in cores:
            out.append([])
        label = run.labels.get(at, OPEN)
        made = bool(out[-1]) and run.labels.get(last, OPEN).component == "attention.qkv"
        if made and label.component == "norm":  # of keys and values that are pooled it is none of heads
            norms |= all(kind.what != "convolution" for kind in run.kinds[last:at])
        if run.kinds[at].what == "gemm" and run.kinds[at].name not in GROUPED and at not in inside:
            ends = last >= 0 and run.labels.get(last, OPEN).component == "attention.output"
            beside |= ends and label.component in _UP and not _joins(run, last, at)
            out[-1].append(label)
            last = at
    return Ahead(out, beside, norms)


def until_cut(run: Run, ahead: Ahead) -> tuple[Excerpt, Ahead]:
    """Of a backward that the end of a recording cuts what is ahead of its last core, and whose gradients
    those are; all where it has as many cores as its forward."""
    many = sum(core.backward for core in run.cores)
    if not 0 < many < len(ahead.products) - 1:
        return whole_of(run), ahead
    kept = range(run.cores[-1].first)
    return Excerpt(run, kept, run.part(kept)), replace(ahead, products=ahead.products[-many:])


def _joins(run: Run, start: int, stop: int) -> bool:
    """Is something added or normalized between two positions, or can be?"""
    named = ("norm", "residual")
    labels = (run.labels.get(at) for at in range(start + 1, stop))
    found = any(label is not None and {label.component, *label.components} & {*named} for label in labels)
    between = run.kinds[start + 1 : stop]
    return found or any(kind.what in ("add", "norm", "fused", "kernel") for kind in between)


def label_by_layout(
    run: Run,
    start: int,
    ahead: Ahead,
    layouts: Mapping[int, str | None],
    keys: Mapping[int, object],
    busy: Mapping[int, int] | None = None,
) -> None:
    """Name the products from position ``start`` on; ``layouts`` is by place.

    ``keys``, by place too, are equal for equal kernels (name and launch configuration); ``busy`` is the time
    of each in nanoseconds.
    """
    cores = [core for core in run.cores if core.backward and core.first >= start]
    same = len(cores) == len(ahead.products) - 1
    for core, labels in zip(cores, reversed(ahead.products[:-1]), strict=same):
        layer = labels[-1].layer if labels and same else None
        run.labels.update({at: Label(component, layer) for at, component in core.parts.items()})
    grouped = [at for at in run.products(start) if run.kinds[at].name in GROUPED]
    run.labels.update(dict.fromkeys(grouped, Label(EXPERTS)))  # their kernels' names state no layout
    products = [at for at in run.products(start) if at not in run.labels and run.kinds[at].what == "gemm"]
    edges = [start - 1, *(core.first for core in cores), len(run)]
    _label_products(run, edges, products, ahead, (layouts, keys, busy or {}))
    label_unshaped(run, start, norms_heads=ahead.norms_heads)
    for at in range(start + 1, len(run)):
        kind = run.kinds[at]  # the sum behind a product split along K, and no step of an attention
        if kind.what == "helper" and kernel_component(kind.name) is None and at - 1 in run.labels:
            run.labels.setdefault(at, run.labels[at - 1])
    served = {at: serves_around(run, at) for at in range(start, len(run)) if at not in run.labels}
    run.labels |= {at: label for at, label in served.items() if label is not None}
    lost = next((at for at in range(start, len(run)) if loses(run, at)), len(run))
    first = next((at for at in products if at > lost), None)
    if first is not None and first in run.labels and run.labels[first].component == "logits":
        for at in range(lost, first):  # the loss's gradient, to where the head takes it, and that of its bias
            tags = run.kinds[at].tags
            if tags & _LOSS or not (tags & _ELSEWHERE or run.kinds[at].ops & _OF_OTHERS):
                of_head = pads(run.kinds[at]) or for_few_bits(run.kinds[at]) or (at > lost and "sum" in tags)
                run.labels.setdefault(at, Label("logits" if of_head else "loss"))


def _label_products(
    run: Run,
    edges: list[int],
    products: list[int],
    ahead: Ahead,
    kernels: tuple[Mapping[int, str | None], Mapping[int, object], Mapping[int, int]],
) -> None:
    """Name the gradients among the ``products`` between the ``edges``, which are cores."""
    layouts, keys, busy = kernels
    gaps = [[at for at in products if begin < at < end] for begin, end in pairwise(edges)]
    usual = [[at for at in inside if layouts.get(at) == _DGRAD] for inside in gaps]
    # weights that are stored the other way round
    turned = [[at for at in inside if layouts.get(at) not in (_WGRAD, None)] for inside in gaps]
    way = ahead.going_back()
    same = len(way) == len(gaps)
    routers = [_of_routers(inside, path, layouts) for inside, path in zip(gaps, way, strict=False)]
    if same and any(routers):
        way = [
            [x for x in path if not found or x.component != _ROUTER]
            for path, found in zip(way, routers, strict=True)
        ]
        usual, turned = (
            [[at for at in x if at not in found] for x, found in zip(all_, routers, strict=True)]
            for all_ in (usual, turned)
        )
        run.labels |= {at: label for found in routers for at, label in found.items()}
        products = [at for at in products if at not in run.labels]
    fits = [sum(len(here) == len(path) for here, path in zip(x, way, strict=same)) for x in (usual, turned)]
    places = turned if fits[1] > fits[0] else usual
    read_gaps(run, places, way)
    if same:
        if ahead.in_parallel and not all(map(_bends_inside, [run] * len(way), places, way)):
            way = ahead.going_back(beside=True)
        _of_activations(run, places, way)
        weights = [at for at in products if layouts.get(at) == _WGRAD]
        _of_weights(run, weights, [*zip(edges, places, way, strict=False)], keys, busy)
        _of_head(run, products, way, layouts, keys)
    else:
        weights = [at for at in products if layouts.get(at) == _WGRAD]
        run.labels |= _beside(run, weights, keys) | run.labels


def _of_routers(inside: list[int], path: list[Label], layouts: Mapping[int, str | None]) -> dict[int, Label]:
    """Gradients of routers, in more bits than the rest: their kernels state neither of the usual layouts, and
    they are as many, or half of them, where the other is small enough to be fused."""
    odd = [at for at in inside if layouts.get(at) not in (_DGRAD, _WGRAD, None)]
    routers = [label for label in path if label.component == _ROUTER]
    for many in (1, _GRADIENTS):
        if len(odd) == many * len(routers):
            return dict(zip(odd, (label for label in routers for _ in range(many)), strict=True))
    return {}


def _of_activations(run: Run, places: list[list[int]], way: list[list[Label]]) -> None:
    """Name the gradients of activations between cores, where they are as many as the forward's products and
    no unit says otherwise."""
    late = 0  # gradients of what is attended to come where that was made, or never
    for here, path in zip(places, way, strict=True):
        named = [label for label in path if label != OPEN]
        # GEMMs in fp8 are TN whatever they compute: the head's two gradients, in either order
        if named and named[0].component == "logits" and len(here) == len(named) + 1 != len(path):
            if any(run.kinds[at].name != FEW_BITS for at in here[:2]):
                continue
            run.labels.update(dict.fromkeys(here[:2], named[0]))
            here, named = here[2:], named[1:]
        wanted = path if len(path) == len(here) else named
        if len(wanted) != len(here) and (found := _of_queries(run, here, path, late)):
            late += len(path) - len(found)
            wanted = found
        if len(here) == len(wanted) and _bends_inside(run, here, wanted) and _norms(run, here, wanted):
            pairs = zip(here, wanted, strict=True)
            steps = {at: replace(label, role="dgrad") for at, label in pairs if label != OPEN}
            said = {at: run.labels[at].component for at in steps if at in run.labels}
            if all(_can_be(steps[at].component, component) for at, component in said.items()):
                run.labels |= steps


def _norms(run: Run, here: list[int], labels: list[Label]) -> bool:
    """Is something normalized between the queries and the experts of the layer before, if anything is?"""
    pairs = zip(pairwise(here), pairwise(labels), strict=True)
    ends = [way for way, (one, other) in pairs if (one.component, other.component) == (_QUERIES, EXPERTS)]
    normed = [any(map(normalizes, run.kinds[start:stop])) for start, stop in ends]
    return all(normed) or not any(map(normalizes, run.kinds[here[0] : here[-1]]))


def _of_queries(run: Run, here: list[int], path: list[Label], late: int) -> list[Label]:
    """The products of a gap from which the gradients of some keys and values are missing, or that holds
    ``late`` ones at most, as those of what is attended to come later."""
    queries = [*takewhile(lambda label: label.component == _QUERIES, path)]
    rest = path[len(queries) :]
    more = len(here) - len(path)
    if OPEN in rest or not -len(queries) < more <= late or len(queries) not in _ATTENDS:
        return []
    last = here[len(queries) + more - 1]  # none of them stands behind an activation
    if any(map(unbends, run.kinds[here[0] : here[-1] if len(rest) < _MLP else last])):
        return []
    return queries[:1] * (len(queries) + more) + rest


def _can_be(component: str, said: str) -> bool:
    """What its own units say is an MLP can be an expert of all tokens."""
    return component == said or (component == EXPERTS and said.startswith("mlp."))


def _of_weights(
    run: Run,
    weights: list[int],
    gaps: list[tuple[int, list[int], list[Label]]],
    keys: Mapping[int, object],
    busy: Mapping[int, int],
) -> None:
    """Name the gradients of weights, where they are as many in all, in an order that the kernels confirm: of
    the parts that their times and their neighbours do not gainsay."""
    whole = [label for _, _, labels in gaps for label in labels]
    kernels = [keys.get(at) for at in weights]
    longest = sorted(range(len(weights)), key=lambda index: -busy.get(weights[index], 0))[:_PLACES]
    orders = [*_orders(whole, longest), *_orders([label for label in whole if label != OPEN], longest)]
    fits = [
        dict(zip(weights, wanted, strict=True))
        for wanted in orders
        if len(wanted) == len(weights) and _alike(kernels, wanted)
    ]
    told = by_kernel(run, weights, gaps, keys, busy)
    fits = [found for found in fits if all(found[at].component == x.component for at, x in told.items())]
    own: dict[int, Label] | None = {}
    # one place late each part is the same kernel in all layers, too, but not as long as it should be
    for found in sorted(fits, key=lambda found: len(_other_times(run, found, busy))):
        own = _beside_own(run, found)
        if own is None:
            not_ = {OPEN.component} | _other_times(run, found, busy)
            named = ((at, label) for at, label in found.items() if label.component not in not_)
            run.labels.update({at: replace(label, role="wgrad") for at, label in named})
            return
    found = _beside(run, weights, keys) or {at: replace(x, role="wgrad") for at, x in (own or {}).items()}
    own_gaps = _in_own_gaps(run, weights, gaps)
    same = _alike([keys.get(at) for at in own_gaps], [*own_gaps.values()])
    run.labels |= told | found | (own_gaps if same else {}) | run.labels


def _in_own_gaps(
    run: Run, weights: list[int], gaps: list[tuple[int, list[int], list[Label]]]
) -> dict[int, Label]:
    """Those of the gaps that have as many as products, each beside the gradient of the same product's
    activations."""
    near, found = neighbours(run), dict[int, Label]()
    ends = [*(begin for begin, _, _ in gaps[1:]), len(run)]
    for (begin, _, labels), end in zip(gaps, ends, strict=True):
        inside = [at for at in weights if begin < at < end]
        named = dict(zip(inside, labels, strict=False)) if len(inside) == len(labels) else {}
        if all(label == OPEN or label.component in near.get(at, ()) for at, label in named.items()):
            found |= {at: replace(label, role="wgrad") for at, label in named.items() if label != OPEN}
    return found


def _beside_own(run: Run, weights: Mapping[int, Label]) -> dict[int, Label] | None:
    """Where gradients of activations beside them are never of the same product for a component (others are
    put off for some layers alone), the order is another: then those that have their own right before or
    behind them in the same block, and else None."""
    rows = run.products()
    steps = {at: x.component for at, x in run.labels.items() if x.role == "dgrad"}
    kinds = [[*group] for _, group in groupby(rows, steps.__contains__)]
    around: dict[int, frozenset[str]] = {}  # components of the rows of gradients of activations on both sides
    for before, group, behind in zip([[], *kinds], kinds, [*kinds[1:], []], strict=False):
        around |= dict.fromkeys(group, frozenset(steps[at] for at in (*before, *behind) if at in steps))
    near = neighbours(run)
    named = {at: label for at, label in weights.items() if label != OPEN}
    times = Counter(label.component for at, label in named.items() if near.get(at))
    sure = {label.component for at, label in named.items() if near.get(at) and label.component in around[at]}
    if all(many == 1 or part in sure for part, many in times.items()):
        return None
    return {at: label for at, label in named.items() if label.component in near.get(at, ())}


def _other_times(run: Run, weights: Mapping[int, Label], busy: Mapping[int, int]) -> set[str]:
    """Components whose gradients of weights take much longer, or less, than those of activations of the same
    products, which multiply as much."""
    times: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})
    steps = {at: label for at, label in run.labels.items() if label.role == "dgrad"}
    for of, labels in zip(times, (steps, weights), strict=True):
        for at, label in labels.items():
            of.setdefault(label.component, []).append(busy.get(at, 0))
    both = times[0].keys() & times[1].keys()
    pairs = {part: sorted((median(times[0][part]), median(times[1][part]))) for part in both}
    return {part for part, (short, long) in pairs.items() if long > _SLOWER * short}


def _orders(path: list[Label], longest: list[int]) -> Iterator[list[Label]]:
    """That of the path; a compiler puts off what nothing waits for: the head's gradient, of a table that is
    tied, comes last, or behind its own model's, one of the ``longest``."""
    late = [label for label in path if label.component == "logits"]
    rest = [label for label in path if label not in late]
    head = [label for label in path if label.component in ("logits", "other")]
    body = [label for label in path if label not in head]
    yield from (path, rest + late, body + head, body)
    yield from (rest[:index] + late + rest[index:] for index in longest)


def _beside(run: Run, weights: list[int], keys: Mapping[int, object]) -> dict[int, Label]:
    """Gradients of weights right behind, or right before, those of what they multiply, where that holds for
    more of these than the other way, and for most."""
    rows = run.products()
    found: dict[int, dict[int, Label]] = {}
    for by in (-1, 1):
        pairs = zip(rows[1:], rows, strict=False) if by < 0 else pairwise(rows)
        found[by] = {
            at: replace(label, role="wgrad")
            for base, at in pairs
            if (label := run.labels.get(base)) is not None and label.role == "dgrad" and at in weights
        }
    before, behind = found[-1], found[1]
    best = max(before, behind, key=len)
    kernels = [keys.get(at) for at in best]
    stations = sum(label.role == "dgrad" for label in run.labels.values())
    clear = len(before) != len(behind) and len(best) >= _MOST * stations
    # what its own units say has the number of no layer, but stands between two cores
    gaps = {at: sum(core.backward and core.first < at for core in run.cores) for at in best}
    unnumbered = all(label.layer is None for label in best.values())
    layers = {at: replace(label, layer=gaps[at]) if unnumbered else label for at, label in best.items()}
    return best if clear and _alike(kernels, [*layers.values()]) else {}


def _of_head(
    run: Run,
    products: list[int],
    way: list[list[Label]],
    layouts: Mapping[int, str | None],
    keys: Mapping[int, object],
) -> None:
    """A backward begins with the head: all up to the first normalization is its; and what is multiplied once
    in a step of several layers is the head's weight, when nothing else is once."""
    path = [label.component for labels in way for label in labels]
    normed = next((at for at, kind in enumerate(run.kinds) if normalizes(kind)), len(run))
    first = [at for at in products if at < normed]
    if path[:1] != ["logits"] or not first or None in [layouts.get(at) for at in first]:
        return
    times = Counter(keys.get(at) for at in products if layouts.get(at) == _WGRAD)
    weights = [at for at in first if layouts.get(at) == _WGRAD]
    if not weights and [component for component in path if path.count(component) == 1] == ["logits"]:
        weights = [at for at in products if layouts.get(at) == _WGRAD and times[keys.get(at)] == 1]
    found = {at: Label("logits", role="dgrad") for at in first if at not in weights}
    found |= {at: Label("logits", role="wgrad") for at in weights}
    if len(found) == len(weights) + 1 <= _GRADIENTS:
        run.labels |= found | run.labels


def _bends_inside(run: Run, places: list[int], labels: list[Label]) -> bool:
    """Is the activation's gradient between the products of the MLP, if it is among these at all?"""
    if len(places) != len(labels):
        return True
    pairs = [*zip(pairwise(places), pairwise(labels), strict=True)]
    mlps = [way for way, (one, other) in pairs if _comes_back(one, other)]
    # a head has activations of its own; the sum for a bias is named after the one before
    others = [way for way, two in pairs if {label.component for label in two} <= _ATTENTION]
    acts = {
        at: "sum" not in run.kinds[at].tags
        for at in (range(places[0], places[-1]) if places else ())
        if unbends(run.kinds[at])
    }
    inside = any(start < at < stop for at in acts for start, stop in mlps)
    outside = any(start < at < stop for at, sure in acts.items() if sure for start, stop in others)
    return not acts or not mlps or (inside and not outside)


def _comes_back(one: Label, other: Label) -> bool:
    """Of an MLP the product that comes back and one that goes in; also of an expert of all tokens."""
    return (
        one.component == "mlp.down" and other.component in _UP
    ) or one.component == other.component == EXPERTS


def _alike(kernels: list[object], labels: list[Label]) -> bool:
    """Is each part the same kernel in every layer, or in every layer of a stage, which has two at least? In
    another order some part would not be. The first of a stage can take another width."""
    parts: dict[str, dict[int, list[object]]] = {}
    for kernel, label in zip(kernels, labels, strict=True):
        if label.layer is not None:
            parts.setdefault(label.component, {}).setdefault(label.layer, []).append(kernel)
    layers = {layer for found in parts.values() for layer in found}
    stages: list[list[list[int]]] = []  # per part, the layers that have one kernel
    several = set()
    for found in parts.values():
        # in a layer in any order: those of one input have theirs as it comes
        own = {layer: tuple(sorted(found[layer], key=repr)) for layer in sorted(found)}
        stages.append([[*same] for _, same in groupby(own, key=own.__getitem__)])
        several |= {kernel for kernels in own.values() for kernel in kernels}
    opens = {stage[0] for of_part in stages for stage in of_part[1:] if len(stage) > 1}
    alone = [stage[0] for of_part in stages if len(of_part) > 1 for stage in of_part if len(stage) == 1]
    return len(several) > 1 and len(layers) > 1 and opens.issuperset(alone)
