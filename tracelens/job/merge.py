"""Summaries of ranks merged to one answer: which rank is late, why, and what the others lose by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import numpy as np

from tracelens.comparison.step_change import PRACTICAL
from tracelens.errors import InputError
from tracelens.job import words
from tracelens.job.blocks import job_blocks
from tracelens.job.matching import CommonClock, common_clock, match
from tracelens.job.model import job_degrees, job_model
from tracelens.job.parts import (
    collectives,
    common_steps,
    job_components,
    job_findings,
    job_gemms,
    rank_parts,
    slow_links,
)
from tracelens.job.stragglers import Doing, JobView, late_spans, stand_out, stragglers
from tracelens.job.summary import RankSummary, each_trace_once
from tracelens.job.unrelated import check_one_job, of_one_time
from tracelens.job.waits import RESIDUALS, find_waits
from tracelens.results.job import JOB_VERSION, Job, JobClock, JobRank, Left, Limit, SlowLink, Straggler
from tracelens.trace.tables import MISSING
from tracelens.version import __version__
from tracelens.words import GROUPED


def merge(summaries: Iterable[RankSummary], left: Iterable[Left] = ()) -> Job:
    """One answer for a job; the order of the summaries changes nothing.

    Files of another world size than most are left out, and those of another hour (of two hours with as many
    files the earlier); of a rank that is there twice then the first file counts.

    Raises:
        InputError: no summary, traces of different jobs, or no step that all ranks have.
    """
    ranks, out = _of_one_job(summaries)
    check_one_job(ranks)
    left = sorted({*left, *out}, key=lambda one: (one.file, one.why))
    steps = common_steps(ranks)
    if not steps:
        raise InputError("the ranks have no step in common: record the same steps on all of them")
    seen, clock = _view(ranks, steps)
    matched, waits = seen.matched, seen.waits
    spans = late_spans(seen)
    rows = _rank_rows(seen, spans)
    step_ms = median(max(times) for times in zip(*(row.steps_ms for row in rows), strict=True))
    if not step_ms > 0:
        raise InputError("the steps of these ranks take no time")
    late = stragglers(seen, rows, spans, step_ms)
    table = collectives(matched, waits, ranks, seen.names, len(steps))
    links = [one for one in slow_links(matched, waits, len(steps)) if one.more_ms > PRACTICAL * step_ms]
    stages = _stages(seen, rows, step_ms)
    late_names = {one.name for one in late}
    return Job(
        job_version=JOB_VERSION,
        tool_version=__version__,
        world_size=ranks[0].world_size,  # that of all
        ranks=rows,
        missing=_missing(ranks),
        left=left,
        steps=steps,
        steps_marked=all(one.summary.steps_marked for one in ranks),
        step_ms=step_ms,
        limit=_limit(rows, late, links, stages, step_ms),
        stragglers=late,
        slow_links=links,
        stages=stages,
        clock=_clock(clock, seen.names),
        matched_calls=len(matched),
        unmatched_calls=matched.unmatched,
        calls_of_no_group=matched.no_group,
        generated=any(one.generated for one in ranks),
        waits_told=_told(clock, rows, step_ms),
        communication_is_bound=any(one.summary.communication_is_bound for one in ranks),
        collectives=table,
        degrees=job_degrees(ranks),
        model=job_model(ranks),
        blocks=job_blocks(ranks, rows),
        components=job_components(ranks),
        groups=job_components(ranks, {name: key for key, names in GROUPED.items() for name in names}),
        gemms=job_gemms(seen.gemms, seen.names),
        findings=job_findings(ranks, [row.name in late_names for row in rows] if len(matched) else None),
        coverage=min((one.coverage for one in ranks), key=lambda known: known.component_frac),
    )


def _missing(ranks: Sequence[RankSummary]) -> list[int]:
    """Ranks of the job without a file; none where a file does not say its rank."""
    have = {one.rank for one in ranks}
    return [] if None in have else [rank for rank in range(ranks[0].world_size or 0) if rank not in have]


def _of_one_job(summaries: Iterable[RankSummary]) -> tuple[list[RankSummary], list[Left]]:
    every = each_trace_once(summaries)
    if not every:
        raise InputError("no summary of a rank to merge")
    worlds = Counter(one.world_size for one in every)
    usual = max(worlds, key=lambda world: (worlds[world], world or 0))
    left, sound = [], []
    for one in every:
        if one.world_size != usual:
            left.append(Left(one.file, words.other_job(one.world_size, usual)))
        elif not one.steps:
            left.append(Left(one.file, words.NO_STEP))
        else:
            sound.append(one)
    if not sound:
        raise InputError("no rank has a whole step")
    same, strange = of_one_time(sound)
    kept: dict[object, RankSummary] = {}
    for one in same:
        alone = one.rank is None or usual == 1  # runs of one GPU are all of rank 0: ``check_one_job``
        first = kept.setdefault(one.file if alone else one.rank, one)
        if first is not one:
            left.append(Left(one.file, words.second_time(one.rank, first.file)))
    whole, cut = _without_cut_off(list(kept.values()))
    return whole, left + strange + cut


def _without_cut_off(ranks: list[RankSummary]) -> tuple[list[RankSummary], list[Left]]:
    """Of a file that was cut off the steps with as many calls as in whole files; without most, not the rank.

    One that ends early would otherwise take its missing steps from all ranks, and count as idle.
    """
    whole = [one for one in ranks if not one.partial]
    if not whole or len(whole) == len(ranks):
        return ranks, []
    steps = set(common_steps(whole))
    usual = {step: Counter(_calls_at(one)[step] for one in whole).most_common(1)[0][0] for step in steps}
    kept, left = [], []
    for one in ranks:
        calls = _calls_at(one)
        good = [step for step in one.steps if step.index in steps and calls[step.index] == usual[step.index]]
        if not one.partial:
            kept.append(one)
        elif 2 * len(good) < len(steps) or not good:
            left.append(Left(one.file, words.cut_off(len(good), len(steps))))
        else:
            kept.append(msgspec.structs.replace(one, steps=good))
    return kept, left


def _calls_at(rank: RankSummary) -> Counter[int]:
    """Number of calls in each step."""
    return Counter(rank.calls.column("step").tolist())


def _view(ranks: list[RankSummary], steps: list[int]) -> tuple[JobView, CommonClock]:
    """What the ranks do side by side, and the clock that tells so."""
    doing = Doing(ranks)
    matched = match(ranks)
    clock = common_clock(matched, len(ranks))
    names = [f"rank {one.rank}" if one.rank is not None else one.file for one in ranks]
    return JobView(ranks, doing, matched, find_waits(matched, clock, doing), names, steps), clock


def _rank_rows(seen: JobView, spans: Sequence[tuple[float, float, float]]) -> list[JobRank]:
    rows = []
    for at, (rank, doing) in enumerate(zip(seen.ranks, seen.doing, strict=True)):
        parts, times, waited, hidden = rank_parts(at, rank, doing, seen.steps, seen.matched, seen.waits)
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
                waits_ms=waited,
                hidden_ms=hidden,
                late_ms=spans[at][1],
                calls_late=late_at,
                verdict=rank.summary.verdict,
                path={} if rank.waits is None else {one.bound_by: one.frac for one in rank.waits.path},
            )
        )
    return rows


def _stages(seen: JobView, rows: Sequence[JobRank], step_ms: float) -> list[str]:
    """Ranks that compute longest in a job that sends from rank to rank, where they stand out."""
    if not any(kind.collective == "send/recv" for one in seen.ranks for kind in one.kinds):
        return []
    return [rows[at].name for at in stand_out([row.parts.computing_ms for row in rows], step_ms)]


def _limit(
    rows: Sequence[JobRank],
    late: Sequence[Straggler],
    links: Sequence[SlowLink],
    stages: Sequence[str],
    step_ms: float,
) -> Limit:
    if len(rows) < 2:
        return "unknown"
    sending = median(row.parts.sending_ms + row.parts.waiting_ms for row in rows)
    idle = median(row.parts.idle_ms + row.parts.input_ms for row in rows)
    worst = max((one.late_ms for one in late), default=0.0)
    link = max((one.more_ms for one in links), default=0.0)
    found: dict[Limit, float] = {"straggler": worst, "slow_link": link}
    limit = max(found, key=lambda name: found[name])
    if found[limit] > PRACTICAL * step_ms:
        return limit
    if stages:
        return "pipeline"
    messages = median(row.parts.messages_ms for row in rows)
    found = {"communication": sending, "idle": idle, "bubbles": messages}
    limit = max(found, key=lambda name: found[name])
    return limit if found[limit] > PRACTICAL * step_ms else "compute"


def _told(clock: CommonClock, rows: Sequence[JobRank], step_ms: float) -> bool:
    """Is a wait seen, or would one that matters be?"""
    seen = any(row.parts.waiting_ms > 0 for row in rows)
    return seen or RESIDUALS * clock.residual_ns / 1e6 <= PRACTICAL * step_ms  # nan without calls


def _clock(clock: CommonClock, names: Sequence[str]) -> JobClock:
    residual = clock.residual_ns / 1e3 if np.isfinite(clock.residual_ns) else None
    groups: dict[int, list[str]] = {}
    for name, number in zip(names, clock.clock.tolist(), strict=True):
        groups.setdefault(number, []).append(name)
    untied = groups.pop(MISSING, [])
    return JobClock(residual, list(groups.values()), untied, bool(np.abs(clock.drift).max(initial=0) > 0))
