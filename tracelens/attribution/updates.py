"""An optimizer that is none of ``torch.optim`` and has no range: known by what only optimizers run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.trace import Links, Trace, look_up

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


def between_updates(trace: Trace, links: Links, updates: BoolArray, outside: BoolArray) -> BoolArray:
    """Mask over kernels: launched between two ``updates`` of a stretch in which all kernels are ``outside``.

    ``updates`` are kernels that an optimizer alone runs, ``outside`` those of neither forward nor backward. A
    stretch ends with the step, and where a forward or backward kernel is launched on its thread.
    """
    out = np.zeros(len(trace.kernels), np.bool_)
    node = links.kernel_node
    rows = np.flatnonzero((node >= 0) & (links.kernel_launch >= 0))
    rows = rows[np.lexsort((look_up(links.ts_ns, node[rows]), look_up(links.thread, node[rows])))]
    thread, step = look_up(links.thread, node[rows]), links.kernel_step[rows]
    inside = ~outside[rows]
    change = inside | np.append(True, (thread[1:] != thread[:-1]) | (step[1:] != step[:-1]))[: len(rows)]
    stretch = np.cumsum(change | np.append(False, inside[:-1])[: len(rows)])
    at = np.flatnonzero(updates[rows] & outside[rows])
    low, high = (np.full(int(stretch.max(initial=0)) + 1, end) for end in (len(rows), -1))
    np.minimum.at(low, stretch[at], at)
    np.maximum.at(high, stretch[at], at)
    place = np.arange(len(rows))
    out[rows] = (place > low[stretch]) & (place < high[stretch])
    return out
