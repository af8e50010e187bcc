"""What stands between the products of a forward: normalizations, residuals, rotations, activations.

The place says what a unit can be, its own operators say which of these it is; only where the two
agree is it named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise, takewhile
from math import prod

from tracelens.attribution.structure.gaps import looks_up
from tracelens.attribution.structure.heads import per_head, puts_half, rotates
from tracelens.attribution.structure.norms import adds, is_affine_of_heads, written_norms
from tracelens.attribution.structure.on_stream import SCALED, OnStream
from tracelens.attribution.structure.patches import label_patches
from tracelens.attribution.structure.positions import ASKS
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.serving import helps, serves_few_bits, serves_next, weights_of
from tracelens.attribution.structure.units import CUTS, VIEWS, Kind
from tracelens.attribution.structure.walk import (
    LARGEST_RANK,
    activates,
    counts_batches,
    is_product,
    lays_out_core,
    loses,
    name_sum,
)

_UP = frozenset({"mlp.up", "mlp.gate"})
_ROTATES = frozenset({"neg", "cat", "cos", "sin", "view_as_complex", "polar", "_conj", "view_as_real"})
_ROUTES = frozenset({"topk", "softmax", "sigmoid", "sum", "div", "div_"})
_PUTS = ("index_put", "index_put_", "index_copy", "index_copy_")
_OF_MAP = 4  # dimensions
_HALVES = 2  # a result and its gate
_TWO = 2  # tensors
_STATISTICS = frozenset({"mean", "var", "var_mean", "std", "linalg_vector_norm"})
_NORM_STEPS = frozenset({"pow", "square", "mean", "rsqrt", "var", "var_mean", "std"})


def label_between(run: Run, hidden: int, vocab: int | None) -> None:
    """Name the units between the named products of a forward or recomputed run; fills ``run.labels``."""
    anchors = sorted(at for at, label in run.labels.items() if label.component != "attention.other")
    weights, normed = weights_of(run), written_norms(run)
    for at in range(len(run)):
        if at not in run.labels and at not in normed:
            found = serves_next(run, at, weights) or helps(run, at)
            if found is not None:
                run.labels[at] = found
    _sum_adapters(run, hidden)
    run.labels |= {at: Label("embedding") for at in _positions(run, hidden) if at not in run.labels}
    run.labels |= {beside: run.labels[at] for at in anchors for beside in serves_few_bits(run, at)}
    edges = [-1, *anchors, len(run)]
    firsts = {core.first for core in run.cores}
    rotated = any(rotates(run.kinds[start + 1 : stop]) for start, stop in pairwise(edges) if stop in firsts)
    for start, stop in pairwise(edges):
        gap = [at for at in range(start + 1, stop) if at not in run.labels and not is_product(run, at)]
        if gap:
            before = run.labels[start] if start >= 0 else None
            after = run.labels[stop] if stop < len(run) else None
            core = next((core for core in run.cores if core.first >= stop), None)
            product = run.shape(start) if start >= 0 else None
            for at, label in _Placed(
                run, hidden, vocab, gap, before, after, core, product, rotated, normed
            ).labels():
                run.labels[at] = label
    label_patches(run, rotated=rotated)


def _sum_adapters(run: Run, hidden: int) -> None:
    """Behind the second product of a low-rank adapter its scaling and its addition are of what it adapts."""
    ends = {core.last for core in run.cores}
    for at in [at for at in run.labels if 0 < at < len(run) - 1]:
        shape = run.shape(at)
        before = next((p for p in range(at - 1, -1, -1) if run.kinds[p].what in ("gemm", "bmm", "core")), -1)
        label = run.labels.get(before)
        if before in ends or (label is not None and label.component != run.labels[at].component):
            continue  # few small heads, a narrow MLP
        square = shape is not None and shape.n == shape.k  # of a narrower stream
        if shape is None or square or shape.k > LARGEST_RANK or shape.k >= hidden // 2 or shape.batch > 1:
            continue
        name_sum(run, at)


def _positions(run: Run, hidden: int) -> Iterator[int]:
    """What makes the indices of a lookup: right before it, on numbers of its tokens and of nothing else; and
    what puts some rows of its own into the table (peft, tuners/trainable_tokens)."""
    lookups = [(at, kind) for at, kind in enumerate(run.kinds) if looks_up(run, kind, hidden)]
    tables = {kind.tensors[0] for _, kind in lookups}
    yield from (
        at for at, kind in enumerate(run.kinds) if kind.name in _PUTS and {*kind.tensors[:1]} & tables
    )
    rows = {kind.tensors[0][0] for _, kind in lookups}
    for lookup, kind in lookups:
        tokens = {1, *kind.tensors[1], *rows}
        whole = prod(tokens) if len(kind.tensors[1]) == 1 else 1  # flattened
        most = max(prod(kind.tensors[1]), *rows)  # elements: of all tokens, or of a table's rows
        for at in range(lookup - 1, -1, -1):
            before = run.kinds[at]
            made = before.what in ("elementwise", "copy", "add", "dispatch")
            sizes = {size for t in before.tensors for size in t} - tokens
            if (
                not made
                or any(t and t[-1] in rows and prod(t) > most for t in before.tensors)
                or not all(0 < size < whole and whole % size == 0 and size != hidden for size in sizes)
            ):
                break
            yield at


class _Placed(OnStream):
    """The same with the names that follow from its place."""

    def labels(self) -> list[tuple[int, Label]]:
        for place in (
            self._in_attention,
            self._in_mlp,
            self._in_experts,
            self._behind_head,
            self._in_head,
            self._on_stream,
        ):
            found = place()
            if found is not None:
                return found
        return []

    def _all(self, component: str) -> list[tuple[int, Label]]:
        kinds = self.run.kinds
        own = ("attention.core" if lays_out_core(kinds[at]) else self._own(at) for at in self.gap)
        return [(at, Label(part or component, self.layer)) for at, part in zip(self.gap, own, strict=True)]

    def _in_attention(self) -> list[tuple[int, Label]] | None:
        cores = ("attention.core", "attention.scores")
        kinds = [self.run.kinds[at] for at in self.gap]
        bare = {kind.what for kind in kinds if not kind.tensors}
        if self._last_map >= 0 or bare >= {"convolution", "activation"}:
            return None  # other layers
        if self.before in ("attention.core", "attention.values") and self.after == "attention.output":
            beside = self._beside_core()
            return [
                (at, Label("mlp.activation", self.layer)) if at in beside else label
                for at, label in zip(self.gap, self._all("attention.other"), strict=True)
                if not self._is_larger(self.run.kinds[at])
            ]
        if self.before in ("attention.core", "attention.values") and self.after in cores:
            # one sample behind the other, or what is attended to in two ways
            if all(kind.what == "copy" or kind.name in VIEWS for kind in kinds):
                return self._all("attention.other")
            if any(
                kind.what == "convolution"  # a layer on maps
                or not kind.tensors
                or self.hidden in {t[-1] for t in kind.tensors if t}
                for kind in kinds
            ):
                return None
            return [(at, self._before_core(at, rotates=rotates(kinds))) for at in self.gap]
        if self.before in ("attention.core", "attention.values") and self.after == "attention.qkv":
            straight = (
                not any(kind.what == "norm" or adds(kind) for kind in kinds) and self.product is not None
            )
            return self._all("attention.other") if straight else None  # into the next, by no projection
        within = self.core is not None and min(self.core.parts) < self.gap[0]  # between products of its bias
        biased = self.before in ("attention.scores", "attention.softmax") and (
            self.after == cores[0] or within
        )
        weighs_first = self.core is not None and self.run.kinds[self.core.first].what == "softmax"
        takes = ("attention.qkv", *cores, *["attention.softmax"] * weighs_first)
        if biased or (self.before == "attention.qkv" and self.after in takes):
            turns = rotates([self.run.kinds[at] for at in self.gap])
            own = [at for at in self.gap if not self._open or at < self._open[0]]
            found = {at: self._before_core(at, rotates=turns) for at in own}
            return [*(found | self._casts_around(found)).items()]
        return None

    def _is_larger(self, kind: Kind) -> bool:
        """Than what the core before gives: on a map, which a compiler puts there."""
        core = next((core for core in reversed(self.run.cores) if core.last < self.gap[0]), None)
        given = core.tokens * max(core.out_width or 0, self.hidden) if core and core.tokens else 0
        return given > 0 and any(len(t) == _OF_MAP and prod(t) > _HALVES * given for t in kind.tensors)

    def _casts_around(self, found: dict[int, Label]) -> dict[int, Label]:
        """Copies before rotations and as many behind them, queries and keys in more bits; and cuts of a head
        into the halves that turn."""
        turned = {at for at, label in found.items() if label.component == "attention.rope"}
        others = {at: self.run.kinds[at] for at in found if found[at].component == "attention.other"}
        turned |= {at for at in others if others[at].name in CUTS and self._cuts_turned(at, turned)}
        copies = {at for at, kind in others.items() if kind.what == "copy" and kind.tensors}
        casts = {at for at in copies if "layout" not in self.run.kinds[at].tags}
        steps = [at for at in found if at in turned or self.run.kinds[at].name not in VIEWS]
        ahead = [at for at, behind in pairwise(steps) if at in casts and behind in turned]
        # of the queries and of the keys, before both turn; between two that turn the first's is back already
        before = (at for at in reversed(steps) if at < min(ahead, default=0))
        ahead += takewhile(casts.__contains__, before)
        first, last = min(ahead, default=0), max(turned, default=0)
        within = {at for at in casts if first <= at <= last}
        back = takewhile(casts.__contains__, (at for at in steps if at > last))
        within |= {*islice(back, max(2 * len(ahead) - len(within), 0))} if ahead else set()
        return {at: Label("attention.rope", self.layer) for at in (turned | within) & others.keys()}

    def _cuts_turned(self, at: int, turned: set[int]) -> bool:
        """Does it cut two numbers or halves of every head, one of which turns next?"""
        if (behind := self._next(at)) not in turned:
            return False
        whole, half = (next(iter(self.run.kinds[p].tensors), ()) for p in (at, behind))
        most = self.core.key_dim if self.core and self.core.key_dim else 0
        of_head = len(whole) in (4, 5) and prod(whole[3:]) <= most
        return of_head and prod(whole) == 2 * prod(half)

    def _beside_core(self) -> set[int]:
        """An MLP beside the core whose second product is one with that of the core's result: it takes both
        side by side (arXiv 2302.05442)."""
        core = next((core for core in reversed(self.run.cores) if core.last < self.gap[0]), None)
        behind = (self.run.shape(at) for at in range(self.gap[-1] + 1, len(self.run)))
        product = next((shape for shape in behind if shape is not None), None)
        width = product.k - (core.out_width or product.k) if core is not None and product is not None else 0
        kinds = [(at, self.run.kinds[at]) for at in self.gap]
        bends = ("activation", "elementwise")
        if product is None:  # without shapes what is bent ahead of that
            beside = max((at for at, kind in kinds if kind.name == "cat"), default=-1)
            first = next((at for at, kind in kinds if activates(kind)), beside)
            first -= self.run.kinds[first - 1].name in CUTS  # the half that is bent
            return {at for at, kind in kinds if first <= at < beside and kind.what in bends}
        return {
            at
            for at, kind in kinds
            if width > 0 and core is not None and width != core.out_width
            if kind.what in bends and kind.tensors and kind.tensors[0][-1:] in ((width,), (2 * width,))
        }

    def _before_core(self, at: int, *, rotates: bool) -> Label:
        kind = self.run.kinds[at]
        if lays_out_core(kind):
            return Label("attention.core", self.layer)
        if self._adds_bias(at):
            return replace(self.run.labels[at - 1], role=None)
        if "rope" in kind.tags:
            parts = ("attention.rope", "norm") if "norm" in kind.tags else ()
            return Label("attention.rope", self.layer, parts)
        if kind.what == "dropout":
            return Label("dropout", self.layer)
        if rotates and ((kind.tensors and self._makes_waves(at)) or kind.what == "embedding"):
            return Label("attention.rope", self.layer)
        if rotates and kind.name == "pow" and self.run.kinds[self._next(at)].name == "reciprocal":
            return Label("attention.rope", self.layer)  # frequencies
        affine = is_affine_of_heads(self.run, at)
        steps = kind.name in _NORM_STEPS and self._squares()
        if self._own(at) == "norm" or self._is_norm(at) or steps or affine:
            return Label("norm", self.layer)
        if rotates and kind.name in CUTS:  # of a head into its halves; a cut of all heads is another thing
            heads = self.core is not None and any(per_head(t, self.core) for t in kind.tensors)
            return Label("attention.rope" if heads else "attention.other", self.layer)
        if rotates and puts_half(self.run.kinds[at - 1], kind):
            return Label("attention.rope", self.layer)
        if rotates and kind.name == "cat" and len(set(kind.tensors)) > 1:
            return Label("attention.other", self.layer)  # rotated and unrotated parts of a head
        if kind.what == "copy" and not kind.tensors and at - 1 in self.normed:
            return Label(
                "unattributed", self.layer, candidates=("norm", "attention.other")
            )  # cast, or laid out
        if self._on_pairs(kind):
            return Label("attention.other", self.layer)  # makes what is added to the scores
        by_row = any(t[-1] == 1 for t in kind.tensors if len(t) > 2)  # of a norm, and no rotation
        other = kind.name in SCALED and (by_row or self._of_mask(at))
        if rotates and kind.name in _ROTATES | SCALED and not other:
            return Label("attention.rope", self.layer)
        return Label("attention.other", self.layer)

    def _of_mask(self, at: int) -> bool:
        """Without shapes: is no more than scaled and added what tells tokens apart?"""
        kinds = (self.run.kinds[p] for p in range(at - 1, self.gap[0] - 1, -1))
        made = next((kind for kind in kinds if kind.name not in SCALED | VIEWS | CUTS), None)
        return not self.run.kinds[at].tensors and made is not None and made.name in ASKS

    def _squares(self) -> bool:
        """Is more of a written normalization here than a mean, which what is logged can be, or a power?"""
        return len({self.run.kinds[at].name for at in self.gap} & _NORM_STEPS) > 1

    def _adds_bias(self, at: int) -> bool:
        """Does it add no more than a row to what the product right before gave, which it is then part of?"""
        kind, made = self.run.kinds[at], self.run.shape(at - 1)
        size = (made.m * made.n, made.n) if made is not None and at - 1 in self.run.labels else None
        return kind.tags == {"add"} and size == (*map(prod, kind.tensors),)

    def _on_pairs(self, kind: Kind) -> bool:
        """Works on every pair of a query and a key, as on the unfused scores of the core behind."""
        scores = self.run.shape(self.core.first) if self.core is not None else None
        if scores is None or self.core is None or scores.n == self.core.key_dim:
            return False
        return any(t[-2:] == (scores.m, scores.n) for t in kind.tensors if len(t) > 2)

    def _in_mlp(self) -> list[tuple[int, Label]] | None:
        ends = self.after == "mlp.down" or (self.after is None and self.run.phase == "recompute")
        if not _goes_up(self.product_before) or not (_goes_up(self.product_after) or ends):
            return None
        kinds, mixes = self.run.kinds, set[int]()  # a convolution over places, and its bias
        gap = [at for at in self.gap if self._is_inside(kinds[at])]
        for at in gap:
            if kinds[at].what == "convolution" or (at - 1 in mixes and kinds[at].name in ("add", "add_")):
                mixes.add(at)
        # without shapes a cast can be of the result, or of the weight that is next
        either = Label("unattributed", self.layer, candidates=("mlp.activation", "mlp.down"))
        casts = {at for at in gap if kinds[at].tags == {"cast"} and not kinds[at].tensors}
        found = dict(self._all("mlp.activation")) | dict.fromkeys(mixes, Label("mlp.other", self.layer))
        found |= dict.fromkeys(casts, either)
        bare = [at for at in gap if not kinds[at].tensors]
        stop = next((at for at in bare if kinds[at].name in _STATISTICS), len(kinds))
        # an activation sums nothing up
        return [(at, found[at]) for at in gap if at < stop or self._own(at)]

    def _is_inside(self, kind: Kind) -> bool:
        """Is it no map of another width, which a compiler puts between an MLP's products?"""
        widths = {self.product.n, self.product.n // 2} if self.product is not None else set[int]()
        maps = [t for t in kind.tensors if len(t) == _OF_MAP and 1 not in t[1:]]
        return not (widths and maps) or any(widths & {*t} for t in kind.tensors)

    def _in_experts(self) -> list[tuple[int, Label]] | None:
        same = self.before == self.after == "moe.router" and self.layer == self.next_layer
        if same and self._behind_experts is None:
            return self._all("moe.router")  # of several linear layers
        if self.before == "moe.router":
            end = None if self.after == "moe.experts" else self._behind_experts
            out: list[tuple[int, Label]] = []
            chosen = False
            for at in self.gap:
                kind = self.run.kinds[at]
                if end is not None and at >= end:
                    return [*out, *self._on_stream(end)]
                if "experts" in kind.tags or kind.what == "quantize":
                    out.append((at, Label("moe.experts", self.layer)))
                    continue
                routes = kind.what == "softmax" or kind.name in _ROUTES
                routes |= not kind.tags.isdisjoint({"router", "softmax"})
                if self.product is not None:  # what has as much as that takes is what experts gave
                    routes &= all(prod(dims) < self.product.m * self.product.k for dims in kind.tensors)
                chosen |= routes  # what stands before is of the numbers to choose by
                out.append((at, Label("moe.dispatch" if chosen and not routes else "moe.router", self.layer)))
            return out
        if self.before == "moe.experts" and self.after == "moe.router" and self.first_on_stream is None:
            # the gate of a shared expert that runs before the router
            weighed = max((at for at in self.gap if self.run.kinds[at].name in ("mul", "mul_")), default=-1)
            gates = [(at, Label("moe.experts", self.layer)) for at in self.gap if at <= weighed]
            return [*gates, *self._on_stream(weighed + 1)] if gates else None
        if self.before == "moe.experts" and self.after == "moe.experts":
            # behind the product that comes back to the hidden size results are weighed and put back
            rows = any(self.run.kinds[at].what == "dispatch" for at in self.gap)
            back = self.product.n == self.hidden != self.product.k if self.product is not None else rows
            return self._all("moe.dispatch" if back else "moe.experts")
        return None

    def _behind_head(self) -> list[tuple[int, Label]] | None:
        if self.before != "logits":
            return None
        # inside a graph nothing says where the forward ends: only what is a loss by its name
        whole = self.run.phase != "graph" and any(loses(self.run, at) for at in range(len(self.run)))
        kinds, loss = [self.run.kinds[at] for at in self.gap], [at for at in self.gap if loses(self.run, at)]
        whole &= all(kind.what != "convolution" for kind in kinds)  # and no other network
        handed = all(kind.what == "copy" or kind.name in VIEWS | CUTS for kind in kinds)
        handed &= self.after == "logits"  # to the next of several heads
        made = self.product.m * self.product.n if self.product and self.after == "logits" else 0
        taken = made in map(prod, kinds[0].tensors[:1])  # the result, before what is compared with it is made
        whole &= handed or taken or self.after is None or bool(loss)
        sure = self.gap if whole else loss
        filled = (at for at in sure if "embedding_backward" in self.run.kinds[at].tags)  # for the backward
        zeros = {at for at in filled if not loses(self.run, at)}
        bare = [at for at in range(self.gap[0], self.gap[-1] + 1) if not self.run.kinds[at].tensors]
        # another pass, or what another product gave
        begins = (at for at in bare if self.run.kinds[at].what == "embedding" or is_product(self.run, at))
        anew = next(begins, len(self.run))
        sure = [at for at in sure if at < anew and at not in zeros and not self._feeds(at)]
        # no loss bends so: a score between -1 and 1, or one that is capped, which a number scales back; nor
        # are patches put together for one
        bent = max((p for p in sure if self.run.kinds[p].name.startswith(("tanh", "col2im"))), default=-1)
        scales = bent + 1 in sure and self.run.kinds[bent + 1].name in ("mul", "mul_")
        bent += scales and len(self.run.kinds[bent + 1].tensors) < _TWO
        biased = kinds[0].name == "add_"  # in its place
        sure = [at for at in sure if at <= bent or at > self.last_scaled or (biased and at == self.gap[0])]
        bent = max(bent, self.gap[0]) if biased else bent
        parts, last = {at: "norm" for at in self.gap if counts_batches(self.run, at)}, self.last_of_columns
        last = max(len(self.run) if handed else last, bent)
        parts |= {at: "other" for at in sure if self.run.kinds[at].what == "picture"}
        named = ((at, parts.get(at, "logits" if at <= last else "loss")) for at in sure)
        # results that are put side by side are no loss yet
        side = {at for at in bare if loss and last < at < loss[0] and self.run.kinds[at].name == "cat"}
        return [(at, Label(component)) for at, component in named if at not in side]

    def _feeds(self, at: int) -> bool:
        """Does it bend what a product right behind it takes? That is another head's layer, and no loss."""
        run = self.run
        behind = next((p for p in range(at + 1, len(run)) if run.kinds[p].what != "copy"), None)
        return activates(run.kinds[at]) and behind is not None and is_product(run, behind)

    def _in_head(self) -> list[tuple[int, Label]] | None:
        """Between the products of a head: an activation, written out or not, and a normalization."""
        if self.before != "other" or self.after not in ("other", "logits"):
            return None
        return [(at, Label("norm" if self._is_norm(at) else "other")) for at in self.gap]


def _goes_up(label: Label | None) -> bool:
    """A product into an MLP, or one of two of which the one is its gate."""
    return label is not None and {label.component, *label.candidates} - {"unattributed"} <= _UP
