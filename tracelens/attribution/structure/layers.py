"""Which blocks are one layer, and which are none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tracelens.attribution.structure.cores import query_rows
from tracelens.attribution.structure.runs import Run

_FEWEST = 2  # layers with attention
#: Each token by itself: scales, limits, norms written out, and what chooses tokens.
_BY_TOKEN = (
    *("mul", "div", "sub", "neg", "pow", "mean", "rsqrt", "clamp", "clamp_min", "clamp_max"),
    *("bitwise_not", "logical_not", "index", "index_put"),
)


def number_layers(run: Run) -> None:
    """Number again what a walk from attention to attention counted."""
    _join_halves(run)
    _leave_out_pooler(run)


def _leave_out_pooler(run: Run) -> None:
    """Attention of fewer queries behind the last layer pools (SigLIP, arXiv 2303.15343; AIMv2)."""
    rows: dict[int, set[int | None]] = {}
    for core in run.cores:
        label = run.labels.get(core.first)
        if label is not None and label.layer is not None:
            rows.setdefault(label.layer, set()).add(query_rows(run, core))
    *layers, last = [of for _, of in sorted(rows.items())] or [set()]
    if (
        len(layers) < _FEWEST
        or any(of != layers[0] for of in layers)
        or len(layers[0]) != 1
        or len(last) != 1
    ):
        return
    (few,), (many,) = last, layers[0]
    if few is None or many is None or few >= many:
        return
    pooling = max(rows)
    for at, label in run.labels.items():
        if label.layer is not None and label.layer >= pooling:
            run.labels[at] = replace(label, layer=None)


def _join_halves(run: Run) -> None:
    """Count as one layer an MLP and the attention and MLP next to it, where they take turns and nothing mixes
    tokens between two MLPs: halves around the rest of a layer (Macaron-Net, arXiv 1906.02762; Conformer,
    arXiv 2005.08100), or one for each kind of tokens."""
    spans: dict[int, list[int]] = {}
    for at, label in sorted(run.labels.items()):
        if label.layer is not None:
            spans.setdefault(label.layer, []).append(at)
    layers = sorted(spans)
    attends = [any(run.labels[at].component.startswith("attention") for at in spans[x]) for x in layers]
    half = len(layers) // 2
    if half < _FEWEST or attends != [attends[0], not attends[0]] * half:
        return
    for (before, _), (layer, attending) in pairwise(zip(layers, attends, strict=True)):
        if not attending and not _touch(run, spans[before][-1], spans[layer][0]):
            return
    number = {layer: at // 2 for at, layer in enumerate(layers)}
    run.labels.update(
        {at: replace(run.labels[at], layer=number[layer]) for layer in layers for at in spans[layer]}
    )


def _touch(run: Run, last: int, first: int) -> bool:
    """Does nothing between two products mix tokens, here and in the whole step?"""
    return run.units[first] - run.units[last] == first - last and all(
        kind.what in ("norm", "copy", "dropout", "add") or kind.name.rstrip("_") in _BY_TOKEN
        for kind in run.kinds[last + 1 : first]
    )
