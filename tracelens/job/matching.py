"""Which call on one rank is which on the others, and one clock for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.errors import InputError
from tracelens.job.columns import rank_list
from tracelens.job.summary import NO_STEP, CallKind, RankSummary
from tracelens.trace import IntArray
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
    no_group: int  # of them, those whose group is not known

    def __len__(self) -> int:
        return len(self.step)


def match(ranks: Sequence[RankSummary]) -> Matched:
    """The n-th call of a collective in a group and a step is the n-th on every rank of the group.

    A rank with another number of calls in a group, collective and step than most is not matched there.
    """
    groups: dict[tuple[int, ...], int] = {}
    rows = _rows(ranks, groups)
    rows = rows[rows["collective"].isin(TOGETHER) & (rows["step"] != NO_STEP)]
    total = len(rows)
    rows = rows[rows["group"] != MISSING]
    grouped = len(rows)
    place = ["group", "name", "collective", "step"]
    rows = rows.sort_values(["rank", "start_ns"], kind="stable")
    many = rows.groupby([*place, "rank"])["start_ns"].transform("size")
    rows = rows.assign(many=many)
    ranks_with = rows.groupby([*place, "many"])["rank"].transform("nunique")
    of_all = rows.groupby(place)["rank"].transform("nunique")
    kept = rows[(ranks_with > 1) & (2 * ranks_with > of_all)].copy()
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
        no_group=total - grouped,
    )


def _rows(ranks: Sequence[RankSummary], groups: dict[tuple[int, ...], int]) -> pd.DataFrame:
    """One row per call and rank; ``groups`` numbers the groups that were met."""
    kinds = pd.DataFrame(
        [
            (kind.collective, _group(kind, one.world_size, groups), kind.group, kind.bytes or 0)
            for one in ranks
            for kind in one.kinds
        ],
        columns=["collective", "group", "name", "bytes"],
    )
    before = np.cumsum([0, *(len(one.kinds) for one in ranks)])  # kinds of the ranks before
    columns = {
        name: np.concatenate([one.calls.column(name) for one in ranks])
        for name in ("kind", "step", "start_ns", "end_ns", "launch_ns")
    }
    rank = np.repeat(np.arange(len(ranks)), [one.calls.length for one in ranks])
    kind = columns.pop("kind")
    many = np.diff(before)[rank]
    if ((kind < 0) | (kind >= many)).any():
        raise InputError("a summary names a kind of call that it does not list")
    rows: pd.DataFrame = kinds.iloc[kind + before[rank]].reset_index(drop=True)
    return rows.assign(**columns, rank=rank)


def _group(kind: CallKind, world: int | None, groups: dict[tuple[int, ...], int]) -> int:
    """The number of a call's group by its ranks; MISSING where nothing says them."""
    ranks = None if kind.ranks is None else rank_list(kind.ranks)
    if ranks is None and world is not None and kind.group_size == world:
        ranks = tuple(range(world))
    return MISSING if ranks is None else groups.setdefault(ranks, len(groups))


@dataclass(frozen=True)
class CommonClock:
    """One clock for all ranks: ``t + offset + drift * (t - origin)`` of a time on a rank's own."""

    offset_ns: FloatArray  # per rank; nan where no call ties it to another
    drift: FloatArray  # per rank, ns per ns
    origin_ns: IntArray  # per rank: the middle of its calls
    base_ns: int  # the common clock counts from here
    residual_ns: float  # 95th percentile of what the ends of a call still differ by; nan without calls
    clock: IntArray  # per rank: ranks of one number share a clock; MISSING where no call ties it to another

    def aligned(self, rank: IntArray, when_ns: IntArray) -> FloatArray:
        """Times of some ranks (positions) on the common clock, ns since its base."""
        since = when_ns - self.origin_ns[rank]
        return since + self.drift[rank] * since + ((self.origin_ns - self.base_ns) + self.offset_ns)[rank]


