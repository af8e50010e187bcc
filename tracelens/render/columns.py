"""A small column chart out of characters: one column a value, cliffs and gaps in plain sight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:#"
_GAP = "?"  # a value that is not known
#: The axis begins at 0 unless every value lies in the upper half: then what differs would not show.
_FROM_ZERO_BELOW = 0.5
#: The chart is at least this share of the largest value high: ripples stay ripples.
_LEAST_SPREAD = 0.2


@dataclass(frozen=True, slots=True)
class ChartLines:
    """The chart as lines of equal width, top first, and the values of its top and bottom edge."""

    lines: tuple[str, ...]
    top: float
    bottom: float
    width: int  # characters of one column


def column_chart(
    values: Sequence[float | None], *, width: int, height: int = 6, ascii_only: bool = False
) -> ChartLines:
    """Draw each value as a column between the axis and the largest value.

    Columns are as wide as fit into ``width``; a value that is not known, or not finite, is a question mark.

    >>> chart = column_chart([1, 2, None, 4], width=4, height=2)
    >>> chart.lines, chart.top, chart.bottom
    (('   █', '▄█?█'), 4, 0.0)
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    top = max(known, default=1.0)
    bottom = _bottom(min(known, default=0.0), top)
    levels = _ASCII if ascii_only else _EIGHTHS
    each = max(1, min(width // max(len(values), 1), 4))
    full = len(levels) - 1
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in values:
            if value is None or not math.isfinite(value):
                cells.append(_GAP if row == 0 else " ")
                continue
            share = (value - bottom) / (top - bottom) if top > bottom else 1.0
            level = round(share * height * full) - row * full
            if row == 0:
                level = max(level, 1)  # a known value is never invisible
            cells.append(levels[min(max(level, 0), full)])
        lines.append("".join(cell * each for cell in cells))
    return ChartLines(tuple(lines), top, bottom, each)


def mark_line(marks: Mapping[int, str], *, width: int) -> str:
    """Put each mark (one character) under its column.

    >>> mark_line({2: "^", 0: "1"}, width=2)
    '1   ^'
    """
    line = [" "] * ((max(marks, default=0) + 1) * width)
    for column, mark in marks.items():
        line[column * width] = mark
    return "".join(line).rstrip()


def axis_line(first: str, last: str, *, middle: tuple[int, str] | None, width: int) -> str:
    """Label both ends of ``width`` characters, and a place between them where there is room.

    >>> axis_line("1200", "2000", middle=(12, "N = 1600"), width=30)
    '1200    N = 1600          2000'
    """
    line = f"{first}{last:>{max(width - len(first), len(last) + 1)}}"
    if middle is not None:
        at, text = middle
        start = min(max(at - len(text) // 2, 0), len(line) - len(text))
        if start > len(first) and start + len(text) < len(line) - len(last):
            line = line[:start] + text + line[start + len(text) :]
    return line


def _bottom(least: float, most: float) -> float:
    """Zero, or a round number a little below the least value."""
    if least < most * _FROM_ZERO_BELOW or least >= most:
        return 0.0
    spread = max(most - least, most * _LEAST_SPREAD)
    unit = 10.0 ** math.floor(math.log10(spread))
    return max(math.floor((most - 1.2 * spread) / unit) * unit, 0.0)
