"""Calls of a row that stalled: what they took beyond the others is no time of the shape.

One call of 2.44 ms among calls of 10 µs waited for something: a first launch, a clock that was low, another
process. No change of shape or precision gives that time back, so advice is made from the other calls.
"""

from __future__ import annotations

from dataclasses import replace

from tracelens.numbers import ms, plural, sig
from tracelens.results import GemmRow


def to_judge(row: GemmRow) -> GemmRow:
    """The row as advice counts it: its stalled calls take as long as its median call."""
    if not row.stall_ms_per_step:
        return row
    time_ms = max(0.0, row.time_ms_per_step - row.stall_ms_per_step)
    return replace(row, time_ms_per_step=time_ms, stall_ms_per_step=0.0)


def call_us_of(row: GemmRow) -> float:
    """Time of one call of the step, to judge its shape by; 0 without calls."""
    return 1e3 * to_judge(row).time_ms_per_step / row.calls_per_step if row.calls_per_step > 0 else 0.0


def stalled(row: GemmRow) -> str:
    """That calls of the row stalled, as a sentence without its full stop; "" where none did."""
    if not row.stalls:
        return ""
    slowest = f"took {ms((row.slowest_us or 0.0) / 1e3)}"
    if row.stalls > 1:
        slowest = f"took {ms((row.median_us or 0.0) / 1e3 + row.stall_ms / row.stalls)} on average"
    return (
        f"{row.stalls} of {plural(row.calls, 'call')} {slowest}, the others {sig(row.median_us)} µs:"
        " a stall, not the shape"
    )
