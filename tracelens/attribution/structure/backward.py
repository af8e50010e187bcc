"""A backward whose operators are tied to no forward one (torch.compile): read from shapes and order.

The gradient takes one path, the forward backwards: MLP down, up, attention output, core, queries/
keys/values, layer by layer. Each product of the forward, out[m,n] = x[m,k] W[k,n], has a product for
the gradient of x, [m,n] x [n,k], which lies on that path, and one for the gradient of W, which reduces
over m and can be put off. So the first kind is aligned with the reversed forward; the second follows
in the same order, as often as the forward has the product, and never before its gradient exists. Where both
are of one size, the layout that the kernel's name states tells them apart: both inputs of the second lie with
their rows along m (NT in cuBLAS's letters), however the weight is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import prod

from tracelens.attribution.structure.ahead import key_rows
from tracelens.attribution.structure.backward_cores import gradient_of, label_inside, scores_of
from tracelens.attribution.structure.products import NamedProduct, Size, is_product, products_of, size_of
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.attribution.structure.weight_gradients import label_weights

_MOST_PAIRS = 4_000_000  # a second or two
_NEAR = 14  # units: how far ahead of a product what it takes is laid out
_SQUARE = ("attention.qkv", "attention.output")  # can have weights of one size
_BRANCHES = frozenset({"attention.qkv", "mlp.up", "mlp.gate", "moe.experts"})


def label_products(run: Run, forward: Run, layouts: Mapping[int, str | None]) -> None:
    """Name the products and cores of a backward run after those of its forward; fills ``run.labels``.

    ``layouts`` is what the kernels' names state, by place.
    """
    cores = [core for core in run.cores if core.backward]
    ahead = forward.cores
    same = len(cores) == len(ahead)
    turn = _in_turn(run, forward, cores) if same else []
    same = same and bool(turn or not cores)
    for core, twin in zip(cores, turn or reversed(ahead), strict=False):
        for at, component in core.parts.items():
            run.labels[at] = Label(component, forward.labels[twin.first].layer if same else None)
    pairs = [*zip(cores, turn, strict=True)] if same else _matched(run, forward, cores)
    again = [core for core in run.cores if not core.backward]
    if same and len(again) == len(cores):
        path, recomputed = _path_with_recompute(run, forward, again, cores)
    else:
        path, recomputed = _path(run, forward, pairs, _of_weights(run, forward, layouts)), {}
    taken = {*path, *recomputed}
    path = {at: _by_operand(run, forward, at, product) for at, product in path.items()}
    for at, product in path.items():
        run.labels[at] = product.named("dgrad")
    for at, product in recomputed.items():
        run.labels[at] = product.named("forward")
    for core in again:
        run.labels.update({at: Label(component, role="forward") for at, component in core.parts.items()})
    label_weights(run, products_of(forward), taken, path)
    label_inside(run, forward, recomputes=bool(again))


def _by_operand(run: Run, forward: Run, at: int, product: NamedProduct) -> NamedProduct:
    """The product whose gradient it is. Where sequences of several lengths attend, whose order a compiler
    mixes, of one that is square that is of the queries, keys or values which takes what was laid out from
    heads before it, and that of the output whose result is laid out for them right behind."""
    own, shape = product.label.component, product.shape
    lengths, widths = ({getattr(core, name) for core in forward.cores} for name in ("tokens", "key_dim"))
    if own not in _SQUARE or shape.n != shape.k or len(lengths) < 2:
        return product
    size = shape.m * shape.n
    near = (run.kinds[max(0, at - _NEAR) : at][::-1], run.kinds[at + 1 : at + 2])
    laid_out = [
        next((tuple(dims[-1] for dims in kind.tensors) for kind in kinds if _moves(kind, size)), ())
        for kinds in near
    ]
    gives, takes = (
        len(pair) == 2 and pair[heads] in widths and pair[1 - heads] == shape.n
        for pair, heads in zip(laid_out, (0, 1), strict=True)
    )
    others = (other.label for other in products_of(forward) if other.dgrad == product.dgrad)
    found = next((label for label in others if label.component == _SQUARE[takes]), None)
    if gives == takes or own == _SQUARE[takes] or found is None:
        return product
    return NamedProduct(replace(found, layer=None), shape)


def _moves(kind: Kind, size: int) -> bool:
    """Is it fused, and are two of its tensors, what it takes and what it gives, of so many elements?"""
    return kind.what == "fused" and [*map(prod, kind.tensors)].count(size) > 1


def _of_weights(run: Run, forward: Run, layouts: Mapping[int, str | None]) -> set[int]:
    """Products whose size either gradient can have, and whose kernel says that it is a weight's."""
    products = products_of(forward)
    either = {p.dgrad for p in products} & {size for p in products for size in p.wgrads}
    return {at for at, layout in layouts.items() if layout == "NT" and size_of(run, at) in either}


