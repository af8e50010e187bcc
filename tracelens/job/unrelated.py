"""Traces that are not of one job: what differs between two that no collective and no metadata tie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from tracelens.errors import InputError
from tracelens.job import words
from tracelens.job.summary import RankSummary
from tracelens.results.job import Left

#: One difference alone is legitimate: other GPUs, a wider stage, a frozen tower that only runs forward.
_ENOUGH = 2
#: Clocks of one job's machines are minutes apart at most, where they tell the date (not the time since boot).
_APART_NS, _DATED_NS = 3_600 * 10**9, 10**18


def of_one_time(ranks: Sequence[RankSummary]) -> tuple[list[RankSummary], list[Left]]:
    """The ranks recorded within an hour of most, or of the latest where no hour has most, and the others."""
    began = {at: one.base_ns + one.steps[0].start_ns for at, one in enumerate(ranks)}
    began = {at: since for at, since in began.items() if since > _DATED_NS}
    near = {at: sum(abs(since - one) < _APART_NS for one in began.values()) for at, since in began.items()}
    usual = max(((near[at], since) for at, since in began.items()), default=(0, 0))[1]
    later = {at: since - usual for at, since in began.items() if abs(since - usual) >= _APART_NS}
    left = [Left(ranks[at].file, words.other_hour(ns / 1e9)) for at, ns in later.items()]
    return [one for at, one in enumerate(ranks) if at not in later], left


def check_one_job(ranks: Sequence[RankSummary]) -> None:
    """Refuse ranks that share neither work nor messages, and runs or cycles of one process.

    Raises InputError, naming two of them and what differs.
    """
    if len(ranks) > 1 and ranks[0].world_size == 1:
        raise InputError(words.each_a_job(ranks[0].file, ranks[1].file), words.EACH_ALONE)
    _check_at_once(ranks)
    first_of: dict[object, RankSummary] = {}
    for one in ranks:
        first_of.setdefault((tuple(_facts(one).items()), one.world_size, _messages(one)), one)
    for one, other in combinations(first_of.values(), 2):
        facts, others = _facts(one), _facts(other)
        differ = {name: (value, others[name]) for name, value in facts.items()
                  if name in others and value != others[name]}  # fmt: skip
        if len(differ) >= _ENOUGH and not _tied(one, other):
            raise InputError(words.not_one_job(one.file, other.file, differ), words.EACH_ALONE)


def _check_at_once(ranks: Sequence[RankSummary]) -> None:
    """Refuse recordings that follow one another, where nothing says that they are ranks."""
    spans = [(one.base_ns + one.steps[0].start_ns, one.base_ns + one.steps[-1].end_ns, one.file)
             for one in ranks if one.rank is None and not one.kinds]  # fmt: skip
    for (since, until, first), (begin, _, then) in pairwise(sorted(spans)):
        if since > _DATED_NS and begin > until:
            raise InputError(words.one_after_another(first, then), words.EACH_ALONE)


def _tied(one: RankSummary, other: RankSummary) -> bool:
    """Both state one world, or exchange messages of one size."""
    world = one.world_size if one.world_size == other.world_size else None
    return (world or 1) > 1 or bool(_messages(one) & _messages(other))


def _messages(rank: RankSummary) -> frozenset[tuple[str, int | None]]:
    return frozenset((kind.collective, kind.bytes) for kind in rank.kinds)


def _facts(rank: RankSummary) -> dict[str, object]:
    """What the ranks of a job usually have in common, where it is known."""
    dims = {"hidden": rank.model.hidden.value, "vocabulary": rank.model.vocab.value}
    phases = {row.phase for row in rank.components}
    return {
        "GPU": rank.gpu.title,
        **{name: value for name, value in dims.items() if value is not None},
        "phases": words.TRAINS if "backward" in phases else words.FORWARD_ONLY,
    }
