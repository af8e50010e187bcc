"""Sums over the tokens in a backward: gradients of biases, and partial sums that a second kernel adds up.

Inductor puts such sums off and into one kernel with what reads the same tensor, so neither their names nor
the kernel they stand in say whose they are: what they read and the product of that width do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.heads import per_head
from tracelens.attribution.structure.norms import is_affine
from tracelens.attribution.structure.products import products_of
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.attribution.structure.walk import embeds

_NORM = frozenset({"norm", "norm_backward"})
_SUMS = (1, 2, 3, 4, 6, 8)  # of the weights and biases of the norms in one kernel
_ENDS = ("attention.output", "mlp.down")
#: What has no weight: a sum over the tokens beside it is the gradient of a bias.
_WITHOUT_WEIGHTS = ("mlp.activation", "dropout", "residual")
_OF_MAP = 4  # dimensions
BIASES = 3  # of the products that take one tensor: queries, keys and values
_NEAR = 12  # units: how far a second stage stands behind its first


class Sums:
    """A backward run with its forward, and what sums over its tokens are."""

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
        looked_up = (t for kind in forward.kinds if embeds(kind) for t in kind.tensors if len(t) == 2)
        #: of embeddings, that no product takes
        self.tables = {t for t in looked_up if t[0] not in self.tokens} - self.weights.keys()
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

    def _streams(self, kind: Kind) -> int:
        """How many of its tensors have the shape of the residual stream; beside one of it also those with the
        channels in front, on a map."""
        rows = [(t[-1], prod(t[:-1])) for t in kind.tensors if len(t) > 1]
        maps = [(t[1], prod(t) // t[1]) for t in kind.tensors if len(t) == _OF_MAP and t[1] and t[-1] > 1]
        own, turned = (
            sum(wide in self.hidden and many in self.tokens for wide, many in sizes) for sizes in (rows, maps)
        )
        return own and own + turned

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
                if own is not None and of_rows and own.component in _ENDS:
                    own = self._ended_before(at, partial[-2]) or own
                if own is None and label.component == "mlp.activation":  # of a bias, of which nothing tells
                    return Label("unattributed", layer=label.layer)
                return own or Label(label.component, label.layer, label.components)
            if partial in other.tensors[1:]:
                return None  # its first stage, of no name
        return None

    def _ended_before(self, at: int, wide: int) -> Label | None:
        """The last of the products that end a block on the stream whose gradient was taken before: that of
        the next is not there yet in the kernel of a norm that reads the stream's gradient."""
        before = [place for place in self.path if place < at and self._gives(place) == wide]
        labels = (self.run.labels[place] for place in reversed(before))
        return next((label for label in labels if label.component in _ENDS), None)

    def _left(self, at: int) -> bool:
        """A sum that Inductor leaves to ATen, right behind the kernel of rows whose workspace it reads."""
        kind, behind = self.run.kinds[at], reversed(self.run.kinds[:at])
        if kind.name != "sum" or not kind.tensors:
            return False
        wrote = next((other for other in behind if other.name != "sum"), kind)
        flat = [t[0] for t in wrote.tensors if len(t) == 1]
        return any(many * prod(kind.tensors[0]) in flat for many in _SUMS)

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
        if (own := self._multiplied_before(at, kind)) is not None:
            return Label(own.component, own.layer, own.components)
        if (core := self._sums_heads(at, kind)) is not None:
            return Label("attention.qkv", self.run.labels.get(core.last, Label("")).layer)
        whole = all(prod(t) * min(self.hidden) >= self._most(at) for t in kind.tensors)
        if whole and prod(kind.tensors[-1][:-1]) > 1 and kind.name.startswith("triton_poi"):
            return None  # numbers for each token are left: summed over groups of heads
        left = kind.tensors[-1]
        if len(left) >= _OF_MAP and left[0] * left[-2] in self.tokens and left[-1] in self.heads:
            return None  # every token is left: summed over the heads that share keys
        thirds = {3 * wide for wide in self.hidden}  # queries, keys and values in one: nothing scales these
        scales = any(len(t) > 2 and t[:2] == (1, 1) and t[2] not in thirds for t in kind.tensors)
        if scales and not self._only_sums(at, kind):
            return None  # over samples and rows, of a product or of partial sums: of a scale, as likely
        given = kind.tensors
        # what it reads says nothing of the sum; a number for each row is a statistic
        if kind.what == "fused":
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

    def _multiplied_before(self, at: int, kind: Kind) -> Label | None:
        """The product whose weight's gradient stands right before a sum of all rows that it takes."""
        made, shape = self.run.labels.get(at - 1), self.run.shape(at - 1) if at else None
        if made is None or shape is None or made.role != "wgrad" or made.candidates:
            return None
        whole = [t for t in kind.tensors if prod(t) == shape.m * shape.k and t[-1] == shape.m]
        alone = len(whole) == 1 and kind.tensors[1:2] and self._only_sums(at, kind)
        return made if alone and kind.tensors[-1][:2] == (1, shape.m) else None

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
