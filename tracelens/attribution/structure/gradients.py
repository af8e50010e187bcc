"""What stands between the products of a backward: by what it does, where that agrees with its place.

Inductor names a kernel after all operators that its inputs came from, near and far. So a name proves
little alone: the tensors decide first (is the residual stream read, a weight, the heads, the logits?),
then the place on the gradient's path, and the name chooses among what is left.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.heads import per_head
from tracelens.attribution.structure.norms import is_affine
from tracelens.attribution.structure.products import products_of
from tracelens.attribution.structure.returns import may_unbend
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.serving import SERVING, for_few_bits, operands
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm.inductor import parse_fused

_UP = ("mlp.up", "mlp.gate")
_NORM = frozenset({"norm", "norm_backward"})
_SUMS = (1, 2, 3, 4, 6, 8)  # of the weights and biases of the norms in one kernel
_VOCABULARY = 256  # words or bytes, at least; less are classes
#: What has no weight: a sum over the tokens beside it is the gradient of a bias.
_WITHOUT_WEIGHTS = ("mlp.activation", "dropout", "residual")
_OF_MAP = 4  # dimensions
_CLAMPED = "clamp_min"  # the length of what torch.nn.functional.normalize divides by it
BIASES = 3  # of the products that take one tensor: queries, keys and values
_NEAR = 12  # units: how far a second stage stands behind its first


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
    fused = parse_fused(kind.name)
    ops = set(fused.ops) if fused else {kind.name}
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


def _weighs_rows(kind: Kind) -> bool:
    """A product of two tensors of one size, summed over the rows: of a weight for each column, a norm's."""
    two, sums = kind.tensors[:2], {t[1:2] for t in kind.tensors[2:] if len(t) == 3 and t[0] == 1}
    whole = len(two) == 2 and two[0] == two[1] and len(two[0]) == 2
    return whole and two[0][1:] in sums and kind.tags == {"sum"}


def _of_scores(kind: Kind) -> bool:
    """A softmax has statistics as a norm does, and so have cosines, whose lengths are clamped, as no norm
    does its statistic (arXiv 2111.09883)."""
    fused = parse_fused(kind.name)
    clamps = fused is not None and _CLAMPED in fused.ops
    return (clamps or "softmax_backward" in kind.tags) and not kind.tags & _NORM


