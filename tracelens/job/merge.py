"""Summaries of ranks merged to one answer: which rank is late, why, and what the others lose by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from tracelens.comparison.stands_out import above
from tracelens.comparison.step_change import PRACTICAL
from tracelens.errors import InputError
from tracelens.job.matching import CommonClock, Matched, common_clock, match
from tracelens.job.parts import (
    collectives,
    common_steps,
    gemms_by_rank,
    job_components,
    job_findings,
    job_gemms,
    job_model,
    rank_parts,
    slow_links,
)
from tracelens.job.result import (
    JOB_VERSION,
    Cause,
    Job,
    JobClock,
    JobCollective,
    JobRank,
    Left,
    Limit,
    SlowLink,
    Straggler,
)
from tracelens.job.summary import RankSummary
from tracelens.job.waits import PARTS, Activity, JobWaits, RowsByCall, activity, find_waits, late_parts
from tracelens.trace.tables import MISSING
from tracelens.version import __version__

#: A GPU is slower, or has more to do, from this share on.
_SLOWER = 0.03
_KEPT = 64


def merge(summaries: Iterable[RankSummary], left: Iterable[Left] = ()) -> Job:
    """One answer for a job; the order of the summaries changes nothing.

    Of a rank that is there twice the first file counts; files of another world size than most are left out.

    Raises:
        InputError: no summary, or no step that all ranks have.
    """
    ranks, out = _of_one_job(summaries)
    left = sorted({*left, *out}, key=lambda one: (one.file, one.why))
    steps = common_steps(ranks)
    if not steps:
        raise InputError("the ranks have no step in common: record the same steps on all of them")
    doing = _Doing(ranks)
    matched = match(ranks)
    clock = common_clock(matched, len(ranks))
    waits = find_waits(matched, clock, doing)
    seen = _Ranks(ranks, doing, matched, waits, _names(ranks), steps)
    rows = _rank_rows(seen)
    step_ms = median(max(times) for times in zip(*(row.steps_ms for row in rows), strict=True))
    stragglers = _stragglers(seen, rows, step_ms)
    table = collectives(matched, waits, seen.names, len(steps))
    links = [one for one in slow_links(matched, waits, len(steps)) if one.more_ms > PRACTICAL * step_ms]
    stages = _stages(seen, rows, step_ms)
    late = [row.name in {one.name for one in stragglers} for row in rows]
    least = min(ranks, key=lambda one: one.coverage.component_frac)
    worlds = {one.world_size for one in ranks if one.world_size is not None}
    world = worlds.pop() if len(worlds) == 1 else None
    have = {one.rank for one in ranks}
    return Job(
        job_version=JOB_VERSION,
        tool_version=__version__,
        world_size=world,
        ranks=rows,
        missing=[rank for rank in range(world or 0) if rank not in have] if None not in have else [],
        left=left,
        steps=steps,
        steps_marked=all(one.summary.steps_marked for one in ranks),
        step_ms=step_ms,
        limit=_limit(rows, stragglers, links, stages, table, step_ms),
        stragglers=stragglers,
        slow_links=links,
        stages=stages,
        clock=_clock(clock, seen.names),
        matched_calls=len(matched),
        unmatched_calls=matched.unmatched,
        collectives=table,
        model=job_model(ranks),
        components=job_components(ranks),
        gemms=job_gemms(ranks, seen.names),
        findings=job_findings(ranks, late if len(matched) else None),
        coverage=least.coverage,
    )


class _Doing(Sequence[Activity]):
    """What each rank does; unpacked when asked for, for a thousand ranks at once would fill the memory."""

    def __init__(self, ranks: Sequence[RankSummary]):
        self._ranks = ranks
        self._activity = lru_cache(_KEPT)(lambda at: activity(ranks[at]))

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, at: Any) -> Any:
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._activity(at)


@dataclass(frozen=True)
class _Ranks:
    """All that an answer rests on."""

    ranks: list[RankSummary]
    doing: _Doing
    matched: Matched
    waits: JobWaits
    names: list[str]
    steps: list[int]


def _of_one_job(summaries: Iterable[RankSummary]) -> tuple[list[RankSummary], list[Left]]:
    every = {one.sha256 or one.file: one for one in sorted(summaries, key=lambda one: (one.file, one.sha256))}
    if not every:
        raise InputError("no summary of a rank to merge")
    worlds = Counter(one.world_size for one in every.values())
    usual = max(worlds, key=lambda world: (worlds[world], world or 0))
    kept: dict[object, RankSummary] = {}
    left = []
    for one in sorted(
        every.values(), key=lambda one: (one.rank is None, one.rank or 0, one.file, one.sha256)
    ):
        key = one.rank if one.rank is not None else one.file
        if one.world_size != usual:
            left.append(Left(one.file, f"of another job: {one.world_size} ranks, most have {usual}"))
        elif not one.steps:
            left.append(Left(one.file, "no whole step"))
        elif key in kept:
            left.append(Left(one.file, f"rank {one.rank} a second time, after {kept[key].file}"))
        else:
            kept[key] = one
    if not kept:
        raise InputError("no rank has a whole step")
    return list(kept.values()), left


def _names(ranks: Sequence[RankSummary]) -> list[str]:
    return [f"rank {one.rank}" if one.rank is not None else one.file for one in ranks]


def _rank_rows(seen: _Ranks) -> list[JobRank]:
    late = _late_ms(seen)
    rows = []
    for at, (rank, doing) in enumerate(zip(seen.ranks, seen.doing, strict=True)):
        parts, times, hidden = rank_parts(at, rank, doing, seen.steps, seen.matched, seen.waits)
        late_at = int((seen.waits.late & (seen.matched.rank == at)).sum())
        rows.append(
            JobRank(
                name=seen.names[at],
                rank=rank.rank,
                file=rank.file,
                sha256=rank.sha256,
                gpu=rank.gpu.title,
                partial=rank.partial,
                parts=parts,
                steps_ms=times,
                hidden_ms=hidden,
                late_ms=late[at],
                calls_late=late_at,
                verdict=rank.summary.verdict,
            )
        )
    return rows


def _late_ms(seen: _Ranks) -> list[float]:
    """Per rank: exposed ms a step that the others wait for it, the median of those in its groups.

    Of a wait, a late rank answers for the part until its own arrival.
    """
    matched, waits = seen.matched, seen.waits
    at_step = np.isin(matched.step, seen.steps)
    rows_of = RowsByCall(matched)
    total: list[dict[int, float]] = [{} for _ in seen.ranks]  # by late rank: by waiting rank, ns
    for call in np.unique(matched.call[waits.late]).tolist():
        if not at_step[call]:
            continue
        rows = rows_of(call)
        late = waits.late[rows]
        victims = rows[~late]
        for row in rows[late].tolist():
            share = (waits.start[row] - waits.start[victims]) / np.maximum(1, waits.wait_ns[victims])
            cost = waits.exposed_ns[victims] * np.clip(share, 0, 1)
            sums = total[int(matched.rank[row])]
            for rank, ns in zip(matched.rank[victims].tolist(), cost.tolist(), strict=True):
                sums[rank] = sums.get(rank, 0.0) + ns
    beside: list[set[int]] = [set() for _ in seen.ranks]  # who could wait for whom: they share a group
    members: dict[tuple[int, ...], set[int]] = {}
    for call, group in enumerate(matched.group):
        members.setdefault(group, set()).update(matched.rank[rows_of(call)].tolist())
    for together in members.values():
        for at in together:
            beside[at] |= together
    return [
        median(sums.get(rank, 0.0) for rank in beside[at] - {at}) / 1e6 / len(seen.steps) if sums else 0.0
        for at, sums in enumerate(total)
    ]


def _stragglers(seen: _Ranks, rows: Sequence[JobRank], step_ms: float) -> list[Straggler]:
    """Ranks that the others wait for longer than for any other, by more than 2 % of the step."""
    order = sorted(range(len(rows)), key=lambda at: -rows[at].late_ms)
    values = [rows[at].late_ms for at in order]
    many = above(values, PRACTICAL * step_ms) if len(values) > 2 else int(_one_of_two(values, step_ms))
    return [_straggler(seen, rows, at, step_ms) for at in order[:many]]


def _one_of_two(values: Sequence[float], step_ms: float) -> bool:
    return len(values) == 2 and values[0] - values[1] > PRACTICAL * step_ms


def _straggler(seen: _Ranks, rows: Sequence[JobRank], at: int, step_ms: float) -> Straggler:
    more = (
        late_parts(seen.matched, seen.waits, at, seen.ranks, seen.doing).sum(axis=1) / 1e6 / len(seen.steps)
    )
    parts = dict(zip(PARTS, more.tolist(), strict=True))
    pace = _pace(seen, at)
    where: Counter[str] = Counter()
    calls = seen.matched.call[seen.waits.late & (seen.matched.rank == at)]
    for call in calls.tolist():
        where[seen.matched.collective[call]] += float(seen.waits.skew_ns[call])  # type: ignore[assignment]
    return Straggler(
        name=rows[at].name,
        late_ms=rows[at].late_ms,
        late_frac=rows[at].late_ms / step_ms,
        cause=_cause(seen, at, parts, pace, rows[at].late_ms),
        more_ms=parts,
        pace=pace,
        collective=where.most_common(1)[0][0] if where else "",
        calls=len(calls),
        of_calls=len(seen.waits.told()),
    )


def _pace(seen: _Ranks, at: int) -> float | None:
    """Median over GEMMs of the same place and shape: this rank's time per call over the others' median."""
    tables = gemms_by_rank(seen.ranks)
    ratios, weights = [], []
    for key, row in tables[at].items():
        others = [
            one.time_ms_per_step / one.calls_per_step
            for other, rows in enumerate(tables)
            if other != at and (one := rows.get(key)) is not None and one.calls_per_step
        ]
        if others and row.calls_per_step and None not in key[3:6] and median(others) > 0:
            ratios.append(row.time_ms_per_step / row.calls_per_step / median(others))
            weights.append(row.time_ms_per_step)
    if not ratios:
        return None
    order = np.argsort(ratios)
    total = np.cumsum(np.array(weights)[order])
    return float(np.array(ratios)[order][int(np.searchsorted(total, total[-1] / 2))])


def _cause(seen: _Ranks, at: int, parts: dict[str, float], pace: float | None, late_ms: float) -> Cause:
    name, most = max(parts.items(), key=lambda item: item[1])
    if most < 0.5 * late_ms:
        return "unclear"
    if name == "idle":
        return "cpu"
    if name == "computing":
        if pace is not None and pace > 1 + _SLOWER:
            return "slow_gpu"
        return "experts" if _experts_more(seen, at) else "more_work"
    causes: dict[str, Cause] = {"input": "input", "copies": "copies", "communication": "communication"}
    return causes[name]


def _experts_more(seen: _Ranks, at: int) -> bool:
    """Is most of what it computes more than the others in its experts?"""
    tables = []
    for one in seen.ranks:
        sums: Counter[str] = Counter()
        for row in one.components:
            if row.component != "communication":
                sums[row.component] += row.time_ms_per_step  # type: ignore[assignment]
        tables.append(sums)
    others = [table for other, table in enumerate(tables) if other != at]
    more = {name: tables[at][name] - median(table[name] for table in others) for name in tables[at]}
    gained = sum(value for value in more.values() if value > 0)
    return gained > 0 and sum(value for name, value in more.items() if name.startswith("moe.")) > 0.5 * gained


def _stages(seen: _Ranks, rows: Sequence[JobRank], step_ms: float) -> list[str]:
    """Ranks that compute longest in a job that sends from rank to rank, where they stand out."""
    if not any(kind.collective == "send/recv" for one in seen.ranks for kind in one.kinds):
        return []
    order = sorted(rows, key=lambda row: -row.parts.computing_ms)
    values = [row.parts.computing_ms for row in order]
    many = above(values, PRACTICAL * step_ms) if len(values) > 2 else int(_one_of_two(values, step_ms))
    return [row.name for row in order[:many]]


def _limit(
    rows: Sequence[JobRank],
    stragglers: Sequence[Straggler],
    links: Sequence[SlowLink],
    stages: Sequence[str],
    table: Sequence[JobCollective],
    step_ms: float,
) -> Limit:
    if len(rows) < 2:
        return "unknown"
    sending = median(row.parts.sending_ms + row.parts.waiting_ms for row in rows)
    idle = median(row.parts.idle_ms + row.parts.input_ms for row in rows)
    worst = max((one.late_ms for one in stragglers), default=0.0)
    link = max((one.more_ms for one in links), default=0.0)
    found: dict[Limit, float] = {"straggler": worst, "slow_link": link}
    limit = max(found, key=lambda name: found[name])
    if found[limit] > PRACTICAL * step_ms:
        return limit
    if stages:
        return "pipeline"
    found = {"communication": sending, "idle": idle}
    limit = max(found, key=lambda name: found[name])
    return limit if found[limit] > PRACTICAL * step_ms else "compute"


def _clock(clock: CommonClock, names: Sequence[str]) -> JobClock:
    residual = clock.residual_ns / 1e3 if np.isfinite(clock.residual_ns) else None
    groups: dict[int, list[str]] = {}
    for name, number in zip(names, clock.clock.tolist(), strict=True):
        groups.setdefault(number, []).append(name)
    untied = groups.pop(MISSING, [])
    return JobClock(residual, list(groups.values()), untied, bool(np.abs(clock.drift).max(initial=0) > 0))


__all__ = ["merge"]
