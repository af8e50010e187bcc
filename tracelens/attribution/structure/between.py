"""What stands between the products of a forward: normalizations, residuals, rotations, activations.

The place says what a unit can be, its own operators say which of these it is; only where the two
agree is it named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from tracelens.attribution.structure.forward import LARGEST_RANK, loses, name_sum
from tracelens.attribution.structure.norms import is_affine, normalizes, written_norms
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm import GemmShape

#: What is added to the stream.
_STREAM = ("attention.output", "mlp.down", "moe.experts", "moe.dispatch", "moe.router")
_UP = frozenset({"mlp.up", "mlp.gate"})
_ROTATES = frozenset({"neg", "cat", "cos", "sin", "view_as_complex", "polar", "_conj", "view_as_real"})
_CUTS = frozenset({"slice", "split", "chunk", "narrow", "unbind", "select", "split_with_sizes"})
_ROUTES = frozenset({"topk", "softmax", "sigmoid", "sum", "div", "div_"})
_CONVOLUTION = 4  # kernels of one convolution: its layouts with it
_WAVES = 6  # units between a step of a table of sines and the sine or the cosine, at most
SERVING = frozenset({"cast", "layout", "pad", "bias"})
_NORM_STEPS = frozenset({"pow", "square", "mean", "rsqrt", "sqrt", "var", "var_mean", "std"})
_SCALED = frozenset({"mul", "mul_", "div", "div_", "sub", "sub_", "add", "add_"})


def label_between(run: Run, hidden: int, vocab: int | None) -> None:
    """Name the units between the named products of a forward or recomputed run; fills ``run.labels``."""
    anchors = sorted(at for at, label in run.labels.items() if label.component != "attention.other")
    weights = _weights(run)
    for at in range(len(run)):
        if at not in run.labels:
            found = _serves_next(run, at, weights) or _helps(run, at)
            if found is not None:
                run.labels[at] = found
    _sum_adapters(run, hidden)
    run.labels |= {at: Label("embedding") for at in _positions(run, hidden) if at not in run.labels}
    edges = [-1, *anchors, len(run)]
    firsts = {core.first for core in run.cores}
    normed = written_norms(run)
    rotated = any(_rotates(run.kinds[start + 1 : stop]) for start, stop in pairwise(edges) if stop in firsts)
    for start, stop in pairwise(edges):
        gap = [at for at in range(start + 1, stop) if at not in run.labels and not _is_product(run, at)]
        if gap:
            before = run.labels[start] if start >= 0 else None
            after = run.labels[stop] if stop < len(run) else None
            core = next((core for core in run.cores if core.first == stop), None)
            product = run.shape(start) if start >= 0 else None
            for at, label in _Gap(
                run, hidden, vocab, gap, before, after, core, product, rotated, normed
            ).labels():
                run.labels[at] = label


def _sum_adapters(run: Run, hidden: int) -> None:
    """Behind the second product of a low-rank adapter its scaling and its addition are of what it adapts."""
    for at in [at for at in run.labels if 0 < at < len(run) - 1]:
        shape = run.shape(at)
        if shape is None or shape.k > LARGEST_RANK or shape.k >= hidden // 2 or shape.batch > 1:
            continue
        name_sum(run, at)


def _positions(run: Run, hidden: int) -> Iterator[int]:
    """What makes the indices of a lookup: right before it, on numbers of its tokens and of nothing else."""
    for lookup, kind in enumerate(run.kinds):
        if not _looks_up(kind, hidden):
            continue
        tokens = {1, *kind.tensors[1]}
        if len(kind.tensors[1]) == 1:  # flattened
            tokens |= {size for size in range(2, prod(tokens)) if prod(tokens) % size == 0} - {hidden}
        for at in range(lookup - 1, -1, -1):
            before = run.kinds[at]
            made = before.what in ("elementwise", "copy", "add", "dispatch")
            if not made or any(set(t) - tokens for t in before.tensors):
                break
            yield at


def _looks_up(kind: Kind, hidden: int) -> bool:
    """In a table as wide as the stream: one of distances, with a number for each head, is of attention."""
    looks = kind.what == "embedding" or kind.name == "index_select"
    two = kind.tensors[:2]
    return looks and len(two) == 2 and len(two[0]) == 2 and two[0][-1] == hidden


def _rotates(kinds: list[Kind]) -> bool:
    """Rotary embeddings written out negate half and put the halves together again."""
    names = {kind.name for kind in kinds}
    complex_ = names & {"view_as_complex", "view_as_real", "polar"}
    return {"neg", "cat"} <= names or bool(complex_) or any("rope" in kind.tags for kind in kinds)


def _is_product(run: Run, at: int) -> bool:
    """A product that was not named where products are named stays open (a table of rotations has none)."""
    shape = run.shape(at)
    return run.kinds[at].what in ("gemm", "bmm") and (shape is None or shape.k > 1)


def _weights(run: Run) -> set[tuple[int, ...]]:
    shapes = [shape for at in run.labels if (shape := run.shape(at)) is not None]
    return {pair for shape in shapes for pair in ((shape.n, shape.k), (shape.k, shape.n))}


def _helps(run: Run, at: int) -> Label | None:
    """Split-K reductions and the like belong to the product right before them."""
    if run.kinds[at].what != "helper" or at == 0:
        return None
    return run.labels.get(at - 1)


def _serves_next(run: Run, at: int, weights: set[tuple[int, ...]]) -> Label | None:
    """Casts and layouts of a weight, or of the very input, for one of the next two products."""
    kind = run.kinds[at]
    if kind.what == "quantize":
        return next((run.labels.get(p) for p in range(at + 1, min(at + 3, len(run))) if _takes(run, p)), None)
    wide = {tensor for tensor in kind.tensors if len(tensor) >= 2}
    serves = kind.what == "copy" or (kind.what == "fused" and kind.tags and not kind.tags - SERVING)
    if not serves or not wide:
        return None
    behind = [p for p in range(at + 1, min(at + 6, len(run))) if run.kinds[p].what in ("gemm", "core")]
    for place in behind[:2]:
        label, shape = run.labels.get(place), run.shape(place)
        if label is None or shape is None:
            return None
        weight = {(shape.n, shape.k), (shape.k, shape.n)}
        if wide & weight and (wide <= weights or kind.what == "fused"):
            return Label(label.component, label.layer, label.components)
        if kind.what == "fused" and kind.tensors[-1] in operands(shape):
            return Label(label.component, label.layer, label.components)
    return None


def _takes(run: Run, at: int) -> bool:
    return run.kinds[at].what in ("gemm", "experts")


def operands(shape: GemmShape) -> set[Dims]:
    """The two things that a product reads, each also as it lies transposed."""
    return {(shape.m, shape.k), (shape.k, shape.m), (shape.k, shape.n), (shape.n, shape.k)}


@dataclass(frozen=True)
class _Gap:
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
        return [(at, Label(self._own(at) or component, self.layer)) for at in self.gap]

    def _own(self, at: int) -> str | None:
        """What a unit is wherever it stands."""
        if self.run.kinds[at].what == "dropout":
            return "dropout"
        return "norm" if self.run.kinds[at].what == "norm" or at in self.normed else None

    def _in_attention(self) -> list[tuple[int, Label]] | None:
        cores = ("attention.core", "attention.scores")
        if self.before in ("attention.core", "attention.values") and self.after == "attention.output":
            return self._all("attention.other")
        if self.before == "attention.qkv" and self.after in ("attention.qkv", *cores):
            rotates = self.after in cores and _rotates([self.run.kinds[at] for at in self.gap])
            added = self._adapter_sum()
            return [
                (
                    at,
                    Label("attention.qkv", self.layer)
                    if at <= added
                    else self._before_core(at, rotates=rotates),
                )
                for at in self.gap
            ]
        return None

    def _adapter_sum(self) -> int:
        """Behind the second product of a low-rank adapter its scaling and its addition; the last place."""
        shape = self.product
        if shape is None or shape.k > LARGEST_RANK or shape.k >= self.hidden // 2:
            return -1
        adds = [at for at in self.gap[:4] if self.run.kinds[at].what == "add"]
        return adds[0] if adds else -1

    def _before_core(self, at: int, *, rotates: bool) -> Label:
        kind = self.run.kinds[at]
        if "rope" in kind.tags:
            parts = ("attention.rope", "norm") if "norm" in kind.tags else ()
            return Label("attention.rope", self.layer, parts)
        if self._is_norm(at) or kind.name in _NORM_STEPS:
            return Label("norm", self.layer)
        if rotates and kind.name in _CUTS:  # of a head into its halves; a cut of all heads is another thing
            heads = self.core is not None and any(_per_head(t, self.core) for t in kind.tensors)
            return Label("attention.rope" if heads else "attention.other", self.layer)
        if rotates and kind.name == "cat" and len(set(kind.tensors)) > 1:
            return Label("attention.other", self.layer)  # rotated and unrotated parts of a head
        if rotates and kind.name in _ROTATES | _SCALED:
            return Label("attention.rope", self.layer)
        return Label("attention.other", self.layer)

    def _in_mlp(self) -> list[tuple[int, Label]] | None:
        ends = self.after == "mlp.down" or (self.after is None and self.run.phase == "recompute")
        if _goes_up(self.product_before) and (_goes_up(self.product_after) or ends):
            return self._all("mlp.activation")
        return None

    def _in_experts(self) -> list[tuple[int, Label]] | None:
        if self.before == "moe.router":
            end = None if self.after == "moe.experts" else self.first_on_stream
            out: list[tuple[int, Label]] = []
            for at in self.gap:
                kind = self.run.kinds[at]
                if end is not None and at >= end:
                    return [*out, *self._on_stream(end)]
                routes = kind.what == "softmax" or kind.name in _ROUTES or kind.tags & {"router", "softmax"}
                out.append((at, Label("moe.router" if routes else "moe.dispatch", self.layer)))
            return out
        if self.before == "moe.experts" and self.after == "moe.experts":
            # behind the product that comes back to the hidden size results are weighed and put back
            back = self.product is not None and self.product.n == self.hidden != self.product.k
            return self._all("moe.dispatch" if back else "moe.experts")
        return None

    def _behind_head(self) -> list[tuple[int, Label]] | None:
        if self.before != "logits":
            return None
        # inside a graph nothing says where the forward ends: only what is a loss by its name
        whole = self.run.phase != "graph" and any(loses(self.run, at) for at in range(len(self.run)))
        sure = self.gap if whole else [at for at in self.gap if loses(self.run, at)]
        return [(at, Label("logits" if self._is_bias(at) else "loss")) for at in sure]

    def _is_bias(self, at: int) -> bool:
        """Added to the product right before it, one number for each column."""
        kind, columns = self.run.kinds[at], self.product.n if self.product else None
        return at == self.gap[0] and kind.what == "add" and (columns,) in kind.tensors[:2]

    def _in_head(self) -> list[tuple[int, Label]] | None:
        """Between the products of a head: an activation, written out or not, and a normalization."""
        if self.before != "other" or self.after not in ("other", "logits"):
            return None
        return [(at, Label("norm" if self._is_norm(at) else "other")) for at in self.gap]

    def _on_stream(self, start: int = 0) -> list[tuple[int, Label]]:
        """Before, between and behind the layers, from a position on: what works on the residual stream."""
        out = []
        started = self.before in (None, "embedding") and self.run.phase != "recompute"
        for at in (at for at in self.gap if at >= start):
            started |= _looks_up(self.run.kinds[at], self.hidden)  # of a decoder, behind the encoder
            label = self._opening(at) if started else self._stream(at)
            if label is not None:
                out.append((at, label))
        return out

    def _opening(self, at: int) -> Label | None:
        """Before the first layer: the embeddings, then a normalization."""
        kind = self.run.kinds[at]
        if "rope" in kind.tags:
            return Label("attention.rope")
        if kind.name in ("cos", "sin") or kind.what == "bmm" or self._makes_waves(at):
            if self.rotated:
                return Label("attention.rope")
            added = any(self._is_residual(p) for p in self.gap if p > at)
            return Label("embedding") if added else None
        if "embedding" in kind.tags:
            parts = ("embedding", "norm") if "norm" in kind.tags else ()
            return Label("embedding", None, parts)
        if self._is_norm(at) or is_affine(self.run, at, self.hidden):
            return Label("norm", None, ("embedding", "norm") if "add" in kind.tags else ())
        if self._is_nameless(at) and self.after == "attention.qkv":
            return Label("norm", None, ("embedding", "norm"))
        if kind.what == "convolution":
            return Label("embedding") if self._onto_stream(at) else None
        if self.before == self.after == "embedding":
            return Label("embedding")
        if kind.what in ("add", "copy", "elementwise", "fused") and self._is_wide(kind.tensors):
            return Label("embedding")
        return None

    def _makes_waves(self, at: int) -> bool:
        """Beside a sine of positions, and no work on the stream: tables of rotations, or positions."""
        kinds, two = self.run.kinds, self.run.kinds[at].tensors[:1]
        near = kinds[max(self.gap[0], at - _WAVES) : at + _WAVES + 1]
        waves = [kind for kind in near if kind.name in ("cos", "sin")]
        sizes = {prod(kind.tensors[0]) for kind in waves if kind.tensors}
        small = not two or any(prod(two[0]) in (size, size // 2) or prod(two[0]) < size for size in sizes)
        return bool(waves) and small and kinds[at].what in ("elementwise", "copy", "add")

    def _onto_stream(self, at: int) -> bool:
        """Patches or frames: a convolution with as many channels as the stream is wide, and not a stem."""
        weights = [t for t in self.run.kinds[at].tensors if len(t) >= 3]
        if len(weights) >= 2 and weights[0][1] == self.hidden and prod(weights[1][2:]) == 1:
            return False  # a linear layer in the form of a convolution
        if weights:
            return any(t[0] == self.hidden for t in weights)
        return sum(self.run.kinds[p].what == "convolution" for p in self.gap) <= _CONVOLUTION

    def _is_wide(self, tensors: tuple[Dims, ...]) -> bool:
        """Of the size of the residual stream; a sequence can be as long as that is wide."""
        tokens = [core.tokens for core in self.run.cores if core.tokens]
        least = self.hidden * (min(tokens) // 2 if tokens else 2)
        whole = {self.hidden * many for many in tokens}  # also with the channels in front
        return any(
            (t[-1] == self.hidden and prod(t) >= least) or (self.hidden in t[1:2] and prod(t) in whole)
            for t in tensors
            if len(t) >= 2
        )

    def _stream(self, at: int) -> Label | None:
        kind = self.run.kinds[at]
        if self.before == "attention.output" and self._of_scores(kind):
            return Label("attention.other", self.layer)  # the weights, averaged over the heads
        if self.before in ("moe.experts",) and self._before_residual(at):
            return Label("moe.dispatch", self.layer)
        if kind.what == "fused":
            return self._fused(at)
        if self._is_norm(at):
            return Label("norm", self.next_layer)
        if self.after == "moe.router" and at > self.last_norm:
            return Label("moe.router", self.next_layer)  # its input in more bits, and noise on that
        if kind.what == "dropout":
            return Label("dropout", self.layer)
        if self._drops_paths(at):
            return Label("dropout", self.layer)
        if is_affine(self.run, at, self.hidden):
            return Label("norm", self.layer)
        in_front = any(len(t) == 3 and t[1] == self.hidden for t in kind.tensors)
        if at in self.measured:
            return self.measured[at]
        if not in_front and self.hidden not in _widths(kind.tensors) and (kind.tensors or kind.what != "add"):
            return None
        adds = kind.what in ("add", "copy") or kind.name in _SCALED
        if self._adds_position(at):
            return Label("attention.other", self.next_layer)
        if self.before in _STREAM and adds and (self.after is not None or at <= self.last_norm):
            return Label("residual", self.layer)
        if self.after == "logits" and at > self.last_added:  # what the head takes of the sequence
            return Label("logits")
        return None

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
        if _per_sample(here.tensors) or here.name in ("rand", "bernoulli_"):
            return True
        behind = self.run.kinds[at + 1] if at + 1 < len(self.run) else None
        scales = (
            here.name in ("div", "div_") and behind is not None and behind.tensors[:1] == here.tensors[:1]
        )
        return scales and behind is not None and _per_sample(behind.tensors)

    def _of_scores(self, kind: Kind) -> bool:
        """Works on as many elements as the scores of the unfused core before the gap."""
        core = next((core for core in reversed(self.run.cores) if core.last < self.gap[0]), None)
        shape = self.run.shape(core.first) if core is not None and core.first != core.last else None
        size = shape.batch * shape.m * shape.n if shape is not None else None
        wide = (t for t in kind.tensors if len(t) > 3 or (len(t) == 3 and t[-1] != self.hidden))
        return any(prod(t) == size for t in wide)

    def _adds_position(self, at: int) -> bool:
        """A position added to queries and keys: behind the normalization of a sum, or to other rows than
        those that the block before gave."""
        if self.after != "attention.qkv" or not self._is_residual(at):
            return False
        if self.run.kinds[at].tensors[0][-1] != self.hidden:
            return False  # the channels in front
        if self.product is not None and self.product.m and self.before in ("attention.output", "mlp.down"):
            tokens = self.run.kinds[at].tensors[0][:-1]
            if prod(tokens) != self.product.m * self.product.batch:
                return True
        norms = [p for p in self.gap if p < at and self._is_norm(p)]
        return any(self._is_residual(p) for p in self.gap if norms and p < norms[-1])

    def _before_residual(self, at: int) -> bool:
        """Weighing and putting back the experts' results comes before the addition to the stream."""
        return self.first_on_stream is not None and at < self.first_on_stream and at not in self.normed

    def _is_residual(self, at: int) -> bool:
        kind = self.run.kinds[at]
        two = kind.tensors[:2]
        wide = len(two) == 2 and self.hidden in (
            two[0][-1],
            *two[0][1 : len(two[0]) - 1 : 2],
        )  # also in front
        return kind.what == "add" and wide and two[0] == two[1]

    def _fused(self, at: int) -> Label | None:
        kind = self.run.kinds[at]
        # as wide as the stream; a recording without shapes, or a kernel of Triton without them, says nothing
        wide = self.hidden in _widths(kind.tensors) or not (kind.tensors or kind.tags - {"add", "dropout"})
        adds = "add" in kind.tags and self.before in _STREAM
        parts: list[str] = []
        if "dropout" in kind.tags:
            parts.append("dropout")
        if adds:
            parts.append("residual")
        if "norm" in kind.tags:
            return Label("norm", self.next_layer, (*parts, "norm") if parts else ())
        if kind.tags & {"loss"} and self.vocab in _widths(kind.tensors):
            return Label("loss")
        if "activation" in kind.tags and self.before == "other":
            return Label("other")
        if wide and adds:
            return Label("residual", self.layer, tuple(parts) if len(parts) > 1 else ())
        if wide and "dropout" in kind.tags:
            return Label("dropout", self.layer)
        if self._is_nameless(at) and self.before in _STREAM:
            return Label("norm", self.next_layer, ("residual", "norm"))
        return None

    def _is_nameless(self, at: int) -> bool:
        """A fused kernel that says nothing (CUDA graph, old Inductor), alone between two products."""
        return self.silent == [at] and self.after is not None

    @cached_property
    def silent(self) -> list[int]:
        kinds = self.run.kinds
        said = [(p, kinds[p]) for p in self.gap]
        return [p for p, kind in said if kind.what == "fused" and not kind.tags and not kind.tensors]

    @cached_property
    def last_norm(self) -> int:
        """Where the layers end; what stands behind is a head or what is done with its results."""
        ends = [p for p in self.gap if normalizes(self.run, p, self.hidden)]
        return ends[-1] if ends else self.gap[-1]

    @cached_property
    def last_added(self) -> int:
        """The last addition to the residual stream; without one, where the layers end."""
        return max((p for p in self.gap if self._sums_up(p)), default=self.last_norm)

    @cached_property
    def first_on_stream(self) -> int | None:
        """The first addition to the residual stream, or its first normalization."""
        ends = (p for p in self.gap if self._sums_up(p) or normalizes(self.run, p, self.hidden))
        return next(ends, None)

    def _sums_up(self, at: int) -> bool:
        """A residual of as many rows as the stream has; rows of tokens that several experts got are more."""
        kind = self.run.kinds[at]
        if kind.what == "add" and not kind.tensors:  # without shapes: what a normalization takes next
            return self._is_norm(at + 1) if at + 1 < len(self.run) else False
        rows = {core.tokens for core in self.run.cores} - {None}
        return self._is_residual(at) and (not rows or prod(self.run.kinds[at].tensors[0][:-1]) in rows)

    def _is_norm(self, at: int) -> bool:
        """A normalization, or a step of one that is written out."""
        kind = self.run.kinds[at]
        if kind.what == "copy" and at not in self.normed:  # its input cast up, and its output back
            near = self.run.kinds[max(at - 1, 0) : at + 2]
            return any(k.what == "norm" and set(k.tensors[:1]) & set(kind.tensors) for k in near)
        return kind.what == "norm" or "norm" in kind.tags or at in self.normed


def _goes_up(label: Label | None) -> bool:
    """A product into an MLP, or one of two of which the one is its gate."""
    return label is not None and {label.component, *label.candidates} - {"unattributed"} <= _UP


def _per_sample(tensors: tuple[Dims, ...]) -> bool:
    """Is one of them a number for each of the first dimension of the others, or alone in that form?"""
    rank = max(map(len, tensors), default=0)
    return any(len(t) == rank >= 3 and t[0] > 1 and prod(t[1:]) == 1 for t in tensors)


def _per_head(tensor: Dims, core: Core) -> bool:
    """[batch, heads, sequence, d] or [batch, sequence, heads, d] of the queries or of the keys."""
    heads = {core.heads, core.kv_heads} - {None}
    return len(tensor) == 4 and tensor[-1] <= (core.key_dim or 0) and bool(heads & set(tensor[1:3]))


def _widths(tensors: tuple[tuple[int, ...], ...]) -> set[int]:
    return {tensor[-1] for tensor in tensors if len(tensor) >= 2}
