"""Who waits for whom: the parts of each rank's steps, and what each late arrival costs the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.job.matching import CommonClock, FloatArray, Matched
from tracelens.job.summary import RankSummary
from tracelens.trace import IntArray
from tracelens.trace.nesting import covered, merged
from tracelens.trace.tables import MISSING

#: A skew within so many residuals of the clocks is none that could be told. Of two ranks the residual is half
#: of what the ends of a call differ by, of one call in twenty more; so this is twice that.
RESIDUALS = 4.0
#: A late rank is compared with about so many of those that are not.
_COMPARED = 16
PARTS = ("computing", "communication", "copies", "input", "idle")
#: What makes a rank late: those, and that its step begins later.
LATE_BY = (*PARTS, "begin")


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
    clear = several & (skew > RESIDUALS * clock.residual_ns)
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
    late = _late(matched, start, last, RESIDUALS * clock.residual_ns)
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
    matched: Matched,
    waits: JobWaits,
    late: Sequence[int],
    ranks: Sequence[RankSummary],
    doing: Sequence[Activity],
) -> dict[int, FloatArray]:
    """Why ranks are late: what each does more than the others since they last were together, ns by part.

    For each call at which it is late: its own time from the end of the call before to its arrival, less the
    median of ranks of that call that are not late, over the same stretch; ``LATE_BY``, summed over the calls.
    Before the first call of all the stretch is from the step's begin, which can be late itself.
    """
    windows = _Windows(matched, ranks)
    rows_of = RowsByCall(matched)
    asked: list[tuple[int, int, list[int]]] = []  # late rank, its own stretch, those of the others
    begins: dict[int, float] = dict.fromkeys(late, 0.0)
    for rank in late:
        for call in matched.call[waits.late & (matched.rank == rank)].tolist():
            members = rows_of(call)
            together = windows.before(rank, call)
            punctual = members[~waits.late[members]]
            compared = punctual[:: max(1, len(punctual) // _COMPARED)]
            row = int(members[matched.rank[members] == rank][0])
            own = windows.ask(row, together)
            others = {other: windows.ask(other, together) for other in compared.tolist()}
            known = {other: at for other, at in others.items() if at is not None}
            if own is not None and known:
                asked.append((rank, own, list(known.values())))
                if together is None:
                    usual = np.median(
                        [waits.start[other] - windows.length(at) for other, at in known.items()]
                    )
                    begins[rank] += float(waits.start[row] - windows.length(own) - usual)
    parts = windows.parts(doing)
    found = {rank: np.zeros(len(PARTS)) for rank in late}
    for rank, at, beside in asked:
        found[rank] += parts[:, at] - np.median(parts[:, beside], axis=1)
    return {rank: np.append(found[rank], begins[rank]) for rank in late}


class _Windows:
    """Stretches of time whose parts are asked for; each rank's activity is unpacked once for all of them."""

    def __init__(self, matched: Matched, ranks: Sequence[RankSummary]):
        self._matched, self._ranks = matched, ranks
        self._rows_of = RowsByCall(matched)
        self._own: dict[int, IntArray] = {}
        self._asked: list[tuple[int, int, int]] = []  # rank, begin, end

    def before(self, rank: int, call: int) -> int | None:
        """The call that ended last on that rank before it arrived at this one."""
        matched = self._matched
        if rank not in self._own:
            rows = np.flatnonzero(matched.rank == rank)
            self._own[rank] = rows[np.argsort(matched.end_ns[rows], kind="stable")]
        own = self._own[rank]
        arrival = matched.start_ns[self._row(call, rank)]
        at = int(np.searchsorted(matched.end_ns[own], arrival, side="right")) - 1
        return int(matched.call[own[at]]) if at >= 0 else None

    def ask(self, row: int, together: int | None) -> int | None:
        """Number of the stretch to that arrival: from the end of the call before, or the step's begin."""
        rank, step = int(self._matched.rank[row]), int(self._matched.step[self._matched.call[row]])
        if together is None:
            since = next((one.start_ns for one in self._ranks[rank].steps if one.index == step), None)
        else:
            there = self._row(together, rank)
            since = None if there is None else int(self._matched.end_ns[there])
        if since is None:
            return None
        self._asked.append((rank, since, int(self._matched.start_ns[row])))
        return len(self._asked) - 1

    def _row(self, call: int, rank: int) -> int | None:
        rows = self._rows_of(call)
        at = int(np.searchsorted(self._matched.rank[rows], rank))
        return int(rows[at]) if at < len(rows) and self._matched.rank[rows[at]] == rank else None

    def length(self, at: int) -> int:
        """ns of a stretch that was asked for."""
        _, begin, end = self._asked[at]
        return end - begin

    def parts(self, doing: Sequence[Activity]) -> FloatArray:
        """``PARTS`` (rows) of all stretches (columns), ns."""
        asked = np.array(self._asked, np.int64).reshape(-1, 3)
        found = np.zeros((len(PARTS), len(asked)))
        for rank in np.unique(asked[:, 0]).tolist():
            mine = np.flatnonzero(asked[:, 0] == rank)
            found[:, mine] = doing[rank].parts(asked[mine, 1], asked[mine, 2])
        return found


class RowsByCall:
    """Rows of ``Matched`` by call; they are sorted by it."""

    def __init__(self, matched: Matched):
        self._bounds = np.searchsorted(matched.call, np.arange(len(matched) + 1))

    def __call__(self, call: int) -> IntArray:
        return np.arange(self._bounds[call], self._bounds[call + 1])
