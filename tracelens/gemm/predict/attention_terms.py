"""Writes the derivation of an attention prediction: lines that a reader can redo.

Like ``derivation`` for a product: a formula is plain arithmetic with ceil, min and max, what is looked up or
counted stands as its number, and values carry seven digits, with which the next formula goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelens.gemm.predict.derivation import Term
from tracelens.results import Estimate

_DIGITS = 7


class Derivation:
    """Collects terms; ``add`` returns the rounded value to go on with."""

    def __init__(self) -> None:
        self._terms: list[Term] = []

    def add(self, name: str, formula: str, value: float, unit: str, why: str) -> float:
        rounded = rounded_value(value)
        self._terms.append((name, formula, rounded, unit, why))
        return rounded

    def take(self, part: str, terms: Iterable[Term]) -> None:
        """The derivation of a part, its names told apart by ``part``."""
        for name, formula, value, unit, why in terms:
            self._terms.append((f"{part}: {name}", formula, value, unit, why))

    def done(self) -> tuple[Term, ...]:
        return tuple(self._terms)


def rounded_value(value: float) -> float:
    """To seven digits; whole numbers stay as they are.

    >>> rounded_value(123.456789), rounded_value(123456789)
    (123.4568, 123456789.0)
    """
    return float(value) if float(value).is_integer() else float(f"{value:.{_DIGITS}g}")


def number(value: float) -> str:
    """A number as formulas write it.

    >>> number(0.87), number(2048.0), number(123.456789), number(123456789)
    ('0.87', '2048', '123.4568', '123456789')
    """
    return str(int(value)) if float(value).is_integer() else f"{rounded_value(value):.{_DIGITS}g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPrediction:
    """What one attention call takes, and why. None = not known; ``unknown`` says why.

    ``time_us`` covers the call: its main kernel and, backward, the small kernels around it.
    """

    time_us: Estimate
    kernel_us: float | None = (
        None  # of the middle estimate, the main kernel alone; None for unfused attention
    )
    backend: str
    backend_why: str
    head_dim: int | None  # the kernel computes with
    block_q: int | None = None
    block_k: int | None = None
    tiles: int | None = None
    waves: float | None = None
    useful_flops: float  # of scores that are not masked
    computed_flops: float | None = None  # with masked parts of blocks and padded head dimensions
    floor_us: float | None = None  # useful operations at the peak or bytes at the bandwidth, the larger
    terms: tuple[Term, ...] = ()  # the last value is the middle estimate
    notes: tuple[str, ...] = ()  # where the rate is from, what is left out
    unknown: str | None = None  # why there is no estimate

    @property
    def tflops(self) -> float | None:
        """Useful TFLOP/s of the middle estimate."""
        return self.useful_flops / self.time_us.mid / 1e6 if self.time_us.mid else None
