"""What a step costs, and what a finding saves, in units that a budget is kept in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tracelens.results.described import says
from tracelens.results.estimates import Estimate


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU for one hour."""

    per_gpu_hour: float
    currency: Annotated[str, says('as it was given: "EUR", "$"; "" where only a number was')] = ""


@dataclass(frozen=True, slots=True)
class Saving:
    """Of 1000 steps of the whole job, when every rank saves as much. ``mid`` None: only a bound is known."""

    gpu_hours: Estimate
    money: Annotated[Estimate | None, says("None without a price")] = None


@dataclass(frozen=True, slots=True)
class JobCost:
    """Of 1000 steps of the whole job: GPU-hours = ms per step x GPUs x 1000 / 3.6e6.

    ``gpu_hours`` None: the trace holds no step whose cost could be told; ``why`` says so.
    """

    gpus: int
    gpus_source: Annotated[
        str, says("where the number of GPUs is from, or that it is not known and one is counted")
    ]
    gpu_hours: Annotated[float | None, says("of the profiled step, as every figure of the report is")]
    unprofiled_gpu_hours: Annotated[float | None, says("of the steps that ran without the profiler")] = None
    saving: Annotated[
        Saving | None,
        says("of all findings together, which is no sum; None without one, and where only GPU work is saved"),
    ] = None
    price: Price | None = None
    money: float | None = None
    unprofiled_money: float | None = None
    why: str | None = None
