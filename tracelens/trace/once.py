"""Each GPU event once: a file put together of others can hold one twice, and savings would count double."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.trace import words
from tracelens.trace.tables import Trace

_STRAY = 0.01  # of GPU time: one event that looks like its neighbour


def each_once(trace: Trace) -> Trace:
    """The trace without the GPU events that it lists again; itself where those are below 1 % of GPU time.

    A warning says how many are left out.
    """
    kernels = trace.kernels
    _, at, count = np.unique(kernels.ts_ns, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(count[at] > 1)  # few, or all
    told = (kernels.device, kernels.stream, kernels.ts_ns, kernels.dur_ns, kernels.correlation, kernels.name)
    each = np.stack([column[shared].astype(np.int64) for column in told])
    again = np.zeros(len(kernels), np.bool_)
    again[np.delete(shared, np.unique(each, axis=1, return_index=True)[1])] = True
    if int(kernels.dur_ns[again].sum()) < _STRAY * max(1, int(kernels.dur_ns.sum())):
        return trace
    warning = words.listed_twice(int(again.sum()), len(kernels))
    return replace(trace, kernels=kernels.rows(~again), warnings=[*trace.warnings, warning])
