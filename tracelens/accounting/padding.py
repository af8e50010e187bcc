"""What products ran padded from: proven by the operators before them, or by the product they turn back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.attribution import Attribution, Calls
from tracelens.gemm import GemmShape, Neighbour, Shape, may_pad, padded_from
from tracelens.trace import Trace

#: Operators looked at before a product; an eager ``aten::constant_pad_nd`` alone has some eight below it.
_BEFORE = 16


def with_padding(trace: Trace, attribution: Attribution, calls: Calls) -> Calls:
    """The calls with the sizes that the model asked for, where they ran with larger ones.

    A gradient whose operands are padded already has nothing that pads before it: it has the size that all
    forward products of its component have, where those are proven.
    """
    proofs = _Proofs(trace)
    if not proofs:
        return calls
    padded = [proofs.of(int(op), shape) for op, shape in zip(calls.op, calls.shape, strict=True)]
    component = attribution.component[calls.main]
    asked: dict[tuple[int, int], set[int]] = defaultdict(set)
    for at, shape in enumerate(calls.shape):
        if isinstance(shape, GemmShape) and calls.role[at] == "forward":
            for letter, size in _sizes(shape).items():
                asked[component[at], size].add(padded[at].get(letter, size))
    for at, shape in enumerate(calls.shape):
        if isinstance(shape, GemmShape) and calls.role[at] != "forward" and not padded[at]:
            sizes = _sizes(shape)
            padded[at] = _as_forward(sizes, {s: asked.get((component[at], s), {s}) for s in sizes.values()})
    return replace(calls, padded=padded)


def _as_forward(sizes: dict[str, int], asked: dict[int, set[int]]) -> dict[str, int]:
    """The one dimension that the forward was asked for smaller."""
    found = {
        letter: min(asked[size])
        for letter, size in sizes.items()
        if len(asked[size]) == 1 and asked[size] != {size}
    }
    return found if len(found) == 1 else {}


def _sizes(shape: GemmShape) -> dict[str, int]:
    return {"m": shape.m, "n": shape.n, "k": shape.k}


class _Proofs:
    """The operators that pad, and the products behind them on the same thread."""

    def __init__(self, trace: Trace):
        self._trace = trace
        ops = trace.ops
        pads = trace.symbols.where(may_pad)[ops.name] if len(ops) else np.zeros(0, np.bool_)
        if pads.any():
            order = np.lexsort((ops.ts_ns, ops.thread))
            self._rows = order
            self._place: npt.NDArray[np.int64] = np.empty(len(order), np.int64)
            self._place[order] = np.arange(len(order))
            self._pads = np.flatnonzero(pads[order])  # places of padding operators
        else:
            self._pads = np.empty(0, np.int64)

    def __bool__(self) -> bool:
        return len(self._pads) > 0

    def of(self, op: int, shape: Shape | None) -> dict[str, int]:
        """The sizes the model asked for, see ``padded_from``; ``op`` is a row of Trace.ops, -1 = none."""
        if op < 0 or not isinstance(shape, GemmShape) or shape.grouped:
            return {}
        place = int(self._place[op])
        first, last = np.searchsorted(self._pads, (place - _BEFORE, place))
        ops, details = self._trace.ops, self._trace.details
        found = []
        for row in self._rows[self._pads[first:last]].tolist():
            if ops.thread[row] != ops.thread[op]:
                continue
            inputs = details.inputs(int(ops.inputs[row]))
            name = self._trace.symbols[int(ops.name[row])]
            found.append(Neighbour(name, inputs.dims or [], inputs.concrete or []))
        return padded_from(shape, found) if found else {}
