"""What all families share: measurements as points, points as series, and the words that compare two GPUs."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.paper.features import by_power, deepest, mean
from benchmarks.paper.figure import (
    CLASS_COLOURS,
    COLOURS,
    MARKERS,
    PAPER_COLOUR,
    PAPER_GPU,
    PREDICTED_COLOUR,
    Mark,
    Panel,
    Point,
    Series,
    series_of,
)
from benchmarks.paper.source import Published, Source
from tracelens.gemm.kernel_names import parse_kernel_name
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware.gpu import Gpu, list_gpus
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import DASH, pct, sig

#: Shares that differ by less are called equal.
SAME_FRAC = 0.02
#: The paper's layout first. Gradients of weights (NT) are in none of its figures.
LAYOUTS = {"NN": "NN (torch.mm, as in the paper)", "TN": "TN (a linear layer's forward)"}
#: Fewer points, from other sweeps' shapes that happen to fit, make no curve.
LEAST_POINTS = 3
#: A smaller step between neighbours is not worth a sentence.
_LEAST_STEP_FRAC = 0.02
PREDICTED = "predicted"
Sizes = tuple[int, int, int, str]  # m, n, k, layout


def point(one: GemmMeasurement, x: float) -> Point:
    return Point(x, one.tflops, one.time_us, one.kernels)


def line(
    source: Source, name: str, points: Sequence[Point], rank: int = 0, *, beside: bool = False
) -> Series:
    """A curve of one GPU; ``beside`` others it is grey and dashed. Published points stay out of tables."""
    return Series(
        name,
        source.title,
        source.basis,
        series_of(points),
        PAPER_COLOUR if beside else COLOURS[rank % len(COLOURS)],
        "square" if beside else MARKERS[rank % len(MARKERS)],
        "dashed" if beside else "solid",
        kept=source.basis != "published",
    )


def by_layout(source: Source, found: Iterable[tuple[str, Point]]) -> dict[str, tuple[Point, ...]]:
    """Curves by layout, the paper's layout first."""
    layouts: dict[str, list[Point]] = defaultdict(list)
    for layout, one in found:
        layouts[layout].append(one)
    curves = {layout: series_of(layouts[layout]) for layout in LAYOUTS if layout in layouts}
    return {layout: points for layout, points in curves.items() if is_curve(source, points)}


def is_curve(source: Source, points: Sequence[Point]) -> bool:
    """A dry run has one toy of each kind, which is drawn all the same."""
    return len(points) >= LEAST_POINTS or source.dry_run


def modelled_gpu(source: Source) -> Gpu | None:
    """The GPU that predictions are asked for; None for one that the table lacks, and for a dry run."""
    if source.dry_run:
        return None
    return next((gpu for gpu in list_gpus() if gpu.name == source.key), None)


def predicted(source: Source, points: Sequence[Point], sizes: Callable[[int], Sizes]) -> Series | None:
    """What the model says of the same products without any measurement; None for a GPU it does not know.

    ``sizes`` gives (m, n, k, layout) of an x.
    """
    gpu = modelled_gpu(source)
    if gpu is None or not points:
        return None
    found = []
    for one in points:
        m, n, k, layout = sizes(round(one.x))
        guess = predict_gemm(m, n, k, gpu=gpu, dtype=source.dtype, layout=layout)
        if guess.tflops is not None:
            found.append(Point(one.x, guess.tflops, guess.time_us.mid))
    return guessed(source, f"predicted by the model, {layout}", found) if found else None


def guessed(source: Source, name: str, points: Sequence[Point]) -> Series:
    """A prediction as a line without marks, so that nobody takes it for measured."""
    return Series(name, source.title, PREDICTED, tuple(points), PREDICTED_COLOUR, "none", "dashed")


def deviation(points: Sequence[Point], guess: Series | None) -> str:
    """How far a prediction is from what was measured."""
    if guess is None:
        return ""
    there = {one.x: one.tflops for one in guess.points}
    apart = [abs(one.tflops / there[one.x] - 1) for one in points if one.x in there]
    return f"The model without any measurement is {pct(statistics.median(apart))} off in the median."


def published(
    paper: Published, curves: Callable[[Source], Mapping[str, tuple[Point, ...]]]
) -> tuple[Point, ...]:
    """The same selection from the paper's raw data; empty where they are not at hand."""
    return () if paper.raw is None else curves(paper.raw).get("NN", ())


def compared(
    here: Source,
    ours: Mapping[str, Sequence[Point]],
    paper: Published,
    theirs: Sequence[Point],
    *,
    title: str,
    x: str,
    log_x: bool = False,
    marks: tuple[Mark, ...] = (),
    guess: Series | None = None,
) -> Panel:
    """Each layout measured here as a line, the paper's raw data and a prediction beside."""
    series = [
        line(here, f"{here.title}, {LAYOUTS[layout]}", points, rank)
        for rank, (layout, points) in enumerate(ours.items())
    ]
    if theirs and paper.raw is not None:
        series.append(line(paper.raw, f"{paper.raw.title}, NN", theirs, beside=True))
    if guess is not None:
        series.append(guess)
    return Panel(title, x, tuple(series), log_x, marks)


