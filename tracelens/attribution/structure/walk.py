"""One walk over the products of a forward: what it has seen, and what a unit is by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, takewhile
from math import prod

from tracelens.attribution.structure.norms import adds, is_affine, normalizes
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import FILLS, Dims, Kind
from tracelens.gemm import GemmShape
from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.inductor_ops import LAYOUT, NONLINEAR

MOST_EXPERTS = 1024
FEW = 64  # rows for each token: products with fewer are of whole samples, and of no layer
LARGEST_RANK = 512  # of a low-rank adapter
_IN_ROW = 3  # sums of one kernel and no tensor, at least: losses are added up a few times
_COMPARES = frozenset({"softmax", "log_softmax", "argmax", "max", "topk", "sort", "multinomial"})


def hidden_size(runs: Iterable[Run]) -> int | None:
    """The width of the residual stream: what the products that take the core's output give, and what other
    products are made of (a head takes a core's width, too)."""
    runs = [*runs]
    return _elected(runs, {width for run in runs for width in taken_widths(run)})


def taken_widths(run: Run) -> set[int]:
    """What the products of a run are made of."""
    return {shape.k for at in run.products() if (shape := run.shape(at)) is not None}


def returned_width(run: Run, among: set[int]) -> int | None:
    """What the products that take the output of a run's cores give, one of these widths."""
    return _elected([run], among)


def _elected(runs: Iterable[Run], among: set[int]) -> int | None:
    votes: Counter[int] = Counter()
    weak: Counter[int] = Counter()
    for run in runs:
        for core, following in pairs(run):
            stop = following.first if following else len(run)
            made = [shape for at in run.products(core.last + 1, stop) if (shape := run.shape(at))]
            behind = [shape for shape in made if shape.n in among]
            wide = {core.out_width, *_put_beside_whole(run, core)}
            exact = [s for s in behind if s.k in wide or (core.heads is None and _fits_heads(s.k, core))] or [
                two for one, two in pairwise(made) if in_groups(one, two, core) and two.n in among
            ]
            votes.update(shape.n for shape in exact[:1])
            beside = {sum(prod(t[-2:]) for t in found) for found in _put_beside(run, core)}
            weak.update(shape.n for shape in behind[:1] if takes_heads(shape.k, core) or shape.k in beside)
    votes = votes or weak
    return votes.most_common(1)[0][0] if votes else None


def _put_beside(run: Run, core: Core) -> Iterator[tuple[Dims, ...]]:
    """Heads that are put beside those of the core before the next product, with them (ConvBERT's)."""
    for kind in run.kinds[core.last + 1 :]:
        if kind.what == "gemm":
            return
        heads = (core.heads, core.value_dim)
        if kind.name == "cat" and heads in [t[-2:] for t in kind.tensors if len(t) > 2]:
            yield kind.tensors


def _put_beside_whole(run: Run, core: Core) -> Iterator[int]:
    """The width of all heads with what an MLP beside the attention gives (arXiv 2302.05442), put together for
    the next product."""
    kinds = takewhile(lambda kind: kind.what != "gemm", run.kinds[core.last + 1 :])
    for kind in kinds:
        if kind.name == "cat" and core.out_width in [t[-1] for t in kind.tensors]:
            yield sum(t[-1] for t in kind.tensors)


def in_groups(first: GemmShape, second: GemmShape, core: Core) -> bool:
    """An output projection in two: of every group of heads by itself, then of all (DeepSeek-V4)."""
    groups = first.batch > 1 and first.batch * first.k == core.out_width
    return groups and (second.batch, second.k) == (1, first.batch * first.n)


def takes_heads(width: int, core: Core) -> bool:
    """As wide as the core's output, or a slice of every head of it (values padded to the keys' width)."""
    if core.out_width is None or core.heads is None or core.value_dim is None:
        return _fits_heads(width, core)
    return width == core.out_width or (width < core.out_width and width % core.heads == 0)


def pairs(run: Run) -> list[tuple[Core, Core | None]]:
    """Each core with the one behind it."""
    return [*zip(run.cores, run.cores[1:], strict=False), *((core, None) for core in run.cores[-1:])]


def _fits_heads(width: int, core: Core) -> bool:
    """Where the heads are not known: a whole number of them; with nothing known, any width will do."""
    return core.value_dim is None or width % core.value_dim == 0


class Walk:
    """The state of a walk over the products of a run."""

    def __init__(self, run: Run, hidden: int):
        self.run = run
        self.hidden = hidden
        self.layer = -1
        self.after_mlp = True  # the current layer has its MLP, or there is none yet
        self.rows: set[int] = set()  # of the last output projections, one for each stream
        self.mlp_rows: int | None = None  # of the last MLP
        self.mlps: set[tuple[int, int]] = set()  # (n, k) that close the MLPs of layers
        self.norms = [
            at for at in range(len(run)) if normalizes(run, at, hidden) or is_affine(run, at, hidden)
        ]
        self.routers = [at for at, kind in enumerate(run.kinds) if routes(run, at)]

    def _sums_up(self, kind: Kind) -> bool:
        """An addition to the residual stream, alone or in a fused kernel."""
        return "add" in kind.tags or (adds(kind) and kind.width == self.hidden)

    def _sizes(self, at: int) -> tuple[int, int]:
        shape = self.run.shape(at)
        assert shape is not None
        return (shape.n, shape.k)

    def _adapters(self, rest: list[int], base: int) -> list[int]:
        """Low-rank adapters beside a product (x A B added to x W) belong to it; returns what is left."""
        while self._adapts(base, rest):
            label = self.run.labels[base]
            self.run.labels |= dict.fromkeys(rest[:2], Label(label.component, label.layer))
            rest = rest[2:]
        return rest

    def _adapts(self, base: int, behind: list[int]) -> bool:
        """Are the first two of the products behind another an adapter of it?"""
        shapes = [self.run.shape(at) for at in (base, *behind[:2])]
        if len(shapes) < 3 or None in shapes:
            return False
        wide, down, up = (shape for shape in shapes if shape is not None)
        narrow = up.k == down.n <= min(LARGEST_RANK, wide.k // 2)
        return narrow and (down.k, up.n) == (wide.k, wide.n) and not self._bends(base, behind[1])

    def _without_adapters(self, products: list[int]) -> list[int]:
        out: list[int] = []
        while products:
            base, products = products[0], products[1:]
            out.append(base)
            while self._adapts(base, products):
                products = products[2:]
        return out

    def _bends(self, start: int, stop: int) -> bool:
        """Is what a product gives normalized, or bent, before the other? An adapter is linear."""
        between = range(start + 1, stop)
        return any(at in self.norms or activates(self.run.kinds[at]) for at in between)


def name_sum(run: Run, at: int) -> None:
    """What scales the result of an adapter's second product and adds it takes the name of that product."""
    label = run.labels[at]
    for place in range(at + 1, min(at + 4, len(run))):
        if run.kinds[place].what == "add" and place not in run.labels:
            same = Label(label.component, label.layer, label.components)
            run.labels.update({p: same for p in range(at + 1, place + 1) if p not in run.labels})
        if run.kinds[place].what in ("add", "gemm", "core"):
            break


def follows(run: Run, at: int, behind: int) -> bool:
    """Does the product ``behind`` take the other's result as it is? A gate's is bent and multiplied first."""
    between = (kind for kind in run.kinds[at + 1 : behind] if kind.name != FILLS)
    made, taken = run.shape(at), run.shape(behind)
    fits = made is None or taken is None or made.m * made.n == taken.m * taken.k
    return fits and all(kind.what in ("dropout", "copy", "helper") for kind in between)


def is_product(run: Run, at: int) -> bool:
    """A product that was not named where products are named stays open (a table of rotations has none)."""
    shape = run.shape(at)
    return run.kinds[at].what in ("gemm", "bmm") and (shape is None or shape.k > 1)


def embeds(kind: Kind) -> bool:
    return kind.what == "embedding" or "embedding" in kind.tags


def loses(run: Run, at: int) -> bool:
    kind = run.kinds[at]
    return kind.what in ("loss", "fused_logits_loss") or bool(kind.tags & {"loss", "loss_backward"})


def chooses(kind: Kind, size: int) -> bool:
    """Are so many columns compared, or one of them chosen?"""
    compares = kind.what == "softmax" or kind.name in _COMPARES
    return compares and any(tensor[-1] == size for tensor in kind.tensors if tensor)


def counts_batches(run: Run, at: int) -> bool:
    """A batch normalization adds one to a number before it runs; compiled, all do in a row."""
    kind, behind = run.kinds[at], run.kinds[at + 1 : at + 2]
    if {"add"} <= kind.tags <= {"add", "counts"} and not kind.tensors:
        near = run.kinds[max(at - _IN_ROW, 0) : at + _IN_ROW + 1]
        in_row = sum(other.name == kind.name for other in near) > _IN_ROW
        return in_row or ("counts" in kind.tags and any("batch_norm" in other.name for other in run.kinds))
    one_more = kind.name in ("add", "add_") and not kind.tensors
    return one_more and any("batch_norm" in other.name for other in behind)


def activates(kind: Kind) -> bool:
    return kind.what == "activation" or bool(kind.tags & {"activation", "gate"})


def lays_out_core(kind: Kind) -> bool:
    """A kernel of Inductor that only lays out what the fused attention it is named after takes."""
    fused = parse_fused(kind.name) if kind.what == "fused" and kind.tags == {"attention"} else None
    return fused is not None and not fused.unknown and len({*fused.ops} - LAYOUT) == 1


def bends(kind: Kind) -> bool:
    """A kernel that bends what it reads, and may be a residual elsewhere: a written-out activation."""
    return kind.what == "fused" and bool(NONLINEAR & kind.ops)


def gate_of(kinds: Sequence[Kind], first: int, last: int, act: int) -> int | None:
    """Which of two products in a row is the gate, by what stands behind each and before the activation; None.

    The first by custom: down(act(gate(x)) * up(x)) is how public gated MLPs are written; where one of the two
    is scaled as it is it is that one, up(x) * act(gate(x) * m), as models/falcon_h1 of transformers.
    """
    ahead, behind = (
        Counter(
            (kind.name, len(kind.tensors) > 1)
            for kind in kinds[start + 1 : stop]
            if kind.what not in ("copy", "fused")
        )
        for start, stop in ((first, last), (last, act))
    )
    alone = [step for step, count in (ahead + behind).items() if count % 2]  # not what is done to both
    if alone == [("mul", False)]:
        last_as_it_is = (
            next((kind.name for kind in kinds[last + 1 : act] if kind.what != "copy"), "") == "mul"
        )
        return int(behind[alone[0]] > ahead[alone[0]] and last_as_it_is)
    return None if alone else 0


_PICTURES = 4  # dimensions


def convolves_bent(kinds: Iterable[Kind]) -> bool:
    """Is something bent and then convolved, over a sequence? Modules of convolutions do so (Conformer, arXiv
    2005.08100); an MLP that convolves what it goes up to bends it behind that (SegFormer, arXiv 2105.15203),
    or, over a picture, before it as well (Uformer, arXiv 2106.03106)."""
    bent = False
    for kind in kinds:
        if bent and kind.what == "convolution" and not any(len(t) == _PICTURES for t in kind.tensors[:1]):
            return True
        bent |= activates(kind)
    return False


def routes(run: Run, at: int) -> bool:
    """Is one chosen of several? The largest of a softmax, too."""
    before, kind = run.kinds[max(at - 1, 0)], run.kinds[at]
    if kind.name == "max" and before.what == "softmax" and kind.tensors[:1] == before.tensors[:1]:
        return True
    return kind.name in ("topk", "sort", "argsort", "argmax", "one_hot") or "router" in kind.tags
