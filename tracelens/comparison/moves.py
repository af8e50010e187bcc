"""Work that is counted in one row before and in another after: one line with its net.

Two rows of which one shrinks and the other grows by the same kernels look like a saving and a loss, and
are neither: a collective that is called in another phase, a product that another module is credited with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from tracelens.comparison import words
from tracelens.comparison.gemms import differ
from tracelens.comparison.same_work import beyond
from tracelens.results.comparison import ComponentChange, GemmChange, Move, Noise

#: Kernels that went from one component to another without a GEMM to prove it take as long there as here,
#: but for this share: the closeness of times stands in for the proof.
_CLOSE = 0.05

Part = tuple[str, str]  # component, phase


def find_moves(
    rows: Sequence[ComponentChange], gemms: Iterable[GemmChange], *, noise: Noise | None, gpu_ms: float
) -> list[Move]:
    """Name the rows that changed only by what is counted in them.

    Between phases of one component: when their kernels per step add up to as many as before. Between two
    components: when one gains as many kernels as the other loses, and either a GEMM of the same shape went
    the same way or they are in the same phase and take as long. Rows with GEMMs of another shape are none
    of these.
    """
    gemms = list(gemms)
    reshaped = {_part(one) for one in gemms if one.state == "regrouped" or "size" in one.differs}
    proved = {(_part(one), (one.moved_to[0], one.moved_to[2])) for one in gemms if one.state == "moved"}
    free = [
        row
        for row in rows
        if row.beyond_noise
        and differ(row.before_kernels, row.after_kernels)
        and (row.component, row.phase) not in reshaped
    ]
    found = []
    for name in dict.fromkeys(row.component for row in free):
        own = [row for row in free if row.component == name]
        if _balanced(own):
            found.append(_move(own, noise, gpu_ms))
            free = [row for row in free if row.component != name]
    pairs = [
        (old, new)
        for old, new in product(free, free)
        if _gained(old) < 0 and _balanced([old, new]) and _shown(old, new, proved)
    ]
    for old, new in pairs:
        if sum(old in pair for pair in pairs) == 1 and sum(new in pair for pair in pairs) == 1:
            found.append(_move([old, new], noise, gpu_ms))
    return found


def with_moves(rows: Iterable[ComponentChange], moves: Sequence[Move]) -> list[ComponentChange]:
    """The rows to show, the largest difference first: a move in place of the rows it is in."""
    inside = {(component, phase) for move in moves for component, phase in move.parts}
    left = [row for row in rows if (row.component, row.phase) not in inside]
    return sorted([*left, *(move.net for move in moves)], key=lambda row: -abs(row.diff_ms))


def _part(one: GemmChange) -> Part:
    return one.component, one.phase


def _gained(row: ComponentChange) -> float:
    return row.after_kernels - row.before_kernels


def _balanced(rows: Sequence[ComponentChange]) -> bool:
    """Do some gain as many kernels as the others lose?"""
    lost = -sum(_gained(row) for row in rows if _gained(row) < 0)
    gained = sum(_gained(row) for row in rows if _gained(row) > 0)
    return lost > 0 and not differ(lost, gained)


def _shown(old: ComponentChange, new: ComponentChange, proved: set[tuple[Part, Part]]) -> bool:
    if ((old.component, old.phase), (new.component, new.phase)) in proved:
        return True
    as_long = abs(old.diff_ms + new.diff_ms) <= _CLOSE * max(abs(old.diff_ms), abs(new.diff_ms))
    return old.phase == new.phase and as_long


def _move(rows: Sequence[ComponentChange], noise: Noise | None, gpu_ms: float) -> Move:
    before, after = sum(row.before_ms for row in rows), sum(row.after_ms for row in rows)
    frac = after / before - 1 if before and after else None
    told = beyond(after - before, frac, noise=noise, gpu_ms=gpu_ms, other_work=False)
    lost, gained = ([row for row in rows if (_gained(row) > 0) is more] for more in (False, True))
    kernels = sum(_gained(row) for row in gained)
    component = _way([row.component for row in lost], [row.component for row in gained])
    waits = told is not False and component == "communication"
    return Move(
        [[row.component, row.phase] for row in rows],
        ComponentChange(
            component,
            _way([row.phase for row in lost], [row.phase for row in gained]),
            before, after, after - before, frac,
            sum(row.before_kernels for row in rows), sum(row.after_kernels for row in rows),
            None if waits else told, words.elsewhere(kernels, waits=waits),
        ),
    )  # fmt: skip


def _way(old: list[str], new: list[str]) -> str:
    """Where from and where to; once where it is the same."""
    sides = [" and ".join(dict.fromkeys(names)) for names in (old, new)]
    return sides[0] if sides[0] == sides[1] else " → ".join(sides)