class _Between:
    def __init__(self, run: Run, forward: Run, hidden: set[int], vocab: int | None):
        self.run, self.hidden, self.vocab = run, hidden, vocab
        products = products_of(forward)
        self.weights: dict[Dims, set[str]] = {}
        for product in products:
            for shape in ((product.shape.n, product.shape.k), (product.shape.k, product.shape.n)):
                self.weights.setdefault(shape, set()).add(product.label.component)
        #: what makes results of each width
        self.made: dict[int, set[str]] = {}
        for product in products:
            self.made.setdefault(product.shape.n, set()).add(product.label.component)
        #: widths between an MLP's products
        self.inner = {p.shape.k for p in products if p.label.component == "mlp.down"} - hidden
        on_stream = ("attention.qkv", "attention.output", "mlp.down")
        #: tokens of the stream; of an encoder's and a decoder's, each
        self.tokens = {p.shape.m for p in products if p.label.component in on_stream}
        times = Counter(
            (p.label.component, p.shape.m) for p in products if p.label.component in on_stream[1:]
        )
        once = {rows for _, rows in times if max(times[part, rows] for part in on_stream[1:]) == 1}
        #: the fewest; one attention alone can pool all tokens into one for each sample
        self.rows = min(self.tokens - once or self.tokens, default=0)
        cores = {at for core in run.cores for at in (min(core.parts), core.first, core.last)}
        self.heads = {core.key_dim for core in run.cores if core.key_dim}
        self.several = len({core.tokens for core in forward.cores}) > 1  # numbers of tokens that attend
        #: is a normalization no more than a scale and a shift? Then a row that scales a gradient is of one
        self.affine = any(is_affine(forward, at, wide) for at in range(len(forward)) for wide in hidden)
        self.path = [
            at
            for at in range(len(run))
            if (label := run.labels.get(at)) is not None and (label.role == "dgrad" or at in cores)
        ]

        #: the stations on the path before and behind a position
        self.around: dict[int, tuple[int, int]] = {}
        for start, stop in pairwise([-1, *self.path, len(run)]):
            self.around |= dict.fromkeys(range(start + 1, stop), (start, stop))

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
            or self._on_stream(at, kind, first, layer)
            or self._of_inner_norm(kind, layer)
            or self._in_mlp(at, kind, first, last, layer)
            or self._in_attention(at, kind, first, last, layer)
            or self._of_sum(at, kind)
            or self._of_norm(kind, layer)
            or self._of_neighbours(at)
        )

    # --- what the tensors are --------------------------------------------------------------------

    def _streams(self, kind: Kind) -> int:
        """How many of its tensors have the shape of the residual stream; beside one of it also those with the
        channels in front, on a map."""
        rows = [(t[-1], prod(t[:-1])) for t in kind.tensors if len(t) > 1]
        maps = [(t[1], prod(t) // t[1]) for t in kind.tensors if len(t) == _OF_MAP and t[1] and t[-1] > 1]
        own, turned = (
            sum(wide in self.hidden and many in self.tokens for wide, many in sizes) for sizes in (rows, maps)
        )
        return own and own + turned

    def _of_embedding(self, at: int, kind: Kind) -> Label | None:
        fused = parse_fused(kind.name) if self.around.get(at, (0, 0))[1] == len(self.run) else None
        if fused is not None and {"slice", "sum"} <= {*fused.ops} and self._streams(kind) == 1:
            return Label("embedding")  # of a token that is put before all others
        tables = [t for t in kind.tensors if len(t) == 2]
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
        if not shapes or rest or any(t not in self.weights for t in shapes):
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

    def _second_stage(self, at: int) -> Label | None:
        """It reads what a unit shortly before it wrote, partial sums that nothing else has the shape of."""
        kind = self.run.kinds[at]
        if not kind.tensors or len(kind.tensors[0]) < 2:
            return None
        partial = kind.tensors[0]
        rows, wide = prod(partial[:-1]), partial[-1]
        whole = rows in self.tokens - self.hidden and any(wide in pair for pair in self.weights)
        if whole or prod(partial) >= self._most(at) or (partial in self.weights and not self._left(at)):
            return None
        reduces = kind.name in ("sum", "to", "_to_copy", "copy_") or kind.name.startswith("triton_")
        near = _NEAR * (1 + (partial[:2] == (1, 1)))  # a sum of that form is put off with the next
        for place in range(at - 1, max(-1, at - near), -1):
            label, other = self.run.labels.get(place), self.run.kinds[place]
            bends = bool(kind.tags & {"activation", "activation_backward"})  # the map that one takes
            if other.what in ("gemm", "bmm", "core") or (bends and other.what == "convolution"):
                continue
            wrote = partial in other.tensors[1:] and partial != other.tensors[0]  # what it takes is larger
            wrote |= prod(partial) in self.hidden and other.name == "sum"
            # Inductor lays the partial sums of a norm's weight and bias in one flat workspace
            flat = [t[0] for t in other.tensors if len(t) == 1]
            wrote |= any(size in [many * prod(partial) for many in _SUMS] for size in flat)
            if reduces and wrote and label is not None and not label.candidates:
                # beside the sums for a norm's weight and bias, of samples and rows, one of rows is of a bias
                of_rows = (1, *partial) in other.tensors
                if of_rows and other.tensors.count(partial) > 1:
                    return Label("unattributed", layer=label.layer)  # of several biases
                # and one that keeps a dimension, of sums over rows, beside those of weights; of which of two
                # models whose kernels a compiler mixes nothing tells
                of_rows |= partial[0] == 1 and partial[1:] in other.tensors
                if of_rows and self.several:
                    return Label("unattributed", layer=label.layer)
                own = self._of_sum(at, kind) if of_rows or label.component in _WITHOUT_WEIGHTS else None
                if own is None and label.component == "mlp.activation":  # of a bias, of which nothing tells
                    return Label("unattributed", layer=label.layer)
                return own or Label(label.component, label.layer, label.components)
            if partial in other.tensors[1:]:
                return None  # its first stage, of no name
        return None

    def _left(self, at: int) -> bool:
        """A sum that Inductor leaves to ATen, right behind the kernel of rows whose workspace it reads."""
        kind, behind = self.run.kinds[at], reversed(self.run.kinds[:at])
        if kind.name != "sum" or not kind.tensors:
            return False
        wrote = next((other for other in behind if other.name != "sum"), kind)
        flat = [t[0] for t in wrote.tensors if len(t) == 1]
        return any(many * prod(kind.tensors[0]) in flat for many in _SUMS)

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
        drawn = "dropout_backward" in kind.tags or any(
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
            own = self._of_sum(at, kind)
            few = self._most(at) // min(self.hidden)
            sums = [t for t in kind.tensors if len(t) > 1 and prod(t) < few * self._head_of(t)]
            if own is None and "sum" in kind.tags and sums and not may_unbend(kind):
                return Label("norm", layer)  # its weight, one number for each of a head's
            return own or Label("attention.other", layer)
        return None

    def _head_of(self, dims: Dims) -> int:
        """How many numbers of a head it has side by side; 0 for none."""
        return max(self.heads & {*dims[-2:]}, default=0)

    def _only_sums(self, at: int, kind: Kind) -> bool:
        """Does it sum one tensor over the tokens, whatever made that?"""
        return "sum" in kind.tags and sum(prod(t) >= self._most(at) for t in kind.tensors) == 1

    def _most(self, at: int) -> int:
        """As large as a gradient that is summed over the tokens, at least: of the products around it."""
        ends = [self.run.shape(place) for place in self.around.get(at, ()) if place in self.run.labels]
        rows = min((shape.m for shape in ends if shape is not None), default=0)
        return max(self.rows, rows) * min(self.hidden)

    def _of_sum(self, at: int, kind: Kind) -> Label | None:
        """A sum over the tokens: the gradient of a bias, part of the product whose output it follows."""
        if "sum" not in kind.tags or (kind.tags & _NORM and self._streams(kind) >= 2):
            return None
        if (core := self._sums_heads(at, kind)) is not None:
            return Label("attention.qkv", self.run.labels.get(core.last, Label("")).layer)
        whole = all(prod(t) * min(self.hidden) >= self._most(at) for t in kind.tensors)
        if whole and kind.name.startswith("triton_poi"):
            return None  # numbers for each token are left: summed over groups of heads
        thirds = {3 * wide for wide in self.hidden}  # queries, keys and values in one: nothing scales these
        scales = any(len(t) > 2 and t[:2] == (1, 1) and t[2] not in thirds for t in kind.tensors)
        if scales and not self._only_sums(at, kind):
            return None  # over samples and rows, of a product or of partial sums: of a scale, as likely
        given = kind.tensors
        if (
            kind.what == "fused"
        ):  # what it reads says nothing of the sum; a number for each row is a statistic
            given = tuple(t for t in given if prod(t) < self._most(at) and t[-1] > 1)
        widths = {size for t in given for size in t if size > 1}
        if self._is_put_off(at):  # of one of many biases
            made = set().union(*(self.made.get(wide, ()) for wide in widths))
            return Label(made.pop() if len(made) == 1 else "unattributed")
        stations = self._summed_at(at, widths)
        if stations == [len(self.run)]:
            return Label("embedding")  # behind the first normalization
        behind = range(at - 1, max(-1, at - _NEAR), -1)
        ahead = range(at + 1, min(len(self.run), at + _NEAR))
        for place in stations or (*behind, *ahead):
            label = self.run.labels.get(place)
            if label is not None and not label.candidates and self._gives(place) in widths:
                parts = (label.component, "dropout") if "dropout_backward" in kind.tags else ()
                return Label(label.component, label.layer, parts or label.components)
        return None

    def _sums_heads(self, at: int, kind: Kind) -> Core | None:
        """The core before, of whose queries, keys or values it makes a row for the bias."""
        core = next((core for core in reversed(self.run.cores) if core.last < at), None)
        heads = [t for t in kind.tensors if core is not None and len(t) == 4 and per_head(t, core)]
        rows = {(1, size * t[3]) for t in heads for size in t[1:3]}
        return core if not rows.isdisjoint(t[:2] for t in kind.tensors) and not kind.tags & _NORM else None

    def _is_put_off(self, at: int) -> bool:
        """Are there more sums of its kind between two stations than what one block takes has biases?"""
        start, stop = self.around.get(at, (at, at))
        before = self.run.labels.get(at - 1)
        alike = sum(self.run.kinds[place].name == self.run.kinds[at].name for place in range(start + 1, stop))
        return alike > BIASES and not (before is not None and before.role == "wgrad")

    def _gives(self, place: int) -> int | None:
        """How wide the result is whose gradient a product takes."""
        label = self.run.labels.get(place)
        shape = self.run.shape(place) if label is not None and label.role is not None else None
        if label is None or shape is None:
            return None
        return shape.k if label.role == "dgrad" else shape.m

    def _around(self, at: int) -> tuple[int, int]:
        """The stations before and behind, without those of another sequence than what is summed."""
        start, stop = self.around.get(at, (-1, len(self.run)))
        whole = [t for t in self.run.kinds[at].tensors if prod(t) >= self._most(at)]
        rows = {prod(t[:size]) for t in whole for size in range(1, len(t))}
        rows |= {t[0] * t[2] for t in whole if len(t) == 4}
        first = bisect_left(self.path, stop)
        before = (place for place in reversed(self.path[:first]) if self._has_rows(place, rows))
        behind = (place for place in self.path[first:] if self._has_rows(place, rows))
        return next(before, start), next(behind, stop)

    def _has_rows(self, place: int, rows: set[int]) -> bool:
        """Is a product of so many rows, as far as that is known?"""
        known = 0 <= place < len(self.run) and self.run.kinds[place].what == "gemm"
        shape = self.run.shape(place) if known else None
        return shape is None or not rows or shape.m in rows

    def _summed_at(self, at: int, widths: set[int]) -> list[int]:
        """The product on the path whose gradient is summed between it and the next: that of the one behind is
        there as soon as the normalization between is through."""
        start, stop = self._around(at)
        before = self.run.labels.get(at - 1)
        if stop == len(self.run) and before is not None and before.role == "wgrad":
            start = at - 1  # of weights that are put off to the end, each with its bias
        fits = [place for place in (start, stop) if self._gives(place) in widths]
        if not fits or (len(fits) == 1 and stop < len(self.run)):
            return fits
        last = next(place for place in range(at - 1, -1, -1) if self.run.kinds[place].what in ("gemm", "bmm"))
        made, next_ = self.run.labels.get(last), self.run.labels.get(stop)
        shape = self.run.shape(last)
        if made is None and stop == len(self.run) and shape is not None and shape.m in widths:
            parts = (self.run.labels.get(place) for place in range(start + 1, last))
            if any(label is not None and label.component == "norm" for label in parts):
                return [stop]  # its weight's gradient, of a product of no name, stands there too
        if (
            made is not None
            and next_ is not None
            and (made.role, made.component) == ("wgrad", next_.component)
        ):
            return [stop]
        between = (self.run.labels.get(place) for place in range(last + 1, at))
        through = any(label is not None and label.component == "norm" for label in between)
        return [stop] if through else [start]

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
