"""Around an attention core: the products that make queries, keys and values, and the output projection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise, takewhile
from math import prod

from tracelens.attribution.structure.ahead import key_rows
from tracelens.attribution.structure.cores import of_distances, query_rows, weighs_pairs
from tracelens.attribution.structure.gaps import looks_up
from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.heads import per_head
from tracelens.attribution.structure.joint import queries_of_other_stream
from tracelens.attribution.structure.norms import adds, is_step
from tracelens.attribution.structure.runs import Core, Label
from tracelens.attribution.structure.walk import (
    LARGEST_RANK,
    Walk,
    activates,
    embeds,
    follows,
    in_groups,
    takes_heads,
)
from tracelens.gemm import GemmShape

_BENDS = ("activation", "elementwise")
_SUMMED = 2  # what a product gives and what that is normalized to, where nothing is added
_TOKENS = 3  # dimensions: samples, tokens, channels


class Queries(Walk):
    """The part of a walk that stands around an attention core."""

    def _makes_queries(self, rest: list[int], core: Core) -> list[int]:
        """Of the products between two cores those that make the second's queries, keys and values: none ahead
        of a lookup of words, with which another stream begins, or of a block of a stream of another width."""
        kinds = [(p, kind) for p, kind in enumerate(self.run.kinds[: core.first]) if embeds(kind)]
        anew = max((p for p, kind in kinds if looks_up(self.run, kind, self.hidden)), default=-1)
        rest = self._behind_others([at for at in rest if at > anew] or rest, core)
        start = rest[0] if rest else 0
        while start and self.run.kinds[start - 1].what == "copy":  # cast back behind the normalization
            start -= 1
        norms = [at for at in self.norms if start - 1 <= at < core.first]
        inner = [at for at in self.norms if at < core.first and not self._of_queries(at, rest)]
        edge = inner[-1] if inner else -1
        makes = [at for at in rest if at > edge]
        if makes and (norms or not self._has_down(makes)):
            others = queries_of_other_stream(self.run, rest, makes, core)
            return [*self._queries_ahead(rest, inner, core), *others, *makes]
        down = [at for at in rest if self._is_down(at)]
        return [at for at in rest if not down or at > down[-1]]

    def _behind_others(self, rest: list[int], core: Core) -> list[int]:
        """The products behind the last such block, or all."""
        closed = [p for p in range(rest[0] if rest else core.first, core.first) if self._closes_other(p)]
        return [at for at in rest if at > max(closed, default=-1)] or rest

    def _closes_other(self, at: int) -> bool:
        """Is it a sum of tokens of another width than the stream's, normalized next?"""
        kind, behind = self.run.kinds[at], self.run.kinds[at + 1]
        tokens = kind.tensors[0] if adds(kind) and behind.what == "norm" else ()
        return len(tokens) == _TOKENS and tokens[-1] != self.hidden and behind.tensors[:1] == (tokens,)

    def _taken(self, makes: list[int], core: Core) -> list[int]:
        """The last of them, where those are together exactly as wide as what the core takes: what stands
        before makes something else."""
        if not core.heads:
            start = self._as_large(makes, core)
            return makes if start is None else self._with_repeats(makes, start)
        if not core.key_dim or not core.value_dim:
            return makes
        kv_heads = core.kv_heads or core.heads
        wanted = core.heads * core.key_dim + kv_heads * (core.key_dim + core.value_dim)
        summed = wanted + self._summed_width(makes, core)
        start = self._in_parts(makes, core, wanted)
        start = self._together(makes, core, summed) if start is None else start
        start = self._together(makes, core, wanted) if start is None else start
        return makes if start is None else self._with_repeats(makes, start)

    def _in_parts(self, makes: list[int], core: Core, wanted: int) -> int | None:
        """The same where no product is of all tokens: streams of two widths have one each (Mochi)."""
        shapes = [self.run.shape(at) for at in makes]
        if core.tokens is None or any(s is None or s.m * s.batch == core.tokens for s in shapes):
            return None
        return self._from_the_last(makes, core.tokens * wanted, _numbers)

    def _as_large(self, makes: list[int], core: Core) -> int | None:
        """The same of a core whose products alone tell its size: as many numbers as those take together."""
        scores, values = self.run.shape(core.first), self.run.shape(core.last)
        if scores is None or values is None or core.first == core.last:
            return None
        wanted = scores.batch * (scores.m + scores.n) * scores.k + values.batch * values.k * values.n
        return self._from_the_last(makes, wanted, _numbers)

    def _from_the_last(
        self, makes: list[int], wanted: int, size: Callable[[GemmShape], int | None]
    ) -> int | None:
        """Which is the first of the last whose sizes are so much together; None where one's is not known."""
        adapters, made = self._second_products(makes), 0
        for index in range(len(makes) - 1, -1, -1):
            if index in adapters or index + 1 in adapters:
                continue
            shape = self.run.shape(makes[index])
            own = size(shape) if shape is not None else None
            if own is None or made > wanted:
                return None
            made += own
            if made == wanted:
                return index
        return None

    def _together(self, makes: list[int], core: Core, wanted: int) -> int | None:
        """Which is the first of the last that are as wide together."""
        rows = {core.tokens, key_rows(self.run, core)}
        shapes = [self.run.shape(at) for at in makes]
        known = any(shape is not None and shape.m * shape.batch == core.tokens for shape in shapes)

        def width(shape: GemmShape) -> int:  # not of positions, as relative ones are
            return shape.n if shape.batch == 1 and (not known or shape.m in rows) else 0

        return self._from_the_last(makes, wanted, width)

    def _summed_width(self, makes: list[int], core: Core) -> int:
        """How much wider the products are together than what the core takes, where results of two are added:
        of content and of position (Conditional DETR, arXiv 2108.06152)."""
        made, wide = Counter[tuple[int, int]](), 0
        for at in range(makes[0] if makes else core.first, core.first):
            kind, shape = self.run.kinds[at], self.run.shape(at)
            if shape is not None and at in makes:
                made[shape.m, shape.n] += 1
            elif kind.what in ("activation", "norm"):
                made.clear()  # what is made behind it is of something else
            elif adds(kind):
                size = prod(kind.tensors[0][:-1]), kind.tensors[0][-1]
                if made[size] >= 2:
                    made[size] -= 2
                    wide += size[1]
        return wide

    def _second_products(self, makes: list[int]) -> set[int]:
        """Where the second products of low-rank adapters stand: as wide as what they are added to."""
        shapes = [self.run.shape(at) for at in makes]
        return {
            index + 2
            for index, (base, down, up) in enumerate(zip(shapes, shapes[1:], shapes[2:], strict=False))
            if base and down and up and (down.k, up.n) == (base.k, base.n)
            if up.k == down.n <= min(LARGEST_RANK, base.k // 2)
        }

    def _with_repeats(self, makes: list[int], start: int) -> list[int]:
        """From ``start`` on, and the same layers for other tokens before (global ones, as in PEGASUS-X)."""
        shapes = (self.run.shape(at) for at in makes)
        sizes = [(shape.n, shape.k) if shape is not None else None for shape in shapes]
        own = sizes[start:]
        if start == 1 and sizes[0] == sizes[-1] != sizes[1]:
            return makes  # the gate of the core's output, beside them, is as large as the queries
        while sizes[max(0, start - len(own)) : start] == own:
            start -= len(own)
        return makes[start:]

    def _queries_ahead(self, products: list[int], norms: list[int], core: Core) -> list[int]:
        """The product of the queries, where the last normalization is that of a shortened stream, of which
        keys and values are made (spatial reduction, as in PVT and SegFormer), and nothing else."""
        at = next((at for at in reversed(products) if norms and at < norms[-1]), None)
        shape = self.run.shape(at) if at is not None else None
        if at is None or shape is None or core.tokens is None or not core.heads or not core.key_dim:
            return []
        rows = [prod(t[:-1]) for t in self.run.kinds[norms[-1]].tensors if len(t) >= 2]
        rest = [other.n for p in products if p > norms[-1] and (other := self.run.shape(p)) is not None]
        lacks = sum(rest) == (core.kv_heads or core.heads) * (core.key_dim + (core.value_dim or 0))
        fewer = bool(rows) and max(rows) < core.tokens
        makes = (shape.n, shape.k) == (core.heads * core.key_dim, self.hidden)
        return [at] if makes and (fewer or lacks) and core.tokens == shape.m * shape.batch else []

    def _of_queries(self, norm: int, products: list[int]) -> bool:
        """A normalization of queries or keys over all heads at once: of what a product made of the stream,
        with nothing added between."""
        ahead = [at for at in products if at < norm]
        adapted = 2 in self._second_products(ahead[-3:])
        made_by = ahead[-3 if adapted else -1] if ahead else None
        shape = self.run.shape(made_by) if made_by is not None else None
        if made_by is None or shape is None or shape.k != self.hidden or self.run.kinds[norm].what == "fused":
            return False
        if any(prod(t) > shape.m * shape.n * shape.batch for t in self.run.kinds[norm].tensors[:1]):
            return False  # of more than the product made: that was of a condition
        between = self.run.kinds[ahead[-1] + 1 : norm]
        own = ("norm", "copy", "add") if adapted else ("norm", "copy")
        return all(kind.what in own or is_step(kind) or (adapted and kind.name == "mul") for kind in between)

    def _has_down(self, products: list[int]) -> bool:
        return any(self._is_down(at) for at in products)

    def _is_down(self, at: int) -> bool:
        """From another width back to the stream's, and not the second product of an adapter."""
        shape = self.run.shape(at)
        if shape is None or shape.n != self.hidden or shape.k == self.hidden:
            return False
        return shape.k > LARGEST_RANK or 2 * shape.k > self.hidden

    def _name_queries(self, makes: list[int], core: Core, before: list[int]) -> None:
        """Name those that make queries, keys and values, and of all ``before`` the core what makes biases."""
        run = self.run
        for at in before:
            shape = run.shape(at)
            if shape is None or at in run.labels or self._mixes_tokens(at, shape):
                continue
            bias = of_distances if at in makes else weighs_pairs
            of_head = (at not in makes or core.heads != 1) and self._of_each_head(shape, core)
            if of_head or bias(run, core.first, core.heads, at):
                run.labels[at] = Label("attention.other", self.layer)
        for at in reversed(makes):
            if self._ends_block(at):
                self._name_beside_queries(at)
                continue
            if self._takes_activated(at) or self._chooses_of(at, core):
                continue  # the second of two layers, whose result the queries are made with; a router
            if at not in run.labels and (run.shape(at) is None or self._fits_queries(at, makes, core)):
                run.labels[at] = Label("attention.qkv", self.layer)

    def _takes_activated(self, at: int) -> bool:
        before, shape = self.run.kinds[at - 1], self.run.shape(at)
        given = before.tensors[:1] if activates(before) else ()
        return shape is not None and any(t[-1] == shape.k and prod(t) == shape.m * shape.k for t in given)

    def _ends_block(self, at: int) -> bool:
        """Is what it gives added to a stream as wide, and that normalized, in one kernel right behind it?"""
        behind, shape = self.run.kinds[at + 1], self.run.shape(at)
        size = (shape.m * shape.n, shape.n) if shape is not None and behind.what == "fused" else (0, 0)
        alike = sum((prod(t), t[-1]) == size for t in behind.tensors if t)
        return "norm" in behind.tags and alike > _SUMMED

    def _name_beside_queries(self, at: int) -> None:
        """The end of a block on another stream, which a compiler runs among them: of an MLP or of values."""
        run, labels = self.run, self.run.labels
        up, down = run.shape(at - 2), run.shape(at)
        if up is None or down is None:
            return
        if self._takes_activated(at) and (up.n, up.k) == (down.k, down.n):
            labels |= {at - 2: Label("mlp.up"), at - 1: Label("mlp.activation"), at: Label("mlp.down")}
        elif run.kinds[at - 2].what == "bmm" and run.kinds[at - 1].tags <= {"layout"}:
            labels[at] = Label("attention.output")

    def _chooses_of(self, at: int, core: Core) -> bool:
        """Are a few of all that it makes chosen (SwitchHead, arXiv 2312.07987)?"""
        shape = self.run.shape(at)
        chosen = (self.run.kinds[p].tensors[:1] for p in self.routers if at < p < core.first)
        return shape is not None and any(prod(t) == shape.m * shape.n for given in chosen for t in given)

    def _mixes_tokens(self, at: int, shape: GemmShape) -> bool:
        """It takes the stream with its channels in front, whose number can be that of all heads' queries."""
        taken = (t for kind in self.run.kinds[max(at - 1, 0) : at + 1] for t in kind.tensors)
        return any(len(t) > 2 and t[-2:] == (self.hidden, shape.k) for t in taken)

    def _of_each_head(self, shape: GemmShape, core: Core) -> bool:
        """Made of every head's part of the stream by itself, as gates of a bias are."""
        rows = query_rows(self.run, core)
        return shape.k == core.key_dim != self.hidden and shape.m * shape.batch == rows

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
        """As wide as the core's heads, from another width.

        The first layer of a stage, or of features, makes all three in one or by three alike; in bottlenecks
        or across models the values come from the wider side of one that makes queries.
        """
        if not core.key_dim:
            return False
        query = core.heads * core.key_dim if core.heads else self.hidden
        key = core.kv_heads * core.key_dim if core.kv_heads else query
        others = [other for p in makes if (other := self.run.shape(p)) is not None]
        rows = {other.m for other in others if other.k == self.hidden}
        all_three = shape.n == query + 2 * key and shape.m not in rows  # or of a narrower stream beside that
        all_three |= others == 3 * [shape] and shape.n == query == key
        return all_three or (bool(rows) and shape.n in (key, 2 * key))

    def _output(self, here: list[int], core: Core) -> list[int]:
        """Name the output projection; returns the products behind it.

        Where a gate on the core's output is as large, the projection is the last before the stream is
        normalized again.
        """
        run = self.run
        all_, here = here, [at for at in here if not self._is_of_later(at, core)]
        index = self._output_index(here, core)
        if index is None:
            return all_
        at = here[index]
        shape, width = run.shape(at), core.out_width
        both = shape is not None and width is not None and shape.k > width
        run.labels[at] = Label(
            "attention.output", self.layer, ("attention.output", "mlp.down") if both else ()
        )
        if shape is not None and width is not None and both:
            self._name_beside(core, shape.k - width)
        self.rows = {shape.m} if shape is not None else set()
        for between, behind in pairwise(here[: index + 1]):
            # the same projection for other tokens, or one of two in a row, or a gate on the core's output
            other, straight = run.shape(between), follows(run, between, behind)
            rows = other is None or shape is None or other.m == shape.m or other.n == core.value_dim
            same = other is not None and shape is not None and (other.n, other.k) == (shape.n, shape.k)
            if straight or (same and not rows):
                run.labels[between] = Label("attention.output", self.layer)
                self.rows |= {other.m} if other is not None else set()
            elif rows:
                run.labels[between] = Label("attention.other", self.layer)
        return self._adapters([behind for behind in all_ if behind > at], at)

    def _goes_straight(self, here: list[int], core: Core, following: Core) -> bool:
        """Do all products between two cores make what the second takes, of what the first gave and of nothing
        else (trajectories, arXiv 2106.05392)?"""
        between = self.run.kinds[core.last + 1 : following.first]
        if len(here) < 2 or any(kind.what == "norm" or adds(kind) for kind in between):
            return False
        return self._as_large(here, following) == 0

    def _is_of_later(self, at: int, core: Core) -> bool:
        """Is it made of another sequence, to which a later core attends?"""
        run, shape = self.run, self.run.shape(at)
        if shape is None or core.tokens in (None, shape.m):
            return False
        later = (other for other in run.cores if other.first > max(at, core.last))
        return any(key_rows(run, other) == shape.m != other.tokens for other in later)

    def _is_summed(self, at: int, behind: int) -> bool:
        """Is something added to the stream, and that normalized, between the two?"""
        norms = [norm for norm in self.norms if at < norm < behind]
        return bool(norms) and self._is_added(at, norms[-1])

    def _name_beside(self, core: Core, wide: int) -> None:
        """The way up of an MLP beside the attention, whose second product is one with the output projection,
        and what bends it (arXiv 2302.05442)."""
        run = self.run
        start = max((other.last for other in run.cores if other.last < core.first), default=0)
        sizes = ((wide, self.hidden), (2 * wide, self.hidden))
        ups = [at for at in run.products(start, core.first) if run.shape(at) and self._sizes(at) in sizes]
        ups = [at for at in ups if at not in run.labels]  # an MLP of the layer before can be as wide
        if len(ups) != 1:
            return
        gated = ("mlp.up", "mlp.gate") if self._sizes(ups[0]) == sizes[1] else ()
        run.labels[ups[0]] = Label("mlp.up", self.layer, gated)
        behind = range(ups[0] + 1, core.first)
        bends = takewhile(
            lambda at: run.kinds[at].what in _BENDS and run.kinds[at].width in (wide, 2 * wide), behind
        )
        run.labels.update(dict.fromkeys(bends, Label("mlp.activation", self.layer)))

    def _is_added(self, at: int, behind: int, core: Core | None = None) -> bool:
        """Is something added to the stream between the two? Not what a core gives, head by head: before a
        projection that is normalized or gated at most."""
        kinds = (kind for kind in self.run.kinds[at + 1 : behind] if self._sums_up(kind))
        return any(core is None or not any(per_head(t, core) for t in kind.tensors) for kind in kinds)

    def _is_convolved(self, core: Core, stop: int) -> bool:
        """Is the output projection on maps, a convolution of one tap over all heads?"""
        weights = [
            t
            for kind in self.run.kinds[core.last + 1 : stop]
            if kind.what == "convolution"
            for t in kind.tensors
        ]
        return any(len(t) == 4 and t[1:] == (core.out_width, 1, 1) for t in weights)

    def _output_index(self, here: list[int], core: Core) -> int | None:
        run, width = self.run, core.out_width
        # a normalization that no product stands before is that of the core's output
        edge = next((at for at in self.norms if here and at > here[0]), len(run))
        fits: list[int] = []
        if here and (self._is_summed(core.last, here[0]) or self._is_convolved(core, here[0])):
            return None  # attention of one head as wide as the stream can do without (T2T, arXiv 2101.11986)
        for index, at in enumerate(here):
            shape = run.shape(at)
            if run.kinds[at].name in GROUPED:
                break  # experts: the layer's attention is behind
            if shape is None:
                if not any(map(run.shape, here)):
                    return index  # no shapes anywhere: the first product behind a core takes its output
                continue
            if fits and (at > edge or (shape.n, shape.k) != self._sizes(here[fits[0]])):
                break
            if fits and shape == run.shape(here[fits[-1]]) and self._is_added(here[fits[-1]], at, core):
                break  # of the sum, for the next attention
            wide = width is not None and shape.k >= width
            first = run.shape(here[index - 1]) if index else None
            wide |= first is not None and in_groups(first, shape, core)
            if shape.n == self.hidden and shape.batch == 1 and (wide or takes_heads(shape.k, core)):
                fits.append(index)
            elif not fits and shape.k == self.hidden and shape.n > self.hidden and shape.n != width:
                return None  # an MLP already, and no gate on the output: no projection is to be seen
        if fits and here[fits[-1]] == here[-1] and any(core.last < other.first for other in run.cores):
            # the next core's queries, keys and values are made somewhere, in attention across two streams too
            own = [n for n in fits if (shape := run.shape(here[n])) and shape.m == core.tokens]
            fits = own[:1] or fits
        return fits[-1] if fits else None


def _numbers(shape: GemmShape) -> int | None:
    return shape.m * shape.n if shape.batch == 1 else None
