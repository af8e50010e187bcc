"""Which GPU events of a file count: of several GPUs those of one, and each event once.

What several run at once is no sequence, and no step has both times. A file put together of others can hold an
event twice, and savings would count double.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from tracelens.errors import UsageError
from tracelens.numbers import integers
from tracelens.trace import words
from tracelens.trace.metadata import device_properties
from tracelens.trace.processes import launches_of_kernels, processes_of_threads
from tracelens.trace.tables import MISSING, Table, Trace

T = TypeVar("T", bound=Table)


def one_device(trace: Trace, wanted: int | None = None) -> Trace:
    """The trace with the GPU events of one device, by default of the one with most GPU time, and with their
    launches.

    The operators are those of all, but for processes that only other GPUs work for; of several processes no
    rank is known. Events without a device stay. ``Trace.beside`` says what is left out.
    Raises UsageError where the wanted device ran nothing.
    """
    kernels, launches = trace.kernels, trace.launches
    devices = np.unique(kernels.device[kernels.device != MISSING]).tolist()
    if wanted is not None and wanted not in devices:
        there = f"GPUs {integers(devices)}" if devices else "events that name no GPU"
        raise UsageError(f"GPU {wanted} ran nothing in this trace: it holds {there}")
    time = {one: int(kernels.dur_ns[kernels.device == one].sum()) for one in devices}
    process, head = processes_of_threads(trace), trace.metadata
    process_of = process[launches.thread]
    info = head.get("distributedInfo")
    if isinstance(info, dict) and len(np.unique(process_of)) > 1:  # of one of the files put together
        head = head | {"distributedInfo": {key: value for key, value in info.items() if key != "rank"}}
    if len(devices) <= 1:
        return replace(trace, metadata=head)
    chosen = wanted if wanted is not None else max(devices, key=lambda one: (time[one], -one))
    mine = np.isin(kernels.device, [chosen, MISSING])
    launch = launches_of_kernels(trace)
    ours, theirs = (np.unique(launch[here & (launch >= 0)]) for here in (mine, ~mine))
    own = ~np.isin(np.arange(len(launches)), np.setdiff1d(theirs, ours))
    strangers = np.setdiff1d(process_of[theirs], process_of[ours])

    def kept(table: T) -> T:
        return table.rows(~np.isin(process[getattr(table, "thread")], strangers))  # noqa: B009

    listed = [entry for entry in device_properties(trace.metadata) if entry.get("id") == chosen]
    return replace(
        trace,
        kernels=kernels.rows(mine),
        launches=kept(launches.rows(own)),
        ops=kept(trace.ops),
        ranges=kept(trace.ranges),
        frames=kept(trace.frames),
        flows=kept(trace.flows),
        metadata=head | ({"deviceProperties": listed} if listed else {}),
        device=chosen,
        beside={one: ns for one, ns in time.items() if one != chosen},
    )


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
