"""Collectives that take far longer than NCCL takes for them among as many such GPUs of one node."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens import numbers as f
from tracelens.comparison.step_change import PRACTICAL
from tracelens.hardware.collectives import bus_factor, one_node_us
from tracelens.results import Report
from tracelens.results.job import Job
from tracelens.results.step import CommunicationRow

#: Times as long as published. One rank's time holds its waiting, so more is asked of it than of sending,
#: whose published law misses by 17 % in one size of ten (benchmarks/results/job.json).
_WAITING_TOO, _SENDING = 2.0, 1.5
_TOLD = 2


def slow_calls(report: Report) -> list[str]:
    """Of one trace, the collectives that take far longer, most exposed first: waiting or links, if it shows.

    A call that waits for nobody is as fast as the links, so the fastest tells what is left to waiting.
    """
    rows = sorted(report.communication, key=lambda row: -row.exposed_ms_per_step)
    least = PRACTICAL * report.summary.step_ms.median
    said = [text for row in rows if row.exposed_ms_per_step > least for text in _slow(report, row)]
    return said[:_TOLD]


def _slow(report: Report, row: CommunicationRow) -> Iterator[str]:
    size, ranks, own, best = row.bytes_per_call, row.group_size, row.bus_gbps, row.best_bus_gbps
    if size is None or ranks is None or own is None or best is None:
        return
    usual = one_node_us(report.gpu.name, row.collective, ranks, round(size))
    us = row.time_ms * 1e3 / row.calls
    if usual is None or us <= _WAITING_TOO * usual:
        return
    bus = size * (bus_factor(row.collective, ranks) or 0.0) / usual / 1e3
    text = (
        f"{row.kind}, {f.nbytes(round(size))} among {ranks} ranks: {f.sig(own)} GB/s of bus bandwidth, "
        f"{f.ms(us / 1e3)} a call, {us / usual:.1f} times the {f.ms(usual / 1e3)} ({f.sig(bus)} GB/s) that "
        f"NCCL was published to take among {ranks} {report.gpu.title} of one node. "
    )
    if best * _SENDING >= bus:
        waiting = row.time_ms_per_step * (1 - own / best)
        yield text + (
            f"The fastest of its calls reaches {f.sig(best)} GB/s, so the links are that fast, and about "
            f"{f.ms(waiting)} of {f.ms(row.time_ms_per_step)} is waiting for other ranks: the traces of all "
            "ranks together say for which."
        )
    else:
        yield text + (
            f"The fastest of its calls reaches {f.sig(best)} GB/s: each waits for other ranks, or the links "
            "are slow. The trace does not say how its GPUs are linked, nor whether they are in one node; the "
            "traces of all ranks tell waiting from sending."
        )


def slow_sends(job: Job) -> list[str]:
    """Of a job, the collective that loses most by sending far slower, waiting left out; empty: none does."""
    rows = [
        (row.calls_per_step / row.groups * (row.send_us - row.one_node_us) / 1e3, row)
        for row in job.collectives
        if row.send_us and row.one_node_us and row.send_us > _SENDING * row.one_node_us
    ]
    rows = [(ms, row) for ms, row in rows if ms > PRACTICAL * job.step_ms]
    if not rows:
        return []
    ms, row = max(rows, key=lambda one: one[0])
    nodes = sum(one.kind == "node" for one in job.blocks)
    where = f"the job has {nodes} nodes" if nodes else "the traces do not say how the GPUs are linked"
    usual, sent = row.one_node_us or 0.0, row.send_us or 0.0
    size = f" of {f.nbytes(row.bytes)}" if row.bytes else ""
    text = (
        f"{f.capital(row.collective)}{size} among {row.ranks} ranks sends {f.ms(sent / 1e3)}, "
        f"{sent / usual:.1f} times as long as NCCL takes in one node ({f.ms(usual / 1e3)}, published): "
        f"{f.ms(ms)} more per step, hidden time included; {where}."
    )
    return [text]


__all__ = ["slow_calls", "slow_sends"]
