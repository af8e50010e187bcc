"""How the step time moves with each hyper-parameter, and where it has cliffs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tracelens.results import words
from tracelens.results.described import same_length, says
from tracelens.results.estimates import Basis, SavingOf


@dataclass(frozen=True, slots=True)
class Suggested:
    """A value that a finding proposes."""

    value: int
    rule: Annotated[str, says('"TL101"')]


@dataclass(frozen=True, slots=True)
class Curve:
    """Predicted step time against one hyper-parameter, the others as they are. Columns, by value.

    At ``now`` it is the measured median step. Where the tokens of a step change with the parameter
    (``per_token``), the time is that of as many tokens as the step has now.
    """

    parameter: str
    now: int
    per_token: bool
    values: list[int]
    low_ms: list[float | None]
    mid_ms: Annotated[list[float | None], says("None: no prediction for this value")]
    high_ms: list[float | None]
    alignment_bytes: Annotated[
        list[int],
        says("of rows of so many elements, at most 128; empty where the parameter is no length of a row"),
    ] = field(default_factory=list)
    suggested: list[Suggested] = field(default_factory=list)
    follows: Annotated[str, says("what changes with it")] = ""
    basis: Annotated[Basis, says("of the times away from now")] = "model"
    notes: list[str] = field(default_factory=list)
    why: Annotated[str | None, says("why there is no curve; the columns are empty then")] = None
    saving_of: Annotated[
        SavingOf, says("gpu_work: the times are of the GPU's work, without its idle time")
    ] = "step"

    def __post_init__(self) -> None:
        same_length(values=self.values, low_ms=self.low_ms, mid_ms=self.mid_ms, high_ms=self.high_ms)
        if self.alignment_bytes:
            same_length(values=self.values, alignment_bytes=self.alignment_bytes)
        if self.values and not {self.now, *(one.value for one in self.suggested)} <= {*self.values}:
            raise ValueError("now or a suggested value is none of values")
        if self.why is None and all(time is None for time in self.mid_ms):
            raise ValueError("a curve without times has no reason")


@dataclass(frozen=True, slots=True)
class Explorer:
    """One curve for each hyper-parameter that the step's formulas know."""

    curves: list[Curve] = field(default_factory=list)
    why: Annotated[str | None, says("why there is none")] = words.NOT_HELD
