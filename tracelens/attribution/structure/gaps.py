"""Two neighbouring products and what stands between them: what each unit is there, whatever it is called."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, takewhile
from math import prod

from tracelens.attribution.structure.heads import per_sample, widths
from tracelens.attribution.structure.norms import adds_number, normalizes, raises
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Dims, Kind
from tracelens.attribution.structure.walk import counts_batches, loses
from tracelens.gemm import GemmShape
from tracelens.gemm.inductor import averages_squares

_DRAWS = 6  # units between chance and the product with it, at most
_CHANCE = frozenset({"rand", "rand_like", "bernoulli", "bernoulli_"})
BLOCKS = frozenset({"gemm", "bmm", "core", "convolution"})
_SEVERAL = 2
_SCALES = frozenset({"mul", "mul_", "div", "div_"})
_LAYS_OUT = frozenset({"fill_", "constant_pad_nd", "pad", "cat"})
_MOVES = frozenset({"roll", "index_select", "index", "gather"})
_INDICES = 4  # units from the first number of a row to what takes by it, at most
_OPERANDS = 4  # units from a cast of what a normalization takes to that, at most


@dataclass(frozen=True)
class Interval:
    """The units between two neighbouring products."""

    run: Run
    hidden: int
    vocab: int | None
    gap: list[int]
    product_before: Label | None
    product_after: Label | None
    core: Core | None  # behind the gap
    product: GemmShape | None  # before it
    rotated: bool  # are queries and keys rotated before some core of the run?
    normed: set[int]  # steps of normalizations that are written out

    @property
    def before(self) -> str | None:
        return self.product_before.component if self.product_before else None

    @property
    def after(self) -> str | None:
        return self.product_after.component if self.product_after else None

    @property
    def layer(self) -> int | None:
        return self.product_before.layer if self.product_before else None

    @property
    def next_layer(self) -> int | None:
        return self.product_after.layer if self.product_after else None

    def _own(self, at: int) -> str | None:
        """What a unit is wherever it stands."""
        if self.run.kinds[at].what == "dropout" or self._draws(self.run.kinds[at]):
            return "dropout"
        if counts_batches(self.run, at):
            return "norm"
        if self.run.kinds[at].what == "norm" or at in self.normed or self._scales_rows(at):
            return "norm"
        return None

    def _scales_rows(self, at: int) -> bool:
        """A fused normalization: with statistics of rows, and a weight or nothing else."""
        kind = self.run.kinds[at]
        if averages_squares(kind.name):
            return True
        statistics = {t for t in kind.tensors if len(t) > 1 and t[-1] == 1 < prod(t)}
        if not statistics or ("norm" in kind.tags and not any(len(t) == 1 for t in kind.tensors)):
            return False
        ahead = (self.run.kinds[place] for place in self.gap if place < at)  # a pass for the statistics alone
        made = any("norm" in other.tags and statistics & {*other.tensors} for other in ahead)
        return "norm" in kind.tags or (made and kind.what == "fused" and not kind.tags)

    def _draws(self, kind: Kind) -> bool:
        """A fused kernel that draws what is dropped, and does nothing else."""
        return {"dropout", "random"} <= kind.tags <= {"dropout", "random", "add"}

    @cached_property
    def last_of_columns(self) -> int:
        """The last that adds to the product before the gap, or scales it by, one number for each column, or
        puts it beside others of its size; without shapes what is added to it first."""
        columns = (self.product.n,) if self.product else None
        kinds = ((at, self.run.kinds[at]) for at in self.gap)
        own = ((at, x) for at, x in kinds if columns in x.tensors[:2] != (columns,) or self._is_first_sum(at))
        last = max((at for at, kind in own if kind.what == "add" or kind.name in _SCALES), default=-1)
        return max((at for at in self.gap if self._is_beside_others(at)), default=last)

    def _is_beside_others(self, at: int) -> bool:
        """Does it put the whole of what the product before gave beside others of that size?"""
        kind, made = self.run.kinds[at], self.product
        if kind.name != "cat" or made is None or len(kind.tensors) < _SEVERAL or len({*kind.tensors}) > 1:
            return False
        return kind.tensors[0][-1:] == (made.n,) and prod(kind.tensors[0]) == made.m * made.n

    def _is_first_sum(self, at: int) -> bool:
        kind = self.run.kinds[at]
        return at == self.gap[0] and kind.what == "add" and not kind.tensors

    def _is_wide(self, tensors: tuple[Dims, ...]) -> bool:
        """Of the size of the residual stream; a sequence can be as long as that is wide."""
        tokens = [core.tokens for core in self.run.cores if core.tokens]
        least = self.hidden * (min(tokens) // 2 if tokens else 2)
        whole = {self.hidden * many for many in tokens}  # also with the channels in front
        return any(
            (t[-1] == self.hidden and prod(t) >= least)
            or (self.hidden in t[1:2] and (prod(t) in whole or (len(t) == 4 and t[0] == 1)))
            for t in tensors
            if len(t) >= 2
        )

    @cached_property
    def _adaptive(self) -> set[Dims]:
        """Scales, shifts and gates of adaptive layers, several for each channel of each token: what a table
        of as many is added to."""
        sums = (self.run.kinds[at].tensors[:2] for at in self.gap if self.run.kinds[at].what == "add")
        return {
            t for two in sums for t in two if len(t) == 4 and t[-1] == self.hidden and (1, 1, *t[2:]) in two
        }

    @cached_property
    def measured(self) -> dict[int, Label]:
        """The range of a tensor, taken to quantize it: of the block that made the tensor; a second one behind
        the same normalization is of the block that takes it."""
        out: dict[int, Label] = {}
        inside, behind = False, 0
        normed = max(
            (p for p in self.gap if p in self.normed or normalizes(self.run, p, self.hidden)), default=-1
        )
        for at in self.gap:
            kind = self.run.kinds[at]
            wide = any(prod(t) > 1 for t in kind.tensors)
            begins = wide and kind.name == "min"
            behind += begins and at > normed
            inside = begins or (inside and (not wide or kind.name == "max"))
            block = self.product_after if behind > 1 else self.product_before
            family = block.component.partition(".")[0] if block else ""
            if inside and block is not None and family in ("attention", "mlp"):
                out[at] = Label(f"{family}.other", block.layer)
        return out

    def _drops_paths(self, at: int) -> bool:
        """Stochastic depth: one number by chance for each sample, and the product with it."""
        here = self.run.kinds[at]
        drawn = any(map(self._is_chance, range(max(at - _DRAWS, self.gap[0]), at + 1)))
        if self._is_chance(at) or (per_sample(here.tensors) and drawn):
            return True
        behind = self.run.kinds[at + 1] if at + 1 < len(self.run) else None
        if not here.tensors:
            return at in self._scaled_by_chance
        scales = (
            here.name in ("div", "div_") and behind is not None and behind.tensors[:1] == here.tensors[:1]
        )
        return drawn and scales and behind is not None and per_sample(behind.tensors)

    def _is_chance(self, at: int) -> bool:
        """On a GPU rand fills what it made, as noise does; what is rounded down chooses."""
        kinds = self.run.kinds
        rounds = any(kind.name in ("floor", "floor_") for kind in kinds[at + 1 : at + _DRAWS])
        return kinds[at].name in _CHANCE or (kinds[at].name == "uniform_" and rounds)

    @cached_property
    def _scaled_by_chance(self) -> set[int]:
        """Without shapes: from what is drawn by chance, or the division before it, to the product with it."""
        kinds, out = self.run.kinds, set[int]()
        for drawn in filter(self._is_chance, self.gap):
            around = range(max(drawn - _DRAWS, self.gap[0]), min(drawn + _DRAWS, self.gap[-1]) + 1)
            ends = [at for at in around if at > drawn and kinds[at].name in ("mul", "mul_")]
            firsts = [at for at in around if at < drawn and kinds[at].name in ("div", "div_")]
            out |= {*range(max(firsts, default=drawn), ends[0] + 1)} if ends else set()
        return out

    def _before_residual(self, at: int) -> bool:
        """Weighing and putting back the experts' results comes before the addition to the stream: of several
        before the next normalization the last, as the first adds what shared experts gave."""
        end = self.first_on_stream
        if end is None or at in self.normed:
            return False
        if any(self.run.kinds[p].what == "convolution" for p in self.gap if p <= at):
            return False
        if self.unnamed is not None and self.unnamed < end:
            return at < max((p for p in self.gap if p < self.unnamed and self._is_bare_sum(p)), default=at)
        norm = next((p for p in self.gap if normalizes(self.run, p, self.hidden)), self.gap[-1] + 1)
        return at < max((p for p in self.gap if p < norm and self._sums_up(p)), default=end)

    def _rearranges(self, at: int) -> bool:
        """A copy of more dimensions than the sum behind it, or one right behind such a copy: windows or heads
        are put side by side, which is work of the block before. So is another layout right behind an output
        projection, which a sum does not need."""
        kinds = self.run.kinds
        if self.before == "attention.output" and "layout" in kinds[at].tags:
            before = range(self.gap[0], at)
            return all(_passes(kinds[p]) or kinds[p].name in CUTS or self._moves(p) for p in before)
        added = next((kinds[p] for p in self.gap if p > at and self._is_residual(p)), None)
        copies = takewhile(lambda p: kinds[p].what == "copy", range(at, self.gap[0] - 1, -1))
        most = max((len(t) for p in copies for t in kinds[p].tensors), default=0)
        return added is not None and most > len(added.tensors[0])

    def _lays_out(self, at: int) -> bool:
        """Behind a norm that is one operator, what is padded, shifted or put together goes into the
        attention: windows."""
        kinds, last = self.run.kinds, self.last_norm
        normed = self.after == "attention.qkv" and 0 <= last < at and kinds[last].what == "norm"
        if not normed or self._is_norm(at):
            return False
        wide = self.hidden in widths(kinds[at].tensors)
        return (wide and (kinds[at].what == "copy" or kinds[at].name in _LAYS_OUT)) or self._moves(at)

    def _moves(self, at: int) -> bool:
        """Moves tokens of the stream to other places, or makes the numbers of those."""
        taker = next((p for p in range(at, at + _INDICES) if not self._counts_rows(p)), at)
        kind = self.run.kinds[taker] if taker in self.gap else None
        return kind is not None and kind.name in _MOVES and self.hidden in widths(kind.tensors[:1])

    def _moves_back(self, at: int) -> bool:
        """Moves what an attention gave, before that is added to the stream: windows that were shifted."""
        end = self.first_on_stream if self.before == "attention.output" else None
        return end is not None and at < end and self._moves(at)

    def _counts_rows(self, at: int) -> bool:
        """Does it work on nothing but a row of numbers?"""
        kind = self.run.kinds[at] if at in self.gap else None
        small = kind is not None and all(len(t) == 1 for t in kind.tensors)
        return small and kind is not None and kind.what in ("elementwise", "add")

    def _is_residual(self, at: int) -> bool:
        kind = self.run.kinds[at]
        two = kind.tensors[:2]
        wide = len(two) == 2 and self.hidden in (two[0][-1], *two[0][1:-1:2])  # also in front
        return kind.what == "add" and wide and two[0] == two[1]

    def _is_bare_sum(self, at: int) -> bool:
        kind = self.run.kinds[at]
        bare = kind.what == "add" and not kind.tensors and not adds_number(kind)
        return bare and at not in self.normed and not counts_batches(self.run, at)

    def _scales_sum(self, at: int) -> bool:
        """Without shapes: behind a product multiplied, and then added to the stream (layer scale), or cast to
        more bits for that, and back; ahead of a normalization more can be, as of a second stream or of an
        earlier layer."""
        kinds, kind = self.run.kinds, self.run.kinds[at]
        lowers = "narrow" in kind.tags and self._is_bare_sum(at - 1)
        if kind.tensors or not (kind.name in _SCALES or lowers or raises(kind)):
            return False
        added = at - 1 if lowers else next((p for p in range(at, len(kinds)) if not _scales(kinds[p])), at)
        before = next((p for p in range(min(at, added) - 1, -1, -1) if not self._scales_or_adds(p)), at)
        way, sums = kinds[before:added], kinds[before].what == "gemm" and kinds[added].what == "add"
        sums &= kind.name in _SCALES or (any(k.name in _SCALES for k in way) and any(map(raises, way)))
        return sums and (not any(map(self._is_bare_sum, range(before, added))) or self._goes_to_norm(at))

    def _scales_or_adds(self, at: int) -> bool:
        return _scales(self.run.kinds[at]) or self._is_bare_sum(at)

    def _goes_to_norm(self, at: int) -> bool:
        """Is nothing but scaled and added ahead of the next normalization?"""
        behind = (p for p in range(at + 1, len(self.run)) if not self._scales_or_adds(p))
        return any(self._is_norm(p) for p in islice(behind, 1))

    def _shifts_sum(self, at: int) -> bool:
        """Without shapes: is a scaled sum shifted, and not normalized next? So does an affine layer in place
        of a normalization (MobileBERT, arXiv 2004.02984)."""
        kinds = self.run.kinds
        ahead = [p for p in range(at - 1, self.gap[0] - 1, -1) if not _passes(kinds[p])][:2]
        scaled = len(ahead) > 1 and kinds[ahead[0]].name == "mul" and self._is_bare_sum(ahead[1])
        return self._is_bare_sum(at) and scaled and not self._goes_to_norm(at)

    def _weighs_shortcut(self, at: int) -> bool:
        """The stream times a weight for each channel right ahead of a normalization: of the sum behind the
        block (ResScale, arXiv 2110.09456)."""
        kind, behind = self.run.kinds[at], at + 1
        whole, weight = (*kind.tensors[:2], (), ())[:2]
        scales = kind.name == "mul" and weight == (self.hidden,) == whole[-1:] and len(whole) > 1
        return scales and behind in self.gap and at not in self.normed and self._is_norm(behind)

    def _has_left(self, at: int) -> bool:
        """Without shapes: another model's picture or table lies between the product before and this sum."""
        between = (self.run.kinds[p] for p in self.gap if p < at)
        return self._is_bare_sum(at) and any(kind.what in ("convolution", "embedding") for kind in between)

    def _is_nameless(self, at: int) -> bool:
        """A fused kernel that says nothing (CUDA graph, old Inductor), alone between two products."""
        return self.silent == [at] and self.after is not None

    @cached_property
    def silent(self) -> list[int]:
        kinds = self.run.kinds
        said = [(p, kinds[p]) for p in self.gap]
        empty = (p for p, kind in said if not (kind.tags or kind.tensors or kind.ops))
        return [p for p in empty if kinds[p].what == "fused"]

    @cached_property
    def last_scaled(self) -> int:
        """Without shapes: the last that scales or adds before a loss, which can be of the head as well."""
        kinds = ((at, self.run.kinds[at]) for at in takewhile(lambda at: not loses(self.run, at), self.gap))
        own = ((at, kind) for at, kind in kinds if kind.what == "add" or kind.name in _SCALES)
        return max((at for at, kind in own if not kind.tensors), default=-1)

    def _weighs_rows(self, two: tuple[Dims, ...]) -> bool:
        """Is it by one number for all channels of a row, as a mask has?"""
        same = len(two) == 2 and len(two[0]) == len(two[1]) > 1
        return same and any({*sizes} == {1, self.hidden} for sizes in zip(*two, strict=True))

    @cached_property
    def masked(self) -> set[int]:
        """What the block before gave, times one number for each of its rows, and what makes those numbers."""
        kinds = self.run.kinds
        steps = [at for at in self.gap if not _passes(kinds[at])]
        weighed = (p for p in steps if kinds[p].name in ("mul", "mul_"))
        last = next((p for p in weighed if self._weighs_rows(kinds[p].tensors[:2])), self.gap[0] - 1)
        ahead = [at for at in steps if at < last]
        rows = {t for t in kinds[last].tensors[:2] if t[-1] == 1} if last in self.gap else set()
        return {*ahead, last} if rows and all(rows.issuperset(kinds[at].tensors) for at in ahead) else set()

    def _reaches_sum(self, at: int) -> bool:
        """Is it on the way from the product before the gap to the next sum? What is copied or scaled beside a
        product or a convolution of no name is of that."""
        kinds = self.run.kinds
        if not kinds[at].tensors:
            return True
        sums = (p for p in self.gap if self._is_residual(p) or "add" in kinds[p].tags)
        end = next((p for p in sums if p >= at), None)
        if end is None:
            return False
        samples = kinds[end].tensors[0][0] if kinds[end].tensors else 0
        blocks = (p for p in range(self.gap[0], end) if kinds[p].what in BLOCKS)
        return all((shape := self.run.shape(p)) is not None and shape.m == samples for p in blocks)

    @cached_property
    def behind_norms(self) -> set[int]:
        """Behind a normalization, and no lookup since."""
        behind, found = False, set[int]()
        for at in self.gap:
            kind = self.run.kinds[at]
            looks_up = kind.what == "embedding" or "embedding" in kind.tags
            behind = not looks_up and (behind or self._is_norm(at))
            found |= {at} if behind else set()
        return found

    @cached_property
    def last_norm(self) -> int:
        """Where the layers end; what stands behind is a head or what is done with its results."""
        ends = [p for p in self.gap if normalizes(self.run, p, self.hidden)]
        return ends[-1] if ends else self.gap[-1]

    @cached_property
    def unnamed(self) -> int | None:
        """Without shapes: the first product between the two, which has no name."""
        kinds = self.run.kinds
        products = (p for p in range(self.gap[0], self.gap[-1]) if kinds[p].what in ("gemm", "bmm"))
        return next((p for p in products if not kinds[p].tensors), None)

    @cached_property
    def last_added(self) -> int:
        """The last addition to the residual stream; without one, where the layers end."""
        return max((p for p in self.gap if self._sums_up(p)), default=self.last_norm)

    @cached_property
    def last_sum(self) -> int:
        """The last addition between two layers, or before the layers end; what is copied and scaled behind it
        goes elsewhere."""
        stop = self.gap[-1] if self.product_after is not None else self.last_norm
        kinds = self.run.kinds
        looks = (p - 1 for p in self.gap if looks_up(self.run, kinds[p], self.hidden))  # it begins again
        stop = min(stop, next(looks, stop))
        sums = (p for p in self.gap if p <= stop and (kinds[p].what == "add" or "add" in kinds[p].tags))
        wide = (p for p in sums if not kinds[p].tensors or self.hidden in {*chain(*kinds[p].tensors)})
        wide = (p for p in wide if not adds_number(kinds[p]))
        return max(wide, default=stop)

    def _casts_sum(self, at: int) -> bool:
        """Right behind an addition to the stream, a copy of its result in the same layout: in fewer bits."""
        kind, casts = self.run.kinds[at], self.run.kinds[at].what == "copy" and at - 1 in self.gap
        same = casts and "layout" not in kind.tags and self._is_residual(at - 1)
        return same and {*kind.tensors} == {*self.run.kinds[at - 1].tensors}

    @cached_property
    def first_on_stream(self) -> int | None:
        """The first addition to the residual stream, or its first normalization."""
        ends = (p for p in self.gap if self._sums_up(p) or normalizes(self.run, p, self.hidden))
        return next(ends, None)

    @cached_property
    def _behind_experts(self) -> int | None:
        """Where what a choice of experts is for ends: on the stream; without shapes also at the next product
        of no name, or at the first step of a normalization."""
        ends = [p for p in (self.first_on_stream, self.unnamed) if p is not None]
        written = [p for p in self.gap if p in self.normed and not self.run.kinds[p].tensors]
        return min([*ends, *written[:1]], default=None)

    def _sums_up(self, at: int) -> bool:
        """A residual of as many rows as the stream has; rows of tokens that several experts got are more."""
        kind = self.run.kinds[at]
        if kind.what == "add" and not kind.tensors:  # without shapes: what a normalization takes next
            return self._is_bare_sum(at) and at + 1 < len(self.run) and self._is_norm(at + 1)
        rows = {core.tokens for core in self.run.cores} - {None}
        return self._is_residual(at) and (not rows or bool(rows & rows_of(kind.tensors[0])))

    def _is_norm(self, at: int) -> bool:
        """A normalization, or a step of one that is written out."""
        kind = self.run.kinds[at]
        if kind.what == "copy" and at not in self.normed:  # its input cast up, and its output back
            before, ahead = self.run.kinds[max(at - 1, 0) : at], self.run.kinds[at + 1 : at + 1 + _OPERANDS]
            takes = next((k for k in ahead if k.what != "copy"), kind)  # its weight and its bias, too
            given = {*takes.tensors[:1], *(t for t in takes.tensors[1:] if prod(t) > 1)}
            made = {t for k in before if k.what == "norm" for t in k.tensors[:1]}
            of_norm = made | (given if takes.what == "norm" else set())
            return "layout" not in kind.tags and bool(of_norm & {*kind.tensors})
        # a weight can be kept as its distance from 1
        behind = (k for k in self.run.kinds[at + 1 : at + 2] if k.what == "norm")
        weighs = any(adds_number(kind) or {*kind.tensors} in ({t} for t in k.tensors[1:]) for k in behind)
        return weighs or kind.what == "norm" or "norm" in kind.tags or at in self.normed


