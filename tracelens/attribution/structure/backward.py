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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tracelens.attribution.structure.ahead import key_rows
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.gemm import GemmShape
from tracelens.words import Role

_MOST_PAIRS = 4_000_000  # a second or two
_MOSTLY = 0.9  # of the gradients of activations have that of the weight next to them
_MLP = frozenset({"mlp.up", "mlp.gate", "mlp.down"})
_BRANCHES = frozenset({"attention.qkv", "mlp.up", "mlp.gate", "moe.experts"})
_OPEN = Label("unattributed")
_Size = tuple[int, int, int, int]  # batch, M, N, K


@dataclass(frozen=True, slots=True)
class NamedProduct:
    """A product of the forward; one without a name has gradients as well, which are of none either."""

    label: Label
    shape: GemmShape

    @property
    def dgrad(self) -> _Size:
        return (self.shape.batch, self.shape.m, self.shape.k, self.shape.n)

    @property
    def size(self) -> _Size:
        return (self.shape.batch, self.shape.m, self.shape.n, self.shape.k)

    @property
    def wgrads(self) -> tuple[_Size, _Size]:
        """Stored as [out, in] or [in, out]: both are in use."""
        batch, m, n, k = self.shape.batch, self.shape.m, self.shape.n, self.shape.k
        return (batch, n, k, m), (batch, k, n, m)

    def named(self, role: Role) -> Label:
        label = self.label
        return Label(label.component, label.layer, label.components, label.candidates, role)


def products_of(run: Run, places: Iterable[int] | None = None) -> list[NamedProduct]:
    """The products of a forward run that have a weight, in order, or of these ``places``."""
    return [
        NamedProduct(run.labels.get(at, _OPEN), shape)
        for at in (range(len(run)) if places is None else places)
        if _is_product(run, at, run.labels.get(at, _OPEN)) and (shape := run.shape(at)) is not None
    ]


def _is_product(run: Run, at: int, label: Label) -> bool:
    """With a weight: the products inside attention have none."""
    kind = run.kinds[at]
    if label.role in ("dgrad", "wgrad"):
        return False
    return kind.what == "gemm" or (kind.what == "bmm" and label.component.startswith("moe."))


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
    again = [core for core in run.cores if not core.backward]
    if same and len(again) == len(cores):
        path, recomputed = _path_with_recompute(run, forward, again, cores)
    else:
        path, recomputed = (
            _path(run, forward, cores if same else None, _of_weights(run, forward, layouts)),
            {},
        )
    taken = {*path, *recomputed}
    for at, product in path.items():
        run.labels[at] = product.named("dgrad")
    for at, product in recomputed.items():
        run.labels[at] = product.named("forward")
    for core in again:
        run.labels.update({at: Label(component, role="forward") for at, component in core.parts.items()})
    _weight_gradients(run, products_of(forward), taken, path)
    unfused = [forward.shape(core.first) for core in forward.cores if core.first != core.last]
    batches = {shape.batch for shape in unfused if shape is not None}
    for at in range(len(run)):
        shape = run.shape(at)
        is_open = at not in run.labels and run.kinds[at].what == "bmm"
        if is_open and shape is not None and shape.batch in batches:
            run.labels[at] = Label("unattributed", candidates=("attention.scores", "attention.values"))


def _of_weights(run: Run, forward: Run, layouts: Mapping[int, str | None]) -> set[int]:
    """Products whose size either gradient can have, and whose kernel says that it is a weight's."""
    products = products_of(forward)
    either = {p.dgrad for p in products} & {size for p in products for size in p.wgrads}
    return {at for at, layout in layouts.items() if layout == "NT" and _size(run, at) in either}


def _path(run: Run, forward: Run, cores: list[Core] | None, weights: set[int]) -> dict[int, NamedProduct]:
    """The gradients of activations: between two cores, the forward between the same two, reversed.

    Where the backward does not show as many cores as the forward, the whole of both. ``weights`` are none.
    """
    out: dict[int, NamedProduct] = {}
    left: list[NamedProduct] = []  # of which no gradient stands where it is expected
    open_: list[int] = []
    inside = weights.union(*(core.parts for core in run.cores))
    edges = [-1, *(core.first for core in cores or []), len(run)]
    turn = _in_turn(run, forward, cores or [])
    nested = turn == forward.cores[::-1]
    expected = _between_positions(forward, bool(cores)) if nested or not cores else _of_cores(forward, turn)
    for (start, stop), ahead in zip(pairwise(edges), expected, strict=True):
        places = [at for at in range(start + 1, stop) if at not in inside and _size(run, at) is not None]
        sizes = [(at, _size(run, at)) for at in places]
        found = _in_order(sizes, ahead)
        found |= _beside([at for at in places if at not in found], run, ahead, list(found.values()))
        out |= found
        open_ += [at for at in places if at not in found]
        left += _without(ahead, found.values())
    # keys and values that the forward makes ahead of their layer have their gradients behind its core
    return out | _beside(open_, run, [p for p in left if p.label.component == "attention.qkv"], [])


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
    pairs = (
        (core.tokens, other.tokens),
        (core.heads, other.heads),
        (core.key_dim, other.key_dim),
        (key_rows(run, core), key_rows(forward, other)),
    )
    return all(None in pair or pair[0] == pair[1] for pair in pairs)


