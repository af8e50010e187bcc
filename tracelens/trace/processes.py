"""Which launch each kernel is of, also in a file put together of several processes.

Kineto records one process, in which a correlation id is of one call; other processes count alike. A kernel
names its GPU and not its process: that is told by the ids that one process alone has.
"""

from __future__ import annotations

import numpy as np

from tracelens.trace.nesting import distinct_rows, match
from tracelens.trace.tables import BoolArray, CodeArray, IntArray, Launches, Trace

#: Of the kernels of a GPU whose launch is certain, how many are of the process that has this GPU.
_OWNED = 0.9


def launches_of_kernels(trace: Trace) -> CodeArray:
    """Per kernel the launch of the same correlation id; -1 where it is not in the file.

    Of several processes it is the one that has the kernel's GPU; where none is known to have it, an id that
    several have is of none. Kineto's old tracer for AMD GPUs writes the id as the External id of both, and no
    correlation.
    """
    launches, kernels = trace.launches, trace.kernels
    if numbered_by_external_id(trace):
        return match(launches.external_id, kernels.external_id)
    found = match(launches.correlation, kernels.correlation)
    process = processes_of_threads(trace)[launches.thread]
    if len(np.unique(process)) < 2:
        return found
    shared = _shared(launches, process, kernels.correlation)
    for device in np.unique(kernels.device):
        here = kernels.device == device
        owner = _owner(process[found[here & ~shared & (found >= 0)]])
        told = here if owner is not None else here & shared
        own = np.where(process == owner, launches.correlation, -1)
        found[told] = match(own, kernels.correlation[told])
    return found


def launched_by_several(trace: Trace, kernel_launch: CodeArray) -> BoolArray:
    """Per kernel: has it no launch although another process has one of its number?"""
    ids = trace.launches.correlation
    out: BoolArray = (kernel_launch < 0) & np.isin(trace.kernels.correlation, ids[ids >= 0])
    return out


def processes_of_threads(trace: Trace) -> IntArray:
    """Per thread code the number of its process; the last, of no thread, has none."""
    number: dict[object, int] = {}
    return np.array(
        [*(number.setdefault(process, len(number)) for process, _ in trace.threads), -1], np.int64
    )


def _shared(launches: Launches, process: IntArray, wanted: IntArray) -> BoolArray:
    """Per correlation id: is it of launches of several processes?"""
    pairs, _ = distinct_rows(np.stack([launches.correlation, process], axis=1))
    ids, times = np.unique(pairs[:, 0], return_counts=True)
    return np.isin(wanted, ids[(times > 1) & (ids >= 0)])


def _owner(processes: IntArray) -> int | None:
    """The process of nearly all of these launches, if one is."""
    codes, times = np.unique(processes, return_counts=True)
    most = int(times.argmax()) if len(times) else -1
    return int(codes[most]) if most >= 0 and times[most] > _OWNED * times.sum() else None


def numbered_by_external_id(trace: Trace) -> bool:
    """Has nothing a correlation, and every launch an External id of its own?

    Launches of one operator share its id, where the External id is the operator's.
    """
    launches, kernels = trace.launches, trace.kernels
    if (launches.correlation >= 0).any() or (kernels.correlation >= 0).any():
        return False
    ids = launches.external_id[launches.external_id >= 0]
    return len(ids) > 0 and len(np.unique(ids)) == len(ids)
