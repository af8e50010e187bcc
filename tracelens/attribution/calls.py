"""GEMM and attention calls: which GPU events make up each, and what it computed.

A call is one operator (``aten::addmm``, a fused attention) with all its kernels: the product itself,
a split-K reduction, the helpers of an attention backward. FLOPs belong to the call once.

A kernel without an operator of its own may repeat one that has it (``Attribution.like``, a reference's
``Loan``): its call is then computed like the twin's, with the twin's shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracelens.attribution.result import Attribution
from tracelens.attribution.twins import orphans
from tracelens.gemm import AttentionShape, GemmShape, KernelName, Shape, shape_of, shows_sizes
from tracelens.results import WorkKnown
from tracelens.trace import IntArray, Links, Trace, look_up
from tracelens.words import COMPONENTS, PHASES, ROLES

_KINDS = ("", "gemm", "attention", "gemm_helper", "attention_helper")
_BACKWARD = PHASES.index("backward")


@dataclass(frozen=True)
class Calls:
    """Columns over calls, ordered by the start of their main kernel."""

    main: IntArray  # kernel row: the longest kernel of the call
    kernel: list[KernelName | None]  # what that is by its name
    op: IntArray  # row of Trace.ops: its operator, or that of the call here it repeats; -1 = not known
    op_name: list[str | None]  # operator of the call, or of the call it repeats, or else around it
    lent: npt.NDArray[np.bool_]  # its operator or its shape is that of the call it repeats
    dur_ns: IntArray  # all kernels of the call
    shape: list[Shape | None]
    forward: list[Shape | None]  # backward calls: the shape of the forward operator they belong to
    #: forward | dgrad | wgrad, by its forward operator, else by the order of the backward
    role: list[str | None]
    kernel_call: IntArray  # per kernel: its call, -1 = part of none
    # by accounting, empty before
    padded: list[dict[str, int]] = field(default_factory=list)  # sizes the model asked for: ran larger
    row: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # place of its row in the GEMM table
    work: list[WorkKnown] = field(default_factory=list)  # of the counted FLOPs
    rated: list[bool] = field(default_factory=list)  # is that a rate the GPU can have?

    def __len__(self) -> int:
        return len(self.main)

    @cached_property
    def is_main(self) -> npt.NDArray[np.bool_]:
        """Per kernel: is it the main kernel of a call?"""
        out = np.zeros(len(self.kernel_call), np.bool_)
        out[self.main] = True
        return out

    @property
    def row_of_kernel(self) -> IntArray:
        """Per kernel: the place in the GEMM table of the row that counts it; -1 = in none."""
        return np.append(self.row, -1)[self.kernel_call]


_PADS = 8  # columns


@dataclass(frozen=True, slots=True)
class _Computed:
    """What a call computed."""

    op_name: str | None
    shape: Shape | None
    forward: Shape | None
    lent: bool


def find_calls(trace: Trace, links: Links, attribution: Attribution) -> Calls:
    """Group the kernels of every GEMM and attention operator into calls."""
    names = attribution.names
    kind_of = np.array([_KINDS.index(name.kind) if name else 0 for name in names] or [0])
    kind = kind_of[trace.kernels.name]
    op = _gemm_ops(trace, links)
    loan = attribution.loan
    donors = find_calls(loan.trace, loan.links, loan.attribution) if loan is not None else None
    borrowing = attribution.like >= 0
    if loan is not None:
        borrowing |= (loan.like >= 0) & orphans(trace, links)

    own = _own_keys(trace, links, op, kind)
    calls = _from_keys(trace, kind, np.where(borrowing, -1, own))
    shapes = _Shapes(trace, links)
    around = np.where(orphans(trace, links), -1, links.kernel_op)
    computed = []
    for main in calls.main.tolist():
        backward = attribution.phase[main] == _BACKWARD
        forward = shapes.of(int(attribution.forward_op[main])) if backward else None
        hidden = _gradient(forward, int(attribution.role[main]))
        shape = _unpadded(shapes.of(int(op[main])), forward) if op[main] >= 0 else hidden
        if shape is None and op[main] >= 0 and isinstance(forward, AttentionShape):
            shape = replace(forward, backward=True)  # a function's backward is given the gradient alone
        named = int(op[main]) if op[main] >= 0 or hidden is not None else int(around[main])
        computed.append(
            _Computed(
                trace.symbols[int(trace.ops.name[named])] if named >= 0 else None, shape, forward, lent=False
            )
        )
    calls = _with(calls, computed)
    if loan is not None and donors is not None:
        calls = _with_shapes(calls, donors, loan.like)
    calls = _with_borrowed(trace, kind, own, calls, donors, attribution, borrowing)
    return replace(
        calls,
        kernel=[names[code] for code in trace.kernels.name[calls.main].tolist()],
        role=[_role(attribution, calls, at) for at in range(len(calls))],
    )


def _gradient(forward: Shape | None, role: int) -> GemmShape | None:
    """What a gradient computes that a library's own call hides: out[m,n] = x[m,k] W[k,n] gives it."""
    if not isinstance(forward, GemmShape) or forward.batch > 1 or forward.grouped or role < 0:
        return None
    m, n, k = forward.m, forward.n, forward.k
    sizes = {"dgrad": (m, k, n, "NN"), "wgrad": (n, k, m, "NT")}.get(ROLES[role])
    return GemmShape(*sizes[:3], 1, forward.dtype, None, sizes[3]) if sizes else None


