"""The pace of the steps: what slows all shapes alike, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tracelens.gemm.clock import (
    StepPaces,
    _error,
    _medians,
    _quantile,
    step_paces,
    with_groups,
)
from tracelens.trace import BoolArray, IntArray

SHAPES, STEPS, CALLS = 12, 6, 8


def steps_of(factor: np.ndarray, *, noise: float = 0.01) -> tuple[StepPaces, np.ndarray, np.ndarray]:
    """Paces, durations and steps of calls whose time in each step and shape is times ``factor``."""
    rng = np.random.default_rng(7)
    step, shape, _ = (one.ravel() for one in np.indices((STEPS, SHAPES, CALLS)))
    plain = 10_000 * (shape + 1) * rng.normal(1, noise, len(step))
    dur = np.rint(plain * np.broadcast_to(factor, (STEPS, SHAPES))[step, shape]).astype(np.int64)
    return step_paces(dur, shape, step, np.ones(len(dur), np.bool_)), dur, step


@pytest.mark.parametrize("slower", [1.05, 1.2, 1.5])
def test_a_lower_clock_in_some_steps_is_found_again(slower: float) -> None:
    factor = np.where(np.arange(STEPS) >= 4, slower, 1.0)[:, None]
    found, dur, step = steps_of(factor)
    assert found.slow.tolist() == [False] * 4 + [True] * 2
    truth = (dur * (1 - 1 / slower))[step >= 4].sum()
    assert found.lost_ns.sum() == pytest.approx(truth, rel=0.05)
    assert not found.lost_ns[step < 4].any()


def test_kernels_whose_durations_are_damaged_have_no_pace() -> None:
    found, _, _ = steps_of(np.where(np.arange(STEPS) >= 4, 0.0, 1.0)[:, None])
    assert not found.slow.any()
    assert not np.isfinite(steps_of(np.zeros((STEPS, 1)))[0].pace).any()


def test_a_drift_is_found_from_three_percent_on() -> None:
    found, dur, step = steps_of((1 + 0.02 * np.arange(STEPS))[:, None], noise=0.002)
    assert found.slow.tolist() == [False, False, True, True, True, True]
    assert found.lost_ns.sum() == pytest.approx((dur * (1 - 1 / (1 + 0.02 * step)))[step > 1].sum(), rel=0.05)


@pytest.mark.parametrize("healthy", [0.01, 0.012])  # what a step's pace is off by without any cause
@pytest.mark.parametrize(("steps", "shapes", "calls"), [(3, 6, 4), (6, 12, 8), (4, 4, 3), (2, 12, 8)])
def test_what_is_claimed_of_a_weak_clock_is_right_or_its_range_holds_it(
    healthy: float, steps: int, shapes: int, calls: int
) -> None:
    """One slow step, few shapes or many, calls and steps that vary as healthy ones do."""
    claimed, right, invented = [], [], 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        step, shape, _ = (one.ravel() for one in np.indices((steps, shapes, calls)))
        plain = 10_000 * (shape + 1) * rng.normal(1, 0.01, len(step))
        plain = plain * (1 + healthy * rng.uniform(-1, 1, steps))[step]
        for slower in (1.0, 1.03, 1.06, 1.15):
            dur = np.rint(np.where(step == 0, slower, 1.0) * plain).astype(np.int64)
            found = step_paces(dur, shape, step, np.ones(len(dur), np.bool_))
            truth, slow = float((dur - plain).sum()), bool(found.slow.any())
            if slower == 1.0:
                invented += slow
                continue
            near = abs(found.lost_ns.sum() / truth - 1) <= 0.05
            claimed += [slow] if slower >= 1.06 else []
            right += [near or found.range_ns[0] <= truth <= found.range_ns[1]] if slow else []
    assert np.mean(right) >= 0.95 and invented <= 1
    assert np.mean(claimed) > (0.9 if shapes > 4 else 0.85)  # of four shapes the pace is known less well


@pytest.mark.parametrize(
    "factor",
    [
        np.ones((STEPS, 1)),
        np.where(np.arange(STEPS) == 2, 1.02, 1.0)[:, None],  # as steps of healthy traces differ
        # two thirds of the time slow, the rest at its pace: no clock
        np.where((np.arange(STEPS) == 2)[:, None] & (np.arange(SHAPES) > 6), 1.3, 1.0),
    ],
    ids=["steady", "noise", "some shapes"],
)
def test_none_is_invented(factor: np.ndarray) -> None:
    found, _, _ = steps_of(factor)
    assert not found.slow.any() and not found.lost_ns.any()


@pytest.mark.parametrize("seen", [lambda step: step < 4, lambda step: step >= 4], ids=["fast", "slow"])
def test_a_shape_of_one_kind_of_steps_only_slows_as_the_others_do(
    seen: Callable[[IntArray], BoolArray],
) -> None:
    """Its calls in the other steps ran beside a collective, and tell no pace."""
    slower = np.where(np.arange(STEPS) >= 4, 1.2, 1.0)[:, None]
    _, dur, step = steps_of(slower)
    shape = np.indices((STEPS, SHAPES, CALLS))[1].ravel()
    found = step_paces(dur, shape, step, (shape != 5) | seen(step))
    truth = (dur / 6)[(step >= 4) & (shape == 5)].sum()
    assert found.lost_ns[shape == 5].sum() == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize(("slower", "found_again"), [(1.2, True), (1.05, False)])
def test_groups_of_other_rows_lose_to_the_clock_as_the_others_do(slower: float, found_again: bool) -> None:
    """Experts that slow by less than half of the step's pace wait for memory."""
    found, dur, step = steps_of(np.where(np.arange(STEPS) >= 4, 1.2, 1.0)[:, None])
    rng = np.random.default_rng(1)
    rows = rng.integers(900, 1100, 60)
    at = np.arange(60) % STEPS
    took = np.rint(rows * 50 * np.where(at >= 4, slower, 1.0) * rng.normal(1, 0.02, 60)).astype(np.int64)
    groups = with_groups(
        replace(found, lost_ns=np.append(found.lost_ns, np.zeros(60))),
        np.append(dur, took),
        rows=np.append(np.zeros(len(dur), np.int64), rows),
        like=np.append(np.full(len(dur), -1), np.zeros(60, np.int64)),
        step=np.append(step, at),
        judged=np.ones(len(dur) + 60, np.bool_),
    )
    assert groups.lost_ns[: len(dur)].tolist() == found.lost_ns.tolist()
    truth = (took / 6)[at >= 4].sum() if found_again else 0.0
    assert groups.lost_ns[len(dur) :].sum() == pytest.approx(truth, rel=0.05)
    assert groups.range_ns[1] / groups.lost_ns.sum() == pytest.approx(found.range_ns[1] / found.lost_ns.sum())


