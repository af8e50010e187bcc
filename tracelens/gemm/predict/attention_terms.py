"""The derivation of a prediction: lines that a reader can redo with a pocket calculator."""

from __future__ import annotations

from typing import NamedTuple

#: Figures that a term is written and carried on with.
_FIGURES = 6


class Term(NamedTuple):
    """One line: ``name`` = ``formula`` = ``value`` ``unit``, and why it is there.

    A formula is plain arithmetic of numbers with +, -, *, /, ceil(), floor(), min() and max(); what is
    looked up or counted is its own number. Values are rounded to six figures and carried on so.
    """

    name: str
    formula: str
    value: float
    unit: str
    why: str


class Derivation:
    """Collects terms; ``add`` returns the rounded value to go on with."""

    def __init__(self) -> None:
        self._terms: list[Term] = []

    def add(self, name: str, formula: str, value: float, unit: str, why: str) -> float:
        rounded = rounded_value(value)
        self._terms.append(Term(name, formula, rounded, unit, why))
        return rounded

    def done(self) -> tuple[Term, ...]:
        return tuple(self._terms)


def rounded_value(value: float) -> float:
    """To six figures; whole numbers stay as they are.

    >>> rounded_value(123.456789), rounded_value(12345678)
    (123.457, 12345678.0)
    """
    return float(value) if float(value).is_integer() else float(f"{value:.{_FIGURES}g}")


def number(value: float) -> str:
    """A number as formulas write it.

    >>> number(0.87), number(2048.0), number(123.4567891), number(12345678)
    ('0.87', '2048', '123.457', '12345678')
    """
    return str(int(value)) if float(value).is_integer() else f"{rounded_value(value):.{_FIGURES}g}"
