"""What limits the step where GEMM shapes do not: cards, read by page, terminal and Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens import numbers as f
from tracelens.accounting.limits import LARGE, LITTLE, byte_times, limits, picture_of
from tracelens.render import remedies, waits
from tracelens.render.section import Content, Page, Section
from tracelens.render.verdict import profiled_steps, verdict
from tracelens.results import CommunicationRow, Report
from tracelens.results.step import LimitedBy
from tracelens.results.waits import idle_ms, mean_ms
from tracelens.words import per_step

_KINDS = 3  # kinds of communication named
_NAMED = 4  # components named where memory limits the step
#: Of idle time: from here on loading data is the first thing to do.
_LOADS = 0.25
_TO_FIND = 'run "tracelens analyze FOLDER" on a folder of the traces of all ranks.'


@dataclass(frozen=True, slots=True)
class Card:
    """What limits the step, as a finding reads: claim, what was seen, why, what to do, how it is known."""

    code: LimitedBy
    title: str
    claim: str
    saw: list[str]
    why: str
    todo: list[str]
    how: str


def cards(report: Report) -> list[Card]:
    """Of ``summary.limited_by``, and of another large wait; none where shapes limit the step."""
    first = report.summary.limited_by
    if first not in _CARDS:
        return []
    found = limits(picture_of(report))
    waits_ms = {"idle": found.idle_ms, "exposed": found.exposed_ms}
    large = [one for one, time_ms in waits_ms.items() if one != first and time_ms >= LARGE * found.step_ms]
    return [_CARDS[one](report) for one in (first, *large)]


def _part(time_ms: float, report: Report) -> str:
    """A time per step with its share of the mean step, which idle and exposed time are means over."""
    whole_ms = mean_ms(report.summary)
    return f"{f.ms(time_ms)}{_per(report)} ({f.pct(time_ms / whole_ms)})" if whole_ms else f.ms(time_ms)


def _per(report: Report) -> str:
    return f" {per_step(report.summary.steps_marked)}"


def _steps(report: Report) -> str:
    many = len(report.steps)
    return f"mean of {many} steps" if many > 1 else "one step"


def _exposed(report: Report) -> Card:
    exposed_ms = report.summary.exposed_communication_ms
    rows = [row for row in report.communication if row.exposed_ms_per_step > 0]
    kinds: dict[str, list[CommunicationRow]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    sums = {
        kind: (sum(row.exposed_ms_per_step for row in same), sum(row.time_ms_per_step for row in same))
        for kind, same in kinds.items()
    }
    order = sorted(kinds, key=lambda one: -sums[one][0])
    saw = [f"{one}: {f.ms(sums[one][0])} of {f.ms(sums[one][1])} exposed." for one in order[:_KINDS]]
    seen = picture_of(report)
    if late := seen.waits_for_rank:
        if seen.small_ms:
            saw.append(
                f"{f.ms(seen.small_ms)} of the {f.ms(exposed_ms)} is in messages below 64 kB: waiting for"
                " other ranks, as they are sent within microseconds."
            )
        if seen.slow_ms:
            saw.append(
                f"At least {f.ms(seen.slow_ms)} is beyond what large messages take at the pace of the fastest"
                " call: waiting for other ranks, or a link that was slow meanwhile."
            )
    hides = remedies.hides(kinds[order[0]][0]) if order else []
    find = f"{f.capital(remedies.FIND_RANK)}: {_TO_FIND}"
    hideable_ms = seen.hideable_ms
    part = _part(exposed_ms, report)
    claim = f"at most {part}"
    if report.summary.communication_is_bound:
        claim = f"at least {part}; at most what was recognised can be saved"
    if not late and hideable_ms < exposed_ms:
        claim = (
            f"{part}; overlap saves at most {f.ms(hideable_ms)}: there is no more compute to hide it behind"
        )
    return Card(
        "exposed",
        "Exposed communication",
        claim,
        saw,
        "A collective ends when its slowest rank arrives; kernels that need its result wait, and the GPU"
        " computes nothing.",
        [find, *hides] if late else [*hides, find],
        f"Measured: a communication kernel runs and no compute kernel does, {_steps(report)}.",
    )


def _idle(report: Report) -> Card:
    summary, found = report.summary, report.waits
    launched = [row for row in report.components if row.component != "communication"]
    kernels = sum(row.kernels_per_step for row in launched)
    saw = []
    if kernels:
        mean_us = 1e3 * sum(row.time_ms_per_step for row in launched) / kernels
        besides = " besides communication" * (len(launched) < len(report.components))
        gap = f.sig(picture_of(report).gap_us)
        saw.append(
            f"{f.count(round(kernels))} kernels per step{besides}, {f.sig(mean_us)} µs each on average, and"
            f" {gap} µs of idle time for each."
        )
    saw += waits.lines(report)[1:] if found.why is None else []
    picture = picture_of(report)
    seen = picture.waits
    loads = next((part.frac for part in found.path if part.bound_by == "data_loading"), 0.0)
    loader = "Load data ahead of the step: more DataLoader workers, pin_memory=True, non_blocking copies."
    fewer = f"Launch fewer kernels: {remedies.LAUNCH_LESS}."
    todo = [
        fewer,
        "Take what waits for the GPU out of the step: .item(), .cpu(), print of a tensor, synchronize().",
    ]
    if loads >= _LOADS or any(one.evidence["kind"] in ("data", "workers") for one in seen):
        todo.insert(0, loader)
    if summary.idle_in is not None:
        saw.append(f"For {f.ms(summary.idle_in_ms)} of it the CPU is in `{summary.idle_in}`.")
        todo.insert(0, f"{f.capital(remedies.SHORTEN.format(f'`{summary.idle_in}`'))}.")
    elif not found.asked and not seen:
        todo.insert(1, "Find the cause: tracelens analyze TRACE --waits.")
    if picture.launches_wait:
        todo.remove(fewer)
        todo += [] if picture.has_graphs else [fewer]
    without_ms = summary.unprofiled.median_ms
    slows = profiled_steps(picture)
    profiled = (
        ("" if slows in verdict(picture).detail else f" {slows}")
        if without_ms is None
        else f" A step takes {f.ms(without_ms)} without the profiler, so {f.ms(idle_ms(summary))} of idle"
        " time is not the profiler's."
    )
    part = _part(summary.idle_ms, report)
    claim = (
        f"at most {part}" if without_ms is None else f"{part}; at most {f.ms(idle_ms(summary))} can be saved"
    )
    return Card(
        "idle",
        "The GPU waits for the CPU",
        claim,
        saw,
        "An idle GPU has nothing to run: the CPU launches too slowly, loads data, or waits for the GPU. While"
        " it does, shorter kernels leave longer gaps, not a shorter step.",
        todo,
        f"Measured: no GPU event of any kind runs, {_steps(report)}.{profiled}",
    )


def _memory(report: Report) -> Card:
    seen = picture_of(report)
    found = limits(seen)
    times = sorted(byte_times(seen), key=lambda one: -one[1])[:_NAMED]
    saw = [f"{name}: {f.ms(time)}." for name, time in times if time > 0]
    if found.slow_ms > LITTLE * found.gpu_ms:
        saw.append(f"GEMMs limited by memory or by a kernel's fixed cost: {f.ms(found.slow_ms)}.")
    fused = remedies.fusing([name for name, time in times if time > 0], seen.checks)
    todo = [f"Replace them: {fused}."] if fused else []
    if found.slow_ms > found.bytes_ms:
        todo.insert(0, "Give GEMMs more rows per call: a larger micro-batch where memory allows it.")
    return Card(
        "memory",
        "Memory-bound kernels",
        f"{f.ms(found.memory_ms)} of {f.ms(found.gpu_ms)} GPU time{_per(report)}; saving not predicted",
        saw,
        "These kernels read and write more than they compute: memory bandwidth or their own start limits"
        " them, not the shape of a GEMM.",
        todo,
        "Kernels that only move bytes, and GEMMs whose bound is memory or latency, take"
        f" {f.pct(found.memory_ms / (found.gpu_ms or 1.0))} of GPU time.",
    )


_CARDS = {"exposed": _exposed, "idle": _idle, "memory": _memory}


def _content(page: Page) -> Content | None:
    found = cards(page.report)
    return {"cards": found} if found else None


SECTION = Section("limit", "What costs time besides GEMM shapes", _content, folds=False)
