"""Where the verdict on two sets of steps turns: what counts as seen, as excluded, and as too few."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.said import Listener
from tracelens.comparison.step_change import mixed_otherwise, spread, step_change
from tracelens.render.compare_figures import difference
from tracelens.render.compare_words import left_open, step_verdict
from tracelens.results import StepTime
from tracelens.results.comparison import StepChange


def judged(
    before: Sequence[float],
    after: Sequence[float],
    *,
    medians: tuple[float, float] | None = None,
    identical: bool = False,
    unprofiled_ms: tuple[float | None, float | None] = (None, None),
    unprofiled: tuple[Sequence[float], Sequence[float]] = ((), ()),
    what: str = "steps",
) -> StepChange:
    sides = (spread(before), spread(after))
    if medians is not None:
        sides = (StepTime(medians[0], 0.0, 0.0, len(before)), StepTime(medians[1], 0.0, 0.0, len(after)))
    return step_change(
        before, after, medians=sides, identical=identical, unprofiled_ms=unprofiled_ms, unprofiled=unprofiled,
        what=what,
    )  # fmt: skip


def test_six_steps_each_a_tenth_longer(said: Listener) -> None:
    """Every step after is longer than every one before: 2 of the 924 ways to choose 6 of 12."""
    step = judged([100.0, 101.0, 102.0, 103.0, 104.0, 105.0], [110.0, 111.0, 112.0, 113.0, 114.0, 115.0])
    assert step.state == "slower"
    assert step.p == step.smallest_p == pytest.approx(2 / 924)
    assert (step.before.median, step.after.median) == (102.5, 112.5)
    assert step.diff_ms == 10.0 and step.diff_frac == pytest.approx(10 / 102.5)
    # U = 5 is the last that 95 % leave out; of the 36 differences the 6th from either end
    assert (step.shift_low_ms, step.shift_high_ms) == (7.0, 13.0)
    assert step.shift_level == pytest.approx(1 - 2 * (1 + 1 + 2 + 3 + 5 + 7) / 924)
    assert (step.by_kind, step.kinds) == (False, [])
    assert "short" not in step.test and "of runs" not in step.test
    said(step.why)


def test_the_other_way_round_it_is_faster(said: Listener) -> None:
    step = judged([110.0, 111.0, 112.0, 113.0], [100.0, 101.0, 102.0, 103.0])
    assert (step.state, step.diff_ms) == ("faster", -10.0)
    assert step.p == pytest.approx(2 / 70)
    said(step.why)


def test_an_interval_that_ends_at_no_difference_lies_on_its_side() -> None:
    """One step of six before is as short as those after: the 6th of 36 differences from the end is 0."""
    short = judged([2.0, 2.0, 2.0, 2.0, 2.0, 1.0], [1.0] * 6)
    assert short.p == pytest.approx(2 * 7 / 924)
    assert (short.shift_low_ms, short.shift_high_ms, short.state) == (-1.0, 0.0, "faster")
    long = judged([1.0] * 6, [2.0, 2.0, 2.0, 2.0, 2.0, 1.0])
    assert (long.shift_low_ms, long.shift_high_ms, long.state) == (0.0, 1.0, "slower")


def test_fractions_of_a_millisecond_are_seen_as_well() -> None:
    """Each step after is longer by 0.1 to 0.7 ms."""
    short, long = [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]
    assert judged(short, long).state == "slower" and judged(long, short).state == "faster"
    assert judged(short, long, medians=(0.4, 0.3)).state == "inconclusive"
    assert judged(long, short, medians=(0.3, 0.4)).state == "inconclusive"


def test_without_turns_no_side_has_another_mix_of_them() -> None:
    assert not mixed_otherwise(judged([1.0, 2.0, 3.0], [1.0, 2.0]))


@pytest.mark.parametrize("medians", [(10.0, 9.0), (10.0, 10.0)])
def test_medians_that_say_otherwise_than_the_test_claim_nothing(medians: tuple[float, float]) -> None:
    """All steps after are longer, and the medians, of other steps, say shorter or the same."""
    longer = judged([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], medians=medians)
    assert longer.p == pytest.approx(2 / 70) and longer.state == "inconclusive"
    shorter = judged([5.0, 6.0, 7.0, 8.0], [1.0, 2.0, 3.0, 4.0], medians=medians[::-1])
    assert shorter.p == pytest.approx(2 / 70) and shorter.state == "inconclusive"


def test_a_probability_of_exactly_five_percent_is_not_seen() -> None:
    """As long as the longest of 59: of 60 choices these two and the shortest are as uneven."""
    before = [100.0 + at for at in range(59)]
    step = judged(before, [158.0])
    assert step.p == 0.05 and step.state == "inconclusive"
    assert judged(before, [158.5]).state == "slower"  # 2 of 60


def test_steps_of_which_the_best_test_says_five_percent_are_too_few() -> None:
    step = judged([100.0 + at for at in range(39)], [500.0])
    assert (step.smallest_p, step.p, step.state) == (0.05, None, "too_few_steps")
    enough = judged([100.0 + at for at in range(40)], [500.0])
    assert enough.p == pytest.approx(2 / 41) and enough.state == "slower"


@pytest.mark.parametrize(
    ("after", "state"),
    [
        ([98.0, 98.0, 98.0, 102.0, 102.0, 102.0], "no_change"),  # 2 of 100 ms either way is no practical size
        ([97.9, 97.9, 97.9, 102.0, 102.0, 102.0], "inconclusive"),
        ([98.0, 98.0, 98.0, 102.1, 102.1, 102.1], "inconclusive"),
    ],
)
def test_no_change_is_where_the_interval_reaches_no_further_than_a_fiftieth(
    after: list[float], state: str
) -> None:
    assert judged([100.0] * 6, after, medians=(100.0, 100.0)).state == state


def test_medians_a_fiftieth_apart_are_no_unchanged_step() -> None:
    same = [100.0, 100.0, 100.0, 100.0, 100.0]
    assert judged(same, same, medians=(100.0, 102.0)).state == "no_change"
    assert judged(same, same, medians=(100.0, 102.1)).state == "inconclusive"
    assert judged(same, same, medians=(100.0, 97.9)).state == "inconclusive"


def test_the_same_trace_twice_is_said_whatever_the_steps_are() -> None:
    step = judged([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], identical=True)
    assert (step.state, step.why) == ("identical", "the same trace twice")


@pytest.mark.parametrize(
    ("without", "frac"),
    [
        ((50.0, 40.0), -0.2),
        ((40.0, 50.0), 0.25),
        ((None, 40.0), None),
        ((50.0, None), None),
        ((0.0, 40.0), None),
        ((None, None), None),
    ],
)
def test_steps_without_the_profiler_stand_beside(
    without: tuple[float | None, float | None], frac: float | None
) -> None:
    step = judged([1.0, 2.0], [1.0, 2.0], unprofiled_ms=without)
    assert (step.unprofiled_before_ms, step.unprofiled_after_ms) == without
    assert step.unprofiled_diff_frac == (None if frac is None else pytest.approx(frac))


def test_where_too_few_were_recorded_the_steps_without_the_profiler_are_tested() -> None:
    """Three on each side: p is 0.1 at best. Of 5 and 4 others all are shorter after: 2 of 126 ways."""
    alone = [99.0, 98.0, 97.0, 96.0, 95.0], [56.0, 57.0, 58.0, 59.0]
    step = judged([100.0, 101.0, 102.0], [60.0, 61.0, 62.0], unprofiled=alone)
    assert step.state == "faster" and step.p == pytest.approx(2 / 126)
    assert step.unprofiled_steps == (5, 4) and "without the profiler" in step.test
    assert (step.before.median, step.after.median, step.diff_ms) == (101.0, 61.0, -40.0)
    assert -43.0 <= step.shift_low_ms < step.shift_high_ms <= -36.0
    recorded = judged([100.0, 101.0, 102.0, 103.0], [60.0, 61.0, 62.0, 63.0])
    for one, said in ((step, True), (recorded, False)):
        texts = (step_verdict(one), difference(one), left_open(one))
        assert {"without the profiler" in text for text in texts} == {said}


@pytest.mark.parametrize(
    ("recorded", "alone", "to", "state"),
    [
        (3, 3, 150.0, "too_few_steps"),  # neither can be tested
        (4, 4, 50.0, "slower"),  # enough were recorded: those count, whatever the others did
        (3, 4, 50.0, "too_few_steps"),  # they contradict each other
        (3, 4, 150.0, "slower"),
    ],
)
def test_recorded_steps_come_first(recorded: int, alone: int, to: float, state: str) -> None:
    slower = [100.0 + one for one in range(recorded)], [200.0 + one for one in range(recorded)]
    others = [90.0 + one for one in range(alone)], [to + one for one in range(alone)]
    step = judged(*slower, unprofiled=others)
    assert step.state == state
    assert (step.unprofiled_steps is None) == ((recorded, to) != (3, 150.0) or alone == 3)


def test_a_share_of_nothing_is_not_known() -> None:
    assert judged([0.0, 0.0], [1.0, 1.0]).diff_frac is None


def test_steps_by_turns_that_are_too_few_for_their_test_are_tested_together() -> None:
    """Two short and two long on each side: 2 of 36 ways by kind, so all four are tested with all four."""
    step = judged([10.0, 20.0, 10.1, 20.1], [12.0, 22.0, 12.1, 22.1])
    assert not step.by_kind and step.smallest_p == pytest.approx(2 / 70)
    assert "short" not in step.test
    assert [one.before.median for one in step.kinds] == pytest.approx([10.05, 20.05])
    assert [one.after.median for one in step.kinds] == pytest.approx([12.05, 22.05])
    assert [step.before.median, step.after.median] == pytest.approx([15.05, 17.05])
    assert [(one.before.low, one.before.high, one.before.n) for one in step.kinds] == [
        (10.0, 10.1, 2),
        (20.0, 20.1, 2),
    ]
    assert not mixed_otherwise(step)


def test_runs_are_not_steps_and_take_no_turns(said: Listener) -> None:
    step = judged([10.0, 20.0, 10.1, 20.1], [12.0, 22.0, 12.1, 22.1], what="runs")
    assert step.kinds == [] and "of runs" in step.test
    said(step.why)


def test_up_to_sixty_steps_are_counted_and_more_are_taken_as_normal() -> None:
    """Counted, the level is what the ranks give, 95 % or a little more; of the normal it is 95 %."""
    times = [float(at) for at in range(31)]
    assert judged(times[:30], times[:30]).shift_level > 0.95
    assert judged(times, times[:30]).shift_level == 0.95
    # of 40 and 40, 1600 / 2 - 1.96 x sqrt(1600 x 81 / 12) is 596; 595 differences are -6 or less, 630 -5
    forty = judged([*times, *range(31, 40)], [*times, *range(31, 40)])
    assert (forty.shift_low_ms, forty.shift_high_ms) == (-5.0, 5.0)


def test_short_and_long_steps_in_no_order_are_no_turns() -> None:
    """The same order twice, but within neither side does it come again."""
    times = [59.0, 59.1, 62.0, 59.0, 62.1, 62.0, 62.1]
    assert judged(times, times).kinds == []
    assert judged(times[2:4] * 3, times[2:4] * 3).kinds != []


@pytest.mark.parametrize(("after", "instead"), [(0.4, True), (0.0, True), (-0.4, False)])
def test_however_little_they_differ_it_has_to_be_to_the_same_side(after: float, instead: bool) -> None:
    """Three recorded steps 0.4 ms longer, or as long: four others by less than a millisecond."""
    times = [1.0, 1.1, 1.2, 1.3]
    others = times, [ms + after for ms in times]
    longer = judged(times[:3], [ms + 0.4 for ms in times[:3]], unprofiled=others)
    assert (longer.unprofiled_steps is not None) is instead
    assert judged(times[:3], times[:3], unprofiled=others).unprofiled_steps == (4, 4)
