"""A value with where it comes from, and arithmetic in which what is unknown stays so; what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, get_args

from tracelens.results.described import says

#: Where an estimate comes from, strongest first.
Basis = Literal["measured", "calibrated", "model", "heuristic"]
BASES: tuple[Basis, ...] = get_args(Basis)

#: What a step waits for. unknown: no step is marked, and the GPU idles for much of the trace.
StepBound = Literal["gpu", "cpu", "unknown"]
#: What a saving is one of. gpu_work: the step waits for something else, and gains between nothing and that.
SavingOf = Literal["step", "gpu_work", "wait"]


def weakest(bases: Iterable[Basis]) -> Basis:
    """The basis of what rests on all of these.

    >>> weakest(["measured", "model", "calibrated"])
    'model'
    """
    return max(bases, key=BASES.index)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A range and where it comes from. ``mid`` is None where only bounds are known."""

    low: float | None
    mid: float | None
    high: float | None
    basis: Basis

    @classmethod
    def exactly(cls, value: float, basis: Basis = "measured") -> Self:
        """A value without a range."""
        return cls(value, value, value, basis)

    @classmethod
    def unknown(cls, basis: Basis = "model") -> Estimate:
        """Neither a value nor a bound."""
        return cls(None, None, None, basis)

    @property
    def size(self) -> float | None:
        """The middle, or the high end where only bounds are known: what estimates are ordered by."""
        return self.mid if self.mid is not None else self.high

    @property
    def known(self) -> Span | None:
        """The same where all of it is known."""
        if self.low is None or self.mid is None or self.high is None:
            return None
        return Span(self.low, self.mid, self.high, self.basis)

    def __add__(self, other: Estimate | float) -> Estimate:
        """Ends add to ends, as for errors that share their cause, and the weakest basis names the sum.

        An end that is unknown on one side is unknown in the sum. Differences go by the same rule.

        >>> Estimate(1.0, 2.0, 3.0, "calibrated") + Estimate(0.0, None, 1.5, "heuristic")
        Estimate(low=1.0, mid=None, high=4.5, basis='heuristic')
        >>> 10.0 - Estimate(1.0, 2.0, 3.0, "model")
        Estimate(low=7.0, mid=8.0, high=9.0, basis='model')
        """
        if not isinstance(other, Estimate):
            return self.each(lambda value: value + other)
        return Estimate(
            None if self.low is None or other.low is None else self.low + other.low,
            None if self.mid is None or other.mid is None else self.mid + other.mid,
            None if self.high is None or other.high is None else self.high + other.high,
            weakest((self.basis, other.basis)),
        )

    __radd__ = __add__

    def __neg__(self) -> Self:
        return self * -1.0

    def __sub__(self, other: Estimate | float) -> Estimate:
        return self + -other

    def __rsub__(self, other: float) -> Estimate:
        return -self + other

    def __mul__(self, factor: float) -> Self:
        """Every end times ``factor``; below zero the ends change places.

        >>> Estimate(None, 2.0, 3.0, "model") * -2.0
        Estimate(low=-6.0, mid=-4.0, high=None, basis='model')
        """
        found = self.each(lambda value: value * factor)
        return found if factor >= 0 else replace(found, low=found.high, high=found.low)

    __rmul__ = __mul__

    def over(self, whole: float | None) -> Estimate:
        """The share of ``whole``; unknown where that is unknown or nothing.

        >>> Estimate(1.0, None, 3.0, "model").over(4.0)
        Estimate(low=0.25, mid=None, high=0.75, basis='model')
        """
        return self.each(lambda value: value / whole) if whole else Estimate.unknown(self.basis)

    def clamp(self, *, low: float | None = None, high: float | None = None) -> Self:
        """No known end below ``low`` or above ``high``.

        >>> Estimate(-1.0, 2.0, None, "model").clamp(low=0.0, high=1.5)
        Estimate(low=0.0, mid=1.5, high=None, basis='model')
        """

        def within(value: float) -> float:
            value = value if high is None else min(value, high)
            return value if low is None else max(value, low)

        return self.each(within)

    def each(self, change: Callable[[float], float]) -> Self:
        """``change``, which keeps the order of its values, of every end that is known."""
        return replace(
            self,
            low=None if self.low is None else change(self.low),
            mid=None if self.mid is None else change(self.mid),
            high=None if self.high is None else change(self.high),
        )


@dataclass(frozen=True, slots=True)
class Span(Estimate):
    """An estimate of which all is known: what a predicted part of a step is."""

    low: float
    mid: float
    high: float

    def joined(self, other: Span) -> Span:
        """Their sum, by the rules of ``+``."""
        basis = weakest((self.basis, other.basis))
        return Span(self.low + other.low, self.mid + other.mid, self.high + other.high, basis)


def total(parts: Iterable[Estimate]) -> Estimate:
    """Their sum, by the rules of ``+``; nothing is exactly nothing.

    >>> total([Estimate(1.0, 2.0, 3.0, "calibrated"), Estimate(0.0, 1.0, 1.5, "model")])
    Estimate(low=1.0, mid=3.0, high=4.5, basis='model')
    """
    return sum(parts, Estimate.exactly(0.0))


@dataclass(frozen=True, slots=True)
class Known:
    """A value with the evidence it was read from."""

    value: int | None
    source: Annotated[str, says('e.g. "shape of aten::addmm in 12 layers", or why it is not known')]
    per_rank: Annotated[bool, says("what one tensor-parallel rank holds; the whole model has more")] = False
    whole: Annotated[
        int | None, says("where per_rank: what all ranks hold together; null where nothing tells")
    ] = None


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
