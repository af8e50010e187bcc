"""Two sequences of keys, followed from a place at which they agree, over jumps where they part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from tracelens.trace import IntArray

Run = tuple[int, int, int]  # (first in the pattern, first in the reference, length)

WINDOW = 12  # keys that agree and change: what a match needs at least
#: How often the keys of a window must change: a row of equal kernels (a fill per parameter) is no
#: evidence of a place.
_CHANGES = 3
_AGREE = 6  # keys that must agree behind a jump of one; longer jumps ask for more
_ENOUGH = 24  # keys behind a jump of any length that are enough
LAYER = 8  # keys; a jump this long can be a layer: what follows has to prove its place anew
_NEAR = 96  # keys on either side that are compared as a whole where the sequences part
_SAMPLES, _PLACES = 8, 32  # rarest windows that are tried as the start, and places of each


class Pair:
    """Pattern and reference, read in one direction."""

    def __init__(self, pattern: IntArray, reference: IntArray, *, around: bool):
        self.pattern = pattern
        self.n, self.m = len(pattern), len(reference)
        self.around = around
        # twice, so that every window that runs over the end lies in one piece
        self.reference = np.concatenate([reference, reference]) if around else reference
        self._near: dict[tuple[bytes, bytes], tuple[int, int] | None] = {}

    @cached_property
    def mirror(self) -> Pair:
        """The same read from the end."""
        pair = Pair(self.pattern[::-1], self.reference[: self.m][::-1], around=self.around)
        pair.__dict__["mirror"] = self
        return pair

    def mirrored(self, i: int, j: int) -> tuple[int, int]:
        """A place in the mirror's coordinates."""
        return self.n - 1 - i, self.m - 1 - (j % self.m if self.around else j)

    def turned(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Runs of the mirror in the coordinates of this pair."""
        for i, j, n in runs:
            yield self.n - i - n, (self.m - j - n) % self.m if self.around else self.m - j - n, n

    @cached_property
    def _windows(self) -> tuple[IntArray, IntArray]:
        """Hash of the window that begins at each element; windows that prove nothing equal nothing."""
        hashes = []
        for side, keys in enumerate((self.pattern, self.reference)):
            found = _hashes(keys, WINDOW)
            changes = np.cumsum(np.append(0, keys[1:] != keys[:-1]))
            poor = changes[WINDOW - 1 :] - changes[: len(found)] < _CHANGES
            found[poor] = side
            hashes.append(found)
        return hashes[0], hashes[1]

    @cached_property
    def places(self) -> tuple[IntArray, IntArray, IntArray]:
        """(order, low, high): window i of the pattern stands at order[low[i]:high[i]] of the reference."""
        ours, theirs = self._windows
        theirs = theirs[: self.m]
        order = np.argsort(theirs, kind="stable")
        low, high = (np.searchsorted(theirs[order], ours, side=side) for side in ("left", "right"))
        return order, low, high

    def start(self) -> tuple[int, int] | None:
        """(pattern, reference) of the place to start from: the longest agreement at a rarest window."""
        order, low, high = self.places
        count = high - low
        if not count.any():
            return None
        rarest = np.flatnonzero(count == count[count > 0].min())
        best: tuple[int, int, int, int] | None = None
        for i in rarest[spread(len(rarest), _SAMPLES)].tolist():
            places = order[low[i] : high[i]]
            tried = places[spread(len(places), _PLACES)]
            if not self.around:  # and those that keep the ends together
                lines = np.searchsorted(places, [i, i + self.m - self.n])
                tried = np.append(tried, places[np.minimum(lines, len(places) - 1)])
            for j in tried.tolist():
                # what hangs over the reference's ends cannot match
                over = max(0, i - j) + max(0, self.n - i - self.m + j) if not self.around else 0
                best = max(best or (0, 0, 0, 0), (self._both_ways(i, j), -over, i, j))
        return None if best is None else best[2:]

    def _both_ways(self, i: int, j: int) -> int:
        """Length of the agreement around a place."""
        other_i, other_j = self.mirrored(i - 1, j - 1)
        back = 0
        if other_i < self.n and other_j < self.m:
            back = agreement(self.mirror.pattern, other_i, self.mirror.reference, other_j)
        return back + agreement(self.pattern, i, self.reference, j)

    def follow(self, i: int, j: int, *, far: bool = True, until: int | None = None) -> Iterator[Run]:
        """Runs that agree from a place on, to ``until``; with ``far`` also over jumps as long as a layer."""
        until = self.n if until is None else until
        while i < until:
            j = j % self.m if self.around else j
            if j >= self.m:
                break
            run = agreement(self.pattern[:until], i, self.reference, j)
            if run:
                yield i, j, run
                i, j = i + run, j + run
                if j == len(self.reference):
                    continue
                j = j % self.m if self.around else j
            if i >= until:
                break
            jump = self._nearby(i, j) or (self._anywhere(i, j) if far else None)
            if jump is None or not (far or max(jump) < LAYER):
                break
            i, j = i + jump[0], j + jump[1]

    def _nearby(self, i: int, j: int) -> tuple[int, int] | None:
        """The jump (pattern, reference) within the window that the keys behind it ask for."""
        best, longest = None, 0
        for jump in ((0, 1), (1, 0), (1, 1)):
            ours = self.pattern[i + jump[0] : i + jump[0] + 4 * _AGREE]
            theirs = self.reference[j + jump[1] : j + jump[1] + 4 * _AGREE]
            run = agreement(ours, 0, theirs, 0)
            ending = i + jump[0] + run == self.n  # nothing is left to agree
            if run > longest and (run >= _AGREE or (ending and run >= _AGREE // 2)):
                best, longest = jump, run
        if best is not None:
            return best
        ours, theirs = self.pattern[i : i + _NEAR], self.reference[j : j + _NEAR]
        key = (ours.tobytes(), theirs.tobytes())
        if key not in self._near:
            self._near[key] = _first_jump(ours, theirs)
        return self._near[key]

    def _anywhere(self, i: int, j: int) -> tuple[int, int] | None:
        """The shortest jump to a window that both sequences have, however far."""
        ours, theirs = self._windows
        reach = 4 * _NEAR
        while True:
            first, at_first = np.unique(ours[i : i + reach], return_index=True)
            second, at_second = np.unique(theirs[j : j + min(reach, self.m)], return_index=True)
            _, x, y = np.intersect1d(first, second, assume_unique=True, return_indices=True)
            everything = i + reach >= len(ours) and reach >= self.m
            if len(x):
                jumps = at_first[x] + at_second[y]
                best = int(jumps.argmin())
                if everything or jumps[best] <= reach:
                    return int(at_first[x[best]]), int(at_second[y[best]])
            if everything:
                return None
            reach *= 4


def spread(size: int, count: int) -> IntArray:
    """At most ``count`` indices below ``size``, evenly spread, with both ends."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))


def agreement(first: IntArray, i: int, second: IntArray, j: int) -> int:
    """How many keys agree from first[i] and second[j] on."""
    limit = min(len(first) - i, len(second) - j)
    done, size = 0, 64
    while done < limit:
        part = min(size, limit - done)
        differ = first[i + done : i + done + part] != second[j + done : j + done + part]
        at = int(differ.argmax())
        if differ[at]:
            return done + at
        done, size = done + part, min(4 * size, 1 << 16)
    return max(done, 0)


def _first_jump(ours: IntArray, theirs: IntArray) -> tuple[int, int] | None:
    """The jump with which the cheapest way through the two windows begins; None when it leads nowhere.

    A way costs one for each key it leaves out; it may end anywhere on the windows' far edges, where it
    has the best balance of keys that agree over keys left out.
    """
    a, b = len(ours), len(theirs)
    if not a or not b:
        return None
    columns = np.arange(b + 1)
    cost = np.empty((a + 1, b + 1), np.int64)
    cost[0] = columns
    for row in range(a):
        best = cost[row] + 1
        best[1:] = np.where(ours[row] == theirs, np.minimum(best[1:], cost[row, :-1]), best[1:])
        cost[row + 1] = columns + np.minimum.accumulate(best - columns)
    total = np.arange(a + 1)[:, None] + columns[None, :]
    balance = total - 3 * cost  # twice (agreeing - left out)
    edge = np.full_like(balance, np.iinfo(np.int64).min)
    edge[-1], edge[:, -1] = balance[-1], balance[:, -1]
    x, y = divmod(int(edge.argmax()), b + 1)
    steps: list[bool] = []  # from the end: does the step agree?
    jump = None
    while x or y:
        here = cost[x, y]
        if x and y and ours[x - 1] == theirs[y - 1] and cost[x - 1, y - 1] == here:
            x, y = x - 1, y - 1
            jump = (x, y)
            steps.append(True)
        else:
            x, y = (x - 1, y) if x and cost[x - 1, y] == here - 1 else (x, y - 1)
            steps.append(False)
    if jump is None:
        return None
    behind = steps[::-1][sum(jump) :]
    wanted = min(_AGREE + 2 + sum(jump) // 4, _ENOUGH)
    agreeing = np.cumsum(behind)
    if agreeing[-1] < wanted:
        return None
    return jump if np.searchsorted(agreeing, wanted) < wanted * 3 // 2 else None


def _hashes(keys: IntArray, length: int) -> IntArray:
    """A 63-bit hash of the window of ``length`` keys that begins at each element; 0 and 1 are not used."""
    size = max(0, len(keys) - length + 1)
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    out = np.zeros(size, np.uint64)
    for at in range(length):
        out *= np.uint64(0x94D049BB133111EB)
        out += mixed[at : at + size]
    return (out >> np.uint64(1)).astype(np.int64) | np.int64(2)
