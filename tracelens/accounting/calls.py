"""GEMM and attention calls: which GPU events make up each, and what it computed.

A call is one operator (``aten::addmm``, a fused attention) with all its kernels: the product itself,
a split-K reduction, the helpers of an attention backward. FLOPs belong to the call once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracelens.attribution import Attribution
from tracelens.gemm import (
    ATTENTION_OPS,
    WRAPPERS,
    AttentionShape,
    GemmShape,
    KernelName,
    is_gemm_op,
    parse_kernel_name,
    shape_of,
)
from tracelens.trace import Links, Trace, look_up
from tracelens.words import PHASES

IntArray = npt.NDArray[np.int64]
Shape = GemmShape | AttentionShape

_KINDS = ("", "gemm", "attention", "gemm_helper", "attention_helper")
_BACKWARD = PHASES.index("backward")
_FUSED_ATTENTION = ATTENTION_OPS | {"aten::scaled_dot_product_attention"}


@dataclass(frozen=True)
class Calls:
    """Columns over calls, ordered by the start of their main kernel."""

    name: IntArray  # symbol code of the main kernel's name
    main: IntArray  # kernel row: the longest kernel of the call
    op: IntArray  # row of Trace.ops; -1 = no operator known
    dur_ns: IntArray  # all kernels of the call
    shape: list[Shape | None]
    forward: list[Shape | None]  # backward calls: the shape of the forward operator they belong to
    kernel_call: IntArray  # per kernel: its call, -1 = part of none
    names: list[KernelName | None]  # parsed name by symbol code

    def __len__(self) -> int:
        return len(self.main)

    @cached_property
    def is_main(self) -> npt.NDArray[np.bool_]:
        """Per kernel: is it the main kernel of a call?"""
        out = np.zeros(len(self.kernel_call), np.bool_)
        out[self.main] = True
        return out


def find_calls(trace: Trace, links: Links, attribution: Attribution) -> Calls:
    """Group the kernels of every GEMM and attention operator into calls."""
    names = [parse_kernel_name(text) for text in trace.symbols]
    kind_of = np.array([_KINDS.index(name.kind) if name else 0 for name in names] or [0])
    kind = kind_of[trace.kernels.name]
    op = _gemm_ops(trace, links)
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]

    member = (kind > 0) & is_kernel
    # a GEMM operator none of whose kernels has a known name: its own kernels are the product
    named_ops = np.unique(op[member & (op >= 0)])
    own = is_kernel & (op >= 0) & (links.kernel_op == op) & ~np.isin(op, named_ops)
    member |= own

    rows = np.flatnonzero(member)
    # kernels without an operator are calls of their own; negative keys keep them apart
    key = np.where(op[rows] >= 0, op[rows], -1 - rows)
    rows = rows[np.lexsort((trace.kernels.dur_ns[rows], kind[rows] > 2, key))]
    key = np.where(op[rows] >= 0, op[rows], -1 - rows)
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(rows) else np.empty(0, np.int64)
    dur = np.add.reduceat(trace.kernels.dur_ns[rows], starts) if len(rows) else np.empty(0, np.int64)
    main = _mains(rows, starts, kind)
    order = np.argsort(trace.kernels.ts_ns[main], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kernel_call = np.full(len(trace.kernels), -1, np.int64)
    if len(rows):
        kernel_call[rows] = rank[np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))]
    main, dur, call_op = main[order], dur[order], op[main[order]]
    shapes = _Shapes(trace)
    forward_op = np.where(attribution.phase[main] == _BACKWARD, attribution.forward_op[main], -1)
    return Calls(
        name=trace.kernels.name[main].astype(np.int64),
        main=main,
        op=call_op,
        dur_ns=dur,
        shape=[shapes.of(int(row)) for row in call_op],
        forward=[shapes.of(int(row)) for row in forward_op],
        kernel_call=kernel_call,
        names=names,
    )


def _gemm_ops(trace: Trace, links: Links) -> IntArray:
    """Per kernel the innermost GEMM or attention operator around it; -1 where there is none.

    An unfused attention operator holds products of its own: those are the calls, not the operator.
    """
    wanted = trace.symbols.where(
        lambda text: is_gemm_op(text) or text.partition(".")[0] in WRAPPERS | _FUSED_ATTENTION
    )
    is_gemm = links.is_op & wanted[links.name]
    nearest = links.forest.nearest(is_gemm)
    # operators are the first nodes: a row of the table is the node itself
    return look_up(nearest, links.kernel_node).astype(np.int64)


def _mains(rows: IntArray, starts: IntArray, kind: npt.NDArray[np.int64]) -> IntArray:
    """The longest kernel of each call that is no helper; rows are sorted (helpers last, then by time)."""
    ends = np.append(starts[1:], len(rows)) if len(starts) else starts
    main = np.empty(len(starts), np.int64)
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        block = rows[start:end]
        products = block[kind[block] <= 2]
        main[at] = products[-1] if len(products) else block[-1]
    return main


class _Shapes:
    """Shapes by operator row; each distinct (name, inputs) is read once."""

    def __init__(self, trace: Trace):
        self._trace = trace
        self._known: dict[tuple[int, int], Shape | None] = {}

    def of(self, row: int) -> Shape | None:
        if row < 0:
            return None
        ops = self._trace.ops
        key = (int(ops.name[row]), int(ops.inputs[row]))
        if key not in self._known:
            inputs = self._trace.details.inputs(key[1])
            self._known[key] = shape_of(
                self._trace.symbols[key[0]], inputs.dims or [], inputs.types, inputs.strides, inputs.concrete
            )
        return self._known[key]


def role_of(shape: Shape | None, forward: Shape | None, phase: str) -> str | None:
    """``forward``, ``dgrad`` or ``wgrad``; None where nothing tells.

    With out[M,N] = a[M,K] b[K,N]: dgrad reduces over N and wgrad over M. Where M = N both fit, and the
    layout decides: wgrad reads both activations along their rows (NT), dgrad never does.
    """
    if phase in ("forward", "recompute"):
        return "forward"
    if phase != "backward" or not isinstance(shape, GemmShape) or not isinstance(forward, GemmShape):
        return None
    if forward.batch > 1:
        return "dgrad"  # both operands are activations
    fits = [role for role, reduced in (("dgrad", forward.n), ("wgrad", forward.m)) if shape.k == reduced]
    if len(fits) == 2:
        return None if shape.layout is None else "wgrad" if shape.layout == "NT" else "dgrad"
    return fits[0] if fits else None
