"""Every stage, in order of value: what comes first is collected first when minutes are short."""

from __future__ import annotations

from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stages.captures import CAPTURES, MORE_CAPTURES
from benchmarks.gpu.stages.overhead import OVERHEAD

STAGES: tuple[Stage, ...] = (
    CAPTURES,
    OVERHEAD,
    MORE_CAPTURES,
)


def find_stage(name: str) -> Stage | None:
    return next((stage for stage in STAGES if stage.name == name), None)
