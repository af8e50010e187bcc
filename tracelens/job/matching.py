"""Which call on one rank is which on the others, and one clock for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.job.columns import IntArray
from tracelens.job.summary import NO_STEP, CallKind, RankSummary
from tracelens.trace.tables import MISSING

FloatArray = npt.NDArray[np.float64]

#: Collectives that end on all ranks of the group together: none has its result before the last has arrived.
#: A broadcast and a reduce do not, and a send knows two ranks only.
TOGETHER = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier")
#: Fewer matching calls than this say nothing of a clock that drifts.
_DRIFT_CALLS = 8
#: A drift is believed where the ends fall together so much better with it.
_BETTER = 0.7
_ROUNDS = 20


@dataclass(frozen=True)
class Matched:
    """Calls that several ranks made together: one row per call and rank, sorted by call, then rank."""

    call: IntArray  # number of the call, 0 .. len(step) - 1
    rank: IntArray  # position in the list of summaries
    start_ns: IntArray
    end_ns: IntArray
    launch_ns: IntArray  # MISSING where the launch was not recorded
    step: IntArray  # of each call
    collective: list[str]  # of each call
    group: list[tuple[int, ...]]  # of each call: the ranks of its group, also those without a trace here
    name: list[str]  # of each call: its group's description
    bytes: IntArray  # of each call, the largest of its ranks; 0 where unknown
    unmatched: int  # calls of collectives in a step without a partner, or whose group is not known

    def __len__(self) -> int:
        return len(self.step)


def match(ranks: Sequence[RankSummary]) -> Matched:
    """The n-th call of a collective in a group and a step is the n-th on every rank of the group.

    A group, collective and step in which ranks disagree on the number of calls is not matched.
    """
    groups: dict[tuple[int, ...], int] = {}
    rows = pd.concat([_rows(at, one, groups) for at, one in enumerate(ranks)], ignore_index=True)
    rows = rows[rows["collective"].isin(TOGETHER) & (rows["step"] != NO_STEP)]
    total = len(rows)
    rows = rows[rows["group"] != MISSING]
    place = ["group", "name", "collective", "step"]
    rows = rows.sort_values(["rank", "start_ns"], kind="stable")
    counts = rows.groupby([*place, "rank"]).size().groupby(place).agg(["nunique", "size"])
    good = counts[(counts["nunique"] == 1) & (counts["size"] > 1)].index
    kept = rows[pd.MultiIndex.from_frame(rows[place]).isin(good)].copy()
    kept["nth"] = kept.groupby([*place, "rank"]).cumcount()
    kept["call"] = kept.groupby([*place, "nth"], sort=True).ngroup()
    kept = kept.sort_values(["call", "rank"], kind="stable")
    first = kept.drop_duplicates("call")
    of_number = list(groups)
    numbers = {
        name: kept[name].to_numpy(np.int64) for name in ("call", "rank", "start_ns", "end_ns", "launch_ns")
    }
    return Matched(
        **numbers,
        step=first["step"].to_numpy(np.int64),
        collective=first["collective"].tolist(),
        group=[of_number[number] for number in first["group"].tolist()],
        name=first["name"].tolist(),
        bytes=kept.groupby("call")["bytes"].max().to_numpy(np.int64),
        unmatched=total - len(kept),
    )


def _rows(at: int, one: RankSummary, groups: dict[tuple[int, ...], int]) -> pd.DataFrame:
    """One row per call of a rank; ``groups`` numbers the groups that were met."""
    kinds = pd.DataFrame(
        {
            "collective": [kind.collective for kind in one.kinds],
            "group": [_group(kind, one.world_size, groups) for kind in one.kinds],
            "name": [kind.group for kind in one.kinds],
            "bytes": [kind.bytes or 0 for kind in one.kinds],
        }
    )
    calls = pd.DataFrame({name: one.calls.column(name) for name in one.calls.data})
    return calls.join(kinds, on="kind").assign(rank=at)


def _group(kind: CallKind, world: int | None, groups: dict[tuple[int, ...], int]) -> int:
    """The number of a call's group by its ranks; MISSING where nothing says them."""
    ranks = kind.ranks
    if ranks is None and world is not None and kind.group_size == world:
        ranks = tuple(range(world))
    return MISSING if ranks is None else groups.setdefault(ranks, len(groups))


@dataclass(frozen=True)
class CommonClock:
    """One clock for all ranks: ``t + offset + drift * (t - origin)`` of a time on a rank's own."""

    offset_ns: FloatArray  # per rank; nan where no call ties it to another
    drift: FloatArray  # per rank, ns per ns
    origin_ns: IntArray  # per rank: the middle of its calls
    residual_ns: float  # 95th percentile of what the ends of a call still differ by; nan without calls
    clock: IntArray  # per rank: ranks of one number share a clock; MISSING where no call ties it to another

    def aligned(self, rank: IntArray, when_ns: IntArray) -> FloatArray:
        """Times of some ranks (positions) on the common clock, ns."""
        since = when_ns - self.origin_ns[rank]
        return since + self.drift[rank] * since + (self.origin_ns[rank] + self.offset_ns[rank])


