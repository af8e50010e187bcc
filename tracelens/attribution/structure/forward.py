"""The forward of a transformer, read from the order and the shapes of its products.

A layer is: normalization, the products that make queries, keys and values, the attention core, the
output projection, normalization, the products of the MLP. The core is the fixed point: what stands
behind the last normalization of the residual stream before it makes queries, keys and values; the
first product behind it that takes its width is the output projection; what follows up to the next
normalization before a core is an MLP when it goes up from the hidden size and comes back down to it.
Every name given rests on such a relation of shapes; a product for which none holds stays open.
"""

from __future__ import annotations

from dataclasses import replace

from tracelens.attribution.structure.blocks import BlockWalk
from tracelens.attribution.structure.connections import joins
from tracelens.attribution.structure.cores import of_distances
from tracelens.attribution.structure.joint import output_of_other_stream, queries_of_other_stream
from tracelens.attribution.structure.norms import adds
from tracelens.attribution.structure.queries import Queries
from tracelens.attribution.structure.returns import OPEN
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.attribution.structure.walk import FEW, activates, convolves_bent, embeds, pairs
from tracelens.gemm import GemmShape

_BEHIND = 6  # units from a product to the sum of its result, at most


def label_forward(run: Run, hidden: int) -> None:
    """Name the products of a forward (or recomputed) run; fills ``run.labels``."""
    Forward(run, hidden).label()
    if run.phase == "recompute":  # a piece of the model: its layers cannot be counted from the first
        run.labels.update({at: replace(label, layer=None) for at, label in run.labels.items()})


