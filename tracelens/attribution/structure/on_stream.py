"""What works on the residual stream: before, between and behind the layers of a forward."""

from __future__ import annotations

from functools import cached_property
from math import prod

from tracelens.attribution.structure.gaps import looks_up
from tracelens.attribution.structure.grammars import by_channel
from tracelens.attribution.structure.heads import widths
from tracelens.attribution.structure.norms import adds, adds_number, is_affine
from tracelens.attribution.structure.positions import Places
from tracelens.attribution.structure.runs import Label
from tracelens.attribution.structure.units import CLIPS, CUTS, VIEWS, Kind
from tracelens.attribution.structure.walk import counts_batches, is_product

#: What is added to the stream.
_STREAM = ("attention.output", "mlp.down", "moe.experts", "moe.dispatch", "moe.router")
_COUNTS = frozenset({"arange", "iota", "floor", "_unsafe_index", "index"})
_TAKES_OR_GIVES = ("attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down")
_PICKS = CUTS | {"index", "index_select", "gather"}  # rows
_POOLS = frozenset({"mean", "mul", "fill_"})
_PADDED = 64  # words that a vocabulary is made larger by, at most
_OF_STREAM = 3  # dimensions: samples, tokens, channels
_COLORS = 4  # of a picture, with what is see-through
SCALED = frozenset({"mul", "mul_", "div", "div_", "sub", "sub_", "add", "add_"})


