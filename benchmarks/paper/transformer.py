"""Families F, G and H: attention by products, the linear layers, and the vocabulary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.paper.drawn import (
    classes,
    cliff,
    kernel_families,
    line,
    means,
    means_panel,
    means_table,
    misaligned,
    point,
    sentences,
)
from benchmarks.paper.features import deepest
from benchmarks.paper.figure import Figure, Panel, Point, Series, series_of
from benchmarks.paper.source import Fits, Published, Source
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import pct, sig

DEGREES = (1, 2, 4, 8)
#: F: micro-batch, heads and sequence. One batched product has 4 * 32 / t matrices.
_BATCH, _HEADS, _SEQUENCE = 4, 32, 1024
#: G: tokens, and the hidden sizes of the sweep.
_TOKENS, _HIDDEN_STEP, _HIDDEN_MOST = 4096, 128, 8192
#: H: hidden size of the logits layer, and where vocabularies are measured one by one.
_LOGITS_HIDDEN, _VOCABULARIES = 2560, (50_240, 51_264)
_DENSE_VOCABULARIES = (50_240, 50_312)
_GPT2_VOCABULARY, _PADDED = 50_257, 50_304
#: (role, layout, the dimension that is v).
_ROLES = (("forward (TN)", "TN", "n"), ("dgrad (NN)", "NN", "k"), ("wgrad (NT)", "NT", "m"))
#: Head dimensions that are set beside each other in words.
_HEAD_DIMS = ((80, 128), (80, 64), (63, 64), (65, 64))

Curves = Mapping[int, Sequence[Point]]  # by tensor-parallel degree


# --- F ------------------------------------------------------------------------------------------------


def scores_and_values(here: Source, paper: Published) -> Figure:
    """F: QK^T and attention over values as batched products, over h = 32 heads of h/a."""
    scores = _attention(here, "paper_f_scores", "TN")
    values = _attention(here, "paper_f_values", "NN")
    panels, says, differs, table, groups = [], [], [], [], {}
    for name, key, curves in (("scores QKᵀ", "scores", scores), ("values", "values", values)):
        alone = curves.get(1, ())
        if not alone:
            continue
        quoted = paper.by_size(key)
        in_head_dim = [Point(one.x / _HEADS, one.tflops) for one in alone]
        groups[name] = means(in_head_dim, max(quoted))
        panels.append(Panel(f"{name}, t = 1", "h", classes(here, alone, max(quoted), "h/a", divisor=_HEADS)))
        panels.append(Panel(f"{name} by t, h/a a multiple of 8", "h", _by_degree(here, curves)))
        differs += [f"{name}: {one}" for one in misaligned(groups[name], quoted, "h/a")]
        says += _head_dims(name, alone)
        table += [*means_table({f"here, {name}": groups[name]}, quoted, "largest power of two in h/a"), ""]
    for name, key in (("scores QKᵀ", "scores"), ("values", "values")):
        if name in groups:
            panels.append(means_panel(here, {f"{name}, here": groups[name]}, paper.by_size(key), "h/a"))
    return Figure(
        "f_attention_products", "F", "Attention by products",
        f"{_BATCH} × {_HEADS} heads / t, {_SEQUENCE} tokens; a fused kernel does none of these",
        tuple(panels), sentences(differs), sentences(says), tuple(table), columns=2,
    )  # fmt: skip


def _attention(here: Source, sweep: str, layout: str) -> dict[int, tuple[Point, ...]]:
    """Curves over h by the degree t; a dry run's toys are of t = 1."""

    def head_dim(one: GemmMeasurement) -> int:
        return one.k if layout == "TN" else one.n

    def fits(one: GemmMeasurement) -> bool:
        other = one.n if layout == "TN" else one.k
        return (one.m, other, one.layout) == (_SEQUENCE, _SEQUENCE, layout) and head_dim(one) <= 160

    curves: dict[int, list[Point]] = defaultdict(list)
    for one in here.products(sweep, fits):
        degree, rest = divmod(_BATCH * _HEADS, one.batch)
        if here.dry_run or (not rest and degree in DEGREES):
            curves[1 if here.dry_run else degree].append(point(one, _HEADS * head_dim(one)))
    return {degree: series_of(points) for degree, points in sorted(curves.items())}


