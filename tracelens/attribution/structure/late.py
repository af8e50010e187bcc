"""Gradients of what was named by itself, after the backward of the layers was read, and of feature maps.

Autograd ties the gradient of a map to its forward, torch.compile does not. Which maps there are say the
convolutions of the forward that are of no layer: what runs on gradients of their maps alone is ``other``.
"""

from __future__ import annotations

from math import prod

from tracelens.attribution.structure.products import OPEN, NamedProduct, Size, size_of
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.words import Role

_OF_MAP = 4  # dimensions: samples, channels, rows, columns
_OF_LAYERS = ("attention", "mlp", "moe", "residual", "embedding")
_NORM = frozenset({"norm", "norm_backward"})
_OTHER = Label("other", evidence="local")


def label_late(run: Run, forward: Run) -> None:
    """Name the products of a backward run whose sizes are gradients of one part alone, which is named by
    local evidence, and the gradient of an activation between two of them; fills ``run.labels``."""
    made = _gradients(forward)
    found: list[int] = []
    for at in range(len(run)):
        size = size_of(run, at)
        fits = made.get(size, set()) if size is not None else set()
        parts = {label for label, _ in fits}
        named = run.labels.get(at, OPEN)
        if named.component != "unattributed" or named.candidates or len(parts) != 1:
            continue
        part = min(parts, key=str)
        if part.evidence != "local":
            continue
        roles = {role for _, role in fits}
        role = roles.pop() if len(roles) == 1 else None
        run.labels[at] = Label(part.component, None, part.components, role=role, evidence="local")
        found.append(at)
    for at in found:
        behind = next((p for p in range(at + 1, len(run)) if run.kinds[p].what != "copy"), at)
        if behind not in run.labels and run.kinds[behind].tags & {"activation_backward"}:
            ends = {run.labels[p].component.partition(".")[0] for p in (at, behind + 1) if p in run.labels}
            if ends == {"mlp"}:
                run.labels[behind] = Label("mlp.activation", evidence="local")


def _gradients(forward: Run) -> dict[Size, set[tuple[Label, Role]]]:
    """By the size of a gradient, the products that have one of it, as far as they are named."""
    found: dict[Size, set[tuple[Label, Role]]] = {}
    for at in range(len(forward)):
        shape = forward.shape(at)
        if shape is None or forward.kinds[at].what not in ("gemm", "bmm"):
            continue
        label = forward.labels.get(at, OPEN)
        part = Label(label.component, None, label.components, evidence=label.evidence)
        product = NamedProduct(part, shape)
        found.setdefault(product.dgrad, set()).add((part, "dgrad"))
        for size in product.wgrads:
            found.setdefault(size, set()).add((part, "wgrad"))
    return found


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
