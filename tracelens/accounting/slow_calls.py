"""Collectives of one trace that take far longer than NCCL takes for them within one node."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.hardware.collectives import bus_factor, one_node_us
from tracelens.results.step import CommunicationRow

#: Times as long as published: one rank's time holds its waiting, so more is asked of it than of sending.
_WAITING_TOO = 2.0
#: Calls that wait for nobody differ so much in pace. With it the bound is below the waiting that the clocks
#: of all ranks show, on each rank of an 8-rank H100 job with a late one.
_PACE = 1.15
#: Times as slow as published that links still count as fast: the published law misses by 17 % in one size of
#: ten (benchmarks/results/job.json).
SENDING = 1.5


@dataclass(frozen=True, slots=True)
class SlowCalls:
    """What a row takes beside what was published."""

    us: float  # a call
    usual_us: float  # published
    usual_gbps: float  # bus bandwidth at that time
    #: At least so many ms per step are beyond what its calls take at the pace of the fastest, where that is
    #: as fast as the links: a call that waits for nobody sends at their pace. None: the trace does not tell
    #: waiting from slow links.
    waiting_ms: float | None


def slow_calls_of(row: CommunicationRow, gpu: str) -> SlowCalls | None:
    """None where it is no slower than published, or nothing was published. ``gpu``: a key of gpus.toml."""
    size, ranks, own, best = row.bytes_per_call, row.group_size, row.bus_gbps, row.best_bus_gbps
    if size is None or ranks is None or own is None or best is None:
        return None
    usual, factor = one_node_us(gpu, row.collective, ranks, round(size)), bus_factor(row.collective, ranks)
    us = row.time_ms * 1e3 / row.calls
    if usual is None or factor is None or us <= _WAITING_TOO * usual:
        return None
    bus = size * factor / usual / 1e3
    waiting = row.time_ms_per_step * max(0.0, 1 - _PACE * own / best) if best * SENDING >= bus else None
    return SlowCalls(us, usual, bus, waiting)
