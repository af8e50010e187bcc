"""The frames of holistic-trace-analysis as values of a report."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from tracelens.hta import words
from tracelens.hta.frames import WaitFrames
from tracelens.hta.library import LibraryMissing
from tracelens.results import IdleCause, PathPart, QueueLength, Waits


def report_waits(frames: Callable[[], WaitFrames], *, steps: int) -> Waits:
    """Per step of ``steps``; where the library is not installed, why there is nothing."""
    try:
        found = frames()
    except LibraryMissing as error:
        return Waits(why=str(error))
    times: dict[str, Any] = dict(found.temporal.iloc[0]) if len(found.temporal) else {}
    overlap = times.get("overlap_frac", math.nan)
    return Waits(
        tool=words.tool(found.version),
        **{
            name: float(times[name]) / steps if name in times else None
            for name in ("idle_ms", "compute_ms", "non_compute_ms")
        },
        overlap_frac=float(overlap) if math.isfinite(overlap) else None,
        idle=[
            IdleCause(
                int(row.device), int(row.stream), row.cause, float(row.time_ms) / steps, float(row.frac)
            )
            for row in _rows(found.idle)
        ],
        queue=[
            QueueLength(
                int(row.device),
                int(row.stream),
                int(row.launches),
                float(row.mean),
                float(row.median),
                int(row.highest),
            )
            for row in _rows(found.queue)
        ],
        queued_frac=found.queued_frac,
        path=[PathPart(str(row.bound_by), float(row.time_ms), float(row.frac)) for row in _rows(found.path)],
        path_step=found.path_step.index if found.path_step else None,
        path_of_ms=found.path_step.duration_ms if found.path_step else None,
        blocked_ms=found.blocked_ms if found.path_step else None,
        missing=dict(found.missing),
        why=None,
    )


def _rows(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples(index=False))
