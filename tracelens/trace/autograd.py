"""From a backward operator to its forward operator, by the numbers that autograd gives its nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.trace.nesting import NONE, Forest, look_up, match
from tracelens.trace.tables import CodeArray, IntArray, Ops, Trace

EVALUATE = "autograd::engine::evaluate_function: "


def numbered_ops(trace: Trace, forest: Forest) -> Ops:
    """The operators with their numbers as recorded, and what the engine runs behind a node with the node's.

    The engine's range has its number only from the event that follows it (``set_autograd_evaluate`` in
    PyTorch's torch/csrc/profiler/collection.cpp): none where a hook runs before the node, as FSDP2's that
    gathers. The sum of a bias gradient stands in the range behind the node; what the hook does is not the
    node's.
    """
    ops = trace.ops
    rows = len(ops)  # operators are the first nodes
    evaluates = trace.symbols.where(lambda text: text.startswith(EVALUATE))[ops.name]
    bare = np.append(evaluates & (ops.sequence < 0), False)
    if not bare.any():
        return ops
    everywhere = np.zeros(len(forest.parent), np.bool_)
    everywhere[:rows] = evaluates
    engine = forest.nearest(everywhere)[:rows]
    code = {text: at for at, text in enumerate(trace.symbols)}
    calls = np.array([code.get(text.removeprefix(EVALUATE), -1) for text in trace.symbols], np.int64)
    numbered = (ops.forward_thread > 0) & (ops.sequence >= 0)
    node = numbered & bare[engine] & (ops.name == look_up(calls, look_up(ops.name, engine), -2))
    nodes = np.flatnonzero(node)
    nodes = nodes[np.argsort(-ops.ts_ns[nodes], kind="stable")]
    # the engine's range, or one that ends with the module's work
    of_holder = np.full(len(forest.parent), NONE)
    of_holder[forest.parent[nodes]] = nodes
    of_holder[engine[nodes]] = nodes  # the first of several
    taken = look_up(of_holder, forest.parent[:rows])
    behind = (taken >= 0) & (ops.sequence < 0) & (ops.ts_ns >= look_up(ops.ts_ns, taken))
    return replace(
        ops,
        sequence=np.where(behind, look_up(ops.sequence, taken), ops.sequence),
        forward_thread=np.where(behind, look_up(ops.forward_thread, taken), ops.forward_thread),
    )


def backward_to_forward(trace: Trace, ops: Ops) -> CodeArray:
    """Tie backward operators to their forward by (forward thread, sequence number).

    The number is read before it is used up, so several operators carry it; the one that made the
    autograd node is the last to begin with it. ``Fwd thread id`` is a logical number: it stands for
    the thread that the profiler's arrows come from, or without arrows the one whose forward operators
    share most sequence numbers with it.
    """
    out = np.full(len(ops), NONE)
    backward = np.flatnonzero((ops.forward_thread > 0) & (ops.sequence >= 0))
    forward = np.flatnonzero((ops.forward_thread <= 0) & (ops.sequence >= 0))
    if not len(backward) or not len(forward):
        return out
    forward = forward[np.argsort(ops.ts_ns[forward], kind="stable")]
    arrows = _arrows(trace, ops, backward)
    for logical in np.unique(ops.forward_thread[backward]):
        mine = backward[ops.forward_thread[backward] == logical]
        numbers = np.unique(ops.sequence[mine])
        candidates = forward[np.isin(ops.sequence[forward], numbers)]
        if not len(candidates):
            continue
        thread = arrows.get(int(logical), -1)
        if not (ops.thread[candidates] == thread).any():
            thread = _thread_with_most(ops, candidates)
        candidates = candidates[ops.thread[candidates] == thread]
        out[mine] = _last_before(ops, candidates, mine)
    return out


def _arrows(trace: Trace, ops: Ops, backward: IntArray) -> dict[int, int]:
    """Per logical forward thread the thread that most of the arrows to its backward operators come from."""
    flows = trace.flows
    heads = np.flatnonzero(~flows.start)
    tails = np.flatnonzero(flows.start)
    tail = match(flows.id[tails], flows.id[heads])
    matched = tail >= 0
    heads, tails = heads[matched], tails[tail[matched]]
    backward = backward[np.argsort(ops.ts_ns[backward], kind="stable")]
    at = np.minimum(np.searchsorted(ops.ts_ns[backward], flows.ts_ns[heads]), len(backward) - 1)
    reached = backward[at]
    same = (ops.ts_ns[reached] == flows.ts_ns[heads]) & (ops.thread[reached] == flows.thread[heads])
    pairs = np.stack([ops.forward_thread[reached[same]], flows.thread[tails[same]].astype(np.int64)])
    found, counts = np.unique(pairs, axis=1, return_counts=True)
    most_last = np.argsort(counts, kind="stable")
    return dict(found[:, most_last].T.tolist())


def _thread_with_most(ops: Ops, candidates: IntArray) -> int:
    pairs = np.unique(np.stack([ops.thread[candidates].astype(np.int64), ops.sequence[candidates]]), axis=1)
    threads, counts = np.unique(pairs[0], return_counts=True)
    return int(threads[np.argmax(counts)])


def _last_before(ops: Ops, forward: IntArray, backward: IntArray) -> CodeArray:
    """Per backward op the last forward op with its number that began before it."""
    base = min(int(ops.ts_ns[forward].min()), int(ops.ts_ns[backward].min()))
    order = np.lexsort((ops.ts_ns[forward], ops.sequence[forward]))
    forward = forward[order]
    # one sortable key from (sequence, time)
    span = max(int(ops.ts_ns[forward].max()), int(ops.ts_ns[backward].max())) - base + 1
    numbers, rank = np.unique(
        np.concatenate([ops.sequence[forward], ops.sequence[backward]]), return_inverse=True
    )
    if span > 2**62 // max(1, len(numbers)):
        return np.full(len(backward), NONE)
    key = rank[: len(forward)] * span + (ops.ts_ns[forward] - base)
    wanted = rank[len(forward) :] * span + (ops.ts_ns[backward] - base)
    at = np.searchsorted(key, wanted, side="right") - 1
    found = forward[np.maximum(at, 0)]
    same = (at >= 0) & (ops.sequence[found] == ops.sequence[backward])
    return np.where(same, found, -1).astype(np.int32)