def _path(
    run: Run, forward: Run, pairs: list[tuple[Core, Core]], weights: set[int]
) -> dict[int, NamedProduct]:
    """The gradients of activations: between two cores, the forward between the same two, reversed.

    ``pairs`` are cores with those of the forward that they are the gradients of. ``weights`` are none.
    """
    cores, turn = [core for core, _ in pairs], [other for _, other in pairs]
    out: dict[int, NamedProduct] = {}
    left: list[NamedProduct] = []  # of which no gradient stands where it is expected
    open_: list[int] = []
    inside = weights.union(*(core.parts for core in run.cores))
    edges = [-1, *(min(core.parts) for core in cores), len(run)]
    nested = [core.first for core in turn] == sorted((core.first for core in turn), reverse=True)
    expected = _between_positions(forward, turn) if nested else _of_cores(forward, turn)
    for (start, stop), ahead in zip(pairwise(edges), expected, strict=True):
        places = [at for at in range(start + 1, stop) if at not in inside and size_of(run, at) is not None]
        sizes = [(at, size_of(run, at)) for at in places]
        found = _in_order(sizes, ahead)
        found |= _beside([at for at in places if at not in found], run, ahead, found)
        out |= found
        open_ += [at for at in places if at not in found]
        left += _without(ahead, found.values())
    # keys and values that a forward makes ahead of their layer have their gradients behind its first core
    behind = {_layer_of(forward, other): core.first for core, other in reversed(pairs)}
    for layer, own in groupby(left, lambda product: product.label.layer):
        late = [at for at in open_ if at not in out and (not pairs or at > behind.get(layer, len(run)))]
        out |= _beside(late, run, [p for p in own if p.label.component == "attention.qkv"], {})
    return out


def _in_turn(run: Run, forward: Run, cores: list[Core]) -> list[Core]:
    """The forward's cores in the order of their gradients: the last one first, but that of two models, or of
    an encoder and a decoder, whose kernels a compiler mixes in the forward, each follows its own."""
    left = list(forward.cores)
    out = []
    for core in cores:
        fits = [other for other in left if _is_gradient_of(run, core, forward, other)]
        if not fits:
            return []
        out.append(fits[-1])
        left.remove(fits[-1])
    return out


