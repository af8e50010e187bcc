"""A value with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a step waits for. unknown: no step is marked, and the GPU idles for much of the trace.
StepBound = Literal["gpu", "cpu", "unknown"]
#: What a saving is one of. gpu_work: the step waits for something else, and gains between nothing and that.
SavingOf = Literal["step", "gpu_work"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A range and where it comes from. ``mid`` is None where only bounds are known."""

    low: float | None
    mid: float | None
    high: float | None
    basis: str  # measured | calibrated | model | heuristic


@dataclass(frozen=True, slots=True)
class Known:
    """A value with the evidence it was read from."""

    value: int | None
    source: str  # e.g. "shape of aten::addmm in 12 layers", or why it is not known
    per_rank: bool = False  # what one tensor-parallel rank holds; the whole model has more
