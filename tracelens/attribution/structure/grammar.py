"""Grammars: what a kind of layer is made of, as a table, and the one engine that finds it in a run.

A grammar is a row of parts. A part says what unit it is, how often it comes, what may stand between it and
the part before, which sizes it must have, and which component it is. A size has a name ("hidden"): the
first part that has it says how large it is, and every other must agree. What a recording does not tell
contradicts nothing, unless the grammar asks for all sizes. What no table says is a function.

Matching goes from left to right and never back: the next part is the first unit that fits it, and all that is
passed on the way must be what may stand there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Kind

Test = Callable[[Kind], bool]
InPlace = Callable[["Match", int], bool]  # of the unit at a place, behind what has been matched
Component = str | Callable[["Match", int], str]  # of a place in a whole match; "": of nothing


def what(*words: str) -> Test:
    """Units that are one of these (``Kind.what``)."""
    among = frozenset(words)
    return lambda kind: kind.what in among


def tagged(tag: str) -> Test:
    """Units that a compiler says to do this, among other things."""
    return lambda kind: tag in kind.tags


def named(*names: str) -> Test:
    """Units whose operator has one of these names."""
    among = frozenset(names)
    return lambda kind: kind.name in among


def either(test: Test, *tests: Test) -> Test:
    """Units of which one of the tests is true."""
    if not tests:
        return test
    rest = either(*tests)
    return lambda kind: test(kind) or rest(kind)


def no(*tests: Test) -> Test:
    """Units of which none of the tests is true: without any, all units."""
    found = either(*tests) if tests else what()
    return lambda kind: not found(kind)


def unless(component: str, **own: str) -> Component:
    """The component, but for units that are (``Kind.what``) one of those given beside it."""
    return lambda it, at: own.get(it.kinds[at].what, component)


PRODUCT = what("gemm", "bmm", "core")


@dataclass(frozen=True, slots=True)
class Gap:
    """What may stand between a part and the one before it."""

    component: Component
    of: Test
    most: int = sys.maxsize  # units
    where: InPlace | None = None  # what must be true of each of their places besides


@dataclass(frozen=True, slots=True)
class Part:
    """A unit of a layer, or several of a kind."""

    component: Component
    of: Test
    behind: Gap | None  # without one it comes directly behind the part before
    sizes: Mapping[str, str]  # a size of the unit (``sizes_of``) -> its name
    where: InPlace | None  # what must be true of its place besides
    least: int
    most: int


def one(
    component: Component,
    of: Test,
    behind: Gap | None = None,
    *,
    where: InPlace | None = None,
    least: int = 1,
    most: int = 1,
    **sizes: str,
) -> Part:
    """A part that is there once; ``some``: once or more, ``many``: as often as it is, or not at all."""
    return Part(component, of, behind, sizes, where, least, most)


some = partial(one, most=sys.maxsize)
many = partial(one, least=0, most=sys.maxsize)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A kind of layer, or a part of one."""

    name: str
    parts: tuple[Part, ...]
    where: Callable[[Match], bool] | None = None  # what must be true of a match besides
    shaped: bool = False  # does it match only where the recording tells all sizes?
    new: Test = PRODUCT  # units that must not be part of something else


@dataclass(slots=True)
class Match:
    """Where a run has such a layer."""

    grammar: Grammar
    run: Run
    kinds: Sequence[Kind]  # of the whole run
    start: int
    stop: int
    places: list[list[int]] = field(default_factory=list)  # of each part
    named: dict[int, Component] = field(default_factory=dict)  # by position
    sizes: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, size: str) -> int:
        return self.sizes[size]

    @property
    def components(self) -> dict[int, str]:
        """By position, of all that are of something."""
        said = {at: name if isinstance(name, str) else name(self, at) for at, name in self.named.items()}
        return {at: component for at, component in said.items() if component}

    def count(self, test: Test) -> int:
        """How many of its units pass a test."""
        return sum(map(test, self.kinds[self.start : self.stop]))


def matches(run: Run, *grammars: Grammar, taken: Container[int] = ()) -> Iterator[Match]:
    """Where a run has one of these, in order and apart from each other; the first that matches counts.

    ``taken`` are positions of what is part of something else.
    """
    kinds = [*{id(kind): kind for kind in run.kinds}.values()]  # far fewer than units
    able = [one for one in grammars if all(any(map(part.of, kinds)) for part in one.parts if part.least)]
    opens = {id(kind): [one for one in able if one.parts[0].of(kind)] for kind in kinds if able}
    stop = 0
    for at, kind in enumerate(run.kinds if able else ()):
        for grammar in opens[id(kind)] if at >= stop else ():
            found = _match(grammar, run, at, taken)
            if found is not None:
                yield found
                stop = found.stop
                break


def sizes_of(kind: Kind) -> dict[str, int]:
    """What a recording tells of a unit: m, n, k and batch of a GEMM, depth (its blocks in z), elements of its
    first tensor."""
    found = {"depth": kind.depth}
    if kind.gemm is not None:
        found |= {"m": kind.gemm.m, "n": kind.gemm.n, "k": kind.gemm.k, "batch": kind.gemm.batch}
    if kind.tensors:
        found["elements"] = prod(kind.tensors[0])
    return found


def _match(grammar: Grammar, run: Run, start: int, taken: Container[int]) -> Match | None:
    found = Match(grammar, run, run.kinds, start, start)
    for part in grammar.parts:
        places: list[int] = []
        found.places.append(places)
        while len(places) < part.most and (at := _next(found, part, taken)) is not None:
            _take(found, part, at)
            places.append(at)
        if len(places) < part.least:
            return None
    return found if grammar.where is None or grammar.where(found) else None


def _next(found: Match, part: Part, taken: Container[int]) -> int | None:
    """Where the part comes next, if nothing is ahead of it that may not stand there."""
    gap, kinds = part.behind, found.kinds
    end = found.stop + 1 if gap is None else found.stop + 1 + gap.most
    for at in range(found.stop, min(end, len(kinds))):
        if part.of(kinds[at]) and (part.where is None or part.where(found, at)):
            free = at not in taken or not found.grammar.new(kinds[at])
            if free and _agrees(found, part, kinds[at]):
                return at
        if gap is None or not gap.of(kinds[at]) or not (gap.where is None or gap.where(found, at)):
            return None
    return None


def _agrees(found: Match, part: Part, kind: Kind) -> bool:
    """Has it the sizes that the part must have? Those that were not known are known from here on."""
    own = sizes_of(kind) if part.sizes else {}
    if found.grammar.shaped and not own.keys() >= part.sizes.keys():
        return False
    sizes = {**found.sizes}
    told = [(name, own[size]) for size, name in part.sizes.items() if size in own]
    agrees = all(sizes.setdefault(name, value) == value for name, value in told)
    found.sizes = sizes if agrees else found.sizes
    return agrees


def _take(found: Match, part: Part, at: int) -> None:
    """The unit is the next of the part."""
    if part.behind is not None:
        found.named |= dict.fromkeys(range(found.stop, at), part.behind.component)
    found.named[at] = part.component
    found.stop = at + 1
