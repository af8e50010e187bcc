"""Rows of communication, made up."""

# ruff: noqa: C408 - dict(...) reads better for rows of made-up facts
from __future__ import annotations

from typing import Any

from tracelens.results import CommunicationRow


def message(collective: str = "all_reduce", **given: Any) -> CommunicationRow:
    """Messages of one group and purpose; ``exposed`` and ``time`` in ms per step."""
    exposed, time = given.pop("exposed", 4.0), given.pop("time", 5.0)
    fields: dict[str, Any] = dict(
        collective=collective, group="mesh_tp", group_size=4, purpose="tensor parallel",
        evidence="annotation", why="made up", phase="forward", dtype="bf16", calls=64, calls_per_step=64.0,
        bytes_per_call=None, time_ms=time, exposed_ms=exposed, hidden_ms=time - exposed,
        time_ms_per_step=time, exposed_ms_per_step=exposed, hidden_ms_per_step=time - exposed,
        algorithm_gbps=150.0, bus_gbps=200.0,
    )  # fmt: skip
    return CommunicationRow(**(fields | given))
