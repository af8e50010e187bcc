"""Hyper-connections: several residual streams side by side, [batch, sequence, streams, hidden].

Before a block they are weighed and summed to what it takes, behind it its result is added to each and they
are mixed; the weights are made of the streams themselves by small products (arXiv 2409.19606, 2512.24880).
Long skips join the streams of two layers; a weighted sum of all earlier ones can be a product (2402.02622).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tracelens.attribution.structure.norms import adds, written_norms
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import VIEWS, Dims, Kind
from tracelens.gemm import GemmShape

_MOST = 8  # streams
_BLOCKS = ("gemm", "bmm", "core", "softmax", "convolution", "loss", "embedding", "experts")


@dataclass(frozen=True)
class _Streams:
    tokens: int
    many: int
    hidden: int

    def holds(self, tensor: Dims) -> bool:
        """All of them beside one another or flattened, or with what a block takes as one more."""
        flat = len(tensor) > 1 and tensor[-1] == self.many * self.hidden
        beside = tensor[-2:] in ((self.many, self.hidden), (self.many + 1, self.hidden))
        return (flat or beside) and prod(tensor[: -1 - beside]) == self.tokens

    def apart(self, tensor: Dims) -> bool:
        """The same, also as samples of their own: more rows of the stream's width than there are tokens."""
        rows = (self.many * self.tokens, (self.many + 1) * self.tokens)
        return tensor[-1:] == (self.hidden,) and prod(tensor[:-1]) in rows

    def are_weighed(self, product: GemmShape) -> bool:
        """Does it make their weights, of each or of all, or is it the sum by these?"""
        few = product.n <= self.many * (self.many + 2)
        wide = product.k in (self.hidden, self.many * self.hidden)
        reads = product.m * product.k == self.tokens * self.many * self.hidden
        sums = (product.batch, product.k, product.n) == (self.tokens, self.many, self.hidden)
        return (few and wide and reads and product.batch == 1) or (sums and product.m <= self.many + 1)

    def small(self, kind: Kind) -> bool:
        """Weights to sum by, to add by and to mix by, or of one stream what a block gives."""
        most = self.tokens * self.many * (self.many + 2)
        return all(prod(t) <= most or prod(t) == self.tokens * self.hidden for t in kind.tensors)


def label_connections(run: Run, hidden: int | None) -> None:
    """Name what weighs, sums and mixes several residual streams ``residual``; fills ``run.labels``."""
    counts = {core.tokens for core in run.cores} - {None}
    summed = [kind.tensors[0] for kind in run.kinds if adds(kind)]
    sums = Counter(prod(t[:-1]) for t in summed if len(t) > 2 and t[-1] == hidden)
    taken = (t for kind in run.kinds for t in kind.tensors[:1] if len(t) > 3 and t[-1] == hidden)
    beside = Counter((prod(t[:-2]), t[-2]) for t in taken)
    for (tokens, many), times in beside.items():
        often = min(times, sums[tokens * many]) >= len(run.cores)
        if hidden is not None and tokens in counts and 1 < many <= _MOST and often:
            _label(run, _Streams(tokens, many, hidden))
    # of one token that is a row of the stream, which every layer makes, and of many numbers a modulation
    whole = {tokens * hidden for tokens in counts if tokens and tokens > 1 and hidden}
    for at in run.products():
        shape = run.shape(at)
        if shape is None or (shape.batch, shape.m) != (1, 1) or shape.k > len(run.cores) + 1:
            continue
        if shape.n in whole:
            run.labels.setdefault(at, Label("residual", evidence="local"))


def label_skips(run: Run, hidden: int | None) -> None:
    """Name what joins the stream with that of an earlier layer, put beside it, and brings both onto its width
    (long skip connections, arXiv 2209.12152) ``other``; fills ``run.labels``."""
    for at in run.products():
        before = joins(run, at, hidden) if at not in run.labels else None
        if before is not None:
            run.labels.update(dict.fromkeys(range(before, at + 1), Label("other")))


def joins(run: Run, at: int, hidden: int | None) -> int | None:
    """Where what the product takes is put beside one another, if those are two streams and it gives one."""
    shape, before = run.shape(at), next((p for p in range(at - 1, -1, -1) if run.kinds[p].what != "copy"), at)
    if shape is None:
        return before if joins_sums(run.kinds, before, at) else None
    if (shape.n, shape.k) != (hidden, 2 * shape.n):
        return None
    beside = [(prod(t[:-1]), t[-1]) for t in run.kinds[before].tensors]
    return before if run.kinds[before].name == "cat" and beside == 2 * [(shape.m, hidden)] else None


def joins_sums(kinds: Sequence[Kind], at: int, product: int) -> bool:
    """Without shapes: is a sum put beside another one at this place, and what the product makes of both
    normalized? An MLP of both bends that next."""
    rest = (kind.what for kind in kinds[product + 1 :] if kind.what != "copy" and kind.name not in VIEWS)
    put = kinds[at].name == "cat" and not kinds[at].tensors and at > 0 and kinds[at - 1].what == "add"
    return put and next(rest, "") == "norm" and next(rest, "") != "activation"


def _taken_for(kind: Kind) -> tuple[str, ...]:
    """What work on all streams can have been called by its place: behind the embedding, or ahead of the last
    norm and the head."""
    if kind.what == "gemm":
        return ("embedding",)
    return ("embedding", "logits", "norm") if kind.what == "copy" else ("embedding", "logits")


def _label(run: Run, streams: _Streams) -> None:
    layer: int | None = None
    open_: list[int] = []
    collects = False  # behind a product with a name, or work on all streams
    norms = written_norms(run)
    for at, kind in enumerate(run.kinds):
        label, shape = run.labels.get(at), run.shape(at)
        layer = label.layer if label is not None and label.layer is not None else layer
        block = kind.what in _BLOCKS
        apart = layer is not None and any(map(streams.apart, kind.tensors))  # ahead of all they are made
        holds = apart or any(map(streams.holds, kind.tensors))
        works = holds if shape is None else streams.are_weighed(shape)
        if works and kind.what != "norm":
            for place in (*open_, at):
                taken = (*_taken_for(run.kinds[place]), *["attention.other"][: apart and place == at])
                if run.labels.get(place, Label("embedding")).component in taken:
                    run.labels[place] = Label("norm" if place in norms else "residual", layer)
            open_, collects = [], True
        elif label is None and collects and not block and streams.small(kind):
            open_.append(at)
        elif block or label is None:
            open_, collects = [], block and label is not None
