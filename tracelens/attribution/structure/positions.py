"""What stands between two products and is of positions: tables, distances, sines, first convolutions."""

from __future__ import annotations

from functools import cached_property
from itertools import islice, pairwise, takewhile
from math import prod

from tracelens.attribution.structure.cores import query_rows
from tracelens.attribution.structure.gaps import BLOCKS, Interval, may_look_up, rows_of
from tracelens.attribution.structure.heads import splits
from tracelens.attribution.structure.norms import adds
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Dims, Kind

_CONVOLUTION = 4  # kernels of one convolution: its layouts with it
_ARANGES = 4  # units from the numbers of positions to what is made of pairs of them, at most
_COMPARES = 2  # units that tell which tokens are padding: a comparison and its cast
_WAVES = ("cos", "sin")
#: What asks something of tokens or of their numbers.
ASKS = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "all", "any", "bitwise_not", "bitwise_and", "logical_not"}
)
WAVES = 6  # units between a step of a table of sines and the sine or the cosine, at most


def label_tables(run: Run) -> None:
    """Name what makes, ahead of all attention, what nothing but rotations take; fills ``run.labels``."""
    turns = {at for at, label in run.labels.items() if label.component == "attention.rope"}
    taken = {t for at in turns for t in run.kinds[at].tensors if prod(t) > 1}
    for at in range(run.cores[0].first - 1 if run.cores else -1, -1, -1):
        made = run.kinds[at].tensors[-1:] if run.kinds[at].what == "fused" and at not in run.labels else ()
        if not taken.isdisjoint(made):
            takes = {p for p, kind in enumerate(run.kinds) if p != at and made[0] in kind.tensors}
            if takes <= turns:
                run.labels[at] = Label("attention.rope", evidence="local")
                turns.add(at)
                taken |= {t for t in run.kinds[at].tensors if prod(t) > 1}


