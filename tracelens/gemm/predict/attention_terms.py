"""Writes the derivation of an attention prediction: lines that a reader can redo.

Like ``derivation`` for a product: a formula is plain arithmetic with ceil, min and max, what is looked up or
counted stands as its number, and values carry seven digits, with which the next formula goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracelens.gemm.predict.derivation import Term

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