def classes(
    source: Source, points: Sequence[Point], most: int, what: str, *, divisor: int = 1
) -> tuple[Series, ...]:
    """One series for each largest power of two in x / ``divisor``, dark to light."""
    found = []
    for power, group in by_power(points, most, lambda one: round(one.x) // divisor).items():
        rank = power.bit_length() - 1
        name = f"{what} odd" if power == 1 else f"{what} by {power}{' or more' if power == most else ''}"
        found.append(
            Series(
                name, source.title, source.basis, series_of(group),
                CLASS_COLOURS[rank % len(CLASS_COLOURS)], MARKERS[rank % len(MARKERS)], "none",
                kept=source.basis != "published",
            )
        )  # fmt: skip
    return tuple(found)


def means(points: Sequence[Point], most: int) -> dict[int, float]:
    return {power: mean(group) for power, group in by_power(points, most).items()}


def means_panel(
    source: Source,
    ours: Mapping[str, Mapping[int, float]],
    theirs: Mapping[int, float],
    what: str,
    *,
    title: str = "Means by alignment",
) -> Panel:
    """Mean throughput over the largest power of two; ``ours`` by the series' name."""
    series = [
        Series(
            name, source.title, f"mean of {source.basis}", _points(group), COLOURS[rank], MARKERS[rank]
        )
        for rank, (name, group) in enumerate(ours.items())
    ]  # fmt: skip
    quoted = Series(PAPER_GPU, PAPER_GPU, "published", _points(theirs), PAPER_COLOUR, "square", "dashed")
    return Panel(title, f"largest power of two that divides {what}", (*series, quoted), True)


def _points(values: Mapping[int, float]) -> tuple[Point, ...]:
    return tuple(Point(power, value) for power, value in sorted(values.items()))


# --- words --------------------------------------------------------------------------------------------


def sentences(lines: Iterable[str]) -> tuple[str, ...]:
    """Without the empty ones."""
    return tuple(line for line in lines if line)


def means_table(
    ours: Mapping[str, Mapping[int, float]], theirs: Mapping[int, float], head: str
) -> tuple[str, ...]:
    """A Markdown table: throughput by class, and as a share of the best class of the same column."""
    if not any(ours.values()):
        return ()
    columns: dict[str, Mapping[int, float]] = {**ours, "the paper's A100": theirs}
    lines = [
        f"| {head} | " + " | ".join(f"{name}, TFLOP/s | of its best" for name in columns) + " |",
        "|---|" + "---|---|" * len(columns),
    ]
    for power in sorted({power for group in columns.values() for power in group}):
        cells = [str(power)]
        for group in columns.values():
            value = group.get(power)
            cells += [DASH, DASH] if value is None else [sig(value), pct(value / max(group.values()))]
        lines.append("| " + " | ".join(cells) + " |")
    return tuple(lines)


def loss_against(ours: float, theirs: float) -> str:
    """What is said of a share that is reached, beside the paper's.

    >>> loss_against(0.35, 0.57), loss_against(0.58, 0.57), loss_against(0.9, 0.57)
    ('a larger loss than the 57.0% there', 'about the 57.0% there', 'a smaller loss than the 57.0% there')
    """
    if abs(ours - theirs) <= SAME_FRAC:
        return f"about the {pct(theirs)} there"
    return f"a {'larger' if ours < theirs else 'smaller'} loss than the {pct(theirs)} there"


def misaligned(ours: Mapping[int, float], theirs: Mapping[int, float], what: str) -> tuple[str, ...]:
    """The least aligned class that both have, as a share of the best class of each."""
    both = sorted(ours.keys() & theirs.keys())
    if len(both) < 2:
        return ()
    said = []
    tensor_core = next((one for one in both[:-1] if one >= 8), both[0])  # the last class is "or more"
    for power in (both[0], tensor_core):
        here, there = ours[power] / max(ours.values()), theirs[power] / max(theirs.values())
        name = "odd" if power == 1 else f"divisible by {power}, not by {2 * power}"
        said.append(f"where {what} is {name}, {pct(here)} of the best class is reached here: "
                    f"{loss_against(here, there)}.")  # fmt: skip
    return tuple(dict.fromkeys(said))


def cliff(points: Sequence[Point], name: str, where: str) -> str:
    """The largest difference between neighbours of a curve, in words; empty for a single point."""
    found = deepest(points)
    if found is None or found.lost_frac < _LEAST_STEP_FRAC:
        return ""
    return (
        f"{where}: the largest step between neighbours is {name} = {found.before.x:g} with "
        f"{sig(found.before.tflops)} against {found.after.x:g} with {sig(found.after.tflops)} TFLOP/s, "
        f"{pct(found.lost_frac)} less."
    )


def kernel_families(points: Iterable[Point]) -> str:
    """Which families of kernels ran, by how often: "nvjet (30), cutlass2 (4)"; empty where none is known."""
    seen = Counter(_family(one.kernels[0]) for one in points if one.kernels)
    return ", ".join(f"{family} ({count})" for family, count in seen.most_common())


def tiles_of(points: Iterable[Point]) -> str:
    """Which tiles ran, by the kernels' names: "128 × 256 (30)"; empty where no name says."""
    seen: Counter[tuple[int, int]] = Counter()
    for one in points:
        for name in one.kernels:
            parsed = parse_kernel_name(name)
            if parsed is not None and parsed.kind == "gemm" and parsed.tile is not None:
                seen[parsed.tile] += 1
                break
    return ", ".join(f"{m} × {n} ({count})" for (m, n), count in seen.most_common(4))


def _family(name: str) -> str:
    parsed = parse_kernel_name(name)
    return "unknown" if parsed is None else parsed.family
