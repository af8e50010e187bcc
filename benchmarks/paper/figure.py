"""What a figure is before it is drawn: panels of series of points, and the sentences that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What is written where there is nothing to draw.
MISSING = "not yet measured"
#: Okabe and Ito's colours, which the colour-blind tell apart; without the yellow, too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
#: Viridis without its palest end: ordered classes, dark to light, also in grey.
CLASS_COLOURS = ("#440154", "#472D7B", "#3B528B", "#2C728E", "#21918C", "#28AE80", "#5EC962", "#ADDC30")
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus", "down", "ring")
#: Points of others, and the line that joins them.
PAPER_GPU = "A100 (paper, fp16)"
PAPER_COLOUR = "#666666"
PREDICTED_COLOUR = "#CC79A7"


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    tflops: float
    time_us: float | None = None  # None: a mean, or published as a throughput
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one GPU under one name. ``line``: solid, dashed or none."""

    name: str
    gpu: str
    basis: str  # measured | dry run on a CPU | mean of measured | published | predicted
    points: tuple[Point, ...]
    colour: str = COLOURS[0]
    marker: str = "circle"
    line: str = "solid"
    kept: bool = True  # False: raw data of others, which are drawn and never copied into a table


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line."""

    x: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x_label: str
    series: tuple[Series, ...]
    log_x: bool = False  # powers of two
    marks: tuple[Mark, ...] = ()
    y_label: str = "TFLOP/s"

    @property
    def measured(self) -> int:
        """How many points are of the GPU that the figure is about."""
        return sum(len(one.points) for one in self.series if one.basis not in ("published", "predicted"))


@dataclass(frozen=True, slots=True)
class Figure:
    """One family of the paper's figures. Sentences and table are Markdown, computed from the points."""

    key: str  # the file's name: "b_wave"
    letter: str
    title: str
    shape: str  # what is multiplied
    panels: tuple[Panel, ...] = ()
    differs: tuple[str, ...] = ()  # from the paper
    says: tuple[str, ...] = ()  # of this GPU alone
    table: tuple[str, ...] = ()
    gpu: str = ""
    dtype: str = ""
    date: str = ""
    dry_run: bool = False
    columns: int = 1  # panels beside each other

    @property
    def measured(self) -> int:
        return sum(panel.measured for panel in self.panels)


def series_of(points: Sequence[Point]) -> tuple[Point, ...]:
    """In the order of x, each x once: the first that was given counts."""
    kept: dict[float, Point] = {}
    for point in points:
        kept.setdefault(point.x, point)
    return tuple(sorted(kept.values(), key=lambda point: point.x))
