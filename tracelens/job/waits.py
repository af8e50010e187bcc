"""Who waits for whom: the parts of each rank's steps, and what each late arrival costs the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.job.columns import IntArray, merged
from tracelens.job.matching import CommonClock, FloatArray, Matched
from tracelens.job.summary import RankSummary
from tracelens.trace.spans import covered
from tracelens.trace.tables import MISSING

#: A skew within so many residuals of the clocks is none that could be told.
_RESIDUALS = 2.0
#: A late rank is compared with about so many of those that are not.
_COMPARED = 16
PARTS = ("computing", "communication", "copies", "input", "idle")


@dataclass(frozen=True)
class Spans:
    """Merged spans of one rank, ns on its own clock."""

    begin: IntArray
    end: IntArray

    def within(self, begin: IntArray, end: IntArray) -> IntArray:
        """Covered time of each window, ns; a window that ends before it begins has none."""
        return covered(self.begin, self.end, begin, np.maximum(begin, end))

    def also(self, other: Spans) -> Spans:
        """The union."""
        return Spans(*merged(np.append(self.begin, other.begin), np.append(self.end, other.end)))


@dataclass(frozen=True)
class Activity:
    """What one rank's GPU does, and when its CPU waits for a batch."""

    computing: Spans
    communicating: Spans
    working: Spans  # computing or communicating
    busy: Spans
    fed: Spans  # busy, or waiting for a batch

    def parts(self, begin: IntArray, end: IntArray) -> FloatArray:
        """ns of each of ``PARTS`` (rows) in each window (columns); they add up to the windows."""
        computing, working = self.computing.within(begin, end), self.working.within(begin, end)
        busy, fed = self.busy.within(begin, end), self.fed.within(begin, end)
        length = np.maximum(0, end - begin)
        return np.stack([computing, working - computing, busy - working, fed - busy, length - fed]).astype(
            float
        )


def activity(rank: RankSummary) -> Activity:
    """The spans of a summary."""
    computing, communicating, busy, waiting = (
        Spans(columns.column("begin_ns"), columns.column("end_ns"))
        for columns in (rank.computing, rank.communicating, rank.busy, rank.input)
    )
    return Activity(computing, communicating, computing.also(communicating), busy, busy.also(waiting))


@dataclass(frozen=True)
class JobWaits:
    """Waiting at calls, one row per row of ``Matched``, and what it costs by step."""

    start: FloatArray  # on the common clock, ns
    last: IntArray  # per call: position of the rank that arrives last; MISSING where that cannot be told
    skew_ns: FloatArray  # per call: between the first and the last arrival
    late: npt.NDArray[np.bool_]  # of those that the others of the call wait for, fewer than half of it
    send_ns: FloatArray  # per call: from the last arrival to the end
    wait_ns: IntArray  # from its own arrival to the last one; 0 where that cannot be told
    exposed_ns: IntArray  # of that, without any compute kernel

    def told(self) -> IntArray:
        """Calls whose last rank is known."""
        return np.flatnonzero(self.last != MISSING)


def find_waits(matched: Matched, clock: CommonClock, ranks: Sequence[Activity]) -> JobWaits:
    """Arrivals on the common clock; no skew is claimed within the clocks' residual."""
    calls = len(matched)
    start, end = (clock.aligned(matched.rank, when) for when in (matched.start_ns, matched.end_ns))
    tied = np.isfinite(start)
    first, latest, ends = np.full(calls, np.inf), np.full(calls, -np.inf), np.full(calls, -np.inf)
    np.minimum.at(first, matched.call[tied], start[tied])
    np.maximum.at(latest, matched.call[tied], start[tied])
    np.maximum.at(ends, matched.call[tied], end[tied])
    several = np.bincount(matched.call[tied], minlength=calls) > 1
    first, latest, ends = (np.where(several, one, 0.0) for one in (first, latest, ends))
    skew = latest - first
    clear = several & (skew > _RESIDUALS * clock.residual_ns)
    last = np.full(calls, MISSING, np.int64)
    at_last = tied & (start == latest[matched.call]) & clear[matched.call]
    last[matched.call[at_last]] = matched.rank[at_last]
    wait = np.where(tied & clear[matched.call], latest[matched.call] - start, 0.0)
    # what ends before the last has arrived is no wait for it: the calls of a group that was mismatched
    wait = np.clip(np.rint(wait), 0, matched.end_ns - matched.start_ns).astype(np.int64)
    exposed = np.zeros(len(wait), np.int64)
    for at, one in enumerate(ranks):
        rows = np.flatnonzero((matched.rank == at) & (wait > 0))
        begin = matched.start_ns[rows]
        exposed[rows] = wait[rows] - one.computing.within(begin, begin + wait[rows])
    late = _late(matched, start, last, _RESIDUALS * clock.residual_ns)
    return JobWaits(start, last, skew, late, np.where(several, ends - latest, np.nan), wait, exposed)


