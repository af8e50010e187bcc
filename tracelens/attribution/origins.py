"""The forward operator behind each kernel: its own, or in the backward the one its gradient is of."""

from __future__ import annotations

import re

import numpy as np

from tracelens.attribution.phases import Phases
from tracelens.trace import CodeArray, Links, Trace, look_up
from tracelens.trace.autograd import EVALUATE

_MOST_NODES = 3  # of one operator, beside the first
#: What an operator that the engine calls is, by its name; "end" is AccumulateGrad.
_CALLED = re.compile(
    r"(?P<weight>(T|ToCopy)Backward\d)|(?P<table>Embedding\w*Backward\d)|(?P<product>(Mm|Addmm)Backward\d)"
    r"|(?P<view>(\w*View|Transpose|Permute|Reshape\w*|Expand|Unsqueeze|Squeeze)Backward\d)|(?P<inner>aten::\w+)"
)
_TO_WEIGHT = ("weight", "end")


def op_nodes(links: Links) -> CodeArray:
    return np.where(links.kernel_op >= 0, links.kernel_op + links.ops_at.start, -1).astype(np.int32)


def find_origins(trace: Trace, links: Links, phases: Phases) -> CodeArray:
    """Per kernel the node that decides its component: its operator, or in the backward the forward operator.

    ``AccumulateGrad`` carries no sequence number; the engine runs it directly after the node whose
    gradient it adds (its priority is the highest), so it belongs to the evaluate node before it.
    """
    node = op_nodes(links)
    out = node.copy()
    in_backward = look_up(phases.backward & ~phases.recompute, node, False)
    made_by = _made_by(links)
    tied = np.zeros(len(links.forest.parent), np.bool_)
    tied[links.ops_at] = made_by >= 0
    evaluate = look_up(phases.evaluate, node)
    accumulating = in_backward & look_up(phases.accumulates, evaluate, False)
    before = look_up(_evaluate_before(links, phases), evaluate)
    receiver = _receivers(trace, links, phases, np.where(in_backward, node, -1))
    place = np.where(accumulating, before, np.where(receiver >= 0, receiver, node))
    backward = look_up(links.forest.nearest(tied), place)
    # operators are the first nodes: a row of the table is the node itself
    forward = look_up(made_by, backward)
    out[in_backward] = forward[in_backward]
    return out


def _made_by(links: Links) -> CodeArray:
    """Per operator of the backward the forward operator that made its node; -1.

    An operator that writes into a view makes several nodes (``CopySlices``, ``AsStridedBackward0``): only the
    first has the number that was recorded for it, the others the numbers up to the next operator's.
    """
    ops, out = links.numbered, links.backward_to_forward
    tied = out >= 0
    open_ = np.flatnonzero(~tied & (ops.forward_thread > 0) & (ops.sequence >= 0))
    if not len(open_) or not tied.any():
        return out
    out = out.copy()
    forward = np.flatnonzero((ops.forward_thread <= 0) & (ops.sequence >= 0))
    for number in np.unique(ops.forward_thread[open_]).tolist():
        known = out[tied & (ops.forward_thread == number)]
        if not len(known):
            continue
        threads, count = np.unique(ops.thread[known], return_counts=True)
        mine = forward[ops.thread[forward] == threads[count.argmax()]]
        mine = mine[np.lexsort((ops.ts_ns[mine], ops.sequence[mine]))]
        rows = open_[ops.forward_thread[open_] == number]
        at = np.searchsorted(ops.sequence[mine], ops.sequence[rows]) - 1
        found = mine[np.maximum(at, 0)]
        behind = ops.sequence[rows] - ops.sequence[found]
        fits = (at >= 0) & (behind <= _MOST_NODES) & (ops.ts_ns[found] < ops.ts_ns[rows])
        out[rows[fits]] = found[fits]
    return out


