"""What stands between the products of a backward: by what it does, where that agrees with its place.

Inductor names a kernel after all operators that its inputs came from, near and far. So a name proves
little alone: the tensors decide first (is the residual stream read, a weight, the heads, the logits?),
then the place on the gradient's path, and the name chooses among what is left.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.returns import may_unbend
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.serving import SERVING, for_few_bits, operands
from tracelens.attribution.structure.sums import Sums
from tracelens.attribution.structure.units import Dims, Kind

_UP = ("mlp.up", "mlp.gate")
_INSIDE = (("mlp.down", "mlp.other"), ("mlp.other", "mlp.up"))  # of an MLP of three layers
_NORM = frozenset({"norm", "norm_backward"})
_VOCABULARY = 256  # words or bytes, at least; less are classes
_OF_QUOTIENT = frozenset({"div", "mul", "neg", "sum"})
_ROOTS = frozenset({"pow", "sqrt", "rsqrt"})
_CLAMPED = "clamp_min"  # the length of what torch.nn.functional.normalize divides by it


def label_gradients(run: Run, forward: Run, hidden: set[int], vocab: int | None) -> None:
    """Name the units between the named products of a backward run; ``hidden`` are the widths of its models'
    streams. Fills ``run.labels``."""
    _Between(run, forward, hidden, vocab).label()


def station(label: Label | None) -> str | None:
    """Where on the gradient's path; an unfused core is a core too."""
    if label is None:
        return None
    inside = ("attention.scores", "attention.softmax", "attention.values")
    return "attention.core" if label.component in inside else label.component


def in_experts(kind: Kind, first: str | None, last: str | None, layer: int | None) -> Label | None:
    """Around the products of experts: their activations, and the ways to them and back."""
    if not {first, last} & {"moe.experts", "moe.router"}:
        return None
    ops = kind.ops or {kind.name}
    moves = any(op.startswith(("index", "scatter", "gather", "new_zeros")) for op in ops)
    if first == "moe.experts" and _weighs_rows(kind):
        return Label("norm", layer)
    if first == last == "moe.experts" and kind.tags & {"activation", "activation_backward"}:
        return Label("moe.experts", layer)
    if moves:
        return Label("moe.dispatch", layer)
    if "moe.router" in (first, last) and ops & {"_softmax", "_softmax_backward_data", "topk"}:
        return Label("moe.router", layer)
    return None


def _of_three(kind: Kind, first: str | None, last: str | None, layer: int | None) -> Label | None:
    """Inside an MLP of three layers, which can be as wide as the stream: activations, and sums of biases."""
    unbent = (
        first == last in ("mlp.other", "mlp.up") and "activation_backward" in kind.tags
    )  # several in turn
    if last is None or not (unbent or (first, last) in _INSIDE):
        return None
    return Label(last if "sum" in kind.tags else "mlp.activation", layer)


def _weighs_rows(kind: Kind) -> bool:
    """A product of two tensors of one size, summed over the rows: of a weight for each column, a norm's."""
    two, sums = kind.tensors[:2], {t[1:2] for t in kind.tensors[2:] if len(t) == 3 and t[0] == 1}
    whole = len(two) == 2 and two[0] == two[1] and len(two[0]) == 2
    return whole and two[0][1:] in sums and kind.tags == {"sum"}


def _of_scores(kind: Kind) -> bool:
    """A softmax has statistics as a norm does, and so have shares, divided by their sum, and cosines, whose
    lengths are clamped, as no norm does its statistic (arXiv 2111.09883)."""
    own = _CLAMPED in kind.ops or (kind.ops >= _OF_QUOTIENT and not kind.ops & _ROOTS)
    return (own or "softmax_backward" in kind.tags) and not kind.tags & _NORM


