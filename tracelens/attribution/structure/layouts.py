"""A backward whose products have no shapes: what each is says the layout that its kernel's name states.

PyTorch's linear layers multiply x W^T (TN in cuBLAS's letters), their gradients of activations g W (NN),
those of weights g^T x (NT). So the names alone tell the three apart; which layer each belongs to is told by
order, where the numbers agree: between two cores as many gradients of activations as the forward has products
there; and in all as many gradients of weights, in an order in which each part is one kernel in all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tracelens.attribution.names import kernel_component
from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.readings import EXPERTS
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.unshaped import label_unshaped
from tracelens.attribution.structure.walk import loses

_DGRAD, _WGRAD = "NN", "NT"
_UP = ("mlp.up", "mlp.gate")


@dataclass(frozen=True)
class Ahead:
    """The named products of a forward, cut at the cores: one list more than there are cores."""

    products: list[list[Label]]
    in_parallel: bool  # does the MLP take what the attention takes, and not what that gives?

    def going_back(self, *, beside: bool = False) -> list[list[Label]]:
        """The same in the order of their gradients. ``beside`` an attention the way into an MLP can have its
        gradient behind that of the core, where the products are that take the same input."""
        out = [labels[::-1] for labels in reversed(self.products)]
        if not beside:
            return out
        ups = [[label for label in labels if label.component in _UP] for labels in out]
        rest = [[label for label in labels if label.component not in _UP] for labels in out]
        return [before + labels for before, labels in zip([[], *ups], rest, strict=False)]


def forward_order(run: Run, stop: int) -> Ahead:
    """What a forward names before position ``stop``."""
    out: list[list[Label]] = [[]]
    cores = {core.first for core in run.cores if core.first < stop}
    beside = False
    last = -1
    for at in range(stop):
        if at in cores:
            out.append([])
        label = run.labels.get(at)
        if label is not None and run.kinds[at].what == "gemm" and run.kinds[at].name not in GROUPED:
            ends = last >= 0 and run.labels[last].component == "attention.output"
            beside |= ends and label.component in _UP and not _joins(run, last, at)
            out[-1].append(label)
            last = at
    return Ahead(out, beside)


def _joins(run: Run, start: int, stop: int) -> bool:
    """Is something added or normalized between two positions, or can be?"""
    named = ("norm", "residual")
    labels = (run.labels.get(at) for at in range(start + 1, stop))
    found = any(label is not None and {label.component, *label.components} & {*named} for label in labels)
    between = run.kinds[start + 1 : stop]
    return found or any(kind.what in ("add", "norm", "fused", "kernel") for kind in between)


def label_by_layout(
    run: Run,
    start: int,
    ahead: Ahead,
    layouts: Mapping[int, str | None],
    keys: Mapping[int, object],
) -> None:
    """Name the products from position ``start`` on; ``layouts`` is by place.

    ``keys``, by place too, are equal for equal kernels (name and launch configuration).
    """
    cores = [core for core in run.cores if core.backward and core.first >= start]
    same = len(cores) == len(ahead.products) - 1
    for core, labels in zip(cores, reversed(ahead.products[:-1]), strict=same):
        layer = labels[-1].layer if labels and same else None
        run.labels.update({at: Label(component, layer) for at, component in core.parts.items()})
    grouped = [at for at in run.products(start) if run.kinds[at].name in GROUPED]
    run.labels.update(dict.fromkeys(grouped, Label(EXPERTS)))  # their kernels' names state no layout
    products = [at for at in run.products(start) if at not in run.labels]
    if same:
        _label_products(
            run, [start - 1, *(core.first for core in cores), len(run)], products, ahead, layouts, keys
        )
    label_unshaped(run, start)
    for at in range(start + 1, len(run)):
        kind = run.kinds[at]  # the sum behind a product split along K, and no step of an attention
        if kind.what == "helper" and kernel_component(kind.name) is None and at - 1 in run.labels:
            run.labels.setdefault(at, run.labels[at - 1])
    lost = next((at for at in range(start, len(run)) if loses(run, at)), len(run))
    first = next((at for at in products if at > lost), None)
    if first is not None and first in run.labels and run.labels[first].component == "logits":
        for at in range(lost, first):  # the loss's gradient, to where the head takes it
            run.labels.setdefault(at, Label("loss"))


def _label_products(
    run: Run,
    edges: list[int],
    products: list[int],
    ahead: Ahead,
    layouts: Mapping[int, str | None],
    keys: Mapping[int, object],
) -> None:
    """Name the gradients among the ``products`` between the ``edges``, which are cores."""
    gaps = [[at for at in products if begin < at < end] for begin, end in pairwise(edges)]
    usual = [[at for at in inside if layouts.get(at) == _DGRAD] for inside in gaps]
    # weights that are stored the other way round
    turned = [[at for at in inside if layouts.get(at) not in (_WGRAD, None)] for inside in gaps]
    way = ahead.going_back()
    fits = [sum(len(here) == len(path) for here, path in zip(x, way, strict=True)) for x in (usual, turned)]
    places = turned if fits[1] > fits[0] else usual
    if ahead.in_parallel and not all(map(_bends_inside, [run] * len(way), places, way)):
        way = ahead.going_back(beside=True)
    _of_activations(run, places, way)
    _of_weights(run, [at for at in products if layouts.get(at) == _WGRAD], way, keys)


def _of_activations(run: Run, places: list[list[int]], way: list[list[Label]]) -> None:
    """Name the gradients of activations between cores, where they are as many as the forward's products."""
    for here, wanted in zip(places, way, strict=True):
        # GEMMs in fp8 are TN whatever they compute: the head's two gradients, in either order
        if wanted and wanted[0].component == "logits" and len(here) == len(wanted) + 1:
            if any(run.kinds[at].name != "_scaled_mm" for at in here[:2]):
                continue
            run.labels.update(dict.fromkeys(here[:2], wanted[0]))
            here, wanted = here[2:], wanted[1:]
        if len(here) == len(wanted) and _bends_inside(run, here, wanted):
            run.labels.update(
                {at: replace(label, role="dgrad") for at, label in zip(here, wanted, strict=True)}
            )


