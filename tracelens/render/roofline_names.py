"""Where the names of the roofline's points stand: beside their own marks, or at the end of a line to them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Anchor = Literal["start", "end", "middle"]

Box = tuple[float, float, float, float]  # left, top, right, bottom
Circle = tuple[float, float, float]  # x, y, radius
Line = tuple[float, float, float, float]  # from x, y to x, y
Array = NDArray[np.float64]

SAME = 2.0  # user units: marks with centres so near lie upon each other, and one name is for all of them
CLEARER = 3.0  # a name beside its mark is nearer to it than to any other by at least so much
APART, BEFORE = 8.0, 24.0  # a name at the end of a line from any other mark; from one at its own height
_TEXT = (10.0, 3.0)  # a line of text reaches so far above and below where it stands
_LENGTHS = (9.0, 15.0, 23.0, 33.0, 45.0, 60.0, 78.0)  # of a line from a mark to its name
#: Directions of such a line, in degrees downwards from the right.
_ANGLES = range(-165, 181, 15)
_STEEP = 0.35  # cosine of a line's direction: steeper ones end at the middle of a name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name stands; ``line`` leads to its mark where it is not right beside it."""

    x: float
    y: float
    anchor: Anchor
    line: Line | None
    box: Box


@dataclass(slots=True)
class Names:
    """The marks of a figure, and what a name must not lie upon: names that were placed are added to it."""

    area: Box  # names stay inside
    character: float  # width of one, about
    marks: Sequence[Circle]
    taken: list[Box]
    bounds: Sequence[Box]  # a name does not lie over these, a line to it crosses them only where it must
    dashed: Sequence[Box]  # names lie over these only where they must

    def place(self, name: str, at: int, *, over_bounds: bool) -> Place | None:
        """Find the place for the name of mark ``at``, and keep it; None where there is no clear one.

        ``over_bounds``: where it has no other place, the line to it may cross a bound.
        """
        own = self.marks[at]
        others = [one for one in self.marks if math.dist(one[:2], own[:2]) > SAME]
        width = self.character * len(name)
        beside = self._clear([*_beside(own, width)], own, others)
        lines = self._clear([*_at_a_line(own, width, _away(own, others))], own, others)
        strict, usual = [*self.bounds, *self.dashed], self.bounds
        for places, under, crossed in (
            (beside, strict, ()), (beside, usual, ()),
            (lines, strict, usual), (lines, usual, usual), (lines if over_bounds else [], usual, ()),
        ):  # fmt: skip
            for place in places:
                if self._free(place, under, crossed):
                    self._keep(place)
                    return place
        return None

    def _clear(self, places: list[Place], own: Circle, others: Sequence[Circle]) -> list[Place]:
        """Those inside that nobody takes for the name of another mark."""
        left, top, right, bottom = self.area
        inside = [
            one
            for one in places
            if one.box[0] > left and one.box[2] < right and one.box[1] > top and one.box[3] < bottom
        ]
        if not others or not inside:
            return inside
        boxes, marks = np.array([one.box for one in inside]), np.array(others)
        gaps = _gaps(boxes, marks)
        if inside[0].line is None:
            clear = gaps >= _gaps(boxes, np.array([own])) + CLEARER
        else:
            lines = np.array([one.line for one in inside])
            clear = (gaps >= _least(boxes, marks)) & (_beyond(lines, marks) > marks[:, 2] + 1)
        return [one for one, fine in zip(inside, np.all(clear, axis=1).tolist(), strict=True) if fine]

    def _free(self, place: Place, under: Sequence[Box], crossed: Sequence[Box]) -> bool:
        """Nothing lies below the name, and its line meets nothing on its way."""
        if any(meet(place.box, one) for one in (*self.taken, *under)):
            return False
        steps = _steps(place.line) if place.line is not None else []
        return not any(meet(step, one) for step in steps for one in (*self.taken, *crossed))

    def _keep(self, place: Place) -> None:
        self.taken.append(place.box)
        if place.line is not None:
            self.taken += _steps(place.line)


