"""Numbers are written the same way everywhere, and never claim more than is known."""

from __future__ import annotations

import doctest
import math

import pytest

from tracelens import numbers as f
from tracelens.comparison import spelling
from tracelens.render import groups, text
from tracelens.render.templates import part
from tracelens.results import Estimate
from tracelens.words import COMPONENTS


@pytest.mark.parametrize("module", [f, text, spelling])
def test_examples_in_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("write", [f.sig, f.ms, f.pct, f.count])
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_called_unknown(write: object, value: float | None) -> None:
    assert write(value) == "unknown"  # type: ignore[operator]


@pytest.mark.parametrize(
    ("value", "text_"),
    [
        (999.6, "1,000 ms"),
        (0.9996, "1.00 ms"),
        (0.99949, "999 µs"),
        (9984.0, "9,984 ms"),
        (9999.0, "10.0 s"),
        (0.000012, "0.0120 µs"),
        (-3.2, "-3.20 ms"),
    ],
)
def test_times_change_unit_where_they_read_better(value: float, text_: str) -> None:
    assert f.ms(value) == text_


def test_shares_never_round_to_nothing_or_all() -> None:
    assert [f.pct(x) for x in (1e-9, 0.00049, 0.0005, 0.9994, 0.9996, 1.02)] == [
        "<0.1%", "<0.1%", "0.1%", "99.9%", ">99.9%", "102.0%",
    ]  # fmt: skip


def test_a_bound_is_never_worded_as_a_prediction() -> None:
    nothing = Estimate(None, None, None, "heuristic")
    claim, note = f.saving(Estimate(None, None, 3.2, "heuristic"), nothing, "heuristic")
    assert claim == "at most 3.20 ms/step"
    assert note == "bound, not a prediction"
    assert f.saving(nothing, nothing, "heuristic")[0] == "saving not known"


def test_every_component_of_the_vocabulary_has_exactly_one_group() -> None:
    listed = [component for group in groups.GROUPS for component in group.components]
    assert sorted(listed) == sorted(COMPONENTS)


def test_page_and_terminal_use_the_same_colours() -> None:
    style = part("report.css")
    for group in groups.GROUPS:
        assert f".g-{group.key}{{--c:{group.colour}}}" in style


def test_a_component_from_a_later_version_is_shown_under_other() -> None:
    assert groups.group_of("quantum").key == "other"
