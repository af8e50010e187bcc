"""The forward of a transformer, read from the order and the shapes of its products.

A layer is: normalization, the products that make queries, keys and values, the attention core, the
output projection, normalization, the products of the MLP. The core is the fixed point: what stands
behind the last normalization of the residual stream before it makes queries, keys and values; the
first product behind it that takes its width is the output projection; what follows up to the next
normalization before a core is an MLP when it goes up from the hidden size and comes back down to it.
Every name given rests on such a relation of shapes; a product for which none holds stays open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod

from tracelens.attribution.structure.norms import adds, is_affine, is_step, normalizes
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import GemmShape

MOST_EXPERTS = 1024
_PADDED = 512  # rows that a vocabulary is made larger by, at most
_NEAR = 8  # units behind the head
_COMPARES = frozenset({"softmax", "log_softmax", "argmax", "max", "topk", "sort", "multinomial"})
LARGEST_RANK = 512  # of a low-rank adapter


def hidden_size(runs: Iterable[Run]) -> int | None:
    """The width of the residual stream: what the products that take the core's output give."""
    votes: Counter[int] = Counter()
    weak: Counter[int] = Counter()
    for run in runs:
        for core, following in _pairs(run):
            stop = following.first if following else len(run)
            behind = [shape for at in run.products(core.last + 1, stop) if (shape := run.shape(at))]
            exact = [
                s for s in behind if s.k == core.out_width or (core.heads is None and _fits_heads(s.k, core))
            ]
            votes.update(shape.n for shape in exact[:1])
            weak.update(shape.n for shape in behind[:1] if _takes_heads(shape.k, core))
    votes = votes or weak
    return votes.most_common(1)[0][0] if votes else None


def _takes_heads(width: int, core: Core) -> bool:
    """As wide as the core's output, or a slice of every head of it (values padded to the keys' width)."""
    if core.out_width is None or core.heads is None or core.value_dim is None:
        return _fits_heads(width, core)
    return width == core.out_width or (width < core.out_width and width % core.heads == 0)


def _pairs(run: Run) -> list[tuple[Core, Core | None]]:
    """Each core with the one behind it."""
    return [*zip(run.cores, run.cores[1:], strict=False), *((core, None) for core in run.cores[-1:])]


def _fits_heads(width: int, core: Core) -> bool:
    """Where the heads are not known: a whole number of them; with nothing known, any width will do."""
    return core.value_dim is None or width % core.value_dim == 0


def label_forward(run: Run, hidden: int) -> None:
    """Name the products of a forward (or recomputed) run; fills ``run.labels``."""
    Forward(run, hidden).label()
    if run.phase == "recompute":  # a piece of the model: its layers cannot be counted from the first
        run.labels.update({at: replace(label, layer=None) for at, label in run.labels.items()})


def label_again(run: Run, forward: list[Run]) -> None:
    """Name a recomputed piece by the sizes of the forward where its own order does not: it can begin and
    end within an MLP, or among experts.

    Of a gate and its twin of one size the gate comes first, as in the forward.
    """
    known: dict[tuple[int, int, int], list[Label]] = {}
    for other in forward:
        for at, label in sorted(other.labels.items()):
            shape = other.shape(at)
            if other.kinds[at].what == "gemm" and shape is not None:
                found = known.setdefault((shape.m, shape.n, shape.k), [])
                if label.component not in [one.component for one in found]:
                    found.append(label)
    turn: Counter[tuple[int, int, int]] = Counter()
    for at in run.products():
        shape, own = run.shape(at), run.labels.get(at)
        if shape is None:
            continue
        size = (shape.m, shape.n, shape.k)
        fits = known.get(size, [])
        if own is not None and (not fits or own.component in [one.component for one in fits]):
            continue
        if len(fits) == 1 or {label.component for label in fits} == {"mlp.gate", "mlp.up"}:
            chosen = fits[turn[size] % len(fits)]
            turn[size] += 1
            run.labels[at] = Label(chosen.component, None, chosen.components)