def _own_keys(trace: Trace, links: Links, op: IntArray, kind: IntArray) -> IntArray:
    """Per kernel a number that the kernels of one call share; -1 = part of no call."""
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    member = (kind > 0) & is_kernel
    # a GEMM operator none of whose kernels has a known name: its own kernels are the product
    named_ops = np.unique(op[member & (op >= 0)])
    member |= is_kernel & (op >= 0) & (links.kernel_op == op) & ~np.isin(op, named_ops)
    # kernels without an operator are calls of their own
    key = np.where(op >= 0, op, len(trace.ops) + np.arange(len(op)))
    return np.where(member, key, -1)


def _from_keys(trace: Trace, kind: IntArray, keys: IntArray) -> Calls:
    """The calls that the keys say, without what they computed."""
    rows = np.flatnonzero(keys >= 0)
    rows = rows[np.lexsort((trace.kernels.dur_ns[rows], kind[rows] > 2, keys[rows]))]
    key = keys[rows]
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(rows) else np.empty(0, np.int64)
    dur = np.add.reduceat(trace.kernels.dur_ns[rows], starts) if len(rows) else np.empty(0, np.int64)
    main = _mains(rows, starts, kind)
    order = np.argsort(trace.kernels.ts_ns[main], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kernel_call = np.full(len(trace.kernels), -1, np.int64)
    if len(rows):
        kernel_call[rows] = rank[np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(rows))))]
    main = main[order]
    own = keys[main]
    return Calls(
        op=np.where(own < len(trace.ops), own, -1),
        main=main,
        kernel=[],
        op_name=[],
        lent=np.zeros(len(main), np.bool_),
        dur_ns=dur[order],
        shape=[],
        forward=[],
        role=[],
        kernel_call=kernel_call,
    )


def _with(calls: Calls, computed: list[_Computed]) -> Calls:
    return replace(
        calls,
        op_name=[call.op_name for call in computed],
        shape=[call.shape for call in computed],
        forward=[call.forward for call in computed],
        lent=np.array([call.lent for call in computed], np.bool_),
    )


def _computed(calls: Calls, *, lent: bool | None = None) -> list[_Computed]:
    """What each call computed; ``lent``: as it is lent to another."""
    flags = calls.lent.tolist() if lent is None else [lent] * len(calls)
    return [_Computed(*call) for call in zip(calls.op_name, calls.shape, calls.forward, flags, strict=True)]


