"""The joint search over a model's shape: every combination inside the constraints, none picked that loses.

The step falls into parts that depend on few sizes each (attention on hidden and heads, MLP on hidden and
ffn, logits on hidden and vocab), so each part is predicted once and combinations are sums. Whatever is
picked is then predicted again as a whole, with the range of its saving. Who predicts is an ``Step``: a
planned step where there is only a configuration, the analysed step where there is a trace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from tracelens.config.model_config import ModelConfig
from tracelens.step.search_space import COMBINATIONS, GRID, SEARCHED, SearchLimits, Space
from tracelens.step.step import Change
from tracelens.step.words import search as words

#: A gain below this is within what two runs of one model differ by.
WORTH_FRAC = 0.01
#: A further change has to add this much to be worth making.
_WORTH_MORE = 0.003
#: Candidates of each set of parameters that are predicted as a whole.
_JUDGED = 6
#: Of a GPU's memory: the rest is the context and fragments.
_USABLE_MEMORY = 0.92
#: Times per token nearer to one another are equal.
_EQUAL = 1e-4
#: Picks shown, and points of the front.
PICKS = 5
FRONT = 12


class SearchStep(Protocol):
    """A step that can be changed."""

    def vocab_ranks(self, now: ModelConfig, /) -> int:
        """GPUs that share the vocabulary that ``now`` counts."""

    def time_ms(self, then: ModelConfig, /) -> float:
        """The step with ``then``, mid estimate: a sum of parts, each predicted once."""

    def change(self, now: ModelConfig, then: ModelConfig, /) -> Change | None:
        """What ``then`` saves over ``now``, both predicted as a whole; None where too much is not known."""

    def memory(self, then: ModelConfig, /) -> float | None:
        """Estimate of a GPU's memory in bytes."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One combination: time per token as a share of the present one (mid), and growth of the weights."""

    model: ModelConfig
    time_frac: float
    parameters_frac: float

    def changed_from(self, now: ModelConfig) -> frozenset[str]:
        """The parameters that differ."""
        return frozenset(name for name in SEARCHED if self.model.get(name) != now.get(name))


@dataclass(frozen=True, slots=True)
class Unsure:
    """A change that is faster at mid, and at its low end no better than ``over`` for the same operations."""

    change: Change
    over: ModelConfig  # the present shape, or a smaller change that it contains


@dataclass(frozen=True, slots=True)
class Found:
    """What the search came to. Without picks the present shape is good."""

    picks: tuple[Change, ...]
    front: tuple[Combination, ...]  # no other has as many weights and is faster; mids, not recommendations
    tried: int
    best_unsure: Unsure | None = None
    notes: tuple[str, ...] = field(default=())


def search(step: SearchStep, now: ModelConfig, limits: SearchLimits, *, fixed: Collection[str] = ()) -> Found:
    """Search around ``now``; ``fixed`` are sizes that cannot be set."""
    limits = limits.checked()
    free = limits.free - set(fixed)
    if now.experts:
        free -= {"micro_batch", "sequence"}
    space = Space(now, replace(limits, free=free), step.vocab_ranks(now)).fitted()
    candidates = _candidates(step, space)
    picks, unsure = _picks(step, now, candidates)
    return Found(
        tuple(picks),
        _front([Combination(now, 1.0, 0.0), *candidates]),
        len(candidates),
        unsure,
        (words.coarse(GRID * space.coarse),) if space.coarse > 1 else (),
    )


def _candidates(step: SearchStep, space: Space) -> list[Combination]:
    """Every combination inside the limits, with its time."""
    now, limits = space.now, space.limits
    whole = step.time_ms(now) / (now.token_count or 1)
    present = step.memory(now)
    room = limits.memory_gb * 1e9 * _USABLE_MEMORY if limits.memory_gb else 0.0
    if present is not None:
        room = max(room, present * (1 + limits.parameters_frac))
    found: list[Combination] = []
    for then, grown in islice(space.shapes(), COMBINATIONS):
        needs = step.memory(then) if present is not None else None
        if needs is None or needs <= room:
            found.append(Combination(then, step.time_ms(then) / (then.token_count or 1) / whole, grown))
    return found


