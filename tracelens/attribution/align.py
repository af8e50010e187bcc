"""Which element of one sequence of kernels corresponds to which of another.

A step of a transformer repeats its layer many times, so hardly any kernel is unique and the usual
anchors of a diff are rare. The alignment starts at the window of keys that is rarest in the reference
(near the embedding, the loss, the optimizer: the ends that tell layers apart), follows the two sequences
from there in both directions while they agree, and where they part looks for the nearest place at which
they agree again: a few keys on for an extra fill or copy, anywhere later for a whole part that is missing.
The farther the jump, the longer must the agreement behind it be.

Where a stretch fits in several places (one layer too few: which one is missing?) every element of it is
reported with its other places, so that only what all of them share is concluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Run = tuple[int, int, int]  # (first in the pattern, first in the reference, length)

#: Keys of a window that may found a match, longest first; and how often its key must change: a row of
#: equal kernels (a fill per parameter) is no evidence of a place.
_GRAMS = (24, 12)
_CHANGES = 3
_AGREE = 6  # keys that must agree behind a jump of one; longer jumps ask for more
_NEAR = 96  # keys on either side that are compared as a whole where the sequences part
_SAMPLES, _PLACES = 8, 32  # rarest windows that are tried as the start, and places of each
_DOUBTS = 8  # other places that are looked at for one stretch
_LAYER = 8  # keys; a jump this long can be a layer: what follows has to prove its place anew


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where each element of the pattern stands in the reference."""

    position: IntArray  # per element of the pattern: position in the reference; -1 = none
    #: (element, position) pairs: other places that fit an element as well as its position
    others: tuple[IntArray, IntArray]


def align(pattern: npt.ArrayLike, reference: npt.ArrayLike) -> IntArray:
    """For each key of ``pattern`` the position in ``reference`` it corresponds to, or -1.

    Positions increase strictly, and keys at matched positions are equal. Nothing is matched without a
    window of at least 12 changing keys that agrees; about linear in the two lengths.

    >>> keys = [*range(40)]
    >>> align([99, *keys[5:20], *keys[22:30]], keys).tolist()[:4]
    [-1, 5, 6, 7]
    """
    return find_alignment(pattern, reference, around=False).position


def find_alignment(pattern: npt.ArrayLike, reference: npt.ArrayLike, *, around: bool) -> Alignment:
    """Align, and say where else the elements fit.

    ``around``: the reference repeats (steps of a training loop), so the pattern may run over its end
    and go on at its start, as often as it needs; positions then increase but for those returns.
    """
    first, second = np.asarray(pattern, np.int64), np.asarray(reference, np.int64)
    out = np.full(len(first), -1, np.int64)
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64))
    pair: _Pair | None = None
    for gram in _GRAMS:
        if min(len(first), len(second)) < gram:
            continue
        longer, pair = pair, _Pair(first, second, gram=gram, around=around)
        if longer is not None and longer.found_frac >= pair.found_frac:
            pair = longer
        if pair.found_frac > 0.5:
            break
    start = pair.start() if pair is not None else None
    if pair is None or start is None:
        return Alignment(out, nothing)
    return _from_start(pair, start, out)


def _from_start(pair: _Pair, start: tuple[int, int], out: IntArray) -> Alignment:
    """Follow both directions from the start, then look where else each stretch fits."""
    i, j = start
    forward, backward = pair.follow(i, j), pair.mirror.follow(*pair.mirrored(i - 1, j - 1))
    _write(out, forward, pair.m)
    _write(out, pair.turned(backward), pair.m)
    elsewhere = pair.before_jumps(forward, out)
    # the same in the mirror's coordinates, and back
    turned = np.where(out >= 0, pair.m - 1 - out, -1)[::-1].copy()
    elsewhere += pair.turned(pair.mirror.before_jumps(backward, turned))
    out[:] = np.where(turned >= 0, pair.m - 1 - turned, -1)[::-1]
    elsewhere += pair.of_stretches(out) + pair.of_unique(out)
    elements = np.concatenate([np.arange(i, i + n) for i, _, n in elsewhere] or [np.empty(0, np.int64)])
    places = np.concatenate([np.arange(j, j + n) % pair.m for _, j, n in elsewhere] or [elements])
    differ = (out[elements] >= 0) & (out[elements] != places)
    return Alignment(out, (elements[differ], places[differ]))


