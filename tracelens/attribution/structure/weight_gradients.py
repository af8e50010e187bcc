"""Gradients of weights in a backward whose products have shapes: those beside the gradient of what they
multiply, then those of one size in the order of the path."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby, pairwise

from tracelens.attribution.structure.products import NamedProduct, Size, size_of
from tracelens.attribution.structure.put_off import agree
from tracelens.attribution.structure.runs import Label, Run

_MOSTLY = 0.9  # of the gradients of activations have that of the weight next to them
_ALIGNED = 8  # elements
_IN_TURN = frozenset({"mlp.up", "mlp.gate"})  # of one input, layer by layer
_MLP = frozenset({"mlp.up", "mlp.gate", "mlp.down"})


def label_weights(
    run: Run, forward: list[NamedProduct], taken: set[int], path: dict[int, NamedProduct]
) -> None:
    """Name the gradients of weights: those beside the gradient of what they multiply, then those of one size
    in the order of the path."""
    ready = _ready(run, path)
    inside = {at for core in run.cores for at in core.parts}
    left = {at: size for at in range(len(run)) if (size := size_of(run, at)) and at not in taken | inside}
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
    of_size: dict[Size, list[int]] = {}
    for index, product in enumerate(forward):
        for wgrad in {product.wgrads[form] for form in stored[product.label.component]}:
            of_size.setdefault(wgrad, []).append(index)
    for at in range(len(run)):
        size = size_of(run, at)
        if size is None or at in taken or at in inside:
            continue
        fits = tuple(of_size.get(size, ())) or _padded_ahead(size, of_size)
        if fits:
            classes.setdefault(fits, []).append(at)
        else:
            _same_as_forward(run, at, forward, size)
    end = max(path, default=-1)
    last = {index for fits, places in classes.items() for index in fits[: sum(at > end for at in places)]}
    rows = {forward[index].shape.m for index in last}  # another sequence's stand elsewhere
    first = {*[index for index, product in enumerate(forward) if product.shape.m in rows][: len(last)]}
    for fits, places in classes.items():
        wanted = [forward[index] for index in reversed(fits)]
        _name_class(run, places, wanted, ready, path)
        late = [at for at in places if at > end and run.labels[at].component != "unattributed"]
        mixed = {run.labels[at].component for at in late}
        if len(mixed) > 1 and not mixed <= _IN_TURN and last != first:
            # behind all gradients of activations, and some that come later in their order are not there
            several = Label("unattributed", candidates=tuple(sorted(mixed)), role="wgrad")
            run.labels.update(dict.fromkeys(late, several))


def _forms(forward: list[NamedProduct], sizes: Collection[Size]) -> tuple[int, ...]:
    """How gradients of weights are stored, as far as their sizes tell: a program does it in one way. That
    tells the two layers of an MLP apart, whose weights are one another turned."""
    ways = [{product.wgrads[form] for product in forward} for form in (0, 1)]
    seen = [sum(size in ways[form] - ways[1 - form] for size in sizes) for form in (0, 1)]
    return (0,) if not seen[1] else (1,) if not seen[0] else (0, 1)


def _forms_beside(
    run: Run, path: dict[int, NamedProduct], left: Mapping[int, Size]
) -> tuple[int, ...] | None:
    """The same of an MLP alone, where each gradient of its weights stands beside that of what they multiply
    in one way only: a head can be stored as layers are not (GPT-2's)."""
    mlp = {at: product for at, product in path.items() if product.label.component in _MLP}
    near = {way: _neighbours(run, mlp, left, way) for way in (-1, 1)}
    fits = {
        (way, form): [at for at, product in found.items() if left.get(at) == product.wgrads[form]]
        for way, found in near.items()
        for form in (0, 1)
    }
    whole = [form for (_, form), places in fits.items() if len(places) == len(mlp) > 1]
    return (whole[0],) if len(whole) == 1 else None


def _neighbours(
    run: Run, path: Mapping[int, NamedProduct], left: Collection[int], way: int
) -> dict[int, NamedProduct]:
    """Per product right before (-1) or right behind (1) one of the path, that one; as many in a row as there
    are of the path in a row stand in the same order."""
    rows = [at for at in range(len(run)) if size_of(run, at) is not None]
    groups = [[*group] for _, group in groupby(rows, lambda at: (at in path, at in left))]
    out: dict[int, NamedProduct] = {}
    for group, beside in pairwise(groups[::way]):
        if len(group) == len(beside):
            out |= {other: path[at] for at, other in zip(group, beside, strict=True) if at in path}
        elif group[::way][-1] in path:
            out[beside[::way][0]] = path[group[::way][-1]]
    return out


def _next_to_path(
    run: Run, path: dict[int, NamedProduct], left: Mapping[int, Size], stored: Mapping[str, tuple[int, ...]]
) -> dict[int, NamedProduct]:
    """Gradients of weights right before, or right behind, those of what they multiply, as autograd makes
    them; none where a compiler puts them off, so that most stand elsewhere."""
    before, behind = (
        {
            at: product
            for at, product in _neighbours(run, path, left, way).items()
            if left.get(at) in [product.wgrads[form] for form in stored[product.label.component]]
        }
        for way in (-1, 1)
    )
    best = max(before, behind, key=len)
    clear = len(before) != len(behind) and len(best) >= _MOSTLY * len(path)
    return best if clear else {}


def _padded_ahead(size: Size, of_size: Mapping[Size, list[int]]) -> tuple[int, ...]:
    """The products whose output the forward makes a few columns wider, for alignment, and the gradient of
    their weight does not (torch/_inductor/fx_passes/pad_mm.py decides for each)."""
    for padded, fits in of_size.items():
        more = [large - own for large, own in zip(padded, size, strict=True) if large != own]
        if len(more) == 1 and 0 < more[0] < _ALIGNED and any(n % _ALIGNED for n in size):
            return tuple(fits)
    return ()


def _name_class(
    run: Run,
    places: list[int],
    wanted: list[NamedProduct],
    ready: dict[tuple[object, ...], int],
    path: Collection[int],
) -> None:
    components = {product.label.component for product in wanted}
    in_order = len(places) == len(wanted) and all(
        at > ready.get(_key(product), -1) for at, product in zip(places, wanted, strict=True)
    )
    if in_order and agree(run, {at: x.label for at, x in zip(places, wanted, strict=True)}, sorted(path), {}):
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


def _same_as_forward(run: Run, at: int, forward: list[NamedProduct], size: Size) -> None:
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
