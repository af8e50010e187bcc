"""What is said of holistic-trace-analysis, and of what it did not find."""

from __future__ import annotations

MISSING = (
    "holistic-trace-analysis is not installed, which finds where the step waits: "
    'pip install "tracelens-gpu[hta]"'
)
NO_PATH = "holistic-trace-analysis found no path through the step"
NO_LAUNCH = "the recording holds no launch that holistic-trace-analysis counts"
NO_HOST_EVENTS = "the recording holds no host events to follow"


def missing(module: str | None) -> str:
    """The library is not installed, or a module that it needs."""
    return MISSING + (f" (it lacks {module})" if module else "")


def failed(version: str, error: str) -> str:
    """The library raised an error of this kind."""
    return f"holistic-trace-analysis {version} failed on it ({error})"


def too_many_events(events: int) -> str:
    """A step that takes the library too long."""
    return f"the step has {events:,} events, too many to follow"


def tool(version: str) -> str:
    """The library with its version."""
    return f"holistic-trace-analysis {version}"