class Forward:
    """One walk over the products of a run."""

    def __init__(self, run: Run, hidden: int):
        self.run = run
        self.hidden = hidden
        self.layer = -1
        self.after_attention = False  # the current layer has its attention
        self.after_mlp = True  # the current layer has its MLP, or there is none yet
        self.rows: int | None = None  # of the last output projection
        self.mlps: set[tuple[int, int]] = set()  # (n, k) that close the MLPs of layers
        self.norms = [
            at for at in range(len(run)) if normalizes(run, at, hidden) or is_affine(run, at, hidden)
        ]
        self.routers = [at for at, kind in enumerate(run.kinds) if routes(run, at)]

    def label(self) -> None:
        run = self.run
        products = run.products()
        if not run.cores:
            self._mlps(products, stop=len(run))
            return
        self._before_first(products)
        for core, following in _pairs(run):
            for at, component in core.parts.items():
                run.labels[at] = Label(component, self.layer)
            stop = following.first if following else len(run)
            here = [at for at in products if core.last < at < stop]
            rest = self._output(here, core)
            makes = self._makes_queries(rest, following) if following else []
            self._mlps([at for at in rest if at not in set(makes)], stop=makes[0] if makes else stop)
            if following:
                self._begin_attention()
                self._name_queries(makes, following)

    def _begin_attention(self) -> None:
        """Self-attention opens a layer; a second attention before its MLP is cross-attention in the same."""
        if self.after_mlp or self.layer < 0:
            self.layer += 1
            self.after_mlp = False
        self.after_attention = True

    def _before_first(self, products: list[int]) -> None:
        core = self.run.cores[0]
        before = [at for at in products if at < core.first]
        norms = [at for at in self.norms if at < core.first]
        norms = [at for at in norms if not self._of_queries(at, before)]
        makes = [at for at in before if not norms or at > norms[-1]] or before[-1:]
        makes = [*self._queries_ahead(before, norms, core), *makes]
        earlier = [at for at in before if at not in set(makes)]
        if self.run.phase == "recompute":
            self._mlps(earlier, stop=makes[0] if makes else core.first)
        else:
            self._layers_ahead(earlier, makes[0] if makes else core.first)
        self._begin_attention()
        self._name_queries(makes, core)

    def _layers_ahead(self, products: list[int], stop: int) -> None:
        """Before the first attention: patches or features are brought onto the hidden size, and hybrids have
        layers without any, whose MLPs are as large as those of layers that have it."""
        shapes = [(at, shape) for at in products if (shape := self.run.shape(at)) is not None]
        first = next((at for at, shape in shapes if shape.k == self.hidden), stop)
        if not any(self._sums_up(kind) for kind in self.run.kinds[first:stop]):
            first = stop  # a layer is added to the stream: these only make it
        made = 0  # width of what the product before makes of patches or features
        for at, shape in shapes:
            if at < first and shape.n == self.hidden and (shape.k != self.hidden or shape.k == made):
                self.run.labels[at] = Label("embedding")
                made = shape.n
        self.mlps |= self._closing()
        self._mlps([at for at in products if at >= first], stop)

    def _sums_up(self, kind: Kind) -> bool:
        """An addition to the residual stream, alone or in a fused kernel."""
        return "add" in kind.tags or (adds(kind) and kind.width == self.hidden)

    def _closing(self) -> set[tuple[int, int]]:
        """(n, k) of the products that close an MLP directly behind an attention core, added to the stream."""
        out = set()
        for core, following in _pairs(self.run):
            stop = following.first if following else len(self.run)
            before: set[int] = set()
            products = self.run.products(core.last + 1, stop)
            for at, behind in zip(products, [*products[1:], stop], strict=False):
                shape = self.run.shape(at)
                if shape is not None and shape.n == self.hidden and {shape.k, 2 * shape.k} & before:
                    if any(self._sums_up(kind) for kind in self.run.kinds[at + 1 : behind]):
                        out.add((shape.n, shape.k))
                    break
                if shape is not None and shape.k == self.hidden and shape.batch == 1:
                    before.add(shape.n)
        return out

    def _makes_queries(self, rest: list[int], core: Core) -> list[int]:
        """Of the products between two cores those that make the second's queries, keys and values."""
        start = rest[0] if rest else 0
        norms = [at for at in self.norms if start - 1 <= at < core.first]
        inner = [at for at in self.norms if at < core.first and not self._of_queries(at, rest)]
        edge = inner[-1] if inner else -1
        makes = [at for at in rest if at > edge]
        if makes and (norms or not self._has_down(makes)):
            return [*self._queries_ahead(rest, inner, core), *makes]
        down = [at for at in rest if self._is_down(at)]
        return [at for at in rest if not down or at > down[-1]]

    def _queries_ahead(self, products: list[int], norms: list[int], core: Core) -> list[int]:
        """The product of the queries, where the last normalization is that of a shortened stream, of which
        keys and values are made (spatial reduction, as in PVT and SegFormer)."""
        at = next((at for at in reversed(products) if norms and at < norms[-1]), None)
        shape = self.run.shape(at) if at is not None else None
        if at is None or shape is None or core.tokens is None or not core.heads or not core.key_dim:
            return []
        rows = [prod(t[:-1]) for t in self.run.kinds[norms[-1]].tensors if len(t) >= 2]
        fewer = bool(rows) and max(rows) < core.tokens == shape.m * shape.batch
        makes = fewer and (shape.n, shape.k) == (core.heads * core.key_dim, self.hidden)
        return [at] if makes else []

    def _of_queries(self, norm: int, products: list[int]) -> bool:
        """A normalization of queries or keys over all heads at once: of what a product made of the stream,
        with nothing added between."""
        made_by = max((at for at in products if at < norm), default=None)
        shape = self.run.shape(made_by) if made_by is not None else None
        if made_by is None or shape is None or shape.k != self.hidden or self.run.kinds[norm].what == "fused":
            return False
        between = self.run.kinds[made_by + 1 : norm]
        return all(kind.what in ("norm", "copy") or is_step(kind) for kind in between)

    def _has_down(self, products: list[int]) -> bool:
        return any(self._is_down(at) for at in products)

    def _is_down(self, at: int) -> bool:
        shape = self.run.shape(at)
        return shape is not None and shape.n == self.hidden and shape.k != self.hidden

    def _name_queries(self, makes: list[int], core: Core) -> None:
        run = self.run
        for at in makes:
            shape = run.shape(at)
            if shape is not None and not self._fits_queries(at, makes, core):
                continue
            run.labels[at] = Label("attention.qkv", self.layer)

    def _fits_queries(self, at: int, makes: list[int], core: Core) -> bool:
        """It takes the residual stream or another product of the group (low-rank queries and keys)."""
        shape = self.run.shape(at)
        if shape is None:
            return False
        if shape.batch > 1:
            return False  # rotary tables, position biases: no weight
        inner = {other.n for p in makes if (other := self.run.shape(p)) is not None}
        if shape.k != self.hidden and self._is_of_heads(shape, makes, core):
            return True
        # a slice of another product: keys and values from the compressed part, without its rotary part
        return shape.k == self.hidden or shape.k in inner or any(shape.k < n < 2 * shape.k for n in inner)

    def _is_of_heads(self, shape: GemmShape, makes: list[int], core: Core) -> bool:
        """As wide as the core's heads, from another width: the first layer of a stage makes all three in one,
        and in bottlenecks or across models the values come from the wider side of one that makes queries."""
        if not core.key_dim:
            return False
        query = core.heads * core.key_dim if core.heads else self.hidden
        key = core.kv_heads * core.key_dim if core.kv_heads else query
        widths = {other.k for p in makes if (other := self.run.shape(p)) is not None}
        return shape.n in (key, 2 * key) if self.hidden in widths else shape.n == query + 2 * key

    def _output(self, here: list[int], core: Core) -> list[int]:
        """Name the output projection; returns the products behind it.

        Where a gate on the core's output is as large, the projection is the last before the stream is
        normalized again.
        """
        run = self.run
        index = self._output_index(here, core)
        if index is None:
            return here
        at = here[index]
        shape, width = run.shape(at), core.out_width
        both = shape is not None and width is not None and shape.k > width
        self.rows = shape.m if shape is not None else None
        run.labels[at] = Label(
            "attention.output", self.layer, ("attention.output", "mlp.down") if both else ()
        )
        for between in here[:index]:
            # a gate on the core's output, or the same projection for other tokens
            other = run.shape(between)
            gates = other is None or shape is None or other.batch > 1 or other.m == shape.m
            run.labels[between] = Label("attention.other" if gates else "attention.output", self.layer)
        return self._adapters(here[index + 1 :], at)

    def _output_index(self, here: list[int], core: Core) -> int | None:
        run, width = self.run, core.out_width
        # a normalization that no product stands before is that of the core's output
        edge = next((at for at in self.norms if here and at > here[0]), len(run))
        fits: list[int] = []
        for index, at in enumerate(here):
            shape = run.shape(at)
            if shape is None:  # no shapes anywhere: the first product behind a core takes its output
                return index
            if fits and (at > edge or (shape.n, shape.k) != self._sizes(here[fits[0]])):
                break
            wide = width is not None and shape.k >= width
            if shape.n == self.hidden and shape.batch == 1 and (wide or _takes_heads(shape.k, core)):
                fits.append(index)
            elif not fits and shape.k == self.hidden and shape.n > self.hidden:
                return None  # an MLP already: no output projection is to be seen
        return fits[-1] if fits else None

    def _sizes(self, at: int) -> tuple[int, int]:
        shape = self.run.shape(at)
        assert shape is not None
        return (shape.n, shape.k)

    def _adapters(self, rest: list[int], base: int) -> list[int]:
        """Low-rank adapters beside a product (x A B added to x W) belong to it; returns what is left."""
        run, wide = self.run, self.run.shape(base)
        if len(rest) < 2 or wide is None:
            return rest
        down, up = run.shape(rest[0]), run.shape(rest[1])
        if (
            down is not None
            and up is not None
            and down.k == wide.k
            and up.k == down.n <= min(LARGEST_RANK, wide.k // 2)
            and up.n == wide.n
        ):
            label = run.labels[base]
            run.labels[rest[0]] = run.labels[rest[1]] = Label(label.component, label.layer)
            return self._adapters(rest[2:], base)
        return rest

    def _mlps(self, products: list[int], stop: int) -> None:
        """Name the products of the MLPs (dense or of experts) among these, and what follows the last."""
        run = self.run
        open_: list[int] = []
        index = 0
        head: list[int] = []
        while index < len(products):
            at = products[index]
            shape = run.shape(at)
            router = self._router_of(products, index, stop)
            if router is not None:
                index = self._experts(products, index, router, stop)
                open_, head = [], []
                continue
            if shape is None:
                head.append(at)
            elif open_ and shape.n == self.hidden and self._closes(open_, at):
                if self._in_layer(shape):
                    self._name_mlp(open_, at)
                else:
                    head += [*open_, at]
                left = self._adapters(products[index + 1 :], at)
                index = len(products) - len(left)
                open_ = []
                continue
            elif shape.k == self.hidden and shape.batch == 1:
                open_.append(at)
                left = self._unlabelled_adapters(products[index + 1 :], at, open_)
                index = len(products) - len(left)
                continue
            else:
                head.append(at)
            index += 1
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

    def _closes(self, open_: list[int], at: int) -> bool:
        """Does the product take what the open ones made, through an activation?"""
        run = self.run
        shape = run.shape(at)
        widths = {other.n for p in open_ if (other := run.shape(p)) is not None}
        if shape is None or not (shape.k in widths or 2 * shape.k in widths):
            return False
        inside = range(open_[0] + 1, at)
        if any(loses(run, p) for p in inside):
            return False  # a head whose loss gives its gradient at once
        if any(_activates(run, p) for p in inside):
            return True
        # added to a stream of another width: no MLP, but the way into that
        return shape.k != self.hidden and not any(adds(run.kinds[p]) for p in inside)

    def _in_layer(self, down: GemmShape) -> bool:
        """On the tokens of its attention; without one, as large as MLPs that have one. A head is neither."""
        if self.run.phase == "recompute" or not self.run.cores:
            return True
        if not self.after_mlp and self.rows in (None, down.m):
            self.mlps.add((down.n, down.k))
        return (down.n, down.k) in self.mlps

    def _name_mlp(self, open_: list[int], down: int) -> None:
        run = self.run
        shape = run.shape(down)
        assert shape is not None
        if self.after_mlp:
            self.layer += 1  # a layer without attention
        self.after_mlp = True
        self.after_attention = False
        wide = (shape.k, 2 * shape.k)  # of the stream: what comes from less is an adapter's
        up = [at for at in open_ if (s := run.shape(at)) and s.n in wide and s.k == self.hidden]
        layer = max(self.layer, 0)
        open_ = [at for at in open_ if at in up or self._is_adapter(at, open_)]
        for at in open_:  # adapters take the name of what they adapt
            run.labels[at] = Label("mlp.up", layer)
        if len(up) == 1 and (s := run.shape(up[0])) is not None and s.n == 2 * shape.k:
            run.labels[up[0]] = Label("mlp.up", layer, ("mlp.up", "mlp.gate"))
        elif len(up) >= 2:
            # the gate is what the activation takes; where both come before it, the first by custom:
            # down(act(gate(x)) * up(x)) is how every public gated MLP is written
            for at in open_:
                run.labels[at] = Label("mlp.gate" if at < up[1] else "mlp.up", layer)
            acts = next((at for at in range(up[1] + 1, down) if _activates(run, at)), up[1] + 1)
            if not any(_activates(run, at) for at in range(up[0] + 1, up[1])) and acts > up[1] + 1:
                # something is done to one of the two before the activation: nothing tells to which
                unknown = Label("unattributed", layer, candidates=("mlp.gate", "mlp.up"))
                run.labels.update(dict.fromkeys(open_, unknown))
        run.labels[down] = Label("mlp.down", layer)

    def _is_adapter(self, at: int, among: list[int]) -> bool:
        """One of two products in a row by way of a small rank."""
        shapes = [shape for other in among if other != at and (shape := self.run.shape(other)) is not None]
        own = self.run.shape(at)
        return own is None or any(own.n == shape.k or own.k == shape.n for shape in shapes)

    def _router_of(self, products: list[int], index: int, stop: int) -> int | None:
        """The routing that follows this product before the next, when it is small and from the stream."""
        at = products[index]
        shape = self.run.shape(at)
        until = products[index + 1] if index + 1 < len(products) else stop
        if shape is None or shape.k != self.hidden or shape.n > MOST_EXPERTS or shape.batch > 1:
            return None
        router = next((p for p in self.routers if at < p < until), None)
        if router is None or self._experts_of(products, index, router, stop):
            return router
        return router if self._chooses(at, router, shape.n) else None

    def _chooses(self, at: int, router: int, among: int) -> bool:
        """Inside a layer one of ``among`` is chosen by a softmax for each token: that routes, even where no
        expert got any, or runs as no product that is known."""
        kinds = self.run.kinds
        inside = bool(self.run.cores) and router < self.run.cores[-1].first
        inside |= any(label.component == "moe.router" for label in self.run.labels.values())
        weighed = (kind for kind in kinds[at + 1 : router] if kind.what == "softmax")
        return inside and any(t[-1] == among for kind in weighed for t in kind.tensors)

    def _experts_of(self, products: list[int], index: int, router: int, stop: int) -> list[int]:
        """The products between a choice and the next normalization, if they go into experts and come back."""
        edge = next((at for at in self.norms if at > router), stop)
        found = [at for at in products[index + 1 :] if at < edge]
        shapes = [shape for at in found if (shape := self.run.shape(at)) is not None]
        widths = {shape.n for shape in shapes if shape.k == self.hidden}
        comes_back = any(
            shape.n == self.hidden and (shape.k in widths or 2 * shape.k in widths) for shape in shapes
        )
        moved = any(
            kind.what == "dispatch" and kind.width == self.hidden for kind in self.run.kinds[router:edge]
        ) or any(shape.batch > 1 or shape.m != self.rows for shape in shapes)
        return found if comes_back and moved else []  # a dense MLP takes every token where it is

    def _experts(self, products: list[int], index: int, router: int, stop: int) -> int:
        """Name a router and the products of its experts; returns the index behind them."""
        run = self.run
        if self.after_mlp:
            self.layer += 1
        self.after_mlp = True
        layer = max(self.layer, 0)
        run.labels[products[index]] = Label("moe.router", layer)
        experts = self._experts_of(products, index, router, stop)
        run.labels.update({at: Label("moe.experts", layer) for at in experts})
        return index + 1 + len(experts)

    def _head(self, products: list[int]) -> None:
        """What stands behind the last layer: the vocabulary (or classes), and layers before it."""
        run = self.run
        if not products or run.phase == "recompute":
            return
        cores = run.cores
        if cores and any(at < cores[-1].first for at in products):
            return  # between two layers: no head
        shapes = {at: shape for at in products if (shape := run.shape(at)) is not None}
        if len(shapes) < len(products):
            return
        last = shapes[products[-1]]
        losses = [at for at in range(products[0], len(run)) if loses(run, at)]
        before = [at for at in products if losses and at < losses[0]]
        vocab = shapes[before[-1]].n if before else last.n
        if last.k != self.hidden and not before:
            return
        if not before and not self._scores(products[-1], vocab):
            return
        for at, shape in shapes.items():
            sizes = {shape.m, shape.n, shape.k}
            if shape.n == vocab and (shape.k == self.hidden or (before and at == before[-1])):
                run.labels[at] = Label("logits")
            elif vocab != self.hidden and {vocab, self.hidden} <= sizes and losses and at > losses[0]:
                # a loss that gives its gradient in the forward (fused with the head, chunk by chunk)
                run.labels[at] = Label("logits", role="dgrad" if shape.k == vocab else "wgrad")
            elif shape.k == self.hidden and shape.n in (self.hidden, shapes[products[-1]].k):
                behind = range(at + 1, next((p for p in products if p > at), len(run)))
                ends_layer = any(adds(run.kinds[p]) for p in behind)
                if not ends_layer or any(_activates(run, p) for p in behind):
                    run.labels[at] = Label("other")  # the transform before the vocabulary, a pooler

    def _scores(self, at: int, vocab: int) -> bool:
        """Without a loss: is the product one onto the words of an embedding, or are its results compared?"""
        run = self.run
        tables = (t for kind in run.kinds[:at] if _embeds(kind) for t in kind.tensors if len(t) == 2)
        if any(table[0] <= vocab < table[0] + _PADDED and table[1] == self.hidden for table in tables):
            return True
        behind = run.kinds[at + 1 : at + 1 + _NEAR]
        return any(
            vocab in (t[-1] for t in kind.tensors) and (kind.name in _COMPARES or kind.what == "softmax")
            for kind in behind
        )


def name_sum(run: Run, at: int) -> None:
    """What scales the result of an adapter's second product and adds it takes the name of that product."""
    label = run.labels[at]
    for place in range(at + 1, min(at + 4, len(run))):
        if run.kinds[place].what == "add" and place not in run.labels:
            same = Label(label.component, label.layer, label.components)
            run.labels.update({p: same for p in range(at + 1, place + 1) if p not in run.labels})
        if run.kinds[place].what in ("add", "gemm", "core"):
            break


def _embeds(kind: Kind) -> bool:
    return kind.what == "embedding" or "embedding" in kind.tags


def loses(run: Run, at: int) -> bool:
    kind = run.kinds[at]
    return kind.what in ("loss", "fused_logits_loss") or bool(kind.tags & {"loss", "loss_backward"})


def _activates(run: Run, at: int) -> bool:
    kind = run.kinds[at]
    return kind.what == "activation" or bool(kind.tags & {"activation", "gate"})


def routes(run: Run, at: int) -> bool:
    kind = run.kinds[at]
    return kind.name in ("topk", "sort", "argsort", "argmax", "one_hot") or "router" in kind.tags
