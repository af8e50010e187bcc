"""What a gate can ask for: a named figure, in the units it is known in, as a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tracelens import numbers as f
from tracelens.results import Estimate

T = TypeVar("T")

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


def recognised(value: float, *, least: bool) -> Range:
    """A measured figure, or the part of it that was recognised."""
    return Range(value, None, math.inf, False, True) if least else exact(value)


def predicted(estimate: Estimate, *, scale: float = 1.0) -> Range | None:
    """An estimate times ``scale``; None where it holds no number."""
    known = [one for one in (estimate.low, estimate.mid, estimate.high) if one is not None]
    if not known or not all(map(math.isfinite, known)):
        return None
    low = 0.0 if estimate.low is None and estimate.mid is None else min(known)
    mid = None if estimate.mid is None else estimate.mid * scale
    return Range(low * scale, mid, max(known) * scale, False)


@dataclass(frozen=True, slots=True)
class Reading:
    """A figure in its forms ("share", "time", ...); what is missing has its reason in ``why``."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    why: str = ""
    note: str = ""  # what to know about it, e.g. that it is a bound


def unknown(why: str) -> Reading:
    """A figure that this trace does not give."""
    return Reading(why=why)


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


def say(value: float, form: str, *, signed: bool = False) -> str:
    """Write a figure.

    >>> say(0.0731, "share"), say(3, "count"), say(-2.5, "time", signed=True), say(0, "share", signed=True)
    ('7.3%', '3', '−2.50 ms', '±0%')
    """
    if not signed:
        return _size(value, form)
    if value == 0 or (form == "share" and abs(value) < 0.0005):
        return "±0%" if form == "share" else _size(0.0, form)
    return ("+" if value > 0 else "−") + _size(abs(value), form)


def _size(value: float, form: str) -> str:
    if math.isinf(value):
        return "∞"
    if form == "share":
        return f.pct(value)
    if form == "time":
        return f.ms(value)
    if form == "bytes":
        return f.nbytes(round(value))
    return f.count(value) if form == "count" else f"{f.sig(value)} TFLOP/s"


def say_range(found: Range, form: str, *, signed: bool = False) -> str:
    """Write a figure with its range.

    >>> say_range(Range(0.02, 0.05, 0.08, False), "share"), say_range(Range(0, None, 0.08, False), "share")
    ('5.0% (2.0% to 8.0%)', '0% to 8.0%')
    """
    if found.least:
        return f"≥ {say(found.low, form, signed=signed)}"
    ends = [say(end, form, signed=signed) for end in (found.low, found.high)]
    if found.mid is None:
        return " to ".join(ends)
    middle = say(found.mid, form, signed=signed)
    return middle if ends == [middle, middle] else f"{middle} ({' to '.join(ends)})"