def _passes(kind: Kind) -> bool:
    """Does it hand its input on?"""
    return kind.what in ("copy", "dropout", "helper") or kind.name in VIEWS


def _scales(kind: Kind) -> bool:
    return _passes(kind) or kind.name in CUTS | _SCALES


def rows_of(tensor: Dims) -> set[int]:
    """Rows of a tensor of the stream, also where several streams run side by side (hyper-connections, arXiv
    2409.19606): [batch, sequence, streams, hidden]."""
    return {prod(tensor[:-1]), prod(tensor[:-2]) if len(tensor) == 4 else prod(tensor[:-1])}


def looks_up(run: Run, kind: Kind, hidden: int) -> bool:
    """In a table as wide as the stream: one of distances, with a number for each head, is of attention."""
    two = kind.tensors[:2]
    table = may_look_up(kind) and len(two) == 2 and len(two[0]) == 2 and two[0][-1] == hidden
    return table and (kind.what == "embedding" or not _goes_to_experts(run, *two))


def may_look_up(kind: Kind) -> bool:
    """Rows are taken by their numbers: of a table, as far as the operator says."""
    return kind.what == "embedding" or kind.name == "index_select"


def _goes_to_experts(run: Run, rows: Dims, index: Dims) -> bool:
    """Rows of the stream itself, or something for each of more rows than there are tokens: a token goes to
    several experts, and so do their biases."""
    tokens = {core.tokens for core in run.cores if core.tokens}
    return bool(tokens) and (rows[0] in tokens or prod(index) > max(tokens))
