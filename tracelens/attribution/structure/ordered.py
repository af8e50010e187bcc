"""Products without shapes (a CUDA graph, a trace recorded without shapes): named by weights or by order.

A compiled graph is called with the model's parameters, in the order in which the model uses them; where
they are as many as the products, they are those products' weights, and the relations of their shapes
decide as anywhere else. Without them only the order is left: between two attention cores stand an output
projection, an MLP of two or three products around its activation, and the queries of the next layer.
That is enough when every layer has the same number of products and the number admits one reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tracelens.attribution.structure.forward import loses
from tracelens.attribution.structure.runs import Label, Run
from tracelens.gemm import GemmShape

_SMALLEST_WEIGHT = 8
_ENOUGH = 0.5  # of the products must have a grid that fits


@dataclass(frozen=True, slots=True)
class Launched:
    """How the kernel of a product was launched; None where name or trace do not say."""

    tile_m: int | None
    tile_n: int | None
    blocks: int | None  # grid x times y


def lend_weights(
    run: Run, parameters: Sequence[tuple[int, ...]], launched: Mapping[int, Launched]
) -> int | None:
    """Give the products of a run the shapes of the matrices among the parameters; returns the hidden size.

    ``launched`` is by position. M stays unknown (0). None, and nothing given, where the numbers do not
    agree, or where the kernels' tiles and grids contradict the shapes.
    """
    products = run.products()
    matrices = [
        (shape[0], shape[1]) for shape in parameters if len(shape) == 2 and min(shape) >= _SMALLEST_WEIGHT
    ]
    if len(products) < 2:
        return None
    for chosen, exact in _fitting(matrices, len(products)):
        hidden = Counter(k for _, k in chosen).most_common(1)[0][0]
        proven = _rows_agree(chosen, [launched.get(at) for at in products])
        if proven and (exact or proven >= _ENOUGH * len(chosen)) and any(n == hidden for n, _ in chosen):
            for at, (n, k) in zip(products, chosen, strict=True):
                run.kinds[at] = replace(run.kinds[at], gemm=GemmShape(0, n, k, 1, None, None, None))
            return hidden
    return None


def _fitting(matrices: list[tuple[int, int]], count: int) -> Iterator[tuple[list[tuple[int, int]], bool]]:
    """Ways to take the matrices as weights of ``count`` products, and whether none is left over.

    Tables of embeddings stand in front and are no weights, but for a tied one: that of the last product.
    A head that runs on a few rows may be no GEMM kernel, and its weight, the last, is left.
    """
    if len(matrices) == count:
        yield matrices, True
    if len(matrices) == count + 1:
        yield matrices[:-1], False
    seen = Counter(matrices)
    for tables in (1, 2, 3):
        if any(seen[pair] > 1 for pair in matrices[:tables]):
            return
        rest = matrices[tables:]
        if len(rest) == count:
            yield rest, False
        if rest and len(rest) == count - 1:
            yield [*rest, matrices[0]], False


def _rows_agree(weights: list[tuple[int, int]], launched: Sequence[Launched | None]) -> int:
    """How many grids fit one common M (the last product, a head, may have its own); 0: they contradict."""
    low, high, proven = 1, 1 << 40, 0
    for at, ((n, _), how) in enumerate(zip(weights, launched, strict=True)):
        if how is None or how.tile_m is None or how.tile_n is None or how.blocks is None:
            continue
        columns = -(-n // how.tile_n)
        rows, left = divmod(how.blocks, columns)
        if left or (rows * how.tile_m < low or (rows - 1) * how.tile_m + 1 > high):
            if at == len(weights) - 1:
                continue
            return 0
        if at < len(weights) - 1:
            low, high = max(low, (rows - 1) * how.tile_m + 1), min(high, rows * how.tile_m)
        proven += 1
    return proven


def label_by_order(run: Run) -> None:
    """Name products by their count and order alone; fills ``run.labels``."""
    cores = [core for core in run.cores if not core.backward]
    behind = [core.first for core in run.cores if core.backward]
    if len(cores) < 2 or (behind and behind[0] < cores[-1].last):
        return
    losses = [at for at in range(cores[-1].last, len(run)) if loses(run, at)]
    stop = min([*losses[:1], *behind[:1], len(run)])
    products = run.products(0, stop)
    for at in behind:
        run.labels[at] = Label("attention.core")
    between = [
        [at for at in products if core.last < at < following.first] for core, following in pairwise(cores)
    ]
    patterns = [_read(run, places) for places in between]
    if not patterns or any(pattern is None or pattern != patterns[0] for pattern in patterns):
        return
    pattern = patterns[0]
    assert pattern is not None
    queries = pattern.count("attention.qkv")
    for layer, core in enumerate(cores):
        for at, component in core.parts.items():
            run.labels[at] = Label(component, layer)
    for layer, places in enumerate(between):
        for at, component in zip(places, pattern, strict=True):
            run.labels[at] = Label(component, layer + (component == "attention.qkv"))
    for at in [at for at in products if at < cores[0].first][-queries:]:
        run.labels[at] = Label("attention.qkv", 0)
    rest = [at for at in products if at > cores[-1].last]
    layer_end = [component for component in pattern if component != "attention.qkv"]
    for at, component in zip(rest, layer_end, strict=False):
        run.labels[at] = Label(component, len(cores) - 1)
    if len(rest) == len(layer_end) + 1 and (losses[:1] == [stop] or not behind):
        run.labels[rest[-1]] = Label("logits")


def _read(run: Run, places: list[int]) -> tuple[str, ...] | None:
    """The one reading of the products between two cores, or None."""
    if len(places) < 4:
        return None
    acts = [
        at
        for at in range(places[0], places[-1])
        if run.kinds[at].what == "activation" or "activation" in run.kinds[at].tags
    ]
    norms = [
        at
        for at in range(places[1], places[-1])
        if run.kinds[at].what in ("norm", "rsqrt")
        or run.kinds[at].name == "rsqrt"
        or "norm" in run.kinds[at].tags
    ]
    if len(places) == 4 and not acts and not norms:
        return ("attention.output", "mlp.up", "mlp.down", "attention.qkv")
    if len(acts) != 1:
        return None
    behind = [at for at in norms if at > acts[0] and any(p > at for p in places)]
    if not behind:
        return None
    mlp = [at for at in places[1:] if at < behind[0]]
    queries = len(places) - 1 - len(mlp)
    before = sum(at < acts[0] for at in mlp)
    names = {(2, 1): ("mlp.up", "mlp.down"), (3, 1): ("mlp.gate", "mlp.up", "mlp.down")}
    names[(3, 2)] = ("mlp.gate", "mlp.up", "mlp.down")  # both before: the first is the gate by custom
    found = names.get((len(mlp), before))
    if found is None or queries < 1:
        return None
    return ("attention.output", *found, *["attention.qkv"] * queries)