def _write(out: IntArray, runs: list[Run], m: int) -> None:
    for i, j, n in runs:
        out[i : i + n] = np.arange(j, j + n) % m


class _Pair:
    """Pattern and reference, read in one direction."""

    def __init__(self, pattern: IntArray, reference: IntArray, *, gram: int, around: bool):
        self.pattern = pattern
        self.n, self.m = len(pattern), len(reference)
        self.gram, self.around = gram, around
        # twice, so that every window that runs over the end lies in one piece
        self.reference = np.concatenate([reference, reference]) if around else reference
        self._near: dict[tuple[bytes, bytes], tuple[int, int] | None] = {}

    @cached_property
    def mirror(self) -> _Pair:
        """The same read from the end."""
        pair = _Pair(self.pattern[::-1], self.reference[: self.m][::-1], gram=self.gram, around=self.around)
        pair.__dict__["mirror"] = self
        return pair

    def mirrored(self, i: int, j: int) -> tuple[int, int]:
        """A place in the mirror's coordinates."""
        return self.n - 1 - i, self.m - 1 - (j % self.m if self.around else j)

    def turned(self, runs: list[Run]) -> list[Run]:
        """Runs of the mirror in the coordinates of this pair."""
        return [
            (self.n - i - n, (self.m - j - n) % self.m if self.around else self.m - j - n, n)
            for i, j, n in runs
        ]

    @cached_property
    def _windows(self) -> tuple[IntArray, IntArray]:
        """Hash of the window that begins at each element; windows that prove nothing equal nothing."""
        hashes = []
        for side, keys in enumerate((self.pattern, self.reference)):
            found = _hashes(keys, self.gram)
            changes = np.cumsum(np.append(0, keys[1:] != keys[:-1]))
            poor = changes[self.gram - 1 :] - changes[: len(found)] < _CHANGES
            found[poor] = side
            hashes.append(found)
        return hashes[0], hashes[1]

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray, IntArray]:
        """(order, low, high): window i of the pattern stands at order[low[i]:high[i]] of the reference."""
        ours, theirs = self._windows
        theirs = theirs[: self.m]
        order = np.argsort(theirs, kind="stable")
        low, high = (np.searchsorted(theirs[order], ours, side=side) for side in ("left", "right"))
        return order, low, high

    @cached_property
    def found_frac(self) -> float:
        """How many of the pattern's windows the reference has (0..1)."""
        _, low, high = self._places
        return float((high > low).mean()) if len(low) else 0.0

    def start(self) -> tuple[int, int] | None:
        """(pattern, reference) of the place to start from: the longest agreement at a rarest window."""
        order, low, high = self._places
        count = high - low
        if not count.any():
            return None
        rarest = np.flatnonzero(count == count[count > 0].min())
        best: tuple[int, int, int, int] | None = None
        for i in rarest[_spread(len(rarest), _SAMPLES)].tolist():
            places = order[low[i] : high[i]]
            tried = places[_spread(len(places), _PLACES)]
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
            back = _agreement(self.mirror.pattern, other_i, self.mirror.reference, other_j)
        return back + _agreement(self.pattern, i, self.reference, j)

    def follow(self, i: int, j: int, *, far: bool = True, until: int | None = None) -> list[Run]:
        """Runs that agree from a place on, to ``until``; with ``far`` also over jumps of any length."""
        runs: list[Run] = []
        until = self.n if until is None else until
        while i < until:
            j = j % self.m if self.around else j
            if j >= self.m:
                break
            run = _agreement(self.pattern[:until], i, self.reference, j)
            if run:
                runs.append((i, j, run))
                i, j = i + run, j + run
                if j == len(self.reference):
                    continue
                j = j % self.m if self.around else j
            if i >= until:
                break
            jump = self._nearby(i, j) or (self._anywhere(i, j) if far else None)
            if jump is None:
                break
            i, j = i + jump[0], j + jump[1]
        return runs

    def _nearby(self, i: int, j: int) -> tuple[int, int] | None:
        """The jump (pattern, reference) within the window that the keys behind it ask for."""
        best, longest = None, 0
        for jump in ((0, 1), (1, 0), (1, 1)):
            ours = self.pattern[i + jump[0] : i + jump[0] + 4 * _AGREE]
            theirs = self.reference[j + jump[1] : j + jump[1] + 4 * _AGREE]
            run = _agreement(ours, 0, theirs, 0)
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

    def before_jumps(self, runs: list[Run], position: IntArray) -> list[Run]:
        """Where else the elements before each jump fit; takes doubtful ones out of ``position``.

        What is missing or surplus at a jump can lie earlier when the keys before the jump also agree
        along the line behind it.
        """
        found: list[Run] = []
        for (i, j, n), (next_i, next_j, _) in pairwise(runs):
            surplus, missing = next_i - i - n, (next_j - j - n) % self.m
            if surplus == missing:
                continue
            back_i, back_j = self.mirrored(next_i - 1, next_j - 1)
            if back_i >= self.n or back_j >= self.m:
                continue
            slide = _agreement(self.mirror.pattern, back_i, self.mirror.reference, back_j)
            if not slide:
                continue
            if not missing and surplus < _LAYER:
                # a stray kernel beside its equals: which of them is the stray cannot be told
                slide = min(slide, n)
                position[i + n - slide : i + n - slide + min(surplus, slide)] = -1
            if slide < _LAYER:
                found += self.turned([(back_i, back_j, slide)])
                continue
            back = self.turned(self.mirror.follow(back_i, back_j, far=False))
            found += self._until(back, position)
        return found

    def of_stretches(self, position: IntArray) -> list[Run]:
        """Where else each stretch between long jumps fits; a stretch without one good window is dropped."""
        found: list[Run] = []
        matched = np.flatnonzero(position >= 0)
        step, jump = np.diff(matched), np.diff(position[matched]) % self.m
        breaks = np.flatnonzero((step > _LAYER) | (jump > _LAYER)) + 1
        order, low, high = self._places
        count = high - low
        last = matched + self.gram - 1
        along = last < self.n
        along[along] = position[last[along]] == (position[matched[along]] + self.gram - 1) % self.m
        along[along] &= count[matched[along]] > 0
        rarity = np.full(len(matched), np.iinfo(np.int64).max)
        rarity[along] = count[matched[along]]
        for stretch in np.split(np.arange(len(matched)), breaks):
            if not len(stretch):
                continue
            at = int(stretch[rarity[stretch].argmin()])
            first, end = int(matched[stretch[0]]), int(matched[stretch[-1]]) + 1
            if rarity[at] == np.iinfo(np.int64).max:
                position[first:end] = -1
            elif rarity[at] > 1:
                i = int(matched[at])
                places = order[low[i] : high[i]]
                places = places[places != position[i]]
                for place in places[_spread(len(places), _DOUBTS)].tolist():
                    found += self.follow(i, place, far=False, until=end)
                    back = self.mirrored(i - 1, place - 1)
                    found += self.turned(self.mirror.follow(*back, far=False, until=self.n - first))
        return found

    def of_unique(self, position: IntArray) -> list[Run]:
        """Where windows that stand only once in the reference contradict the places that were found."""
        found: list[Run] = []
        order, low, high = self._places
        unique = np.flatnonzero(high - low == 1)
        place = order[low[unique]]
        last = self.gram - 1
        agrees = (position[unique] == place) & (position[unique + last] == (place + last) % self.m)
        unique, place = unique[~agrees], place[~agrees]
        line = (place - unique) % self.m
        fresh = (
            np.append(True, (line[1:] != line[:-1]) | (np.diff(unique) > 1)) if len(unique) else agrees[:0]
        )
        for i, j in zip(unique[fresh].tolist(), place[fresh].tolist(), strict=True):
            found += self._until(self.follow(i, j, far=False), position)
            back = self.mirror.follow(*self.mirrored(i - 1, j - 1), far=False)
            found += self._until(self.turned(back), position)
        return found

    def _until(self, runs: list[Run], position: IntArray) -> list[Run]:
        """The runs up to the first that is no other place but the one already known."""
        for at, (i, j, n) in enumerate(runs):
            if (position[i : i + n] == np.arange(j, j + n) % self.m).all():
                return runs[:at]
        return runs


def _spread(size: int, count: int) -> IntArray:
    """At most ``count`` indices below ``size``, evenly spread, with both ends."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64))


def _agreement(first: IntArray, i: int, second: IntArray, j: int) -> int:
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
    wanted = min(_AGREE + 2 + sum(jump) // 4, _GRAMS[0])
    agreeing = np.cumsum(behind)
    if agreeing[-1] < wanted:
        return None
    return jump if np.searchsorted(agreeing, wanted) < wanted * 5 // 4 else None


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
