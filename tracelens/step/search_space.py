"""Every shape near the present one that keeps what has to be kept: grid, width of the heads, weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from tracelens.config.model_config import ModelConfig
from tracelens.errors import UsageError

#: What can be searched, and of that what is unless told otherwise. Depth, KV heads, micro-batch and sequence
#: change what the model learns or how it is trained, not only how its shape fits the GPU.
SEARCHED = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "micro_batch", "sequence")
BY_DEFAULT = frozenset({"hidden", "heads", "head_dim", "ffn", "vocab"})
#: Hidden, layers and sequence move by at most this share.
_NEAR_FRAC = 0.125
#: 64 16-bit elements are 128 bytes, the paper's target; head dimensions need 16 bytes.
GRID = 64
_HEAD_GRID = 8
#: Head dimensions that models are commonly trained with; others are searched where the model has one.
_HEAD_DIMS = (64, 128)
_BATCHES = 4  # times the present micro-batch, at most
#: At most so many predictions and combinations: about a second of each on one core.
_PREDICTIONS = 6_000
COMBINATIONS = 40_000
#: Usual degrees of tensor parallelism: those that divide the heads now have to divide them then. A model
#: whose states fit one GPU of 80 GB (16 bytes a weight) keeps only two and four.
TENSOR_DEGREES = (2, 4, 8)
_SMALL_WEIGHTS = 5e9
#: Values of one size that are tried, at most; fewer in a coarse search.
_VALUES = 256


_Triple = tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """What the search has to keep."""

    parameters_frac: float = 0.01  # weights stay within this share
    free: frozenset[str] = BY_DEFAULT
    memory_gb: float | None = None  # of one GPU; without it the present estimate must not grow
    any_heads: bool = False  # head counts can lose a tensor-parallel degree that divides them now

    @property
    def lacks_memory(self) -> bool:
        """Is a size free that only the GPU's memory bounds, and that is not given?"""
        return bool({"micro_batch", "sequence"} & self.free) and self.memory_gb is None

    def checked(self) -> SearchLimits:
        """UsageError where they make no sense."""
        unknown = sorted(self.free - set(SEARCHED))
        if unknown:
            raise UsageError(f"{', '.join(unknown)} cannot be searched (known: {', '.join(SEARCHED)})")
        if not 0 <= self.parameters_frac <= 0.2:
            raise UsageError("the parameters can change by 0 to 20 %")
        if self.memory_gb is not None and not 0 < self.memory_gb < 10_000:
            raise UsageError(f"{self.memory_gb} GB is no memory of a GPU")
        if self.lacks_memory:
            raise UsageError(
                "to search micro_batch or sequence, say how much memory a GPU has: --memory-gb 80"
            )
        return self


