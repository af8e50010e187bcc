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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np
import numpy.typing as npt

from tracelens.attribution.pair import LAYER, WINDOW, Pair, Run, agreement, spread
from tracelens.trace import IntArray

_NEVER = np.iinfo(np.int64).max
_DOUBTS = 8  # other places that are looked at for one stretch


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where each element of the pattern stands in the reference."""

    position: IntArray  # per element of the pattern: position in the reference; -1 = none
    #: (element, position) pairs: other places that fit an element as well as its position
    others: tuple[IntArray, IntArray]


def find_alignment(pattern: npt.ArrayLike, reference: npt.ArrayLike, *, around: bool) -> Alignment:
    """For each key of ``pattern`` the position in ``reference`` it corresponds to, and where else it fits.

    Keys at matched positions are equal, and positions increase strictly. Nothing is matched without a window
    of at least 12 changing keys that agrees; about linear in the two lengths.

    ``around``: the reference repeats (steps of a training loop), so the pattern may run over its end
    and go on at its start, as often as it needs; positions then increase but for those returns.
    """
    first, second = np.asarray(pattern, np.int64), np.asarray(reference, np.int64)
    position, pair, others = _find(first, second, around=around)
    if pair is None:
        return Alignment(position, (position[:0], position[:0]))
    others += [*_of_stretches(pair, position), *_of_unique(pair, position)]
    others += _of_layers(pair, position, _pairs(others, position, pair.m))
    return Alignment(position, _pairs(others, position, pair.m))


def _find(pattern: IntArray, reference: IntArray, *, around: bool) -> tuple[IntArray, Pair | None, list[Run]]:
    """Positions, the pair of sequences if anything can match, and other places of what stands at jumps."""
    out = np.full(len(pattern), -1, np.int64)
    if min(len(pattern), len(reference)) < WINDOW:
        return out, None, []
    pair = Pair(pattern, reference, around=around)
    start = pair.start()
    if start is None:
        return out, None, []
    i, j = start
    forward = [*pair.follow(i, j)]
    backward = [*pair.mirror.follow(*pair.mirrored(i - 1, j - 1))]
    for at, place, n in [*forward, *pair.turned(backward)]:
        out[at : at + n] = np.arange(place, place + n) % pair.m
    others = [*_before_jumps(pair, forward, out)]
    # the same in the mirror's coordinates, and back
    turned = np.where(out >= 0, pair.m - 1 - out, -1)[::-1].copy()
    others += pair.turned(_before_jumps(pair.mirror, backward, turned))
    out[:] = np.where(turned >= 0, pair.m - 1 - turned, -1)[::-1]
    rarity = _rarity(pair, out)
    for stretch in _stretches(pair, out):
        if len(stretch) and rarity[stretch].min() == _NEVER:
            out[stretch] = -1  # too weak: not one window of its own
    return out, pair, others


def _pairs(runs: list[Run], position: IntArray, m: int) -> tuple[IntArray, IntArray]:
    """(element, place) of all runs, where the place is another than the element's own."""
    nothing = np.empty(0, np.int64)
    elements = np.concatenate([np.arange(i, i + n) for i, _, n in runs] or [nothing])
    places = np.concatenate([np.arange(j, j + n) % m for _, j, n in runs] or [nothing])
    differ = (position[elements] >= 0) & (position[elements] != places)
    return elements[differ], places[differ]


def _before_jumps(pair: Pair, runs: list[Run], position: IntArray) -> Iterator[Run]:
    """Where else the elements before each jump fit; takes doubtful ones out of ``position``.

    What is missing or surplus at a jump can lie earlier when the keys before the jump also agree
    along the line behind it.
    """
    for (i, j, n), (next_i, next_j, _) in pairwise(runs):
        surplus, missing = next_i - i - n, (next_j - j - n) % pair.m
        back_i, back_j = pair.mirrored(next_i - 1, next_j - 1)
        if surplus == missing or back_i >= pair.n or back_j >= pair.m:
            continue
        slide = agreement(pair.mirror.pattern, back_i, pair.mirror.reference, back_j)
        if not slide:
            continue
        if not missing and surplus < LAYER:
            # a stray kernel beside its equals: which of them is the stray cannot be told
            slide = min(slide, n)
            position[i + n - slide : i + n - slide + min(surplus, slide)] = -1
        if slide < LAYER:
            yield from pair.turned([(back_i, back_j, slide)])
        else:
            back = pair.turned(pair.mirror.follow(back_i, back_j, far=False))
            yield from _news(pair, back, position)


def _stretches(pair: Pair, position: IntArray) -> list[IntArray]:
    """Matched elements of the pattern, cut at long jumps."""
    matched = np.flatnonzero(position >= 0)
    step, jump = np.diff(matched), np.diff(position[matched]) % pair.m
    return np.split(matched, np.flatnonzero((step > LAYER) | (jump > LAYER)) + 1)


def _rarity(pair: Pair, position: IntArray) -> IntArray:
    """Per element: in how many places of the reference its window stands, if it matched as a whole."""
    _, low, high = pair.places
    count = high - low
    whole = np.flatnonzero((position[: len(count)] >= 0) & (count > 0))
    end = whole + WINDOW - 1
    whole = whole[position[end] == (position[whole] + WINDOW - 1) % pair.m]
    rarity = np.full(pair.n, _NEVER)
    rarity[whole] = count[whole]
    return rarity


