"""The joint search over a model's shape: every combination inside the constraints, none picked that loses.

The step falls into parts that depend on few sizes each (attention on hidden and heads, MLP on hidden and
ffn, logits on hidden and vocab), so each part is predicted once and combinations are sums. Whatever is
picked is then predicted again as a whole, with the range of its saving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tracelens.advice.hyper import Hyper
from tracelens.advice.planned_kernels import memory_bytes
from tracelens.advice.planned_step import Change, Part, PlannedStep, Planner, compare
from tracelens.errors import UsageError

#: What can be searched, and of that what is unless told otherwise. Depth, KV heads, micro-batch and sequence
#: change what the model learns or how it is trained, not only how its shape fits the GPU.
SEARCHED = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "micro_batch", "sequence")
BY_DEFAULT = frozenset({"hidden", "heads", "head_dim", "ffn", "vocab"})
#: A gain below this is within what two runs of one model differ by.
WORTH_FRAC = 0.01
#: A further change has to add this much to be worth making.
_WORTH_MORE = 0.003
#: Hidden, layers and sequence move by at most this share.
_NEAR_FRAC = 0.125
#: 64 16-bit elements are 128 bytes, the paper's target; head dimensions need 16 bytes.
_GRID = 64
_HEAD_GRID = 8
#: Head dimensions that models are commonly trained with; a wider one is searched where the model has one.
_HEAD_DIMS = (32, 128)
_BATCHES = 4  # times the present micro-batch, at most
#: At most so many predictions and combinations: about two seconds of each on one core.
_PREDICTIONS = 10_000
_COMBINATIONS = 40_000
#: Values of one size that are tried, at most; fewer in a coarse search.
_VALUES = 256
#: Candidates of each set of parameters that are predicted as a whole.
_JUDGED = 6
#: Picks shown, and points of the front.
PICKS = 5
FRONT = 12


@dataclass(frozen=True, slots=True)
class Limits:
    """What the search has to keep."""

    parameters_frac: float = 0.01  # weights stay within this share
    free: frozenset[str] = BY_DEFAULT
    memory_gb: float | None = None  # of one GPU; without it the present estimate must not grow

    def checked(self) -> Limits:
        """UsageError where they make no sense."""
        unknown = sorted(self.free - set(SEARCHED))
        if unknown:
            raise UsageError(f"{', '.join(unknown)} cannot be searched (known: {', '.join(SEARCHED)})")
        if not 0 <= self.parameters_frac <= 0.2:
            raise UsageError("the parameters can change by 0 to 20 %")
        if self.memory_gb is not None and not 0 < self.memory_gb < 10_000:
            raise UsageError(f"{self.memory_gb} GB is no memory of a GPU")
        if {"micro_batch", "sequence"} & self.free and self.memory_gb is None:
            raise UsageError(
                "to search micro_batch or sequence, say how much memory a GPU has: --memory-gb 80"
            )
        return self


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination: time per token as a share of the present one (mid), and growth of the weights."""

    hyper: Hyper
    time_frac: float
    parameters_frac: float

    def changed_from(self, now: Hyper) -> frozenset[str]:
        """The parameters that differ."""
        return frozenset(name for name in SEARCHED if self.hyper.get(name) != now.get(name))


@dataclass(frozen=True, slots=True)
class Found:
    """What the search came to. Without picks the present shape is good."""

    present: PlannedStep
    picks: tuple[Change, ...]
    front: tuple[Candidate, ...]  # no other has as many weights and is faster; mids, not recommendations
    tried: int
    best_unsure: Change | None = None  # faster at mid, but its range reaches to slower
    notes: tuple[str, ...] = field(default=())


def search(planner: Planner, now: Hyper, limits: Limits, *, fixed: Mapping[str, str] | None = None) -> Found:
    """Search around ``now``; ``fixed`` are sizes that no key of the configuration sets."""
    limits = limits.checked()
    free = limits.free - set(fixed or {})
    if now.experts:
        free -= {"micro_batch", "sequence"}
    present = planner.step(now)
    limits = replace(limits, free=free)
    coarse = _coarseness(now, limits)
    candidates = list(islice(_candidates(planner, now, present, limits, coarse), _COMBINATIONS))
    picks, unsure = _picks(planner, now, present, candidates)
    step = f"searched hidden and ffn in steps of {_GRID * coarse}: finer ones are too many to try"
    return Found(
        present, tuple(picks), _front(candidates), len(candidates), unsure, (step,) if coarse > 1 else ()
    )


