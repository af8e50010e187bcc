"""Families A, D and E: the size of a product, and its batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from benchmarks.paper.drawn import (
    Sizes,
    by_layout,
    cliff,
    compared,
    deviation,
    is_curve,
    line,
    point,
    predicted,
    published,
    sentences,
)
from benchmarks.paper.features import half_reached
from benchmarks.paper.figure import Figure, Panel, Point, Series, series_of
from benchmarks.paper.source import Published, Source
from tracelens.numbers import pct, sig

#: Below this size a product is launch and latency: its neighbours differ for other reasons.
_LARGE = 512


def sizes(here: Source, paper: Published) -> Figure:
    """A: (m, 4096) x (4096, m)."""

    def curves(source: Source) -> dict[str, tuple[Point, ...]]:
        found = source.products(
            "paper_a_square", lambda g: g.m == g.n and g.k == 4096 and g.batch == 1 and g.m % 32 == 0
        )
        # the paper's batched sweep holds the same products, done by torch.bmm
        return by_layout(
            source, ((one.layout, point(one, one.m)) for one in found if not one.sweep.startswith("bmm"))
        )

    ours, theirs = curves(here), published(paper, curves)
    says, differs, guess = [], [], None
    for layout, points in ours.items():
        guess = guess or predicted(here, points, _square(layout))
        says.append(_best(layout, points))
        differs.append(_faster(layout, points, theirs))
        says.append(cliff([one for one in points if one.x >= _LARGE], "m", layout))
    says.append(deviation(next(iter(ours.values()), ()), guess))
    panel = compared(here, ours, paper, theirs, title="Throughput by size", x="m", log_x=True, guess=guess)
    return Figure(
        "a_size",
        "A",
        "Size",
        "out[m, m] = a[m, 4096] · b[4096, m]",
        (panel,),
        sentences(differs),
        sentences(says),
    )


def _square(layout: str) -> Callable[[int], Sizes]:
    return lambda m: (m, m, 4096, layout)


def _best(layout: str, points: Sequence[Point]) -> str:
    best, half = max(points, key=lambda one: one.tflops), half_reached(points)
    return (
        f"{layout}: the best of the sweep is m = {best.x:g} with {sig(best.tflops)} TFLOP/s; half of that is "
        f"reached from m = {half:g} on."
    )


def _faster(layout: str, points: Sequence[Point], theirs: Sequence[Point]) -> str:
    """Beside the paper's GPU at the smallest and the largest common size, and where half is reached."""
    there = {one.x: one.tflops for one in theirs}
    both = [one for one in points if one.x in there]
    if len(both) < 2:
        return ""
    first, last = both[0], both[-1]
    return (
        f"{layout}: {sig(last.tflops / there[last.x])} times the throughput of the paper's A100 at "
        f"m = {last.x:g} and {sig(first.tflops / there[first.x])} times at m = {first.x:g}; half of the best "
        f"of these sizes is reached from m = {half_reached(both):g} on, there from {half_reached(theirs):g}."
    )


def batches(here: Source, paper: Published) -> Figure:
    """D: cubes in a batch, over the batch."""
    found: dict[int, list[Point]] = defaultdict(list)
    for one in here.products(
        "paper_d_batch", lambda g: g.m == g.n == g.k and g.layout == "NN" and g.m >= 1024
    ):
        found[one.m].append(point(one, one.batch))
    # a cube of another sweep that was measured at one batch only makes no curve
    ours = {size: series_of(points) for size, points in sorted(found.items()) if is_curve(here, points)}
    says = [_over_batch(size, points) for size, points in ours.items()]
    series = tuple(
        line(here, f"{size} × {size} × {size}", points, rank)
        for rank, (size, points) in enumerate(ours.items())
    )
    panels = (Panel("Throughput by batch", "batch", series, log_x=True),) if series else ()
    return Figure(
        "d_batch", "D", "Batched products over the batch", "out[b, s, s] = a[b, s, s] · b[b, s, s], NN",
        panels, says=sentences(says),
    )  # fmt: skip


def _over_batch(size: int, points: Sequence[Point]) -> str:
    best = max(points, key=lambda one: one.tflops)
    near = next(one for one in points if one.tflops >= 0.9 * best.tflops)
    said = (
        f"Cubes of {size}: the best is {sig(best.tflops)} TFLOP/s at a batch of {best.x:g}; 90 % of it is "
        f"reached from {near.x:g} on"
    )
    alone = next((one for one in points if one.x == 1), None)
    return said + (f"; one alone reaches {pct(alone.tflops / best.tflops)}." if alone else ".")


def batched_sizes(here: Source, paper: Published) -> Figure:
    """E: (m, 4096) x (4096, m) in a batch, over m."""

    def curves(source: Source) -> dict[int, tuple[Point, ...]]:
        found: dict[int, list[Point]] = defaultdict(list)
        for one in source.products(
            "paper_e_batch_m", lambda g: g.m == g.n and g.k == 4096 and g.layout == "NN"
        ):
            if not one.sweep.startswith("mm/"):  # the paper's plain products of the same sizes
                found[one.batch].append(point(one, one.m))
        return {
            batch: series_of(points) for batch, points in sorted(found.items()) if is_curve(source, points)
        }

    ours = curves(here)
    theirs = curves(paper.raw) if paper.raw is not None else {}
    differs = [_half(batch, points, theirs.get(batch, ())) for batch, points in ours.items()]
    panels = [Panel(here.title, "m", _by_batch(here, ours), log_x=True)] if ours else []
    if ours and theirs and paper.raw is not None:
        panels.append(Panel(paper.raw.title, "m", _by_batch(paper.raw, theirs), log_x=True))
    return Figure(
        "e_batch_size", "E", "Batched products over m", "out[b, m, m] = a[b, m, 4096] · b[b, 4096, m], NN",
        tuple(panels), sentences(differs), columns=2,
    )  # fmt: skip


def _by_batch(source: Source, found: Mapping[int, Sequence[Point]]) -> tuple[Series, ...]:
    return tuple(
        line(source, f"batch {batch}", points, rank) for rank, (batch, points) in enumerate(found.items())
    )


def _half(batch: int, points: Sequence[Point], theirs: Sequence[Point]) -> str:
    """From which m on half of the best is reached, of the sizes that both have where there are both."""
    common = {one.x for one in theirs}
    both = [one for one in points if one.x in common] or points
    said = f"Batch {batch}: half of the best is reached from m = {half_reached(both):g} on"
    return f"{said}, on the paper's A100 from {half_reached(theirs):g}." if theirs else f"{said}."
