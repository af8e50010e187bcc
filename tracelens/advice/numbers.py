"""Numbers and words as they stand in a finding's sentences."""

from __future__ import annotations


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


def times(number: str) -> str:
    """How often, of a count that is written already.

    >>> times("1"), times("4"), times("2.50")
    ('once', '4 times', '2.50 times')
    """
    return "once" if number == "1" else f"{number} times"


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