def _of_weights(run: Run, weights: list[int], way: list[list[Label]], keys: Mapping[int, object]) -> None:
    """Name the gradients of weights, where they are as many in all, in an order that the kernels confirm."""
    path = [label for labels in way for label in labels]
    head = [label for label in path if label.component in ("logits", "other")]
    # a compiler puts off what nothing waits for: the head's gradient, of a table that is tied, comes last
    body = [label for label in path if label not in head]
    late = [label for label in path if label.component == "logits"]
    for wanted in (path, [label for label in path if label not in late] + late, body + head, body):
        if len(wanted) == len(weights) and _alike([keys.get(at) for at in weights], wanted):
            run.labels.update(
                {at: replace(label, role="wgrad") for at, label in zip(weights, wanted, strict=True)}
            )
            break


def _bends_inside(run: Run, places: list[int], labels: list[Label]) -> bool:
    """Is the activation's gradient between the products of the MLP, if it is among these at all?"""
    if len(places) != len(labels):
        return True
    acts = [at for at in range(places[0], places[-1]) if _unbends(run, at)] if places else []
    pairs = zip(pairwise(places), pairwise(labels), strict=True)
    mlps = [way for way, (one, other) in pairs if one.component == "mlp.down" and other.component in _UP]
    return not acts or not mlps or any(start < at < stop for at in acts for start, stop in mlps)


def _unbends(run: Run, at: int) -> bool:
    kind = run.kinds[at]
    return kind.what == "activation" or "activation_backward" in kind.tags


def _alike(kernels: list[object], labels: list[Label]) -> bool:
    """Is each part the same kernel in every layer? In another order some part would not be."""
    parts: dict[str, dict[int, list[object]]] = {}
    for kernel, label in zip(kernels, labels, strict=True):
        if label.layer is not None:
            parts.setdefault(label.component, {}).setdefault(label.layer, []).append(kernel)
    layers = {layer for found in parts.values() for layer in found}
    of_part = [{tuple(kernels) for kernels in found.values()} for found in parts.values()]
    several = len({kernels for found in of_part for kernels in found}) > 1
    return several and len(layers) > 1 and all(len(found) == 1 for found in of_part)
