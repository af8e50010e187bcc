"""What one shape saves over another and what measured neighbours say, from made-up times, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tracelens.gemm.gain import Gain, gain, told_apart
from tracelens.gemm.ladder import alignment_ladder
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.gemm.predict.neighbours import neighbours
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.results import Estimate

A100 = find_gpu(None, override="a100-sxm-80gb")


def timed(n: int, *times: float | None, basis: Any = "model", m: int = 4096, k: int = 4096,
          **rates: float) -> Prediction:  # fmt: skip
    """A prediction with these times, and its rates with these figures."""
    found = predict_gemm(m, n, k, gpu=A100)
    assert found.chosen is not None
    plain = {"ratio_error_frac": 1.0, "high": 1.25}  # the GPU that the errors of ratios are from
    chosen = replace(found.chosen, rates=replace(found.chosen.rates, **(plain | rates)))  # type: ignore[arg-type]
    low, mid, high = times
    return replace(found, time_us=Estimate(low, mid, high, basis), chosen=chosen)


def made(now: Prediction, then: Prediction) -> Gain:
    found = gain(now, then, gpu=A100)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("n", "error"),
    [(4096, 0.09), (4032, 0.09), (3776, 0.09), (3072, 0.12), (2112, 0.12), (1984, 0.13), (64, 0.13)],
)
def test_errors_of_ratios_by_how_far_shapes_are_apart(n: int, error: float) -> None:
    """In as much time for each operation, nothing is added for a change of the rate."""
    mid = 100.0 * n / 4096
    ratio = made(timed(4096, 1.0, 100.0, 1e6), timed(n, 1e-3, mid, 1e6)).time_ratio
    assert (ratio.low, ratio.mid, ratio.high) == pytest.approx(
        (mid / 100 * math.exp(-error), mid / 100, mid / 100 * math.exp(error))
    )


@pytest.mark.parametrize(
    ("mid", "change"),
    [(50.0, 0.0), (40.0, math.log(50 / 40)), (60.0, math.log(60 / 50)), (10.0, 0.5), (500.0, 0.5)],
)
def test_a_tenth_of_a_changed_rate_is_error_too(mid: float, change: float) -> None:
    """Half of the work; 12 % for shapes a factor of two apart, counted to a change of ln 0.5."""
    ratio = made(timed(4096, 1.0, 100.0, 1e6), timed(2048 + 64, 1e-3, mid * 2112 / 2048, 1e6)).time_ratio
    error = 0.12 + 0.1 * change
    assert ratio.high == pytest.approx(mid * 2112 / 2048 / 100 * math.exp(error))
    assert ratio.low == pytest.approx(mid * 2112 / 2048 / 100 * math.exp(-error))


@pytest.mark.parametrize(
    ("high_frac", "ratio_frac", "wider"),
    [
        (1.25, 1.0, 1.0),
        (1.1, 1.0, 1.0),  # never narrower than where it was measured
        (1.5625, 1.0, 2.0),  # twice the log of 1.25
        (1.25, 0.5, 0.5),
        (1.5625, 0.5, 1.0),
    ],
)
def test_of_a_gpu_that_is_less_known_ratios_are_less_known(
    high_frac: float, ratio_frac: float, wider: float
) -> None:
    then = timed(3072, 1e-3, 75.0, 1e6, high=high_frac, ratio_error_frac=ratio_frac)
    ratio = made(timed(4096, 1.0, 100.0, 1e6), then).time_ratio
    assert ratio.high == pytest.approx(0.75 * math.exp(0.12 * wider))
    assert ratio.low == pytest.approx(0.75 * math.exp(-0.12 * wider))


def test_alignment_leaves_open_what_its_step_does() -> None:
    """Off the grid now: a slower present makes the ratio smaller; then: a slower other makes it larger."""
    step = alignment_ladder(gpu=A100, dtype="bf16").step_of(
        predict_gemm(4096, 4094, 4096, gpu=A100).alignment
    )
    on, off = timed(4096, 1.0, 100.0, 1e6), timed(4094, 1e-3, 140.0, 1e6)
    frac = off.alignment_frac
    assert frac and step.low and step.high and on.alignment_frac == 1.0 and step.low < frac < step.high
    shorter, longer = math.log(step.high / frac), math.log(frac / step.low)
    change = abs(math.log(140 / 100 * 4096 / 4094) + math.log(frac))
    error = 0.09 + 0.1 * min(change, math.log(140 / 100 * 4096 / 4094), 0.5)
    leaves, comes = made(on, off).time_ratio, made(off, on).time_ratio
    assert leaves.high == pytest.approx(1.4 * math.exp(error + longer))
    assert leaves.low == pytest.approx(1.4 * math.exp(-error - shorter))
    assert comes.high == pytest.approx(math.exp(error + shorter) / 1.4)
    assert comes.low == pytest.approx(math.exp(-error - longer) / 1.4)


def test_a_ratio_is_never_below_what_both_ranges_allow() -> None:
    """49 of at most 101: a ratio of 0.485 at least."""
    now, then = timed(4096, 99.0, 100.0, 101.0), timed(2112, 49.0, 50.0, 51.0)
    found = made(now, then)
    assert found.time_ratio.low == pytest.approx(49 / 101) and found.work_ratio == 2112 / 4096
    assert found.per_flop_ratio.mid == pytest.approx(0.5 * 4096 / 2112)
    saving = found.saving_us
    assert (saving.mid, saving.basis) == (50.0, "model")
    assert saving.high == pytest.approx(101 - 49)
    high = found.time_ratio.high
    assert high is not None and saving.low == pytest.approx((1 - high) * 99)


def test_what_costs_more_costs_at_most_of_the_longest_present_time() -> None:
    found = made(timed(4096, 90.0, 100.0, 120.0), timed(4608, 170.0, 200.0, 240.0))
    low, high = found.time_ratio.low, found.time_ratio.high
    assert low is not None and high is not None and 1 < low < high
    assert found.saving_us.low == pytest.approx((1 - high) * 120)
    assert found.saving_us.high == pytest.approx((1 - low) * 90)
    assert found.saving_us.mid == -100.0


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_a_time_without_a_range_saves_nothing_that_is_known(lacking: int) -> None:
    times: list[float | None] = [40.0, 50.0, 60.0]
    times[lacking] = None
    assert gain(timed(4096, 90.0, 100.0, 120.0), timed(2112, *times), gpu=A100) is None
    times = [90.0, 100.0, 120.0]
    times[lacking] = None
    found = gain(timed(4096, *times), timed(2112, 40.0, 50.0, 60.0), gpu=A100)
    assert (found is None) == (lacking != 1)


@pytest.mark.parametrize("wider", [1.0, 2.0])
@pytest.mark.parametrize("high", [200.0, None])
def test_a_present_time_that_is_only_bounded(high: float | None, wider: float) -> None:
    """By the model what the rate leaves open is taken out of the other time, once."""
    then = timed(3072, 10.0, 50.0, 200.0, high=1.25**wider)
    assert then.chosen is not None
    low_frac, high_frac = then.chosen.rates.range_of(then.m, then.n, then.k, 50.0)
    found = made(timed(4096, 90.0, None, high), then)
    least = max(50.0 * high_frac * math.exp(-0.12 * wider), 10.0)
    longest = max(50.0 * low_frac, 10.0) * math.exp(0.12 * wider)
    assert found.time_ratio.mid is None and found.saving_us.mid is None
    assert found.time_ratio.high == pytest.approx(longest / 90.0)
    assert found.time_ratio.low == pytest.approx(least / 200.0 if high else 0.0)


@pytest.mark.parametrize(
    ("dimension", "then", "told"),
    [
        ("n", 73.0, True),  # 3072 of 4096 would take 75 of 100
        ("n", 74.5, False),
        ("m", 73.0, False),
        ("k", 10.0, False),
        ("n", None, False),
    ],
)
def test_less_time_for_each_operation_is_told_from_a_least_difference_on(
    dimension: Any, then: float | None, told: bool
) -> None:
    rates: dict[str, Any] = {"told_apart_n": 0.02, "told_apart_m": 0.05}  # 2 % below 75 is 73.5, 5 % 71.3
    now = timed(4096, 90.0, 100.0, 110.0)
    other = timed(3072, 1.0, then, 1e6, **rates)
    assert told_apart(now, other, dimension) is told
    assert told_apart(now, timed(3072, 1.0, 71.0, 1e6, **rates), "m") is True
    calibrated = replace(other, time_us=replace(other.time_us, basis="calibrated"))
    assert told_apart(now, calibrated, dimension) is False
    assert told_apart(timed(4096, None, None, None), other, dimension) is False
    assert told_apart(now, replace(other, chosen=None), dimension) is False
    assert told_apart(now, replace(other, alignment_frac=0.5), dimension) is False


# --- measured neighbours ----------------------------------------------------------------------------------


def measured(m: int, n: int, k: int = 1024, layout: str = "NN", batch: int = 1) -> GemmMeasurement:
    return GemmMeasurement("made up", m, n, k, batch, "bf16", "bf16", layout, 10.0, None, ())


def test_nearness_is_the_sum_of_octaves_over_all_sizes() -> None:
    """Neighbours weigh 1 / (distance + reach)^2, and having none 1 / prior^2."""
    rows = [
        measured(1024, 1024), measured(2048, 1024), measured(1024, 4096), measured(1024, 1024, 8192),
        measured(1024, 1024, 1024, batch=16), measured(2**15, 1024),
    ]  # fmt: skip
    residuals = np.array([0.1, 0.2, -0.1, 0.05, 0.3, 0.0])
    found = neighbours(rows, [128] * 6, residuals)
    told = found.of((1024, 1024, 1024, 1), "NN", 128)
    octaves = [0.0, 1.0, 2.0, 3.0, 4.0]  # the sixth is five away and not asked
    weights = [1 / (one + found.reach) ** 2 for one in octaves]
    assert [one[0] for one in told.weighted] == pytest.approx(weights, rel=1e-6)
    assert [one[1] for one in told.weighted] == [0.1, 0.2, -0.1, 0.05, 0.3]
    prior = 1 / found.prior_distance**2
    mean = sum(w * r for w, r in zip(weights, residuals[:5], strict=True)) / (sum(weights) + prior)
    assert told.prior_weight == pytest.approx(prior, rel=1e-6)
    assert told.factor == pytest.approx(math.exp(mean), rel=1e-5)
    assert [one[2].endswith("x16") for one in told.weighted] == [False] * 4 + [True]


def test_products_of_another_layout_are_asked_where_this_one_was_not_measured() -> None:
    rows = [measured(1024, 2**at, layout="NN" if at % 2 else "TN") for at in range(6, 16)]
    found = neighbours(rows, [128] * 10, np.linspace(-0.1, 0.1, 10))
    assert found.has("NN", 128) and found.has("NT", 128) and not found.has("NN", 64)
    sizes = (1024, 1024, 1024, 1)
    own, other = found.of(sizes, "TN", 128), found.of(sizes, "NT", 128)
    assert {one[2] for one in own.weighted} == {f"1024x{2**at}x1024" for at in (6, 8, 10, 12, 14)}
    assert {one[2] for one in other.weighted} == {f"1024x{2**at}x1024" for at in (8, 9, 10, 11, 12)}
    nothing = found.of(sizes, "NN", 64)
    assert (nothing.weighted, nothing.factor, nothing.prior_weight) == ((), 1.0, 1.0)


def test_a_lone_measurement_corrects_by_what_it_shows() -> None:
    found = neighbours([measured(1024, 1024)], [128], np.array([0.2]))
    told = found.of((1024, 1024, 1024, 1), "NN", 128)
    weight, prior = 1 / found.reach**2, 1 / found.prior_distance**2
    assert told.factor == pytest.approx(math.exp(0.2 * weight / (weight + prior)), rel=1e-5)
    assert told.low_frac <= 1.0 <= told.high_frac
    # Left out it was as far from any as counts, four octaves, and missed by 0.2: at no distance by a quarter.
    assert told.high_frac == pytest.approx(math.exp(0.2 / 4)) and told.low_frac == 1.0
    octave, far = (found.of((1024, n, 1024, 1), "NN", 128).high_frac for n in (2048, 2**20))
    assert (octave, far) == pytest.approx((math.exp(0.2 / 4), math.exp(0.2)))


@pytest.mark.parametrize("sign", [1, -1])
def test_how_far_neighbours_count_is_what_predicts_them_best_when_left_out(sign: int) -> None:
    """Two products an octave apart, 0.2 (ln) off both, or one above and one below.

    Alike, the near reach and the far prior leave least: 0.2 (1 - w / (w + 1/9)), w = 1/1.005^2. Unlike,
    whatever the one says of the other is wrong: the far reach and the near prior, w = 1/1.2^2 beside 100.
    Both errors are the typical one, so the range is as wide as it: of equal signs to one side only.
    """
    found = neighbours([measured(1024, 1024), measured(1024, 2048)], [128] * 2, np.array([0.2, sign * 0.2]))
    weight, prior = (1 / 1.005**2, 1 / 9) if sign > 0 else (1 / 1.2**2, 100.0)
    left = 0.2 * (1 - sign * weight / (weight + prior))
    told = found.of((1024, 1024, 1024, 1), "NN", 128)
    assert told.prior_weight == pytest.approx(prior)
    assert told.high_frac == pytest.approx(math.exp(left))
    assert told.low_frac == pytest.approx(1.0 if sign > 0 else math.exp(-left))
    reach = 0.005 if sign > 0 else 0.2
    weights = 1 / reach**2, 1 / (1 + reach) ** 2
    mean = 0.2 * (weights[0] + sign * weights[1]) / (sum(weights) + prior)
    assert told.factor == pytest.approx(math.exp(mean), rel=1e-5)


def test_no_prediction_is_surer_than_the_noise_of_timing() -> None:
    """Left-out errors of nothing: half a percent is the typical one; the range is what was seen, none."""
    found = neighbours([measured(1024, 2**at) for at in range(8, 14)], [128] * 6, np.zeros(6))
    told = found.of((1024, 1024, 1024, 1), "NN", 128)
    assert (told.low_frac, told.factor, told.high_frac) == (1.0, 1.0, 1.0)