def _by_degree(here: Source, curves: Curves) -> tuple[Series, ...]:
    even = {
        degree: [one for one in points if here.dry_run or round(one.x) // _HEADS % 8 == 0]
        for degree, points in curves.items()
    }
    return tuple(
        line(here, f"t = {degree}", points, rank) for rank, (degree, points) in enumerate(even.items())
    )


def _head_dims(name: str, points: Sequence[Point]) -> list[str]:
    at = {round(one.x) // _HEADS: one.tflops for one in points}
    return [
        f"{name}: a head dimension of {one} reaches {pct(at[one] / at[other])} of the throughput of {other}."
        for one, other in _HEAD_DIMS
        if one in at and other in at
    ]


# --- G ------------------------------------------------------------------------------------------------


def linears(here: Source, paper: Published) -> Figure:
    """G: the four linear layers of a transformer over h, by the tensor-parallel degree t."""
    found: dict[str, dict[int, list[Point]]] = {
        name: {degree: [] for degree in DEGREES} for name in ("QKV", "projection", "MLP up", "MLP down")
    }

    def fits(one: GemmMeasurement) -> bool:
        return (one.m, one.layout, one.batch) == (_TOKENS, "TN", 1)

    for one in here.products("paper_g_linear", fits):
        for name, degree, hidden in _linear_of(one, here.dry_run):
            found[name][degree].append(point(one, hidden))
    panels, says = [], []
    for name, degrees in found.items():
        curves = {degree: series_of(points) for degree, points in degrees.items() if points}
        if not curves:
            continue
        series = tuple(
            line(here, f"t = {degree}", points, rank) for rank, (degree, points) in enumerate(curves.items())
        )
        panels.append(Panel(name, "h", series))
        says += _shards(name, curves)
    return Figure(
        "g_linears", "G", "The linear layers", f"y = x Wᵀ of {_TOKENS} tokens, one rank of t", tuple(panels),
        says=sentences(says), columns=2,
    )  # fmt: skip


def _linear_of(one: GemmMeasurement, dry_run: bool) -> list[tuple[str, int, int]]:
    """(layer, t, h) of every layer that does this product: several have the same shape."""
    if dry_run:
        return [("QKV", 1, one.k)]
    found = []
    for degree in DEGREES:
        if one.n * degree == 3 * one.k:
            found.append(("QKV", degree, one.k))
        if one.n == one.k * degree:
            found.append(("projection", degree, one.n))
        if one.n * degree == 4 * one.k:
            found.append(("MLP up", degree, one.k))
        if one.k * degree == 4 * one.n:
            found.append(("MLP down", degree, one.n))
    return [
        (name, degree, hidden)
        for name, degree, hidden in found
        if hidden % _HIDDEN_STEP == 0 and 1024 <= hidden <= _HIDDEN_MOST
    ]


def _shards(name: str, curves: Curves) -> list[str]:
    """What more ranks cost at equal h, and the deepest step of the whole layer."""
    says = []
    alone = {one.x: one.tflops for one in curves.get(1, ())}
    for degree, points in curves.items():
        shares = [(one.tflops / alone[one.x], one.x) for one in points if one.x in alone]
        if degree == 1 or len(shares) < 2:
            continue
        low, high = min(shares), max(shares)
        says.append(
            f"{name}: t = {degree} reaches {pct(low[0])} (h = {low[1]:g}) to {pct(high[0])} "
            f"(h = {high[1]:g}) of the throughput of t = 1."
        )
    if len(alone) > 1:
        says.append(cliff(curves[1], "h", f"{name}, t = 1"))
    return says


# --- H ------------------------------------------------------------------------------------------------


def vocabulary(here: Source, paper: Published) -> Figure:
    """H: the logits layer over the vocabulary v, forward and both gradients."""
    quoted = paper.by_size("vocabulary")
    panels, says, differs, groups = [], [], [], {}
    for name, layout, dimension in _ROLES:
        found = here.products("paper_h_vocabulary", _role(layout, dimension))
        points = series_of([point(one, getattr(one, dimension)) for one in found if one.layout == layout])
        if not points:
            continue
        low, high = _DENSE_VOCABULARIES
        dense = [one for one in points if here.dry_run or low <= one.x <= high]
        groups[name] = means(points, max(quoted))
        panels.append(Panel(name, "v", classes(here, dense, max(quoted), "v")))
        says += _padding(name, points)
        differs += [f"{name}: {one}" for one in misaligned(groups[name], quoted, "v")]
        says += [_odd_kernels(name, points)]
    if groups:
        panels.append(means_panel(here, groups, quoted, "v"))
    return Figure(
        "h_vocabulary", "H", "Vocabulary", f"logits of {_TOKENS} tokens, h = {_LOGITS_HIDDEN}", tuple(panels),
        sentences(differs), sentences(says), means_table(groups, quoted, "largest power of two in v"),
        columns=2,
    )  # fmt: skip


def _role(layout: str, dimension: str) -> Fits:
    """One role of the logits product; ``dimension`` is the one that is the vocabulary."""
    sizes = {"m": _TOKENS, "n": _LOGITS_HIDDEN, "k": _TOKENS if layout == "NT" else _LOGITS_HIDDEN}
    del sizes[dimension]
    low, high = _VOCABULARIES

    def fits(one: GemmMeasurement) -> bool:
        rest = all(getattr(one, name) == size for name, size in sizes.items())
        return rest and one.layout == layout and low <= getattr(one, dimension) <= high

    return fits


def _padding(name: str, points: Sequence[Point]) -> list[str]:
    """GPT-2's vocabulary beside the next multiple of 64, by time: padding adds work."""
    at = {round(one.x): one for one in points}
    plain, padded = at.get(_GPT2_VOCABULARY), at.get(_PADDED)
    if plain is None or padded is None or not plain.time_us or not padded.time_us:
        return []
    times = plain.time_us / padded.time_us
    said = (
        f"{name}: v = {_GPT2_VOCABULARY} takes {sig(plain.time_us)} µs and v = {_PADDED} "
        f"{sig(padded.time_us)} µs: {sig(times)} times as fast with {_PADDED - _GPT2_VOCABULARY} more."
    )
    return [said]


def _odd_kernels(name: str, points: Sequence[Point]) -> str:
    odd = kernel_families(one for one in points if round(one.x) % 2)
    aligned = kernel_families(one for one in points if round(one.x) % 64 == 0)
    if not odd or not aligned or deepest(points) is None:
        return ""
    return f"{name}: kernels for odd v: {odd}; for multiples of 64: {aligned}."
