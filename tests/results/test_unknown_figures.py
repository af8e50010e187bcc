"""What is unknown is no zero in a printed figure."""

from __future__ import annotations

from dataclasses import replace

from tests.render import sample_report
from tracelens.numbers import UNKNOWN, saving
from tracelens.render.what_if import rest_lines
from tracelens.results import Estimate


def test_an_unknown_row_leaves_the_sum_of_its_rows_unknown() -> None:
    one = sample_report.what_if().what_if[0]
    assert one.rest
    known = rest_lines(one)[-1]
    rest = [replace(one.rest[0], then_ms=Estimate.unknown()), *one.rest[1:]]
    said = rest_lines(replace(one, rest=rest))[-1]
    assert UNKNOWN in said and UNKNOWN not in known


def test_a_slower_change_without_a_step_has_no_share() -> None:
    claim, how = saving(Estimate(-3.0, -2.0, -1.0, "measured"), Estimate.unknown(), "measured")
    assert claim.startswith("slower by 2.00 ms")
    assert "%" not in how
