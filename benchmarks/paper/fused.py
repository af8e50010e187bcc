"""Family I: fused attention over the head dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.paper.drawn import cliff, line, loss_against, sentences
from benchmarks.paper.figure import PAPER_COLOUR, Figure, Panel, Point, Series, series_of
from benchmarks.paper.source import Published, Source
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
    setting, found = _widest(here)
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
            name = "A100 (paper), flash, 128 heads"
            series.append(Series(name, "A100 (paper)", "published", points, PAPER_COLOUR, "square", "dashed"))
        panels.append(Panel(direction, "head dimension h/a", tuple(series)))
    for (direction, backend), points in found.items():
        name = f"{_NAMES[backend]} {direction}"
        (differs if direction == "forward" else says).extend(
            _head_dims(name, points, quoted if direction == "forward" else {})
        )
        says.append(cliff(points, "h/a", name))
    return Figure(
        "i_fused_attention", "I", "Fused attention", setting, tuple(panels), sentences(differs),
        sentences(says), _table(found, quoted), columns=2,
    )  # fmt: skip


def _widest(here: Source) -> tuple[str, dict[tuple[str, str], tuple[Point, ...]]]:
    """The setting measured at the most head dimensions, and its curves; preferably without a mask."""
    settings: dict[tuple[int, int, int, bool], list[AttentionMeasurement]] = defaultdict(list)
    for one in here.attention:
        plain = one.heads == one.kv_heads and one.seq_q == one.seq_k and one.dtype == here.dtype
        if plain and one.backend in _NAMES and (one.sweep == "head_dim" or not here.dry_run):
            settings[one.batch, one.heads, one.seq_q, one.causal].append(one)
    if not settings:
        return "", {}
    key = max(
        settings, key=lambda key: (len({one.head_dim for one in settings[key]}), not key[3], -key[0], -key[1])
    )
    curves: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for one in settings[key]:
        curves[one.direction, one.backend].append(
            Point(one.head_dim, attention_tflops(one), one.time_us, one.kernels)
        )
    batch, heads, sequence, causal = key
    mask = "causal mask" if causal else "no mask"
    order = sorted(curves, key=lambda one: (list(_PRODUCTS).index(one[0]), list(_NAMES).index(one[1])))
    return f"batch {batch}, {heads} heads, {sequence} tokens, {mask}", {
        one: series_of(curves[one]) for one in order
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