def _candidates(
    planner: Planner, now: Hyper, present: PlannedStep, limits: Limits, coarse: int
) -> Iterator[Candidate]:
    """Every combination inside the limits."""
    times = _Times(planner)
    whole = (present.time_ms.mid or 0.0) / (now.token_count or 1)
    weights = now.parameters or 1
    room = limits.memory_gb * 1e9 * 0.92 if limits.memory_gb else 0.0  # the rest is the context and fragments
    room = max(room, memory_bytes(now, planner.layout) * (1 + limits.parameters_frac))
    for base in _bases(now, limits.free, coarse):
        for vocab in _vocabs(now, limits.free):
            for ffn in _ffns(replace(base, vocab=vocab), now, limits, coarse):
                then = replace(base, vocab=vocab, ffn=ffn)
                grown = (then.parameters or 0) / weights - 1
                if then == now or abs(grown) > limits.parameters_frac:
                    continue
                if memory_bytes(then, planner.layout) > room:
                    continue
                time = times.of(then) / (then.token_count or 1)
                yield Candidate(then, time / whole, grown)


def _coarseness(now: Hyper, limits: Limits) -> int:
    """The smallest step (times the grid) with which the search stays within its number of predictions."""
    for coarse in (1, 2, 4, 8, 16, 32):
        bases = list(islice(_bases(now, limits.free, coarse), _COMBINATIONS + 1))
        ffns = len(_ffns(now, now, limits, coarse))
        shapes = len({(x.token_count, x.hidden) for x in bases})
        heads = len({(x.token_count, x.hidden, x.heads, x.kv_heads) for x in bases})
        predictions = heads * 8 + shapes * ffns * (9 if now.gated else 6)
        combinations = len(bases) * ffns * len(_vocabs(now, limits.free))
        if predictions <= _PREDICTIONS and combinations <= _COMBINATIONS:
            return coarse
    return 64


