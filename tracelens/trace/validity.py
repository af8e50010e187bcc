"""The six rules that PyTorch holds its own traces to, over the tables.

They are those of ``torch.profiler._trace_validator`` (pytorch/pytorch#177947, in torch 2.13), which come from
traces that were wrong in production; tests compare the counts with its own. Three of them need ``cuda_sync``
events, which are recorded with ``_ExperimentalConfig(enable_cuda_sync_events=True)`` only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tracelens.results.identity import ValidityRule
from tracelens.trace import words
from tracelens.trace.collectives import OP
from tracelens.trace.tables import BoolArray, Trace

_LAUNCH = "cudaLaunchKernel"
_ENGINE = "autograd::engine::evaluate_function:"
_RECORDS = {
    "cudaEventRecord",
    "cudaEventRecord_ptsz",
    "cudaEventRecordWithFlags",
    "cudaEventRecordWithFlags_ptsz",
}


def check_rules(trace: Trace) -> list[ValidityRule]:
    """All six rules, in PyTorch's order."""
    return [ValidityRule(code, says, *check(trace)) for code, says, check in _RULES]


def _causality(trace: Trace) -> tuple[int, int]:
    """By external id: the first kernel against the first cudaLaunchKernel."""
    launch = trace.symbols.where(lambda text: text == _LAUNCH)[trace.launches.name]
    kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    launched, launch_ns = _first(trace.launches.external_id[launch], trace.launches.ts_ns[launch])
    ran, kernel_ns = _first(trace.kernels.external_id[kernel], trace.kernels.ts_ns[kernel])
    _, of_kernel, of_launch = np.intersect1d(ran, launched, assume_unique=True, return_indices=True)
    return len(of_kernel), int((kernel_ns[of_kernel] < launch_ns[of_launch]).sum())


def _wait_names_record(trace: Trace) -> tuple[int, int]:
    waits = _syncs(trace, "Stream Wait Event", "Event Sync")
    return int(waits.sum()), int((trace.syncs.record[waits] < 0).sum())


def _sync_after_kernels(trace: Trace) -> tuple[int, int]:
    """PyTorch counts pairs of a wait and a kernel that still runs on its stream."""
    syncs, kernels = trace.syncs, trace.kernels
    rows = np.flatnonzero(_syncs(trace, "Stream Sync"))
    lasting = trace.symbols.where(lambda text: text == "kernel")[kernels.category] & (kernels.dur_ns > 0)
    broken = 0
    for device, stream in {(int(syncs.device[row]), int(syncs.stream[row])) for row in rows}:
        mine = lasting & (kernels.device == device) & (kernels.stream == stream)
        at = syncs.ts_ns[rows[(syncs.device[rows] == device) & (syncs.stream[rows] == stream)]]
        begun = np.searchsorted(np.sort(kernels.ts_ns[mine]), at, side="left")
        done = np.searchsorted(np.sort(kernels.ts_ns[mine] + kernels.dur_ns[mine]), at, side="right")
        broken += int((begun - done).sum())
    return len(rows), broken


def _wait_for_the_past(trace: Trace) -> tuple[int, int]:
    """The record is named by its external id or its correlation; it must be there, and not later."""
    waits = _syncs(trace, "Stream Wait Event") & (trace.syncs.record >= 0)
    record = trace.symbols.where(_RECORDS.__contains__)[trace.launches.name]
    ids = np.concatenate([trace.launches.external_id[record], trace.launches.correlation[record]])
    known, when = _first(ids, np.tile(trace.launches.ts_ns[record], 2))
    wanted, now = trace.syncs.record[waits], trace.syncs.ts_ns[waits]
    if not len(known):
        return len(wanted), len(wanted)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    fine = (known[at] == wanted) & (when[at] <= now)
    return len(wanted), int((~fine).sum())


def _collectives_complete(trace: Trace) -> tuple[int, int]:
    rows = trace.symbols.where(lambda text: text == OP)[trace.ops.name]
    codes, counts = np.unique(trace.ops.collective[rows], return_counts=True)
    broken = 0
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        found = trace.details.collective(code)
        if found is None or None in (
            found.name, found.dtype, found.in_elements, found.out_elements, found.group_size
        ):  # fmt: skip
            broken += count
    return int(rows.sum()), broken


def _sequence_unique(trace: Trace) -> tuple[int, int]:
    """At most one backward function by sequence number; 0 counts as none, as there."""
    rows = trace.symbols.where(lambda text: _ENGINE in text)[trace.ops.name] & (trace.ops.sequence > 0)
    pairs = np.unique(np.stack([trace.ops.sequence[rows], trace.ops.name[rows]]), axis=1)
    _, functions = np.unique(pairs[0], return_counts=True)
    return len(functions), int((functions > 1).sum())


def _syncs(trace: Trace, *kinds: str) -> BoolArray:
    found: BoolArray = trace.symbols.where(kinds.__contains__)[trace.syncs.name]
    return found


def _first(ids: npt.NDArray[np.int64], ts_ns: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """Distinct known ids in order, each with its earliest time."""
    order = np.lexsort((ts_ns, ids))
    order = order[ids[order] >= 0]
    known, first = np.unique(ids[order], return_index=True)
    return known, ts_ns[order][first]


_RULES: tuple[tuple[str, str, Callable[[Trace], tuple[int, int]]], ...] = (
    ("gpu-kernel-causality", words.KERNEL_AFTER_LAUNCH, _causality),
    ("stream-wait-corr-id", words.WAIT_NAMES_RECORD, _wait_names_record),
    ("stream-sync-overlap", words.STREAM_IDLE, _sync_after_kernels),
    ("stream-wait-in-past", words.WAIT_AFTER_RECORD, _wait_for_the_past),
    ("nccl-metadata", words.COLLECTIVE_COMPLETE, _collectives_complete),
    ("backward-sequence", words.ONE_BACKWARD, _sequence_unique),
)