def _of_stretches(pair: Pair, position: IntArray) -> Iterator[Run]:
    """Where else each stretch between long jumps fits that has no window of one place only."""
    order, low, high = pair.places
    rarity = _rarity(pair, position)
    for stretch in _stretches(pair, position):
        if not len(stretch) or rarity[i := int(stretch[rarity[stretch].argmin()])] == 1:
            continue
        first, stop = int(stretch[0]), int(stretch[-1]) + 1
        places = order[low[i] : high[i]]
        places = places[places != position[i]]
        for place in places[spread(len(places), _DOUBTS)].tolist():
            yield from pair.follow(i, place, far=False, until=stop)
            back = pair.mirrored(i - 1, place - 1)
            yield from pair.turned(pair.mirror.follow(*back, far=False, until=pair.n - first))


def _of_layers(pair: Pair, position: IntArray, others: tuple[IntArray, IntArray]) -> Iterator[Run]:
    """Stretches that also fit when shifted: with layers more or less, none of them has a number.

    The shifts to try are those of the jumps at a stretch's ends and of the other places in it.
    """
    stretches = [stretch for stretch in _stretches(pair, position) if len(stretch)]
    shifts: list[set[int]] = [set() for _ in stretches]
    for at, (before, after) in enumerate(pairwise(stretches)):
        jump = int(position[after[0]] - position[before[-1]]) - int(after[0] - before[-1])
        shifts[at].add(jump)
        shifts[at + 1].add(jump)
    starts = np.array([stretch[0] for stretch in stretches], np.int64)
    elements, places = others
    found = np.stack([np.searchsorted(starts, elements, side="right") - 1, places - position[elements]])
    kinds, count = np.unique(found, axis=1, return_counts=True)
    for at, shift in kinds[:, count >= LAYER].T.tolist():
        shifts[at].add(shift)
    for stretch, wanted in zip(stretches, shifts, strict=True):
        for shift in sorted({abs(shift) for shift in wanted if abs(shift) >= LAYER})[:_DOUBTS]:
            yield from _shifted(pair, stretch, position, shift)
            yield from _shifted(pair, stretch, position, -shift)
            yield from _repeating(pair, stretch, position, shift)


def _shifted(pair: Pair, stretch: IntArray, position: IntArray, shift: int) -> Iterator[Run]:
    """The parts of a stretch, a layer long or longer, that fit at their place plus ``shift`` too."""
    place = position[stretch] + shift
    place = place % pair.m if pair.around else place
    inside = (place >= 0) & (place < pair.m)
    fits = inside & (pair.pattern[stretch] == pair.reference[np.where(inside, place, 0)])
    yield from _long_runs(stretch[fits], place[fits])


def _repeating(pair: Pair, stretch: IntArray, position: IntArray, shift: int) -> Iterator[Run]:
    """Another place for the parts of a stretch that repeat in the pattern itself after ``shift`` keys.

    With more layers than the reference has, a layer's counterpart may be beyond the reference's ends.
    """
    order, low, high = pair.places
    stretch = stretch[stretch < len(low)]
    repeats = np.zeros(len(stretch), np.bool_)
    for other in (stretch + shift, stretch - shift):
        inside = (other >= 0) & (other < pair.n)
        repeats |= inside & (pair.pattern[stretch] == pair.pattern[np.where(inside, other, 0)])
    element = stretch[repeats & (high[stretch] - low[stretch] > 1)]
    place = order[low[element]]
    yield from _long_runs(element, np.where(place == position[element], order[low[element] + 1], place))


def _long_runs(element: IntArray, place: IntArray) -> Iterator[Run]:
    """Elements and their places as runs, where at least a layer of elements stands together."""
    apart = np.diff(element) != 1
    together = np.cumsum(np.append(0, apart))[: len(element)]
    enough = np.bincount(together)[together] >= LAYER if len(element) else np.empty(0, np.bool_)
    element, place = element[enough], place[enough]
    breaks = np.flatnonzero((np.diff(element) != 1) | (np.diff(place) != 1)) + 1
    bounds = [0, *breaks.tolist(), len(element)] if len(element) else []
    for first, end in pairwise(bounds):
        yield int(element[first]), int(place[first]), end - first


def _of_unique(pair: Pair, position: IntArray) -> Iterator[Run]:
    """Where windows that stand only once in the reference contradict the places that were found.

    Only those count that the places do not account for: they hold an unmatched key or a long jump. Inside
    a stretch that goes on before and after, a window that looks like another is one with a key missing.
    """
    order, low, high = pair.places
    unique = np.flatnonzero(high - low == 1)
    place = order[low[unique]]
    last = WINDOW - 1
    lost = np.append(0, np.cumsum(position < 0))
    firsts = np.array([stretch[0] for stretch in _stretches(pair, position) if len(stretch)], np.int64)
    cut = np.searchsorted(firsts, unique, side="right") != np.searchsorted(
        firsts, unique + last, side="right"
    )
    doubtful = cut | (lost[unique + WINDOW] > lost[unique])
    doubtful &= (position[unique] != place) | (position[unique + last] != (place + last) % pair.m)
    unique, place = unique[doubtful], place[doubtful]
    line = (place - unique) % pair.m
    fresh = np.append(True, (line[1:] != line[:-1]) | (np.diff(unique) > 1))[: len(unique)]
    for i, j in zip(unique[fresh].tolist(), place[fresh].tolist(), strict=True):
        yield from _news(pair, pair.follow(i, j, far=False), position)
        back = pair.mirror.follow(*pair.mirrored(i - 1, j - 1), far=False)
        yield from _news(pair, pair.turned(back), position)


def _news(pair: Pair, runs: Iterable[Run], position: IntArray) -> Iterator[Run]:
    """The runs up to the first that is no other place but the one already known."""

    def new(run: Run) -> bool:
        i, j, n = run
        return bool((position[i : i + n] != np.arange(j, j + n) % pair.m).any())

    return takewhile(new, runs)
