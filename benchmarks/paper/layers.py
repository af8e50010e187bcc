"""Families K, L and M: layers with other numbers of heads, the width of SwiGLU, and equal parameters."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import pairs
from benchmarks.paper.drawn import classes, cliff, line, loss_against, point, sentences
from benchmarks.paper.figure import PAPER_COLOUR, Figure, Panel, Point, Series, series_of
from benchmarks.paper.source import Published, Source
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import pct, sig

_MODEL, _COPIED_HEADS = "gpt3-2.7b", 32
_ATTENTION = {"flash": "fused attention", "math": "attention by products"}
_SWIGLU_HIDDEN, _SWIGLU_TOKENS, _SWIGLU_MODEL = 4096, 4096, "llama-7b"
#: 8h/3 of h = 4096, as it is copied; one unit more or less is odd.
_PLAIN = 10_922


def layer_tflops(shape: Mapping[str, Any], ms: float) -> float:
    """Forward and backward of one layer, three times its forward: 2*b*s per parameter, and 4*b*s*s*h.

    As arXiv 2401.14489 counts them: what a causal mask hides is not subtracted.
    """
    tokens = shape["micro_batch"] * shape["sequence"]
    heads = shape["heads"] / shape["tensor_parallel"]
    kv_heads = shape["kv_heads"] / shape["tensor_parallel"]
    width, hidden = heads * shape["head_dim"], shape["hidden"]
    attention = hidden * (2 * width + 2 * kv_heads * shape["head_dim"])
    mlp = (3 if shape["gated"] else 2) * hidden * shape["ffn"] / shape["tensor_parallel"]
    flops = 3 * (2 * tokens * (attention + mlp) + 4 * tokens * shape["sequence"] * width)
    return float(flops / ms / 1e9)


def heads(here: Source, paper: Published) -> Figure:
    """K: the 2.7B layer of GPT-3 (h = 2560) with other numbers of heads."""
    curves = _layers(_pairs(here, "heads", _MODEL), along="heads", apart="attention")
    series, says = [], []
    for rank, (kind, points) in enumerate(curves.items()):
        series.append(line(here, _ATTENTION.get(kind, kind), points, rank))
        says += _against_copied(_ATTENTION.get(kind, kind), points, paper)
    panels = (Panel("One layer, forward and backward", "heads a", tuple(series)),) if series else ()
    return Figure(
        "k_heads", "K", "Heads of the 2.7B layer", "h = 2560, 4 × 2048 tokens, equal parameters", panels,
        sentences(says),
    )  # fmt: skip


def _against_copied(kind: str, points: Sequence[Point], paper: Published) -> list[str]:
    at = {round(one.x): one.tflops for one in points}
    if _COPIED_HEADS not in at or len(at) < 2:
        return []
    best = max(at, key=lambda count: at[count])
    claim = float(paper.quoted["claim"]["gpt3_2_7b_gain_frac"])
    gain = at[best] / at[_COPIED_HEADS] - 1
    said = (
        f"{kind}: the fastest is a = {best} with {sig(at[best])} TFLOP/s, {gain:+.1%} against "
        f"a = {_COPIED_HEADS}; the paper's best gain on this shape is {claim:+.0%}."
    )
    return [said]


def _pairs(here: Source, rule: str, model: str) -> list[Mapping[str, Any]]:
    """A dry run has one pair of each rule, of whatever model."""
    return [row for row in here.pairs if row["rule"] == rule and (here.dry_run or row["model"] == model)]


def _layers(rows: Iterable[Mapping[str, Any]], *, along: str, apart: str) -> dict[str, tuple[Point, ...]]:
    """Curves of both sides of pairs; a shape that stands in several pairs at the median of its times."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    shapes: dict[tuple[str, int], Mapping[str, Any]] = {}
    for row in rows:
        for side in ("before", "after"):
            shape = row[side]["shape"]
            key = str(shape[apart]), int(shape[along])
            times[key].append(float(row[side]["ms"]))
            shapes[key] = shape
    curves: dict[str, list[Point]] = defaultdict(list)
    for key, found in times.items():
        ms = statistics.median(found)
        curves[key[0]].append(Point(key[1], layer_tflops(shapes[key], ms), ms * 1e3))
    return {name: series_of(points) for name, points in sorted(curves.items())}


# --- L ------------------------------------------------------------------------------------------------


