"""The job's tables over its ranks: steps, collectives, GEMMs, components, findings, dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from tracelens.hardware.collectives import bus_factor, one_node_us
from tracelens.job.matching import FloatArray, Matched
from tracelens.job.summary import RankGemm, RankSummary
from tracelens.job.waits import Activity, JobWaits, Spans
from tracelens.results import Finding
from tracelens.results.job import JobCollective, JobFinding, JobGemm, Parts, SlowLink
from tracelens.trace.nesting import merged
from tracelens.trace.tables import MISSING

#: A group is slower than the others from this ratio of sending times on, with so many calls of each.
_SLOW_LINK, _LINK_CALLS = 1.25, 4


def common_steps(ranks: Sequence[RankSummary]) -> list[int]:
    """Numbers of the steps that every rank has whole; all of the first rank's where none is in common."""
    return sorted(set.intersection(*({step.index for step in one.steps} for one in ranks)))


def rank_parts(
    at: int, rank: RankSummary, doing: Activity, steps: Sequence[int], matched: Matched, waits: JobWaits
) -> tuple[Parts, list[float], list[float], float]:
    """Mean parts of its steps, each step's ms and its waiting, and the communication beside computing."""
    chosen = [one for one in rank.steps if one.index in set(steps)]
    begin = np.array([one.start_ns for one in chosen], np.int64)
    end = np.array([one.end_ns for one in chosen], np.int64)
    computing, exposed, copies, fed, idle = doing.parts(begin, end).mean(axis=1) / 1e6
    rows = np.flatnonzero(matched.rank == at)
    own = {
        step: float(waits.exposed_ns[rows[matched.step[matched.call[rows]] == step]].sum()) for step in steps
    }
    waited = [own[one.index] / 1e6 for one in chosen]
    waiting = min(sum(waited) / max(1, len(chosen)), float(exposed))
    sends = _sends(rank)
    alone = sends.also(doing.computing).within(begin, end) - doing.computing.within(begin, end)
    messages = min(float(alone.mean()) / 1e6, float(exposed) - waiting)
    sending = float(exposed) - waiting - messages
    parts = Parts(float(computing), waiting, sending, messages, float(copies), float(fed), float(idle))
    hidden = doing.communicating.within(begin, end).mean() / 1e6 - float(exposed)
    return parts, ((end - begin) / 1e6).tolist(), waited, float(hidden)


def _sends(rank: RankSummary) -> Spans:
    """When a send or a receive runs."""
    kinds = [at for at, kind in enumerate(rank.kinds) if kind.collective == "send/recv"]
    rows = np.isin(rank.calls.column("kind"), kinds)
    return Spans(*merged(rank.calls.column("start_ns")[rows], rank.calls.column("end_ns")[rows]))


def collectives(
    matched: Matched, waits: JobWaits, ranks: Sequence[RankSummary], names: Sequence[str], steps: int
) -> list[JobCollective]:
    """One row per collective, group name, size of group and message; most waited for first."""
    keys: dict[tuple[str, str, int, int], list[int]] = {}
    for call in range(len(matched)):
        key = (
            matched.collective[call],
            matched.name[call],
            len(matched.group[call]),
            int(matched.bytes[call]),
        )
        keys.setdefault(key, []).append(call)
    waited = np.bincount(matched.call, waits.exposed_ns, minlength=len(matched)) / 1e6
    gpus = {rank.gpu.name for rank in ranks}
    gpu = gpus.pop() if len(gpus) == 1 else "unknown"
    rows = [
        _collective(key, np.array(calls), matched, waits, waited, names, steps, gpu)
        for key, calls in keys.items()
    ]
    return sorted(
        rows, key=lambda row: (-row.waiting_ms, -(row.send_us or 0) * row.calls_per_step, row.bytes or 0)
    )


def _collective(
    key: tuple[str, str, int, int],
    calls: np.ndarray,
    matched: Matched,
    waits: JobWaits,
    waited: FloatArray,
    names: Sequence[str],
    steps: int,
    gpu: str,
) -> JobCollective:
    collective, group, size, message = key
    told = calls[waits.last[calls] != MISSING]
    counts = np.bincount(waits.last[told], minlength=len(names)) if len(told) else np.zeros(len(names))
    most = int(counts.argmax())
    send = waits.send_ns[calls]
    send = send[np.isfinite(send)]
    ns = float(np.median(send)) if len(send) else None
    factor = bus_factor(collective, size)
    skews = waits.skew_ns[told] / 1e3
    return JobCollective(
        collective,
        group,
        size,
        len({matched.group[call] for call in calls.tolist()}),
        message or None,
        len(calls) / steps,
        (float(np.median(skews)), float(np.percentile(skews, 95, method="higher")), float(skews.max()))
        if len(told)
        else None,
        names[most] if len(told) else None,
        float(counts[most] / len(told)) if len(told) else None,
        float(waited[calls].sum()) / steps / len(names),
        ns / 1e3 if ns is not None else None,
        message * factor / ns if message and factor is not None and ns else None,
        one_node_us(gpu, collective, size, message),
    )


