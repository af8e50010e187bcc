"""Numbers as they stand in a finding's sentences: three significant digits and a unit."""

from __future__ import annotations

import math


def sig(value: float) -> str:
    """Three significant digits, all digits before the point kept.

    >>> sig(0.31234), sig(41.26), sig(9.999), sig(30522)
    ('0.312', '41.3', '10.0', '30522')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    rounded = float(f"{value:.2e}")
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{value:.0f}" if decimals <= 0 else f"{rounded:.{decimals}f}"


def ms(value: float) -> str:
    """A time given in milliseconds; microseconds below one.

    >>> ms(0.0413), ms(412.44), ms(0)
    ('41.3 µs', '412 ms', '0 ms')
    """
    return f"{sig(value * 1e3)} µs" if 0 < abs(value) < 0.9995 else f"{sig(value)} ms"


def percent(frac: float) -> str:
    """A share, with two digits below ten percent and one below a tenth.

    >>> percent(0.1337), percent(0.0081), percent(0.001), percent(0.00002), percent(0)
    ('13.4%', '0.81%', '0.1%', '0.002%', '0%')
    """
    value = 100 * frac
    if value >= 10:
        return f"{value:.1f}%"
    return f"{float(f'{value:.1e}' if value >= 0.1 else f'{value:.0e}'):g}%"


def plural(number: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "GEMM"), plural(3, "GEMM")
    ('1 GEMM', '3 GEMMs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def grouped(value: int) -> str:
    """An integer with thousands separators."""
    return f"{value:,}"


def round_up(value: int, multiple: int) -> int:
    """The next multiple at or above ``value``.

    >>> round_up(30522, 64), round_up(10922, 64)
    (30528, 10944)
    """
    return -(-value // multiple) * multiple


def listed(items: list[str]) -> str:
    """Words in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
