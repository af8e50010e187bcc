"""What stands between the products of a backward: by what it does, where that agrees with its place."""

from __future__ import annotations

from itertools import pairwise

from tracelens.attribution.structure.backward import products_of
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind

_UP = ("mlp.up", "mlp.gate")


def label_gradients(run: Run, forward: Run, hidden: int, vocab: int | None) -> None:
    """Name the units between the named products of a backward run; fills ``run.labels``."""
    _Between(run, forward, hidden, vocab).label()


class _Between:
    def __init__(self, run: Run, forward: Run, hidden: int, vocab: int | None):
        self.run, self.hidden, self.vocab = run, hidden, vocab
        self.weights: dict[tuple[int, ...], set[str]] = {}
        for product in products_of(forward):
            for shape in ((product.shape.n, product.shape.k), (product.shape.k, product.shape.n)):
                self.weights.setdefault(shape, set()).add(product.label.component)
        self.path = [
            at
            for at in range(len(run))
            if (label := run.labels.get(at)) is not None
            and (label.role == "dgrad" or label.component.startswith("attention.core"))
        ]

    def label(self) -> None:
        edges = [-1, *self.path, len(self.run)]
        for start, stop in pairwise(edges):
            before = self.run.labels[start] if start >= 0 else None
            after = self.run.labels[stop] if stop < len(self.run) else None
            for at in range(start + 1, stop):
                if at not in self.run.labels:
                    found = self._of(at, before, after)
                    if found is not None:
                        self.run.labels[at] = found

    def _of(self, at: int, before: Label | None, after: Label | None) -> Label | None:
        kind = self.run.kinds[at]
        first, last = (before.component if before else None), (after.component if after else None)
        layer = next((x.layer for x in (after, before) if x is not None and x.layer is not None), None)
        return (
            self._of_weight(at)
            or self._of_embedding(kind)
            or self._of_loss(kind, first, last)
            or self._in_layer(at, kind, first, last, layer)
            or self._of_sum(at)
            or self._of_neighbours(at)
        )

    def _of_embedding(self, kind: Kind) -> Label | None:
        if "embedding_backward" not in kind.tags and kind.what != "embedding":
            return None
        parts = ("norm", "embedding") if kind.tags & {"norm_backward", "norm"} else ()
        return Label("embedding", None, parts)

    def _of_loss(self, kind: Kind, first: str | None, last: str | None) -> Label | None:
        if self.vocab is not None and self.vocab in {t[-1] for t in kind.tensors if len(t) >= 2}:
            return Label("loss") if first in ("logits", None) or last in ("logits", None) else None
        if first is None and last == "logits" and not kind.tags & {"norm", "norm_backward"}:
            return Label("loss")
        return None

    def _in_layer(
        self, at: int, kind: Kind, first: str | None, last: str | None, layer: int | None
    ) -> Label | None:
        tags = kind.tags
        if first == "mlp.down" and last in _UP and not tags & {"norm", "norm_backward"}:
            if tags & {"activation", "activation_backward"} or "sum" not in tags:
                return Label("mlp.activation", layer)
            return self._of_sum(at) or Label("mlp.activation", layer)
        on_stream = any(len(t) >= 2 and t[-1] == self.hidden for t in kind.tensors)
        if "rope" in tags and first == "attention.core":
            parts = ("attention.rope", "norm") if tags & {"norm", "norm_backward"} else ()
            return Label("attention.rope", layer, parts)
        if tags & {"norm", "norm_backward"}:
            return Label("norm", layer, ("norm", "residual") if on_stream and "add" in tags else ())
        if first == "attention.output" and last == "attention.core":
            return Label("attention.other", layer)
        if first == "attention.core":
            return self._of_sum(at) or Label("attention.other", layer)
        if "dropout_backward" in tags or kind.what == "dropout":
            return Label("dropout", layer)
        if "add" in tags and on_stream and first in ("attention.qkv", *_UP):
            return Label("residual", layer)
        return None

    def _of_weight(self, at: int) -> Label | None:
        """Work on a weight or its gradient alone (casts, transposes): part of the product that uses it."""
        kind = self.run.kinds[at]
        shapes: set[tuple[int, ...]] = {t for t in kind.tensors if len(t) == 2}
        if not shapes or any(t not in self.weights for t in kind.tensors if len(t) >= 2):
            return None
        return self._nearest_product(at, shapes) or self._only_weight(shapes)

    def _only_weight(self, shapes: set[tuple[int, ...]]) -> Label | None:
        components = set.intersection(*(self.weights[t] for t in shapes))
        return Label(components.pop()) if len(components) == 1 else None

    def _nearest_product(self, at: int, shapes: set[tuple[int, ...]]) -> Label | None:
        """The gradient of a weight is cast right behind its product, a weight right before its use."""
        for step in (-1, 1):
            place = at + step
            while 0 <= place < len(self.run) and abs(place - at) <= 3:
                label, shape = self.run.labels.get(place), self.run.shape(place)
                if label is not None and shape is not None:
                    fits = {(shape.m, shape.n), (shape.n, shape.m), (shape.k, shape.n), (shape.n, shape.k)}
                    if fits & shapes and not label.candidates:
                        return Label(label.component, label.layer, label.components)
                    break
                place += step
        return None

    def _of_sum(self, at: int) -> Label | None:
        """A sum over the tokens: the gradient of a bias, part of the product whose output it follows."""
        kind = self.run.kinds[at]
        if "sum" not in kind.tags:
            return None
        widths = {size for t in kind.tensors for size in t if size > 1}
        for place in range(at - 1, max(-1, at - 8), -1):
            label, shape = self.run.labels.get(place), self.run.shape(place)
            if label is not None and shape is not None and label.role is not None:
                out = shape.k if label.role == "dgrad" else shape.m
                if out in widths and not label.candidates:
                    return Label(label.component, label.layer, label.components)
        return None

    def _of_neighbours(self, at: int) -> Label | None:
        """Between two products of one component it serves them: casts to fp8, layouts."""
        found = []
        for step in (-1, 1):
            place = at + step
            while 0 <= place < len(self.run) and self.run.kinds[place].what != "gemm":
                place += step
            found.append(self.run.labels.get(place))
        before, after = found
        if before is not None and after is not None and before.component == after.component:
            return Label(before.component, before.layer) if not before.candidates else None
        return None
