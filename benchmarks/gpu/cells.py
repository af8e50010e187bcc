"""How the tables of the record write a number, and what they write where there is none."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import pct, sig

MISSING = "not yet measured"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    lead: str  # one or two sentences above it
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [f"### {self.title}", self.lead, ""]
        lines.append("| " + " | ".join(self.header) + " |")
        lines.append("|" + "---|" * len(self.header))
        lines.extend("| " + " | ".join(row) + " |" for row in self.rows)
        return "\n".join(lines) + "\n"


def number(value: float | None, unit: str = "") -> str:
    """Three significant digits and the unit, or that there is no measurement."""
    return MISSING if value is None else f"{sig(value)}{unit}"


def share(value: float | None) -> str:
    return MISSING if value is None else pct(value)


def gain(speedup: float | None) -> str:
    """A ratio as a change.

    >>> gain(1.2), gain(0.9), gain(None)
    ('+20.0%', '-10.0%', 'not yet measured')
    """
    return MISSING if speedup is None else f"{100 * (speedup - 1):+.1f}%"


def shape(one: GemmMeasurement) -> str:
    times = f" (×{one.batch})" if one.batch > 1 else ""
    return f"{one.m} × {one.n} × {one.k}{times} {one.layout}"
