"""How often a call is repeated, when it is enough, and what the repeats come to."""

from __future__ import annotations

import doctest

import pytest

from tests.measure.fakes import FakeDevice
from tests.said import Listener
from tracelens.measure import cases, facts, sweeps, timing
from tracelens.measure.cases import CannotMeasure, MeasureOptions
from tracelens.measure.devices import CudaDevice, _Batch
from tracelens.measure.timing import settled, spread_frac, time_calls

OPTIONS = MeasureOptions(
    seconds_per_case=0.06, min_seconds=0.02, batch_us=300, max_calls=128, min_batches=7, max_batches=64
)


def test_short_calls_are_timed_many_at_once_long_ones_alone() -> None:
    short, long = FakeDevice([3.0]), FakeDevice([5000.0])
    time_calls(lambda index: None, device=short, options=OPTIONS)
    time_calls(lambda index: None, device=long, options=OPTIONS)
    assert short.batches[0] == 1 and set(short.batches[1:]) == {100}
    assert set(long.batches) == {1}


def test_the_first_batches_do_not_count() -> None:
    device = FakeDevice([900.0, 700.0, *[100.0] * 99])  # loading kernels, then rising clocks
    found = time_calls(lambda index: None, device=device, options=OPTIONS)
    assert found.time_us == 100.0
    assert found.spread_frac == 0.0


def test_a_steady_call_stops_after_the_least_time_and_an_unsteady_one_at_the_most() -> None:
    steady = FakeDevice([100.0])
    unsteady = FakeDevice([100.0, 100.0, *[100.0, 300.0] * 500])
    options = MeasureOptions(seconds_per_case=0.06, min_seconds=0.02, batch_us=300, max_batches=1000)
    found = time_calls(lambda index: None, device=steady, options=options)
    assert found.batches * found.calls * 100 == pytest.approx(20_000, rel=0.05)
    found = time_calls(lambda index: None, device=unsteady, options=options)
    assert found.batches * found.calls * 200 == pytest.approx(60_000, rel=0.05)
    assert found.spread_frac is not None and found.spread_frac > 0.5


def test_a_call_of_tens_of_milliseconds_is_timed_three_times() -> None:
    device = FakeDevice([50_000.0])
    found = time_calls(lambda index: None, device=device, options=OPTIONS)
    assert found.batches == 3
    assert device.now_s < 0.3


def test_never_more_batches_than_allowed() -> None:
    device = FakeDevice([1.0, 1.0, *[0.1, 9.0] * 999])
    assert time_calls(lambda index: None, device=device, options=OPTIONS).batches == OPTIONS.max_batches


def test_calls_rotate_through_their_operands() -> None:
    device = FakeDevice([100.0])
    seen: list[int] = []
    time_calls(seen.append, device=device, options=OPTIONS)
    assert seen[:3] == [0, 1, 0]  # two to warm up, then the first timed alone
    assert seen[3:6] == [0, 1, 2]


def test_spread_and_settling() -> None:
    assert spread_frac([1.0, 2.0]) is None
    assert spread_frac([10.0] * 5) == 0.0
    assert spread_frac([float(value) for value in range(1, 12)]) == pytest.approx(8 / 6)
    assert not settled([1.0, 2.0], frac=0.5)  # too few to say
    assert settled([100.0, 100.1, 99.9, 100.0], frac=0.01)
    assert not settled([100.0, 120.0, 80.0, 100.0], frac=0.01)


def test_docstring_examples() -> None:
    for module in (cases, facts, sweeps, timing):
        result = doctest.testmod(module)
        assert result.attempted > 0 and result.failed == 0


class _Held(CudaDevice):
    """A CUDA device whose host needs ``host_us`` for a batch and whose GPU needs ``elapsed_us``."""

    def __init__(self, host_us: float, elapsed_us: float, *, hold_factor: float = 1.0) -> None:
        self._hold_us_per_call = 20.0
        self.host_us, self.elapsed_us, self.hold_factor = host_us, elapsed_us, hold_factor
        self.holds: list[float] = []

    def _time_once(self, call: timing.Call, calls: int, *, hold_us: float) -> _Batch:
        self.holds.append(hold_us)
        held = hold_us * self.hold_factor > self.host_us
        return _Batch(self.elapsed_us, self.host_us, held)


def test_a_batch_that_the_gpu_began_too_soon_is_repeated_with_a_longer_wait() -> None:
    device = _Held(host_us=1500.0, elapsed_us=400.0)
    assert device.time_batch(lambda index: None, 10) == 400.0
    assert len(device.holds) == 2 and device.holds[1] > 1500 > device.holds[0]
    device.time_batch(lambda index: None, 10)
    assert len(device.holds) == 3  # it has learned how long the host takes


def test_a_gpu_that_is_busy_longer_than_the_host_needs_no_wait() -> None:
    device = _Held(host_us=300.0, elapsed_us=9000.0, hold_factor=0.0)
    assert device.time_batch(lambda index: None, 1) == 9000.0
    assert len(device.holds) == 1


def test_a_host_that_cannot_keep_up_gives_a_reason_and_no_time(said: Listener) -> None:
    with pytest.raises(CannotMeasure) as error:
        _Held(host_us=1e6, elapsed_us=10.0, hold_factor=0.0).time_batch(lambda index: None, 100)
    said(error.value)
