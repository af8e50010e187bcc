"""How far the next run can lie from earlier ones by chance: the prediction interval of Student's t.

Half of it is t * s * sqrt(1 + 1/n), for runs that vary normally. A multiple of the deviation that does not
grow where runs are few calls three runs in ten of an unchanged job different.
"""

from __future__ import annotations

from math import atan, cos, pi, sin, sqrt


def half_interval(deviation: float, runs: int, sure: float) -> float:
    """Half of the interval around ``runs`` of standard ``deviation`` that holds the next with ``sure``.

    >>> round(half_interval(1.0, 3, 0.95), 2), round(half_interval(1.0, 20, 0.99), 2)
    (4.97, 2.93)
    """
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, runs - 1) < sure else (low, middle)
    return high * deviation * sqrt(1 + 1 / runs)


def _within(t: float, freedom: int) -> float:
    """Probability of a value between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle) if odd else 1.0), 0.0
    for at in range(freedom // 2):
        total += term
        term *= cos(angle) ** 2 * ((2 * at + 2) / (2 * at + 3) if odd else (2 * at + 1) / (2 * at + 2))
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
