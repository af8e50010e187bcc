"""Between two attentions and behind the last: MLPs, mixtures of experts, and the head."""

from __future__ import annotations

from functools import cached_property
from itertools import takewhile
from math import prod

from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.norms import adds
from tracelens.attribution.structure.runs import Label
from tracelens.attribution.structure.units import CUTS, VIEWS, Kind
from tracelens.attribution.structure.walk import (
    LARGEST_RANK,
    MOST_EXPERTS,
    Walk,
    activates,
    bends,
    chooses,
    convolves_bent,
    embeds,
    gate_of,
    loses,
)
from tracelens.gemm import GemmShape

_PADDED = 512  # rows that a vocabulary is made larger by, at most
_NEAR = 8  # units behind the head
_OF_NUMBERS = frozenset({"add", "div", "mul"})  # at the end of a loss
_OF_DISTANCE = 2  # columns beside those of two vectors whose distance is one product (aten::_euclidean_dist)


class BlockWalk(Walk):
    """The part of a walk that follows an attention, up to the next."""

    def _mlps(self, products: list[int], stop: int) -> None:
        """Name the products of the MLPs (dense or of experts) among these, and what follows the last."""
        open_: list[int] = []
        head: list[int] = []
        rest = products
        while rest:
            at, rest = rest[0], rest[1:]
            shape = self.run.shape(at)
            router = self._router_of(at, rest, stop)
            if router is not None:
                rest = self._experts([p for p in products if p < at], at, rest, router, stop)
                open_, head = [], []
            elif rest[:1] and self._ups(open_, at) and self._has_shortcut(self._ups(open_, at)[0], at):
                head += [*open_, at, rest.pop(0)]
                open_ = []
            elif shape is not None and open_ and shape.n == self.hidden and self._closes(open_, at):
                others = self._others_rows(open_, at)
                open_ = [p for p in open_ if p not in others]
                if self._in_layer(shape) and (not self.after_mlp or self._goes_on(at)):
                    self._name_mlp(open_, at)
                    rest = self._adapters(rest, at)
                else:
                    head += [*open_, at]
                open_ = others
            elif shape is not None and shape.k == self.hidden and shape.batch == 1:
                open_.append(at)
                rest = self._unlabelled_adapters(rest, at, open_)
            else:
                head.append(at)
        self._head(sorted([*head, *open_]))

    def _unlabelled_adapters(self, rest: list[int], base: int, open_: list[int]) -> list[int]:
        """Adapters of a product that has no name yet wait with it."""
        run = self.run
        run.labels[base] = Label("mlp.up")
        left = self._adapters(rest, base)
        for at in rest[: len(rest) - len(left)]:
            open_.append(at)
            del run.labels[at]
        del run.labels[base]
        return left

    def _ups(self, open_: list[int], at: int) -> list[int]:
        """Those of the open products whose results the product takes, alone or two in one, with nothing of
        another block between."""
        down = self.run.shape(at)
        wide = (down.k, 2 * down.k) if down is not None else ()
        others = self._others_rows(open_, at)
        fits = [p for p in open_ if (shape := self.run.shape(p)) is not None and shape.n in wide]
        return [p for p in fits if p not in others and not any(map(self._breaks, range(p + 1, at)))]

    def _others_rows(self, open_: list[int], at: int) -> list[int]:
        """Those of the open products that are of other tokens than the product, where it has some of its own:
        two streams can go up side by side before either comes back."""
        shapes = {p: shape for p in (*open_, at) if (shape := self.run.shape(p)) is not None}
        own = [p for p in open_ if p in shapes and at in shapes and shapes[p].m == shapes[at].m]
        return [p for p in open_ if own and p not in own and p in shapes]

    def _breaks(self, at: int) -> bool:
        """Is it of another block than an MLP?"""
        kind = self.run.kinds[at]
        return kind.what in ("softmax", "bmm", "core", "embedding", "picture") or loses(self.run, at)

    def _closes(self, open_: list[int], at: int) -> bool:
        """Does the product take what the open ones made, through an activation?"""
        run, ups = self.run, self._ups(open_, at)
        shape = run.shape(at)
        if shape is None or not ups:
            return False
        inside = range(ups[0] + 1, at)
        if convolves_bent(run.kinds[ups[0] : at]):
            return False
        if any(activates(run.kinds[p]) for p in inside):
            return True
        halves = all((up := run.shape(p)) is not None and up.n == 2 * shape.k for p in ups)
        between = run.kinds[ups[-1] + 1 : at]
        if halves and all(kind.what in ("copy", "gemm") or kind.name in VIEWS for kind in between):
            return False  # nothing makes one of two: queries, and keys and values of another stream
        # added to a stream of another width: no MLP, but the way into that
        return shape.k != self.hidden and not any(map(_joins, run.kinds[ups[0] + 1 : at]))

    def _has_shortcut(self, up: int, down: int) -> bool:
        """Is what it gives added to another product of what the first took? So is a block that makes features
        of others (input and output layers of TimesFM, arXiv 2310.10688), and no layer's MLP."""
        run = self.run
        behind = [at for at in range(down + 1, min(down + 4, len(run))) if run.kinds[at].what != "copy"]
        if len(behind) < 2 or not adds(run.kinds[behind[1]]):
            return False
        first, last, beside = (run.shape(at) for at in (up, down, behind[0]))
        if first is None or last is None or beside is None:
            return False
        return (beside.m, beside.n, beside.k) == (last.m, last.n, first.k)

    def _in_layer(self, down: GemmShape) -> bool:
        """On the tokens of its attention; without one, as large as MLPs that have one. A head is neither."""
        if self.run.phase == "recompute" or not self.run.cores:
            return True
        if not self.after_mlp and (not self.rows or down.m in self.rows or self._is_half(down)):
            self.mlps.add((down.n, down.k))
        return (down.n, down.k) in self.mlps

    def _goes_on(self, down: int) -> bool:
        """Is what it gives added to a stream or normalized? What a head gives is not."""
        shape, behind = self.run.shape(down), self.run.kinds[down + 1 :]
        ahead = takewhile(lambda kind: kind.what not in ("bmm", "softmax", "core", "loss"), behind)
        whole = shape.m * shape.n if shape is not None else 1
        return any(  # alone, or put beside others
            kind.what == "fused"
            or (kind.what in ("add", "norm") and any(prod(t) % whole == 0 for t in kind.tensors[:1]))
            for kind in ahead
        )

    def _is_half(self, down: GemmShape) -> bool:
        """Does the same product on other tokens make up all those of the attention: two streams, side by side
        in it, that each have their MLP?"""
        shapes = (self.run.shape(at) for at in self.run.products())
        rest = max(self.rows, default=0) - down.m
        return any(
            shape is not None and (shape.m, shape.n, shape.k) == (rest, down.n, down.k) for shape in shapes
        )

    def _name_mlp(self, open_: list[int], down: int) -> None:
        run = self.run
        shape = run.shape(down)
        assert shape is not None
        if self.after_mlp and self.mlp_rows in (None, shape.m):
            self.layer += 1  # a layer without attention; that of other tokens is the other stream's
        self.after_mlp = True
        self.mlp_rows = shape.m
        # of the stream: what comes from less is an adapter's
        up = [at for at in self._ups(open_, down) if (s := run.shape(at)) and s.k == self.hidden]
        layer = max(self.layer, 0)
        if run.kinds[down].name in GROUPED:  # experts, whatever chose them
            grouped = [at for at in up if run.kinds[at].name in GROUPED]
            run.labels |= {at: Label("moe.experts", layer) for at in (*grouped, down)}
            return
        open_ = [at for at in open_ if at in up or self._is_adapter(at, open_)]
        for at in open_:  # adapters take the name of what they adapt
            run.labels[at] = Label("mlp.up", layer)
        if len(up) == 1 and (s := run.shape(up[0])) is not None and s.n == 2 * shape.k:
            run.labels[up[0]] = Label("mlp.up", layer, ("mlp.up", "mlp.gate"))
        elif len(up) >= 2:
            # the gate is what the activation takes, also where that runs before the other product
            acts = next((at for at in range(up[1] + 1, down) if activates(run.kinds[at])), up[1] + 1)
            between = any(activates(run.kinds[at]) for at in range(up[0] + 1, up[1]))
            gate = 0 if between else gate_of(run.kinds, up[0], up[1], acts)
            unknown = Label("unattributed", layer, candidates=("mlp.gate", "mlp.up"))
            for at in open_:
                named = Label("mlp.gate" if (at >= up[1]) == gate else "mlp.up", layer)
                run.labels[at] = unknown if gate is None else named
        run.labels[down] = Label("mlp.down", layer)

    def _is_adapter(self, at: int, among: list[int]) -> bool:
        """One of two products in a row by way of a small rank."""
        small = min(LARGEST_RANK, self.hidden // 2)
        shapes = [shape for other in among if other != at and (shape := self.run.shape(other)) is not None]
        own = self.run.shape(at)
        return own is None or any(own.n == shape.k <= small or own.k == shape.n <= small for shape in shapes)

    def _router_of(self, at: int, rest: list[int], stop: int) -> int | None:
        """The routing that follows this product before the next, when it is small and from the stream."""
        shape = self.run.shape(at)
        rest = rest[len(self._in_router(at, rest)) :]
        until = rest[0] if rest else stop
        if shape is None or shape.n > MOST_EXPERTS:
            return None
        distances = shape.batch > 1 and shape.k == self.hidden + _OF_DISTANCE
        if not distances and (shape.k != self.hidden or shape.batch > 1):
            return None
        routers = [p for p in self.routers if at < p < until]
        among = {tensor[-1] for p in routers for tensor in self.run.kinds[p].tensors}
        if among and shape.n not in among and all(self.run.kinds[p].name == "topk" for p in routers):
            return None  # a choice among places, as of a detector's queries, is none among experts
        router = next(iter(routers), None)
        if router is None or self._experts_of(rest, router, stop):
            return router
        return router if self._chooses(at, router, shape.n) else None

    def _in_router(self, at: int, rest: list[int]) -> list[int]:
        """Products behind a router's first that also give a number for each expert: of a second layer, and of
        how much noise to add (arXiv 1701.06538)."""
        first = self.run.shape(at)
        sizes = [] if first is None else [(1, first.m, first.n, k) for k in (self.hidden, first.n)]
        shapes = ((p, self.run.shape(p)) for p in rest)
        return [
            p for p, _ in takewhile(lambda x: x[1] and (x[1].batch, x[1].m, x[1].n, x[1].k) in sizes, shapes)
        ]

    def _chooses(self, at: int, router: int, among: int) -> bool:
        """Inside a layer one of ``among`` is chosen by a softmax for each token: that routes, even where no
        expert got any, or runs as no product that is known."""
        kinds = self.run.kinds
        inside = bool(self.run.cores) and router < self.run.cores[-1].first
        inside |= any(label.component == "moe.router" for label in self.run.labels.values())
        weighed = (kind for kind in kinds[at + 1 : router] if kind.what == "softmax")
        chosen = kinds[router + 1 : router + 2]  # the softmax can be of the chosen alone
        of_chosen = any(kind.what == "softmax" and kind.tensors[0][-1] < among for kind in chosen)
        return inside and (of_chosen or any(t[-1] == among for kind in weighed for t in kind.tensors))

    def _experts_of(self, rest: list[int], router: int, stop: int) -> list[int]:
        """The products between a choice and the next normalization, if they go into experts and come back."""
        edge = next((at for at in self.norms if at > router), stop)
        found = [at for at in rest if at < edge]
        shapes = [shape for at in found if (shape := self.run.shape(at)) is not None]
        widths = {shape.n for shape in shapes if shape.k == self.hidden}
        back = [
            at for at in found if (s := self.run.shape(at)) and s.n == self.hidden and {s.k, 2 * s.k} & widths
        ]
        gates = [at for at in found if self._gates_tokens(at)]
        moved = any(
            kind.what == "dispatch" and kind.width == self.hidden for kind in self.run.kinds[router:edge]
        ) or any(shape.batch > 1 or shape.m not in self.rows for shape in shapes)
        if not back or not moved:  # a dense MLP takes every token where it is
            return []
        return [at for at in found if at <= max([*back, *gates])]

    def _experts(self, ahead: list[int], at: int, rest: list[int], router: int, stop: int) -> list[int]:
        """Name a router and the products of its experts; returns the products behind them."""
        run = self.run
        own = self._in_router(at, rest)
        rest = rest[len(own) :]
        before = max((p for p in ahead if p in run.labels), default=0)
        added = any(map(self._sums_up, run.kinds[before:at]))
        # where nothing was added to the stream since, the MLP before is of the same layer: a shared expert
        if self.after_mlp and added:
            self.layer += 1
        gates = [] if added or not self.after_mlp else [p for p in ahead if p > before]
        self.after_mlp = True
        layer = max(self.layer, 0)
        experts = self._experts_of(rest, router, stop)
        if not experts:  # they run later, beside the MLP that is next (LongCat, arXiv 2509.01322)
            self.mlp_rows = 0
        sends = self._sends(at, [p for p in rest if p < stop])
        places = [*experts, *filter(self._gates_tokens, gates)]
        run.labels |= {p: Label("moe.experts", layer) for p in places}
        run.labels |= {p: Label("moe.router", layer) for p in (at, *own)}
        run.labels |= dict.fromkeys(sends, Label("moe.dispatch", layer))
        return [p for p in rest[len(experts) :] if p not in sends]

    def _sends(self, router: int, behind: list[int]) -> list[int]:
        """Products with who goes where: tokens to their places at experts, and back (arXiv 2006.16668)."""
        made = self.run.shape(router)
        shapes = [(at, shape) for at in behind if (shape := self.run.shape(at)) and shape.n == self.hidden]
        if made is None or not shapes:
            return []
        there, first = shapes[0]
        back = next(
            (at for at, s in shapes[1:] if (s.batch, s.m, s.k) == (first.batch, first.k, first.m)), None
        )
        return [] if back is None or first.batch * first.k != made.m else [there, back]

    def _gates_tokens(self, at: int) -> bool:
        """One number for each token, which its shared expert is weighed by?"""
        shape = self.run.shape(at)
        return shape is not None and (shape.n, shape.k) == (1, self.hidden)

    def _whole_mixture(self, start: int, stop: int) -> None:
        """Name a mixture of experts that is one operator, and the router whose results it takes."""
        run = self.run
        for at in range(start, stop):
            if run.kinds[at].what != "experts":
                continue
            self.after_mlp = True
            layer = max(self.layer, 0)
            run.labels[at] = Label("moe.experts", layer)
            router = max(run.products(start, at), default=None)
            shape = run.shape(router) if router is not None else None
            if router is None or shape is None or shape.k != self.hidden:
                continue
            if shape.n <= MOST_EXPERTS and shape.n in {tensor[-1] for tensor in run.kinds[at].tensors}:
                run.labels[router] = Label("moe.router", layer)
                run.labels.update(dict.fromkeys(range(router + 1, at), Label("moe.dispatch", layer)))

    def _head(self, products: list[int]) -> None:
        """What stands behind the last layer: the vocabulary (or classes), and layers before it."""
        run = self.run
        if not products or run.phase == "recompute":
            return
        cores = run.cores
        if cores and any(at < cores[-1].first for at in products):
            run.labels |= {at: Label("embedding") for at in products if self._opens_stream(at)}
            return  # between two layers: no head
        shapes = {at: shape for at in products if (shape := run.shape(at)) is not None}
        if len(shapes) < len(products):
            return
        last = shapes[products[-1]]
        losses = [at for at in range(products[0], len(run)) if loses(run, at)]
        before = [at for at in products if losses and at < losses[0]]
        between = run.kinds[before[-1] : losses[0]] if before else ()
        if any(kind.what == "convolution" or "batch_norm" in kind.name for kind in between):
            return  # a picture is made behind it, or it is of a layer of edges
        vocab = shapes[before[-1]].n if before else last.n
        if last.k != self.hidden and not before:  # of a decoder of another width, by its own table
            run.labels |= {products[-1]: Label("logits")} if self._onto_words(products[-1], last) else {}
            return
        if not before and (part := self._cut_layer(products[-1])) is not None:
            run.labels[products[-1]] = part
            return
        if not before and not self._scores(products[-1], vocab):
            taken = (kind.name for kind in run.kinds[products[-1] + 1 :] if kind.what != "copy")
            pools = last.n == last.k and next(taken, "") == "tanh"  # BERT's
            averaged = [] if pools else self._averaged(products[-1])
            if pools or averaged:  # what is as wide as the stream can be a pooler's
                run.labels[products[-1]] = Label("logits" if last.n != self.hidden else "other")
            run.labels |= {at: Label("loss") for at in averaged if run.phase != "graph"}
            return
        for at, shape in shapes.items():
            sizes = {shape.m, shape.n, shape.k}
            ends = bool(before) and (at == before[-1] or self._adapts_head(at, shapes, before))
            if ends or (shape.n == vocab and shape.k == self.hidden):
                run.labels[at] = Label("logits")
            elif vocab != self.hidden and {vocab, self.hidden} <= sizes and losses and at > losses[0]:
                # a loss that gives its gradient in the forward (fused with the head, chunk by chunk)
                run.labels[at] = Label("logits", role="dgrad" if shape.k == vocab else "wgrad")
            elif shape.k == self.hidden and shape.n in (self.hidden, shapes[products[-1]].k):
                after = next((p for p in products if p > at), len(run))
                behind, taker = run.kinds[at + 1 : after], shapes.get(after, last)
                bent = any(map(activates, behind))
                # two layers of a projection
                projects = bent and shape.n != self.hidden and taker.k == shape.n and after not in before[-1:]
                if not projects and (bent or not any(map(_joins, behind))):
                    run.labels[at] = Label("other")  # the transform before the vocabulary, a pooler

    def _adapts_head(self, at: int, shapes: dict[int, GemmShape], before: list[int]) -> bool:
        """Is it the first of two products of a small rank beside the head?"""
        head, down, up = (shapes[p] for p in (before[0], at, before[-1]))
        small = down.n <= min(LARGEST_RANK, self.hidden // 2)
        return before[0] < at and (down.k, up.k) == (head.k, down.n) and up.n == head.n and small

    def _opens_stream(self, at: int) -> bool:
        """What no product made, brought onto the stream, with positions from a table: of a decoder of numbers
        and not of words (arXiv 2012.07436)."""
        run, shape = self.run, self.run.shape(at)
        if shape is None or shape.n != self.hidden or at < run.cores[0].first:
            return False
        if self._made_widths & {shape.k, 2 * shape.k}:
            return False
        behind = (run.kinds[place] for place in range(at + 1, len(run)))
        return any(map(embeds, takewhile(lambda kind: kind.what not in ("gemm", "bmm", "core"), behind)))

    @cached_property
    def _made_widths(self) -> set[int]:
        return {shape.n for at in self.run.products() if (shape := self.run.shape(at)) is not None}

    def _cut_layer(self, at: int) -> Label | None:
        """The last product as the layers call theirs of its sizes, where a cut file ends in an MLP."""
        run, behind = self.run, self.run.kinds[at + 1 :]
        alike = [label for before, label in run.labels.items() if run.shape(before) == run.shape(at)]
        inside = {label.component for label in alike} == {"mlp.up"} and not any(map(_joins, behind))
        return alike[-1] if inside else None

    def _scores(self, at: int, vocab: int) -> bool:
        """Without a loss: is the product one onto the words of an embedding, or are its results compared?"""
        shape, behind = self.run.shape(at), self.run.kinds[at + 1 : at + 1 + _NEAR]
        if shape is not None and self._onto_words(at, shape):
            return True
        return any(chooses(kind, vocab) for kind in behind)

    def _averaged(self, at: int) -> list[int]:
        """Without a loss of a name: from what the product made to the mean of it, or of what a mask leaves of
        its rows, and to its share of a step (gradients that accumulate, losses that are added up), where
        the run ends in these."""
        run, shape = self.run, self.run.shape(at)
        behind = [place for place in range(at + 1, len(run)) if run.kinds[place].name not in VIEWS | CUTS]
        kinds = [run.kinds[place] for place in behind]
        ends = [kind for kind in kinds if kind.what != "copy"]
        while ends and not ends[-1].tensors and ends[-1].name in _OF_NUMBERS:
            ends.pop()
        sizes = [prod(kind.tensors[0]) for kind in ends if kind.tensors]
        if shape is None or not sizes or run.products(at + 1):
            return []
        rows, rest = divmod(sizes[0], shape.n)  # fewer than the product has, without a token put before all
        # a sum of all that the product made can be one over the tokens: a pooler's
        if ends[-1].name != "mean" and (ends[-1].name, sizes[-1]) != ("sum", rows):
            return []
        whole = not rest and rows <= shape.m < 2 * rows and {*sizes} <= {sizes[0], rows}
        return behind if len(ends) <= _NEAR and whole else []

    def _onto_words(self, at: int, shape: GemmShape) -> bool:
        """Onto as many words as an embedding before it has, from their width?"""
        tables = (t for kind in self.run.kinds[:at] if embeds(kind) for t in kind.tensors if len(t) == 2)
        own = (words for words, width in tables if width == shape.k)
        return any(words <= shape.n < words + min(_PADDED, words // 2) for words in own)


def _joins(kind: Kind) -> bool:
    """Two tensors of one shape, or, in a fused kernel that is no activation written out, what may be."""
    return adds(kind) or ("add" in kind.tags and not bends(kind))