def _with_shapes(calls: Calls, donors: Calls, like: npt.NDArray[np.int32]) -> Calls:
    """Calls whose operator recorded no shape take that of the reference's call they repeat."""
    computed = _computed(calls)
    theirs = _computed(donors, lent=True)
    donor = np.where(like[calls.main] >= 0, donors.kernel_call[like[calls.main]], -1)
    donor = np.where(like[calls.main] == np.append(donors.main, -1)[donor], donor, -1)
    for at in np.flatnonzero(donor >= 0).tolist():
        found, mine = theirs[donor[at]], computed[at]
        if mine.shape is None and found.shape is not None:
            own = mine.op_name if mine.op_name and shows_sizes(mine.op_name) else found.op_name
            computed[at] = replace(found, op_name=own)
    return _with(calls, computed)


def _with_borrowed(
    trace: Trace,
    kind: IntArray,
    own: IntArray,
    calls: Calls,
    donors: Calls | None,
    attribution: Attribution,
    borrowing: npt.NDArray[np.bool_],
) -> Calls:
    """The calls and, made of kernels that repeat others, calls like those of their twins."""
    taker = np.flatnonzero(borrowing)
    if not len(taker):
        return calls
    twin = attribution.like[taker].astype(np.int64)
    donor = np.where(twin >= 0, calls.kernel_call[twin], -1)
    product = twin == np.append(calls.main, -1)[donor]
    when = trace.kernels.ts_ns[twin]
    known = _computed(calls, lent=True)
    if donors is not None and attribution.loan is not None:
        theirs = attribution.loan.like[taker]
        elsewhere = (twin < 0) & (theirs >= 0)
        theirs = theirs[elsewhere]
        there = donors.kernel_call[theirs]
        donor[elsewhere] = np.where(there >= 0, there + len(known), -1)
        product[elsewhere] = theirs == np.append(donors.main, -1)[there]
        when[elsewhere] = attribution.loan.trace.kernels.ts_ns[theirs]
        known += _computed(donors, lent=True)
    order = np.lexsort((trace.kernels.ts_ns[taker], donor))
    order = order[donor[order] >= 0]
    taker, donor, product, when = taker[order], donor[order], product[order], when[order]
    # the next repetition of a call begins where the twins do not go on
    fresh = np.append(True, (donor[1:] != donor[:-1]) | (when[1:] <= when[:-1]))[: len(taker)]
    call = np.cumsum(fresh) - 1
    # helpers whose product is not with them would count its work twice
    whole = np.isin(call, call[product])
    lone, taker, donor, call = taker[~whole], taker[whole], donor[whole], call[whole]
    base = max(int(own.max(initial=-1)) + 1, 2 * len(trace.ops))  # no row of Trace.ops
    keys = own.copy()
    keys[lone] = -1
    keys[taker] = base + call
    merged = _from_keys(trace, kind, keys)
    mine = [*_computed(calls), _Computed(None, None, None, lent=False)]  # the last: of no call until now
    of = np.full(len(keys), -1, np.int64)
    of[taker] = donor
    donor_op = np.append(calls.op, np.full(len(known) - len(calls), -1))  # a reference's are no rows here
    of_main = of[merged.main]
    merged = replace(merged, op=np.where(of_main >= 0, donor_op[of_main], merged.op))
    return _with(
        merged,
        [
            known[donor] if donor >= 0 else mine[calls.kernel_call[main]]
            for main, donor in zip(merged.main.tolist(), of_main.tolist(), strict=True)
        ],
    )


