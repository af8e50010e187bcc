"""What a rule hands to the engine: changes with their evidence, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tracelens.results import Estimate, GemmRow
from tracelens.results.advice import Effort, SavingCounts
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.facts import Outcome
from tracelens.words import Level

#: A saving or a bound below this share of the step is noise beside step-to-step variation: the check then
#: passes and says the figure.
WORTH_A_FINDING = 0.001


#: Do tensor-parallel ranks hold a part each of the dimension that changes?
Shared = Literal["no", "perhaps", "yes"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change and its evidence; the engine makes a finding of it, or says why it is none.

    What it saves is the rule's own prediction (``saving``), else the step simulated with ``simulate``, else
    nothing but the bound: the time of its rows above what they need.
    """

    title: str  # imperative, with exact values
    saw: str
    fix: Sequence[str]  # diff lines
    caveats: Sequence[str]
    confidence: Level
    effort: Effort
    change: Mapping[str, list[int | float | str]] = field(default_factory=dict)  # parameter -> [from, to]
    bounds: Sequence[Bound] = ()  # of the GEMM rows that it touches
    kernels: Mapping[str, float] = field(default_factory=dict)  # other rows -> ms per step that can go
    elsewhere_ms: float = 0.0  # per step, that can go outside of all rows: messages, kernels that move bytes
    bound_of: str = ""  # what the bound is, where it is not the time above the datasheet's floor
    simulate: Mapping[str, int] | None = None  # the change of the whole model as ``what_if`` takes it
    saving: Estimate | None = None  # ms per step
    how: str = ""  # the rule's own arithmetic with its numbers
    name: str = ""  # the change inside a sentence: "one product for q, k and v"
    why: str = ""  # the part of the page's "Why it costs" that says it; "" = the first
    gemms: Sequence[GemmRow] = ()  # rows to name though none of their time can go
    components: Sequence[str] = ()  # where they are not those of ``gemms`` or ``bounds``
    evidence: Mapping[str, Any] = field(default_factory=dict)
    parameter_delta: int | None = None
    flops_delta: float | None = None  # of the named GEMMs, as a fraction
    effects: Mapping[str, Any] | None = None  # fields of ``Effects`` that the rule knows better
    counts: SavingCounts = "all"  # "gemms", "kernels": other kernels or launches gain too, uncounted
    shared: Shared = "no"
    least: float = WORTH_A_FINDING  # share of the step below which it is no finding

    @property
    def bound_ms(self) -> float:
        """The most per step that it can save."""
        return sum(bound.ms for bound in self.bounds) + sum(self.kernels.values()) + self.elsewhere_ms


class Named(Protocol):
    """A rule's metadata."""

    @property
    def id(self) -> str: ...  # "TL101"
    @property
    def slug(self) -> str: ...  # "pad-vocabulary"
    @property
    def of_waits(self) -> bool: ...  # about time in which the GPU waits


class Answer(Exception):
    """A rule's answer without a candidate; raised, so that a rule reads from top to bottom."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


def passed(why: str) -> Answer:
    """All is well."""
    return Answer(Outcome("passed", why))


def not_applicable(why: str) -> Answer:
    """The step has nothing that the rule is about, or where it matters."""
    return Answer(Outcome("not_applicable", why))


def could_not_run(why: str) -> Answer:
    """The trace lacks what the rule needs."""
    return Answer(Outcome("could_not_run", why))


def absent(why: str, *, attention: bool = False) -> Answer:
    """What it is about was not seen; with ``attention`` it would be a part of attention."""
    return Answer(Outcome("not_applicable", why, absent=True, attention=attention))