class _Times:
    """Sums of parts, each predicted once."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, x: Hyper) -> float:
        """Mid estimate of the step, in ms. Attention and MLP are as many as there are layers."""
        outer = (x.hidden, x.micro_batch, x.sequence)
        plan = self._planner
        layer = self._sum(("attention", *outer, x.heads, x.kv_heads, x.head_dim), plan.attention, x, 1)
        layer += self._sum(("mlp", *outer, x.ffn), plan.mlp, x, 1)
        return (
            layer * (x.layers or 1)
            + self._sum(("hidden", *outer, x.layers), plan.hidden, x, x.layers)
            + self._sum(("vocab", *outer, x.vocab), plan.vocab, x, x.layers)
        )

    def _sum(
        self,
        key: tuple[object, ...],
        parts: Callable[[Hyper], Sequence[Part]],
        x: Hyper,
        layers: int | None,
    ) -> float:
        found = self._known.get(key)
        if found is None:
            one = replace(x, layers=layers)
            found = self._known[key] = sum(part.time_ms.mid or 0.0 for part in parts(one))
        return found


def _bases(now: Hyper, free: frozenset[str], coarse: int) -> Iterator[Hyper]:
    """Everything but ffn and vocab."""
    for layers in _near(now.layers, max(1, coarse // 2), "layers" in free, coarse):
        for batch, sequence in _tokens(now, free):
            for hidden in _near(now.hidden, _GRID * coarse, "hidden" in free, coarse):
                for heads, head_dim, kv_heads in _heads(now, hidden, free):
                    yield replace(
                        now, layers=layers, micro_batch=batch, sequence=sequence, hidden=hidden,
                        heads=heads, head_dim=head_dim, kv_heads=kv_heads,
                    )  # fmt: skip


def _near(value: int | None, grid: int, free: bool, coarse: int) -> list[int]:
    """``value``, and where it is free the multiples of ``grid`` near it."""
    if value is None:
        return []
    if not free:
        return [value]
    reach = max(int(value * _NEAR_FRAC), 1)
    first = -(-(value - reach) // grid) * grid
    return _thinned(value, range(max(first, grid), value + reach + 1, grid), coarse)


def _thinned(value: int, others: range, coarse: int) -> list[int]:
    """``value`` and ``others``, evenly fewer where they are very many."""
    step = -(-len(others) * coarse // _VALUES) or 1
    return sorted({value, *others[::step]})


def _tokens(now: Hyper, free: frozenset[str]) -> Iterator[tuple[int | None, int | None]]:
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


def _heads(now: Hyper, hidden: int, free: frozenset[str]) -> Iterator[tuple[int, int, int]]:
    """(heads, head_dim, kv_heads) that fit ``hidden``.

    heads * head_dim stays hidden where it is; a model with heads of their own size keeps heads * head_dim.
    """
    heads_now, dim_now = now.heads or 1, now.head_dim or 1
    tied = heads_now * dim_now == now.hidden
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
        if heads % (now.tensor_parallel or 1) == 0:
            for kv_heads in _kv_heads(now, heads, "kv_heads" in free):
                yield heads, dim, kv_heads


def _kv_heads(now: Hyper, heads: int, free: bool) -> list[int]:
    """KV heads for ``heads``: as many where they are as many now, else the same number or the same ratio."""
    t = now.tensor_parallel or 1
    kv_now = now.kv_heads or now.heads or 1
    if free:
        wanted = {heads // n for n in (1, 2, 4, 8, 16) if heads % n == 0} | {kv_now}
    elif kv_now == now.heads:
        wanted = {heads}
    else:
        ratio = (now.heads or 1) // kv_now
        wanted = {kv_now} | ({heads // ratio} if heads % ratio == 0 else set())
    return sorted(kv for kv in wanted if kv and heads % kv == 0 and (kv % t == 0 or t % kv == 0))


def _vocabs(now: Hyper, free: frozenset[str]) -> list[int]:
    """The vocabulary as it is, and padded: it never loses an entry."""
    vocab, t = now.vocab or 1, now.tensor_parallel or 1
    if "vocab" not in free:
        return [vocab]
    return sorted({vocab, *(-(-vocab // (grid * t)) * grid * t for grid in (_GRID, 2 * _GRID))})


def _ffns(base: Hyper, now: Hyper, limits: Limits, coarse: int) -> list[int]:
    """MLP widths on the grid that keep the weights inside the limit, and the present one."""
    ffn = now.ffn or 1
    if "ffn" not in limits.free:
        return [ffn]
    empty = replace(base, ffn=_GRID).parameters or 0
    one = ((replace(base, ffn=2 * _GRID).parameters or 0) - empty) / _GRID  # weights for each unit of width
    weights = now.parameters or 1
    grid = _GRID * coarse * (now.tensor_parallel or 1)
    low, high = (_GRID + (weights * (1 + sign * limits.parameters_frac) - empty) / one for sign in (-1, 1))
    low, high = max(low, ffn * 0.5), min(high, ffn * 1.5)
    first = max(-(-int(low) // grid) * grid, grid)
    return _thinned(ffn, range(first, int(high) + 1, grid), coarse)


def _picks(
    planner: Planner, now: Hyper, present: PlannedStep, candidates: Sequence[Candidate]
) -> tuple[list[Change], Change | None]:
    """For every set of parameters the best change of it, then those where each further parameter pays.

    ``unsure``: the best gain whose range reaches to slower.
    """
    best: dict[frozenset[str], list[Candidate]] = {}
    for candidate in candidates:
        best.setdefault(_meant(candidate.changed_from(now)), []).append(candidate)
    judged: dict[frozenset[str], Change] = {}
    unsure: list[Change] = []
    for names, group in best.items():
        group.sort(key=lambda one: (round(one.time_frac / max(1 + min(one.parameters_frac, 0.0), 0.5), 3),
                                    abs(one.parameters_frac)))  # fmt: skip
        for candidate in group[:_JUDGED]:
            if candidate.time_frac > 1 - WORTH_FRAC:
                continue
            change = compare(present, planner.step(candidate.hyper))
            if change.shape_gain_frac < WORTH_FRAC:
                continue
            if change.sure_gain_frac <= 0:
                unsure.append(change)
                continue
            known = judged.get(names)
            if known is None or change.shape_gain_frac > known.shape_gain_frac:
                judged[names] = change
    kept = [change for names, change in judged.items() if _each_pays(planner, names, judged, unsure)]
    kept.sort(key=lambda one: -one.shape_gain_frac)
    top = kept[0].shape_gain_frac if kept else 0.0
    best_unsure = max(unsure, key=lambda one: one.shape_gain_frac, default=None)
    if best_unsure is not None and best_unsure.shape_gain_frac < top + WORTH_FRAC:
        best_unsure = None
    return _varied(kept, now), best_unsure


def _each_pays(
    planner: Planner, names: frozenset[str], judged: Mapping[frozenset[str], Change], unsure: list[Change]
) -> bool:
    """Whether the change is surely faster than every smaller one: no unsure part hides behind a sure one."""
    change = judged[names]
    for less, other in judged.items():
        if less < names:
            more = compare(planner.step(other.then), planner.step(change.then))
            if more.shape_gain_frac < _WORTH_MORE:
                return False
            if more.sure_gain_frac <= 0:
                unsure.append(change)
                return False
    return True


def _meant(names: frozenset[str]) -> frozenset[str]:
    """heads, head_dim and kv_heads are one decision."""
    return names - {"head_dim", "kv_heads"} | {"heads"} if {"head_dim", "heads"} & names else names


def _varied(kept: list[Change], now: Hyper) -> list[Change]:
    """The best, and the best with fewer changes, down to single ones."""
    sizes: dict[int, int] = {}
    picked: list[Change] = []
    for change in kept:
        count = len(_meant(frozenset(name for name in SEARCHED if change.then.get(name) != now.get(name))))
        if sizes.get(count, 0) < (1 if count > 2 else 2):
            sizes[count] = sizes.get(count, 0) + 1
            picked.append(change)
    return picked[:PICKS]


def _front(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The Pareto front of weights (more is better) against time per token, most weights first."""
    front: list[Candidate] = []
    fastest = float("inf")
    for one in sorted(candidates, key=lambda one: (-one.parameters_frac, one.time_frac)):
        if one.time_frac < fastest - 1e-4:
            fastest = one.time_frac
            front.append(one)
    if len(front) > FRONT:
        step = (len(front) - 1) / (FRONT - 1)
        front = [front[round(at * step)] for at in range(FRONT)]
    return tuple(front)