def _beside(mark: Circle, width: float) -> Iterator[Place]:
    cx, cy, r = mark
    places: tuple[tuple[float, float, Anchor], ...] = (
        (r + 4, 4, "start"),
        (-r - 4, 4, "end"),
        (r + 2, -r - 2, "start"),
        (r + 2, r + 11, "start"),
        (-r - 2, -r - 2, "end"),
        (-r - 2, r + 11, "end"),
        (0, r + 13, "middle"),
        (0, -r - 5, "middle"),
    )
    for dx, dy, anchor in places:
        yield _placed(cx + dx, cy + dy, anchor, width, None)


def _away(mark: Circle, others: Sequence[Circle]) -> float:
    """The direction in degrees that leads away from the marks around."""
    cx, cy, _ = mark
    away = [0.0, 1e-9]  # downwards where there is no other: below a bound there is room below
    for x, y, _ in others:
        near = (cx - x) ** 2 + (cy - y) ** 2
        away = [away[0] + (cx - x) / near, away[1] + (cy - y) / near]
    return math.degrees(math.atan2(away[1], away[0]))


def _at_a_line(mark: Circle, width: float, away: float) -> Iterator[Place]:
    cx, cy, r = mark
    for length in _LENGTHS:
        for angle in sorted(_ANGLES, key=lambda one: abs((one - away + 180) % 360 - 180)):
            across, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            line = (
                cx + (r + 1) * across, cy + (r + 1) * down,
                cx + (r + 1 + length) * across, cy + (r + 1 + length) * down,
            )  # fmt: skip
            if abs(across) < _STEEP:
                y = line[3] + (12 if down > 0 else -4)
                yield _placed(line[2], y, "middle", width, line)
                yield _placed(line[2] - 6, y, "start", width, line)
                yield _placed(line[2] + 6, y, "end", width, line)
            else:
                yield (
                    _placed(line[2] + 3, line[3] + 4, "start", width, line)
                    if across > 0
                    else _placed(line[2] - 3, line[3] + 4, "end", width, line)
                )


def _placed(x: float, y: float, anchor: Anchor, width: float, line: Line | None) -> Place:
    box = text_box(x, y, anchor, width)
    drawn = None
    if line is not None:
        x0, y0, x1, y1 = line
        drawn = round(x0, 1), round(y0, 1), round(x1, 1), round(y1, 1)
    return Place(round(x, 1), round(y, 1), anchor, drawn, box)


def text_box(x: float, y: float, anchor: str, width: float) -> Box:
    """What a line of text covers."""
    left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
    return left, y - _TEXT[0], left + width, y + _TEXT[1]


def meet(one: Box, other: Box) -> bool:
    """Whether two boxes share some area."""
    return other[0] < one[2] and other[2] > one[0] and other[1] < one[3] and other[3] > one[1]


def _gaps(boxes: Array, marks: Array) -> Array:
    """How far each mark's edge (a column) is from each box (a row); negative where it reaches into it."""
    x, y, r = marks.T
    left, top, right, bottom = boxes.T[:, :, None]
    across = np.maximum(np.maximum(left - x, x - right), 0.0)
    gaps: Array = np.hypot(across, np.maximum(np.maximum(top - y, y - bottom), 0.0)) - r
    return gaps


def _least(boxes: Array, marks: Array) -> Array:
    """How far a mark is to be from another's name with a line: farther where that seems to begin at it."""
    middle = (boxes[:, 1] + boxes[:, 3])[:, None] / 2
    least: Array = np.where(np.abs(middle - marks[:, 1]) < marks[:, 2] + 4, BEFORE, APART)
    return least


def _beyond(lines: Array, marks: Array) -> Array:
    """How near each line (a row) comes to each mark's centre."""
    ax, ay, bx, by = lines.T[:, :, None]
    dx, dy = bx - ax, by - ay
    x, y, _ = marks.T
    part = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0.0, 1.0)
    near: Array = np.hypot(ax + part * dx - x, ay + part * dy - y)
    return near


def _steps(line: Line) -> list[Box]:
    """A line as small boxes along it, but for its beginning, which touches its own mark."""
    ax, ay, bx, by = line
    count = max(2, round(math.hypot(bx - ax, by - ay) / 4))
    ends = [(ax + (bx - ax) * at / count, ay + (by - ay) * at / count) for at in range(count + 1)]
    pairs = list(itertools.pairwise(ends))[1:]
    return [(min(a, c) - 0.5, min(b, d) - 0.5, max(a, c) + 0.5, max(b, d) + 0.5) for (a, b), (c, d) in pairs]
