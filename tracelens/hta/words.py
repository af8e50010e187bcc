"""What is said of holistic-trace-analysis, and of what it did not find."""

from __future__ import annotations

MISSING = (
    "holistic-trace-analysis is not installed, which finds where the step waits: "
    'pip install "tracelens-gpu[hta]"'
)
NO_PATH = "holistic-trace-analysis found no path through the step"
NO_LAUNCH = "the recording holds no launch that holistic-trace-analysis counts"
NO_HOST_EVENTS = "the recording holds no host events to follow"
failed = "holistic-trace-analysis {} failed on it ({})".format
too_many_events = "the step has {:,} events, too many to follow".format
tool = "holistic-trace-analysis {}".format


def missing(module: str | None) -> str:
    """The library is not installed, or a module that it needs."""
    return MISSING + (f" (it lacks {module})" if module else "")
