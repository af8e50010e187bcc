"""Who encloses whom on each host thread: a forest of operators, ranges, frames and launches.

All of it is array work. Spans are sorted by thread and start; then the forest is peeled level by
level: at each level the spans that start after everything before them has ended are the roots, the
rest lie inside the last root before them. A span that outlives its parent (Python frames do) is
clamped to it, so the result is always a forest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.trace.tables import BoolArray, CodeArray, IntArray

NONE = np.int32(-1)
_PASSES = 20
_NARROW = 1 << 31  # as many codes as rows at the most, and as many values: their product is an int64
_LONGEST = 2.0**62  # ns of all threads behind each other


def look_up(column: npt.NDArray[Any], index: npt.NDArray[Any], missing: Any = -1) -> npt.NDArray[Any]:
    """``column[index]`` where an index of -1 finds ``missing``; the column can be empty.

    >>> look_up(np.array([10, 20]), np.array([1, -1])).tolist()
    [20, -1]
    """
    found: npt.NDArray[Any] = np.append(column, np.array([missing], column.dtype))[index]
    return found


def match(keys: IntArray, wanted: IntArray) -> CodeArray:
    """For every wanted key the row that holds it, the last one where several do; -1 where none does."""
    valid = np.flatnonzero(keys >= 0)
    if not len(valid):
        return np.full(len(wanted), NONE)
    order = valid[np.argsort(keys[valid], kind="stable")]
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    rows = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (wanted >= 0) & (keys[rows] == wanted), rows, -1).astype(np.int32)


def distinct_rows(table: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], IntArray]:
    """The different rows of a table of integers, sorted, and for every row which of them it is.

    ``np.unique`` compares rows as bytes, which takes ten times as long as sorting one number for each.

    >>> rows, which = distinct_rows(np.array([[2, 0], [1, 5], [2, 0]]))
    >>> rows.tolist(), which.tolist()
    ([[1, 5], [2, 0]], [1, 0, 1])
    """
    key, codes = np.zeros(len(table), np.int64), 1
    for column in table.T.astype(np.int64) if len(table) else ():
        low, span = column.min(), int(column.max()) - int(column.min()) + 1
        if span > _NARROW:
            column, low, span = np.unique(column, return_inverse=True)[1], 0, len(table)
        if codes * span > np.iinfo(np.int64).max:
            key, codes = np.unique(key, return_inverse=True)[1], len(table)
        key, codes = key * span + (column - low), codes * span
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return table[first], which


@dataclass(frozen=True, slots=True)
class Forest:
    """Spans as nodes; ``parent`` is -1 at a root. ``levels`` lists the nodes of each depth, roots first."""

    parent: CodeArray
    levels: list[CodeArray]

    def nearest(self, wanted: BoolArray, *, outermost: bool = False) -> CodeArray:
        """For every node the closest (the outermost) wanted node around it, itself included; -1: none."""
        found = np.full(len(self.parent), NONE)
        for depth, nodes in enumerate(self.levels):
            if depth:
                found[nodes] = found[self.parent[nodes]]
            here = nodes[wanted[nodes] & ~(outermost & (found[nodes] >= 0))]
            found[here] = here
        return found

    def outermost(self, wanted: BoolArray) -> CodeArray:
        """For every node the outermost wanted node around it, itself included; -1: none."""
        return self.nearest(wanted, outermost=True)

    def above(self, of_node: CodeArray) -> CodeArray:
        """Shift a per-node answer from each node to its children: what holds around it, not for it."""
        out = np.full(len(self.parent), NONE)
        inner = self.parent >= 0
        out[inner] = of_node[self.parent[inner]]
        return out

    def depth(self) -> CodeArray:
        """How many spans enclose each node."""
        out = np.zeros(len(self.parent), np.int32)
        for depth, nodes in enumerate(self.levels):
            out[nodes] = depth
        return out


def build_forest(thread: npt.NDArray[np.int32], ts_ns: IntArray, dur_ns: IntArray) -> Forest:
    """Nest spans by time on each thread.

    Of spans that begin together the longer one is the parent; of equal spans the one that comes
    first in the arrays (Kineto writes the outer first).
    """
    size = len(ts_ns)
    parent = np.full(size, NONE)
    if not size:
        return Forest(parent, [])
    end_ns = ts_ns + np.maximum(dur_ns, 0)
    order = np.lexsort((-dur_ns, ts_ns, thread)).astype(np.int32)  # stable: ties keep file order
    # Threads are laid one behind the other on one time line, so one pass serves them all.
    thread_sorted = thread[order]
    first = np.flatnonzero(np.append(True, thread_sorted[1:] != thread_sorted[:-1]))
    starts, ends = ts_ns[order], end_ns[order]
    if len(first) * (float(ends.max()) - float(starts.min())) > _LONGEST:
        # Times from several ages of the world: who encloses whom, their order tells as well.
        starts, ends = np.unique(np.append(starts, ends), return_inverse=True)[1].reshape(2, -1)
    lowest = np.minimum.reduceat(starts, first)
    span = np.maximum.reduceat(ends, first) - lowest + 1
    shift = np.repeat(np.cumsum(np.append(0, span[:-1])) - lowest, np.diff(np.append(first, size)))
    starts, ends = starts + shift, ends + shift

    levels: list[CodeArray] = []
    nodes, holder = order, np.full(size, NONE)
    while len(nodes):
        root, at = _roots(starts, ends)
        parent[nodes] = holder
        levels.append(nodes[root])
        inner = ~root
        at = at[inner]
        ends = np.minimum(ends[inner], ends[at])
        starts, holder, nodes = starts[inner], nodes[at], nodes[inner]
    return Forest(parent, levels)


def _roots(starts: IntArray, ends: IntArray) -> tuple[BoolArray, IntArray]:
    """Which of the spans, sorted by start, lie in none before them; and for each the position of its root.

    With clean nesting one pass does. A span that overlaps the end of its root would hide what comes
    after, so it is clamped and the pass repeated; a level full of those is walked one by one.
    """
    ends = ends.copy()
    for _ in range(_PASSES):
        reach = np.maximum.accumulate(ends)
        root = np.append(True, starts[1:] >= reach[:-1])
        at = np.flatnonzero(root)[np.cumsum(root) - 1]
        within = starts < ends[at]
        if within[~root].all():
            return root, at
        np.minimum(ends, ends[at], out=ends, where=within)
    following = np.searchsorted(starts, ends, side="left")
    root = np.zeros(len(starts), np.bool_)
    position = 0
    while position < len(starts):
        root[position] = True
        position = max(position + 1, int(following[position]))
    return root, np.flatnonzero(root)[np.cumsum(root) - 1]


def merged(begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Spans that overlap or touch as one, in order of time.

    >>> [one.tolist() for one in merged(np.array([0, 5, 20]), np.array([8, 10, 30]))]
    [[0, 20], [10, 30]]
    """
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.append(True, begin[1:] > reach[:-1])
    return begin[first], np.append(reach[np.flatnonzero(first)[1:] - 1], reach[-1])


def covered(begin: IntArray, end: IntArray, window_start: IntArray, window_end: IntArray) -> IntArray:
    """How much of each window is covered by at least one of the spans, in the unit of the inputs.

    >>> covered(np.array([0, 5, 20]), np.array([8, 10, 30]), np.array([0]), np.array([25])).tolist()
    [15]
    """
    if not len(begin):
        return np.zeros(len(window_start), np.int64)
    starts, ends = merged(begin, end)
    total = np.append(0, np.cumsum(ends - starts))

    def before(when: IntArray) -> IntArray:
        """Covered time up to ``when``."""
        at = np.searchsorted(starts, when, side="right")
        inside = np.where(
            at > 0, np.minimum(when, ends[np.maximum(at - 1, 0)]) - starts[np.maximum(at - 1, 0)], 0
        )
        return np.where(at > 0, total[np.maximum(at - 1, 0)] + inside, 0)

    return before(window_end) - before(window_start)