class _Between(Sums):
    def label(self) -> None:
        for start, stop in pairwise([-1, *self.path, len(self.run)]):
            before = self.run.labels[start] if start >= 0 else None
            after = self.run.labels[stop] if stop < len(self.run) else None
            for at in range(start + 1, stop):
                if at not in self.run.labels and self.run.kinds[at].what not in ("gemm", "bmm"):
                    found = self._of(at, before, after)
                    if found is not None:
                        self.run.labels[at] = found

    def _of(self, at: int, before: Label | None, after: Label | None) -> Label | None:
        kind = self.run.kinds[at]
        first, last = station(before), station(after)
        layer = next((x.layer for x in (after, before) if x is not None and x.layer is not None), None)
        return (
            self._of_embedding(at, kind)
            or (self._second_stage(at) if self._left(at) else None)  # of a square form, as weights are
            or self._serves_next(at)
            or self._of_weight(at)
            or self._of_loss(at, kind, first, last)
            or self._second_stage(at)
            or in_experts(kind, first, last, layer)
            or _of_three(kind, first, last, layer)
            or self._on_stream(at, kind, first, layer)
            or self._of_inner_norm(kind, layer)
            or self._in_mlp(at, kind, first, last, layer)
            or self._in_attention(at, kind, first, last, layer)
            or self._of_sum(at, kind)
            or self._of_norm(kind, layer)
            or self._of_neighbours(at)
        )

    # --- what the tensors are --------------------------------------------------------------------

    def _of_embedding(self, at: int, kind: Kind) -> Label | None:
        last = self.around.get(at, (0, 0))[1] == len(self.run)
        if last and any(len(t) == 4 and t[:2] in [(1, wide) for wide in self.hidden] for t in kind.tensors):
            return Label("embedding")  # of a table of places, made larger or smaller for a picture
        if last and kind.ops >= {"slice", "sum"} and self._streams(kind) == 1:
            return Label("embedding")  # of a token that is put before all others
        tables = [t for t in kind.tensors if len(t) == 2]
        if kind.what == "add" and tables and self.tables.issuperset(kind.tensors):
            return Label("embedding")  # to what the micro-batches before gave
        of_words = all(self._is_vocabulary(t[0]) and t[1] in self.hidden for t in tables)
        if "add" in kind.tags and len(tables) > 1 and of_words:
            return Label("embedding")  # with that of the head, which is the same table
        if kind.what == "embedding" or kind.name.startswith("convolution"):
            return Label("embedding")  # of tokens or of patches
        if "embedding_backward" not in kind.tags or (kind.tags & _NORM and self._second_stage(at)):
            return None
        if kind.tags & _NORM and self._streams(kind) >= 2 and not kind.name.startswith("triton_poi"):
            return Label("norm", None, ("norm", "embedding"))
        if not self.hidden & {t[-1] for t in kind.tensors}:
            return Label("attention.softmax" if "softmax_backward" in kind.tags else "attention.other")
        return Label("embedding")

    def _of_weight(self, at: int) -> Label | None:
        """Work on a weight or its gradient alone (casts, transposes, those of experts put into one): part of
        the product that uses it."""
        kind = self.run.kinds[at]
        flat: Counter[Dims] = Counter(t for t in kind.tensors if len(t) == 2)
        shapes: set[Dims] = {*flat}
        rest = [t for t in kind.tensors if len(t) > 2 and flat[t[1:]] < 2]
        if not shapes or rest or kind.tags & _NORM or any(t not in self.weights for t in shapes):
            return None
        near = self._nearest_product(at, shapes)
        if near is not None:
            return near
        components = set.intersection(*(self.weights[t] for t in shapes))
        return Label(components.pop()) if len(components) == 1 else None

    def _serves_next(self, at: int) -> Label | None:
        """Pads, casts or turns over an operand of one of the next products."""
        kind = self.run.kinds[at]
        serves = (kind.what == "fused" and kind.tags and not kind.tags - SERVING) or for_few_bits(kind)
        if not serves or len(kind.tensors) < 2:
            return None
        for place in range(at + 1, min(at + 5, len(self.run))):
            label, shape = self.run.labels.get(place), self.run.shape(place)
            if label is not None and shape is not None and kind.tensors[-1] in operands(shape):
                return None if label.candidates else Label(label.component, label.layer, label.components)
        return None

    def _nearest_product(self, at: int, shapes: set[Dims]) -> Label | None:
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

    # --- where it stands -------------------------------------------------------------------------

    def _of_loss(self, at: int, kind: Kind, first: str | None, last: str | None) -> Label | None:
        found = [t for t in kind.tensors if len(t) >= 2 and self._is_vocabulary(t[-1])]
        near = "logits" in (first, last) or first is None  # partial sums can be as few as classes
        wide = bool(found) and (near or (self.vocab or 0) >= _VOCABULARY)
        adds_up = len(found) == 2 and len(kind.tensors) == 2 and prod(found[1]) == found[1][-1]
        if wide and "sum" in kind.tags and (adds_up or not kind.tags & {"loss", "loss_backward"}):
            return Label("logits")  # the gradient of the head's bias
        if wide and "logits" in (first, last, None if first and last else "logits"):
            return Label("loss")
        if first is None and last == "logits" and not self._streams(kind) and len(kind.tensors) != 1:
            return Label("loss")
        return None

    def _is_vocabulary(self, size: int) -> bool:
        """The vocabulary, or what it was before it was padded for its product; classes are never padded."""
        if self.vocab is None or self.vocab < _VOCABULARY:
            return size == self.vocab
        return self.vocab - 64 < size <= self.vocab

    def _on_stream(self, at: int, kind: Kind, first: str | None, layer: int | None) -> Label | None:
        """Normalizations and residuals read two tensors of the stream or more, sums of a bias only one."""
        streams = self._streams(kind)
        if streams >= 2 and kind.tags & _NORM:
            return Label("norm", layer, ("norm", "residual") if "add" in kind.tags else ())
        if _of_scores(kind) or ("rope" in kind.tags and first == "attention.core"):
            return None  # heads side by side are as wide as the stream
        drawn = bool(kind.tags & {"dropout_backward", "activation_backward"}) or any(
            len(t) == 3 and t[0] > 1 == t[1] == t[2] for t in kind.tensors
        )
        scaled = self._has_statistic(kind) or not drawn
        if (streams >= 2 and "sum" in kind.tags and scaled) or streams >= 4:
            # x, its gradient and a reduction: a norm whose name does not say so (written out)
            return Label("norm", layer, ("norm", "residual") if "add" in kind.tags else ())
        if streams in (1, 2) and "sum" in kind.tags and kind.what == "fused":
            own = streams == 1 and self._has_statistic(kind)  # of a loss's gradient, a number for all
            return Label("norm", layer) if own else self._of_sum(at, kind)
        if streams >= 1 and (kind.tags & {"dropout_backward"} or kind.what == "dropout"):
            return Label("dropout", layer)
        if streams and self.affine and any(len(t) == 1 and t[0] in self.hidden for t in kind.tensors):
            return Label("norm", layer)
        if streams >= 2 and "add" in kind.tags and first in ("attention.qkv", *_UP):
            return Label("residual", layer)
        return None

    def _of_inner_norm(self, kind: Kind, layer: int | None) -> Label | None:
        """A normalization of heads or of a compressed part: it reads one statistic per row and sums."""
        if kind.tags & _NORM and {*map(len, kind.tensors)} == {1}:
            return Label("norm", layer)  # its weight's gradient, cast
        if not self._has_statistic(kind) or not kind.tags & {"sum", *_NORM} or "loss" in kind.tags:
            return None
        if _of_scores(kind):
            return None
        return Label("norm", layer, ("norm", "attention.rope") if "rope" in kind.tags else ())

    def _has_statistic(self, kind: Kind) -> bool:
        return any(t[-1] == 1 and prod(t) >= self.rows > 1 for t in kind.tensors if len(t) >= 2)

    def _in_mlp(
        self, at: int, kind: Kind, first: str | None, last: str | None, layer: int | None
    ) -> Label | None:
        acts = kind.tags & {"activation", "activation_backward"}
        wide = [t for t in kind.tensors if prod(t[:-1]) > 1 and t[-1] in self.inner]
        sums = self._only_sums(at, kind)  # whatever it is named after: a gradient takes two tensors
        if acts and wide and not sums:
            return Label("mlp.activation", layer)
        if first != "mlp.down" or last not in _UP:
            return None
        if sums or ("sum" in kind.tags and not acts and "gate_backward" not in kind.tags):
            return self._of_sum(at, kind) or Label("mlp.activation", layer)
        return Label("mlp.activation", layer)

    def _in_attention(
        self, at: int, kind: Kind, first: str | None, last: str | None, layer: int | None
    ) -> Label | None:
        if first == "attention.output" and last == "attention.core":
            return self._of_sum(at, kind) or Label("attention.other", layer)
        if first == "attention.core" or (first == last == "attention.qkv"):
            if "rope" in kind.tags:
                return Label("attention.rope", layer, ("attention.rope", "norm") if kind.tags & _NORM else ())
            stop = self.run.shape(self.around[at][1]) if last == "attention.qkv" else None
            lays_out = kind.what == "fused" and bool(kind.tags) and kind.tags <= SERVING
            if stop is not None and lays_out and operands(stop) & {*kind.tensors[-1:]}:
                return Label("attention.qkv", layer)  # heads side by side, for the product behind
            own = self._of_sum(at, kind)
            few = self._most(at) // min(self.hidden)
            sums = [t for t in kind.tensors if len(t) > 1 and prod(t) < few * self._head_of(t)]
            if own is None and "sum" in kind.tags and sums and not may_unbend(kind):
                return Label("norm", layer)  # its weight, one number for each of a head's
            return own or Label("attention.other", layer)
        return None

    def _of_norm(self, kind: Kind, layer: int | None) -> Label | None:
        """A step of a norm that reads its statistics or makes the gradient of its weight."""
        small = all(prod(t) <= 64 * max(self.hidden) or t[-1] == 1 for t in kind.tensors)
        return Label("norm", layer) if kind.tags & _NORM and (small or self._streams(kind)) else None

    def _of_neighbours(self, at: int) -> Label | None:
        """Between two products of one component it serves them: casts to fp8, layouts."""
        kind = self.run.kinds[at]
        if kind.what not in ("fused", "copy") or "sum" in kind.tags or len(kind.tensors) == 1:
            return None  # of one tensor alone: it fills that
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