def _between_positions(forward: Run, cut: bool) -> list[list[NamedProduct]]:
    """Between two cores of a forward, and outside all, the products, both reversed."""
    bounds = [len(forward), *(core.first for core in reversed(forward.cores if cut else [])), -1]
    return [products_of(forward, range(end - 1, begin, -1)) for end, begin in pairwise(bounds)]


def _of_cores(forward: Run, turn: list[Core]) -> list[list[NamedProduct]]:
    """The same in another ``turn`` of the cores: what makes a core's queries, keys and values goes back
    behind it, all else of a layer before the core that it follows, and what is of no layer before all."""
    out: list[list[NamedProduct]] = [[] for _ in range(len(turn) + 1)]
    for at in range(len(forward) - 1, -1, -1):
        label, shape = forward.labels.get(at), forward.shape(at)
        if label is None or shape is None or not _is_product(forward, at, label):
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
        places = [(at, _size(run, at)) for at in range(start + 1, stop) if _size(run, at) is not None]
        sizes = [p.dgrad if role == "dgrad" else p.size for p, role in wanted]
        for place, index in _common(places, sizes):
            product, role = wanted[index]
            (path if role == "dgrad" else recomputed)[place] = product
    return path, recomputed


def _beside(
    places: list[int], run: Run, ahead: list[NamedProduct], used: list[NamedProduct]
) -> dict[int, NamedProduct]:
    """Branches of one input (queries, keys, values; gate and up) come in any order among themselves."""
    left = _without(ahead, used)
    out: dict[int, NamedProduct] = {}
    for at in places:
        fits = [p for p in left if p.dgrad == _size(run, at) and p.label.component in _BRANCHES]
        if fits and len({product.label.component for product in fits}) == 1:
            out[at] = fits[0]
            left.remove(fits[0])
    return out


def _without(products: list[NamedProduct], used: Iterable[NamedProduct]) -> list[NamedProduct]:
    left = list(products)
    for product in used:
        left.remove(product)
    return left


def _size(run: Run, at: int) -> _Size | None:
    shape = run.shape(at)
    if shape is None or run.kinds[at].what not in ("gemm", "bmm"):
        return None
    return (shape.batch, shape.m, shape.n, shape.k)


def _in_order(places: list[tuple[int, _Size | None]], ahead: list[NamedProduct]) -> dict[int, NamedProduct]:
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


def _common(places: list[tuple[int, _Size | None]], sizes: list[_Size]) -> list[tuple[int, int]]:
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


def _weight_gradients(
    run: Run, forward: list[NamedProduct], taken: set[int], path: dict[int, NamedProduct]
) -> None:
    """Name the gradients of weights: those beside the gradient of what they multiply, then those of one size
    in the order of the path."""
    ready = _ready(run, path)
    inside = {at for core in run.cores for at in core.parts}
    left = {at: size for at in range(len(run)) if (size := _size(run, at)) and at not in taken | inside}
    forms = _forms(forward, left.values())
    own = _forms_beside(run, path, left)
    stored = {p.label.component: own if own and p.label.component in _MLP else forms for p in forward}
    beside = _next_to_path(run, path, left, stored)
    taken = {*taken, *beside}
    for at, product in beside.items():
        run.labels[at] = product.named("wgrad")
        if product in forward:
            forward.remove(product)
    classes: dict[tuple[int, ...], list[int]] = {}
    of_size: dict[_Size, list[int]] = {}
    for index, product in enumerate(forward):
        for wgrad in {product.wgrads[form] for form in stored[product.label.component]}:
            of_size.setdefault(wgrad, []).append(index)
    for at in range(len(run)):
        size = _size(run, at)
        if size is None or at in taken or at in inside:
            continue
        fits = tuple(of_size.get(size, ()))
        if fits:
            classes.setdefault(fits, []).append(at)
        else:
            _same_as_forward(run, at, forward, size)
    end = max(path, default=-1)
    last = {index for fits, places in classes.items() for index in fits[: sum(at > end for at in places)]}
    for fits, places in classes.items():
        wanted = [forward[index] for index in reversed(fits)]
        _name_class(run, places, wanted, ready)
        late = [at for at in places if at > end and run.labels[at].component != "unattributed"]
        mixed = {run.labels[at].component for at in late}
        if len(mixed) > 1 and last != {*range(len(last))}:
            # behind all gradients of activations, and some that come later in their order are not there
            several = Label("unattributed", candidates=tuple(sorted(mixed)), role="wgrad")
            run.labels.update(dict.fromkeys(late, several))