def _receivers(trace: Trace, links: Links, phases: Phases, node: CodeArray) -> CodeArray:
    """Per kernel that adds two gradients of one tensor: the backward operator that takes the sum.

    The engine adds where the second gradient came out, beside the backward operator and not inside it;
    the sum is the gradient of what the tensor was made by. That runs next, weights aside, when nothing
    more is to be added; with a third gradient still to come the sum waits for the last addition.
    """
    out = np.full(len(node), -1, np.int32)
    parent = _parents_but_ranges(trace, links, phases)
    beside = look_up(parent, node) >= 0
    beside &= look_up(phases.evaluate, node) == look_up(parent, node)
    beside &= trace.symbols.where(lambda text: text in ("aten::add", "aten::add_"))[look_up(links.name, node)]
    rows = np.flatnonzero(beside & (node >= 0))
    if not len(rows):
        return out
    called = np.flatnonzero(links.is_op & (look_up(phases.evaluate, parent) == parent) & (parent >= 0))
    called = called[np.lexsort((links.ts_ns[called], links.thread[called]))]
    thread, begin = links.thread[called], links.ts_ns[called]
    shape = trace.ops.inputs
    first: dict[int, object] = {}

    def gradient(op: int) -> object:
        code = int(shape[op])
        if code not in first:
            first[code] = next(iter(trace.details.inputs(code).dims or []), None)
        return first[code]

    named = [_CALLED.fullmatch(text) for text in trace.symbols]
    of_name = [found.lastgroup or "" if found else "" for found in named]
    accumulates = phases.accumulates[parent[called]]
    kinds = [
        "end" if ends else of_name[code] for ends, code in zip(accumulates, links.name[called], strict=True)
    ]
    lanes = {
        lane: (int(np.searchsorted(thread, lane)), int(np.searchsorted(thread, lane, "right")))
        for lane in np.unique(links.thread[node[rows]]).tolist()
    }
    waiting: dict[tuple[int, str], list[int]] = {}
    for row in rows[np.argsort(links.ts_ns[node[rows]], kind="stable")].tolist():
        op = int(node[row])
        lane, summed = int(links.thread[op]), gradient(op)
        low, high = lanes[lane]
        behind = int(low + np.searchsorted(begin[low:high], links.ts_ns[op], "right"))
        home = next((at for at in range(behind - 1, low, -1) if kinds[at] != "inner"), low)
        own = summed is None and _of_weight(kinds, home, behind)
        while not own and behind < high and kinds[behind] in _TO_WEIGHT:
            own = summed is not None and gradient(int(called[behind])) == summed
            behind += 1
        waiting.setdefault((lane, str(summed)), []).append(row)
        if own:  # the sum is a weight's own gradient
            waiting.pop((lane, str(summed)))
        elif behind < high and gradient(int(called[behind])) == summed:
            # no shapes: the next of several products of one tensor brings a further gradient of it
            more = _product(kinds, range(home, low - 1, -1)) and _product(kinds, range(behind, high))
            if summed is not None or not more:
                out[waiting.pop((lane, str(summed)))] = called[behind]
    return out


def _of_weight(kinds: list[str], home: int, behind: int) -> bool:
    """Without shapes: does what is added beside this operator of the engine go to a weight?"""
    return kinds[home] == "table" or (kinds[home] == "weight" and kinds[behind : behind + 1] == ["end"])


def _product(kinds: list[str], places: range) -> bool:
    """Is the first of these operators that is no view, nor brings a gradient to a weight, a product?"""
    return (
        next((kinds[at] for at in places if kinds[at] not in ("view", "inner", *_TO_WEIGHT)), "") == "product"
    )


def _parents_but_ranges(trace: Trace, links: Links, phases: Phases) -> CodeArray:
    """Per node its parent, as if nothing stood between the engine's range and the backward operator it calls.

    ``tracelens capture`` puts a range there that is named after the module. Such a range has no parent here.
    """
    parent = links.forest.parent
    code = {text: at for at, text in enumerate(trace.symbols)}
    called = np.full(len(trace.symbols), -2, np.int32)  # per name of the engine: what it calls
    for text, at in code.items():
        if text.startswith(EVALUATE):
            called[at] = code.get(text.removeprefix(EVALUATE), -2)
    operator = links.is_op & (links.name == look_up(called, look_up(links.name, phases.evaluate), -2))
    around = parent[operator & (parent != phases.evaluate)]
    around = around[(around >= 0) & (look_up(parent, around) == look_up(phases.evaluate, around))]
    between = np.zeros(len(parent), np.bool_)
    between[around] = True
    out = np.where(look_up(between, parent, False), look_up(parent, parent), parent).astype(np.int32)
    out[between] = -1
    return out


def _evaluate_before(links: Links, phases: Phases) -> CodeArray:
    """Per AccumulateGrad node the evaluate node of another kind that ran before it on its thread."""
    out = np.full(len(links.forest.parent), -1, np.int32)
    nodes = np.flatnonzero(phases.evaluate == np.arange(len(out)))
    nodes = nodes[np.lexsort((links.ts_ns[nodes], links.thread[nodes]))]
    last: tuple[int, int] | None = None
    for node in nodes.tolist():
        thread = int(links.thread[node])
        if phases.accumulates[node]:
            if last is not None and last[0] == thread:
                out[node] = last[1]
        else:
            last = (thread, node)
    return out