def _late(matched: Matched, start: FloatArray, last: IntArray, least: float) -> npt.NDArray[np.bool_]:
    """Arrivals behind the widest gap in the later half of a call's, where the gap can be told."""
    late = np.zeros(len(start), np.bool_)
    rows_of = RowsByCall(matched)
    for call in np.flatnonzero(last != MISSING).tolist():
        rows = rows_of(call)
        order = rows[np.argsort(-start[rows], kind="stable")]
        gaps = start[order[:-1]] - start[order[1:]]
        gaps = gaps[: max(1, (len(order) - 1) // 2)]
        many = int(np.argmax(gaps)) + 1
        if gaps[many - 1] > least:
            late[order[:many]] = True
    return late


def late_parts(
    matched: Matched, waits: JobWaits, rank: int, ranks: Sequence[RankSummary], doing: Sequence[Activity]
) -> FloatArray:
    """Why a rank is late: what it does more than the others since they last were together, ns.

    Per call at which it is late (columns) and part (``PARTS``, rows): its own time from the end of the call
    before to its arrival, less the median of ranks of that call that are not late, over the same stretch.
    """
    calls = matched.call[waits.late & (matched.rank == rank)]
    rows_of = RowsByCall(matched)
    own = np.flatnonzero(matched.rank == rank)
    own = own[np.argsort(matched.end_ns[own])]
    found = np.zeros((len(PARTS), len(calls)))
    for column, call in enumerate(calls.tolist()):
        members = rows_of(call)
        arrival = int(matched.start_ns[members[matched.rank[members] == rank][0]])
        before = int(np.searchsorted(matched.end_ns[own], arrival, side="right")) - 1
        together = rows_of(int(matched.call[own[before]])) if before >= 0 else None
        step = int(matched.step[call])
        if together is not None and matched.step[matched.call[together[0]]] != step:
            together = None
        punctual = members[~waits.late[members]]
        compared = punctual[:: max(1, len(punctual) // _COMPARED)].tolist()
        parts = {}
        for row in [*compared, *members[matched.rank[members] == rank].tolist()]:
            who = int(matched.rank[row])
            since = _since(matched, together, who, ranks[who], step)
            if since is not None:
                window = np.array([since]), np.array([matched.start_ns[row]])
                parts[who] = doing[who].parts(*window)[:, 0]
        others = [values for who, values in parts.items() if who != rank]
        if rank in parts and others:
            found[:, column] = parts[rank] - np.median(others, axis=0)
    return found


def _since(matched: Matched, together: IntArray | None, who: int, rank: RankSummary, step: int) -> int | None:
    """End of the call before on that rank; without one, the begin of its step."""
    if together is not None:
        rows = together[matched.rank[together] == who]
        return int(matched.end_ns[rows[0]]) if len(rows) else None
    return next((one.start_ns for one in rank.steps if one.index == step), None)


class RowsByCall:
    """Rows of ``Matched`` by call; they are sorted by it."""

    def __init__(self, matched: Matched):
        self._bounds = np.searchsorted(matched.call, np.arange(len(matched) + 1))

    def __call__(self, call: int) -> IntArray:
        return np.arange(self._bounds[call], self._bounds[call + 1])


__all__ = ["PARTS", "Activity", "RowsByCall", "Spans", "JobWaits", "activity", "find_waits", "late_parts"]
