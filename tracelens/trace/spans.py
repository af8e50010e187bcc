"""Interval arithmetic on spans of time, in whole nanoseconds."""

from __future__ import annotations

import numpy as np

from tracelens.trace.tables import IntArray


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