def _is_gradient_of(run: Run, core: Core, forward: Run, other: Core) -> bool:
    """Can it be, as far as their sizes are known?"""
    scores = scores_of(forward, other)
    if scores is not None and gradient_of(run, core, {scores}) is None:
        return False
    pairs = (
        (core.tokens, other.tokens),
        (core.heads, other.heads),
        (core.key_dim, other.key_dim),
        (key_rows(run, core), key_rows(forward, other)),
    )
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _matched(run: Run, forward: Run, cores: list[Core]) -> list[tuple[Core, Core]]:
    """The cores of a backward that does not show those of its forward one for one, as far as the products
    around them say whose gradients they are."""
    inside = {at for core in run.cores for at in core.parts}
    own = {min(core.parts): core for core in cores}
    others = {core.first: core for core in forward.cores}
    scores = {at: scores_of(forward, core) or _heads(core) for at, core in others.items()}
    back = {at: gradient_of(run, core, {*scores.values()}) or _heads(core) for at, core in own.items()}
    ran = {at: size for at in range(len(run)) if at not in inside and (size := size_of(run, at)) is not None}
    expected = {at: one.dgrad for at in range(len(forward)) for one in products_of(forward, [at])}
    left, steps = sorted((ran | back).items()), sorted((scores | expected).items(), reverse=True)
    pairs: list[tuple[Core, Core]] = []
    while common := _common(left, [size for _, size in steps]):  # of each model whose kernels are mixed
        found = [(at, steps[n][0]) for at, n in common if at in own and steps[n][0] in others]
        if not found:
            break
        pairs += [(own[at], others[there]) for at, there in found]
        ran_now, taken = {at for at, _ in common}, {n for _, n in common}
        left = [one for one in left if one[0] not in ran_now]
        steps = [one for n, one in enumerate(steps) if n not in taken]
    return sorted(pairs, key=lambda pair: min(pair[0].parts))


def _heads(core: Core) -> tuple[int | None, ...]:
    return (core.tokens, core.heads, core.key_dim)


def _between_positions(forward: Run, cores: list[Core]) -> list[list[NamedProduct]]:
    """Between these cores of a forward, the last first, and outside all, the products, both reversed."""
    bounds = [len(forward), *(core.first for core in cores), -1]
    return [products_of(forward, range(end - 1, begin, -1)) for end, begin in pairwise(bounds)]


def _of_cores(forward: Run, turn: list[Core]) -> list[list[NamedProduct]]:
    """The same in another ``turn`` of the cores: what makes a core's queries, keys and values goes back
    behind it, all else of a layer before the core that it follows, and what is of no layer before all."""
    out: list[list[NamedProduct]] = [[] for _ in range(len(turn) + 1)]
    for at in range(len(forward) - 1, -1, -1):
        label, shape = forward.labels.get(at), forward.shape(at)
        if label is None or shape is None or not is_product(forward, at, label):
            continue
        queries = label.component == "attention.qkv"
        layer = [core for core in turn if label.layer is not None and _layer_of(forward, core) == label.layer]
        rows = [
            core for core in layer if shape.m in (core.tokens, key_rows(forward, core) if queries else None)
        ]
        own = rows or layer
        behind, before = ([core for core in own if (core.first > at) == way] for way in (True, False))
        chosen = (
            min(behind or before, key=_first)
            if queries and own
            else max(before or behind, key=_first, default=None)
        )
        number = 0 if chosen is None else turn.index(chosen) + queries
        out[number].append(NamedProduct(label, shape))
    return out


def _first(core: Core) -> int:
    return core.first


def _layer_of(forward: Run, core: Core) -> int | None:
    label = forward.labels.get(core.first)
    return label.layer if label is not None else None