@dataclass(frozen=True, slots=True)
class Space:
    """The shapes around ``now``. A size that is not known stays unknown.

    ``vocab_ranks`` GPUs share the vocabulary that ``now.vocab`` counts; ``coarse`` widens the grid where
    the shapes would be too many to try.
    """

    now: ModelConfig
    limits: SearchLimits
    vocab_ranks: int = 1
    coarse: int = 1

    def fitted(self) -> Space:
        """The same with the smallest step that stays within the number of predictions."""
        for coarse in (1, 2, 4, 8, 16, 32):
            if _affordable(space := replace(self, coarse=coarse)):
                return space
        return replace(self, coarse=64)

    def shapes(self) -> Iterator[tuple[ModelConfig, float]]:
        """Every combination whose weights stay within the limit, with their growth.

        Weights that cannot be counted count as kept: then nothing is searched that moves them much.
        """
        now, weights = self.now, self.now.parameters
        for base in self.bases():
            for vocab in self.vocabs():
                for ffn in self.ffns(replace(base, vocab=vocab)):
                    then = replace(base, vocab=vocab, ffn=ffn)
                    grown = (then.parameters or 0) / weights - 1 if weights else 0.0
                    if then != now and abs(grown) <= self.limits.parameters_frac:
                        yield then, grown

    def bases(self) -> Iterator[ModelConfig]:
        """Everything but ffn and vocab."""
        now, free, coarse = self.now, self.limits.free, self.coarse
        for layers in _near(now.layers, max(1, coarse // 2), "layers" in free, coarse):
            for batch, sequence in _tokens(now, free):
                for hidden in _near(now.hidden, GRID * coarse, "hidden" in free, coarse):
                    for heads, head_dim, kv_heads in self._heads(hidden):
                        yield replace(
                            now, layers=layers, micro_batch=batch, sequence=sequence, hidden=hidden,
                            heads=heads, head_dim=head_dim, kv_heads=kv_heads,
                        )  # fmt: skip

    def _heads(self, hidden: int | None) -> Iterator[_Triple]:
        kept = 1 if self.limits.any_heads else kept_degree(self.now)
        for triple in _heads(self.now, hidden, self.limits.free):
            if triple[0] is None or triple[0] == self.now.heads or triple[0] % kept == 0:
                yield triple

    def vocabs(self) -> list[int | None]:
        """The vocabulary as it is, and padded: it never loses an entry."""
        vocab = self.now.vocab
        if "vocab" not in self.limits.free or vocab is None:
            return [vocab]
        grids = (GRID * self.vocab_ranks, 2 * GRID * self.vocab_ranks)
        return [*sorted({vocab, *(-(-vocab // grid) * grid for grid in grids)})]

    def ffns(self, base: ModelConfig) -> list[int | None]:
        """MLP widths on the grid that keep the weights inside the limit, and the present one."""
        ffn, weights, share = self.now.ffn, self.now.parameters, self.limits.parameters_frac
        if "ffn" not in self.limits.free or ffn is None or weights is None:
            return [ffn]
        empty = replace(base, ffn=GRID).parameters or 0
        one = ((replace(base, ffn=2 * GRID).parameters or 0) - empty) / GRID  # weights for a unit of width
        grid = GRID * self.coarse * self.now.tp
        low, high = (GRID + (weights * (1 + sign * share) - empty) / one for sign in (-1, 1))
        low, high = max(low, ffn * 0.5), min(high, ffn * 1.5)
        first = max(-(-int(low) // grid) * grid, grid)
        return [*_thinned(ffn, range(first, int(high) + 1, grid), self.coarse)]


def _affordable(space: Space) -> bool:
    bases = list(islice(space.bases(), COMBINATIONS + 1))
    ffns = len(space.ffns(space.now))
    shapes = len({(x.token_count, x.hidden) for x in bases})
    heads = len({(x.token_count, x.hidden, x.heads, x.kv_heads) for x in bases})
    predictions = heads * 8 + shapes * ffns * (9 if space.now.gated else 6)
    combinations = len(bases) * ffns * len(space.vocabs())
    return predictions <= _PREDICTIONS and combinations <= COMBINATIONS


def _near(value: int | None, grid: int, free: bool, coarse: int) -> list[int | None]:
    """``value``, and where it is free the multiples of ``grid`` near it."""
    if value is None or not free:
        return [value]
    reach = max(int(value * _NEAR_FRAC), 1)
    first = -(-(value - reach) // grid) * grid
    return [*_thinned(value, range(max(first, grid), value + reach + 1, grid), coarse)]


def _thinned(value: int, others: range, coarse: int) -> list[int]:
    """``value`` and ``others``, evenly fewer where they are very many."""
    step = -(-len(others) * coarse // _VALUES) or 1
    return sorted({value, *others[::step]})


def _tokens(now: ModelConfig, free: frozenset[str]) -> Iterator[tuple[int | None, int | None]]:
    batch, sequence = now.micro_batch or 1, now.sequence or 1
    batches: set[int | None] = {now.micro_batch}
    if "micro_batch" in free:
        batches |= {batch * n // 2 for n in range(2, 2 * _BATCHES + 1)}
    lengths: set[int | None] = {now.sequence}
    if now.sequence and "sequence" in free:
        lengths |= {near for near in (sequence // 128 * 128, -(-sequence // 128) * 128) if near}
    for one in sorted(batches, key=lambda n: n or 0):
        for length in sorted(lengths, key=lambda n: n or 0):
            yield one, length


def kept_degree(now: ModelConfig) -> int:
    """The tensor-parallel degree that divides the heads now and has to divide them then.

    >>> kept_degree(ModelConfig(heads=32)), kept_degree(ModelConfig(heads=71))
    (8, 1)
    """
    most = TENSOR_DEGREES[-1] if (now.parameters or math.inf) > _SMALL_WEIGHTS else TENSOR_DEGREES[-2]
    return math.gcd(now.heads or 1, most)


def _heads(now: ModelConfig, hidden: int | None, free: frozenset[str]) -> Iterator[_Triple]:
    """(heads, head_dim, kv_heads) that fit ``hidden``.

    heads * head_dim stays hidden where it is; a model with heads of their own size keeps heads * head_dim.
    Heads that are not known stay as they are.
    """
    heads_now, dim_now = now.heads, now.head_dim
    if not heads_now or not dim_now or hidden is None:
        yield heads_now, dim_now, now.kv_heads
        return
    tied = heads_now * dim_now == now.hidden and now.latent is None
    width = hidden if tied else heads_now * dim_now
    found: set[tuple[int, int]] = set()
    if width == heads_now * dim_now:
        found.add((heads_now, dim_now))
    low, high = min(_HEAD_DIMS[0], dim_now), max(_HEAD_DIMS[1], dim_now)
    if "heads" in free or "head_dim" in free:
        both = {"heads", "head_dim"} <= free
        for dim in range(-(-low // _HEAD_GRID) * _HEAD_GRID, high + 1, _HEAD_GRID):
            if width % dim == 0 and (both or width // dim == heads_now or dim == dim_now):
                found.add((width // dim, dim))
    elif not tied:
        found.add((heads_now, dim_now))
    for heads, dim in sorted(found):
        if heads % now.tp == 0:
            for kv_heads in _kv_heads(now, heads, "kv_heads" in free):
                yield heads, dim, kv_heads


def _kv_heads(now: ModelConfig, heads: int, free: bool) -> list[int | None]:
    """KV heads for ``heads``: as many where they are as many now, else the same number unless free."""
    t, kv_now = now.tp, now.kv_heads
    if kv_now is None:
        return [None]
    if free:
        wanted = {heads // n for n in (1, 2, 4, 8, 16) if heads % n == 0} | {kv_now}
    elif kv_now == now.heads:
        wanted = {heads}
    else:
        wanted = {kv_now}
    return [*sorted(kv for kv in wanted if kv and heads % kv == 0 and (kv % t == 0 or t % kv == 0))]
