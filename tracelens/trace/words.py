"""What the reader says of a file: what of it is lost or mended, what it does not hold, PyTorch's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

#: An entry that is no event, an event that is no JSON, one that the file ends in, entries without a time.
DamageKind = Literal["no_event", "invalid", "incomplete", "no_time"]

AFTER_GZIP = "bytes after the end of the gzip data were ignored"
GZIP_CUT_OFF = "the gzip data is cut off"

NO_TIMES = "the trace holds none; 'tracelens capture' times steps before and after the profiler"
NO_READABLE_TIMES = "the trace has no readable step times beside the profiler's"

KERNEL_AFTER_LAUNCH = "a kernel starts after its cudaLaunchKernel"
WAIT_NAMES_RECORD = "a wait for an event names the record it waits for"
STREAM_IDLE = "no kernel runs on a stream that was waited for"
WAIT_AFTER_RECORD = "a wait for an event follows the record"
COLLECTIVE_COMPLETE = "a collective has its name, dtype, sizes and group"
ONE_BACKWARD = "a sequence number belongs to one backward function"
gzip_damaged = "the gzip data is damaged before byte {:,} of the file ({})".format
zstd_damaged = "the zstd data is damaged or cut off ({})".format
perfetto_damaged = "the Perfetto trace is cut off or damaged, {:,} bytes into its packets: {}".format
no_metadata = "the metadata {} the events could not be read".format
ends_early = (
    "the file ends before the event list does, at byte {:,} of its JSON: {:,} whole events before that "
    "were kept"
).format
listed_twice = "{:,} of {:,} GPU events are in the file twice, each was counted once".format


def damaged_place(at: int, length: int, reason: DamageKind, entries: int) -> str:
    """Of a stretch of the file that could not be read."""
    what = {
        "no_event": "an entry that is no event",
        "invalid": "an event that is not valid JSON",
        "incomplete": "an event that is not complete",
        "no_time": f"{entries} entr{'y' if entries == 1 else 'ies'} without a readable time",
    }[reason]
    return f"{what} ({length:,} bytes from byte {at:,})"


def damaged(places: Sequence[str], more: int) -> str:
    """Of the first places, and how many more there are."""
    return f"damaged, left out: {', '.join(places)}{f' and {more} more places' if more else ''}"


def mended(dropped: Mapping[str, int], longest: int) -> str:
    """Of values that are left out, by kind; the ``longest`` text in letters."""
    kinds = {
        "number": "numbers out of range",
        "text": "texts that are none",
        "long text": f"texts cut after {longest:,} letters",
        "character": "texts with control or broken characters",
        "shape": "shapes that cannot be",
        "launch": "launch sizes that cannot be",
        "duration": "durations over 13 days",
        "negative": "durations below 0",
        "metadata": "metadata nested too deep",
    }
    parts = ", ".join(f"{kinds[kind]} ({count:,})" for kind, count in dropped.items())
    return f"values that no trace can hold were left out or mended: {parts}"


def untimed(*, before: bool, after: bool, cut_short: bool) -> str | None:
    """Of a capture that timed no step before its window, or after it; None where it did both."""
    missing = [] if before else ["none before the window: capture with --wait 3 or more"]
    if not after:
        missing.append(f"none after the window: {'the run was cut short' if cut_short else 'train on'}")
    return "; ".join(missing) or None