def _picks(
    step: SearchStep, now: ModelConfig, candidates: Sequence[Combination]
) -> tuple[list[Change], Unsure | None]:
    """For every set of parameters the best change of it, then those where each further parameter pays."""
    best: dict[frozenset[str], list[Combination]] = {}
    for candidate in candidates:
        best.setdefault(_meant(candidate.changed_from(now)), []).append(candidate)
    judged: dict[frozenset[str], Change] = {}
    unsure: list[Unsure] = []
    for names, group in best.items():
        group.sort(key=lambda one: (round(one.time_frac / max(1 + min(one.parameters_frac, 0.0), 0.5), 3),
                                    abs(one.parameters_frac)))  # fmt: skip
        for candidate in group[:_JUDGED]:
            if candidate.time_frac > 1 - WORTH_FRAC:
                continue
            change = step.change(now, candidate.model)
            if change is None or change.shape_gain_frac < WORTH_FRAC:
                continue
            if change.sure_gain_frac <= 0:
                unsure.append(Unsure(change, now))
                continue
            known = judged.get(names)
            if known is None or change.shape_gain_frac > known.shape_gain_frac:
                judged[names] = change
    kept = [change for names, change in judged.items() if _each_pays(step, names, judged, unsure)]
    kept.sort(key=lambda one: -one.shape_gain_frac)
    top = kept[0].shape_gain_frac if kept else 0.0
    best_unsure = max(unsure, key=lambda one: one.change.shape_gain_frac, default=None)
    if best_unsure is not None and best_unsure.change.shape_gain_frac < top + WORTH_FRAC:
        best_unsure = None
    return _varied(kept, now), best_unsure


def _each_pays(
    step: SearchStep, names: frozenset[str], judged: Mapping[frozenset[str], Change], unsure: list[Unsure]
) -> bool:
    """Whether the change is surely faster than every smaller one: no unsure part hides behind a sure one."""
    change = judged[names]
    for less, other in judged.items():
        if less < names:
            more = step.change(other.then, change.then)
            if more is None or more.shape_gain_frac < _WORTH_MORE:
                return False
            if more.sure_gain_frac <= 0:
                unsure.append(Unsure(change, other.then))
                return False
    return True


def _meant(names: frozenset[str]) -> frozenset[str]:
    """heads, head_dim and kv_heads are one decision."""
    return names - {"head_dim", "kv_heads"} | {"heads"} if {"head_dim", "heads"} & names else names


def _varied(kept: list[Change], now: ModelConfig) -> list[Change]:
    """The best, and the best with fewer changes, down to single ones."""
    sizes: dict[int, int] = {}
    picked: list[Change] = []
    for change in kept:
        count = len(_meant(frozenset(name for name in SEARCHED if change.then.get(name) != now.get(name))))
        if sizes.get(count, 0) < (1 if count > 2 else 2):
            sizes[count] = sizes.get(count, 0) + 1
            picked.append(change)
    return picked[:PICKS]


def _front(candidates: Sequence[Combination]) -> tuple[Combination, ...]:
    """The Pareto front of weights (more is better) against time per token, most weights first.

    Rows that pad the vocabulary are no weights that a model gains: of the vocabularies of one shape the
    fastest counts, and of equal ones the least padded.
    """
    best: dict[tuple[int | None, ...], Combination] = {}
    for one in sorted(candidates, key=lambda one: one.model.vocab or 0):
        shape = tuple(one.model.get(name) for name in SEARCHED if name != "vocab")
        if one.time_frac < best.setdefault(shape, one).time_frac - _EQUAL:
            best[shape] = one
    front: list[Combination] = []
    fastest = float("inf")
    for one in sorted(best.values(), key=lambda one: (-one.parameters_frac, one.time_frac)):
        if one.time_frac < fastest - _EQUAL:
            fastest = one.time_frac
            front.append(one)
    if len(front) > FRONT:
        step = (len(front) - 1) / (FRONT - 1)
        front = [front[round(at * step)] for at in range(FRONT)]
    return tuple(front)
