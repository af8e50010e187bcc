"""What is said of a sample (time, class, text), beside the layers.

Adaptive normalization (arXiv 2212.09748) makes scales, shifts and gates of it: linear layers with one row
for each sample, whose results every token of the stream is multiplied with. No product of a layer has so few.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise, takewhile
from math import prod

from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import parse_kernel_name

_MORE = 1.125  # tokens than patches, at most
_FEW_ROWS, _MANY_ROWS = 16, 48  # sides of tiles
_SCALES = frozenset({"split", "unsqueeze"})
_OF_LAYERS = ("bmm", "softmax", "core", "recurrence", "loss")
_SMALL = ("elementwise", "copy", "add", "activation", "dispatch")


def label_conditions(run: Run) -> None:
    """Name the linear layers on conditions and what stands around them ``other``; fills ``run.labels``."""
    samples = {found for kind in run.kinds for found in _scaled_by_sample(kind)}
    for at in run.products():
        shape = run.shape(at)
        if at in run.labels or shape is None or shape.batch > 1:
            continue
        if any(
            shape.m == rows and (rows > 1 or shape.n % width == 0 < shape.n - width)
            for rows, width in samples
        ):
            most = shape.m * max(shape.n, shape.k)
            places = [at, *_around(run, at, -1, most), *_around(run, at, 1, most)]
            run.labels.update(dict.fromkeys(places, Label("other")))
    for at, kind in enumerate(run.kinds):  # a scale is one more than what is made
        one = kind.name == "add" and len(kind.tensors) == 1
        if one and samples & {(kind.tensors[0][0], kind.tensors[0][-1])} and prod(kind.tensors[0][1:-1]) == 1:
            run.labels[at] = Label("other")


def of_few_rows(run: Run, products: list[int]) -> set[int]:
    """Products of conditions in a graph that torch.compile made: of few rows ahead of one of many, as their
    kernels' tiles tell, where the next normalization takes parts of what they make."""
    kernels = {at: parse_kernel_name(run.kinds[at].name) for at in products}
    sides = {at: min((kernel and kernel.tile_pair) or (0,)) for at, kernel in kernels.items()}
    sides |= {at: 1 for at, kernel in kernels.items() if kernel and kernel.family == "gemv"}
    few = {at for at, p in pairwise(products) if 0 < sides[at] <= _FEW_ROWS and sides[p] >= _MANY_ROWS}
    norms = [at for at, kind in enumerate(run.kinds) if kind.tags & {"norm", "rope"} == {"norm"}]
    return {at for at in few for norm in norms[bisect(norms, at) :][:1] if run.kinds[norm].ops >= _SCALES}


def label_times(run: Run) -> None:
    """Name sines of a few numbers (a time), up to the linear layer that takes nothing else, ``embedding``;
    fills ``run.labels``."""
    for at, kind in enumerate(run.kinds):
        rows = kind.tensors[0] if kind.name in ("sin", "cos") and kind.tensors else ()
        if at in run.labels or len(rows) != 2:
            continue
        places = [*_around(run, at, -1, 2 * prod(rows)), at, *_around(run, at, 1, 2 * prod(rows))]
        shape = run.shape(max(places) + 1) if max(places) + 1 < len(run) else None
        if shape is not None and shape.batch == 1 and (shape.m, shape.k) == (rows[0], 2 * rows[1]):
            run.labels.update(dict.fromkeys(places, Label("embedding")))


def label_brought(run: Run, hidden: int | None) -> None:
    """Name what brings tokens onto the width of the stream, or onto that of keys and values those of another
    model that are attended to and nothing else, ahead of the first attention; fills ``run.labels``."""
    ahead = _of_tokens(run) if hidden is None else _onto_stream(run, hidden)
    run.labels.update(dict.fromkeys(ahead, Label("embedding")))
    for at, behind in pairwise(ahead):
        if all(kind.what in _SMALL for kind in run.kinds[at + 1 : behind]):
            run.labels |= dict.fromkeys(range(at + 1, behind), Label("embedding")) | run.labels