def _gemm_ops(trace: Trace, links: Links) -> IntArray:
    """Per kernel the innermost GEMM or attention operator around it; -1 where there is none.

    What is around a graph's launch is of none of its kernels. An unfused attention operator holds products
    of its own: those are the calls, not the operator.
    """
    is_gemm = links.is_op & trace.symbols.where(shows_sizes)[links.name]
    nearest = links.forest.nearest(is_gemm)
    # operators are the first nodes: a row of the table is the node itself
    return np.where(orphans(trace, links), -1, look_up(nearest, links.kernel_node)).astype(np.int64)


def _mains(rows: IntArray, starts: IntArray, kind: IntArray) -> IntArray:
    """The longest kernel of each call that is no helper; rows are sorted (helpers last, then by time)."""
    ends = np.append(starts[1:], len(rows)) if len(starts) else starts
    main = np.empty(len(starts), np.int64)
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        block = rows[start:end]
        products = block[kind[block] <= 2]
        main[at] = products[-1] if len(products) else block[-1]
    return main


def _unpadded(shape: Shape | None, asked: Shape | None) -> Shape | None:
    """Attention with the head dimension that was asked for, which PyTorch pads to a multiple of 8 for flash
    attention (pad_last_dim in aten/src/ATen/native/transformers/attention.cpp)."""
    if not isinstance(shape, AttentionShape) or not isinstance(asked, AttentionShape):
        return shape
    if shape.head_dim != -(-asked.head_dim // _PADS) * _PADS:
        return shape
    return replace(shape, head_dim=asked.head_dim, value_dim=asked.value_dim)


class _Shapes:
    """Shapes by operator row; each distinct (name, inputs) is read once."""

    def __init__(self, trace: Trace, links: Links):
        self._trace = trace
        self._known: dict[tuple[int, int], Shape | None] = {}
        asks = trace.symbols.where(lambda text: text == "aten::scaled_dot_product_attention")
        self._asked = links.forest.nearest(links.is_op & asks[links.name])

    def of(self, row: int) -> Shape | None:
        """What an operator computes; of attention what was asked for."""
        if row < 0:
            return None
        asked = int(self._asked[row])
        return _unpadded(self._read(row), self._read(asked) if asked not in (-1, row) else None)

    def _read(self, row: int) -> Shape | None:
        ops = self._trace.ops
        key = (int(ops.name[row]), int(ops.inputs[row]))
        if key not in self._known:
            inputs = self._trace.details.inputs(key[1])
            self._known[key] = shape_of(
                self._trace.symbols[key[0]], inputs.dims or [], inputs.types, inputs.strides, inputs.concrete
            )
        return self._known[key]


def _role(attribution: Attribution, calls: Calls, at: int) -> str | None:
    main = int(calls.main[at])
    found = role_of(
        calls.shape[at],
        calls.forward[at],
        PHASES[attribution.phase[main]],
        weighted=COMPONENTS[attribution.component[main]] == "moe.experts",
    )
    by_order = int(attribution.role[main])
    return ROLES[by_order] if found is None and by_order >= 0 else found


def role_of(shape: Shape | None, forward: Shape | None, phase: str, *, weighted: bool = False) -> str | None:
    """``forward``, ``dgrad`` or ``wgrad``; None where nothing tells.

    Of a batched product both operands are activations, unless it is ``weighted``: one weight of each expert.

    With out[M,N] = a[M,K] b[K,N]: dgrad reduces over N and wgrad over M. Where M = N both fit, and the
    layout decides: wgrad reads both activations along their rows (NT), dgrad never does.
    """
    if phase in ("forward", "recompute"):
        return "forward"
    if phase != "backward" or not isinstance(shape, GemmShape) or not isinstance(forward, GemmShape):
        return None
    if forward.batch > 1 and not weighted:
        return "dgrad"  # both operands are activations
    fits = [role for role, reduced in (("dgrad", forward.n), ("wgrad", forward.m)) if shape.k == reduced]
    if len(fits) == 2:
        return None if shape.layout is None else "wgrad" if shape.layout == "NT" else "dgrad"
    return fits[0] if fits else None