def _path_with_recompute(
    run: Run, forward: Run, again: list[Core], cores: list[Core]
) -> tuple[dict[int, NamedProduct], dict[int, NamedProduct]]:
    """Checkpointed layers run forward again before their backward: gradients, and products run again.

    The anchors are the cores of both: forward of the last layer, its backward, forward of the layer before...
    """
    before: list[list[NamedProduct]] = []  # per core: the products that make its queries
    behind: list[list[NamedProduct]] = []  # and those from its output on
    head: list[NamedProduct] = []
    bounds = [-1, *(core.first for core in forward.cores), len(forward)]
    for number, (start, stop) in enumerate(pairwise(bounds)):
        here = products_of(forward, range(start + 1, stop))
        queries = [p for p in here if p.label.component == "attention.qkv"]
        others = [p for p in here if p.label.component != "attention.qkv"]
        if number < len(forward.cores):
            before.append(queries)
        if number:
            head = [p for p in others if p.label.component in ("logits", "other")]
            behind.append([p for p in others if p not in head])
    path: dict[int, NamedProduct] = {}
    recomputed: dict[int, NamedProduct] = {}
    anchors = [place for pair in zip(again, cores, strict=True) for place in (pair[0].first, pair[1].first)]
    last = len(cores) - 1
    for number, (start, stop) in enumerate(pairwise([-1, *anchors, len(run)])):
        layer = last - number // 2
        if number % 2:  # between a forward core and its backward
            wanted = [(p, "forward") for p in behind[layer]] + [(p, "dgrad") for p in reversed(behind[layer])]
        else:
            gone = reversed(before[layer + 1] if layer < last else head)
            wanted = [(p, "dgrad") for p in gone]
            wanted += [(p, "forward") for p in before[layer]] if layer >= 0 else []
        places = [(at, size_of(run, at)) for at in range(start + 1, stop) if size_of(run, at) is not None]
        sizes = [p.dgrad if role == "dgrad" else p.size for p, role in wanted]
        for place, index in _common(places, sizes):
            product, role = wanted[index]
            (path if role == "dgrad" else recomputed)[place] = product
    return path, recomputed


def _beside(
    places: list[int], run: Run, ahead: list[NamedProduct], known: Mapping[int, NamedProduct]
) -> dict[int, NamedProduct]:
    """Branches of one input (queries, keys, values; gate and up) come in any order among themselves, and
    before what is ``known`` to follow them."""
    left = _without(ahead, known.values())
    out: dict[int, NamedProduct] = {}
    stations = {at: product for at, product in known.items() if product.label.component not in _BRANCHES}
    for at in places:
        passed = [p for place, p in stations.items() if place < at]
        late = {p.shape.m: ahead.index(p) for p in sorted(passed, key=ahead.index)}
        fits = [p for p in left if p.dgrad == size_of(run, at) and p.label.component in _BRANCHES]
        fits = [p for p in fits if ahead.index(p) > late.get(p.shape.m, -1)]
        if fits and len({product.label.component for product in fits}) == 1:
            out[at] = fits[0]
            left.remove(fits[0])
    return out


def _without(products: list[NamedProduct], used: Iterable[NamedProduct]) -> list[NamedProduct]:
    left = list(products)
    for product in used:
        left.remove(product)
    return left


def _in_order(places: list[tuple[int, Size | None]], ahead: list[NamedProduct]) -> dict[int, NamedProduct]:
    """The products run that are the gradients of these, in this order. Where as many of a size ran as are
    expected they are these, if only branches of one input change places."""
    found = dict(_common(places, [p.dgrad for p in ahead]))
    more = dict(found)
    for size in {p.dgrad for p in ahead}:
        ran = [at for at, own in places if own == size]
        wanted = [index for index, product in enumerate(ahead) if product.dgrad == size]
        more |= dict(zip(ran, wanted, strict=True)) if len(ran) == len(wanted) else {}
    latest, turned = -1, False
    for _, index in sorted(more.items()):
        turned |= index < latest and ahead[index].label.component != ahead[latest].label.component
        latest = max(latest, index)
    best = found if turned or len({*more.values()}) < len(more) else more
    return {at: ahead[index] for at, index in best.items()}


def _common(places: Sequence[tuple[int, object]], sizes: Sequence[object]) -> list[tuple[int, int]]:
    """The longest common subsequence of what ran and what is expected: (place, index of the expected)."""
    rows, columns = len(places), len(sizes)
    if rows * columns > _MOST_PAIRS:
        return []  # no cores to divide a very large step by: better unknown than minutes
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            fits = places[i][1] == sizes[j]
            best[i][j] = best[i + 1][j + 1] + 1 if fits else max(best[i + 1][j], best[i][j + 1])
    out = []
    i = j = 0
    while i < rows and j < columns:
        if places[i][1] == sizes[j]:
            out.append((places[i][0], j))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return out
