"""What ``tracelens verify`` says of the file that it reads, and of the GPU that it measures on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.numbers import ms

WRITE_ONE = "write one with `tracelens analyze TRACE --json REPORT.json`"
CPU = "a CPU"
UNKNOWN_GPU = "an unknown GPU"

# --- what the file holds ------------------------------------------------------------------------------

no_suggestion = "{} has no suggestion to verify: no shape was surely faster".format


def what_if(change: Mapping[str, Sequence[object]]) -> str:
    """The title of a scenario: names, each from and to what."""
    told = ", ".join(f"{name} {now} → {then}" for name, (now, then) in change.items())
    return f"what if {told or 'nothing changes'}"


def no_json(name: str, error: Exception, *, page: bool, packed: bool) -> str:
    """A file that is no report, and what it is, where that shows."""
    what = f"is no whole JSON ({error})"
    if page:
        what = "is a page, not the report's JSON"
    elif packed:
        what = "is no whole JSON but packed or binary"
    return f"{name} {what}: {WRITE_ONE}"


def no_finding(name: str, step_ms: float | None) -> str:
    """A report in which nothing is to be changed."""
    step = f" of {ms(step_ms)}" if step_ms is not None else ""
    return (
        f"{name} has no finding to verify: its checks found nothing to change in the step{step}. To have a"
        " change of your own measured: `tracelens analyze TRACE --what-if NAME=NUMBER --json REPORT.json`"
    )


# --- how the GPU at hand is another than the file's ---------------------------------------------------

other_device = "{} is of {}, and this is {}".format
other_sms = "{} is of {} multiprocessors of {}, and this one has {}".format
other_memory = "{} is of the GPU {} with {:.1f} GiB, and this one has {:.1f}".format