def common_clock(matched: Matched, ranks: int) -> CommonClock:
    """Offsets and drifts by which the ends of matching calls fall together, as medians.

    All ranks of a group have the result of an all-reduce or of an exchange at the same moment, but for the
    last hop, so their ends tell the clocks apart; the residual says how far that holds.
    """
    if not len(matched):
        nothing = np.zeros(ranks, np.int64)
        return CommonClock(
            np.full(ranks, np.nan), np.zeros(ranks), nothing, 0, float("nan"), nothing + MISSING
        )
    rank, call, end = matched.rank, matched.call, matched.end_ns
    base = int(end.min())
    own = (end - base).astype(np.float64)  # small enough for a float to hold nanoseconds
    origin = np.full(ranks, base)
    origin[np.unique(rank)] += _Medians(rank)(own).astype(np.int64)
    offset, clock = _first_offsets(matched, [np.flatnonzero(rank == at) for at in range(ranks)], own)
    since = own - (origin[rank] - base)
    steady = _fitted(call, rank, own, since, offset, drifting=False)
    drifting = _fitted(call, rank, own, since, offset, drifting=True)
    offset, drift, residual = drifting if drifting[2] < _BETTER * steady[2] else steady
    return CommonClock(offset, drift, origin, base, residual, clock)


def _fitted(
    call: IntArray, rank: IntArray, own: FloatArray, since: FloatArray, start: FloatArray, *, drifting: bool
) -> tuple[FloatArray, FloatArray, float]:
    """Offsets, drifts and residual, in turns: the middle of a call's ends, then each rank against it."""
    offset, drift = start.copy(), np.zeros(len(start))
    of_call, of_rank = _Medians(call), _Medians(rank)
    has = np.unique(rank)
    slopes = _Slopes(rank, since) if drifting else None
    told = own + offset[rank]
    for _ in range(_ROUNDS):
        left = of_call(told)[call] - told
        before = told
        if slopes is not None:
            slope = np.zeros(len(start))
            slope[slopes.ranks] = slopes(left)
            drift += slope
            left = left - slope[rank] * since
        offset[has] += of_rank(left)
        told = own + offset[rank] + drift[rank] * since
        if np.abs(told - before).max() < 1:
            break
    residual = float(np.percentile(np.abs(of_call(told)[call] - told), 95))
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


class _Medians:
    """The median of each key's values, in order of the keys."""

    def __init__(self, keys: IntArray):
        self._keys = keys
        _, self._start, self._count = np.unique(np.sort(keys), return_index=True, return_counts=True)

    def __call__(self, values: FloatArray) -> FloatArray:
        ordered = values[np.lexsort((values, self._keys))]
        low, high = self._start + (self._count - 1) // 2, self._start + self._count // 2
        middle: FloatArray = (ordered[low] + ordered[high]) / 2
        return middle


class _Slopes:
    """Slopes over time by the medians of the outer thirds: one strange call does not turn them.

    Of the ranks with ``_DRIFT_CALLS`` calls or more.
    """

    def __init__(self, rank: IntArray, since: FloatArray):
        order = np.lexsort((since, rank))
        every, start, count = np.unique(rank[order], return_index=True, return_counts=True)
        nth = np.arange(len(rank)) - np.repeat(start, count)
        many = np.repeat(count, count)
        third = np.maximum(1, many // 3)
        enough = many >= _DRIFT_CALLS
        self.ranks = every[count >= _DRIFT_CALLS]
        self._low, self._high = order[enough & (nth < third)], order[enough & (nth >= many - third)]
        self._of_low, self._of_high = _Medians(rank[self._low]), _Medians(rank[self._high])
        self._run = self._of_high(since[self._high]) - self._of_low(since[self._low])

    def __call__(self, values: FloatArray) -> FloatArray:
        rise = self._of_high(values[self._high]) - self._of_low(values[self._low])
        return np.divide(rise, self._run, out=np.zeros(len(rise)), where=self._run > 0)
