"""What a gate can ask for: a named figure, in the units it is known in, as a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from tracelens.results import Estimate

T = TypeVar("T")

#: What can be said of a figure. ``report``: a reason that the report gives itself.
Code = Literal[
    "at_stake_unknown", "beyond", "bound", "clocks_apart", "component_unseen", "could_not_run",
    "different_models", "drift_left_out", "end_unknown", "few_steps", "gpu_work", "judged_by",
    "messages_unknown", "most_of_components", "most_of_pairs", "no_collective", "no_component", "no_gemm",
    "no_marked_step", "no_pair_slower", "no_rule_judged", "no_step", "no_whole_step", "not_checked",
    "not_compared", "not_in_this_unit", "not_known", "not_run", "not_tested", "one_step", "overhead_hidden",
    "partial", "ranks_missing", "reaches_beyond", "recognised_only", "report", "same_trace", "saving_unknown",
    "unprofiled_unknown", "untold", "untold_components", "within_noise",
]  # fmt: skip

#: What a figure is, and how its unit is written in the tables of the documentation.
FORMS = {"share": "%", "time": "ms", "count": "a number", "rate": "TFLOP/s", "bytes": "MB"}


@dataclass(frozen=True, slots=True)
class Range:
    """A figure and how far it can be off. ``mid`` None: a bound, or a prediction without a middle.

    ``measured``: the middle is a measurement and decides. Of a prediction, the whole range does.
    """

    low: float
    mid: float | None
    high: float
    measured: bool
    least: bool = False  # ``low`` is a lower bound of a measurement, and nothing bounds it from above


def exact(value: float) -> Range:
    """A figure that is known."""
    return Range(value, value, value, True)


def shares(time: Range, whole_ms: float) -> dict[str, Range]:
    """A time as a range, and as a share of the whole; the time alone where that is nothing."""
    if not whole_ms:
        return {"time": time}
    mid = None if time.mid is None else time.mid / whole_ms
    return {"time": time, "share": Range(time.low / whole_ms, mid, time.high / whole_ms, time.measured)}


def recognised(value: float, *, least: bool) -> Range:
    """A measured figure, or the part of it that was recognised."""
    return Range(value, None, math.inf, False, True) if least else exact(value)


def predicted(estimate: Estimate) -> Range | None:
    """An estimate; None where it holds no number."""
    known = [one for one in (estimate.low, estimate.mid, estimate.high) if one is not None]
    if not known or not all(map(math.isfinite, known)):
        return None
    low = 0.0 if estimate.low is None and estimate.mid is None else min(known)
    return Range(low, estimate.mid, max(known), False)


@dataclass(frozen=True, slots=True)
class Remark:
    """What to know of a figure, or why it is not known: ``render/gates.py`` has the words."""

    code: Code
    values: Mapping[str, Any] = field(default_factory=dict)


def remark(code: Code, **values: Any) -> Remark:
    return Remark(code, values)


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure in its forms ("share", "time", ...); what is missing has its reason in ``why``."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    why: Remark | None = None
    notes: Sequence[Remark] = ()  # what to know about it, e.g. that it is a bound


def unknown(code: Code, **values: Any) -> Reading:
    """A figure that this trace does not give."""
    return Reading(why=Remark(code, values))


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """A figure by its name. With ``choices`` it is one of many: ``component[logits]``."""

    name: str
    forms: tuple[str, ...]
    meaning: str
    read: Callable[[T, str], Reading]  # of a report or comparison, with the choice or ""
    signed: bool = False  # a change: it can be below zero
    choices: tuple[str, ...] = ()
    choice: str = ""  # what stands in the brackets: "COMPONENT"

    @property
    def shown(self) -> str:
        return f"{self.name}[{self.choice}]" if self.choices else self.name

    @property
    def units(self) -> str:
        return " or ".join(FORMS[form] for form in self.forms)
