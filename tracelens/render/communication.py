"""The section of communication: every collective, what it serves, and how much is exposed or slow."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens import numbers as f
from tracelens.accounting.slow_calls import SENDING, slow_calls_of
from tracelens.comparison.step_change import PRACTICAL
from tracelens.render import facts
from tracelens.render.section import Content, Page, Section
from tracelens.results import Report
from tracelens.results.job import Job
from tracelens.results.step import CommunicationRow

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
    slow = slow_calls_of(row, report.gpu.name)
    if slow is None or row.bytes_per_call is None:
        return
    ranks, best = row.group_size, row.best_bus_gbps
    text = (
        f"{row.kind}, {f.nbytes(round(row.bytes_per_call))} among {ranks} ranks: {f.sig(row.bus_gbps)} GB/s"
        f" of bus bandwidth, {f.ms(slow.us / 1e3)} a call, {slow.us / slow.usual_us:.1f} times the"
        f" {f.ms(slow.usual_us / 1e3)} ({f.sig(slow.usual_gbps)} GB/s) that NCCL was published to take among"
        f" {ranks} {report.gpu.title} of one node. "
    )
    if slow.waiting_ms is not None:
        yield text + (
            f"The fastest of its calls reaches {f.sig(best)} GB/s, so the links are that fast, and at least "
            f"{f.ms(slow.waiting_ms)} of {f.ms(row.time_ms_per_step)} is waiting for other ranks: the traces "
            "of all ranks together say for which."
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
        (
            row.calls_per_step / row.groups * (row.send_us - row.one_node_us) / 1e3,
            row,
            row.one_node_us,
            row.send_us,
        )
        for row in job.collectives
        if row.send_us and row.one_node_us and row.send_us > SENDING * row.one_node_us
    ]
    rows = [one for one in rows if one[0] > PRACTICAL * job.step_ms]
    if not rows:
        return []
    ms, row, usual, sent = max(rows, key=lambda one: one[0])
    nodes = sum(one.kind == "node" for one in job.blocks)
    where = f"the job has {nodes} nodes" if nodes else "the traces do not say how the GPUs are linked"
    size = f" of {f.nbytes(row.bytes)}" if row.bytes else ""
    text = f"{f.capital(row.collective)}{size} among {row.ranks} ranks sends {f.ms(sent / 1e3)}"
    if job.missing:
        where = "slow links, or waiting for ranks without a trace"
        text = (
            f"From the last traced rank's arrival, {row.collective}{size} among {row.ranks} ranks takes"
            f" {f.ms(sent / 1e3)}"
        )
    text += f", {sent / usual:.1f} times as long as NCCL takes in one node ({f.ms(usual / 1e3)}, published)"
    return [f"{text}: {f.ms(ms)} more per step, hidden time included; {where}."]


CALLS = 24  # rows shown
SEEN = 6  # of them before the rest is folded


def _content(page: Page) -> Content | None:
    calls = page.report.communication
    if not calls:
        return None
    return {
        "note": facts.communication_line(page.report),
        "slow": slow_calls(page.report),
        "calls": calls[:SEEN],
        "more": calls[SEEN:CALLS],
        "left": len(calls[CALLS:]),
        "rest_ms": sum(row.time_ms_per_step for row in calls[CALLS:]),
    }


SECTION = Section("communication", "Communication", _content, leads=("exposed",))