class Places(Interval):
    """The units between two neighbouring products, and what of them is of places in the sequence."""

    def _sums_lookups(self, at: int) -> bool:
        """Without shapes: adds or puts together what was looked up, or made of patches, right before it."""
        before = self.run.kinds[:at]
        puts = (kind for kind in reversed(before) if kind.name not in VIEWS | CUTS)
        first = next((kind for kind in puts if kind.what not in ("add", "copy") and kind.name != "cat"), None)
        kind = self.run.kinds[at]
        if first is None or not (kind.what == "add" or kind.name in ("cat", "sum")):
            return False
        made = [kind.what for kind in before if kind.what in ("norm", "softmax", "core", "convolution")]
        patches = first.what == "convolution" and made == ["convolution"] and kind.name != "sum"
        return may_look_up(first) or patches

    @cached_property
    def _interpolated(self) -> set[int]:
        """Without shapes: rows of a table that are weighed, summed up and added to the patches right behind
        their lookup, as positions between those that were trained."""
        found, kinds = set[int](), self.run.kinds
        for lookup in (p for p in self.gap if may_look_up(kinds[p]) and not kinds[p].tensors):
            behind = [p for p in self.gap if p > lookup]
            steps = [p for p in behind if kinds[p].what != "copy" and kinds[p].name not in VIEWS][:3]
            if [kinds[p].name for p in steps] == ["mul", "sum", "add"]:
                found |= {p for p in behind if p <= steps[-1]}
        return found

    @cached_property
    def _among_lookups(self) -> range:
        """Without shapes: from the first lookup to the last before a normalization, and the
        counting of tokens in front of them, which numbers the places of those that are no padding."""
        kinds = self.run.kinds
        layers = ("norm", "dropout", "gemm", "bmm", "core", "softmax")
        whole = range(self.gap[0], self.gap[-1])
        ends = (at for at in whole if kinds[at].what in layers or at in self.normed)
        looks = [at for at in range(self.gap[0], next(ends, self.gap[-1])) if may_look_up(kinds[at])]
        if not any(kinds[at].what == "embedding" for at in looks) or any(kinds[at].tensors for at in looks):
            return range(0)
        counts = [at for at in range(self.gap[0], looks[0]) if kinds[at].name == "cumsum"]
        first = max(counts[0] - _COMPARES, self.gap[0]) if counts else looks[0]
        return range(first, looks[-1] + 1)

    def _is_wave(self, at: int) -> bool:
        """A sine of positions; one of channels that are convolved is an activation (arXiv 2006.08195).

        Where no sizes were recorded, positions are told by the cosine beside it.
        """
        kind = self.run.kinds[at]
        if kind.name not in _WAVES:
            return False
        if not kind.tensors:
            return {self.run.kinds[beside].name for beside in self._near(at)}.issuperset(_WAVES)
        maps = {(len(t), *t[:2]) for t in kind.tensors if len(t) > 2}
        return len(kind.tensors[0]) > 1 and not self._channels & maps  # of angles in a row it is no table

    def _near(self, at: int) -> list[int]:
        """Units around one; where no sizes were recorded none behind a convolution."""
        kinds = self.run.kinds
        ahead, behind = (
            range(at, min(at + WAVES + 1, len(kinds))),
            range(at - 1, max(self.gap[0], at - WAVES) - 1, -1),
        )
        ways = (
            takewhile(lambda p: kinds[p].tensors or kinds[p].what != "convolution", way)
            for way in (ahead, behind)
        )
        return [beside for way in ways for beside in way]

    @cached_property
    def _channels(self) -> set[Dims]:
        """Rank, samples and channels of what the convolutions of the gap take."""
        given = [kind for kind in (self.run.kinds[at] for at in self.gap) if kind.what == "convolution"]
        return {(len(kind.tensors[0]), *kind.tensors[0][:2]) for kind in given if kind.tensors}

    def _makes_waves(self, at: int) -> bool:
        """Beside a sine of positions, and no work on the stream: tables of rotations, or positions."""
        kinds, two = self.run.kinds, self.run.kinds[at].tensors[:1]
        if at in self._frequencies:
            return True
        waves = [kinds[beside] for beside in self._near(at) if self._is_wave(beside)]
        sizes = {prod(kind.tensors[0]) for kind in waves if kind.tensors}
        small = not two or any(prod(two[0]) in (size, size // 2) or prod(two[0]) < size for size in sizes)
        makes = kinds[at].what in ("elementwise", "copy", "add") and kinds[at].name not in ASKS
        return bool(waves) and small and makes

    @cached_property
    def _frequencies(self) -> set[int]:
        """What makes the row of numbers that positions are multiplied with ahead of a sine, one for each wave
        or for its sine and its cosine."""
        waves = [at for at in self.gap if self._is_wave(at)]
        widths = {t[-1] for at in waves for t in self.run.kinds[at].tensors[:1] if len(t) > 1}
        rows = {(size,) for width in widths - {1} for size in (width, 2 * width)}
        kinds = {at: self.run.kinds[at] for at in self.gap if at < max(waves, default=0)}
        made = {at for at, kind in kinds.items() if kind.tensors and rows.issuperset(kind.tensors)}
        return made | {at for at, kind in kinds.items() if not kind.tensors and made & {at + 1, at + 2}}

    def _of_samples(self, at: int) -> bool:
        """Beside a sine of one number for each sample, or of a few, and none of positions: a time. Without
        shapes a product that takes it tells, as positions are of no layer."""
        kinds = self.run.kinds
        if not kinds[at].tensors:
            works = ("elementwise", "copy", "add")
            rest = (p for p in range(at + 1, len(kinds)) if kinds[p].what not in works or p in self.normed)
            behind = next(rest, at)
            return kinds[behind].what == "gemm" and behind not in self.normed
        near = [*kinds[at : at + WAVES + 1], *reversed(kinds[max(at - WAVES, 0) : at])]
        waves = next((kind.tensors[0] for kind in near if kind.name in ("cos", "sin") and kind.tensors), ())
        rows = {
            t[0] for kind in self.run.kinds for t in kind.tensors[:1] if len(t) == 3 and t[-1] == self.hidden
        }
        return len(waves) == 2 and any(waves[0] in (size, 2 * size) for size in rows)

    def _onto_stream(self, at: int) -> bool:
        """Patches or frames: a convolution with as many channels as the stream is wide, and not a stem."""
        weights = [t for t in self.run.kinds[at].tensors if len(t) >= 3]
        if self._takes_stream(at) or self.convolved:
            return False
        if weights:
            # in the middle of a model a convolution of single places cuts no patches (MobileViT)
            cuts = self.run.follows is None or prod(weights[-1][2:]) > 1
            return cuts and any(t[0] == self.hidden for t in weights) and not self._goes_on_as_map(at)
        ahead = self.run.kinds[self.gap[0] : at]
        if any(kind.what == "gemm" or kind.name == "layer_norm" for kind in ahead):
            return False  # products of no name, or tokens, stand before it: a short convolution of a layer
        return sum(self.run.kinds[p].what == "convolution" for p in self.gap) <= _CONVOLUTION

    def _goes_on_as_map(self, at: int) -> bool:
        """Does what the convolution makes go through a batch normalization, in a block of its own?"""
        behind = (kind for kind in self.run.kinds[at + 1 :] if kind.what != "copy" and kind.name != "add_")
        taken = next((kind for kind in behind if kind.tensors and kind.name != "add"), None)
        return taken is not None and "batch_norm" in taken.name

    def _takes_stream(self, at: int) -> bool:
        """A convolution of maps with as many channels as the stream is wide: of a block, or of positions."""
        maps = [t for t in self.run.kinds[at].tensors if len(t) >= 3]
        return self.run.kinds[at].what == "convolution" and len(maps) >= 2 and maps[0][1] == self.hidden

    @cached_property
    def convolved(self) -> bool:
        """Do blocks of convolutions work on the stream, before the layers? What they add embeds nothing."""
        maps = (kind for kind in (self.run.kinds[at] for at in self.gap) if adds(kind))
        several = sum(self.run.kinds[at].what == "convolution" for at in self.gap) > 1
        sums = several and any(len(kind.tensors[0]) > 3 for kind in maps)  # and none of resized positions
        return sums or any(map(self._takes_stream, self.gap))

    def _of_scores(self, kind: Kind) -> bool:
        """Works on as many elements as the scores of the unfused core before the gap."""
        core = next((core for core in reversed(self.run.cores) if core.last < self.gap[0]), None)
        shape = self.run.shape(core.first) if core is not None and core.first != core.last else None
        size = shape.batch * shape.m * shape.n if shape is not None else None
        wide = (t for t in kind.tensors if len(t) > 3 or (len(t) == 3 and t[-1] != self.hidden))
        return any(prod(t) == size and t not in self._maps for t in wide)

    def _of_next_heads(self, at: int) -> bool:
        """Before the products of queries, and yet of every head by itself, or on pairs of positions: it makes
        what is added to the scores."""
        core = next((core for core in self.run.cores if core.first > at), None)
        if self.after != "attention.qkv" or core is None or not core.key_dim:
            return False
        rows, scores = query_rows(self.run, core), self.run.shape(core.first)
        size = scores.batch * scores.m * scores.n if scores is not None else None
        wide = [t for t in self.run.kinds[at].tensors if len(t) >= 3 and t not in self._maps]
        if rows is None or any(self.hidden in t[-2:] for t in wide):
            return False
        made = self.run.shape(self.gap[-1] + 1)
        most = core.key_dim if made is None or made.m != rows else 0  # the rows of one head are the tokens
        return any(prod(t) == size or splits(t, rows, most) for t in wide)

    @cached_property
    def distances(self) -> set[int]:
        """Before the products of queries, what looks up numbers for each pair of positions, and all of those
        pairs."""
        kinds, scores = self.run.kinds, self.run.shape(self.core.first) if self.core is not None else None
        if scores is None or self.after != "attention.qkv":
            return set()
        size = scores.m * scores.n
        tables = {at: kinds[at].tensors[:2] for at in self.gap if kinds[at].what in ("embedding", "dispatch")}
        pairs = {at for at in self.gap if any(prod(t[-2:]) == size for t in kinds[at].tensors)}
        heads = {t[0] for at in pairs for t in kinds[at].tensors if len(t) == 3}
        looks = {
            at
            for at, two in tables.items()
            if two[0][-1] < self.hidden and len(two[0]) == 2
            if (prod(two[1]) == size if len(two) == 2 else two[0][-1] in heads)
        }
        first = min(looks | pairs, default=0)
        ahead = {at for at in self.gap if first - _ARANGES <= at < first and kinds[at].name == "arange"}
        return (pairs | ahead | {at for at in looks if kinds[at].what == "dispatch"}) if looks else set()

    @cached_property
    def _maps(self) -> set[Dims]:
        """What the convolutions of the gap take."""
        given = (self.run.kinds[at] for at in self.gap)
        return {t for kind in given if kind.what == "convolution" for t in kind.tensors if len(t) > 3}

    def _adds_position(self, at: int) -> bool:
        """A position added to queries and keys: behind the normalization of a sum, or to other rows than
        those that the block before gave."""
        if self.after == "attention.qkv" and self._is_bare_sum(at):  # without shapes
            norms = [p for p in self.gap if p < at and self._is_norm(p)]
            sums = [p for p in self.gap if norms and p < norms[-1] and self._is_bare_sum(p)]
            return bool(sums) and not any(self.run.kinds[p].what == "gemm" for p in range(sums[-1], at))
        if self.after != "attention.qkv" or not self._is_residual(at):
            return False
        if self.run.kinds[at].tensors[0][-1] != self.hidden:
            return False  # the channels in front
        if any(kind.what in BLOCKS for kind in self.run.kinds[self.gap[0] : at]):
            return False  # a block of no name
        given = self.product.m * self.product.batch if self.product is not None else 0
        rows = rows_of(self.run.kinds[at].tensors[0])
        other = given not in rows and not self._is_part(at, given) and not rows & self._rows_before
        if given and other and self.before in ("attention.output", "mlp.down"):
            return True
        norms = [p for p in self.gap if p < at and self._is_norm(p)]
        if norms and self.run.units[at] - self.run.units[norms[-1]] > at - norms[-1]:
            return False  # a layer without attention was read out of it
        if self._makes_values_too():
            return False  # of one product: positions are for queries and keys
        return any(self._is_residual(p) for p in self.gap if norms and p < norms[-1])

    def _makes_values_too(self) -> bool:
        """Does one product behind the gap make queries, keys and values?"""
        core, shape = (
            self.core,
            self.run.shape(self.gap[-1] + 1) if self.gap[-1] + 1 < len(self.run) else None,
        )
        if core is None or shape is None or not core.heads or not core.key_dim or not core.value_dim:
            return False
        keys = (core.kv_heads or core.heads) * (core.key_dim + core.value_dim)
        return shape.n == core.heads * core.key_dim + keys

    @cached_property
    def _rows_before(self) -> set[int]:
        """Rows of what closes the block before: of two streams, that of the first, too."""
        closed = (
            at for at in range(self.gap[0] - 1, -1, -1) if self.run.labels.get(at) == self.product_before
        )
        shapes = (self.run.shape(at) for at in islice(closed, 2))
        return {shape.m for shape in shapes if shape is not None}

    def _is_part(self, at: int, given: int) -> bool:
        """Is it one of two sums in a row, of two streams that were side by side in so many rows?"""
        sums = [p for p in self.gap if self._is_residual(p)]
        rows = {p: prod(self.run.kinds[p].tensors[0][:-1]) for p in sums}
        return any(at in pair and rows[pair[0]] + rows[pair[1]] == given for pair in pairwise(sums))

    def _counts_places(self, at: int) -> bool:
        """Without shapes: added to numbers in a row, which say where to read."""
        return self._is_bare_sum(at) and at > 0 and self.run.kinds[at - 1].name == "arange"
