"""Gradients of feature maps in a compiled backward: no part of a transformer's layer, as in the forward.

Autograd ties the gradient of a map to its forward, torch.compile does not. Which maps there are say the
convolutions of the forward that are of no layer: their gradients, and what runs on those of their maps alone,
are ``other``.
"""

from __future__ import annotations

from math import prod

from tracelens.attribution.structure.products import OPEN
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Dims, Kind

_OF_MAP = 4  # dimensions: samples, channels, rows, columns
_OF_LAYERS = ("attention", "mlp", "moe", "residual", "embedding")
_NORM = frozenset({"norm", "norm_backward"})
_OTHER = Label("other", evidence="local")


def label_maps_back(run: Run, forward: Run, hidden: set[int]) -> None:
    """Name the gradients of convolutions that are of no layer, and what works on gradients of their maps
    alone; ``hidden`` are the widths of streams, which are of no map. Fills ``run.labels``."""
    apart = [
        kind
        for at, kind in enumerate(forward.kinds)
        if kind.what == "convolution" and at not in forward.labels
    ]
    spaces = {(dims[0], *dims[2:]) for kind in apart for dims in _maps(kind)}
    layers = {
        dims
        for at, label in forward.labels.items()
        if label.component.startswith(_OF_LAYERS)
        for dims in forward.kinds[at].tensors
    }
    made = {kind.tensors[:2] for kind in apart if len(kind.tensors) > 1}
    for at, kind in enumerate(run.kinds):
        named = run.labels.get(at, OPEN)
        if kind.what == "convolution" and kind.tensors[1:3] in made and named.component == "embedding":
            run.labels |= dict.fromkeys(range(at, _behind(run, at)), _OTHER)
        elif kind.what == "fused" and named == OPEN:
            found = any((dims[0], *dims[2:]) in spaces for dims in _maps(kind))
            if found and not any(dims in layers or hidden & {*dims} for dims in kind.tensors):
                run.labels[at] = Label("norm", evidence="local") if kind.tags & _NORM else _OTHER


def _maps(kind: Kind) -> list[Dims]:
    return [dims for dims in kind.tensors if len(dims) == _OF_MAP and dims[2] > 1]


def _behind(run: Run, at: int) -> int:
    """Where the casts of a convolution's gradients end: fused, and of no more than its weight."""
    most = prod(run.kinds[at].tensors[2])
    stop = at + 1
    while stop < len(run) and run.labels.get(stop) == run.labels[at] and run.kinds[stop].what == "fused":
        if any(prod(dims) > most for dims in run.kinds[stop].tensors):
            break
        stop += 1
    return stop
