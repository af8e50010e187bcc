"""Without shapes: what stands around single attention cores and norms, where layers are not alike.

The reading by order (``ordered.py``) needs layers that repeat. Where they do not, this is still sure: the
products between a normalization of the stream and a core make its queries, keys and values; the first product
behind a core whose result is added to the stream is its output projection, and one ahead of that, which is
bent, its gate; products around one activation, from a normalization to a sum, are an MLP.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tracelens.attribution.structure.connections import joins_sums
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.patches import label_laid_side_by_side, label_merged
from tracelens.attribution.structure.readings import adapters, mlp_of, scales_sum
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Kind
from tracelens.attribution.structure.walk import activates, routes

_QUERIES = (1, 2, 3)  # products of one core
_OF_TWO_STREAMS = 6  # products of one core, whose results are put side by side (arXiv 2403.03206)
_LATENT = 4  # two down and two up, with a norm between (arXiv 2405.04434)
_TO_SUM = 8  # units from the last product of a block to the sum with the stream, at most
_TO_STREAM = ("elementwise", "bmm")  # a batched GEMM mixes several streams (arXiv 2409.19606)
_TO_BEND = 3  # units from a gate's product to what bends it, at most
_HANDS_ON = ("copy", "dropout", "helper")
_VIEWS = VIEWS | CUTS | {"squeeze", "unsqueeze"}
_WEIGHS = ("mul", "mul_")
_SCORES = ("softmax", "activation", "elementwise", "add")  # of experts, before some are chosen
_INDEXER = ("attention.other", "attention.scores")
_HELPS = Kind("helper", "")
_ENDS = ("gemm", "convolution", "loss")
_INSIDE = ("activation", "elementwise", "copy", "dropout", "add", "helper")


def label_around(run: Run) -> None:
    """Name the products around cores, and those of MLPs between norms, that have no name yet; fills
    ``run.labels``."""
    if run.cores and not any(map(run.shape, run.products())):
        label_merged(run)
        _Around(run).label()
        label_laid_side_by_side(run)


def _beside(run: Run) -> Iterator[tuple[int, int]]:
    """What low-rank adapters do, to their sum, and the product that each is beside."""
    products = run.products()
    for up in adapters(run, products)[1::2]:
        if scales_sum(run, up):
            base = products[products.index(up) - 2]
            sums = next(p for p in range(up, len(run)) if run.kinds[p].what == "add")
            yield from ((p, base) for p in range(base + 1, sums + 1))


class _Around:
    def __init__(self, run: Run) -> None:
        self.beside = dict(_beside(run))  # of low-rank adapters, and the product they adapt
        self.products = [at for at in run.products() if at not in self.beside]
        self.run = run
        self.kinds = [_HELPS if at in self.beside else kind for at, kind in enumerate(run.kinds)]
        self.compiled = any(kind.what == "fused" for kind in run.kinds)
        self.normed = written_norms(run) | {at for at, kind in enumerate(run.kinds) if kind.what == "norm"}

    def label(self) -> None:
        makes = [self._makes(core) for core in self.run.cores]
        for at, (core, behind) in enumerate(pairwise(self.run.cores), 1):
            makes[at] = makes[at] or self._of_head(makes[at - 1], core, behind)
        usual, counts = self._named(), [0, *map(len, makes), 0]
        for at, (core, own) in enumerate(zip(self.run.cores, makes, strict=True)):
            beside = {counts[at], counts[at + 2]}  # in a layer beside it; patches are merged in single ones
            queries = own if not usual or len(own) in usual | beside else []
            joint = len(own) == _OF_TWO_STREAMS
            norms = self.normed & {*range(own[-1], own[0])} if own and not joint else set[int]()
            fewer = [counts.count(many) for many in range(1, len(own))]
            odd = counts.count(len(own)) <= max(len(makes) > 1, *fewer, 0)
            if norms and (odd or any(at in self.run.labels for at in own)):
                queries = [at for at in queries if at > max(norms)]  # what is normalized a stage begins with
            found = dict.fromkeys(queries, "attention.qkv") | self._output(core)
            if joint:  # and another output, of the other stream
                outputs = [at for at in self.products if at > core.last][:2]
                found |= dict.fromkeys(outputs, "attention.output")
            self._name(found | core.parts if found else {})
        for number, at in enumerate(self.products):
            if at in self.run.labels:
                continue
            if self._takes_stream(at):
                self._name(self._router(at) or self._mlp(self.products[number : number + 3]))
        self._name(
            {at: self.run.labels[of].component for at, of in self.beside.items() if of in self.run.labels}
        )

    def _named(self) -> set[int]:
        """How many products their order has named the queries, keys and values of a core."""
        ends = [-1, *(core.first for core in self.run.cores)]
        named = [at for at, label in self.run.labels.items() if label.component == "attention.qkv"]
        return {sum(start < at < stop for at in named) for start, stop in pairwise(ends)} - {0}

    def _name(self, parts: dict[int, str]) -> None:
        for at, component in parts.items():
            self.run.labels.setdefault(at, Label(component, evidence="local"))

    def _makes(self, core: Core) -> list[int]:
        """The products between the last normalization of the stream and the core."""
        found: list[int] = []
        for at in range(core.first - 1, -1, -1):
            kind = self.kinds[at]
            if self._is_indexer(at):
                continue
            if kind.what == "gemm":
                found.append(at)
            elif found and (
                self._of_stream(at) or self._in_row(at, found)
                if at in self.normed
                else self._adds_normed(at) or self._closes_block(at, found[-1])
            ):
                latent = not self.normed.isdisjoint(range(found[-1], found[0]))
                joint = len(found) == _OF_TWO_STREAMS and self._joins(found[0], core.first)
                return found if len(found) in _QUERIES or (latent and len(found) == _LATENT) or joint else []
            elif kind.what in ("bmm", "softmax", "core", "loss", "activation", "experts", "convolution"):
                return []
        return []

    def _of_head(self, before: list[int], core: Core, behind: Core) -> list[int]:
        """Three products and nothing else between two cores: of heads that are written each by itself, where
        the first has as many."""
        between = [at for at in range(core.last + 1, behind.first) if not self._passes(at)]
        alone = all(self.kinds[at].what == "gemm" for at in between)
        return between[::-1] if alone and len(before) == len(between) == max(_QUERIES) else []

    def _in_row(self, norm: int, found: list[int]) -> bool:
        """Do three products in a row take what is normalized, and are no more ahead of the core?"""
        row = [at for at in range(norm + 1, found[0] + 1) if not self._passes(at)]
        return len(found) == max(_QUERIES) and row == found[::-1]

    def _joins(self, start: int, stop: int) -> bool:
        """Are three things put side by side between these two?"""
        return [kind.name for kind in self.kinds[start:stop]].count("cat") >= max(_QUERIES)

    def _is_indexer(self, at: int) -> bool:
        """Is it a product of an indexer, between the queries and the core?"""
        label = self.run.labels.get(at)
        if label is None or label.component not in _INDEXER:
            return False
        return not any(at in core.parts for core in self.run.cores)

    def _of_stream(self, norm: int) -> bool:
        """Does the normalization take a sum, or what begins the stream, and no product's result?"""
        while norm in self.normed:
            norm = self._before(norm)
        taken = self.kinds[norm] if norm >= 0 else None
        begins = not any(kind.what in ("gemm", "bmm") for kind in self.kinds[: norm + 1])
        skips = begins or joins_sums(self.kinds, self._before(norm), norm)  # to a later layer
        return skips or taken is None or taken.what == "add" or taken.name == "cat"

    def _adds_normed(self, at: int) -> bool:
        """Is it a sum with what is normalized, which the layers take as it is (OLMo 2, arXiv 2501.00656)?"""
        return self.kinds[at].what == "add" and at not in self.normed and self._before(at) in self.normed

    def _closes_block(self, at: int, taken_by: int) -> bool:
        """Is it a sum of a product's result with the stream, which the product given takes as it is?"""
        before = self._unweighed(at)
        sums = self.kinds[at].what == "add" and self._behind(at) == taken_by
        return sums and before >= 0 and self.kinds[before].what == "gemm"

    def _before(self, at: int) -> int:
        """The last unit before that does more than hand on; -1 where none is."""
        return next((p for p in range(at - 1, -1, -1) if not self._passes(p)), -1)

    def _unweighed(self, at: int) -> int:
        """The same, ahead of what only weighs it."""
        before = self._before(at)
        return self._before(before) if before >= 0 and self.kinds[before].name in _WEIGHS else before

    def _behind(self, at: int) -> int:
        """The next unit that does more than hand on; itself where none is."""
        return next((p for p in range(at + 1, len(self.kinds)) if not self._passes(p)), at)

    def _output(self, core: Core) -> dict[int, str]:
        """The first product behind the core whose result is added to the stream, and the gate ahead of it."""
        gates: list[int] = []
        for at in range(core.last + 1, len(self.kinds)):
            if self.kinds[at].what == "gemm":
                # one that another product takes as it is, or that a block beside it follows, is no gate;
                # a compiler puts two models side by side
                straight = not gates and self._before(at) == core.last and not self.compiled
                taken = self.kinds[self._behind(at)].what == "gemm" and not self._before_core(at)
                added = self._added(at) is not None
                if self._summed(at) or (straight and (taken or added)) or self._is_gated(gates, at):
                    return dict.fromkeys(gates, "attention.other") | {at: "attention.output"}
                gates.append(at)
            elif at in self.normed if gates else at not in self.normed and self.kinds[at].what == "add":
                return {}  # the core's result can be normalized
            elif at not in self.normed and self.kinds[at].what not in _INSIDE:
                return {}
            if len(gates) > 1 or (gates and not any(map(activates, self.kinds[gates[0] : at + _TO_BEND]))):
                return {}
            if gates and activates(self.kinds[at]) and self.kinds[at].name not in ("sigmoid", "sigmoid_"):
                return {}  # as the way back from an MLP beside it has
        return {}

    def _is_gated(self, gates: list[int], at: int) -> bool:
        """Is what the product takes the core's result times the gate's sigmoid, and nothing else (arXiv
        2505.06708)? Its own result can be normalized ahead of any sum."""
        between = [p for p in range(gates[0] + 1, at) if not self._passes(p)] if gates else []
        return [self.kinds[p].name for p in between] == ["sigmoid", "mul"] and not self.compiled

    def _before_core(self, at: int) -> bool:
        """Does another core follow, and neither a sum nor a normalization ahead of it? Of those are the
        products then, as where a sequence is attended to piece by piece (CANINE, arXiv 2103.06874)."""
        core = next((core.first for core in self.run.cores if core.first > at), None)
        ends = (p in self.normed or self.kinds[p].what == "add" for p in range(at + 1, core or 0))
        return core is not None and not any(ends)

    def _summed(self, at: int) -> bool:
        """Is the product's result added to something, and that normalized?"""
        places = range(at + 1, min(at + 1 + _TO_SUM, len(self.kinds)))
        rest = [p for p in places if not self._passes(p)]
        rest = rest[1:] if rest and self._bends_gate(rest[0]) else rest
        sums = next((p for p in rest if self.kinds[p].what == "add"), None)
        if sums is None or any(
            self.kinds[p].what not in _TO_STREAM and p not in self.normed for p in rest if p < sums
        ):
            return False
        behind = self._behind(sums)
        what = self.kinds[behind].what
        taken = behind != sums and (behind in self.normed or what == "add")
        return taken or (self._adds_normed(sums) and what == "gemm")

    def _bends_gate(self, at: int) -> bool:
        """Is it a tanh of what weighs the block's result, once that is normalized (arXiv 2406.18583)?"""
        normed = self._behind(at) in self.normed and self.kinds[at].name == "tanh"
        behind = range(at + 1, len(self.kinds)) if normed else ()
        weighs = next((p for p in behind if p not in self.normed and not self._passes(p)), at)
        return self.kinds[weighs].name in _WEIGHS and self.kinds[self._behind(weighs)].what == "add"

    def _added(self, at: int) -> int | None:
        """The sum right behind the product, of its result as it is, or weighed first (arXiv 2212.09748)."""
        sums = self._behind(at)
        sums = self._behind(sums) if self.kinds[sums].name in _WEIGHS else sums
        return sums if self.kinds[sums].what == "add" and sums not in self.normed else None

    def _takes_stream(self, at: int) -> bool:
        """Does the product take what was normalized right before, also scaled, or a sum with that?"""
        before = self._unweighed(at)
        return before in self.normed or (before >= 0 and self._adds_normed(before))

    def _router(self, at: int) -> dict[int, str]:
        """A product of which the largest are chosen right behind."""
        behind = [p for p in range(at + 1, at + 1 + _TO_SUM) if p < len(self.kinds) and not self._passes(p)]
        chooses = next((p for p in behind if routes(self.run, p)), None)
        chosen = chooses is not None and all(self.kinds[p].what in _SCORES for p in behind if p < chooses)
        return {at: "moe.router"} if chosen else {}

    def _mlp(self, products: list[int]) -> dict[int, str]:
        """Two or three products with one activation between, the last of which is added to the stream."""
        for many in (3, 2):
            block = products[:many]
            inside = range(block[0] + 1, block[-1])
            if len(block) < many or any(at in self.run.labels for at in block):
                continue
            others = [at for at in inside if at not in block]
            plain = all(self.kinds[at].what != "add" for at in others)  # then a sum behind is of no bias
            # the last ahead of a loss can be a head with its bias
            ends = (kind.what for kind in self.kinds[block[-1] + 1 :] if kind.what in _ENDS)
            inner = next(ends, "") != "loss"
            added = self._added(block[-1]) if plain and inner else None
            if added is not None and self._before(added) != block[-1]:  # or of another stream's (Gemma 3n)
                added = None if self.kinds[self._behind(added)].what == "gemm" else added
            if added is None and not self._summed(block[-1]):
                continue
            alone = all(self.kinds[at].what in _INSIDE and at not in self.normed for at in others)
            bends = [at for at in others if activates(self.kinds[at])]
            parts = mlp_of(self.kinds, block, bends)
            gates = many == 2 and {self.kinds[at].name for at in bends} == {"sigmoid"}  # what is mixed
            if alone and parts is not None and not gates:
                return dict(zip(block, parts, strict=True))
        return {}

    def _passes(self, at: int) -> bool:
        kind = self.kinds[at]
        return at not in self.normed and (kind.what in _HANDS_ON or kind.name in _VIEWS)