def test_what_waits_for_memory_loses_nothing_to_the_clock() -> None:
    """The smallest shapes keep their time."""
    factor = np.where((np.arange(STEPS) == 2)[:, None] & (np.arange(SHAPES) > 2), 1.2, 1.0)
    found, dur, step = steps_of(factor)
    shape = np.indices((STEPS, SHAPES, CALLS))[1].ravel()
    assert found.slow[2] and not found.lost_ns[shape <= 2].any()
    assert found.lost_ns.sum() == pytest.approx((dur / 6)[(step == 2) & (shape > 2)].sum(), rel=0.05)


@pytest.mark.parametrize("calls", [0, 1, 5])
def test_too_little_to_compare_is_unknown(calls: int) -> None:
    dur, alike = np.full(calls, 100), np.arange(calls)
    found = step_paces(dur, alike, np.arange(calls) % 2, np.ones(calls, np.bool_))
    assert (
        not np.isfinite(found.pace).any() and not found.slow.any() and found.lost_ns.tolist() == [0.0] * calls
    )


def test_a_stall_is_no_clock() -> None:
    found, dur, step = steps_of(np.where(np.arange(STEPS) >= 4, 1.2, 1.0)[:, None])
    shape = np.indices((STEPS, SHAPES, CALLS))[1].ravel()
    dur[-1] *= 50
    stalled = step_paces(dur, shape, step, np.ones(len(dur), np.bool_))
    assert stalled.lost_ns[-1] == 0.0 and stalled.lost_ns.sum() < found.lost_ns.sum()


def test_the_range_of_one_slow_step_by_hand() -> None:
    """Four shapes 1.2 times as long in one of four steps: none of them differ, so healthy steps' 1.2 % is all
    that the paces are off by, of one step against the mean of three."""
    dur = np.tile([100, 200, 300, 300], 4) * np.repeat([100, 100, 120, 100], 4)
    found = step_paces(dur, np.tile([0, 1, 2, 3], 4), np.repeat([3, 4, 5, 6], 4), np.ones(16, np.bool_))
    error, slow = 0.012 * np.sqrt(1 + 1 / 3), 900 * 120
    assert found.slow.tolist() == [False, False, True, False]
    assert found.range_ns == pytest.approx((slow * (1 - 1 / (1.2 - error)), slow * (1 - 1 / (1.2 + error))))


def test_the_error_of_a_pace_by_hand() -> None:
    """Ratios 1, 1.1, 1.3 and 1.4 of equal weight: the quartiles are 1 and 1.3, of a normal distribution 1.35
    deviations apart; two standard errors of a median are 2 * 1.25 deviations over the root of four, and a
    fourth of the weight makes it 1 + 2/3 wider."""
    ratio = np.array([[1.0], [1.1], [1.3], [1.4]])
    wanted = 2 * 1.25 * (0.3 / 1.35) * (1 + 2 * 0.25 / 0.75) * 0.5
    assert _error(ratio, np.ones(4)) == pytest.approx([wanted])
    assert _error(ratio, np.full(4, 7.0)) == pytest.approx([wanted])


@pytest.mark.parametrize(
    ("part", "wanted"),
    [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 3.0), (0.6, 3.0), (0.61, 9.0), (1.0, 9.0)],
)
def test_weighted_quantiles_by_hand(part: float, wanted: float) -> None:
    """Weights 5, 1, 6 and 8 of 1, 2, 3 and 9, in any order; what is not known has none."""
    values, weight = np.array([9.0, 1.0, np.nan, 3.0, 2.0]), np.array([8.0, 5.0, 100.0, 6.0, 1.0])
    assert _quantile(values, weight, part) == wanted
    assert np.isnan(_quantile(values[:4], weight[:4], part))  # three shapes are too few


def test_medians_of_cells() -> None:
    values, cell = np.array([5, 1, 9, 4, 7, 2]), np.array([2, 0, 2, 2, 0, 2])
    found = _medians(values, cell, 4)
    assert found[[0, 2]].tolist() == [np.median([1, 7]), np.median([5, 9, 4, 2])]
    assert np.isnan(found[[1, 3]]).all()