class Forward(Queries, BlockWalk):
    """One walk over the products of a run, from core to core."""

    def label(self) -> None:
        run = self.run
        products = [at for at in run.products() if at not in run.labels]
        if not run.cores:
            self._mlps(products, stop=len(run))
            return
        self._before_first(products)
        for core, following in pairs(run):
            for at, component in core.parts.items():
                run.labels[at] = Label(component, self.layer)
            stop = following.first if following else len(run)
            here = [at for at in products if core.last < at < stop]
            straight = following is not None and self._goes_straight(here, core, following)
            rest = here if straight else self._back_beside(self._output(here, core), core)
            other = output_of_other_stream(run, rest, core, self.rows)
            if other is not None:
                run.labels[other] = Label("attention.output", self.layer)
                rest.remove(other)
            makes = self._taken(self._makes_queries(rest, following), following) if following else []
            self._mlps([at for at in rest if at not in set(makes)], stop=makes[0] if makes else stop)
            self._whole_mixture(core.last + 1, makes[0] if makes else stop)
            if following:
                self._begin_attention()
                self._name_queries(makes, following, rest)

    def _back_beside(self, products: list[int], core: Core) -> list[int]:
        """The way back from an MLP whose way in is of the product that makes the queries, keys and values: it
        takes what is activated behind the output, and is made as wide there (PaLM, arXiv 2204.02311; ViT-22B,
        arXiv 2302.05442). The products that are left."""
        run, labels = self.run, self.run.labels
        stop = products[0] if products else core.last
        named = (at for at in range(core.last + 1, stop) if at in labels)
        out = next((at for at in named if labels[at].component == "attention.output"), None)
        made = next((at for at in range(core.first - 1, -1, -1) if run.kinds[at].what == "gemm"), None)
        if out is None or made is None or labels.get(made, OPEN).component != "attention.qkv":
            return products
        shapes = [run.shape(at) for at in (made, out, stop)]
        if None in shapes:
            return products
        way, own, down = (shape for shape in shapes if shape is not None)
        between = run.kinds[out + 1 : stop]
        beside = any(map(activates, between)) and not any(
            kind.what == "norm" or adds(kind) for kind in between
        )
        if not beside or down.n != self.hidden or way.n <= own.k + down.k or not way.m == own.m == down.m:
            return products
        labels.update(dict.fromkeys(range(out + 1, stop), Label("mlp.activation", self.layer)))
        labels[stop] = Label("mlp.down", self.layer)
        self.after_mlp = True
        return products[1:]

    def _begin_attention(self) -> None:
        """Self-attention opens a layer; a second attention before its MLP is cross-attention in the same."""
        if self.after_mlp or self.layer < 0:
            self.layer += 1
            self.after_mlp = False

    def _before_first(self, products: list[int]) -> None:
        core = self.run.cores[0]
        before = [at for at in products if at < core.first]
        norms = [at for at in self.norms if at < core.first]
        norms = [at for at in norms if not self._of_queries(at, before)]
        makes = [at for at in before if not norms or at > norms[-1]] or before[-1:]
        makes = self._behind_others(makes, core)
        others = queries_of_other_stream(self.run, before, makes, core)
        makes = [*others, *self._taken([*self._queries_ahead(before, norms, core), *makes], core)]
        biases = {at for at in before if of_distances(self.run, core.first, core.heads, at)}
        earlier = [at for at in before if at not in biases.union(makes)]
        if self.run.phase == "recompute":
            self._mlps(earlier, stop=makes[0] if makes else core.first)
        else:
            self._layers_ahead(earlier, makes)
        self._begin_attention()
        self._name_queries(makes, core, before)

    def _layers_ahead(self, products: list[int], makes: list[int]) -> None:
        """Before the first attention: patches or features are brought onto the hidden size, and hybrids have
        layers without any, whose MLPs are as large as those of layers that have it."""
        stop = makes[0] if makes else self.run.cores[0].first
        taken = {shape.k for at in makes if (shape := self.run.shape(at)) is not None}
        shapes = [(at, shape) for at in products if (shape := self.run.shape(at)) is not None]
        first = next((at for at, shape in shapes if shape.k == self.hidden), stop)
        makes_stream = self.run.follows is None and not any(map(_opens, self.run.kinds[:first]))
        makes_stream &= first in products[:1] and not any(at < first for at in self.norms)
        if makes_stream:  # of patches as wide as the stream, and nothing before them
            first = next((at for at, shape in shapes if at > first and shape.k == self.hidden), stop)
        if not any(self._sums_up(kind) for kind in self.run.kinds[first:stop]):
            first = stop  # a layer is added to the stream: these only make it
        # patches or features; layers of another width are made of more
        ahead = [(at, shape) for at, shape in shapes if at < first and shape.batch == 1]
        if self.run.follows is not None:  # a long skip from a layer of the part before
            ahead = [(at, shape) for at, shape in ahead if joins(self.run, at, self.hidden) is None]
        opens = self.run.kinds[: ahead[0][0]] if ahead else []
        known = [kind for kind in (self.run.follows, *opens) if kind is not None]
        ends = (kind for kind in reversed(known) if kind.what == "norm" or activates(kind))
        activated = any(activates(kind) for kind in [*ends][:1])  # features are normalized behind theirs
        # one can lead to the next, as a projector's two
        own = [
            s
            for (_, s), n in zip(ahead, [0, *(s.n for _, s in ahead)], strict=False)
            if n not in (s.k, 2 * s.k)
        ]
        if not makes_stream and (activated or taken & {shape.k for shape in own}):
            ahead = []  # of what a block before made, or beside the queries: no picture and no table
        if parts := self._widening_mlp(ahead if len(ahead) != 1 else shapes[:3]):
            self.run.labels |= parts
            ahead = []
        wider = any(makes_stream or shape.k != self.hidden for _, shape in ahead[:1])
        after = [*(shape.k for _, shape in ahead[1:]), 0]
        if wider and all(s.n in (self.hidden, k, 2 * k) for (_, s), k in zip(ahead, after, strict=True)):
            self.run.labels.update({at: Label("embedding") for at, _ in ahead})
        self.mlps |= self._closing()
        tokens = self.run.cores[0].tokens or 0
        left = [(at, shape) for at, shape in shapes if at >= first and at not in self.run.labels]
        of_tokens = [at for at, shape in left if shape.m * FEW > tokens]
        self._mlps(of_tokens if shapes else [at for at in products if at >= first], stop)

    def _widening_mlp(self, opens: list[tuple[int, GemmShape]]) -> dict[int, Label]:
        """An MLP that gives a wider stream, and the product that widens what it is added to: the last of the
        stage before (MViTv2, arXiv 2112.01526), or of patches (TimesFM, arXiv 2310.10688)."""
        if len(opens) != 3:
            return {}
        last_beside = opens[2][1].k == opens[0][1].k
        (aside, own), (up, first), (down, second) = opens[2:] + opens[:2] if last_beside else opens
        fits = own.k == first.k and first.n == second.k and own.n == second.n == self.hidden
        ends = max(aside, down) + 1
        behind = self.run.kinds[ends : ends + _BEHIND]
        alone = own.batch == first.batch == second.batch == 1
        if not (fits and alone) or not own.m == first.m == second.m or not any(map(adds, behind)):
            return {}
        parts = dict.fromkeys(range(up + 1, down), "mlp.activation") | {aside: "other"}
        parts |= {up: "mlp.up", down: "mlp.down", ends + [*map(adds, behind)].index(True): "residual"}
        return {at: Label(part) for at, part in parts.items()}

    def _closing(self) -> set[tuple[int, int]]:
        """(n, k) of the products that close an MLP directly behind an attention core, added to the stream."""
        out = set()
        for core, following in pairs(self.run):
            stop = following.first if following else len(self.run)
            before: dict[int, int] = {}  # width -> the last product that gives it
            products = self._without_adapters(self.run.products(core.last + 1, stop))
            for at, behind in zip(products, [*products[1:], stop], strict=False):
                shape = self.run.shape(at)
                wide = (shape.k, 2 * shape.k) if shape is not None and shape.n == self.hidden else ()
                ups = [before[width] for width in wide if width in before]
                if shape is not None and ups and not convolves_bent(self.run.kinds[ups[0] : at]):
                    if any(self._sums_up(kind) for kind in self.run.kinds[at + 1 : behind]):
                        out.add((shape.n, shape.k))
                    break
                if shape is not None and shape.k == self.hidden and shape.batch == 1:
                    before[shape.n] = at
        return out


def _opens(kind: Kind) -> bool:
    """Is there a stream, where such a unit has run?"""
    return embeds(kind) or kind.what in ("convolution", "norm", "core")
