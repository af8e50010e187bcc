"""The shape fields of a GEMM row: the sizes an operator shows, or the ranges its kernel leaves open."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.accounting.model import express
from tracelens.accounting.words import figures as words
from tracelens.gemm import (
    AttentionShape,
    GemmShape,
    KernelName,
    Neighbour,
    Shape,
    bound_attention,
    bound_shape,
    may_pad,
    padded_from,
    shows_sizes,
)
from tracelens.results import ModelDims
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.trace import Trace

#: Operators looked at before a product; an eager ``aten::constant_pad_nd`` alone has some eight below it.
_BEFORE = 16
#: Products of two matrices: their kernels have no batch in grid z.
_PLAIN = frozenset(
    f"aten::{name}"
    for name in (
        "mm",
        "addmm",
        "addmm_",
        "_addmm_activation",
        "linear",
        "_int_mm",
        "_scaled_mm",
        "_scaled_mm_v2",
    )
)


def shape_fields(shape: Shape, dims: ModelDims, role: str | None, padded: dict[str, int]) -> dict[str, Any]:
    """Fields of a row whose operator shows its sizes."""
    if isinstance(shape, AttentionShape):
        known = "bounded" if shape.varlen else "exact"
        return _EMPTY | {
            "batch": shape.batch,
            "dtype": shape.dtype,
            "shape_note": shape.describe(),
            "shape_known": known,
            "attention": shape.dims,
        }
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "batch": shape.batch,
        "dtype": shape.dtype,
        "out_dtype": shape.out_dtype,
        "layout": shape.layout,
        **{
            f"{letter}_expr": express(size, dims, rows=tokens)
            or express(padded.get(letter), dims, rows=tokens)
            for letter, size, tokens in (
                ("m", shape.m, role != "wgrad"),
                ("n", shape.n, False),
                ("k", shape.k, role == "wgrad"),
            )
        },
        "shape_note": _note(shape, padded),
        "groups": Groups(shape.grouped, shape.groups) if shape.groups and shape.grouped else None,
        "shape_known": "exact",
        "padded_from": padded,
    }


def bounded_fields(
    kernel: KernelName | None, grid: tuple[int, int, int] | None, op: str | None
) -> dict[str, Any]:
    """Fields of a row without sizes: what its kernel's tile and grid say, and why the sizes are not known."""
    empty = _EMPTY | {"shape_note": words.no_sizes(op, shows_sizes=op is not None and shows_sizes(op))}
    if kernel is None:
        return empty
    attention = bound_attention(kernel, grid)
    if attention is not None:
        return empty | {
            "batch": attention.batch,
            "shape_note": attention.describe(),
            "shape_known": "bounded",
            "attention": AttentionDims(batch=attention.batch, heads=attention.heads),
        }
    bounds = bound_shape(kernel, grid, plain=op is not None and op.partition(".")[0] in _PLAIN)
    if bounds is None:
        return empty
    return empty | {
        "batch": bounds.batch,
        "m_range": bounds.m,
        "n_range": bounds.n,
        "shape_known": "bounded",
    }


_EMPTY: dict[str, Any] = {
    **dict.fromkeys(
        ("m", "n", "k", "batch", "dtype", "out_dtype", "layout", "m_expr", "n_expr", "k_expr", "shape_note")
    ),
    "shape_known": "unknown",
}


def _note(shape: GemmShape, padded: dict[str, int]) -> str | None:
    if padded:
        return words.padded_from(padded)
    if shape.groups and shape.grouped:
        return words.groups(shape.groups, shape.grouped)
    return words.SYMMETRIC if shape.symmetric else None


class Padding:
    """What products ran padded from, by the operators before them on the same thread."""

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

    def of(self, op: int, shape: Shape | None) -> dict[str, int]:
        """The sizes the model asked for, see ``padded_from``; ``op`` is a row of Trace.ops, -1 = none."""
        if op < 0 or not len(self._pads) or not isinstance(shape, GemmShape) or shape.grouped:
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
