"""Which ranks the others wait for, what that costs, and why those ranks are late."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import median
from typing import Any

import numpy as np

from tracelens.comparison.same_work import above
from tracelens.comparison.step_change import PRACTICAL
from tracelens.job.matching import FloatArray, Matched
from tracelens.job.parts import GemmKey, gemms_by_rank
from tracelens.job.summary import RankSummary
from tracelens.job.waits import LATE_BY, Activity, JobWaits, RowsByCall, activity, late_parts
from tracelens.results.job import Arrival, Cause, JobRank, SeenAt, Straggler
from tracelens.trace.tables import MISSING

#: A GPU is slower, or has more to do, from this share on.
_SLOWER = 0.03
_KEPT = 64


class Doing(Sequence[Activity]):
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
class JobView:
    """All that an answer rests on."""

    ranks: list[RankSummary]
    doing: Doing
    matched: Matched
    waits: JobWaits
    names: list[str]
    steps: list[int]

    @cached_property
    def gemm_times(self) -> dict[GemmKey, list[float]]:
        """ms per call of each GEMM whose shape is known, over the ranks, in ascending order."""
        times: dict[GemmKey, list[float]] = {}
        for rows in self.gemms:
            for key, row in rows.items():
                if row.calls_per_step and None not in (row.m, row.n, row.k):
                    times.setdefault(key, []).append(row.time_ms_per_step / row.calls_per_step)
        return {key: sorted(each) for key, each in times.items()}

    @cached_property
    def gemms(self) -> list[Any]:
        """``gemms_by_rank``."""
        return gemms_by_rank(self.ranks)

    @cached_property
    def components(self) -> list[Counter[str]]:
        """Of each rank ms per step by component, without communication."""
        tables = []
        for one in self.ranks:
            sums: Counter[str] = Counter()
            for row in one.components:
                if row.component != "communication":
                    sums[row.component] += row.time_ms_per_step  # type: ignore[assignment]
            tables.append(sums)
        return tables


def late_spans(seen: JobView) -> list[tuple[float, float, float]]:
    """Per rank: exposed ms a step that the others in its groups wait for it: least, median and most of them.

    Of a wait, a late rank answers for the part until its own arrival.
    """
    matched, waits = seen.matched, seen.waits
    at_step = np.isin(matched.step, seen.steps)
    rows_of = RowsByCall(matched)
    total: dict[int, FloatArray] = {}  # by late rank: ns by waiting rank
    for call in np.unique(matched.call[waits.late]).tolist():
        if not at_step[call]:
            continue
        rows = rows_of(call)
        late = waits.late[rows]
        victims = rows[~late]
        for row in rows[late].tolist():
            share = (waits.start[row] - waits.start[victims]) / np.maximum(1, waits.wait_ns[victims])
            sums = total.setdefault(int(matched.rank[row]), np.zeros(len(seen.ranks)))
            sums[matched.rank[victims]] += waits.exposed_ns[victims] * np.clip(share, 0, 1)
    beside = _beside(matched, total)
    spans = []
    for at in range(len(seen.ranks)):
        each = total[at][beside[at]] / 1e6 / len(seen.steps) if at in total else np.zeros(1)
        spans.append((float(each.min()), float(np.median(each)), float(each.max())))
    return spans


def _beside(matched: Matched, late: Sequence[int] | dict[int, Any]) -> dict[int, list[int]]:
    """Ranks that could wait for each late one: they share a group with it."""
    rows_of = RowsByCall(matched)
    members: dict[tuple[int, ...], set[int]] = {}
    for call, group in enumerate(matched.group):
        members.setdefault(group, set()).update(matched.rank[rows_of(call)].tolist())
    return {at: sorted(set().union(*(one for one in members.values() if at in one)) - {at}) for at in late}


def stragglers(
    seen: JobView, rows: Sequence[JobRank], spans: Sequence[tuple[float, float, float]], step_ms: float
) -> list[Straggler]:
    """Ranks that the others wait for longer than for any other, by more than 2 % of the step."""
    late = stand_out([row.late_ms for row in rows], step_ms)
    parts = late_parts(seen.matched, seen.waits, late, seen.ranks, seen.doing)
    return [
        _straggler(
            seen, rows[at], spans[at], at, _capped(rows, at, parts[at] / 1e6 / len(seen.steps)), step_ms
        )
        for at in late
    ]


def _capped(rows: Sequence[JobRank], at: int, more: FloatArray) -> dict[str, float]:
    """What it does longer before its late calls, no more than by what it does longer in the whole step: the
    others do the same beside the call in which they wait."""
    parts = dict(zip(LATE_BY, more.tolist(), strict=True))
    for name in parts.keys() & {"computing", "copies", "input", "idle"}:
        every = [getattr(row.parts, f"{name}_ms") for row in rows]
        others = median([*every[:at], *every[at + 1 :]])
        parts[name] = min(parts[name], max(0.0, every[at] - others))
    return parts


def stand_out(values: Sequence[float], step_ms: float) -> list[int]:
    """Which values are larger than the rest, by more than 2 % of the step; the largest first."""
    order = sorted(range(len(values)), key=lambda at: -values[at])
    ordered = [values[at] for at in order]
    if len(values) > 2:
        return order[: above(ordered, PRACTICAL * step_ms)]
    return order[:1] if len(values) == 2 and ordered[0] - ordered[1] > PRACTICAL * step_ms else []


def _straggler(
    seen: JobView,
    row: JobRank,
    span: tuple[float, float, float],
    at: int,
    parts: dict[str, float],
    step_ms: float,
) -> Straggler:
    pace = _pace(seen, at)
    where: Counter[str] = Counter()
    own = seen.matched.rank == at
    calls = seen.matched.call[seen.waits.late & own]
    told = int((seen.waits.last[seen.matched.call[own]] != MISSING).sum())
    for call in calls.tolist():
        where[seen.matched.collective[call]] += float(seen.waits.skew_ns[call])  # type: ignore[assignment]
    return Straggler(
        name=row.name,
        late_ms=row.late_ms,
        late_frac=row.late_ms / step_ms,
        cause=_cause(seen, at, parts, pace, row.late_ms),
        more_ms=parts,
        pace=pace,
        collective=where.most_common(1)[0][0] if where else "",
        calls=len(calls),
        of_calls=told,
        least_ms=span[0],
        most_ms=span[2],
        seen_at=_seen_at(seen, at),
        close_calls=int(own.sum()) - told,
    )


def _seen_at(seen: JobView, at: int) -> SeenAt | None:
    """The longest exposed wait at a call where this rank comes last."""
    matched, waits = seen.matched, seen.waits
    calls = np.flatnonzero((waits.last == at) & np.isin(matched.step, seen.steps))
    rows = np.flatnonzero(np.isin(matched.call, calls) & (matched.rank != at))
    if not len(rows):
        return None
    longest = int(rows[waits.exposed_ns[rows].argmax()])
    call = int(matched.call[longest])
    own = int(np.flatnonzero((matched.call == call) & (matched.rank == at))[0])
    size = int(matched.bytes[call]) or None
    return SeenAt(
        matched.collective[call], size, int(matched.step[call]), _arrival(seen, own), _arrival(seen, longest)
    )


def _arrival(seen: JobView, row: int) -> Arrival:
    matched = seen.matched
    start = int(matched.start_ns[row])
    return Arrival(seen.names[int(matched.rank[row])], start, (int(matched.end_ns[row]) - start) / 1e3)


def _pace(seen: JobView, at: int) -> float | None:
    """Median over GEMMs of the same place and shape: this rank's time per call over the others' median."""
    ratios, weights = [], []
    for key, row in seen.gemms[at].items():
        every = seen.gemm_times.get(key, [])
        if len(every) < 2 or not row.calls_per_step:
            continue
        own = row.time_ms_per_step / row.calls_per_step
        place = bisect_left(every, own)
        others = median([*every[:place], *every[place + 1 :]])
        if others > 0:
            ratios.append(own / others)
            weights.append(row.time_ms_per_step)
    if not ratios:
        return None
    order = np.argsort(ratios)
    total = np.cumsum(np.array(weights)[order])
    return float(np.array(ratios)[order][int(np.searchsorted(total, total[-1] / 2))])


def _cause(seen: JobView, at: int, parts: dict[str, float], pace: float | None, late_ms: float) -> Cause:
    name, most = max(parts.items(), key=lambda item: item[1])
    if most < 0.5 * late_ms:
        return "unclear"
    if name == "idle":
        return "cpu"
    if name == "computing":
        if pace is not None and pace > 1 + _SLOWER:
            return "slow_gpu"
        return "experts" if _experts_more(seen, at) else "more_work"
    causes: dict[str, Cause] = {
        "input": "input", "copies": "copies", "communication": "communication", "begin": "begins_late",
    }  # fmt: skip
    return causes[name]


def _experts_more(seen: JobView, at: int) -> bool:
    """Is most of what it computes more than the others in its experts?"""
    tables = seen.components
    more = {
        name: ms - median(table[name] for other, table in enumerate(tables) if other != at)
        for name, ms in tables[at].items()
    }
    gained = sum(value for value in more.values() if value > 0)
    return gained > 0 and sum(value for name, value in more.items() if name.startswith("moe.")) > 0.5 * gained
