"""What ran beside each GPU event, and what that cost calls of one shape and one kernel.

A GEMM beside a collective gets fewer SMs (a CTA of NCCL has an SM for itself) and less of the memory's
bandwidth; its shape is not to blame for that. What it costs is read off the trace alone: the same kernel
with the same sizes runs beside a collective in one place and beside nothing in another.

- beside: for how much of an event another stream of its device works. A stream runs one thing after the
  other, so what overlaps within it is the end of a kernel with the start of the next, and nothing beside it.
- a call is undisturbed where that is at most ``UNDISTURBED`` of its time.
- alone: the median of the undisturbed calls, where there are ``ENOUGH`` of them.
- excess: time - alone of each disturbed call. It is counted where its mean over the disturbed calls is more
  than the spread of the undisturbed ones explains, else it is nothing.
- without enough undisturbed calls, calls that ran beside others for different shares f of their time tell
  alone: a call that is slower by one factor while it does runs at the rate 1 / time = (1 - c f) / alone, a
  line whose value at f = 0 is wanted. It counts where its standard error is small and some call ran beside
  nothing for at least half of its time; else the excess is not known.

Sources: pytorch/pytorch#143988 and #147966 (persistent GEMMs twice as slow beside NCCL); NVIDIA/nccl#689
(a CTA of NCCL shares its SM with no other kernel), NVIDIA/nccl#1428 (bandwidth).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.trace import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]

#: Of a call's time: so little beside it disturbs nothing that can be seen.
UNDISTURBED = 0.01
#: Fewer calls do not tell what a call takes alone, nor which of them is the odd one.
ENOUGH = 3
#: A call of so many times the median of its like did not take that for its shape: the same kernel multiplies
#: the same sizes. Clocks and kernels that share the GPU stretch a call by less: 2.8 times at most in 52
#: public traces, but for two calls of 13 and 194 times that stalled.
STALLED = 3.0
#: Standard errors by which disturbed calls have to be slower, and the least share of their time.
_SURE, _LEAST = 3.0, 0.01
#: For a line: calls, the least share of time beside others of some call, and the error of its value at none.
_FOR_A_LINE, _HALF, _CLOSE = 8, 0.5, 0.015
_SIGMA = 1.4826  # median absolute deviation -> standard deviation of a normal distribution


def beside(begin: IntArray, end: IntArray, stream: IntArray, marked: BoolArray) -> tuple[IntArray, IntArray]:
    """Of each event of one device: ns with a ``marked`` event on another stream, and with others only.

    One sweep over the bounds of all events: O(n log n) for their order, then linear.

    >>> begin, end = np.array([0, 10, 2]), np.array([10, 20, 14])
    >>> communication, others = beside(begin, end, np.array([7, 7, 20]), np.array([False, False, True]))
    >>> communication.tolist(), others.tolist()
    ([8, 4, 0], [0, 0, 12])
    """
    starts, ends = _busy(begin, end, stream)
    when = np.concatenate([starts, ends, begin[marked], end[marked]])
    if not len(when):
        return np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    count, none = np.ones(len(starts), np.int64), np.zeros(int(marked.sum()), np.int64)
    streams = np.concatenate([count, -count, none, none])
    collectives = np.concatenate([0 * count, 0 * count, none + 1, none - 1])
    order = np.argsort(when, kind="stable")
    when = when[order]
    several = np.cumsum(streams[order]) >= 2
    communicates = np.cumsum(collectives[order]) > 0

    def within(flag: BoolArray) -> IntArray:
        """Time of each event in which the flag holds."""
        passed = np.append(0, np.cumsum(np.where(flag[:-1], np.diff(when), 0)))

        def until(time: IntArray) -> IntArray:
            at = np.clip(np.searchsorted(when, time, side="right") - 1, 0, None)
            out: IntArray = passed[at] + np.where(flag[at], time - when[at], 0)
            return out

        return until(end) - until(begin)

    told, either = within(several & communicates), within(several)
    return np.where(marked, 0, told), np.where(marked, either, either - told)


def _busy(begin: IntArray, end: IntArray, stream: IntArray) -> tuple[IntArray, IntArray]:
    """The spans in which each stream works, each moment of a stream once."""
    order = np.lexsort((begin, stream))
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        if len(rows):
            reach = np.maximum.accumulate(end[rows])
            fresh = np.append(True, begin[rows][1:] > reach[:-1])
            starts.append(begin[rows][fresh])
            ends.append(np.append(reach[np.flatnonzero(fresh)[1:] - 1], reach[-1]))
    return np.concatenate(starts), np.concatenate(ends)


@dataclass(frozen=True, slots=True)
class Paces:
    """Per call, ns; NaN = not known."""

    alone: FloatArray  # what calls like it take beside nothing
    usual: FloatArray  # the median of calls like it in its condition, beside nothing or beside something
    excess: FloatArray  # what it took because of what ran beside it, without a stall; 0 where undisturbed


def paces(dur_ns: IntArray, beside_ns: IntArray, alike: IntArray) -> Paces:
    """What calls take alone and how much longer beside other work; ``alike`` numbers shape and kernel.

    Calls with ``alike`` < 0 have no like: of them nothing is known but that undisturbed ones lose nothing.

    >>> found = paces(np.array([10, 10, 10, 25]), np.array([0, 0, 0, 25]), np.zeros(4, np.int64))
    >>> found.alone.tolist(), found.excess.tolist()
    ([10.0, 10.0, 10.0, 10.0], [0.0, 0.0, 0.0, 15.0])
    """
    disturbed = beside_ns > UNDISTURBED * dur_ns
    alone, usual = np.full(len(dur_ns), np.nan), np.full(len(dur_ns), np.nan)
    excess = np.where(disturbed, np.nan, 0.0)
    order = np.argsort(alike, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(alike[order])) + 1):
        slow, quiet = rows[disturbed[rows]], rows[~disturbed[rows]]
        if not len(rows) or alike[rows[0]] < 0 or not len(slow):
            continue
        if len(quiet) < ENOUGH:
            alone[rows], error = _from_shares(dur_ns[rows], beside_ns[rows])
            more = dur_ns[slow] - alone[slow]
            excess[slow] = np.where(more.mean() > np.maximum(_SURE * error, _LEAST * alone[slow]), more, 0.0)
            excess[slow[np.isnan(alone[slow])]] = np.nan
            continue
        alone[rows] = np.median(dur_ns[quiet])
        usual[quiet], usual[slow] = alone[quiet], np.median(dur_ns[slow])
        excess[slow] = _excess(dur_ns[slow], dur_ns[quiet])
    return Paces(alone, usual, excess)


def _from_shares(dur_ns: IntArray, beside_ns: IntArray) -> tuple[float, float]:
    """What calls take alone by the shares of time they run beside others, and its error; NaN = untold."""
    share, rate = beside_ns / np.maximum(dur_ns, 1), 1 / np.maximum(dur_ns, 1)
    spread = float(np.square(share - share.mean()).sum())
    if len(share) < _FOR_A_LINE or share.min() > _HALF or spread <= 0:
        return float("nan"), float("nan")
    slope = float(((share - share.mean()) * (rate - rate.mean())).sum()) / spread
    at_none = float(rate.mean() - slope * share.mean())
    left = float(np.square(rate - at_none - slope * share).sum()) / (len(share) - 2)
    error = np.sqrt(left * (1 / len(share) + share.mean() ** 2 / spread))
    if slope > 0 or at_none <= 0 or error > _CLOSE * at_none:
        return float("nan"), float("nan")
    return 1 / at_none, error / at_none**2


def _excess(slow: IntArray, quiet: IntArray) -> Any:
    """What each disturbed call took beyond the undisturbed ones; 0 for all where that can be chance."""
    alone, usual = float(np.median(quiet)), float(np.median(slow))
    held = np.where(slow > STALLED * usual, usual, slow) - alone
    spread = _SIGMA * float(np.median(np.abs(quiet - alone)))
    error = spread * np.sqrt(1 / len(slow) + 1 / len(quiet))
    return held if held.mean() > max(_SURE * error, _LEAST * alone) else np.zeros(len(slow))