def common_clock(matched: Matched, ranks: int) -> CommonClock:
    """Offsets and drifts by which the ends of matching calls fall together, as medians.

    All ranks of a group have the result of an all-reduce or of an exchange at the same moment, but for the
    last hop, so their ends tell the clocks apart; the residual says how far that holds.
    """
    origin = np.zeros(ranks, np.int64)
    offset, drift = np.full(ranks, np.nan), np.zeros(ranks)
    if not len(matched):
        return CommonClock(offset, drift, origin, float("nan"), np.full(ranks, MISSING, np.int64))
    rank, call, end = matched.rank, matched.call, matched.end_ns
    by_rank = [np.flatnonzero(rank == at) for at in range(ranks)]
    for at, rows in enumerate(by_rank):
        if len(rows):
            origin[at] = int(np.median(end[rows]))
    base = int(origin[rank].min())
    own = (end - base).astype(np.float64)  # small enough for a float to hold nanoseconds
    offset, clock = _first_offsets(matched, by_rank, own)
    since = own - (origin[rank] - base)
    steady = _fitted(call, own, since, by_rank, offset, drifting=False)
    drifting = _fitted(call, own, since, by_rank, offset, drifting=True)
    offset, drift, residual = drifting if drifting[2] < _BETTER * steady[2] else steady
    return CommonClock(offset, drift, origin, residual, clock)


def _fitted(
    call: IntArray,
    own: FloatArray,
    since: FloatArray,
    by_rank: list[IntArray],
    start: FloatArray,
    *,
    drifting: bool,
) -> tuple[FloatArray, FloatArray, float]:
    """Offsets, drifts and residual, in turns: the middle of a call's ends, then each rank against it."""
    offset, drift = start.copy(), np.zeros(len(start))
    told = own.copy()

    def tell(rows: IntArray, at: int) -> None:
        told[rows] = own[rows] + offset[at] + drift[at] * since[rows]

    for at, rows in enumerate(by_rank):
        tell(rows, at)
    for _ in range(_ROUNDS):
        left = _middle(call, told) - told
        before = told.copy()
        for at, rows in enumerate(by_rank):
            if not len(rows):
                continue
            if drifting and len(rows) >= _DRIFT_CALLS:
                slope = _slope(since[rows], left[rows])
                drift[at] += slope
                left[rows] -= slope * since[rows]
            offset[at] += float(np.median(left[rows]))
            tell(rows, at)
        if np.abs(told - before).max() < 1:
            break
    residual = float(np.percentile(np.abs(_middle(call, told) - told), 95))
    return offset, drift, residual


def _first_offsets(matched: Matched, by_rank: list[IntArray], own: FloatArray) -> tuple[FloatArray, IntArray]:
    """Offsets by the calls that ranks share, from the rank with most calls on, as far as calls lead.

    Ranks that no call ties to those before begin a clock of their own: the second value numbers the clocks.
    """
    offset, clock = np.full(len(by_rank), np.nan), np.full(len(by_rank), MISSING, np.int64)
    told = np.full(len(matched), np.nan)  # end of a call on its common clock, where known
    waiting = {at for at, rows in enumerate(by_rank) if len(rows)}
    clocks = 0
    while waiting:
        shared = {at: int(np.isfinite(told[matched.call[by_rank[at]]]).sum()) for at in sorted(waiting)}
        tied = sorted((at for at in shared if shared[at]), key=lambda at: -shared[at])
        if not tied:
            tied = [max(sorted(waiting), key=lambda at: len(by_rank[at]))]
            clocks += 1
        for at in tied:
            waiting.discard(at)
            calls, ends = matched.call[by_rank[at]], own[by_rank[at]]
            offset[at] = float(np.nanmedian(told[calls] - ends)) if shared[at] else 0.0
            clock[at] = clocks - 1
            told[calls] = np.where(np.isfinite(told[calls]), told[calls], ends + offset[at])
    return offset, clock


def _middle(call: IntArray, values: FloatArray) -> FloatArray:
    """For each row the median over the rows of its call."""
    order = np.lexsort((values, call))
    _, start, count = np.unique(call[order], return_index=True, return_counts=True)
    low, high = start + (count - 1) // 2, start + count // 2
    medians = (values[order][low] + values[order][high]) / 2
    out = np.empty(len(values))
    out[order] = np.repeat(medians, count)
    return out


def _slope(x: FloatArray, y: FloatArray) -> float:
    """Slope by the medians of the outer thirds: one strange call does not turn it."""
    order = np.argsort(x)
    third = max(1, len(x) // 3)
    low, high = order[:third], order[-third:]
    run = float(np.median(x[high]) - np.median(x[low]))
    return float(np.median(y[high]) - np.median(y[low])) / run if run > 0 else 0.0


__all__ = ["TOGETHER", "CommonClock", "Matched", "common_clock", "match"]
