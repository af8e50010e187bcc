"""Products that a hand-written kernel fuses with an activation, and whose operands the trace does not tell.

Their names say that they are half of an MLP (``kernels.kernel_component``), the plain product behind them
which sizes they have: it takes what they make and comes back to the hidden size. In the backward a kernel of
that name makes the gradient of what the product took, which is as large.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tracelens.attribution.structure.runs import Run
from tracelens.gemm import GemmShape

_NUMBER = re.compile(r"_\d+$")
_NEXT = 6  # units between the two products of an MLP: casts and layouts


def open_opaque(runs: Iterable[Run], hidden: int) -> None:
    """Make products of the opaque units, where a product behind them in a forward gives the sizes."""
    runs = [run for run in runs if any("opaque" in kind.tags for kind in run.kinds)]
    known: dict[str, GemmShape] = {}
    for run in runs:
        for at, kind in enumerate(run.kinds):
            if "opaque" in kind.tags and run.phase != "backward" and (shape := _behind(run, at, hidden)):
                known.setdefault(_NUMBER.sub("", kind.name), shape)
    for run in runs:
        for at, kind in enumerate(run.kinds):
            shape = known.get(_NUMBER.sub("", kind.name))
            if "opaque" in kind.tags and shape is not None:
                run.kinds[at] = replace(kind, what="gemm", gemm=shape)


def _behind(run: Run, at: int, hidden: int) -> GemmShape | None:
    """Of the product that makes what the next one takes to the hidden size."""
    for place in range(at + 1, min(at + 1 + _NEXT, len(run))):
        shape = run.shape(place)
        if shape is not None:
            fits = shape.n == hidden != shape.k and shape.batch == 1
            return GemmShape(shape.m, shape.k, hidden, 1, None, None, None) if fits else None
    return None