def slow_links(matched: Matched, waits: JobWaits, steps: int) -> list[SlowLink]:
    """Groups whose calls take longer to send than the same calls of the other groups."""
    by: dict[tuple[str, int, int], dict[tuple[int, ...], list[float]]] = {}
    for call in range(len(matched)):
        if np.isfinite(waits.send_ns[call]) and matched.bytes[call]:
            key = (matched.collective[call], len(matched.group[call]), int(matched.bytes[call]))
            by.setdefault(key, {}).setdefault(matched.group[call], []).append(float(waits.send_ns[call]))
    found: dict[tuple[str, tuple[int, ...]], SlowLink] = {}
    for (collective, _, _), groups in by.items():
        groups = {group: times for group, times in groups.items() if len(times) >= _LINK_CALLS}
        medians = {group: median(times) for group, times in groups.items()}
        for group, times in groups.items() if len(groups) > 1 else ():
            others = [other for name, other in medians.items() if name != group]
            own, usual = medians[group], median(others)
            if own > _SLOW_LINK * usual and own > _SLOW_LINK * max(others):
                name = next(matched.name[at] for at in range(len(matched)) if matched.group[at] == group)
                more = (own - usual) * len(times) / steps / 1e6
                before = found.get((collective, group))
                link = SlowLink(collective, name, group, own / 1e3, usual / 1e3, more)
                if before is None or before.more_ms < more:
                    found[collective, group] = link
    return sorted(found.values(), key=lambda one: (-one.more_ms, one.ranks))


GemmKey = tuple[str, str | None, str, int | None, int | None, int | None, int | None, str | None]


def _key(row: RankGemm) -> GemmKey:
    return row.component, row.role, row.phase, row.m, row.n, row.k, row.batch, row.dtype


def gemms_by_rank(ranks: Sequence[RankSummary]) -> list[dict[GemmKey, RankGemm]]:
    """Per rank its GEMM rows by place and shape; those of several kernels added up."""
    out = []
    for rank in ranks:
        rows: dict[GemmKey, RankGemm] = {}
        for row in rank.gemms:
            key = _key(row)
            same = rows.get(key)
            rows[key] = row if same is None else _added(same, row)
        out.append(rows)
    return out


def _added(one: RankGemm, other: RankGemm) -> RankGemm:
    longer = max(one, other, key=lambda row: row.time_ms_per_step)
    return RankGemm(
        *_key(one),
        one.calls_per_step + other.calls_per_step,
        one.time_ms_per_step + other.time_ms_per_step,
        longer.flops,
        longer.peak_frac,
    )


def job_gemms(tables: Sequence[dict[GemmKey, RankGemm]], names: Sequence[str]) -> list[JobGemm]:
    """GEMMs of the same place and shape over the ranks (``gemms_by_rank``), longest first."""
    found = []
    for key in dict.fromkeys(key for rows in tables for key in rows):
        having = [(names[at], rows[key]) for at, rows in enumerate(tables) if key in rows]
        slowest, row = max(having, key=lambda one: one[1].time_ms_per_step)
        peaks = [one.peak_frac for _, one in having if one.peak_frac is not None]
        component, role, phase, m, n, k, batch, dtype = key
        ms = median(one.time_ms_per_step for _, one in having)
        found.append(
            JobGemm(component, role or "", phase, m, n, k, batch, dtype, len(having), ms, slowest,
                    row.time_ms_per_step, median(peaks) if peaks else None)
        )  # fmt: skip
    return sorted(found, key=lambda row: -row.ms * row.ranks)


def job_components(
    ranks: Sequence[RankSummary], told_as: Mapping[str, str] | None = None
) -> dict[str, tuple[float, float, float]]:
    """ms per step of each component: median, least and most over the ranks, longest first.

    ``told_as`` names what several components are counted under.
    """
    tables: list[dict[str, float]] = []
    for rank in ranks:
        sums: dict[str, float] = {}
        for row in rank.components:
            name = row.component if told_as is None else told_as.get(row.component, "other")
            sums[name] = sums.get(name, 0.0) + row.time_ms_per_step
        tables.append(sums)
    names = dict.fromkeys(name for sums in tables for name in sums)
    every = {name: [sums.get(name, 0.0) for sums in tables] for name in names}
    found = {name: (median(times), min(times), max(times)) for name, times in every.items()}
    return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))


def job_findings(ranks: Sequence[RankSummary], late: Sequence[bool] | None) -> list[JobFinding]:
    """Findings of the ranks, one of each change; ``late``: which ranks the others wait for, None: unknown.

    Where some ranks wait for others, work saved on those that wait makes their wait longer, no step shorter;
    so the saving is that of a late rank where one has the finding.
    """
    groups: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for at, rank in enumerate(ranks):
        for finding in rank.findings:
            what = repr(sorted(finding.change.items())) if finding.change else repr(finding.components)
            groups.setdefault((finding.rule, what), []).append((at, finding))
    found = []
    for every in groups.values():
        having = {at for at, _ in every}
        critical = [one for at, one in every if late is not None and late[at]]
        best = max(critical or [one for _, one in every], key=_saving)
        saves = (
            None if late is None else not any(late) or all(at in having for at, is_ in enumerate(late) if is_)
        )
        found.append(JobFinding(best, len(having), saves))
    return sorted(found, key=lambda one: (-_saving(one.finding), one.finding.rule, one.finding.title))


def _saving(finding: Finding) -> float:
    """What a finding saves, or at most saves where no more is known."""
    estimate = finding.saving_ms
    known = estimate.mid if estimate.mid is not None else estimate.high
    return known if known is not None else 0.0
