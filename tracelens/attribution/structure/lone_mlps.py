"""MLPs that no attention is beside: of blocks of convolutions, of positions, before and between the layers.

Two linear layers up and back with an activation between, whose result is added to what they were made of, are
an MLP in any model that has attention somewhere.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

from tracelens.attribution.structure.norms import adds
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.walk import activates

_BETWEEN = frozenset({"activation", "elementwise", "copy", "dropout", "norm", "add"})
_BEHIND = 8  # units from the second product to the sum, at most


def label_lone_mlps(run: Run) -> None:
    """Name the units of such MLPs that have no name yet; fills ``run.labels``."""
    if not run.cores:
        return
    for up, down in pairwise(run.products()):
        total = _sum_behind(run, down) if _is_mlp(run, up, down) else None
        if total is None or {up, down} & run.labels.keys():
            continue
        for at in range(up, down + 1):
            own = run.kinds[at].what if run.kinds[at].what in ("dropout", "norm") else "mlp.activation"
            run.labels.setdefault(at, Label(own, evidence="local"))
        run.labels |= {up: Label("mlp.up", evidence="local"), down: Label("mlp.down", evidence="local")}
        run.labels.setdefault(total, Label("residual", evidence="local"))


def _is_mlp(run: Run, up: int, down: int) -> bool:
    wide, back, between = run.shape(up), run.shape(down), run.kinds[up + 1 : down]
    if wide is None or back is None or not all(kind.what in _BETWEEN for kind in between):
        return False
    returns = (wide.m, wide.n, wide.k, wide.batch) == (back.m, back.k, back.n, back.batch)
    return returns and wide.n > wide.k and any(map(activates, between))


def _sum_behind(run: Run, down: int) -> int | None:
    """The addition of as many elements as the second product gives."""
    shape = run.shape(down)
    for at in range(down + 1, min(down + _BEHIND, len(run))):
        kind = run.kinds[at]
        if adds(kind):
            whole = shape is not None and prod(kind.tensors[0]) == shape.m * shape.n * shape.batch
            return at if whole else None
        if kind.what in ("gemm", "bmm", "core", "convolution", "norm"):
            return None
    return None