def swiglu(here: Source, paper: Published) -> Figure:
    """L: d_ff around 8h/3 at h = 4096: both products, and whole layers where pairs were measured."""
    points, quoted = _up_and_down(here), paper.by_size("swiglu")
    panels, says, differs = [], [], []
    if points:
        published = tuple(Point(size, value) for size, value in sorted(quoted.items()))
        beside = Series(
            "H100 (published)", "H100 (published)", "published", published, PAPER_COLOUR, "square", "dashed"
        )
        panels.append(
            Panel("up and down products, forward", "d_ff", (*classes(here, points, 128, "d_ff"), beside))
        )
        differs += _widths(points, quoted)
        says.append(cliff(points, "d_ff", "Up and down products"))
    if layers := _layers(_pairs(here, "ffn", _SWIGLU_MODEL), along="ffn", apart="attention"):
        series = tuple(
            line(here, _ATTENTION.get(kind, kind), found, rank)
            for rank, (kind, found) in enumerate(layers.items())
        )
        panels.append(Panel("whole layer, forward and backward", "d_ff", series))
        for kind, found in layers.items():
            says.append(cliff(found, "d_ff", f"Whole layer, {_ATTENTION.get(kind, kind)}"))
    return Figure(
        "l_swiglu", "L", "SwiGLU's width", f"h = {_SWIGLU_HIDDEN}, {_SWIGLU_TOKENS} tokens for products",
        tuple(panels), sentences(differs), sentences(says),
    )  # fmt: skip


def _up_and_down(here: Source) -> tuple[Point, ...]:
    """Throughput of both products together, where both were measured."""

    def fits(one: GemmMeasurement) -> bool:
        wide = {one.n, one.k} - {_SWIGLU_HIDDEN}
        return (
            (one.m, one.layout, one.batch) == (_SWIGLU_TOKENS, "TN", 1)
            and _SWIGLU_HIDDEN in (one.n, one.k)
            and all(10_800 <= size <= 11_300 for size in wide)
            and bool(wide)
        )

    up: dict[int, GemmMeasurement] = {}
    down: dict[int, GemmMeasurement] = {}
    for one in here.products("swiglu", fits):
        if here.dry_run:
            if one.layout == "TN":
                return (point(one, one.n),)
        elif one.k == _SWIGLU_HIDDEN:
            up.setdefault(one.n, one)
        else:
            down.setdefault(one.k, one)
    points = []
    for width in up.keys() & down.keys():
        both = up[width], down[width]
        time_us = sum(one.time_us for one in both)
        flops = sum(2.0 * one.m * one.n * one.k for one in both)
        kernels = tuple(name for one in both for name in one.kernels)
        points.append(Point(width, flops / time_us / 1e6, time_us, kernels))
    return series_of(points)


def _widths(points: Sequence[Point], quoted: Mapping[int, float]) -> list[str]:
    at = {round(one.x): one.tflops for one in points}
    if _PLAIN not in at:
        return []
    best = max(at, key=lambda size: at[size])
    best_of_all = (
        f"The best width of the sweep is {best} with {sig(at[best])} TFLOP/s; {_PLAIN} (8h/3) reaches "
        f"{pct(at[_PLAIN] / at[best])} of it."
    )
    says = [best_of_all]
    for size in sorted(quoted.keys() & at.keys() - {_PLAIN}):
        share, there = at[_PLAIN] / at[size], quoted[_PLAIN] / quoted[size]
        says.append(
            f"{_PLAIN} reaches {pct(share)} of {size}: {loss_against(share, there)} (H100, published)."
        )
    return says


# --- M ------------------------------------------------------------------------------------------------

_BEST = 20  # pairs that are drawn


def equal_parameters(here: Source, paper: Published) -> Figure:
    """M: whole layers before and after changes that leave the number of parameters alone, the best first."""
    rows = pairs.equal_parameters(here.pairs)
    layers = [row for row in rows if not row["before"]["shape"]["vocab"]][:_BEST]
    series = []
    for rank, side in enumerate(("before", "after")):
        points = [
            Point(at, layer_tflops(row[side]["shape"], row[side]["ms"]), row[side]["ms"] * 1e3)
            for at, row in enumerate(layers, 1)
        ]
        series.append(line(here, side, tuple(points), rank))
    panels = (
        (Panel("One layer, forward and backward", "pair, the best first", tuple(series)),) if layers else ()
    )
    says = []
    claim = float(paper.quoted["claim"]["best_gain_frac"])
    for kind, found in (
        ("layer", layers),
        ("logits", [row for row in rows if row["before"]["shape"]["vocab"]]),
    ):
        if found:
            best = found[0]
            gain = f"{best['name']}: {best['speedup'] - 1:+.1%}; the paper's best is {claim:+.0%}"
            says.append(f"The best change of a {kind} at equal parameters is {gain}.")
    return Figure(
        "m_equal_parameters", "M", "Equal parameters",
        f"whole layers, parameters within {pairs.ISO_PARAMETER_FRAC:.0%}", panels, (), sentences(says),
    )  # fmt: skip
