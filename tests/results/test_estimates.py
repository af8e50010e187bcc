"""Arithmetic of estimates: ends add to ends, the weakest basis stands, and unknown stays unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.results.estimates import BASES, Basis, Estimate, total, weakest


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    found = sorted(draw(st.tuples(*[st.floats(-1e6, 1e6)] * 3)))
    keep = draw(st.tuples(*[st.booleans()] * 3))
    low, mid, high = (value if kept else None for value, kept in zip(found, keep, strict=True))
    return Estimate(low, mid, high, draw(st.sampled_from(BASES)))


def ends(one: Estimate) -> tuple[float | None, ...]:
    return one.low, one.mid, one.high


@given(estimates(), estimates())
def test_what_is_unknown_on_one_side_is_unknown_in_the_sum(one: Estimate, other: Estimate) -> None:
    for a, b, found in zip(ends(one), ends(other), ends(one + other), strict=True):
        assert (found is None) == (a is None or b is None)
        if a is not None and b is not None:
            assert found == a + b


@given(estimates(), st.floats(-100, 100), st.floats(-100, 100))
def test_ends_stay_in_order(one: Estimate, factor: float, more: float) -> None:
    for found in (one * factor, one + more, more - one, -one, one.over(abs(factor)), one.clamp(low=more)):
        known = [value for value in ends(found) if value is not None]
        assert known == sorted(known)


@given(estimates(), estimates())
def test_a_difference_reaches_from_the_least_to_the_most(one: Estimate, other: Estimate) -> None:
    found = one - other
    if one.low is not None and other.high is not None:
        assert found.low == one.low - other.high
    if other.high is None:
        assert found.low is None


@pytest.mark.parametrize(
    ("bases", "found"),
    [
        (("measured",), "measured"),
        (("measured", "calibrated"), "calibrated"),
        (("calibrated", "model", "measured"), "model"),
        (("heuristic", "measured"), "heuristic"),
    ],
)
def test_the_weakest_basis_names_the_sum(bases: tuple[Basis, ...], found: Basis) -> None:
    assert weakest(bases) == found
    assert total(Estimate.exactly(1.0, basis) for basis in bases).basis == found


def test_one_unknown_part_leaves_no_sum() -> None:
    found = total([Estimate.exactly(1.0), Estimate(0.0, None, 2.0, "heuristic"), Estimate.exactly(3.0)])
    assert ends(found) == (4.0, None, 6.0)
    assert found.size == 6.0


def test_nothing_is_exactly_nothing() -> None:
    assert total([]) == Estimate.exactly(0.0)


@pytest.mark.parametrize("whole", [None, 0.0])
def test_a_share_of_an_unknown_whole_is_unknown(whole: float | None) -> None:
    assert Estimate.exactly(2.0).over(whole) == Estimate.unknown("measured")


def test_a_bound_is_kept_within_and_stays_a_bound() -> None:
    assert ends(Estimate(0.0, None, 9.0, "heuristic").clamp(high=5.0)) == (0.0, None, 5.0)
