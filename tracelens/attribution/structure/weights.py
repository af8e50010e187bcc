"""Products of a compiled graph, whose kernels have no shapes, and the model's parameters.

The graph is called with the parameters in the order in which the model uses them; where they are as many as
the products, they are those products' weights, and the relations of their shapes decide as anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens.attribution.structure.runs import Run
from tracelens.gemm import GemmShape

_SMALLEST_WEIGHT = 8
_ENOUGH = 0.5  # of the products must have a grid that fits


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
