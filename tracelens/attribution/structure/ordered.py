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

from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.walk import loses
from tracelens.gemm import GemmShape

_SMALLEST_WEIGHT = 8
_ENOUGH = 0.5  # of the products must have a grid that fits
_USUAL = 2 / 3  # of the gaps between two cores are read alike
_Pattern = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchedProduct:
    """How the kernel of a product was launched; None where name or trace do not say."""

    tile_m: int | None
    tile_n: int | None
    blocks: int | None  # grid x times y


def lend_weights(
    run: Run, parameters: Sequence[tuple[int, ...]], launched: Mapping[int, LaunchedProduct]
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


def _rows_agree(weights: list[tuple[int, int]], launched: Sequence[LaunchedProduct | None]) -> int:
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


def label_by_order(run: Run, keys: Mapping[int, object]) -> None:
    """Name products by their count and order alone; fills ``run.labels``.

    ``keys`` are, by position, equal for equal kernels with equal grids.
    """
    cores = [core for core in run.cores if not core.backward]
    behind = [core.first for core in run.cores if core.backward]
    if len(cores) < 2 or (behind and behind[0] < cores[-1].last):
        return
    losses = [at for at in range(cores[-1].last, len(run)) if loses(run, at)]
    stop = min([*losses[:1], *behind[:1], len(run)])
    products = run.products(0, stop)
    between = [
        [at for at in products if core.last < at < following.first] for core, following in pairwise(cores)
    ]
    patterns = _patterns(run, between, keys)
    if patterns is None:
        return
    run.labels.update({at: Label("attention.core") for at in behind})
    first = Counter(patterns).most_common(1)[0][0]
    layer_end = tuple(component for component in _once(first) if component != "attention.qkv")
    queries = first.count("attention.qkv")
    for at in [at for at in products if at < cores[0].first][-queries:]:
        run.labels[at] = Label("attention.qkv", 0)
    rest = [at for at in products if at > cores[-1].last]
    behind_last: _Pattern = _read(run, rest, last=True) or ()
    if _once(behind_last) != layer_end:
        behind_last = layer_end
    layer = 0
    for core, places, pattern in zip(cores, [*between, rest], [*patterns, behind_last], strict=True):
        run.labels.update({at: Label(component, layer) for at, component in core.parts.items()})
        for at, component, before in zip(places, pattern, [None, *pattern], strict=False):
            # a layer without attention begins behind the MLP of the layer before, as any layer
            layer += before == "mlp.down" or (
                component == "attention.qkv" and before not in (component, None)
            )
            layer -= before == "mlp.down" and component == "logits"
            run.labels[at] = Label(component, None if component == "logits" else layer)
    _unknown_cores(run)
    named = len(behind_last)
    if len(rest) == named + 1 and (losses[:1] == [stop] or not behind):
        run.labels[rest[-1]] = Label("logits")


def _patterns(run: Run, between: list[list[int]], keys: Mapping[int, object]) -> list[_Pattern] | None:
    """What the products of each gap between two cores are; None where most gaps admit no one reading.

    The others hold a layer whose core is a kernel that no name tells: there every product is what its equal
    is elsewhere, or the one that makes queries, between the MLP and that kernel.
    """
    read = [_read(run, places) for places in between]
    known = Counter(_once(pattern) for pattern in read if pattern is not None)
    if not known:
        return None
    if len(known) == 1 and None not in read:
        return [pattern for pattern in read if pattern is not None]
    usual, count = known.most_common(1)[0]
    if count < _USUAL * len(between):
        return None
    equal: dict[object, set[str]] = {}
    for places, pattern in zip(between, read, strict=True):
        if pattern is not None and _once(pattern) == usual:
            for at, component in zip(places, pattern, strict=True):
                equal.setdefault(keys[at], set()).add(component)
    out: list[_Pattern] = []
    for places, pattern in zip(between, read, strict=True):
        if pattern is None or _once(pattern) != usual:
            pattern = _of_equals(run, places, [equal.get(keys[at], set()) for at in places])
        if pattern is None:
            return None
        out.append(pattern)
    return out


def _of_equals(run: Run, places: list[int], equal: list[set[str]]) -> _Pattern | None:
    """Each product as its equals; one without is that of queries where an unknown kernel follows an MLP."""
    if not places:
        return None
    out: list[str] = []
    for at, behind, parts in zip(places, [*places[1:], len(run)], equal, strict=True):
        if len(parts) == 1:
            out += parts
        elif not parts and out[-1:] == ["mlp.down"] and len(_unknown(run, at, behind)) == 1:
            out.append("attention.qkv")
        else:
            return None
    return tuple(out)


def _unknown(run: Run, start: int, stop: int) -> list[int]:
    return [at for at in range(start + 1, stop) if run.kinds[at].what == "kernel"]


def _unknown_cores(run: Run) -> None:
    """Between the products of queries and the next one without a core: the only kernel of no known kind."""
    named = sorted(run.labels)
    for at, behind in pairwise(named):
        if run.labels[at].component == "attention.qkv" and run.labels[behind].component.startswith("mlp."):
            found = _unknown(run, at, behind)
            if len(found) == 1:
                run.labels[found[0]] = Label("attention.core", run.labels[at].layer)


def _once(pattern: tuple[str, ...]) -> tuple[str, ...]:
    """The pattern with one MLP: some layers have no attention."""
    end = pattern.index("mlp.down") + 1 if "mlp.down" in pattern else len(pattern)
    return (*pattern[:end], *(component for component in pattern[end:] if not component.startswith("mlp.")))


_MLPS = {(2, 1): ("mlp.up", "mlp.down"), (3, 1): ("mlp.gate", "mlp.up", "mlp.down")}
_MLPS[(3, 2)] = _MLPS[(3, 1)]  # both before the activation: the first is the gate by custom


def _in_stretches(
    run: Run, places: list[int], norms: list[int], acts: list[int], *, last: bool
) -> tuple[str, ...] | None:
    """The products between two cores, cut at the norms: output, MLPs with one activation each, queries.

    Before the output projection there can be a gate on the core's output. Behind the ``last`` core the head
    takes the place of the queries, and is left out.
    """
    stretches = [[places[0]]]
    for before, at in pairwise(places):
        if any(before < norm < at for norm in norms):
            stretches.append([])
        stretches[-1].append(at)
    output, *blocks = stretches
    queries = [] if last else blocks[-1:]
    out = ["attention.other"] * (len(output) - 1) + ["attention.output"]
    for block in blocks[: len(blocks) - len(queries)]:
        inside = [at for at in acts if block[0] < at < block[-1]]
        mlp = _MLPS.get((len(block), sum(at < inside[0] for at in block))) if len(inside) == 1 else None
        if mlp is None:
            if last and block is blocks[-1]:
                break
            return None
        out += mlp
    outside = any(block[0] < at < block[-1] for block in (output, *queries) for at in acts)
    if outside or "mlp.down" not in out or not (last or queries):
        return None
    return (*out, *["attention.qkv"] * sum(len(block) for block in queries))


def _read(run: Run, places: list[int], *, last: bool = False) -> tuple[str, ...] | None:
    """The one reading of the products between two cores, or behind the last one; None."""
    if len(places) < (3 if last else 4):
        return None
    acts = [
        at
        for at in range(places[0], places[-1])
        if run.kinds[at].what == "activation" or "activation" in run.kinds[at].tags
    ]
    norms = [
        at
        for at in range(places[0], places[-1])
        if run.kinds[at].what in ("norm", "rsqrt")
        or run.kinds[at].name == "rsqrt"
        or "norm" in run.kinds[at].tags
    ]
    found = _in_stretches(run, places, norms, acts, last=last)
    if found is not None or last:
        return found
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
    mlp_names = _MLPS.get((len(mlp), before))
    if mlp_names is None or queries < 1:
        return None
    return ("attention.output", *mlp_names, *["attention.qkv"] * queries)
