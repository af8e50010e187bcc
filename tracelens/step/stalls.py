"""Calls of a row that stalled or ran beside other streams: what they took more is no time of the shape.

One call of 2.44 ms among calls of 10 µs waited for something: a first launch, a clock that was low, another
process. No change of shape or precision gives that time back, so advice is made from the other calls. The
same holds for what a collective on another stream takes of the SMs and the bandwidth (``GemmRow.beside``).
"""

from __future__ import annotations

from dataclasses import replace

from tracelens.results import GemmRow
from tracelens.step.words import simulation as words

_MUCH = 0.1  # of a row's time


def to_judge(row: GemmRow) -> GemmRow:
    """The row as advice counts it: as if no call stalled, and all ran beside nothing."""
    taken = row.stall_ms_per_step + row.overlap_ms_per_step
    if not taken:
        return row
    time_ms = max(0.0, row.time_ms_per_step - taken)
    frac = row.frac * time_ms / row.time_ms_per_step if row.time_ms_per_step else row.frac
    return replace(row, time_ms_per_step=time_ms, frac=frac, stall_ms_per_step=0.0, overlap_ms_per_step=0.0)


def call_us_of(row: GemmRow) -> float:
    """Time of one call of the step, to judge its shape by; 0 without calls."""
    return 1e3 * to_judge(row).time_ms_per_step / row.calls_per_step if row.calls_per_step > 0 else 0.0


def untold_alone(row: GemmRow) -> bool:
    """Did much of the row run beside communication, and too little beside nothing to tell what it takes?"""
    found = row.beside
    return found is not None and found.excess_ms is None and found.communication_ms >= _MUCH * row.time_ms


def stalled(row: GemmRow) -> str:
    """That calls of the row stalled, as a sentence without its full stop; "" where none did."""
    if not row.stalls:
        return ""
    if row.median_us is None or row.slowest_us is None:  # a saved report need not hold them
        return words.stalled(row.stalls, row.calls)
    took_ms = row.slowest_us / 1e3 if row.stalls == 1 else row.median_us / 1e3 + row.stall_ms / row.stalls
    return words.stalled_for(row.stalls, row.calls, took_ms, row.median_us)
