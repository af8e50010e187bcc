"""Family I: fused attention over the head dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.paper.drawn import cliff, deviation, guessed, line, loss_against, modelled_gpu, sentences
from benchmarks.paper.figure import PAPER_COLOUR, PAPER_GPU, Figure, Panel, Point, Series, series_of
from benchmarks.paper.source import Published, Source
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware.measurements import AttentionMeasurement
from tracelens.numbers import DASH, pct, sig

#: Products of one call: scores and values; backward the scores again, and four gradients.
_PRODUCTS = {"forward": 2, "backward": 5}
#: What a head dimension is held against in words, here and in the paper.
_WIDE, _COPIED = 128, 80
_NAMES = {"flash": "flash", "cudnn": "cuDNN", "efficient": "memory-efficient"}

Curves = Mapping[tuple[str, str], Sequence[Point]]  # by direction and backend


def attention_tflops(one: AttentionMeasurement) -> float:
    """2*s*s*d for each head and product; what a causal mask hides is not counted."""
    area = one.seq_q * one.seq_k * (0.5 if one.causal else 1.0)
    return 2.0 * _PRODUCTS[one.direction] * one.batch * one.heads * area * one.head_dim / one.time_us / 1e6


def fused(here: Source, paper: Published) -> Figure:
    """I: throughput by head dimension, each backend, forward and backward."""
    setting, calls = _widest(here)
    found = _curves(calls)
    guesses = _predicted(here, calls)
    quoted = paper.by_size("flash_attention")
    panels: list[Panel] = []
    says: list[str] = []
    differs: list[str] = []
    for direction in _PRODUCTS:
        series = [
            line(here, _NAMES[backend], points, list(_NAMES).index(backend))
            for (way, backend), points in found.items()
            if way == direction
        ]
        if not series:
            continue
        if direction == "forward":
            points = tuple(Point(size, value) for size, value in sorted(quoted.items()))
            name = f"{PAPER_GPU}, flash, 128 heads"
            series.append(Series(name, PAPER_GPU, "published", points, PAPER_COLOUR, "square", "dashed"))
        if (guess := guesses.get(direction)) is not None:
            series.append(guess)
        panels.append(Panel(direction, "head dimension h/a", tuple(series)))
    for (direction, backend), points in found.items():
        name = f"{_NAMES[backend]} {direction}"
        (differs if direction == "forward" else says).extend(
            _head_dims(name, points, quoted if direction == "forward" else {})
        )
        says.append(cliff(points, "h/a", name))
        if backend == "flash" and (off := deviation(points, guesses.get(direction))):
            says.append(f"{name}: {off[0].lower()}{off[1:]}")
    return Figure(
        "i_fused_attention", "I", "Fused attention", setting, tuple(panels), sentences(differs),
        sentences(says), _table(found, quoted), columns=2,
    )  # fmt: skip


def _widest(here: Source) -> tuple[str, list[AttentionMeasurement]]:
    """The setting measured at the most head dimensions, and its calls; preferably without a mask."""
    settings: dict[tuple[int, int, int, bool], list[AttentionMeasurement]] = defaultdict(list)
    for one in here.attention:
        plain = one.heads == one.kv_heads and one.seq_q == one.seq_k and one.dtype == here.dtype
        if plain and one.backend in _NAMES and (one.sweep == "head_dim" or not here.dry_run):
            settings[one.batch, one.heads, one.seq_q, one.causal].append(one)
    if not settings:
        return "", []
    key = max(
        settings, key=lambda key: (len({one.head_dim for one in settings[key]}), not key[3], -key[0], -key[1])
    )
    batch, heads, sequence, causal = key
    mask = "causal mask" if causal else "no mask"
    return f"batch {batch}, {heads} heads, {sequence} tokens, {mask}", settings[key]


def _curves(calls: Sequence[AttentionMeasurement]) -> dict[tuple[str, str], tuple[Point, ...]]:
    curves: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for one in calls:
        curves[one.direction, one.backend].append(
            Point(one.head_dim, attention_tflops(one), one.time_us, one.kernels)
        )
    order = sorted(curves, key=lambda one: (list(_PRODUCTS).index(one[0]), list(_NAMES).index(one[1])))
    return {one: series_of(curves[one]) for one in order}


def _predicted(here: Source, calls: Sequence[AttentionMeasurement]) -> dict[str, Series]:
    """What the model says of the flash calls without any measurement, by direction."""
    gpu = modelled_gpu(here)
    if gpu is None:
        return {}
    points: dict[str, list[Point]] = defaultdict(list)
    for one in (one for one in calls if one.backend == "flash"):
        guess = predict_attention(
            AttentionProblem(
                batch=one.batch,
                heads=one.heads,
                kv_heads=one.kv_heads,
                seq_q=one.seq_q,
                seq_k=one.seq_k,
                head_dim=one.head_dim,
                causal=one.causal,
                direction=one.direction,
                dtype=one.dtype,
            ),
            gpu=gpu,
            backend="flash",
        ).time_us.mid
        if guess is not None:
            tflops = attention_tflops(replace(one, time_us=guess))
            points[one.direction].append(Point(one.head_dim, tflops, guess))
    return {
        direction: guessed(here, "flash, predicted by the model", series_of(found))
        for direction, found in points.items()
    }


def _head_dims(name: str, points: Sequence[Point], quoted: Mapping[int, float]) -> list[str]:
    at = {round(one.x): one.tflops for one in points}
    if len(at) < 2:
        return []
    best = max(at, key=lambda size: at[size])
    says = [f"{name}: the best head dimension is {best} with {sig(at[best])} TFLOP/s."]
    if _COPIED in at and _WIDE in at:
        share = at[_COPIED] / at[_WIDE]
        said = f"{name}: a head dimension of {_COPIED} reaches {pct(share)} of what {_WIDE} does"
        if _COPIED in quoted and _WIDE in quoted:
            said += f", {loss_against(share, quoted[_COPIED] / quoted[_WIDE])}"
        says.append(f"{said}.")
    return says


def _table(found: Curves, quoted: Mapping[int, float]) -> tuple[str, ...]:
    if not found:
        return ()
    names = [f"{_NAMES[backend]} {direction}" for direction, backend in found]
    columns = [{round(one.x): one.tflops for one in points} for points in found.values()]
    lines = [
        "| head dimension | " + " | ".join(names) + " | the paper's A100, forward |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for size in sorted({size for column in columns for size in column} | quoted.keys()):
        cells = [sig(column[size]) if size in column else DASH for column in (*columns, quoted)]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return tuple(lines)