class OnStream(Places):
    """A gap between two named products, as far as the stream runs through it."""

    @cached_property
    def _last_map(self) -> int:
        """The last convolution over a map whose channels it mixes; -1."""
        kinds = ((at, self.run.kinds[at]) for at in self.gap)
        maps = (x for x in kinds if x[1].what == "convolution" and len((*x[1].tensors, ())[0]) > _OF_STREAM)
        return max((at for at, kind in maps if not by_channel(kind)), default=-1)

    def _next(self, at: int) -> int:
        """The next unit that does more than look at its input."""
        behind = range(at + 1, self.gap[-1] + 1)
        return next((p for p in behind if self.run.kinds[p].name not in VIEWS), at)

    def _cuts_patches(self, kind: Kind) -> bool:
        """Does the convolution make tokens of a picture?"""
        weight = next((t for t in kind.tensors[1:] if len(t) > 3), ())
        return weight[:1] == (self.hidden,) and weight[1] <= _COLORS

    def _on_stream(self, start: int = 0) -> list[tuple[int, Label]]:
        """Before, between and behind the layers, from a position on: what works on the residual stream."""
        out = []
        # in the middle of a model only what a product onto the stream takes
        opens = self.before is None and (self.run.follows is None or self.after == "embedding")
        # behind an MLP of patches
        makes = self.before == "residual" and self.layer is None and self.run.follows is None
        started = (opens or self.before == "embedding" or makes) and self.run.phase != "recompute"
        for at in (at for at in self.gap if at >= start):
            kind = self.run.kinds[at]  # of a decoder behind its encoder, of a second tower
            table = looks_up(self.run, kind, self.hidden) or (kind.what == "embedding" and not kind.tensors)
            started |= (table and self.core is not None) or (
                kind.what == "convolution" and (self.before is None or self._cuts_patches(kind))
            )
            label = self._opening(at) if started else self._stream(at)
            if label is None and self._adds_scaled(at):
                label = Label("residual", self.layer)
            if self._joins(at):
                label = Label("attention.other", self.next_layer)
            works = kind.what in ("elementwise", "add", "copy", "activation")
            if works and self._between_others(at):
                label = Label("attention.other", self.next_layer)
            of_heads = self._lays_out(at) or at in self.distances or (works and self._of_next_heads(at))
            if of_heads and at > self._last_map:
                label = Label("attention.other", self.next_layer)
            if works and not self._adaptive.isdisjoint(kind.tensors):
                label = Label("other")
            if at in self._dotted:
                label = Label("logits")
            if label is not None:
                out.append((at, label))
        return out

    def _adds_scaled(self, at: int) -> bool:
        """A sum with what was multiplied by a number for each channel right before it (layer scale, arXiv
        2103.17239), or that product: wherever it stands, behind convolutions, too."""
        added = self._next(at) if self.run.kinds[at].name == "mul" else at
        scale, kind = self.run.kinds[added - 1], self.run.kinds[added]
        stream = kind.tensors[0] if adds(kind) else ()
        scales = scale.name == "mul" and {*scale.tensors} == {(self.hidden,), stream}
        return scales and len(stream) == _OF_STREAM and stream[-1] == self.hidden

    @cached_property
    def _dotted(self) -> set[int]:
        """Behind the last norm each token's product with a row that is looked up, and its sum: logits
        of the words that they are of (SASRec, arXiv 1808.09781)."""
        found, behind = set[int](), [at for at in self.gap if at > self.last_norm]
        looks = next(
            (at for at in behind if looks_up(self.run, self.run.kinds[at], self.hidden)), len(self.run)
        )
        for at in behind if self.after is None and self.before in _STREAM else ():
            kind, summed = self.run.kinds[at], self._next(at)
            two = kind.name == "mul" and len(kind.tensors) == 2 and len(set(kind.tensors)) == 1
            sums = self.run.kinds[summed].name == "sum" and self.run.kinds[summed].tensors == kind.tensors[:1]
            if two and sums and at > looks and kind.tensors[0][-1] == self.hidden:
                found |= {at, summed}
        return found

    def _between_others(self, at: int) -> bool:
        """Right between two products for what is added to the scores."""
        around = (self.run.labels.get(p) for p in (at - 1, at + 1))
        return all(label is not None and label.component == "attention.other" for label in around) and all(
            is_product(self.run, p) for p in (at - 1, at + 1)
        )

    def _joins(self, at: int) -> bool:
        """Two streams, each normalized, put one behind the other for the products of one attention."""
        kind = self.run.kinds[at]
        if kind.name != "cat" or self.after != "attention.qkv":
            return False
        behind = (self.run.shape(p) for p in range(at + 1, len(self.run)))
        product = next((shape for shape in behind if shape is not None), None)
        rows = sum(prod(t[:-1]) for t in kind.tensors)
        joins = product is not None and (rows, widths(kind.tensors)) == (product.m, {product.k})
        normed = {t for p in self.gap if p < at and self._is_norm(p) for t in self.run.kinds[p].tensors}
        return (
            joins
            and normed.issuperset(kind.tensors)
            and not any(self._is_norm(p) for p in self.gap if p > at)
        )

    def _opening(self, at: int) -> Label | None:
        """Before the first layer: the embeddings, then a normalization."""
        kind = self.run.kinds[at]
        if "rope" in kind.tags:
            return Label("attention.rope")
        if at in self.normed:
            return Label("norm")
        if self._is_wave(at) or kind.what == "bmm" or self._makes_waves(at):
            if self.rotated:
                return None if self._of_samples(at) else Label("attention.rope")
            added = any(self._is_residual(p) for p in reversed(self.gap) if p > at)
            return Label("embedding") if added else None
        if "embedding" in kind.tags:
            parts = ("embedding", "norm") if "norm" in kind.tags else ()
            return Label("embedding", None, parts)
        if self._is_norm(at) or is_affine(self.run, at, self.hidden):
            return Label("norm", None, ("embedding", "norm") if "add" in kind.tags else ())
        if self._is_nameless(at) and self.after == "attention.qkv":
            return Label("norm", None, ("embedding", "norm"))
        if kind.name in CLIPS and self.after == "attention.qkv" and at > self.last_norm:
            return Label("attention.other", self.next_layer)
        if kind.what == "convolution":
            return Label("embedding") if self._onto_stream(at) else None
        if self.before == self.after == "embedding":
            return Label("embedding")
        laid = kind.what == "copy" or kind.name in VIEWS
        samples = {(len(t), t[0]) for t in kind.tensors if t}  # a table of positions is for all of them
        of_layer = laid or (len(samples) == 1 and max(samples)[0] > 2)
        if self.after != "embedding" and at in self.behind_norms and of_layer:
            return None  # of the first layer
        if not kind.tensors:
            positions = at in self._among_lookups or at in self._interpolated or self._sums_lookups(at)
            return Label("embedding") if positions and not counts_batches(self.run, at) else None
        if kind.what == "fused" and len(kind.tensors) == 1:
            return None  # it takes nothing: numbers of positions, of distances between them, zeros
        wide = kind.what in ("add", "copy", "elementwise", "fused") and self._is_wide(kind.tensors)
        return Label("embedding") if wide and not self.convolved and not self._behind_open(at) else None

    def _behind_open(self, at: int) -> bool:
        """Stand products of no name, onto the stream and from it, between it and the last lookup before?"""
        found = 0
        for p in range(at - 1, self.gap[0] - 1, -1):
            if looks_up(self.run, self.run.kinds[p], self.hidden):
                break
            shape = self.run.shape(p) if p not in self.run.labels else None
            found += shape is not None and shape.n == shape.k == self.hidden
        return found > 1

    def _stream(self, at: int) -> Label | None:
        kind = self.run.kinds[at]
        if self.before == "attention.output" and self._of_scores(kind):
            return Label("attention.other", self.layer)  # the weights, averaged over the heads
        if self.before == "moe.experts" and self._before_residual(at):
            own, tokens = self.product, self.run.cores[0].tokens if self.run.cores else None
            shared = own is not None and own.batch > 1 and own.m == tokens  # several take all tokens
            return Label("moe.experts" if shared else "moe.dispatch", self.layer)
        if counts_batches(self.run, at):
            return Label("norm", self.layer)
        if kind.what == "fused":
            return self._fused(at)
        if self._is_norm(at):
            return Label("norm", self.next_layer)
        if self.after == "moe.router" and at > self.last_norm:
            return Label("moe.router", self.next_layer)  # its input in more bits, and noise on that
        if kind.what == "dropout":
            return Label("dropout", self.layer)
        if self._drops_paths(at) and not (self.unnamed is not None and at > self.unnamed):
            return Label("dropout", self.layer)
        if is_affine(self.run, at, self.hidden):
            return Label("norm", self.layer)
        in_front = any(len(t) == 3 and t[1] == self.hidden for t in kind.tensors)
        limit = kind.name == "neg" and not kind.tensors  # the lower one, of the upper
        clips = self.run.kinds[min(at + limit, len(self.run) - 1)]
        if clips.name in CLIPS and len(clips.tensors) == 1 and self.hidden in widths(clips.tensors):
            ahead = at <= self.last_sum  # of what the layer gave, or of what the next takes
            part = ((self.before if ahead else self.after) or "").partition(".")[0]
            known = part in ("attention", "mlp")
            return Label(f"{part}.other", self.layer if ahead else self.next_layer) if known else None
        if at in self.measured:
            return self.measured[at]
        if at in self.masked and at < self.last_sum and self.before in ("attention.output", "mlp.down"):
            return Label(f"{self.before.partition('.')[0]}.other", self.layer)
        if self._moves_back(at):
            return Label("attention.other", self.layer)
        if self.unnamed is not None and at > self.unnamed:
            return None
        if self._scales_sum(at):
            return Label("residual", self.layer)
        if self._weighs_shortcut(at):
            return Label("residual", self.next_layer)
        if not kind.tensors and (label := self._told_by_neighbours(at)) is not None:
            return label
        if not in_front and self.hidden not in widths(kind.tensors) and (kind.tensors or kind.what != "add"):
            return None
        if adds_number(kind):
            return None
        adds = kind.what in ("add", "copy") or kind.name in SCALED
        if self._has_left(at) or self._shifts_sum(at):
            return None
        if self._adds_position(at):
            return Label("attention.other", self.next_layer)
        if self._counts_places(at):
            return None
        if kind.name in VIEWS and self.before in ("attention.output", "mlp.down") and self._next(at) > at:
            behind = self.run.kinds[self.gap[0] : at]  # of its gradient a copy may have to be made
            part = self.before.partition(".")[0]
            return Label(f"{part}.other", self.layer) if all(k.name in VIEWS for k in behind) else None
        if self._rearranges(at):
            return Label("attention.other", self.layer) if self.before == "attention.output" else None
        if kind.what == "add" and [*map(prod, kind.tensors[1:])] == [self.hidden]:
            part = (self.before or "").partition(".")[0]  # a bias, behind what a block gives
            if at < self.last_sum:
                return Label(f"{part}.other", self.layer) if part in ("attention", "mlp") else None
            if len(kind.tensors[1]) > 1:
                return None  # a shift of all samples
        if self._open and self._open[0] < at < self._open[-1]:
            return None  # of the block that these are of
        if self.before in _STREAM and adds and (at <= self.last_sum or self._casts_sum(at)):
            sums = kind.what == "add" and len({*map(prod, kind.tensors[:2])}) < 2  # no shift
            passes = sums or self._reaches_sum(at) or self._casts_sum(at)
            weighs_rows = kind.what != "add" and self._weighs_rows(kind.tensors[:2])
            return Label("residual", self.layer) if passes and not weighs_rows else None
        picks = kind.what == "copy" or kind.name in _PICKS | VIEWS | _POOLS
        if self.after == "logits" and at > self.last_added and picks:
            return Label("logits")  # what the head takes of the sequence
        return None

    def _told_by_neighbours(self, at: int) -> Label | None:
        """Without shapes: rows that are picked for the head; zeros that windows are padded with ahead of
        their queries; what clips a product's operand or result, right beside it; and what is added to a
        block's result behind its dropout, and normalized."""
        kind, behind = self.run.kinds[at], self.run.kinds[at + 1 : at + 2]
        before = self.run.kinds[max(at - 1, 0)]
        if self.after == "logits" and at > self.last_norm and kind.name in _PICKS:
            return Label("logits")
        fills = kind.name == "fill_" and [other.what for other in behind] == ["copy"]
        pads = fills or (kind.what == "copy" and before.name == "fill_")
        if pads and self.after == "attention.qkv" and at > self.last_norm:
            return Label("attention.other", self.next_layer)
        if kind.name in CLIPS:
            ways = (range(at - 1, -1, -1), range(at + 1, len(self.run)))
            ends = [next((p for p in way if self.run.kinds[p].name not in CLIPS), at) for way in ways]
            named = (self.run.labels[p].component for p in ends if p in self.run.labels)
            parts = [component.partition(".")[0] for component in named if component in _TAKES_OR_GIVES]
            return Label(f"{parts[0]}.other", self.layer) if parts else None
        closes = kind.what == "add" and not kind.tags and before.what == "dropout"
        normed = closes and at + 1 < len(self.run) and self._is_norm(at + 1)
        return Label("residual", self.layer) if normed else None

    @cached_property
    def _open(self) -> list[int]:
        """Products in the gap that have no name, as wide as the stream: another block can be there."""
        among = (p for p in range(self.gap[0], self.gap[-1]) if p not in self.run.labels)
        return [p for p in among if (shape := self.run.shape(p)) is not None and shape.n >= self.hidden]

    def _only_adds(self, kind: Kind, at: int) -> bool:
        """Without shapes: a sum, scaled or dropped, by its name, of what no convolution made. Numbers of
        places are added to, and then clamped; so is what is scaled to fewer bits."""
        if any(self.run.kinds[p].what == "convolution" for p in self.gap if p < at):
            return False
        counts = bool(kind.ops & _COUNTS) or ("clamp" in kind.ops and "mul" not in kind.ops)
        return not kind.tags - {"add", "dropout"} and not counts

    def _of_table(self, kind: Kind) -> bool:
        """Works on the table of words alone, which the head multiplies with: casts or pads it."""
        tables = {t for t in kind.tensors if len(t) > 1}
        vocab = self.vocab or 0
        return bool(tables) and all(
            t[1:] == (self.hidden,) and self.hidden < t[0] and vocab - _PADDED < t[0] <= vocab for t in tables
        )

    def _fused(self, at: int) -> Label | None:
        kind = self.run.kinds[at]
        if self.after == "logits" and self._of_table(kind):
            return Label("logits")
        # as wide as the stream; a recording without shapes, or a kernel of Triton without them, says nothing
        wide = self.hidden in widths(kind.tensors) or (not kind.tensors and self._only_adds(kind, at))
        adds = "add" in kind.tags and self.before in _STREAM
        parts: list[str] = []
        if self._draws(kind):
            return Label("dropout", self.layer)
        if "dropout" in kind.tags:
            parts.append("dropout")
        if adds:
            parts.append("residual")
        if "norm" in kind.tags or is_affine(self.run, at, self.hidden) or self._scales_rows(at):
            return Label("norm", self.next_layer, (*parts, "norm") if parts else ())
        if kind.tags & {"loss"} and self.vocab in widths(kind.tensors):
            return Label("loss")
        if "activation" in kind.tags and self.before == "other":
            return Label("other")
        if wide and adds and self.after == "logits" and at > self.last_norm:
            return Label("logits")  # behind the last normalization nothing is added to the stream
        bends = bool(kind.tags & {"activation", "activation_backward"})
        if wide and adds and (kind.name.startswith(("triton_red", "triton_per")) or bends):
            # it sums as well, and is no normalization: the mean of all tokens, as likely; or adds a bias
            return None
        if wide and adds:
            return Label("residual", self.layer, tuple(parts) if len(parts) > 1 else ())
        if wide and "dropout" in kind.tags:
            return Label("dropout", self.layer)
        if self._is_nameless(at) and self.before in _STREAM:
            return Label("norm", self.next_layer, ("residual", "norm"))
        return None