def _forms(forward: list[NamedProduct], sizes: Collection[_Size]) -> tuple[int, ...]:
    """How gradients of weights are stored, as far as their sizes tell: a program does it in one way. That
    tells the two layers of an MLP apart, whose weights are one another turned."""
    ways = [{product.wgrads[form] for product in forward} for form in (0, 1)]
    seen = [sum(size in ways[form] - ways[1 - form] for size in sizes) for form in (0, 1)]
    return (0,) if not seen[1] else (1,) if not seen[0] else (0, 1)


def _forms_beside(
    run: Run, path: dict[int, NamedProduct], left: Mapping[int, _Size]
) -> tuple[int, ...] | None:
    """The same of an MLP alone, where each gradient of its weights stands beside that of what they multiply
    in one way only: a head can be stored as layers are not (GPT-2's)."""
    mlp = {at: product for at, product in path.items() if product.label.component in _MLP}
    near = {way: _neighbours(run, mlp, way) for way in (-1, 1)}
    fits = {
        (way, form): [at for at, product in found.items() if left.get(at) == product.wgrads[form]]
        for way, found in near.items()
        for form in (0, 1)
    }
    whole = [form for (_, form), places in fits.items() if len(places) == len(mlp) > 1]
    return (whole[0],) if len(whole) == 1 else None


def _neighbours(run: Run, path: dict[int, NamedProduct], way: int) -> dict[int, NamedProduct]:
    """Per product right before (-1) or right behind (1) one of the path, that one."""
    rows = [at for at in range(len(run)) if _size(run, at) is not None]
    index = {at: number for number, at in enumerate(rows)}
    places = {at: index[at] + way for at in path}
    return {rows[place]: path[at] for at, place in places.items() if 0 <= place < len(rows)}


def _next_to_path(
    run: Run,
    path: dict[int, NamedProduct],
    left: Mapping[int, _Size],
    stored: Mapping[str, tuple[int, ...]],
) -> dict[int, NamedProduct]:
    """Gradients of weights right before, or right behind, those of what they multiply, as autograd makes
    them; none where a compiler puts them off, so that most stand elsewhere."""
    before, behind = (
        {
            at: product
            for at, product in _neighbours(run, path, way).items()
            if left.get(at) in [product.wgrads[form] for form in stored[product.label.component]]
        }
        for way in (-1, 1)
    )
    best = max(before, behind, key=len)
    clear = len(before) != len(behind) and len(best) >= _MOSTLY * len(path)
    return best if clear else {}


def _name_class(
    run: Run, places: list[int], wanted: list[NamedProduct], ready: dict[tuple[object, ...], int]
) -> None:
    components = {product.label.component for product in wanted}
    in_order = len(places) == len(wanted) and all(
        at > ready.get(_key(product), -1) for at, product in zip(places, wanted, strict=True)
    )
    if in_order:
        for at, product in zip(places, wanted, strict=True):
            run.labels[at] = product.named("wgrad")
    elif len(components) == 1:
        parts = wanted[0].label.components
        for at in places:
            run.labels[at] = Label(next(iter(components)), None, parts, role="wgrad")
    else:
        for at in places:
            run.labels[at] = Label("unattributed", candidates=tuple(sorted(components)), role="wgrad")


def _key(product: NamedProduct) -> tuple[object, ...]:
    return (product.label.component, product.label.layer, product.dgrad)


def _ready(run: Run, path: dict[int, NamedProduct]) -> dict[tuple[object, ...], int]:
    """Per product of the forward, the place on the path before which its output has no gradient yet."""
    out: dict[tuple[object, ...], int] = {}
    stations = sorted([*path, *(core.first for core in run.cores)])
    before = {at: stations[i - 1] if i else -1 for i, at in enumerate(stations)}
    for at, product in path.items():
        # products that share an input (queries, keys, values; gate and up) share the station before
        place = before[at]
        while place in path and path[place].label.component == product.label.component:
            place = before[place]
        if {product.label.component} <= {"mlp.up", "mlp.gate"}:
            while place in path and path[place].label.component in ("mlp.up", "mlp.gate"):
                place = before[place]
        out.setdefault(_key(product), place)
    return out


def _same_as_forward(run: Run, at: int, forward: list[NamedProduct], size: _Size) -> None:
    """A product of the forward run again inside the backward, or a gradient off the path."""
    for role in ("dgrad", "forward"):
        fits = {
            (p.label.component, p.label.components)
            for p in forward
            if size == (p.dgrad if role == "dgrad" else (p.shape.batch, p.shape.m, p.shape.n, p.shape.k))
        }
        if len(fits) == 1:
            component, parts = fits.pop()
            run.labels[at] = Label(component, None, parts, role=role)
            return
        if fits:
            names = tuple(sorted({component for component, _ in fits}))
            run.labels[at] = Label("unattributed", candidates=names, role=role)
            return
