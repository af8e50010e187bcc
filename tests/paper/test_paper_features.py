"""Numbers that describe a curve, on curves whose truth is known."""

from __future__ import annotations

import pytest

from benchmarks.paper.drawn import deviation, loss_against, means_table, misaligned
from benchmarks.paper.features import by_power, deepest, falls, half_reached, period, utilization, wave_fit
from benchmarks.paper.figure import Point, Series, series_of
from tests.said import Listener


def sawtooth(m: int, tile: tuple[int, int], sms: int) -> list[Point]:
    return [
        Point(n, 700 * utilization(m, n, tile=tile, sms=sms)) for n in range(1536, 6145, 64)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("m", "tile", "sms"),
    [(2304, (128, 256), 132), (2304, (128, 128), 108), (1536, (128, 256), 132), (4224, (256, 128), 132)],
)
def test_the_tile_of_a_sawtooth_is_found_with_its_period(m: int, tile: tuple[int, int], sms: int) -> None:
    points = sawtooth(m, tile, sms)
    fit = wave_fit(points, m=m, sms=sms)
    assert fit is not None and fit.r == pytest.approx(1.0)
    for one in points:  # another tile of the same waves is the same answer
        same = utilization(m, round(one.x), tile=fit.tile, sms=sms)
        assert one.tflops == pytest.approx(700 * same)
    assert fit.explained == fit.falls == len(falls(points)) > 0


def test_falls_and_their_distance() -> None:
    points = sawtooth(2304, (128, 128), 108)
    found = falls(points)
    assert [one.before.x for one in found] == [1536, 2304, 3072, 3840, 4608, 5376]
    assert period(found) == 768
    assert found[0].lost_frac == pytest.approx(1 - 1600 / 2304)
    assert period(found[:2]) is None
    assert falls([Point(1, 100.0), Point(2, 96.0)]) == []


def test_a_flat_or_short_curve_has_no_tile() -> None:
    assert wave_fit([Point(n, 500.0) for n in range(1536, 6145, 64)], m=2304, sms=132) is None
    assert wave_fit(sawtooth(2304, (128, 128), 108)[:5], m=2304, sms=108) is None


def test_the_largest_step_is_between_near_neighbours_only() -> None:
    found = deepest([Point(32, 1.0), Point(1024, 100.0), Point(1026, 60.0), Point(1028, 90.0)])
    assert found is not None
    assert (found.before.x, found.after.x) == (1024, 1026)
    assert found.lost_frac == pytest.approx(0.4)
    assert deepest([Point(1, 1.0)]) is None


def test_half_and_classes() -> None:
    points = [Point(64, 10.0), Point(96, 50.0), Point(128, 100.0)]
    assert half_reached(points) == 96
    assert half_reached([]) is None
    assert {power: len(group) for power, group in by_power(points, 64).items()} == {32: 1, 64: 2}


def test_each_x_is_drawn_once_and_in_order() -> None:
    assert series_of([Point(2, 5.0), Point(1, 3.0), Point(2, 9.0)]) == (Point(1, 3.0), Point(2, 5.0))


def test_shares_are_compared_with_the_papers(said: Listener) -> None:
    assert loss_against(0.30, 0.57).startswith("a larger loss")
    assert loss_against(0.80, 0.57).startswith("a smaller loss")
    assert loss_against(0.58, 0.57).startswith("about")
    odd, by_8 = misaligned({1: 100.0, 8: 300.0, 64: 400.0}, {1: 74.0, 8: 226.0, 64: 256.0}, "v")
    assert misaligned({64: 400.0}, {1: 74.0, 64: 256.0}, "v") == ()
    said(odd, by_8)


def test_a_class_that_one_of_both_lacks_is_a_dash() -> None:
    lines = means_table({"here": {1: 50.0, 4: 100.0}}, {1: 40.0, 2: 80.0}, "power")
    assert lines[2:] == (
        "| 1 | 50.0 | 50.0% | 40.0 | 50.0% |",
        "| 2 | – | – | 80.0 | 100% |",
        "| 4 | 100 | 100% | – | – |",
    )
    assert means_table({"here": {}}, {1: 40.0}, "power") == ()


def test_a_prediction_is_as_far_off_as_its_median_point() -> None:
    points = [Point(1, 100.0), Point(2, 120.0), Point(3, 300.0)]
    guess = Series("p", "gpu", "predicted", (Point(1, 100.0), Point(2, 100.0), Point(3, 100.0)))
    assert "20.0% off" in deviation(points, guess)
    assert deviation(points, None) == ""
