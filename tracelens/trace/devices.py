"""One GPU of a file that several ran in: what they run at once is no sequence, and no step has both times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.errors import UsageError
from tracelens.numbers import integers
from tracelens.trace.metadata import device_properties
from tracelens.trace.tables import MISSING, Trace


def one_device(trace: Trace, wanted: int | None = None) -> Trace:
    """The trace with the GPU events of one device, by default of the one with most GPU time, and with their
    launches.

    The operators are those of all. Events without a device stay. ``Trace.beside`` says what is left out.
    Raises UsageError where the wanted device ran nothing.
    """
    kernels, launches = trace.kernels, trace.launches
    devices = np.unique(kernels.device[kernels.device != MISSING]).tolist()
    if wanted is not None and wanted not in devices:
        there = f"GPUs {integers(devices)}" if devices else "events that name no GPU"
        raise UsageError(f"GPU {wanted} ran nothing in this trace: it holds {there}")
    time = {one: int(kernels.dur_ns[kernels.device == one].sum()) for one in devices}
    if len(devices) <= 1:
        return trace
    chosen = wanted if wanted is not None else max(devices, key=lambda one: (time[one], -one))
    mine = np.isin(kernels.device, [chosen, MISSING])
    others = np.setdiff1d(kernels.correlation[~mine], kernels.correlation[mine])
    own = ~np.isin(launches.correlation, others[others != MISSING])
    listed = [entry for entry in device_properties(trace.metadata) if entry.get("id") == chosen]
    return replace(
        trace,
        kernels=kernels.rows(mine),
        launches=launches.rows(own),
        metadata=trace.metadata | ({"deviceProperties": listed} if listed else {}),
        device=chosen,
        beside={one: ns for one, ns in time.items() if one != chosen},
    )
