"""Two streams of tokens that attend together, each with products of its own (SD3, arXiv 2403.03206; FLUX)."""

from __future__ import annotations

from tracelens.attribution.structure.runs import Core, Run
from tracelens.gemm import GemmShape


def queries_of_other_stream(run: Run, products: list[int], makes: list[int], core: Core) -> list[int]:
    """Where the streams are normalized one after the other: the same products as those that make the last
    one's queries, of the other tokens of the core."""
    shapes = _shapes(run, products)
    rows = {shapes[at].m if at in shapes else 0 for at in makes}
    if len(rows) != 1 or core.tokens is None:
        return []
    others = core.tokens - rows.pop()
    found = [at for at in shapes if at < makes[0] and shapes[at].m == others][-len(makes) :]
    alike = [(shapes[at].n, shapes[at].k) for at in found] == [(shapes[at].n, shapes[at].k) for at in makes]
    return found if alike else []


def output_of_other_stream(run: Run, products: list[int], core: Core, rows: set[int]) -> int | None:
    """Where it stands behind the MLP of the first, whose output projection is of ``rows`` tokens, and before
    that of its own; None."""
    shapes = _shapes(run, products)
    own = [at for at in shapes if shapes[at].m == (core.tokens or 0) - sum(rows)]
    if len(rows) != 1 or len(own) < 2:
        return None
    out, up = (shapes[at] for at in own[:2])
    return own[0] if out.k == core.out_width and out.n == up.k < up.n else None


def _shapes(run: Run, products: list[int]) -> dict[int, GemmShape]:
    return {at: shape for at in products if (shape := run.shape(at)) is not None}
