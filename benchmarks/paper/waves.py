"""Family B: the sawtooth of waves that are partly filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.paper.drawn import (
    Sizes,
    by_layout,
    compared,
    deviation,
    line,
    point,
    predicted,
    published,
    sentences,
    tiles_of,
)
from benchmarks.paper.features import FALL_FRAC, Fall, WaveFit, falls, period, wave_fit
from benchmarks.paper.figure import Figure, Mark, Panel, Point
from benchmarks.paper.source import Fits, Published, Source
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import pct, sig

#: The paper's curve: its rows, its depth, and the step between its points, 128 bytes of two-byte elements:
#: between finer ones alignment would look like waves.
_M, _K, _STEP = 2304, 4096, 64
_FROM, _TO = 1536, 6144
#: Curves laid out for the SM count of the GPU at hand: (rows, depth).
_OWN = ((1536, 4096), (1408, 1024), (4224, 4096))
#: A tile whose waves follow the curve less closely than this is not drawn.
_LEAST_R = 0.5
#: So many falls are named one by one, and so many waves marked.
_MOST_NAMED, _MOST_MARKS = 12, 12


def waves(here: Source, paper: Published) -> Figure:
    """B: (2304, 4096) x (4096, n)."""

    def fits(one: GemmMeasurement) -> bool:
        shape = one.m, one.k, one.batch
        return shape == (_M, _K, 1) and _FROM <= one.n <= _TO and one.n % 32 == 0

    def curves(source: Source) -> dict[str, tuple[Point, ...]]:
        found = source.products("paper_b_wave", fits)
        return by_layout(source, ((one.layout, point(one, one.n)) for one in found))

    ours, theirs = curves(here), published(paper, curves)
    there = _sawtooth("The paper's A100", theirs, _M, paper.raw.sms if paper.raw else None)
    says, differs = [], []
    marks: tuple[Mark, ...] = ()
    guess = None
    for layout, points in ours.items():
        steps = [one for one in points if one.x % _STEP == 0]  # neighbours as far apart as the paper's
        differs += _sawtooth(f"Here, {layout}", steps, _M, here.sms)
        if tiles := tiles_of(points):
            says.append(f"Tiles by the kernels' names, {layout}: {tiles}.")
        marks = marks or _marks(_fit(steps, _M, here.sms), steps)
        guess = guess or predicted(here, points, _product(_M, _K, layout))
    says.append(deviation(next(iter(ours.values()), ()), guess))
    panel = compared(here, ours, paper, theirs, title="Throughput over n", x="n", marks=marks, guess=guess)
    return Figure(
        "b_wave", "B", "Wave quantization", f"out[{_M}, n] = a[{_M}, {_K}] · b[{_K}, n]", (panel,),
        sentences([*differs, *(there if differs else ())]), sentences(says),
    )  # fmt: skip


def own_waves(here: Source, paper: Published) -> Figure:
    """B again, at rows whose tiles cross multiples of this GPU's own SM count."""
    panels, says = [], []
    for m, k in _OWN:
        found = here.products(f"wave_m{m}_k{k}", _curve(m, k))
        points = by_layout(here, ((one.layout, point(one, one.n)) for one in found)).get("TN", ())
        if not points:
            continue
        series = [line(here, "TN", points)]
        guess = predicted(here, points, _product(m, k, "TN"))
        if guess is not None:
            series.append(guess)
        steps = [one for one in points if one.x % _STEP == 0 or here.dry_run]
        marks = _marks(_fit(steps, m, here.sms), steps)
        panels.append(Panel(f"m = {m}, K = {k}", "n", tuple(series), marks=marks))
        says += _sawtooth(f"m = {m}, K = {k}", steps, m, here.sms)
        says.append(deviation(points, guess))
    return Figure(
        "b_wave_own", "B", "Wave quantization at this GPU's SM count", "out[m, n] = a[m, K] · b[K, n], TN",
        tuple(panels), says=sentences(says),
    )  # fmt: skip


def _curve(m: int, k: int) -> Fits:
    return lambda one: (one.m, one.k, one.batch) == (m, k, 1) and one.n % 32 == 0


def _product(m: int, k: int, layout: str) -> Callable[[int], Sizes]:
    return lambda n: (m, n, k, layout)


def _fit(points: Sequence[Point], m: int, sms: int | None) -> WaveFit | None:
    return wave_fit(points, m=m, sms=sms) if sms else None


def _sawtooth(who: str, points: Sequence[Point], m: int, sms: int | None) -> list[str]:
    """Falls, their distance, and the tile that explains them."""
    if len(points) < 3:
        return []
    found = falls(points)
    if not found:
        return [f"{who}: no fall of more than {FALL_FRAC:.0%} between neighbours."]
    says = [_falls(who, found)]
    if (fit := _fit(points, m, sms)) is not None:
        says.append(
            f"{who}: of the usual tiles {fit.tile[0]} × {fit.tile[1]} on {sms} SMs fits best (one wave is "
            f"{fit.period:.5g} columns), r = {fit.r:.2f}; it foresees {fit.explained} of {fit.falls} falls."
        )
    return says


def _falls(who: str, found: Sequence[Fall]) -> str:
    worst = max(found, key=lambda one: one.lost_frac)
    at = ", ".join(f"{one.before.x:g}" for one in found[:_MOST_NAMED])
    more = ", ..." if len(found) > _MOST_NAMED else ""
    times = "once" if len(found) == 1 else f"{len(found)} times"
    distance = period(found)
    return (
        f"{who}: throughput falls by more than {FALL_FRAC:.0%} behind n = {at}{more} ({times}), at most from "
        f"{sig(worst.before.tflops)} to {sig(worst.after.tflops)} TFLOP/s at n = {worst.before.x:g} → "
        f"{worst.after.x:g}, {pct(worst.lost_frac)}"
        + (f"; the median distance between falls is {distance:g} columns." if distance else ".")
    )


def _marks(fit: WaveFit | None, points: Sequence[Point]) -> tuple[Mark, ...]:
    """The last n of each full wave of the fitted tile, where the fit says anything."""
    if fit is None or fit.r < _LEAST_R:
        return ()
    first, last = -int(-points[0].x // fit.period), int(points[-1].x // fit.period)
    if last - first >= _MOST_MARKS:
        return ()
    return tuple(
        Mark(wave * fit.period, f"{wave} wave{'s' * (wave > 1)}") for wave in range(max(1, first), last + 1)
    )