def _onto_stream(run: Run, hidden: int) -> list[int]:
    rows: dict[str, set[int]] = {"attention.qkv": set(), "attention.output": set()}
    for at, label in run.labels.items():
        shape = run.shape(at)
        if shape is not None and label.component in rows:
            rows[label.component].add(shape.m)
    keys = rows["attention.qkv"] - rows["attention.output"]
    first = run.cores[0].first if run.cores and run.follows is None else 0
    products = [(at, shape) for at in run.products(0, first) if (shape := run.shape(at)) and shape.batch == 1]
    tokens = rows["attention.qkv"]  # with those of a class, and registers
    whole = [(at, shape) for at, shape in products if any(shape.m <= m <= shape.m * _MORE for m in tokens)]
    before = takewhile(lambda one: one[1].k != hidden, whole)  # what takes the stream is of a layer
    later = {at: shape for at in run.products(first) if (shape := run.shape(at)) is not None}
    layers = {(shape.n, shape.k) for shape in later.values()}
    onto = {at for at, shape in before if shape.n == hidden and (shape.n, shape.k) not in layers}
    again = {shape for at, shape in later.items() if at not in run.labels}  # of layers of another stream
    brings = [at for at, shape in products if shape.m in keys and shape not in again]
    return [at for at in sorted({*brings, *onto}) if at not in run.labels]


def _of_tokens(run: Run) -> list[int]:
    """Without shapes, where layers begin with a normalization: none is ahead of the first one, and the linear
    layers there make their tokens. What the first one is taken by has a name then."""
    norms = {at for at, kind in enumerate(run.kinds) if kind.what == "norm"} | written_norms(run)
    first = min(norms, default=0) if run.phase == "forward" and run.cores and run.follows is None else 0
    within = not run.labels.keys() & {*run.products(first)[:1]}
    within |= any(kind.what in _OF_LAYERS for kind in run.kinds[:first])
    return [] if within else [at for at in run.products(0, first) if at not in run.labels]


def label_dropped_samples(run: Run, hidden: int | None) -> None:
    """Name a branch of some of the samples alone (stochastic depth, arXiv 2304.07193): choosing them is
    ``dropout``, scaling and adding them ``residual``; fills ``run.labels``."""
    for at, kind in enumerate(run.kinds):
        whole, part = (*kind.tensors[::2], (), ())[:2]
        of_samples = whole[1:] == part[1:] != () and part[0] <= whole[0] and kind.tensors[1] == part[:1]
        if kind.name not in ("index_add", "index_add_") or not of_samples:
            continue
        if hidden is None or prod(whole[1:]) % hidden or whole[1:] == (hidden,):
            continue  # tokens that go back from their experts
        run.labels[at] = Label("residual")
        for place in range(at - 1, -1, -1):
            before = run.kinds[place]
            if before.name in ("mul", "index_add") and all(prod(t) <= prod(whole) for t in before.tensors):
                run.labels[place] = Label("residual")
            elif before.what != "copy":
                break
        picks = (p for p in range(at - 1, -1, -1) if run.kinds[p].name in ("index", "index_select"))
        chosen = next(picks, 0)
        if prod(next(iter(run.kinds[chosen].tensors), ())) == prod(whole):
            draws = range(chosen - (run.kinds[chosen - 1].name == "randperm"), chosen + 1)
            run.labels.update(dict.fromkeys(draws, Label("dropout")))


def _scaled_by_sample(kind: Kind) -> Iterator[tuple[int, int]]:
    """(samples, width) where rows of tokens are multiplied with one row for each sample, which torch.compile
    takes from what is split in the normalization before."""
    if "norm" in kind.tags and kind.ops >= _SCALES:
        rows = {t[0]: t[1] for t in kind.tensors if len(t) == 2}
        whole = (t for t in kind.tensors if len(t) == 3 and 1 < t[0] < t[1] and rows.get(t[0], 0) % t[2] == 0)
        yield from ((t[0], t[2]) for t in whole if rows.get(t[0], 0) > t[2])
    two = kind.tensors[:2]
    if kind.name in ("mul", "mul_") and len(two) == 2 and all(len(t) == 3 for t in two):
        one, many = sorted(two, key=prod)
        if one[1] == 1 < many[1] and one[::2] == many[::2]:
            yield one[0], one[2]


def _around(run: Run, at: int, way: int, most: int) -> Iterator[int]:
    """What stands beside and works on nothing larger."""
    place = at + way
    while 0 <= place < len(run) and place not in run.labels:
        kind = run.kinds[place]
        if kind.what not in _SMALL or any(prod(t) > most for t in kind.tensors):
            return
        yield place
        place += way
