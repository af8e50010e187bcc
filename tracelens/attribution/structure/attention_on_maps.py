"""Attention over the places of a map: queries, keys and values, and the output, are convolutions of one tap.

So it stands in the U-Nets and autoencoders of image generators, with scores of all places (arXiv 1711.07971),
or linear, with a softmax of the queries' and one of the keys' own features (arXiv 1812.01243).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tracelens.attribution.structure.norms import adds
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import VIEWS, Kind
from tracelens.attribution.structure.walk import counts_batches

_ATTENDS = ("core", "softmax", "bmm")
_PRODUCTS = 2  # a softmax and at least so many of them are attention, where no operator is


def label_attention_on_maps(run: Run) -> None:
    """Name the convolutions around what attends, and what stands between; fills ``run.labels``."""
    parts = {at: part for core in run.cores for at, part in core.parts.items()}
    places = [at for at, kind in enumerate(run.kinds) if kind.what in ("convolution", "gemm")]
    for start, stop in pairwise([*places, len(run)]):
        if not _is_pointwise(run, start) or not _attends(run, start, stop):
            continue
        makes = [*_together(run, places, start)]
        ends = [stop] if stop < len(run) and _is_pointwise(run, stop) else []
        for at in range(makes[-1], min(stop + 2, len(run))):
            if counts_batches(run, at):
                run.labels.setdefault(at, Label("norm", evidence="local"))
        for at in makes:
            _name(run, at, "attention.qkv")
        for at in ends:
            _name(run, at, "attention.output")
        for at in range(start + 1, stop if ends else 1 + max(_of_attention(run, start, stop))):
            run.labels.setdefault(at, Label(parts.get(at, "attention.other"), evidence="local"))


def _is_pointwise(run: Run, at: int) -> bool:
    """A convolution of a map, or of several, that takes every place by itself."""
    maps = [t for t in run.kinds[at].tensors if len(t) >= 4]
    return run.kinds[at].what == "convolution" and len(maps) > 1 and {*maps[1][2:]} == {1}


def _of_attention(run: Run, start: int, stop: int) -> list[int]:
    return [at for at in range(start + 1, stop) if run.kinds[at].what in _ATTENDS]


def _attends(run: Run, start: int, stop: int) -> bool:
    what = [run.kinds[at].what for at in _of_attention(run, start, stop)]
    return "core" in what or ("softmax" in what and what.count("bmm") >= _PRODUCTS)


def _together(run: Run, places: list[int], last: int) -> Iterator[int]:
    """The convolution, and those before it with nothing but biases between."""
    yield last
    for before, behind in pairwise(reversed(places[: places.index(last) + 1])):
        between = (run.kinds[at] for at in range(behind + 1, before))
        if not _is_pointwise(run, behind) or not all(map(_is_bias, between)):
            return
        yield behind


def _is_bias(kind: Kind) -> bool:
    """Is it a bias or a copy? A sum of two maps is a residual."""
    return kind.what == "copy" or kind.name in VIEWS or (kind.what == "add" and not adds(kind))


def _name(run: Run, at: int, component: str) -> None:
    """A convolution, and its bias, which PyTorch adds where cuDNN does not."""
    run.labels.setdefault(at, Label(component, evidence="local"))
    behind = run.kinds[at + 1] if at + 1 < len(run) else None
    if behind is not None and behind.name == "add_":
        run.labels.setdefault(at + 1, Label(component, evidence="local"))
