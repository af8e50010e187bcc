"""What a finding says where the step waits for the CPU (``tracelens.results.waiting`` decides that)."""

from __future__ import annotations

from tracelens.numbers import percent


def gpu_work_note(busy: float) -> str:
    """What to know about a saving of GPU work, as a sentence without capital and full stop."""
    return (
        f"the GPU is idle {percent(1 - busy)} of the time: where it waits for the CPU, a shorter kernel"
        " leaves a longer gap and not a shorter step"
    )
