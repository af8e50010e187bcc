"""The engine of the grammars: sizes, gaps, repeats and what is taken, on units of one letter each."""

from __future__ import annotations

import pytest

from tracelens.attribution.structure.grammar import (
    Gap,
    Grammar,
    Part,
    many,
    matches,
    named,
    no,
    one,
    some,
    unless,
    what,
)
from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import GemmShape


def _gemm(n: int, k: int) -> Kind:
    return Kind("gemm", "linear", gemm=GemmShape(64, n, k, 1, None, None, None))


def _run(*units: Kind | str) -> Run:
    """Letters are units of that kind and name."""
    kinds = [Kind(unit, unit) if isinstance(unit, str) else unit for unit in units]
    return Run("forward", [*range(len(kinds))], kinds)


def _found(run: Run, *parts: Part, taken: set[int] | None = None, shaped: bool = False) -> list[str]:
    """Per match the components of its units, "-" for one of nothing."""
    grammar = Grammar("grammar", parts, shaped=shaped)
    found = matches(run, grammar, taken=taken or set())
    return [" ".join(m.components.get(at, "-") for at in range(m.start, m.stop)) for m in found]


UP, DOWN = _gemm(4096, 1024), _gemm(1024, 4096)
PAIR = (
    one("up", what("gemm"), n="inner", k="hidden"),
    one("down", what("gemm"), Gap("between", what("a", "b")), n="hidden", k="inner"),
)


@pytest.mark.parametrize(
    ("second", "shaped", "found"),
    [
        (DOWN, False, ["up between down"]),
        (DOWN, True, ["up between down"]),
        (_gemm(1024, 2048), False, []),  # contradicts the inner size
        (_gemm(512, 4096), False, []),  # and the hidden size
        ("gemm", False, ["up between down"]),  # it has no sizes: nothing contradicts
        ("gemm", True, []),  # unless all must be known
    ],
)
def test_a_size_is_what_its_first_unit_has(second: Kind | str, shaped: bool, found: list[str]) -> None:
    assert _found(_run(UP, "a", second), *PAIR, shaped=shaped) == found


def test_one_unit_can_bind_two_sizes_of_one_name() -> None:
    square = one("square", what("gemm"), n="hidden", k="hidden")
    assert _found(_run(UP, _gemm(1024, 1024)), square) == ["square"]


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ([], ["up down"]),
        (["a", "b", "a"], ["up between between between down"]),
        (["a", "c"], []),
    ],
)
def test_only_what_may_stand_between_two_parts_does(between: list[str], found: list[str]) -> None:
    assert _found(_run("c", UP, *between, DOWN), *PAIR) == found


def test_a_unit_that_does_not_fit_may_stand_between() -> None:
    last = one("last", what("gemm"), Gap("", no(what("end"))), n="hidden")
    first = one("first", what("gemm"), k="hidden")
    assert _found(_run(UP, UP, DOWN), first, last) == ["first - last"]
    assert _found(_run(UP, UP, "end", DOWN), first, last) == []


@pytest.mark.parametrize(("most", "found"), [(2, ["a - - b"]), (1, [])])
def test_a_gap_has_a_length(most: int, found: list[str]) -> None:
    assert (
        _found(_run("a", "x", "x", "b"), one("a", what("a")), one("b", what("b"), Gap("", no(), most=most)))
        == found
    )


@pytest.mark.parametrize(
    ("units", "found"),
    [
        ("abc", ["A B C"]),
        ("aabbbc", ["A A B B B C"]),
        ("ac", ["A C"]),
        ("bc", []),
        ("abxbc", []),  # nothing may stand between these
        ("acac", ["A C", "A C"]),
    ],
)
def test_parts_repeat_as_often_as_they_are_there(units: str, found: list[str]) -> None:
    assert _found(_run(*units), some("A", what("a")), many("B", named("b")), one("C", what("c"))) == found


def test_repeats_have_the_gap_between_them_and_end_with_the_last() -> None:
    parts = (one("A", what("a")), many("B", what("b"), Gap("between", no(what("end")))))
    assert _found(_run(*"axbxbxx"), *parts) == ["A between B between B"]


def test_what_is_part_of_something_else_is_no_part_of_another_where_it_must_be_new() -> None:
    run = _run(UP, "a", DOWN, UP, "a", DOWN)
    assert _found(run, *PAIR, taken={2}) == ["up between down"]
    assert _found(run, *PAIR, taken={1, 4}) == [
        "up between down",
        "up between down",
    ]  # only GEMMs must be new


def test_the_first_grammar_that_matches_counts() -> None:
    long, short = (Grammar(name, tuple(one(name, what(c)) for c in name)) for name in ("ab", "a"))
    found = [(match.grammar.name, match.start, match.stop) for match in matches(_run(*"aaba"), long, short)]
    assert found == [("a", 0, 1), ("ab", 1, 3), ("a", 3, 4)]


def test_a_component_can_depend_on_the_unit_and_a_match_on_what_stands_in_it() -> None:
    parts = (one("first", what("a")), one("last", what("a"), Gap(unless("in", b="own"), no(what("a")))))
    grammar = Grammar("pair", parts, where=lambda it: it.count(named("b")) > 0)
    found = [*matches(_run(*"acabcaca"), grammar)]
    assert [match.components for match in found] == [{2: "first", 3: "own", 4: "in", 5: "last"}]


def test_a_place_can_be_asked_for() -> None:
    last = one("B", what("b"), where=lambda it, at: at + 1 == len(it.kinds))
    assert _found(_run(*"bb"), last) == ["B"]


def test_what_may_stand_between_can_depend_on_what_was_found() -> None:
    gap = Gap("in", no(what("a")), where=lambda it, at: at < it.start + 3)
    parts = (one("first", what("a")), one("last", what("a"), gap))
    assert [(match.start, match.stop) for match in matches(_run(*"abbbabba"), Grammar("near", parts))] == [
        (4, 8)
    ]
