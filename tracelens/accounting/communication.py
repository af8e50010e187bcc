"""The communication table: calls of the same collective, group and purpose as one row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.attribution import Attribution
from tracelens.attribution.collectives import Call
from tracelens.attribution.communication import Communication
from tracelens.hardware.collectives import bus_factor
from tracelens.results import CommunicationRow
from tracelens.trace import Trace, distinct_rows
from tracelens.words import PHASES

#: NCCL moves 16 bytes at a time where each rank's share of an all-gather or reduce-scatter begins on as many,
#: and element by element elsewhere: NVIDIA/nccl#413, pytorch/pytorch#195450; 7 ms for 2 in horovod#3727.
SHARE_BYTES = 16
#: Smaller messages go by the protocol LL, which the alignment does not slow (NVIDIA/nccl#413).
_LARGE = 1 << 20
_SIZE_CLASS = 4  # bits: messages of sizes within a factor of 16 share a row


def communication_rows(
    trace: Trace, attribution: Attribution, communication: Communication, *, steps: int
) -> list[CommunicationRow]:
    """One row per (collective, group, purpose, type, size class, phase), longest in the ``steps`` first."""
    if not len(communication):
        return []
    in_line = _in_line(trace, communication)
    groups: dict[tuple[object, ...], list[int]] = {}
    phase = attribution.phase[communication.kernel]
    cells = np.stack([communication.call, communication.purpose, phase], axis=1)
    distinct, which = distinct_rows(cells)
    members = np.argsort(which, kind="stable")
    bounds = np.cumsum(np.bincount(which, minlength=len(distinct)))[:-1]
    for (call, purpose, in_phase), alike in zip(distinct.tolist(), np.split(members, bounds), strict=True):
        key = (_kind(communication.calls[call]), communication.purposes[purpose], in_phase)
        groups.setdefault(key, []).extend(alike.tolist())
    rows = [
        _row(trace, attribution, communication, in_line, np.array(positions), steps)
        for positions in groups.values()
    ]
    return sorted(rows, key=lambda row: (-row.time_ms_per_step, -row.time_ms))


def _kind(call: Call) -> tuple[object, ...]:
    size = call.bytes.bit_length() // _SIZE_CLASS if call.bytes is not None else None
    return call.collective, call.group, call.group_size, call.ranks, call.dtype, size


def _row(
    trace: Trace,
    attribution: Attribution,
    communication: Communication,
    in_line: npt.NDArray[np.bool_],
    at: npt.NDArray[np.int64],
    steps: int,
) -> CommunicationRow:
    kernel = communication.kernel[at]
    dur, exposed = trace.kernels.dur_ns[kernel], communication.exposed_ns[at]
    in_step = attribution.step[kernel] >= 0
    call = communication.calls[int(communication.call[at[0]])]
    purpose = communication.purposes[int(communication.purpose[at[0]])]
    sizes = np.array([communication.calls[code].bytes or 0 for code in communication.call[at].tolist()])
    moved, time_ns = int(sizes.sum()), int(dur.sum())
    algorithm = moved / time_ns if call.bytes is not None and time_ns else None
    factor = bus_factor(call.collective, call.group_size)
    called = [communication.calls[code] for code in communication.call[at].tolist()]
    shares = np.array([_unaligned_share(one) for one in called])
    unaligned = (shares > 0) & in_step
    uneven = [one.uneven_frac for one, counts in zip(called, in_step.tolist(), strict=True) if counts]
    known = [one for one in uneven if one is not None]
    return CommunicationRow(
        collective=call.collective,
        group=call.group,
        group_size=call.group_size,
        purpose=purpose.purpose,
        evidence=purpose.evidence,
        why=purpose.why,
        phase=PHASES[attribution.phase[kernel[0]]],
        dtype=call.dtype,
        calls=len(at),
        calls_per_step=float(in_step.sum()) / steps,
        bytes_per_call=moved / len(at) if call.bytes is not None else None,
        time_ms=time_ns / 1e6,
        exposed_ms=int(exposed.sum()) / 1e6,
        hidden_ms=int((dur - exposed).sum()) / 1e6,
        time_ms_per_step=int(dur[in_step].sum()) / 1e6 / steps,
        exposed_ms_per_step=int(exposed[in_step].sum()) / 1e6 / steps,
        hidden_ms_per_step=int((dur - exposed)[in_step].sum()) / 1e6 / steps,
        algorithm_gbps=algorithm if factor is not None or call.group_size is None else None,
        bus_gbps=algorithm * factor if algorithm is not None and factor is not None else None,
        best_bus_gbps=float((sizes / np.maximum(1, dur)).max()) * factor if factor and moved else None,
        in_line_ms_per_step=int(exposed[in_step & in_line[at]].sum()) / 1e6 / steps,
        unaligned_ms_per_step=int(exposed[unaligned].sum()) / 1e6 / steps,
        unaligned_bytes=int(shares[np.where(unaligned, exposed, -1).argmax()]) if unaligned.any() else None,
        uneven_frac=sum(known) / len(known) if known else None,
    )


def _unaligned_share(call: Call) -> int:
    """Bytes of one rank's part of a large message, where they are no multiple of ``SHARE_BYTES``; else 0."""
    size, ranks = call.bytes, call.group_size
    if call.collective not in ("all_gather", "reduce_scatter") or not size or not ranks or size < _LARGE:
        return 0
    share = size // ranks
    return share if size % ranks == 0 and share % SHARE_BYTES else 0


def _in_line(trace: Trace, communication: Communication) -> npt.NDArray[np.bool_]:
    """Per communication event: is it on the stream of its device that computes most?"""
    kernels = trace.kernels
    busy = kernels.dur_ns.copy()
    busy[communication.kernel] = 0
    out = np.zeros(len(communication), np.bool_)
    for device in np.unique(kernels.device[communication.kernel]):
        streams, which = np.unique(kernels.stream[kernels.device == device], return_inverse=True)
        time = np.bincount(which, weights=busy[kernels.device == device])
        here = kernels.device[communication.kernel] == device
        out |= here & (kernels.stream[communication.kernel] == streams[time.argmax()]) & (time.max() > 0)
    return out
