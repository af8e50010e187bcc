"""The sweep over what runs beside each GPU event, against one that looks at every nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.gemm.overlap import STALLED, _from_shares, beside, paces


@pytest.mark.parametrize("seed", range(20))
def test_the_sweep_sees_what_a_look_at_every_nanosecond_sees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 25))
    begin = rng.integers(0, 100, count)
    end, stream = begin + rng.integers(0, 30, count), rng.integers(0, 4, count)
    communicates = stream == 3
    told, others = beside(begin, end, stream, communicates)
    for at in range(count):
        near = [one for one in range(count) if stream[one] != stream[at]]
        runs = [[one for one in near if begin[one] <= now < end[one]] for now in range(begin[at], end[at])]
        marked = sum(any(communicates[one] for one in now) for now in runs)
        assert told[at] == (0 if communicates[at] else marked)
        assert told[at] + others[at] == sum(bool(now) for now in runs)


def test_no_event_is_beside_none() -> None:
    empty = np.empty(0, np.int64)
    assert [len(one) for one in beside(empty, empty, empty, empty.astype(bool))] == [0, 0]


def test_what_chance_explains_is_no_excess() -> None:
    rng = np.random.default_rng(1)
    dur = rng.normal(100_000, 3_000, 60).astype(np.int64)
    beside_ns = np.where(np.arange(60) % 2, dur, 0)
    found = paces(dur, beside_ns, np.zeros(60, np.int64))
    assert not found.excess.any()
    slower = paces(dur + np.where(beside_ns > 0, 20_000, 0), beside_ns, np.zeros(60, np.int64))
    assert slower.excess.sum() == pytest.approx(30 * 20_000, rel=0.05)


def test_without_calls_beside_nothing_nothing_is_known_of_the_others() -> None:
    dur, beside_ns = np.array([10, 10, 30, 30]), np.array([0, 0, 30, 30])
    found = paces(dur, beside_ns, np.zeros(4, np.int64))
    assert np.isnan(found.alone).all() and np.isnan(found.excess).tolist() == [False, False, True, True]


def _partly(
    shares: np.ndarray, *, slower: float, noise: float = 0.01
) -> tuple[np.ndarray, np.ndarray, float]:
    """Calls of 100 µs alone of which so large a share of the work is done beside a collective."""
    rng = np.random.default_rng(3)
    plain = 100_000 * rng.normal(1, 0.01, len(shares))
    inside = plain * shares * slower
    dur = (plain * (1 - shares) + inside).astype(np.int64)
    return dur, np.minimum(inside.astype(np.int64), dur), float((dur - plain).sum())


@pytest.mark.parametrize("slower", [1.2, 2.0])
def test_shares_of_time_tell_what_calls_take_alone(slower: float) -> None:
    dur, beside_ns, truth = _partly(np.linspace(0.1, 1.0, 40), slower=slower)
    found = paces(dur, beside_ns, np.zeros(40, np.int64))
    assert found.alone[0] == pytest.approx(100_000, rel=0.02)
    assert found.excess.sum() == pytest.approx(truth, rel=0.05)


def test_shares_that_slow_nothing_lose_nothing() -> None:
    dur, beside_ns, _ = _partly(np.linspace(0.1, 1.0, 40), slower=1.0)
    excess = paces(dur, beside_ns, np.zeros(40, np.int64)).excess
    assert np.isnan(excess).all() or not excess.any()


@pytest.mark.parametrize(
    "shares",
    [np.linspace(0.7, 1.0, 40), np.ones(40), np.linspace(0.1, 1.0, 5)],
    ids=["all of them mostly beside", "all of them beside", "few"],
)
def test_what_shares_do_not_tell_is_unknown(shares: np.ndarray) -> None:
    dur, beside_ns, _ = _partly(shares, slower=2.0)
    assert np.isnan(paces(dur, beside_ns, np.zeros(len(dur), np.int64)).excess).all()


def test_a_stall_beside_a_collective_is_a_stall() -> None:
    dur = np.array([10, 10, 10, 20, 20, 20, 20 * STALLED + 100], np.int64)
    found = paces(dur, np.where(dur > 10, dur, 0), np.zeros(7, np.int64))
    assert found.excess.tolist() == [0, 0, 0, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("slow", "quiet", "excess"),
    [
        # the median of 120, 130 and 500 is 130, of which 500 is a stall: it counts as usual
        ([120, 130, 500], [98, 100, 100, 102], [20.0, 30.0, 30.0]),
        ([120, 130, 390], [98, 100, 100, 102], [20.0, 30.0, 290.0]),
        # deviations of 1.4826 * 10 leave errors of 11.3 for three against four; three of them are 34
        ([120, 130, 135], [90, 90, 110, 110], [0.0, 0.0, 0.0]),
        ([130, 135, 140], [90, 90, 110, 110], [30.0, 35.0, 40.0]),
        # a hundredth of the time, without any spread
        ([1010, 1010, 1010], [1000, 1000, 1000], [0.0, 0.0, 0.0]),
        ([1011, 1011, 1011], [1000, 1000, 1000], [11.0, 11.0, 11.0]),
    ],
)
def test_what_calls_took_beyond_undisturbed_ones_by_hand(
    slow: list[int], quiet: list[int], excess: list[float]
) -> None:
    dur = np.array([*slow, *quiet])
    found = paces(dur, np.array([*slow, *[0] * len(quiet)]), np.zeros(len(dur), np.int64))
    assert found.excess.tolist() == [*excess, *[0.0] * len(quiet)]
    assert set(found.alone) == {np.median(quiet)}
    assert found.usual.tolist() == [np.median(slow)] * len(slow) + [np.median(quiet)] * len(quiet)


def test_a_call_is_disturbed_from_a_hundredth_of_its_time_on() -> None:
    found = paces(np.array([1000] * 4), np.array([0, 0, 10, 11]), np.zeros(4, np.int64))
    assert found.usual.tolist() == [1000.0] * 4 and found.excess.tolist() == [0.0] * 4
    two = paces(np.array([1000] * 3), np.array([0, 0, 11]), np.zeros(3, np.int64))
    assert np.isnan(two.alone).all() and np.isnan(two.excess[2]) and two.excess[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_the_line_of_shares_is_that_of_least_squares(seed: int) -> None:
    """1 / time against the share beside others: its value at none, and the error that numpy's fit gives."""
    rng = np.random.default_rng(seed)
    share = np.linspace(0.2, 0.9, 12)
    dur = np.round(1e6 / (1 - 0.4 * share + rng.normal(0, 0.004, 12))).astype(np.int64)
    beside_ns = np.round(share * dur).astype(np.int64)
    (slope, at_none), cov = np.polyfit(beside_ns / dur, 1 / dur, 1, cov=True)
    alone, error = _from_shares(dur, beside_ns)
    assert slope < 0 and alone == pytest.approx(1 / at_none)
    assert error == pytest.approx(np.sqrt(cov[1, 1]) / at_none**2)
    few = _from_shares(dur[:7], beside_ns[:7])
    assert np.isnan(few[0]) and not np.isnan(_from_shares(dur[:8], beside_ns[:8])[0])
    assert np.isnan(_from_shares(dur[6:], beside_ns[6:])[0])  # none runs half of its time alone
